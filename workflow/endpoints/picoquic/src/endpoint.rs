//! What the connections of a program have in common, and which algorithms this build has.

use std::ffi::{c_char, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};

use quicbed_contract::options::{
    Aead, ClientOptions, CommonOptions, CongestionControl, HeaderProtection, ServerOptions,
};
use quicbed_contract::tls::{self, Group, Signature, GROUPS, SIGNATURES};
use quicbed_contract::udp::wake_promptly;

use crate::connection::{calls, Application};
use crate::ffi;
use crate::IDLE_TIMEOUT_MS;

/// Room for a reason of one line.
const REASON: usize = 1_024;

/// picoquic's context. It lives as long as the program.
pub type Endpoint = NonNull<ffi::Endpoint>;

/// Groups of this build, by their names on the command line.
pub fn groups() -> Vec<&'static str> {
    let known = GROUPS.iter().filter(|group| {
        let algorithm = text(openssl_group(group));
        // SAFETY: the name is valid during the call.
        unsafe { ffi::qp_has_group(group.code_point, algorithm.as_ptr()) }
    });
    known.map(|group| group.name).collect()
}

/// Signature algorithms of this build, by their names on the command line.
pub fn signatures() -> Vec<&'static str> {
    let known = SIGNATURES.iter().filter(|signature| {
        let algorithm = openssl_signature(signature).map(text);
        // SAFETY: the name, if there is one, is valid during the call.
        unsafe { ffi::qp_has_signature(signature.code_point, pointer(algorithm.as_ref())) }
    });
    known.map(|signature| signature.name).collect()
}

/// What OpenSSL calls the key exchange of a group that picotls does not have.
pub fn openssl_group(group: &Group) -> &'static str {
    match group.name {
        "x448" => "X448",
        _ => group.tls_name,
    }
}

/// What OpenSSL calls keys of an algorithm that picotls does not know.
fn openssl_signature(signature: &Signature) -> Option<&'static str> {
    match signature.liboqs {
        // ML-DSA is OpenSSL's own.
        Some(name) if name.starts_with("ML-DSA-") => Some(name),
        Some(_) => Some(signature.tls_name),
        None => None,
    }
}

/// The endpoint of a client.
pub fn client<A: Application>(options: &ClientOptions) -> Result<Endpoint, String> {
    let server_name = CString::new(options.server_name.as_str());
    let server_name = server_name.map_err(|_| "--server-name: has a zero byte".to_owned())?;
    let ca = options.ca.as_deref().map(path).transpose()?;
    open::<A>(&options.common, |settings| {
        settings.server_name = server_name.into_raw();
        settings.ca = kept(ca);
    })
}

/// The endpoint of a server.
pub fn server<A: Application>(options: &ServerOptions) -> Result<Endpoint, String> {
    let certificate = path(&options.certificate)?;
    let private_key = path(&options.private_key)?;
    open::<A>(&options.common, |settings| {
        settings.server = true;
        settings.retry = options.retry;
        settings.certificate = certificate.into_raw();
        settings.private_key = private_key.into_raw();
    })
}

/// Strings are kept as long as the program runs, as the endpoint is.
fn open<A: Application>(
    options: &CommonOptions,
    of_role: impl FnOnce(&mut ffi::Settings),
) -> Result<Endpoint, String> {
    // picoquic's pacer waits for microseconds.
    wake_promptly();
    let unknown = || "the algorithms are not in the table".to_owned();
    let group = tls::group(&options.group).ok_or_else(unknown)?;
    let signature = tls::signature(&options.signature).ok_or_else(unknown)?;
    let key_log = options.key_log.as_deref().map(|file| {
        // picoquic does not tell whether it could open it.
        let opened = std::fs::File::options()
            .create(true)
            .append(true)
            .open(file);
        opened.map_err(|error| format!("--key-log {}: {error}", file.display()))?;
        path(file)
    });
    let mut settings = ffi::Settings {
        server: false,
        retry: false,
        noop_aead: options.aead == Aead::Noop,
        no_header_protection: options.header_protection == HeaderProtection::Off,
        cipher: options.cipher.code_point(),
        group: group.code_point,
        signature: signature.code_point,
        initial_size: options.initial_size as u16,
        udp_payload: options.udp_payload as u16,
        window: options.window,
        idle_timeout_ms: IDLE_TIMEOUT_MS,
        group_algorithm: text(openssl_group(group)).into_raw(),
        congestion_control: text(match options.congestion_control {
            CongestionControl::Cubic => "cubic",
            CongestionControl::Reno => "newreno",
            CongestionControl::Bbr => "bbr",
        })
        .into_raw(),
        alpn: text(options.alpn.name()).into_raw(),
        server_name: ptr::null(),
        ca: ptr::null(),
        certificate: ptr::null(),
        private_key: ptr::null(),
        key_log: kept(key_log.transpose()?),
    };
    of_role(&mut settings);
    let mut reason = [0u8; REASON];
    // SAFETY: the strings stay, and the rest is copied during the call.
    let endpoint = unsafe {
        ffi::qp_open(
            &settings,
            &calls::<A>(),
            reason.as_mut_ptr().cast(),
            reason.len(),
        )
    };
    NonNull::new(endpoint).ok_or_else(|| {
        let length = reason.iter().position(|byte| *byte == 0).unwrap_or(0);
        String::from_utf8_lossy(&reason[..length]).into_owned()
    })
}

pub fn path(path: &Path) -> Result<CString, String> {
    let bytes = path.as_os_str().as_bytes();
    CString::new(bytes).map_err(|_| format!("{}: has a zero byte", path.display()))
}

/// Names of this program have no zero byte.
pub fn text(text: &str) -> CString {
    CString::new(text.replace('\0', "")).unwrap_or_default()
}

fn pointer(text: Option<&CString>) -> *const c_char {
    text.map_or(ptr::null(), |text| text.as_ptr())
}

fn kept(text: Option<CString>) -> *const c_char {
    text.map_or(ptr::null(), |text| text.into_raw())
}
