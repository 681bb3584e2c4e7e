//! The TLS side of MsQuic: groups, signature algorithms and key log, which MsQuic has no settings for, and what was
//! negotiated, of which it does not tell all.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_long, c_void, CStr, CString};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::ptr;
use std::slice;
use std::sync::{Mutex, OnceLock, PoisonError};

use quicbed_contract::events::ConnectionCommon;
use quicbed_contract::options::{Cipher, CommonOptions};
use quicbed_contract::tls::{group, signature, signature_name, GROUPS};

use crate::ffi;

extern "C" {
    fn __real_SSL_CTX_new(method: *const ffi::SSL_METHOD) -> *mut ffi::SSL_CTX;
}

/// What MsQuic's contexts get beside MsQuic's own settings.
struct Settings {
    groups: CString,
    signature_schemes: CString,
    /// Name that the certificate of a server must have.
    server_name: Option<CString>,
    key_log: Option<Mutex<KeyLog>>,
    /// Where an [`Observed`] hangs on a connection.
    slot: c_int,
}

/// Kept in memory until a connection is over.
struct KeyLog {
    file: File,
    lines: Vec<u8>,
}

/// What passed during a handshake.
#[derive(Clone, Copy, Debug, Default)]
struct Observed {
    hello_retry_request: bool,
    signature: Option<&'static str>,
}

/// A complete handshake.
#[derive(Clone, Debug)]
pub struct Negotiated {
    cipher: Option<&'static str>,
    group: Option<&'static str>,
    alpn: Option<String>,
    tls_version: Option<String>,
    observed: Observed,
}

static SETTINGS: OnceLock<Settings> = OnceLock::new();

thread_local! {
    /// The handshake that was completed last in this thread. MsQuic tells of it before it does anything else.
    static COMPLETED: RefCell<Option<Negotiated>> = const { RefCell::new(None) };
}

/// Chooses what contexts made from now on offer and accept.
pub fn configure(options: &CommonOptions, server_name: Option<&str>) -> Result<(), String> {
    // Nothing of the host's configuration and trust is used.
    for variable in ["SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE"] {
        std::env::remove_var(variable);
    }
    std::env::set_var("OPENSSL_CONF", "/dev/null");
    let unknown = || "an algorithm without a TLS name".to_owned();
    let text = |name: &str| CString::new(name).map_err(|error| error.to_string());
    let key_log = match &options.key_log {
        None => None,
        Some(path) => {
            let file = OpenOptions::new().create(true).append(true).open(path);
            let file = file.map_err(|error| format!("--key-log {}: {error}", path.display()))?;
            let lines = Vec::new();
            Some(Mutex::new(KeyLog { file, lines }))
        }
    };
    let settings = Settings {
        groups: text(group(&options.group).ok_or_else(unknown)?.tls_name)?,
        signature_schemes: text(signature(&options.signature).ok_or_else(unknown)?.tls_name)?,
        server_name: server_name.map(text).transpose()?,
        key_log,
        // SAFETY: no pointers but a function of the right type.
        slot: unsafe {
            ffi::CRYPTO_get_ex_new_index(
                ffi::CRYPTO_EX_INDEX_SSL as c_int,
                0,
                ptr::null_mut(),
                None,
                None,
                Some(free_observed),
            )
        },
    };
    SETTINGS.get_or_init(|| settings);
    Ok(())
}

/// The handshake of the connection that MsQuic has just called connected, in the thread of that call.
pub fn take_completed() -> Option<Negotiated> {
    COMPLETED.take()
}

/// Writes down what was negotiated, and returns the first thing that is not as asked for.
pub fn read_back(
    negotiated: Option<Negotiated>,
    asked: &CommonOptions,
    record: &mut ConnectionCommon,
) -> Option<String> {
    let negotiated = negotiated?;
    record.cipher = negotiated.cipher;
    record.group = negotiated.group;
    record.signature = negotiated.observed.signature;
    record.alpn = negotiated.alpn;
    record.tls_version = negotiated.tls_version;
    record.hello_retry_request = Some(negotiated.observed.hello_retry_request);
    let pairs = [
        (record.cipher, Some(asked.cipher.iana())),
        (record.group, group(&asked.group).map(|g| g.tls_name)),
        (
            record.signature,
            signature(&asked.signature).map(|s| s.tls_name),
        ),
    ];
    pairs.into_iter().find_map(|pair| match pair {
        (Some(is), Some(should)) if is != should => {
            Some(format!("negotiated {is} instead of {should}"))
        }
        _ => None,
    })
}

/// Appends the secrets of a connection that is over to the key log.
pub fn flush_key_log() -> Result<(), String> {
    let Some(log) = SETTINGS
        .get()
        .and_then(|settings| settings.key_log.as_ref())
    else {
        return Ok(());
    };
    let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
    let lines = std::mem::take(&mut log.lines);
    let written = log.file.write_all(&lines);
    written.map_err(|error| format!("--key-log: {error}"))
}

/// Whether quictls uses the AES instructions of the processor: bit 57 of its processor capabilities
/// (OPENSSL_ia32cap(3)), or `None` where it does not tell them.
pub fn aes_hardware() -> Option<bool> {
    // SAFETY: the result is null or a static string.
    let told = unsafe { ffi::OPENSSL_info(ffi::OPENSSL_INFO_CPU_SETTINGS as c_int).as_ref() }?;
    // SAFETY: as above.
    let told = unsafe { CStr::from_ptr(told) }.to_str().ok()?;
    let capabilities = told.strip_prefix("OPENSSL_ia32cap=0x")?;
    let (first, _) = capabilities.split_once(':')?;
    u64::from_str_radix(first, 16)
        .ok()
        .map(|bits| bits >> 57 & 1 == 1)
}

/// MsQuic makes a context for every configuration, and uses it for nothing but its connections.
///
/// # Safety
/// As of SSL_CTX_new(3).
#[no_mangle]
unsafe extern "C" fn __wrap_SSL_CTX_new(method: *const ffi::SSL_METHOD) -> *mut ffi::SSL_CTX {
    let context = __real_SSL_CTX_new(method);
    let Some(settings) = SETTINGS.get() else {
        return context;
    };
    if context.is_null() {
        return context;
    }
    // RSA-1024 has 80 bits of security; the default level asks for more.
    ffi::SSL_CTX_set_security_level(context, 0);
    let set = |command: u32, list: &CString| {
        let list = list.as_ptr().cast_mut().cast();
        ffi::SSL_CTX_ctrl(context, command as c_int, 0, list) == 1
    };
    if !set(ffi::SSL_CTRL_SET_GROUPS_LIST, &settings.groups)
        || !set(ffi::SSL_CTRL_SET_SIGALGS_LIST, &settings.signature_schemes)
    {
        // MsQuic says that it cannot load the credentials.
        ffi::SSL_CTX_free(context);
        return ptr::null_mut();
    }
    if let Some(name) = &settings.server_name {
        let bytes = name.as_bytes();
        let parameters = ffi::SSL_CTX_get0_param(context);
        ffi::X509_VERIFY_PARAM_set1_host(parameters, name.as_ptr(), bytes.len());
    }
    if settings.key_log.is_some() {
        ffi::SSL_CTX_set_keylog_callback(context, Some(on_secret));
    }
    ffi::SSL_CTX_set_msg_callback(context, Some(on_message));
    context
}

unsafe extern "C" fn on_secret(_: *const ffi::SSL, line: *const c_char) {
    let Some(log) = SETTINGS
        .get()
        .and_then(|settings| settings.key_log.as_ref())
    else {
        return;
    };
    let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
    log.lines.extend_from_slice(CStr::from_ptr(line).to_bytes());
    log.lines.push(b'\n');
}

unsafe extern "C" fn on_message(
    _: c_int,
    _: c_int,
    kind: c_int,
    message: *const c_void,
    length: usize,
    ssl: *mut ffi::SSL,
    _: *mut c_void,
) {
    let Some(settings) = SETTINGS.get() else {
        return;
    };
    if kind != ffi::SSL3_RT_HANDSHAKE as c_int || length == 0 {
        return;
    }
    let message = slice::from_raw_parts(message.cast::<u8>(), length);
    let mut observed: *mut Observed = ffi::SSL_get_ex_data(ssl, settings.slot).cast();
    if observed.is_null() {
        observed = Box::into_raw(Box::default());
        ffi::SSL_set_ex_data(ssl, settings.slot, observed.cast());
    }
    match u32::from(message[0]) {
        ffi::SSL3_MT_SERVER_HELLO => {
            (*observed).hello_retry_request |= is_hello_retry_request(message);
        }
        ffi::SSL3_MT_CERTIFICATE_VERIFY => {
            // RFC 8446, section 4.4.3: the scheme follows type and length
            let scheme = message.get(4..6).map(|b| u16::from_be_bytes([b[0], b[1]]));
            (*observed).signature = scheme.and_then(signature_name);
        }
        ffi::SSL3_MT_FINISHED => COMPLETED.set(Some(negotiated(ssl, *observed))),
        _ => {}
    }
}

unsafe extern "C" fn free_observed(
    _: *mut c_void,
    observed: *mut c_void,
    _: *mut ffi::CRYPTO_EX_DATA,
    _: c_int,
    _: c_long,
    _: *mut c_void,
) {
    if !observed.is_null() {
        drop(Box::from_raw(observed.cast::<Observed>()));
    }
}

fn is_hello_retry_request(message: &[u8]) -> bool {
    // RFC 8446, section 4.1.3: a ServerHello with the SHA-256 of "HelloRetryRequest" as its random value
    const RANDOM: [u8; 32] = [
        0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8,
        0x91, 0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8,
        0x33, 0x9c,
    ];
    // after type, length and legacy_version
    message.get(6..38) == Some(&RANDOM[..])
}

unsafe fn negotiated(ssl: *mut ffi::SSL, observed: Observed) -> Negotiated {
    let text = |name: *const c_char| {
        (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
    };
    let cipher = text(ffi::SSL_CIPHER_standard_name(ffi::SSL_get_current_cipher(
        ssl,
    )));
    let get_group = ffi::SSL_CTRL_GET_NEGOTIATED_GROUP as c_int;
    let id = ffi::SSL_ctrl(ssl, get_group, 0, ptr::null_mut()) as c_int;
    let group = text(ffi::SSL_group_to_name(ssl, id));
    let (mut alpn, mut length) = (ptr::null(), 0);
    ffi::SSL_get0_alpn_selected(ssl, &mut alpn, &mut length);
    Negotiated {
        cipher: Cipher::ALL
            .iter()
            .map(|known| known.iana())
            .find(|known| cipher.as_deref() == Some(*known)),
        group: GROUPS.iter().map(|known| known.tls_name).find(|known| {
            group
                .as_ref()
                .is_some_and(|g| g.eq_ignore_ascii_case(known))
        }),
        alpn: (!alpn.is_null()).then(|| {
            let bytes = slice::from_raw_parts(alpn, length as usize);
            String::from_utf8_lossy(bytes).into_owned()
        }),
        tls_version: text(ffi::SSL_get_version(ssl)),
        observed,
    }
}
