//! ECDH on P-521, which ring does not have, by the crate of the RustCrypto project.

use p521::ecdh::EphemeralSecret;
use p521::elliptic_curve::sec1::ToSec1Point;
use p521::elliptic_curve::Generate;
use p521::PublicKey;
use rustls::crypto::{ActiveKeyExchange, SharedSecret, SupportedKxGroup};
use rustls::{Error, NamedGroup, PeerMisbehaved};

pub const IMPLEMENTATION: &str = "p521 0.14.0";

/// Length in bytes and first byte of an uncompressed point, the only form in TLS 1.3 (RFC 8446, section 4.2.8.2).
const POINT: usize = 133;
const UNCOMPRESSED: u8 = 4;

#[derive(Debug)]
pub struct EcdhP521;

impl SupportedKxGroup for EcdhP521 {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let secret = EphemeralSecret::try_generate()
            .map_err(|error| Error::General(format!("no random numbers: {error}")))?;
        let point = secret.public_key().to_sec1_point(false);
        Ok(Box::new(Active {
            secret,
            share: point.as_bytes().to_vec(),
        }))
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::secp521r1
    }
}

struct Active {
    secret: EphemeralSecret,
    share: Vec<u8>,
}

impl ActiveKeyExchange for Active {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        let uncompressed = peer.len() == POINT && peer[0] == UNCOMPRESSED;
        let public = PublicKey::from_sec1_bytes(peer)
            .ok()
            .filter(|_| uncompressed)
            .ok_or(PeerMisbehaved::InvalidKeyShare)?;
        let shared = self.secret.diffie_hellman(&public);
        Ok(SharedSecret::from(&shared.raw_secret_bytes()[..]))
    }

    fn pub_key(&self) -> &[u8] {
        &self.share
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::secp521r1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_uncompressed_points() {
        let active = EcdhP521.start().unwrap();
        assert_eq!(active.pub_key().len(), POINT);
        assert_eq!(active.pub_key()[0], UNCOMPRESSED);
        let server = EcdhP521.start_and_complete(active.pub_key()).unwrap();
        // RFC 8446, section 7.4.2: the x-coordinate with leading zeroes
        assert_eq!(server.secret.secret_bytes().len(), 66);
    }

    #[test]
    fn a_compressed_point_is_refused() {
        let share = EcdhP521.start().unwrap().pub_key().to_vec();
        let compressed = PublicKey::from_sec1_bytes(&share)
            .unwrap()
            .to_sec1_point(true);
        assert!(EcdhP521.start_and_complete(compressed.as_bytes()).is_err());
    }

    #[test]
    fn version_is_that_of_the_lock_file() {
        let lock = include_str!("../../../../sources/Cargo.lock");
        let (name, version) = IMPLEMENTATION.split_once(' ').unwrap();
        let entry = format!("name = \"{name}\"\nversion = \"{version}\"\n");
        assert!(lock.contains(&entry));
    }
}
