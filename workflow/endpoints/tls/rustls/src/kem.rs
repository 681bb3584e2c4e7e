//! Key encapsulation of liboqs as TLS groups, alone and combined with a group of rustls' provider.
//!
//! The client's share is a public key, the server's a ciphertext. Hybrids concatenate shares and secrets without lengths
//! (draft-ietf-tls-hybrid-design, section 3); which part comes first is a matter of the group
//! (draft-ietf-tls-ecdhe-mlkem, section 4).

use std::fmt;

use quicbed_pq::{Kem, Secret};
use rustls::crypto::{ActiveKeyExchange, CompletedKeyExchange, SharedSecret, SupportedKxGroup};
use rustls::{Error, NamedGroup, PeerMisbehaved};

/// A share that cannot be used; rustls answers it with the alert illegal_parameter (RFC 8446, section 4.2.8).
const INVALID_SHARE: Error = Error::PeerMisbehaved(PeerMisbehaved::InvalidKeyShare);

/// A KEM as a group of its own.
pub struct LiboqsKem {
    kem: Kem,
    group: NamedGroup,
}

impl LiboqsKem {
    pub fn new(kem: Kem, group: NamedGroup) -> Self {
        Self { kem, group }
    }

    fn keypair(&self) -> Result<ActiveKem, Error> {
        let (public, secret) = self.kem.keypair().map_err(failed)?;
        Ok(ActiveKem {
            kem: self.kem,
            group: self.group,
            public,
            secret,
        })
    }
}

impl fmt::Debug for LiboqsKem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LiboqsKem").field(&self.group).finish()
    }
}

impl SupportedKxGroup for LiboqsKem {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        Ok(Box::new(self.keypair()?))
    }

    fn start_and_complete(&self, peer: &[u8]) -> Result<CompletedKeyExchange, Error> {
        let (ciphertext, secret) = self.kem.encapsulate(peer).map_err(|_| INVALID_SHARE)?;
        Ok(CompletedKeyExchange {
            group: self.group,
            pub_key: ciphertext,
            secret: SharedSecret::from(&*secret),
        })
    }

    fn name(&self) -> NamedGroup {
        self.group
    }
}

/// The client's side of a KEM.
struct ActiveKem {
    kem: Kem,
    group: NamedGroup,
    public: Vec<u8>,
    secret: Secret,
}

impl ActiveKeyExchange for ActiveKem {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        let secret = self.kem.decapsulate(&self.secret, peer);
        Ok(SharedSecret::from(&*secret.map_err(|_| INVALID_SHARE)?))
    }

    fn pub_key(&self) -> &[u8] {
        &self.public
    }

    fn group(&self) -> NamedGroup {
        self.group
    }
}

/// (EC)DH and a KEM together.
#[derive(Debug)]
pub struct Hybrid {
    classical: &'static dyn SupportedKxGroup,
    kem: LiboqsKem,
    kem_first: bool,
}

impl Hybrid {
    /// The group is that of `kem`, whose part comes first if `kem_first`.
    pub fn new(classical: &'static dyn SupportedKxGroup, kem: LiboqsKem, kem_first: bool) -> Self {
        Self {
            classical,
            kem,
            kem_first,
        }
    }
}

impl SupportedKxGroup for Hybrid {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let (classical, kem) = (self.classical.start()?, self.kem.keypair()?);
        Ok(Box::new(ActiveHybrid {
            share: join(classical.pub_key(), &kem.public, self.kem_first),
            classical,
            kem,
            kem_first: self.kem_first,
        }))
    }

    fn start_and_complete(&self, peer: &[u8]) -> Result<CompletedKeyExchange, Error> {
        let kem_share = self.kem.kem.public_key_bytes();
        let (classical, kem) = split(peer, kem_share, self.kem_first)?;
        let classical = self.classical.start_and_complete(classical)?;
        let kem = self.kem.start_and_complete(kem)?;
        Ok(CompletedKeyExchange {
            group: self.kem.group,
            pub_key: join(&classical.pub_key, &kem.pub_key, self.kem_first),
            secret: join_secrets(&classical.secret, &kem.secret, self.kem_first),
        })
    }

    fn name(&self) -> NamedGroup {
        self.kem.group
    }
}

/// The client's side of a hybrid.
struct ActiveHybrid {
    classical: Box<dyn ActiveKeyExchange>,
    kem: ActiveKem,
    kem_first: bool,
    share: Vec<u8>,
}

impl ActiveKeyExchange for ActiveHybrid {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        let kem_share = self.kem.kem.ciphertext_bytes();
        let (classical, kem) = split(peer, kem_share, self.kem_first)?;
        let classical = self.classical.complete(classical)?;
        let kem = Box::new(self.kem).complete(kem)?;
        Ok(join_secrets(&classical, &kem, self.kem_first))
    }

    fn pub_key(&self) -> &[u8] {
        &self.share
    }

    fn group(&self) -> NamedGroup {
        self.kem.group
    }
}

fn join(classical: &[u8], kem: &[u8], kem_first: bool) -> Vec<u8> {
    match kem_first {
        true => [kem, classical].concat(),
        false => [classical, kem].concat(),
    }
}

fn join_secrets(classical: &SharedSecret, kem: &SharedSecret, kem_first: bool) -> SharedSecret {
    join(classical.secret_bytes(), kem.secret_bytes(), kem_first).into()
}

/// The classical part of a share and the KEM's, which has `kem_bytes` bytes; the classical group checks the rest.
fn split(share: &[u8], kem_bytes: usize, kem_first: bool) -> Result<(&[u8], &[u8]), Error> {
    let classical_bytes = share.len().checked_sub(kem_bytes).ok_or(INVALID_SHARE)?;
    Ok(match kem_first {
        true => {
            let (kem, classical) = share.split_at(kem_bytes);
            (classical, kem)
        }
        false => share.split_at(classical_bytes),
    })
}

fn failed(error: quicbed_pq::Error) -> Error {
    Error::General(format!("liboqs: {error}"))
}

#[cfg(test)]
mod tests {
    use rustls::crypto::ring::kx_group;

    use super::*;

    fn kem(name: &str) -> Kem {
        Kem::find(name).unwrap()
    }

    /// A share of a hybrid is taken apart and answered by hand, by the two parts themselves.
    fn parts_are_where_they_belong(kem_first: bool) {
        let (ecdh, kem) = (kx_group::SECP256R1, kem("ML-KEM-768"));
        let group = NamedGroup::Unknown(0xfe00);
        let hybrid = Hybrid::new(ecdh, LiboqsKem::new(kem, group), kem_first);

        let client = hybrid.start().unwrap();
        assert_eq!(client.group(), group);
        assert_eq!(client.pub_key().len(), 65 + 1184);
        let (point, public) = match kem_first {
            true => (&client.pub_key()[1184..], &client.pub_key()[..1184]),
            false => (&client.pub_key()[..65], &client.pub_key()[65..]),
        };
        let ecdh = ecdh.start_and_complete(point).unwrap();
        let (ciphertext, secret) = kem.encapsulate(public).unwrap();
        let (answer, expected) = match kem_first {
            true => (
                [&ciphertext[..], &ecdh.pub_key].concat(),
                [&secret[..], ecdh.secret.secret_bytes()].concat(),
            ),
            false => (
                [&ecdh.pub_key[..], &ciphertext].concat(),
                [ecdh.secret.secret_bytes(), &secret[..]].concat(),
            ),
        };
        let secret = client.complete(&answer).unwrap();
        assert_eq!(secret.secret_bytes(), expected);
    }

    #[test]
    fn the_classical_part_comes_first() {
        parts_are_where_they_belong(false);
    }

    #[test]
    fn or_the_kem() {
        parts_are_where_they_belong(true);
    }

    #[test]
    fn the_server_answers_each_part() {
        let (ecdh, kem) = (kx_group::X25519, kem("ML-KEM-768"));
        let hybrid = Hybrid::new(ecdh, LiboqsKem::new(kem, NamedGroup::X25519MLKEM768), true);
        let client = ecdh.start().unwrap();
        let (public, secret) = kem.keypair().unwrap();
        let server = hybrid
            .start_and_complete(&[&public[..], client.pub_key()].concat())
            .unwrap();
        assert_eq!(server.group, NamedGroup::X25519MLKEM768);
        // draft-ietf-tls-ecdhe-mlkem, section 4.1: 1088 + 32 bytes
        assert_eq!(server.pub_key.len(), 1120);
        let (ciphertext, point) = server.pub_key.split_at(1088);
        let shared = kem.decapsulate(&secret, ciphertext).unwrap();
        let ecdh = client.complete(point).unwrap();
        assert_eq!(
            server.secret.secret_bytes(),
            [&shared[..], ecdh.secret_bytes()].concat()
        );
    }

    #[test]
    fn a_wrong_point_is_the_peers_fault() {
        let hybrid = Hybrid::new(
            kx_group::SECP256R1,
            LiboqsKem::new(kem("Kyber512"), NamedGroup::Unknown(0x2f3a)),
            false,
        );
        let mut share = hybrid.start().unwrap().pub_key().to_vec();
        share[0] = 5;
        assert_eq!(hybrid.start_and_complete(&share).err(), Some(INVALID_SHARE));
    }
}
