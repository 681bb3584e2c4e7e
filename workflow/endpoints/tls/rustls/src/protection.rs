//! Packet protection of the NOOP flavour, made from rustls' public QUIC traits alone: no library is patched.
//!
//! A variant derives the same secrets as the standard suite it stands in for and changes only what is done with a packet:
//! its AEAD, its header protection, or both.

use rustls::crypto::cipher::{AeadKey, Iv};
use rustls::crypto::CipherSuiteCommon;
use rustls::quic::{Algorithm, HeaderProtectionKey, PacketKey, Tag};
use rustls::{Error, Tls13CipherSuite};

/// Length of the tag and of the header-protection sample in bytes, both 16 for every QUIC v1 suite
/// (RFC 9001, sections 5.3 and 5.4.2).
const TAG_LENGTH: usize = 16;
const SAMPLE_LENGTH: usize = 16;

/// The tag of every NOOP packet.
const NOOP_TAG: [u8; TAG_LENGTH] = [0x2a; TAG_LENGTH];

/// A standard suite with its AEAD or its header protection replaced.
struct Variant {
    standard: &'static dyn Algorithm,
    noop_aead: bool,
    header_protection: bool,
}

impl Algorithm for Variant {
    fn packet_key(&self, key: AeadKey, iv: Iv) -> Box<dyn PacketKey> {
        let standard = self.standard.packet_key(key, iv);
        if self.noop_aead {
            Box::new(NoopPacketKey {
                confidentiality_limit: standard.confidentiality_limit(),
                integrity_limit: standard.integrity_limit(),
            })
        } else {
            standard
        }
    }

    fn header_protection_key(&self, key: AeadKey) -> Box<dyn HeaderProtectionKey> {
        if self.header_protection {
            self.standard.header_protection_key(key)
        } else {
            Box::new(PlainHeaderKey)
        }
    }

    fn aead_key_len(&self) -> usize {
        self.standard.aead_key_len()
    }
}

/// Ciphertext equals plaintext, the tag is constant and never verified. The limits in packets (RFC 9001, section 6.6) are
/// those of the AEAD it replaces, so that keys are updated when they would have been.
struct NoopPacketKey {
    confidentiality_limit: u64,
    integrity_limit: u64,
}

impl PacketKey for NoopPacketKey {
    fn encrypt_in_place(&self, _: u64, _: &[u8], _: &mut [u8]) -> Result<Tag, Error> {
        Ok(Tag::from(&NOOP_TAG[..]))
    }

    fn decrypt_in_place<'a>(
        &self,
        _: u64,
        _: &[u8],
        payload: &'a mut [u8],
    ) -> Result<&'a [u8], Error> {
        let length = payload
            .len()
            .checked_sub(TAG_LENGTH)
            .ok_or(Error::DecryptError)?;
        Ok(&payload[..length])
    }

    // A path enters the nonce alone, and there is none.
    fn encrypt_in_place_for_path(
        &self,
        _: u32,
        packet_number: u64,
        header: &[u8],
        payload: &mut [u8],
    ) -> Result<Tag, Error> {
        self.encrypt_in_place(packet_number, header, payload)
    }

    fn decrypt_in_place_for_path<'a>(
        &self,
        _: u32,
        packet_number: u64,
        header: &[u8],
        payload: &'a mut [u8],
    ) -> Result<&'a [u8], Error> {
        self.decrypt_in_place(packet_number, header, payload)
    }

    fn tag_len(&self) -> usize {
        TAG_LENGTH
    }

    fn confidentiality_limit(&self) -> u64 {
        self.confidentiality_limit
    }

    fn integrity_limit(&self) -> u64 {
        self.integrity_limit
    }
}

/// Leaves first byte and packet number as they are. The sample keeps its length, so packets keep their minimum size.
struct PlainHeaderKey;

impl HeaderProtectionKey for PlainHeaderKey {
    fn encrypt_in_place(&self, _: &[u8], _: &mut u8, _: &mut [u8]) -> Result<(), Error> {
        Ok(())
    }

    fn decrypt_in_place(&self, _: &[u8], _: &mut u8, _: &mut [u8]) -> Result<(), Error> {
        Ok(())
    }

    fn sample_len(&self) -> usize {
        SAMPLE_LENGTH
    }
}

/// Returns `standard` with its AEAD replaced by NOOP, its header protection removed, or both. The result lives as long as
/// the process, as rustls wants it; a program makes one.
pub fn variant(
    standard: &'static Tls13CipherSuite,
    noop_aead: bool,
    header_protection: bool,
) -> &'static Tls13CipherSuite {
    let quic = standard.quic.map(|standard| {
        &*Box::leak(Box::new(Variant {
            standard,
            noop_aead,
            header_protection,
        })) as &dyn Algorithm
    });
    Box::leak(Box::new(Tls13CipherSuite {
        common: CipherSuiteCommon {
            suite: standard.common.suite,
            hash_provider: standard.common.hash_provider,
            confidentiality_limit: standard.common.confidentiality_limit,
        },
        hkdf_provider: standard.hkdf_provider,
        aead_alg: standard.aead_alg,
        quic,
    }))
}

#[cfg(test)]
mod tests {
    use rustls::crypto::ring::cipher_suite;
    use rustls::quic::{Keys, Version};
    use rustls::{Side, SupportedCipherSuite};

    use super::*;

    const HEADER: [u8; 5] = [0x43, 1, 2, 3, 4];
    const PLAINTEXT: &[u8] = b"quicbed00000000\nquicbed00000001\n";

    fn suite(standard: SupportedCipherSuite) -> &'static Tls13CipherSuite {
        standard.tls13().expect("a TLS 1.3 suite")
    }

    /// Keys of `suite` from a fixed secret.
    fn keys(suite: &'static Tls13CipherSuite) -> Keys {
        let quic = suite.quic.expect("a suite for QUIC");
        Keys::initial(Version::V1, suite, quic, &[7; 8], Side::Client)
    }

    fn seal(suite: &'static Tls13CipherSuite) -> Vec<u8> {
        let mut packet = PLAINTEXT.to_vec();
        let tag = keys(suite)
            .local
            .packet
            .encrypt_in_place(9, &HEADER, &mut packet)
            .unwrap();
        packet.extend_from_slice(tag.as_ref());
        packet
    }

    fn protect(suite: &'static Tls13CipherSuite) -> [u8; 5] {
        let mut header = HEADER;
        let (first, number) = header.split_at_mut(1);
        keys(suite)
            .local
            .header
            .encrypt_in_place(&[5; SAMPLE_LENGTH], &mut first[0], number)
            .unwrap();
        header
    }

    #[test]
    fn noop_leaves_the_payload_and_appends_the_constant_tag() {
        let noop = variant(suite(cipher_suite::TLS13_AES_128_GCM_SHA256), true, false);
        let packet = seal(noop);
        assert_eq!(&packet[..PLAINTEXT.len()], PLAINTEXT);
        assert_eq!(packet[PLAINTEXT.len()..], [0x2a; 16]);
    }

    #[test]
    fn noop_opens_any_tag_but_not_a_missing_one() {
        let noop = variant(suite(cipher_suite::TLS13_AES_128_GCM_SHA256), true, true);
        let key = keys(noop).remote.packet;
        let mut packet = PLAINTEXT.to_vec();
        packet.extend_from_slice(&[0xff; 16]);
        assert_eq!(
            key.decrypt_in_place(1, &HEADER, &mut packet).unwrap(),
            PLAINTEXT
        );
        assert!(key.decrypt_in_place(1, &HEADER, &mut [0; 15]).is_err());
    }

    #[test]
    fn noop_keeps_the_limits_of_aes_128_gcm() {
        let standard = suite(cipher_suite::TLS13_AES_128_GCM_SHA256);
        let aes = keys(standard).local.packet;
        let noop = keys(variant(standard, true, false)).local.packet;
        assert_eq!(noop.confidentiality_limit(), aes.confidentiality_limit());
        assert_eq!(noop.integrity_limit(), aes.integrity_limit());
        assert_eq!(noop.tag_len(), aes.tag_len());
    }

    #[test]
    fn noop_with_header_protection_is_that_of_aes_128() {
        let standard = suite(cipher_suite::TLS13_AES_128_GCM_SHA256);
        assert_ne!(protect(standard), HEADER);
        assert_eq!(protect(variant(standard, true, true)), protect(standard));
    }

    #[test]
    fn header_protection_is_switched_independently_of_the_aead() {
        for standard in [
            cipher_suite::TLS13_AES_128_GCM_SHA256,
            cipher_suite::TLS13_AES_256_GCM_SHA384,
            cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ] {
            let standard = suite(standard);
            let plain = variant(standard, false, false);
            assert_eq!(protect(plain), HEADER);
            assert_ne!(protect(standard), HEADER);
            assert_eq!(seal(plain), seal(standard));
            assert_eq!(
                keys(plain).local.header.sample_len(),
                keys(standard).local.header.sample_len()
            );
        }
    }
}
