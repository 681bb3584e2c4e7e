//! Packet protection of this process: what it does, found out by using it, and the switches of the noop flavour.

use quicbed_contract::options::{Aead, CommonOptions, HeaderProtection};
use s2n_codec::encoder::scatter::Buffer;
use s2n_codec::EncoderBuffer;
use s2n_quic_core::crypto::{HeaderKey, Key};
use s2n_quic_crypto::one_rtt::OneRttKey;
use s2n_quic_crypto::{aws_lc_aead, hkdf, Prk, SecretPair};

/// Length of the tag and of the header-protection sample in bytes, both 16 for every QUIC v1 suite
/// (RFC 9001, sections 5.3 and 5.4.2).
const TAG_LENGTH: usize = 16;
const SAMPLE_LENGTH: usize = 16;

/// Does to packet protection what the options ask for. To be called once, before the first connection.
#[cfg(feature = "noop")]
pub fn apply(options: &CommonOptions) {
    s2n_quic_crypto::noop::set(
        options.aead == Aead::Noop,
        options.header_protection == HeaderProtection::Off,
    );
}

/// A stock build protects packets as the library does; other options are refused before.
#[cfg(not(feature = "noop"))]
pub fn apply(_: &CommonOptions) {}

/// What 1-RTT keys do to a packet: protects one that never leaves this function, with keys of no connection.
pub fn probe() -> (Aead, HeaderProtection) {
    const PLAINTEXT: &[u8; 16] = b"quicbed00000000\n";
    const HEADER: [u8; 5] = [0x43, 0, 0, 0, 0];
    let secret = || Prk::new_less_safe(hkdf::HKDF_SHA256, &[7; 32]);
    let secrets = SecretPair {
        server: secret(),
        client: secret(),
    };
    let (mut packet, header) = OneRttKey::new_client(&aws_lc_aead::AES_128_GCM, secrets)
        .expect("AES-128-GCM is a suite of QUIC");
    let mut bytes = [0; PLAINTEXT.len() + TAG_LENGTH];
    bytes[..PLAINTEXT.len()].copy_from_slice(PLAINTEXT);
    let mut buffer = EncoderBuffer::new(&mut bytes);
    buffer.set_position(PLAINTEXT.len());
    packet
        .encrypt(0, &HEADER, &mut Buffer::new(buffer))
        .expect("a payload of 16 bytes can be protected");
    let aead = match bytes.starts_with(PLAINTEXT) {
        true => Aead::Noop,
        false => Aead::Standard,
    };
    let mask = header.sealing_header_protection_mask(&[5; SAMPLE_LENGTH]);
    let header_protection = match mask == [0; 5] {
        true => HeaderProtection::Off,
        false => HeaderProtection::On,
    };
    (aead, header_protection)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The switches are those of the process, so one test goes through them all.
    #[test]
    fn what_is_asked_for_is_found() {
        let mut variants = vec![(Aead::Standard, HeaderProtection::On)];
        if cfg!(feature = "noop") {
            variants = vec![
                (Aead::Noop, HeaderProtection::On),
                (Aead::Noop, HeaderProtection::Off),
                (Aead::Standard, HeaderProtection::Off),
                (Aead::Standard, HeaderProtection::On),
            ];
        }
        for (aead, header_protection) in variants {
            apply(&CommonOptions {
                aead,
                header_protection,
                ..CommonOptions::default()
            });
            assert_eq!(probe(), (aead, header_protection));
        }
    }
}
