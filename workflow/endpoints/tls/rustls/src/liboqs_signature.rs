//! Signatures of liboqs in X.509 and TLS: verification for rustls-webpki, private keys in PKCS#8 for rustls.
//!
//! Algorithm identifiers have an object identifier and no parameters, public keys and signatures are the raw ones.
//! CertificateVerify signs the content of RFC 8446, section 4.4.3 itself, not its hash.

use std::fmt;
use std::sync::Arc;

use quicbed_contract::tls::Signature;
use quicbed_pq::Sig;
use rustls::pki_types::{
    AlgorithmIdentifier, InvalidSignature, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer,
};
use rustls::sign::{public_key_to_spki, Signer, SigningKey};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};

/// DER tags.
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const SEQUENCE: u8 = 0x30;

/// Verifies signatures of one algorithm.
pub struct Verification {
    sig: Sig,
    id: AlgorithmIdentifier,
}

impl Verification {
    /// `oid` is a DER OBJECT IDENTIFIER with tag and length.
    pub fn new(sig: Sig, oid: &'static [u8]) -> Self {
        Self {
            sig,
            id: AlgorithmIdentifier::from_slice(oid),
        }
    }
}

impl fmt::Debug for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Verification").field(&self.id).finish()
    }
}

impl SignatureVerificationAlgorithm for Verification {
    fn verify_signature(
        &self,
        public_key: &[u8],
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), InvalidSignature> {
        self.sig
            .verify(public_key, message, signature)
            .map_err(|_| InvalidSignature)
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        self.id
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        self.id
    }
}

/// A private key.
#[derive(Clone)]
pub struct Key {
    sig: Sig,
    scheme: SignatureScheme,
    secret: Arc<Vec<u8>>,
    public: SubjectPublicKeyInfoDer<'static>,
}

impl Key {
    /// Reads a OneAsymmetricKey (RFC 5958) that holds the secret and the public key in an OCTET STRING, as oqs-provider
    /// writes it, or one of ML-DSA that holds the expanded key (RFC 9881, section 6). The latter is without the public key:
    /// then that of the certificate, a SubjectPublicKeyInfo, is tried.
    pub fn new(
        sig: Sig,
        signature: &'static Signature,
        pkcs8: &[u8],
        certificate_public_key: &[u8],
    ) -> Result<Self, String> {
        let inner = private_key(pkcs8, signature.oid_der)?;
        let (secret, public) = secret_key(inner, &sig)?;
        let public = match public {
            Some(public) => public,
            None => {
                let public = public_key(certificate_public_key, signature.oid_der)
                    .ok_or("the certificate is of another algorithm")?;
                let probe = sig.sign(secret, b"").map_err(|error| error.to_string())?;
                sig.verify(public, b"", &probe)
                    .map_err(|_| "it does not match the certificate")?;
                public
            }
        };
        let id = AlgorithmIdentifier::from_slice(signature.oid_der);
        Ok(Self {
            sig,
            scheme: signature.code_point.into(),
            secret: Arc::new(secret.to_vec()),
            public: public_key_to_spki(&id, public),
        })
    }
}

/// Never shows the secret.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").field(&self.scheme).finish()
    }
}

impl SigningKey for Key {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        offered
            .contains(&self.scheme)
            .then(|| Box::new(self.clone()) as Box<dyn Signer>)
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        Some(self.public.clone())
    }

    /// The classes of TLS 1.2 do not know these.
    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::Unknown(0)
    }
}

impl Signer for Key {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        self.sig
            .sign(&self.secret, message)
            .map_err(|error| Error::General(format!("liboqs: {error}")))
    }

    fn scheme(&self) -> SignatureScheme {
        self.scheme
    }
}

/// The content of `privateKey` in a OneAsymmetricKey of the algorithm with this DER object identifier.
fn private_key<'a>(pkcs8: &'a [u8], oid: &[u8]) -> Result<&'a [u8], String> {
    let broken = || "it is no PKCS#8 private key in DER".to_owned();
    let (key, rest) = value(pkcs8, SEQUENCE).ok_or_else(broken)?;
    let (_version, key) = value(key, INTEGER).ok_or_else(broken)?;
    let (algorithm, key) = value(key, SEQUENCE).ok_or_else(broken)?;
    let (private, _attributes) = value(key, OCTET_STRING).ok_or_else(broken)?;
    if !rest.is_empty() {
        return Err(broken());
    }
    if algorithm != oid {
        return Err("it is a key of another algorithm".into());
    }
    Ok(private)
}

/// The secret key in the content of `privateKey`, and the public key where it follows.
fn secret_key<'a>(private: &'a [u8], sig: &Sig) -> Result<(&'a [u8], Option<&'a [u8]>), String> {
    let both = |sequence: &'a [u8]| {
        let (_seed, rest) = value(sequence, OCTET_STRING)?;
        value(rest, OCTET_STRING)
    };
    let keys = value(private, SEQUENCE)
        .and_then(|(sequence, _)| both(sequence))
        .or_else(|| value(private, OCTET_STRING))
        .map(|(keys, _)| keys)
        .ok_or("there is no expanded key in it, and liboqs takes no seed")?;
    let (secret, public) = (sig.secret_key_bytes(), sig.public_key_bytes());
    match keys.len() {
        length if length == secret => Ok((keys, None)),
        length if length == secret + public => {
            let (secret, public) = keys.split_at(secret);
            Ok((secret, Some(public)))
        }
        length => Err(format!(
            "it has {length} bytes instead of {secret} or {}",
            secret + public
        )),
    }
}

/// The public key in a SubjectPublicKeyInfo of the algorithm with this DER object identifier.
fn public_key<'a>(spki: &'a [u8], oid: &[u8]) -> Option<&'a [u8]> {
    let (spki, _) = value(spki, SEQUENCE)?;
    let (algorithm, key) = value(spki, SEQUENCE)?;
    let (key, _) = value(key, BIT_STRING)?;
    match (algorithm == oid, key.split_first()?) {
        (true, (0, key)) => Some(key),
        _ => None,
    }
}

/// The value of the first element if it has this tag, and what follows it (X.690, section 8.1).
fn value(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&first, rest) = der.split_first()?;
    let (&length, rest) = rest.split_first()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(length), rest),
        0x81..=0x83 => {
            let (length, rest) = rest.split_at_checked(usize::from(length - 0x80))?;
            let length = length
                .iter()
                .fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            (length, rest)
        }
        _ => return None,
    };
    let split = rest.split_at_checked(length)?;
    (first == tag).then_some(split)
}

#[cfg(test)]
mod tests {
    use quicbed_contract::tls;

    use super::*;

    fn der(tag: u8, content: &[u8]) -> Vec<u8> {
        let length = u32::try_from(content.len()).unwrap().to_be_bytes();
        let header = match content.len() {
            0..=0x7f => vec![tag, length[3]],
            0x80..=0xff => vec![tag, 0x81, length[3]],
            0x100..=0xffff => vec![tag, 0x82, length[2], length[3]],
            _ => vec![tag, 0x83, length[1], length[2], length[3]],
        };
        [&header[..], content].concat()
    }

    fn pkcs8(oid: &[u8], private: &[u8]) -> Vec<u8> {
        let content = [
            &[INTEGER, 1, 0][..],
            &der(SEQUENCE, oid),
            &der(OCTET_STRING, private),
        ];
        der(SEQUENCE, &content.concat())
    }

    fn spki(oid: &[u8], public: &[u8]) -> Vec<u8> {
        let key = [&[0][..], public].concat();
        der(
            SEQUENCE,
            &[der(SEQUENCE, oid), der(BIT_STRING, &key)].concat(),
        )
    }

    fn find(name: &str) -> (&'static Signature, Sig) {
        let signature = tls::signature(name).unwrap();
        (signature, Sig::find(signature.liboqs.unwrap()).unwrap())
    }

    #[test]
    fn every_algorithm_signs_and_verifies_with_keys_of_its_format() {
        for signature in tls::SIGNATURES.iter().filter(|s| s.liboqs.is_some()) {
            // Signing takes part of a second.
            if signature.name.starts_with("sphincs") && signature.name.ends_with('s') {
                continue;
            }
            let (signature, sig) = find(signature.name);
            let (public, secret) = sig.keypair().unwrap();
            let private = der(OCTET_STRING, &[&secret[..], &public].concat());
            let file = pkcs8(signature.oid_der, &private);
            let key = Key::new(sig, signature, &file, &[]).unwrap();
            assert_eq!(
                key.public_key().unwrap().as_ref(),
                spki(signature.oid_der, &public)
            );
            let verification = Verification::new(sig, signature.oid_der);
            let signed = key.sign(b"message").unwrap();
            for (message, right) in [(b"message", true), (b"massage", false)] {
                let verified = verification.verify_signature(&public, message, &signed);
                assert_eq!(verified.is_ok(), right, "{}", signature.name);
            }
        }
    }

    #[test]
    fn expanded_keys_of_ml_dsa_are_tried_on_the_certificate() {
        let (signature, sig) = find("mldsa44");
        let (public, secret) = sig.keypair().unwrap();
        let expanded = der(OCTET_STRING, &secret);
        let seed_and_expanded = der(
            SEQUENCE,
            &[der(OCTET_STRING, &[7; 32]), expanded.clone()].concat(),
        );
        let certificate = spki(signature.oid_der, &public);
        for private in [&expanded, &seed_and_expanded] {
            let file = pkcs8(signature.oid_der, private);
            let key = Key::new(sig, signature, &file, &certificate).unwrap();
            assert_eq!(key.public_key().unwrap().as_ref(), certificate);
            let (other, _) = sig.keypair().unwrap();
            let other = spki(signature.oid_der, &other);
            let error = Key::new(sig, signature, &file, &other).unwrap_err();
            assert_eq!(error, "it does not match the certificate");
        }
    }

    #[test]
    fn other_files_are_refused_with_the_reason() {
        let (signature, sig) = find("mldsa44");
        let seed = [&[0x80, 32][..], &[7; 32]].concat();
        for (file, reason) in [
            (
                vec![SEQUENCE, 0x82, 1],
                "it is no PKCS#8 private key in DER",
            ),
            (
                pkcs8(signature.oid_der, &seed),
                "there is no expanded key in it, and liboqs takes no seed",
            ),
            (
                pkcs8(signature.oid_der, &der(OCTET_STRING, &[0; 9])),
                "it has 9 bytes instead of 2560 or 3872",
            ),
            (
                pkcs8(find("mldsa65").0.oid_der, &[]),
                "it is a key of another algorithm",
            ),
        ] {
            let error = Key::new(sig, signature, &file, &[]).unwrap_err();
            assert_eq!(error, reason);
        }
    }

    #[test]
    fn lengths_are_read_in_all_forms() {
        for length in [0, 0x7f, 0x80, 0xff, 0x100, 0xffff, 0x10000] {
            let content = vec![1; length];
            let encoded = [der(OCTET_STRING, &content), vec![9]].concat();
            let expected = Some((&content[..], &[9][..]));
            assert_eq!(value(&encoded, OCTET_STRING), expected);
            assert_eq!(value(&encoded, INTEGER), None);
            assert_eq!(value(&encoded[..length + 1], OCTET_STRING), None);
        }
        assert_eq!(value(&[OCTET_STRING, 0x80, 0, 0], OCTET_STRING), None);
    }
}
