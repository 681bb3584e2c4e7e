//! The program `primitives`: times the operations of a handshake through the functions that connections use.

use std::path::Path;
use std::ptr::{self, NonNull};
use std::time::Duration;

use quicbed_contract::events::{Events, Role};
use quicbed_contract::exit;
use quicbed_contract::primitives::{time, Operation, Options, Primitive};
use quicbed_contract::tls::{self, Group, Signature};
use quicbed_pq::{Kem, Sig};
use serde::Serialize;

use crate::endpoint::{groups, openssl_group, path, signatures, text};
use crate::{ffi, LIBRARY, VERSION};

const OPENSSL: &str = concat!("OpenSSL ", env!("OPENSSL_VERSION"));

/// Room for a reason of one line.
const REASON: usize = 1_024;

#[derive(Serialize)]
struct InForce<'a> {
    milliseconds: u128,
    groups: &'a [String],
    signatures: Vec<&'a str>,
}

/// Runs the program and returns its exit code.
pub fn run() -> i32 {
    let options = Options::from_command_line();
    let mut events = Events::open(&options.events);
    let names = options.signatures.iter().map(|(name, _)| name.as_str());
    let in_force = InForce {
        milliseconds: options.duration.as_millis(),
        groups: &options.groups,
        signatures: names.collect(),
    };
    events.start(Role::Primitives, LIBRARY, VERSION, &in_force);
    if let Err(reason) = measure(&options, &mut events) {
        events.exit_failed(&reason);
    }
    events.end();
    exit::OK
}

fn measure(options: &Options, events: &mut Events) -> Result<(), String> {
    let (groups, signatures) = (groups(), signatures());
    for name in &options.groups {
        let Some(group) = tls::group(name).filter(|group| groups.contains(&group.name)) else {
            events.unsupported(name, "this build has no such group");
            continue;
        };
        let times = time_group(group, options.duration);
        report(events, times.map_err(|error| format!("{name}: {error}"))?);
    }
    for (name, directory) in &options.signatures {
        let known = tls::signature(name).filter(|s| signatures.contains(&s.name));
        let Some(signature) = known else {
            events.unsupported(name, "this build has no such signature algorithm");
            continue;
        };
        let times = time_signature(signature, directory, options.duration);
        report(events, times.map_err(|error| format!("{name}: {error}"))?);
    }
    Ok(())
}

fn report(events: &mut Events, primitives: Vec<Primitive>) {
    for primitive in &primitives {
        events.primitive(primitive);
    }
}

/// The algorithm that computes a name of liboqs; ML-KEM and ML-DSA are OpenSSL's own.
fn of_liboqs(name: Option<&'static str>) -> Option<&'static str> {
    name.filter(|name| !name.starts_with("ML-"))
}

fn of_group(group: &Group) -> String {
    let kem = of_liboqs(group.liboqs).and_then(Kem::find);
    match (kem, group.classical) {
        (None, _) => OPENSSL.to_owned(),
        (Some(kem), None) => kem.implementation().to_owned(),
        (Some(kem), Some(_)) if group.pq_first => format!("{} + {OPENSSL}", kem.implementation()),
        (Some(kem), Some(_)) => format!("{OPENSSL} + {}", kem.implementation()),
    }
}

fn of_signature(signature: &Signature) -> &'static str {
    let sig = of_liboqs(signature.liboqs).and_then(Sig::find);
    sig.map_or(OPENSSL, |sig| sig.implementation())
}

/// A client's share.
struct Share {
    exchange: NonNull<ffi::Exchange>,
    length: usize,
}

impl Share {
    fn new(group: &Group) -> Result<Share, String> {
        let (mut made, algorithm) = (ptr::null_mut(), text(openssl_group(group)));
        // SAFETY: everything passed is valid during the call.
        let length = unsafe { ffi::qp_share(group.code_point, algorithm.as_ptr(), &mut made) };
        match NonNull::new(made) {
            Some(exchange) => Ok(Share { exchange, length }),
            None => Err("key generation failed".into()),
        }
    }

    /// What a server answers.
    fn answer(&self, group: &Group) -> Result<Vec<u8>, String> {
        let (mut answer, algorithm) = (ptr::null_mut(), text(openssl_group(group)));
        // SAFETY: everything passed is valid during the call; the answer has the length told and is to be freed.
        unsafe {
            let number = group.code_point;
            let client = self.exchange.as_ptr();
            let length = ffi::qp_answer(number, algorithm.as_ptr(), client, &mut answer);
            if answer.is_null() {
                return Err("encapsulation failed".into());
            }
            let bytes = std::slice::from_raw_parts(answer, length).to_vec();
            libc::free(answer.cast());
            Ok(bytes)
        }
    }

    fn finish(&mut self, answer: &[u8]) -> Result<(), String> {
        // SAFETY: the buffer has the length told.
        let done = unsafe { ffi::qp_finish(self.exchange.as_ptr(), answer.as_ptr(), answer.len()) };
        succeeded(done, "decapsulation failed")
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // SAFETY: made by `qp_share`, and owned by this object.
        unsafe { ffi::qp_forget(self.exchange.as_ptr()) };
    }
}

fn succeeded(done: bool, problem: &str) -> Result<(), String> {
    match done {
        true => Ok(()),
        false => Err(problem.to_owned()),
    }
}

/// Key generation of the client, the server's answer, and what the client does with that.
fn time_group(group: &Group, duration: Duration) -> Result<Vec<Primitive>, String> {
    let client = Share::new(group)?;
    let answer = client.answer(group)?;
    let keygen = time(duration, || Ok::<_, String>(|| Share::new(group).map(drop)))?;
    let encapsulate = time(duration, || {
        Ok::<_, String>(|| client.answer(group).map(drop))
    })?;
    // A share is good for one secret.
    let decapsulate = time(duration, || {
        let mut client = Share::new(group)?;
        let answer = client.answer(group)?;
        Ok::<_, String>(move || client.finish(&answer))
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
        primitive(Operation::Keygen, keygen, Some(client.length)),
        primitive(Operation::Encapsulate, encapsulate, Some(answer.len())),
        primitive(Operation::Decapsulate, decapsulate, None),
    ])
}

/// CertificateVerify on both sides, and the certificate against the CA.
fn time_signature(
    signature: &Signature,
    directory: &Path,
    duration: Duration,
) -> Result<Vec<Primitive>, String> {
    let file = |name: &str| path(&directory.join(name));
    let (ca, certificate, key) = (file("ca.pem")?, file("server.pem")?, file("server.key")?);
    let mut reason = [0u8; REASON];
    // SAFETY: everything passed is valid during the call. The signer stays as long as the program.
    let signer = unsafe {
        ffi::qp_signer(
            signature.code_point,
            ca.as_ptr(),
            certificate.as_ptr(),
            key.as_ptr(),
            reason.as_mut_ptr().cast(),
            reason.len(),
        )
    };
    if signer.is_null() {
        let length = reason.iter().position(|byte| *byte == 0).unwrap_or(0);
        return Err(String::from_utf8_lossy(&reason[..length]).into_owned());
    }
    let mut length = 0;
    // SAFETY: the signer is valid, here and below.
    let mut sign = || {
        length = unsafe { ffi::qp_sign(signer) };
        succeeded(length > 0, "signing failed")
    };
    sign()?;
    let signing = {
        let sign = std::cell::RefCell::new(&mut sign);
        time(duration, || Ok::<_, String>(|| (sign.borrow_mut())()))?
    };
    let verifying = time(duration, || {
        Ok(|| {
            // SAFETY: as above.
            let good = unsafe { ffi::qp_verify(signer) };
            succeeded(good, "the key is not that of the certificate")
        })
    })?;
    let chain = time(duration, || {
        // SAFETY: as above.
        succeeded(unsafe { ffi::qp_parse(signer) }, "no certificate")?;
        Ok::<_, String>(|| {
            // SAFETY: as above.
            let good = unsafe { ffi::qp_verify_chain(signer) };
            succeeded(good, "the certificate is not that of the CA")
        })
    })?;
    let primitive = |operation, samples_ns, bytes| Primitive {
        kind: "signature",
        name: signature.name.into(),
        operation,
        implementation: of_signature(signature).into(),
        samples_ns,
        bytes,
    };
    // SAFETY: as above.
    let certificate = unsafe { ffi::qp_certificate_length(signer) };
    Ok(vec![
        primitive(Operation::Sign, signing, Some(length)),
        primitive(Operation::Verify, verifying, None),
        primitive(Operation::VerifyChain, chain, Some(certificate)),
    ])
}
