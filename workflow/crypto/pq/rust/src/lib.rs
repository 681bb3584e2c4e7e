//! Key encapsulation and signatures of liboqs: a safe interface to `../pq.h`.

use std::ffi::CString;
use std::fmt;
use std::ops::Deref;

/// What went wrong in an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// A key, ciphertext or signature of the wrong size.
    Length {
        what: &'static str,
        expected: usize,
        given: usize,
    },
    /// liboqs reports a failure.
    Failed(&'static str),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Length {
                what,
                expected,
                given,
            } => write!(f, "{what} has {given} bytes instead of {expected}"),
            Error::Failed(operation) => write!(f, "{operation} failed"),
        }
    }
}

impl std::error::Error for Error {}

/// A secret key or shared secret; overwritten when it goes out of scope.
pub struct Secret(Vec<u8>);

impl Deref for Secret {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        // SAFETY: pointer and length are those of one allocation.
        unsafe { ffi::quicbed_pq_cleanse(self.0.as_mut_ptr().cast(), self.0.len()) }
    }
}

/// Never shows the secret.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.0.len())
    }
}

/// Name and version of the library behind this crate, such as "liboqs 0.13.0".
pub fn version() -> &'static str {
    // SAFETY: a constant C string.
    text(unsafe { ffi::quicbed_pq_version() })
}

/// A constant C string of the interface.
fn text(constant: *const std::ffi::c_char) -> &'static str {
    // SAFETY: it is one of the literals in pq.c and kem.h.
    let text = unsafe { std::ffi::CStr::from_ptr(constant) };
    text.to_str().unwrap_or("liboqs")
}

/// A key encapsulation mechanism.
#[derive(Clone, Copy)]
pub struct Kem(&'static ffi::Kem);

impl Kem {
    /// The KEM of a name in liboqs, such as "Kyber512".
    pub fn find(name: &str) -> Option<Kem> {
        let name = CString::new(name).ok()?;
        // SAFETY: what is found lives as long as the program and is never changed.
        unsafe { ffi::quicbed_kem_find(name.as_ptr()).as_ref() }.map(Kem)
    }

    /// Version of liboqs and what of it runs on this processor, such as "liboqs 0.13.0 (AVX2)".
    pub fn implementation(&self) -> &'static str {
        // SAFETY: a constant C string.
        text(unsafe { ffi::quicbed_kem_implementation(self.0) })
    }

    pub fn public_key_bytes(&self) -> usize {
        // SAFETY: `self.0` comes from quicbed_kem_find, here and in all further calls.
        unsafe { ffi::quicbed_kem_public_key_bytes(self.0) }
    }

    pub fn secret_key_bytes(&self) -> usize {
        unsafe { ffi::quicbed_kem_secret_key_bytes(self.0) }
    }

    pub fn ciphertext_bytes(&self) -> usize {
        unsafe { ffi::quicbed_kem_ciphertext_bytes(self.0) }
    }

    pub fn shared_secret_bytes(&self) -> usize {
        unsafe { ffi::quicbed_kem_shared_secret_bytes(self.0) }
    }

    /// A new public and secret key.
    pub fn keypair(&self) -> Result<(Vec<u8>, Secret), Error> {
        let mut public = vec![0; self.public_key_bytes()];
        let mut secret = Secret(vec![0; self.secret_key_bytes()]);
        // SAFETY: the buffers have the sizes that the KEM tells, here and in all further calls.
        let done =
            unsafe { ffi::quicbed_kem_keypair(self.0, public.as_mut_ptr(), secret.0.as_mut_ptr()) };
        succeeded(done, "key generation")?;
        Ok((public, secret))
    }

    /// A ciphertext for the owner of `public_key` and the shared secret in it.
    pub fn encapsulate(&self, public_key: &[u8]) -> Result<(Vec<u8>, Secret), Error> {
        has_length("public key", public_key, self.public_key_bytes())?;
        let mut ciphertext = vec![0; self.ciphertext_bytes()];
        let mut shared = Secret(vec![0; self.shared_secret_bytes()]);
        let done = unsafe {
            ffi::quicbed_kem_encapsulate(
                self.0,
                ciphertext.as_mut_ptr(),
                shared.0.as_mut_ptr(),
                public_key.as_ptr(),
            )
        };
        succeeded(done, "encapsulation")?;
        Ok((ciphertext, shared))
    }

    /// The shared secret in a ciphertext; with implicit rejection a wrong one gives a secret that the peer does not have.
    pub fn decapsulate(&self, secret_key: &[u8], ciphertext: &[u8]) -> Result<Secret, Error> {
        has_length("secret key", secret_key, self.secret_key_bytes())?;
        has_length("ciphertext", ciphertext, self.ciphertext_bytes())?;
        let mut shared = Secret(vec![0; self.shared_secret_bytes()]);
        let done = unsafe {
            ffi::quicbed_kem_decapsulate(
                self.0,
                shared.0.as_mut_ptr(),
                ciphertext.as_ptr(),
                secret_key.as_ptr(),
            )
        };
        succeeded(done, "decapsulation")?;
        Ok(shared)
    }
}

/// A signature algorithm.
#[derive(Clone, Copy)]
pub struct Sig(&'static ffi::Sig);

impl Sig {
    /// The algorithm of a name in liboqs, such as "Falcon-padded-512".
    pub fn find(name: &str) -> Option<Sig> {
        let name = CString::new(name).ok()?;
        // SAFETY: what is found lives as long as the program and is never changed.
        unsafe { ffi::quicbed_sig_find(name.as_ptr()).as_ref() }.map(Sig)
    }

    /// Version of liboqs and what of it runs on this processor, such as "liboqs 0.13.0 (AVX2)".
    pub fn implementation(&self) -> &'static str {
        // SAFETY: a constant C string.
        text(unsafe { ffi::quicbed_sig_implementation(self.0) })
    }

    pub fn public_key_bytes(&self) -> usize {
        // SAFETY: `self.0` comes from quicbed_sig_find, here and in all further calls.
        unsafe { ffi::quicbed_sig_public_key_bytes(self.0) }
    }

    pub fn secret_key_bytes(&self) -> usize {
        unsafe { ffi::quicbed_sig_secret_key_bytes(self.0) }
    }

    /// The most bytes that a signature has.
    pub fn signature_bytes(&self) -> usize {
        unsafe { ffi::quicbed_sig_signature_bytes(self.0) }
    }

    /// A new public and secret key.
    pub fn keypair(&self) -> Result<(Vec<u8>, Secret), Error> {
        let mut public = vec![0; self.public_key_bytes()];
        let mut secret = Secret(vec![0; self.secret_key_bytes()]);
        // SAFETY: the buffers have the sizes that the algorithm tells, here and in all further calls.
        let done =
            unsafe { ffi::quicbed_sig_keypair(self.0, public.as_mut_ptr(), secret.0.as_mut_ptr()) };
        succeeded(done, "key generation")?;
        Ok((public, secret))
    }

    /// The signature of a message.
    pub fn sign(&self, secret_key: &[u8], message: &[u8]) -> Result<Vec<u8>, Error> {
        has_length("secret key", secret_key, self.secret_key_bytes())?;
        let mut signature = vec![0; self.signature_bytes()];
        let mut length = 0;
        let done = unsafe {
            ffi::quicbed_sig_sign(
                self.0,
                signature.as_mut_ptr(),
                &mut length,
                message.as_ptr(),
                message.len(),
                secret_key.as_ptr(),
            )
        };
        succeeded(done, "signing")?;
        signature.truncate(length);
        Ok(signature)
    }

    /// Whether a signature is that of the message by the owner of `public_key`.
    pub fn verify(&self, public_key: &[u8], message: &[u8], signature: &[u8]) -> Result<(), Error> {
        has_length("public key", public_key, self.public_key_bytes())?;
        let done = unsafe {
            ffi::quicbed_sig_verify(
                self.0,
                message.as_ptr(),
                message.len(),
                signature.as_ptr(),
                signature.len(),
                public_key.as_ptr(),
            )
        };
        succeeded(done, "verification")
    }
}

fn succeeded(done: i32, operation: &'static str) -> Result<(), Error> {
    match done {
        1 => Ok(()),
        _ => Err(Error::Failed(operation)),
    }
}

fn has_length(what: &'static str, bytes: &[u8], expected: usize) -> Result<(), Error> {
    match bytes.len() {
        given if given == expected => Ok(()),
        given => Err(Error::Length {
            what,
            expected,
            given,
        }),
    }
}

/// `../pq.h`
mod ffi {
    use std::ffi::{c_char, c_int, c_void};

    #[repr(C)]
    pub struct Kem {
        _private: [u8; 0],
    }

    #[repr(C)]
    pub struct Sig {
        _private: [u8; 0],
    }

    extern "C" {
        pub fn quicbed_kem_find(liboqs_name: *const c_char) -> *const Kem;
        pub fn quicbed_kem_implementation(kem: *const Kem) -> *const c_char;
        pub fn quicbed_kem_public_key_bytes(kem: *const Kem) -> usize;
        pub fn quicbed_kem_secret_key_bytes(kem: *const Kem) -> usize;
        pub fn quicbed_kem_ciphertext_bytes(kem: *const Kem) -> usize;
        pub fn quicbed_kem_shared_secret_bytes(kem: *const Kem) -> usize;
        pub fn quicbed_kem_keypair(kem: *const Kem, public: *mut u8, secret: *mut u8) -> c_int;
        pub fn quicbed_kem_encapsulate(
            kem: *const Kem,
            ciphertext: *mut u8,
            shared: *mut u8,
            public: *const u8,
        ) -> c_int;
        pub fn quicbed_kem_decapsulate(
            kem: *const Kem,
            shared: *mut u8,
            ciphertext: *const u8,
            secret: *const u8,
        ) -> c_int;
        pub fn quicbed_sig_find(liboqs_name: *const c_char) -> *const Sig;
        pub fn quicbed_sig_implementation(sig: *const Sig) -> *const c_char;
        pub fn quicbed_sig_public_key_bytes(sig: *const Sig) -> usize;
        pub fn quicbed_sig_secret_key_bytes(sig: *const Sig) -> usize;
        pub fn quicbed_sig_signature_bytes(sig: *const Sig) -> usize;
        pub fn quicbed_sig_keypair(sig: *const Sig, public: *mut u8, secret: *mut u8) -> c_int;
        pub fn quicbed_sig_sign(
            sig: *const Sig,
            signature: *mut u8,
            length: *mut usize,
            message: *const u8,
            message_length: usize,
            secret: *const u8,
        ) -> c_int;
        pub fn quicbed_sig_verify(
            sig: *const Sig,
            message: *const u8,
            message_length: usize,
            signature: *const u8,
            signature_length: usize,
            public: *const u8,
        ) -> c_int;
        pub fn quicbed_pq_cleanse(secret: *mut c_void, length: usize);
        pub fn quicbed_pq_version() -> *const c_char;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_get_the_same_secret() {
        for name in ["Kyber512", "ML-KEM-768", "BIKE-L1", "HQC-128"] {
            let kem = Kem::find(name).unwrap();
            let (public, secret) = kem.keypair().unwrap();
            let (ciphertext, sent) = kem.encapsulate(&public).unwrap();
            let received = kem.decapsulate(&secret, &ciphertext).unwrap();
            assert_eq!(*sent, *received, "{name}");
            assert_ne!(*sent, vec![0; sent.len()], "{name}");
        }
    }

    #[test]
    fn another_key_decapsulates_to_another_secret() {
        let kem = Kem::find("ML-KEM-512").unwrap();
        let (public, _) = kem.keypair().unwrap();
        let (_, other) = kem.keypair().unwrap();
        let (ciphertext, sent) = kem.encapsulate(&public).unwrap();
        assert_ne!(*kem.decapsulate(&other, &ciphertext).unwrap(), *sent);
    }

    #[test]
    fn a_signature_is_of_one_message_by_one_key() {
        for name in [
            "Dilithium2",
            "ML-DSA-44",
            "Falcon-padded-512",
            "SPHINCS+-SHA2-128f-simple",
        ] {
            let sig = Sig::find(name).unwrap();
            let (public, secret) = sig.keypair().unwrap();
            let signature = sig.sign(&secret, b"message").unwrap();
            assert_eq!(signature.len(), sig.signature_bytes(), "{name}");
            assert_eq!(
                sig.verify(&public, b"message", &signature),
                Ok(()),
                "{name}"
            );
            let failed = Err(Error::Failed("verification"));
            assert_eq!(
                sig.verify(&public, b"massage", &signature),
                failed,
                "{name}"
            );
            let (other, _) = sig.keypair().unwrap();
            assert_eq!(sig.verify(&other, b"message", &signature), failed, "{name}");
        }
    }

    #[test]
    fn wrong_lengths_are_refused() {
        let kem = Kem::find("Kyber512").unwrap();
        let error = kem.encapsulate(&[0; 799]).unwrap_err();
        assert_eq!(error.to_string(), "public key has 799 bytes instead of 800");
        let (_, secret) = kem.keypair().unwrap();
        assert!(kem.decapsulate(&secret, &[0; 767]).is_err());
        assert!(kem.decapsulate(&secret[1..], &[0; 768]).is_err());
        let sig = Sig::find("Dilithium2").unwrap();
        assert!(sig.sign(&[0; 3], b"message").is_err());
        assert!(sig.verify(&[0; 3], b"message", &[0; 2420]).is_err());
    }

    #[test]
    fn unknown_names_are_not_found() {
        assert!(Kem::find("Kyber").is_none());
        assert!(Kem::find("Kyber512\0").is_none());
        assert!(Sig::find("Kyber512").is_none());
    }

    #[test]
    fn a_secret_is_not_shown() {
        let (_, secret) = Kem::find("Kyber512").unwrap().keypair().unwrap();
        assert_eq!(format!("{secret:?}"), "Secret(1632 bytes)");
    }

    #[test]
    fn implementations_are_those_of_the_processor() {
        let vector = std::is_x86_feature_detected!("avx2");
        let expected = |used| format!("{} ({used})", version());
        let of_kyber = Kem::find("Kyber512").unwrap().implementation();
        assert_eq!(of_kyber, expected(if vector { "AVX2" } else { "portable" }));
        let of_dsa = Sig::find("ML-DSA-44").unwrap().implementation();
        assert_eq!(of_dsa, of_kyber);
        let of_hqc = Kem::find("HQC-128").unwrap().implementation();
        assert_eq!(of_hqc, expected("portable"));
        let older = Kem::find("HQC-128@0.9").map(|kem| kem.implementation());
        assert_eq!(older, vector.then_some("liboqs 0.9.0 (AVX2)"));
    }

    #[test]
    fn the_version_names_the_library() {
        assert!(version().starts_with("liboqs 0."), "{}", version());
    }
}
