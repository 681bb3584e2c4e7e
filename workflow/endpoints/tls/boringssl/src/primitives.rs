//! Times the operations of a handshake through BoringSSL: its TLS key shares, its signatures, and its verification of
//! certificates.

use std::ffi::c_void;
use std::fs;
use std::path::Path;
use std::ptr::NonNull;
use std::time::Duration;

use boring::error::ErrorStack;
use boring::hash::MessageDigest;
use boring::pkey::{PKey, PKeyRef, Private, Public};
use boring::rsa::Padding;
use boring::sign::{RsaPssSaltlen, Signer, Verifier};
use boring::stack::Stack;
use boring::x509::store::X509StoreBuilder;
use boring::x509::{X509StoreContext, X509};
use quicbed_contract::events::{Events, Role};
use quicbed_contract::exit;
use quicbed_contract::primitives::{time, Operation, Options, Primitive};
use quicbed_contract::tls::{self, Group, Signature};
use quicbed_pq::{Kem, Sig};
use serde::Serialize;

/// Room for the largest key share of any group.
const MAX_SHARE: usize = 1 << 16;

/// Groups and signature algorithms that BoringSSL computes itself although liboqs has them too.
const NATIVE: [&str; 5] = [
    "mlkem1024",
    "x25519-mlkem768",
    "mldsa44",
    "mldsa65",
    "mldsa87",
];

extern "C" {
    // key_share.cc
    fn quicbed_key_share_new(group: u16) -> *mut c_void;
    fn quicbed_key_share_free(share: *mut c_void);
    fn quicbed_key_share_generate(
        share: *mut c_void,
        out: *mut u8,
        room: usize,
        length: *mut usize,
    ) -> i32;
    fn quicbed_key_share_encapsulate(
        share: *mut c_void,
        peer: *const u8,
        peer_length: usize,
        out: *mut u8,
        room: usize,
        length: *mut usize,
    ) -> i32;
    fn quicbed_key_share_decapsulate(share: *mut c_void, answer: *const u8, length: usize) -> i32;
}

/// What the `start` event tells.
#[derive(Serialize)]
struct InForce<'a> {
    milliseconds: u128,
    groups: &'a [String],
    signatures: Vec<&'a str>,
}

/// Runs the program for the endpoint `library` and returns its exit code.
pub fn run(library: &str, version: &str) -> i32 {
    let options = Options::from_command_line();
    let mut events = Events::open(&options.events);
    let names = options.signatures.iter().map(|(name, _)| name.as_str());
    let in_force = InForce {
        milliseconds: options.duration.as_millis(),
        groups: &options.groups,
        signatures: names.collect(),
    };
    events.start(Role::Primitives, library, version, &in_force);
    if let Err(reason) = measure(&options, &mut events) {
        events.exit_failed(&reason);
    }
    events.end();
    exit::OK
}

fn measure(options: &Options, events: &mut Events) -> Result<(), String> {
    let (groups, signatures) = (crate::groups(), crate::signatures());
    for name in &options.groups {
        let known = tls::group(name).filter(|group| groups.contains(&group.name));
        let Some(group) = known else {
            events.unsupported(name, "this BoringSSL has no such group");
            continue;
        };
        let times = time_group(group, options.duration);
        report(events, times.map_err(|error| format!("{name}: {error}"))?);
    }
    for (name, directory) in &options.signatures {
        let known = tls::signature(name).filter(|s| signatures.contains(&s.name));
        let Some(signature) = known else {
            events.unsupported(name, "this BoringSSL has no such signature algorithm");
            continue;
        };
        let times = time_signature(signature, directory, options.duration);
        let times = times.map_err(|error| format!("{name}: {}: {error}", directory.display()))?;
        report(events, times);
    }
    Ok(())
}

fn report(events: &mut Events, primitives: Vec<Primitive>) {
    for primitive in &primitives {
        events.primitive(primitive);
    }
}

const BORINGSSL: &str = "BoringSSL";

fn of_group(group: &Group) -> String {
    let kem = group.liboqs.filter(|_| !NATIVE.contains(&group.name));
    match (kem.and_then(Kem::find), group.classical) {
        (None, _) => BORINGSSL.to_owned(),
        (Some(kem), None) => kem.implementation().to_owned(),
        (Some(kem), Some(_)) if group.pq_first => format!("{} + {BORINGSSL}", kem.implementation()),
        (Some(kem), Some(_)) => format!("{BORINGSSL} + {}", kem.implementation()),
    }
}

fn of_signature(signature: &Signature) -> &'static str {
    let sig = signature
        .liboqs
        .filter(|_| !NATIVE.contains(&signature.name));
    sig.and_then(Sig::find)
        .map_or(BORINGSSL, |sig| sig.implementation())
}

/// A share of BoringSSL's TLS.
struct Share(NonNull<c_void>);

impl Share {
    fn new(group: &Group) -> Result<Share, String> {
        // SAFETY: takes any number.
        let share = unsafe { quicbed_key_share_new(group.code_point) };
        NonNull::new(share)
            .map(Share)
            .ok_or_else(|| "no key share".to_owned())
    }

    /// Makes the client's key pair; returns the length of the public key, which is in `out` then.
    fn generate(&mut self, out: &mut [u8]) -> Result<usize, String> {
        let mut length = 0;
        // SAFETY: the share is valid, and the buffer has the length told.
        let done = unsafe {
            quicbed_key_share_generate(self.0.as_ptr(), out.as_mut_ptr(), out.len(), &mut length)
        };
        succeeded(done, "key generation").map(|()| length)
    }

    /// Answers a client's public key; returns the length of the answer, which is in `out` then.
    fn encapsulate(&mut self, peer: &[u8], out: &mut [u8]) -> Result<usize, String> {
        let mut length = 0;
        // SAFETY: the share is valid, and the buffers have the lengths told.
        let done = unsafe {
            quicbed_key_share_encapsulate(
                self.0.as_ptr(),
                peer.as_ptr(),
                peer.len(),
                out.as_mut_ptr(),
                out.len(),
                &mut length,
            )
        };
        succeeded(done, "encapsulation").map(|()| length)
    }

    fn decapsulate(&mut self, answer: &[u8]) -> Result<(), String> {
        // SAFETY: the share is valid, and the buffer has the length told.
        let done = unsafe {
            quicbed_key_share_decapsulate(self.0.as_ptr(), answer.as_ptr(), answer.len())
        };
        succeeded(done, "decapsulation")
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // SAFETY: made by `quicbed_key_share_new`, and owned by this object.
        unsafe { quicbed_key_share_free(self.0.as_ptr()) };
    }
}

fn succeeded(done: i32, what: &str) -> Result<(), String> {
    match done {
        1 => Ok(()),
        _ => Err(format!("{what} failed: {}", ErrorStack::get())),
    }
}

/// Key generation of the client, the server's answer, and what the client does with that.
fn time_group(group: &Group, duration: Duration) -> Result<Vec<Primitive>, String> {
    let mut buffer = vec![0; MAX_SHARE];
    let mut client = Share::new(group)?;
    let length = client.generate(&mut buffer)?;
    let public = buffer[..length].to_vec();
    let length = Share::new(group)?.encapsulate(&public, &mut buffer)?;
    let answer = buffer[..length].to_vec();

    let mut out = vec![0; MAX_SHARE];
    let keygen = repeat(duration, || Share::new(group)?.generate(&mut out).map(drop))?;
    let encapsulate = repeat(duration, || {
        Share::new(group)?.encapsulate(&public, &mut out).map(drop)
    })?;
    // A share is good for one secret.
    let decapsulate = time(duration, || {
        let mut client = Share::new(group)?;
        let length = client.generate(&mut buffer)?;
        let public = &buffer[..length];
        let mut answer = vec![0; MAX_SHARE];
        let length = Share::new(group)?.encapsulate(public, &mut answer)?;
        Ok::<_, String>(move || client.decapsulate(&answer[..length]))
    })?;
    let primitive = |operation, samples_ns, bytes| Primitive {
        kind: "group",
        name: group.name.into(),
        operation,
        implementation: of_group(group),
        samples_ns,
        bytes,
    };
    Ok(vec![
        primitive(Operation::Keygen, keygen, Some(public.len())),
        primitive(Operation::Encapsulate, encapsulate, Some(answer.len())),
        primitive(Operation::Decapsulate, decapsulate, None),
    ])
}

/// Times an operation that needs no preparation.
fn repeat(
    duration: Duration,
    mut operation: impl FnMut() -> Result<(), String>,
) -> Result<Vec<u64>, String> {
    let operation = std::cell::RefCell::new(&mut operation);
    time(duration, || Ok(|| (operation.borrow_mut())()))
}

/// CertificateVerify on both sides, and the certificate against the CA.
fn time_signature(
    signature: &Signature,
    directory: &Path,
    duration: Duration,
) -> Result<Vec<Primitive>, String> {
    let read = |name: &str| fs::read(directory.join(name)).map_err(|e| format!("{name}: {e}"));
    let ca = X509::from_pem(&read("ca.pem")?).map_err(one_line)?;
    let leaf = X509::from_pem(&read("server.pem")?).map_err(one_line)?;
    let key = PKey::private_key_from_pem(&read("server.key")?).map_err(one_line)?;
    let public = leaf.public_key().map_err(one_line)?;
    let mut roots = X509StoreBuilder::new().map_err(one_line)?;
    roots.add_cert(&ca).map_err(one_line)?;
    let roots = roots.build();
    let none = Stack::new().map_err(one_line)?;
    let message = certificate_verify_content();
    let made = sign(signature, &key, &message).map_err(one_line)?;

    let sign = repeat(duration, || {
        sign(signature, &key, &message).map(drop).map_err(one_line)
    })?;
    let verify = repeat(duration, || {
        match verify(signature, &public, &message, &made).map_err(one_line)? {
            true => Ok(()),
            false => Err("the key is not that of the certificate".into()),
        }
    })?;
    let chain = repeat(duration, || {
        let mut context = X509StoreContext::new().map_err(one_line)?;
        let verdict = context.init(&roots, &leaf, &none, |context| {
            context
                .verify_cert()
                .map(|good| (good, context.verify_result()))
        });
        match verdict.map_err(one_line)? {
            (true, _) => Ok(()),
            (false, Err(error)) => Err(error.error_string().into()),
            (false, Ok(())) => Err("the certificate is not that of the CA".into()),
        }
    })?;
    let primitive = |operation, samples_ns, bytes| Primitive {
        kind: "signature",
        name: signature.name.into(),
        operation,
        implementation: of_signature(signature).into(),
        samples_ns,
        bytes,
    };
    let certificate = leaf.to_der().map_err(one_line)?.len();
    Ok(vec![
        primitive(Operation::Sign, sign, Some(made.len())),
        primitive(Operation::Verify, verify, None),
        primitive(Operation::VerifyChain, chain, Some(certificate)),
    ])
}

/// The hash that a scheme signs, `None` for one that takes the message itself (RFC 8446, section 4.2.3).
fn digest(signature: &Signature) -> Option<MessageDigest> {
    match signature.tls_name {
        "rsa_pss_rsae_sha256" | "ecdsa_secp256r1_sha256" => Some(MessageDigest::sha256()),
        "ecdsa_secp384r1_sha384" => Some(MessageDigest::sha384()),
        _ => None,
    }
}

fn sign(
    signature: &Signature,
    key: &PKeyRef<Private>,
    message: &[u8],
) -> Result<Vec<u8>, ErrorStack> {
    let mut signer = match digest(signature) {
        Some(digest) => Signer::new(digest, key)?,
        None => Signer::new_without_digest(key)?,
    };
    if signature.tls_name.starts_with("rsa_pss") {
        signer.set_rsa_padding(Padding::PKCS1_PSS)?;
        signer.set_rsa_pss_saltlen(RsaPssSaltlen::DIGEST_LENGTH)?;
    }
    signer.sign_oneshot_to_vec(message)
}

fn verify(
    signature: &Signature,
    key: &PKeyRef<Public>,
    message: &[u8],
    made: &[u8],
) -> Result<bool, ErrorStack> {
    let mut verifier = match digest(signature) {
        Some(digest) => Verifier::new(digest, key)?,
        None => Verifier::new_without_digest(key)?,
    };
    if signature.tls_name.starts_with("rsa_pss") {
        verifier.set_rsa_padding(Padding::PKCS1_PSS)?;
        verifier.set_rsa_pss_saltlen(RsaPssSaltlen::DIGEST_LENGTH)?;
    }
    verifier.verify_oneshot(made, message)
}

/// What a server signs: 64 spaces, a context string, a zero and the transcript hash, of SHA-256 here (RFC 8446, section
/// 4.4.3).
fn certificate_verify_content() -> Vec<u8> {
    let context: &[u8] = b"TLS 1.3, server CertificateVerify\0";
    [&[0x20; 64][..], context, &[0xa5; 32]].concat()
}

fn one_line(error: ErrorStack) -> String {
    error.to_string()
}
