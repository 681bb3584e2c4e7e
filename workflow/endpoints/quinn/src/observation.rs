//! What is read back from one connection: negotiated values, packet protection, and counts and times of its handshake.

use std::sync::{Arc, Mutex, MutexGuard};

use quicbed_contract::clock::now_ns;
use quicbed_contract::options::Cipher;
use quicbed_contract::tls;
use rustls::quic::{Connection, HeaderProtectionKey, PacketKey};
use rustls::{HandshakeKind, ProtocolVersion, SignatureScheme};

use crate::traffic::{Traffic, TrafficCount};

/// The first number no packet can have (RFC 9000, section 17.1): probing a key with it never repeats a packet's nonce.
const PROBE_PACKET_NUMBER: u64 = 1 << 62;

/// What a pair of keys does to a packet, found out by using them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketProtection {
    /// The payload came out unaltered.
    pub noop_aead: bool,
    /// The header was altered.
    pub header_protection: bool,
}

impl PacketProtection {
    /// Protects a payload and a header that never leave this function.
    pub fn probe(packet: &dyn PacketKey, header: &dyn HeaderProtectionKey) -> Self {
        const PLAINTEXT: [u8; 16] = *b"quicbed00000000\n";
        const HEADER: [u8; 5] = [0x43, 0, 0, 0, 0];
        let mut payload = PLAINTEXT;
        let mut probe = HEADER;
        let (first, number) = probe.split_at_mut(1);
        packet
            .encrypt_in_place(PROBE_PACKET_NUMBER, &HEADER, &mut payload)
            .expect("a payload of 16 bytes can be protected");
        header
            .encrypt_in_place(&PLAINTEXT[..header.sample_len()], &mut first[0], number)
            .expect("a sample and a packet number of the right lengths can be used");
        Self {
            noop_aead: payload == PLAINTEXT,
            header_protection: probe != HEADER,
        }
    }
}

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

    /// The server's CertificateVerify was signed or verified with `scheme`.
    pub fn sign(&self, scheme: SignatureScheme) {
        self.lock().signature = tls::signature_name(scheme.into());
    }

    fn lock(&self) -> MutexGuard<'_, Observed> {
        self.observed
            .lock()
            .expect("nothing panics while observing")
    }
}

#[cfg(test)]
mod tests {
    use rustls::crypto::ring::cipher_suite;
    use rustls::quic::{Keys, Version};
    use rustls::{Side, Tls13CipherSuite};

    use super::*;

    fn probe(suite: &'static Tls13CipherSuite) -> PacketProtection {
        let quic = suite.quic.expect("a suite for QUIC");
        let keys = Keys::initial(Version::V1, suite, quic, &[7; 8], Side::Client);
        PacketProtection::probe(&*keys.local.packet, &*keys.local.header)
    }

    #[test]
    fn standard_keys_are_recognised() {
        for suite in [
            cipher_suite::TLS13_AES_128_GCM_SHA256,
            cipher_suite::TLS13_AES_256_GCM_SHA384,
            cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ] {
            let expected = PacketProtection {
                noop_aead: false,
                header_protection: true,
            };
            assert_eq!(probe(suite.tls13().unwrap()), expected);
        }
    }

    #[cfg(feature = "noop")]
    #[test]
    fn variants_are_recognised() {
        let aes = cipher_suite::TLS13_AES_128_GCM_SHA256.tls13().unwrap();
        for noop_aead in [false, true] {
            for header_protection in [false, true] {
                let variant = crate::protection::variant(aes, noop_aead, header_protection);
                let expected = PacketProtection {
                    noop_aead,
                    header_protection,
                };
                assert_eq!(probe(variant), expected);
            }
        }
    }
}
