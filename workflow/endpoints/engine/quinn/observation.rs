//! What is read back from one connection: negotiated values, packet protection, and counts and times of its handshake.

use std::sync::{Arc, Mutex, MutexGuard};

use quicbed_contract::clock::now_ns;
use quicbed_contract::options::Cipher;
use quicbed_contract::tls;
use quicbed_rustls::probe::PacketProtection;
use quicbed_rustls::tls::SignatureObserver;
use rustls::quic::Connection;
use rustls::{HandshakeKind, ProtocolVersion, SignatureScheme};

use super::traffic::{Traffic, TrafficCount};

/// What is known of a connection; a field is `None` until it is.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// When the TLS handshake was complete on this side, in nanoseconds of CLOCK_MONOTONIC.
    pub t_handshake_complete: Option<u64>,
    /// When the keys of Handshake packets were discarded, which is when the handshake is confirmed (RFC 9001, section
    /// 4.9.2) or else the connection is given up.
    pub t_handshake_keys_discarded: Option<u64>,
    /// Whether a HelloRetryRequest was part of the handshake.
    pub hello_retry_request: Option<bool>,
    /// A Retry packet was sent or received.
    pub retry: bool,
    /// UDP datagrams and payload up to the completion of the handshake.
    pub handshake: Option<TrafficCount>,
    /// IANA name of the cipher suite.
    pub cipher: Option<&'static str>,
    /// IANA name of the key-exchange group.
    pub group: Option<&'static str>,
    /// IANA name of the scheme of the server's CertificateVerify.
    pub signature: Option<&'static str>,
    pub alpn: Option<String>,
    pub tls_version: Option<String>,
    pub protection: Option<PacketProtection>,
}

/// Collects what a connection's TLS session, certificate verifier or signer, and socket tell.
#[derive(Debug, Default)]
pub struct Observation {
    traffic: Arc<Traffic>,
    observed: Mutex<Observed>,
}

impl Observation {
    /// `traffic` counts the datagrams of the connection.
    pub fn new(traffic: Arc<Traffic>) -> Self {
        Self {
            traffic,
            observed: Mutex::default(),
        }
    }

    pub fn observed(&self) -> Observed {
        self.lock().clone()
    }

    /// The TLS handshake has just become complete on this side.
    pub fn complete(&self, session: &Connection) {
        let mut observed = self.lock();
        observed.t_handshake_complete = Some(now_ns());
        observed.handshake = Some(self.traffic.count());
        observed.hello_retry_request = session
            .handshake_kind()
            .map(|kind| kind == HandshakeKind::FullWithHelloRetryRequest);
        observed.cipher = session
            .negotiated_cipher_suite()
            .and_then(|suite| Cipher::from_code_point(suite.suite().into()))
            .map(Cipher::iana);
        observed.group = session
            .negotiated_key_exchange_group()
            .and_then(|group| tls::group_name(group.name().into()));
        observed.alpn = session
            .alpn_protocol()
            .map(|alpn| String::from_utf8_lossy(alpn).into_owned());
        observed.tls_version = match session.protocol_version() {
            Some(ProtocolVersion::TLSv1_3) => Some("TLSv1.3".into()),
            _ => None,
        };
    }

    /// A Retry packet was sent, or received and found genuine.
    pub fn retry(&self) {
        self.lock().retry = true;
    }

    /// The keys of Handshake packets are no longer needed.
    pub fn discard_handshake_keys(&self) {
        self.lock().t_handshake_keys_discarded = Some(now_ns());
    }

    pub fn protect(&self, protection: PacketProtection) {
        self.lock().protection = Some(protection);
    }

    fn lock(&self) -> MutexGuard<'_, Observed> {
        self.observed
            .lock()
            .expect("nothing panics while observing")
    }
}

impl SignatureObserver for Observation {
    fn signed(&self, scheme: SignatureScheme) {
        self.lock().signature = tls::signature_name(scheme.into());
    }
}
