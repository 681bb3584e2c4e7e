//! What keys do to packets, found out by using them.

use rustls::quic::{HeaderProtectionKey, PacketKey};

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
