//! RSA with keys of 1024 bits, by the crate of the RustCrypto project: ring makes signatures with keys of 2048 bits and
//! more only (`RsaKeyPair::from_components`), and verifies RSASSA-PSS from there on too (`RSA_PSS_2048_8192_SHA256`).

use std::sync::Arc;

use rsa::pkcs1::DecodeRsaPublicKey;
use rsa::pkcs8::DecodePrivateKey;
use rsa::rand_core::OsRng;
use rsa::sha2::Sha256;
use rsa::signature::{RandomizedSigner, SignatureEncoding, Verifier};
use rsa::traits::PublicKeyParts;
use rsa::{pkcs1, pkcs1v15, pss, RsaPrivateKey, RsaPublicKey};
use rustls::pki_types::{
    alg_id, AlgorithmIdentifier, InvalidSignature, PrivateKeyDer, SignatureVerificationAlgorithm,
    SubjectPublicKeyInfoDer,
};
use rustls::sign::{public_key_to_spki, Signer, SigningKey};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};

pub const IMPLEMENTATION: &str = "rsa 0.9.10";

/// Length of the modulus in bytes.
const MODULUS: usize = 128;

/// RSASSA-PSS with a salt as long as the hash (RFC 8446, section 4.2.3), of CertificateVerify.
pub static PSS_SHA256: Verification = Verification {
    signature_alg_id: alg_id::RSA_PSS_SHA256,
    verify: |key, message, signature| {
        let signature = pss::Signature::try_from(signature)?;
        pss::VerifyingKey::<Sha256>::new(key).verify(message, &signature)
    },
};

/// RSASSA-PKCS1-v1_5, of certificates.
pub static PKCS1_SHA256: Verification = Verification {
    signature_alg_id: alg_id::RSA_PKCS1_SHA256,
    verify: |key, message, signature| {
        let signature = pkcs1v15::Signature::try_from(signature)?;
        pkcs1v15::VerifyingKey::<Sha256>::new(key).verify(message, &signature)
    },
};

/// Takes a key, a message and its signature.
type Verify = fn(RsaPublicKey, &[u8], &[u8]) -> rsa::signature::Result<()>;

/// Verifies signatures of one scheme.
#[derive(Debug)]
pub struct Verification {
    signature_alg_id: AlgorithmIdentifier,
    verify: Verify,
}

impl SignatureVerificationAlgorithm for Verification {
    fn verify_signature(
        &self,
        public_key: &[u8],
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), InvalidSignature> {
        let key = RsaPublicKey::from_pkcs1_der(public_key).map_err(|_| InvalidSignature)?;
        if key.size() != MODULUS {
            return Err(InvalidSignature);
        }
        (self.verify)(key, message, signature).map_err(|_| InvalidSignature)
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::RSA_ENCRYPTION
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        self.signature_alg_id
    }
}

/// A private key, signing with RSASSA-PSS and blinded, as ring does.
#[derive(Debug)]
pub struct Key {
    key: Arc<pss::BlindedSigningKey<Sha256>>,
    public: SubjectPublicKeyInfoDer<'static>,
}

impl Key {
    /// Reads a key in PKCS#8.
    pub fn new(key: &PrivateKeyDer) -> Result<Self, String> {
        let key =
            RsaPrivateKey::from_pkcs8_der(key.secret_der()).map_err(|error| error.to_string())?;
        let public = pkcs1::EncodeRsaPublicKey::to_pkcs1_der(&key.to_public_key())
            .map_err(|error| error.to_string())?;
        Ok(Self {
            public: public_key_to_spki(&alg_id::RSA_ENCRYPTION, public),
            key: Arc::new(pss::BlindedSigningKey::new(key)),
        })
    }
}

impl SigningKey for Key {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        offered
            .contains(&SignatureScheme::RSA_PSS_SHA256)
            .then(|| Box::new(PssSigner(self.key.clone())) as Box<dyn Signer>)
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        Some(self.public.clone())
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::RSA
    }
}

#[derive(Debug)]
struct PssSigner(Arc<pss::BlindedSigningKey<Sha256>>);

impl Signer for PssSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        self.0
            .try_sign_with_rng(&mut OsRng, message)
            .map(|signature| signature.to_vec())
            .map_err(|error| Error::General(format!("RSA: {error}")))
    }

    fn scheme(&self) -> SignatureScheme {
        SignatureScheme::RSA_PSS_SHA256
    }
}

#[cfg(test)]
mod tests {
    use rsa::pkcs8::EncodePrivateKey;
    use rustls::crypto::ring;

    use super::*;

    fn key(bits: usize) -> PrivateKeyDer<'static> {
        let key = RsaPrivateKey::new(&mut OsRng, bits).unwrap();
        PrivateKeyDer::Pkcs8(key.to_pkcs8_der().unwrap().as_bytes().to_vec().into())
    }

    /// The RSAPublicKey inside a SubjectPublicKeyInfo of RSA, behind 22 bytes for 1024 bits and 24 for 2048 bits.
    fn rsa_public_key<'a>(spki: &'a SubjectPublicKeyInfoDer<'_>, modulus: usize) -> &'a [u8] {
        &spki.as_ref()[if modulus > MODULUS { 24 } else { 22 }..]
    }

    #[test]
    fn a_signature_is_of_one_message() {
        let key = Key::new(&key(1024)).unwrap();
        let signer = key
            .choose_scheme(&[SignatureScheme::RSA_PSS_SHA256])
            .unwrap();
        let signature = signer.sign(b"message").unwrap();
        let public = key.public_key().unwrap();
        let public = rsa_public_key(&public, MODULUS);
        assert_eq!(signature.len(), MODULUS);
        assert!(PSS_SHA256
            .verify_signature(public, b"message", &signature)
            .is_ok());
        for (message, algorithm) in [
            (&b"massage"[..], &PSS_SHA256),
            (&b"message"[..], &PKCS1_SHA256),
        ] {
            assert!(algorithm
                .verify_signature(public, message, &signature)
                .is_err());
        }
    }

    /// ring takes the signatures made here, with a key long enough for it.
    #[test]
    fn signatures_are_those_of_other_implementations() {
        let key = Key::new(&key(2048)).unwrap();
        let signer = key
            .choose_scheme(&[SignatureScheme::RSA_PSS_SHA256])
            .unwrap();
        let signature = signer.sign(b"message").unwrap();
        let algorithms = ring::default_provider().signature_verification_algorithms;
        let of_ring = algorithms.mapping.iter();
        let (_, pss) = of_ring
            .clone()
            .find(|(scheme, _)| *scheme == SignatureScheme::RSA_PSS_SHA256)
            .unwrap();
        let public = key.public_key().unwrap();
        let public = rsa_public_key(&public, 256);
        assert!(pss[0]
            .verify_signature(public, b"message", &signature)
            .is_ok());
        // Here it is too long.
        assert!(PSS_SHA256
            .verify_signature(public, b"message", &signature)
            .is_err());
    }

    #[test]
    fn version_is_that_of_the_lock_file() {
        let lock = include_str!("../../../../sources/Cargo.lock");
        let (name, version) = IMPLEMENTATION.split_once(' ').unwrap();
        let entry = format!("name = \"{name}\"\nversion = \"{version}\"\n");
        assert!(lock.contains(&entry));
    }
}
