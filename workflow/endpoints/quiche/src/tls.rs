//! BoringSSL: one suite, one group, and what was negotiated.

use std::cell::Cell;
use std::ops::RangeInclusive;
use std::path::Path;

use boring::ssl::{
    SslContextBuilder, SslFiletype, SslInfoCallbackMode, SslMethod, SslRef, SslVerifyMode,
};
use quicbed_contract::events::ConnectionCommon;
use quicbed_contract::options::{Cipher, ClientOptions, CommonOptions, ServerOptions};
use quicbed_contract::tls::group_name;

use crate::transport::Connection;

/// Groups by their name on the command line and by that of BoringSSL.
pub const GROUPS: [(&str, &str); 6] = [
    ("x25519", "X25519"),
    ("p-256", "P-256"),
    ("p-384", "P-384"),
    ("p-521", "P-521"),
    ("mlkem1024", "MLKEM1024"),
    ("x25519-mlkem768", "X25519MLKEM768"),
];

/// CRYPTO_ERROR codes for the TLS alerts bad_certificate to unknown_ca (RFC 9001, section 4.8; RFC 8446, section 6).
const CERTIFICATE_ALERTS: RangeInclusive<u64> = 0x100 + 42..=0x100 + 48;

thread_local! {
    /// IANA name of the scheme the server signed the last completed handshake of this thread with. BoringSSL forgets its
    /// own signature when a handshake is done, so it is noted in the callback for that moment.
    static OWN_SIGNATURE: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// The TLS context of a client: verifies the server against `--ca`, and against nothing else.
pub fn client(options: &ClientOptions) -> Result<SslContextBuilder, String> {
    let mut context = context(&options.common)?;
    context
        .set_ca_file(&options.ca)
        .map_err(|error| about("--ca", &options.ca, error))?;
    context.set_verify(SslVerifyMode::PEER);
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
    context.set_info_callback(|ssl, mode, _| {
        if mode == SslInfoCallbackMode::HANDSHAKE_DONE {
            OWN_SIGNATURE.set(
                ssl.signature_algorithm_used()
                    .and_then(|scheme| scheme.name()),
            );
        }
    });
    Ok(context)
}

fn context(options: &CommonOptions) -> Result<SslContextBuilder, String> {
    let fail = |error| format!("cannot set up TLS: {error}");
    let mut context = SslContextBuilder::new(SslMethod::tls()).map_err(fail)?;
    restrict_to(&mut context, options.cipher)?;
    let (_, group) = GROUPS
        .iter()
        .find(|(option, _)| *option == options.group)
        .ok_or_else(|| format!("BoringSSL has no group {:?}", options.group))?;
    context.set_curves_list(group).map_err(fail)?;
    Ok(context)
}

/// Makes `cipher` the only suite of TLS 1.3 offered or accepted. The boring crate has no safe function for it.
fn restrict_to(context: &mut SslContextBuilder, cipher: Cipher) -> Result<(), String> {
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

fn about(option: &str, path: &Path, error: boring::error::ErrorStack) -> String {
    format!("{option} {}: {error}", path.display())
}

/// Notes what was negotiated, read from the TLS session of a completed handshake.
pub fn read_back(connection: &mut Connection, record: &mut ConnectionCommon) {
    let is_server = connection.is_server();
    record.alpn = String::from_utf8(connection.application_proto().to_vec()).ok();
    let ssl: &mut SslRef = connection.as_mut();
    record.cipher = ssl
        .current_cipher()
        .and_then(|cipher| cipher.standard_name());
    record.group = ssl.curve().and_then(group_name);
    record.signature = match is_server {
        true => OWN_SIGNATURE.take(),
        false => ssl
            .peer_signature_algorithm()
            .and_then(|scheme| scheme.name()),
    };
    record.tls_version = Some(ssl.version_str().to_owned());
}

/// Why a connection was closed, as one line, or `None` if it was closed in agreement.
pub fn close_reason(connection: &mut Connection) -> Option<String> {
    if let Some(error) = connection.local_error().filter(|error| is_failure(error)) {
        let mut text = format!("closed by this side: {}", describe(error));
        if CERTIFICATE_ALERTS.contains(&error.error_code) {
            let ssl: &mut SslRef = connection.as_mut();
            if let Err(error) = ssl.verify_result() {
                text += &format!(": {}", error.error_string());
            }
        }
        return Some(text);
    }
    if let Some(error) = connection.peer_error().filter(|error| is_failure(error)) {
        return Some(format!("closed by the peer: {}", describe(error)));
    }
    if connection.is_timed_out() {
        return Some(format!(
            "no packet for {} s",
            crate::IDLE_TIMEOUT_MS / 1_000
        ));
    }
    None
}

fn is_failure(error: &quiche::ConnectionError) -> bool {
    // Application error 0 is how the client of the contract ends a connection; NO_ERROR is 0 too.
    error.error_code != 0
}

fn describe(error: &quiche::ConnectionError) -> String {
    let code = error.error_code;
    let kind = match code {
        _ if error.is_app => format!("application error {code}"),
        // CRYPTO_ERROR is 0x0100 plus the TLS alert.
        0x100..=0x1ff => format!("TLS alert {} ({})", code - 0x100, alert_name(code - 0x100)),
        _ => format!("QUIC error {code:#x}"),
    };
    match String::from_utf8_lossy(&error.reason) {
        reason if reason.is_empty() => kind,
        reason => format!("{kind}: {}", reason.escape_debug()),
    }
}

fn alert_name(alert: u64) -> String {
    // SAFETY: BoringSSL returns a static string for every value.
    let name =
        unsafe { std::ffi::CStr::from_ptr(boring_sys::SSL_alert_desc_string_long(alert as i32)) };
    name.to_string_lossy().into_owned()
}
