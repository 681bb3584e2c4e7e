//! Why a connection came to its end.

use boring::error::ErrorStack;
use boring::ssl::SslRef;
use quicbed_boringssl::{certificate_error, describe_close};

use crate::connection::QuicheConnection;

/// CRYPTO_ERROR is 0x0100 plus the TLS alert (RFC 9001, section 4.8).
const CRYPTO_ERROR: u64 = 0x100;

/// Error of the transport that is none (RFC 9000, section 20.1).
const NO_ERROR: u64 = 0;

/// Gives a datagram to a connection. Errors that end the connection are put into words while BoringSSL still knows its
/// own; the first one stays in `failure`.
pub fn receive(
    connection: &mut QuicheConnection,
    datagram: &mut [u8],
    info: quiche::RecvInfo,
    failure: &mut Option<String>,
) {
    match connection.recv(datagram, info) {
        Ok(_) | Err(quiche::Error::Done) => {}
        Err(quiche::Error::TlsFail) => {
            let errors = ErrorStack::get();
            failure.get_or_insert_with(|| format!("TLS: {errors}"));
        }
        Err(error) => {
            failure.get_or_insert_with(|| format!("quiche: {error}"));
        }
    }
}

/// Why a connection was closed, as one line, or `None` if it was closed in agreement. `failure` is what [`receive`] noted,
/// `agreed` the application error that stands for none.
pub fn reason(
    connection: &mut QuicheConnection,
    failure: Option<&str>,
    agreed: u64,
) -> Option<String> {
    let is_failure = |error: &&quiche::ConnectionError| {
        error.error_code != if error.is_app { agreed } else { NO_ERROR }
    };
    if let Some(error) = connection.local_error().filter(is_failure) {
        let is_alert =
            !error.is_app && (CRYPTO_ERROR..2 * CRYPTO_ERROR).contains(&error.error_code);
        if let Some(failure) = failure.filter(|_| !is_alert) {
            return Some(format!("closed by this side: {failure}"));
        }
        let code = error.error_code;
        let mut text = format!("closed by this side: {}", describe(error));
        if is_alert {
            let ssl: &mut SslRef = connection.as_mut();
            if let Some(error) = certificate_error(ssl, code) {
                text += &format!(": {error}");
            }
        }
        return Some(text);
    }
    if let Some(error) = connection.peer_error().filter(is_failure) {
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

fn describe(error: &quiche::ConnectionError) -> String {
    describe_close(error.error_code, error.is_app, &error.reason)
}
