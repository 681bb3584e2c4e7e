//! Signature algorithms of certificates by their names on the command line: what verifies and what signs.

use std::sync::Arc;

use quicbed_contract::tls::{self, Signature};
use rustls::crypto::{ring, WebPkiSupportedAlgorithms};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, SignatureVerificationAlgorithm};
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, Signer, SigningKey};
use rustls::{Error, InconsistentKeys, SignatureAlgorithm, SignatureScheme};

/// Name and version of what computes classical signatures and (EC)DH.
pub const RING: &str = "ring 0.17.14";

/// A signature algorithm of this build.
#[derive(Clone)]
pub struct Algorithm {
    signature: &'static Signature,
    /// What the client offers and verifies certificates and CertificateVerify with.
    pub verification: WebPkiSupportedAlgorithms,
    /// Name and version of the implementation.
    #[cfg_attr(not(feature = "pq"), expect(dead_code, reason = "told by primitives"))]
    pub implementation: &'static str,
}

/// Names of the algorithms of this build.
pub fn names() -> Vec<&'static str> {
    tls::SIGNATURES
        .iter()
        .filter(|signature| find(signature.name).is_some())
        .map(|signature| signature.name)
        .collect()
}

/// The algorithm of a name, `None` if this build does not have it. Lives as long as the process, as rustls wants it.
pub fn find(name: &str) -> Option<Algorithm> {
    let signature = tls::signature(name)?;
    let (verification, implementation) = match signature.liboqs.is_some() || name == "rsa-1024" {
        true => own_verification(signature)?,
        false => (of_ring(signature.code_point.into())?, RING),
    };
    Some(Algorithm {
        signature,
        verification,
        implementation,
    })
}

impl Algorithm {
    /// The TLS signature scheme, the only one offered, accepted and signed with.
    pub fn scheme(&self) -> SignatureScheme {
        self.signature.code_point.into()
    }

    /// A chain and its private key, which has to be one of this algorithm and that of the chain's first certificate.
    pub fn certified_key(
        &self,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<CertifiedKey, String> {
        let end_entity = chain.first().ok_or("there is no certificate")?;
        let certificate = ParsedCertificate::try_from(end_entity).map_err(|error| {
            let reason = match error {
                Error::InvalidCertificate(reason) => reason.to_string(),
                other => other.to_string(),
            };
            format!("rustls cannot read the certificate: {reason}")
        })?;
        let public = certificate.subject_public_key_info();
        let name = self.signature.name;
        let key = self
            .load(key, &public)
            .map_err(|error| format!("no private key of {name}: {error}"))?;
        let certified = CertifiedKey::new(
            chain,
            Arc::new(OneScheme {
                key,
                scheme: self.scheme(),
            }),
        );
        match certified.keys_match() {
            Ok(()) => Ok(certified),
            Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
                Err("the private key does not match the certificate".into())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// The private key, with the public key of a certificate for formats that do not have it.
    fn load(
        &self,
        key: PrivateKeyDer<'static>,
        certificate_public_key: &[u8],
    ) -> Result<Arc<dyn SigningKey>, String> {
        let key = match own_key(self.signature, &key, certificate_public_key) {
            Some(key) => key?,
            None => ring::default_provider()
                .key_provider
                .load_private_key(key)
                .map_err(|error| error.to_string())?,
        };
        let signer = key
            .choose_scheme(&[self.scheme()])
            .ok_or("it is a key of another algorithm")?;
        let bits = self.signature.name.strip_prefix("rsa-");
        if let Some(bits) = bits.and_then(|bits| bits.parse::<usize>().ok()) {
            // An RSA signature is as long as the modulus (RFC 8017, section 8.1.1).
            let length = 8 * signer.sign(b"").map_err(|error| error.to_string())?.len();
            if length != bits {
                return Err(format!("it has {length} bits"));
            }
        }
        Ok(key)
    }
}

/// Signs with one scheme only, whatever else the key can do.
#[derive(Debug)]
struct OneScheme {
    key: Arc<dyn SigningKey>,
    scheme: SignatureScheme,
}

impl SigningKey for OneScheme {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        match offered.contains(&self.scheme) {
            true => self.key.choose_scheme(&[self.scheme]),
            false => None,
        }
    }

    fn public_key(&self) -> Option<rustls::pki_types::SubjectPublicKeyInfoDer<'_>> {
        self.key.public_key()
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.key.algorithm()
    }
}

/// What `scheme` is verified with by rustls' provider: certificates signed by keys of the same type, CertificateVerify of
/// this scheme alone.
fn of_ring(scheme: SignatureScheme) -> Option<WebPkiSupportedAlgorithms> {
    let provider = ring::default_provider().signature_verification_algorithms;
    let mapping = provider
        .mapping
        .iter()
        .find(|(known, _)| *known == scheme)?;
    let key_type = mapping.1.first()?.public_key_alg_id();
    let same_key_type = |algorithm: &&'static dyn SignatureVerificationAlgorithm| {
        algorithm.public_key_alg_id() == key_type
    };
    let all: Vec<_> = provider.all.iter().copied().filter(same_key_type).collect();
    Some(WebPkiSupportedAlgorithms {
        all: all.leak(),
        mapping: std::slice::from_ref(mapping),
    })
}

/// What verifies the algorithms that ring does not have: CertificateVerify with the first, certificates with all.
#[cfg(feature = "pq")]
fn own_verification(
    signature: &'static Signature,
) -> Option<(WebPkiSupportedAlgorithms, &'static str)> {
    use crate::{liboqs_signature, rsa_1024};

    type All = Vec<&'static dyn SignatureVerificationAlgorithm>;
    let (all, implementation): (All, _) = match signature.liboqs {
        Some(liboqs) => {
            let sig = quicbed_pq::Sig::find(liboqs)?;
            let verification = liboqs_signature::Verification::new(sig, signature.oid_der);
            (
                vec![Box::leak(Box::new(verification))],
                sig.implementation(),
            )
        }
        None => (
            vec![&rsa_1024::PSS_SHA256, &rsa_1024::PKCS1_SHA256],
            rsa_1024::IMPLEMENTATION,
        ),
    };
    let all: &'static [_] = all.leak();
    let verification = WebPkiSupportedAlgorithms {
        all,
        mapping: vec![(signature.code_point.into(), &all[..1])].leak(),
    };
    Some((verification, implementation))
}

#[cfg(not(feature = "pq"))]
fn own_verification(_: &Signature) -> Option<(WebPkiSupportedAlgorithms, &'static str)> {
    None
}

/// A private key of an algorithm that ring does not have, `None` if it has.
#[cfg(feature = "pq")]
fn own_key(
    signature: &'static Signature,
    key: &PrivateKeyDer,
    certificate_public_key: &[u8],
) -> Option<Result<Arc<dyn SigningKey>, String>> {
    use crate::{liboqs_signature, rsa_1024};

    fn shared(key: impl SigningKey + 'static) -> Arc<dyn SigningKey> {
        Arc::new(key)
    }
    match (signature.liboqs, signature.name) {
        (Some(liboqs), _) => {
            let sig = quicbed_pq::Sig::find(liboqs)?;
            let pkcs8 = key.secret_der();
            let key = liboqs_signature::Key::new(sig, signature, pkcs8, certificate_public_key);
            Some(key.map(shared))
        }
        (None, "rsa-1024") => Some(rsa_1024::Key::new(key).map(shared)),
        _ => None,
    }
}

#[cfg(not(feature = "pq"))]
fn own_key(
    _: &Signature,
    _: &PrivateKeyDer,
    _: &[u8],
) -> Option<Result<Arc<dyn SigningKey>, String>> {
    None
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::pem::PemObject;

    use super::*;

    fn data(name: &str) -> std::path::PathBuf {
        std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/data")
            .join(name)
    }

    fn load(name: &str) -> Result<CertifiedKey, String> {
        let chain = CertificateDer::pem_file_iter(data("server.pem")).unwrap();
        find(name).unwrap().certified_key(
            chain.map(Result::unwrap).collect(),
            PrivateKeyDer::from_pem_file(data("server.key")).unwrap(),
        )
    }

    #[test]
    fn a_single_scheme_is_offered() {
        for name in names() {
            let algorithm = find(name).unwrap();
            let schemes = algorithm.verification.supported_schemes();
            assert_eq!(schemes, [algorithm.scheme()], "{name}");
            assert!(!algorithm.verification.all.is_empty(), "{name}");
        }
        for name in [
            "rsa-2048",
            "rsa-4096",
            "ecdsa-p-256",
            "ecdsa-p-384",
            "ed25519",
        ] {
            assert!(names().contains(&name), "{name}");
        }
        assert_eq!(names().contains(&"rsa-1024"), cfg!(feature = "pq"));
    }

    #[test]
    fn a_key_signs_with_its_scheme_only() {
        let certified = load("ecdsa-p-256").unwrap();
        let p256 = SignatureScheme::ECDSA_NISTP256_SHA256;
        let p384 = SignatureScheme::ECDSA_NISTP384_SHA384;
        assert!(certified.key.choose_scheme(&[p384]).is_none());
        let signer = certified.key.choose_scheme(&[p384, p256]).unwrap();
        assert_eq!(signer.scheme(), p256);
    }

    #[test]
    fn a_key_of_another_algorithm_is_named() {
        for name in ["rsa-2048", "ed25519", "ecdsa-p-384"] {
            let error = load(name).map(drop).unwrap_err();
            assert_eq!(
                error,
                format!("no private key of {name}: it is a key of another algorithm")
            );
        }
    }
}
