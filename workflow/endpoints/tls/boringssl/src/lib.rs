//! BoringSSL for an endpoint: one suite, one group, one signature algorithm, and what was negotiated.
//!
//! Which groups and signature algorithms there are is asked of the BoringSSL that is linked, patched or not.

#[cfg(feature = "pq")]
pub mod primitives;

use std::cell::Cell;
use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Mutex;

use boring::error::ErrorStack;
use boring::ssl::{
    AlpnError, SslContextBuilder, SslFiletype, SslInfoCallbackMode, SslMethod, SslRef,
    SslVerifyMode,
};
use quicbed_contract::events::{ConnectionCommon, OptionsInForce};
use quicbed_contract::options::{Cipher, ClientOptions, CommonOptions, ServerOptions};
use quicbed_contract::tls::{self, group_name, signature_name, GROUPS, SIGNATURES};
use serde::Serialize;

/// CRYPTO_ERROR is 0x0100 plus the TLS alert (RFC 9001, section 4.8).
const CRYPTO_ERRORS: RangeInclusive<u64> = 0x100..=0x1ff;

/// The TLS alerts that can be about a certificate: bad_certificate to unknown_ca, and decrypt_error for a signature that is
/// not the CA's (RFC 8446, section 6).
fn is_about_certificate(alert: u64) -> bool {
    matches!(alert, 42..=48 | 51)
}

thread_local! {
    /// Code point of the scheme the server signed the last completed handshake of this thread with, 0 for none. BoringSSL
    /// forgets its own signature when a handshake is done, so it is noted in the callback for that moment.
    static OWN_SIGNATURE: Cell<u16> = const { Cell::new(0) };
}

/// The options in force, and what BoringSSL tells about the processor.
#[derive(Serialize)]
pub struct InForce {
    #[serde(flatten)]
    options: OptionsInForce,
    aes_hardware: bool,
}

impl InForce {
    pub fn new(options: OptionsInForce) -> InForce {
        InForce {
            options,
            // SAFETY: has no conditions.
            aes_hardware: unsafe { boring_sys::EVP_has_aes_hardware() } == 1,
        }
    }
}

/// Groups of the linked BoringSSL, by their names on the command line.
pub fn groups() -> Vec<&'static str> {
    let Ok(context) = SslContextBuilder::new(SslMethod::tls()) else {
        return Vec::new();
    };
    let known = GROUPS.iter().filter(|group| {
        // SAFETY: the context is valid, and BoringSSL copies the list of one group during the call.
        let set =
            unsafe { boring_sys::SSL_CTX_set1_group_ids(context.as_ptr(), &group.code_point, 1) };
        set == 1
    });
    let names = known.map(|group| group.name).collect();
    // BoringSSL keeps the errors of what it does not know for whoever fails next.
    drop(ErrorStack::get());
    names
}

/// Signature algorithms of the linked BoringSSL, by their names on the command line.
pub fn signatures() -> Vec<&'static str> {
    let known = SIGNATURES.iter().filter(|signature| {
        // SAFETY: looks a number up in a table.
        let key = unsafe { boring_sys::SSL_get_signature_algorithm_key_type(signature.code_point) };
        key != boring_sys::EVP_PKEY_NONE
    });
    known.map(|signature| signature.name).collect()
}

/// The TLS context of a client: verifies the server against `--ca`, and against nothing else, unless that is switched off.
pub fn client(options: &ClientOptions) -> Result<SslContextBuilder, String> {
    let mut context = context(&options.common)?;
    match &options.ca {
        Some(ca) => {
            let set = context.set_ca_file(ca);
            set.map_err(|error| about("--ca", ca, error))?;
            context.set_verify(SslVerifyMode::PEER);
        }
        None => context.set_verify(SslVerifyMode::NONE),
    }
    context
        .set_alpn_protos(options.common.alpn.list())
        .map_err(|error| format!("cannot set up TLS: {error}"))?;
    Ok(context)
}

/// The TLS context of a server.
pub fn server(options: &ServerOptions) -> Result<SslContextBuilder, String> {
    let mut context = context(&options.common)?;
    let (chain, key) = (&options.certificate, &options.private_key);
    context
        .set_certificate_chain_file(chain)
        .map_err(|error| about("--certificate", chain, error))?;
    context
        .set_private_key_file(key, SslFiletype::PEM)
        .map_err(|error| about("--private-key", key, error))?;
    context
        .check_private_key()
        .map_err(|error| about("--private-key", key, error))?;
    let alpn = options.common.alpn;
    context.set_alpn_select_callback(move |_, offered| {
        boring::ssl::select_next_proto(alpn.list(), offered)
            .map(|_| alpn.name().as_bytes())
            .ok_or(AlpnError::ALERT_FATAL)
    });
    context.set_info_callback(|ssl, mode, _| {
        if mode == SslInfoCallbackMode::HANDSHAKE_DONE {
            // SAFETY: BoringSSL calls back with the session of the handshake that is ending.
            let scheme = unsafe { boring_sys::SSL_get_signature_algorithm_used(pointer(ssl)) };
            OWN_SIGNATURE.set(scheme);
        }
    });
    Ok(context)
}

fn context(options: &CommonOptions) -> Result<SslContextBuilder, String> {
    let mut context = SslContextBuilder::new(SslMethod::tls())
        .map_err(|error| format!("cannot set up TLS: {error}"))?;
    set_suite(&context, options.cipher)?;
    set_group(&context, &options.group)?;
    set_signature(&context, &options.signature)?;
    if let Some(path) = &options.key_log {
        let file = open_key_log(path).map_err(|e| format!("--key-log {}: {e}", path.display()))?;
        let file = Mutex::new(file);
        context.set_keylog_callback(move |_, line| {
            // One write a line, so that endpoints can share the file. A line that is lost is missed by who reads the log.
            let line = format!("{line}\n");
            if let Ok(mut file) = file.lock() {
                let _ = file.write_all(line.as_bytes());
            }
        });
    }
    Ok(context)
}

fn open_key_log(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// Makes `cipher` the only suite of TLS 1.3 offered or accepted. The boring crate has no safe function for it.
fn set_suite(context: &SslContextBuilder, cipher: Cipher) -> Result<(), String> {
    let suites = [cipher.code_point()];
    // SAFETY: the context is valid, and BoringSSL copies the list of one suite during the call.
    let set = unsafe {
        boring_sys::SSL_CTX_set1_tls13_ciphers(
            context.as_ptr(),
            suites.as_ptr(),
            std::ptr::null(),
            suites.len(),
        )
    };
    match set {
        1 => Ok(()),
        _ => Err(format!(
            "BoringSSL does not take the suite {}",
            cipher.iana()
        )),
    }
}

/// Makes `name` the only group offered or accepted.
fn set_group(context: &SslContextBuilder, name: &str) -> Result<(), String> {
    let group = tls::group(name).ok_or_else(|| format!("there is no group {name:?}"))?;
    // SAFETY: the context is valid, and BoringSSL copies the list of one group during the call.
    let set = unsafe { boring_sys::SSL_CTX_set1_group_ids(context.as_ptr(), &group.code_point, 1) };
    match set {
        1 => Ok(()),
        _ => Err(format!("this BoringSSL has no group {name:?}")),
    }
}

/// Makes the scheme of `name` the only one a client offers and a server signs with.
fn set_signature(context: &SslContextBuilder, name: &str) -> Result<(), String> {
    let signature =
        tls::signature(name).ok_or_else(|| format!("there is no signature algorithm {name:?}"))?;
    let scheme = &signature.code_point;
    // SAFETY: the context is valid, and BoringSSL copies the list of one scheme during each call.
    let set = unsafe {
        boring_sys::SSL_CTX_set_verify_algorithm_prefs(context.as_ptr(), scheme, 1) == 1
            && boring_sys::SSL_CTX_set_signing_algorithm_prefs(context.as_ptr(), scheme, 1) == 1
    };
    match set {
        true => Ok(()),
        false => Err(format!(
            "this BoringSSL has no signature algorithm {name:?}"
        )),
    }
}

fn about(option: &str, path: &Path, error: ErrorStack) -> String {
    format!("{option} {}: {error}", path.display())
}

/// Notes what was negotiated, read from the session of a completed handshake. A server must do it before another of its
/// handshakes completes on this thread.
pub fn read_back(ssl: &SslRef, record: &mut ConnectionCommon) {
    record.cipher = ssl
        .current_cipher()
        .and_then(|cipher| cipher.standard_name());
    // SAFETY: the session is valid; the calls only read from it.
    let (group, peer_signature) = unsafe {
        (
            boring_sys::SSL_get_group_id(pointer(ssl)),
            boring_sys::SSL_get_peer_signature_algorithm(pointer(ssl)),
        )
    };
    record.group = group_name(group);
    record.signature = signature_name(match ssl.is_server() {
        true => OWN_SIGNATURE.take(),
        false => peer_signature,
    });
    record.hello_retry_request = Some(ssl.used_hello_retry_request());
    record.alpn = ssl
        .selected_alpn_protocol()
        .and_then(|protocol| String::from_utf8(protocol.to_vec()).ok());
    record.tls_version = Some(ssl.version_str().to_owned());
}

/// The session for BoringSSL's own functions: what the boring crate refers to is the C object itself.
pub fn pointer(ssl: &SslRef) -> *mut boring_sys::SSL {
    std::ptr::from_ref(ssl).cast_mut().cast()
}

/// What a QUIC error code of CONNECTION_CLOSE means, with its reason phrase, as one line.
pub fn describe_close(code: u64, of_application: bool, reason: &[u8]) -> String {
    let kind = match code {
        _ if of_application => format!("application error {code}"),
        _ if CRYPTO_ERRORS.contains(&code) => {
            let alert = code - CRYPTO_ERRORS.start();
            format!("TLS alert {alert} ({})", alert_name(alert))
        }
        _ => format!("QUIC error {code:#x}"),
    };
    match String::from_utf8_lossy(reason) {
        reason if reason.is_empty() => kind,
        reason => format!("{kind}: {}", reason.escape_debug()),
    }
}

/// Why a certificate was refused, if `code` says that one was.
pub fn certificate_error(ssl: &SslRef, code: u64) -> Option<&'static str> {
    let alert = code.checked_sub(*CRYPTO_ERRORS.start())?;
    match ssl.verify_result() {
        Err(error) if is_about_certificate(alert) && verifies(ssl) => Some(error.error_string()),
        _ => None,
    }
}

fn verifies(ssl: &SslRef) -> bool {
    // SAFETY: the session is valid.
    unsafe { boring_sys::SSL_get_verify_mode(pointer(ssl)) != boring_sys::SSL_VERIFY_NONE }
}

fn alert_name(alert: u64) -> String {
    // SAFETY: BoringSSL returns a static string for every value.
    let name = unsafe { CStr::from_ptr(boring_sys::SSL_alert_desc_string_long(alert as i32)) };
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_every_boringssl_has_is_found() {
        let groups = groups();
        for name in ["x25519", "p-256", "p-384", "p-521", "x25519-mlkem768"] {
            assert!(groups.contains(&name), "{name}");
        }
        assert!(!groups.contains(&"x448"));
        let signatures = signatures();
        for name in ["rsa-2048", "ecdsa-p-256", "ecdsa-p-384", "ed25519"] {
            assert!(signatures.contains(&name), "{name}");
        }
    }

    #[test]
    fn every_algorithm_found_makes_a_context() {
        for group in groups() {
            let options = CommonOptions {
                group: group.into(),
                ..CommonOptions::default()
            };
            assert!(context(&options).is_ok(), "{group}");
        }
        for signature in signatures() {
            let options = CommonOptions {
                signature: signature.into(),
                ..CommonOptions::default()
            };
            assert!(context(&options).is_ok(), "{signature}");
        }
        let unknown = CommonOptions {
            group: "x448".into(),
            ..CommonOptions::default()
        };
        assert!(context(&unknown).is_err());
    }

    #[test]
    fn closes_are_described() {
        assert_eq!(
            describe_close(0x100 + 48, false, b""),
            "TLS alert 48 (unknown CA)"
        );
        assert_eq!(describe_close(0xa, false, b"x\ny"), "QUIC error 0xa: x\\ny");
        assert_eq!(describe_close(2, true, b""), "application error 2");
    }
}
