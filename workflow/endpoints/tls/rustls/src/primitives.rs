//! Times the operations of a handshake through the objects that rustls calls: [`SupportedKxGroup`], [`Signer`], and the
//! verification algorithms given to rustls-webpki.
//!
//! [`SupportedKxGroup`]: rustls::crypto::SupportedKxGroup

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use quicbed_contract::events::{Events, Role};
use quicbed_contract::exit;
use quicbed_contract::primitives::{time, Operation, Options, Primitive};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::Signer;
use rustls::RootCertStore;
use serde::Serialize;
use webpki::EndEntityCert;

use crate::groups::{self, KeyExchange};
use crate::signatures::{self, Algorithm};

/// What the `start` event tells.
#[derive(Serialize)]
struct InForce<'a> {
    milliseconds: u128,
    groups: &'a [String],
    signatures: Vec<&'a str>,
}

/// Runs the program of a library of this name and version and returns its exit code.
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
    for name in &options.groups {
        match groups::find(name) {
            Some(group) => for_each(
                events,
                time_group(name, &group, options.duration).map_err(|e| format!("{name}: {e}"))?,
            ),
            None => events.unsupported(name, "rustls with ring and liboqs has no such group"),
        }
    }
    for (name, directory) in &options.signatures {
        match signatures::find(name) {
            Some(algorithm) => for_each(
                events,
                time_signature(name, &algorithm, directory, options.duration)
                    .map_err(|error| format!("{name}: {}: {error}", directory.display()))?,
            ),
            None => events.unsupported(name, "rustls with ring and liboqs has no such signature"),
        }
    }
    Ok(())
}

fn for_each(events: &mut Events, primitives: Vec<Primitive>) {
    for primitive in &primitives {
        events.primitive(primitive);
    }
}

/// Key generation of the client, the server's answer, and what the client does with that.
fn time_group(
    name: &str,
    key_exchange: &KeyExchange,
    duration: Duration,
) -> Result<Vec<Primitive>, rustls::Error> {
    let group = key_exchange.group;
    let client = group.start()?.pub_key().to_vec();
    let server = group.start_and_complete(&client)?.pub_key;
    let primitive = |operation, samples_ns, bytes| Primitive {
        kind: "group",
        name: name.into(),
        operation,
        implementation: key_exchange.implementation.clone(),
        samples_ns,
        bytes,
    };
    let keygen = time(duration, || Ok(|| group.start().map(drop)))?;
    let encapsulate = time(duration, || {
        Ok(|| group.start_and_complete(&client).map(drop))
    })?;
    let decapsulate = time(duration, || {
        let active = group.start()?;
        let answer = group.start_and_complete(active.pub_key())?.pub_key;
        Ok(move || active.complete(&answer).map(drop))
    })?;
    Ok(vec![
        primitive(Operation::Keygen, keygen, Some(client.len())),
        primitive(Operation::Encapsulate, encapsulate, Some(server.len())),
        primitive(Operation::Decapsulate, decapsulate, None),
    ])
}

/// CertificateVerify on both sides, and the certificate against the CA.
fn time_signature(
    name: &str,
    algorithm: &Algorithm,
    directory: &Path,
    duration: Duration,
) -> Result<Vec<Primitive>, String> {
    let (ca, certificate) = (directory.join("ca.pem"), directory.join("server.pem"));
    let mut roots = RootCertStore::empty();
    for trusted in certificates(&ca)? {
        roots.add(trusted).map_err(one_line)?;
    }
    let key = PrivateKeyDer::from_pem_file(directory.join("server.key")).map_err(one_line)?;
    let certified = algorithm.certified_key(certificates(&certificate)?, key)?;
    let (leaf, intermediates) = certified
        .cert
        .split_first()
        .ok_or("there is no certificate")?;
    let choose = || -> Result<Box<dyn Signer>, String> {
        let signer = certified.key.choose_scheme(&[algorithm.scheme()]);
        signer.ok_or_else(|| "the key does not sign".into())
    };
    let message = certificate_verify_content();
    let signature = choose()?.sign(&message).map_err(one_line)?;
    let (_, verification) = algorithm.verification.mapping[0];

    let sign = time(duration, || {
        let signer = choose()?;
        let message = &message;
        Ok::<_, String>(move || signer.sign(message).map(drop).map_err(one_line))
    })?;
    let verify = time(duration, || {
        Ok(|| {
            EndEntityCert::try_from(leaf)
                .and_then(|leaf| leaf.verify_signature(verification[0], &message, &signature))
                .map_err(one_line)
        })
    })?;
    let chain = time(duration, || {
        Ok(|| {
            let parsed = ParsedCertificate::try_from(leaf).map_err(one_line)?;
            verify_server_cert_signed_by_trust_anchor(
                &parsed,
                &roots,
                intermediates,
                UnixTime::now(),
                algorithm.verification.all,
            )
            .map_err(one_line)
        })
    })?;
    let primitive = |operation, samples_ns, bytes| Primitive {
        kind: "signature",
        name: name.into(),
        operation,
        implementation: algorithm.implementation.into(),
        samples_ns,
        bytes,
    };
    Ok(vec![
        primitive(Operation::Sign, sign, Some(signature.len())),
        primitive(Operation::Verify, verify, None),
        primitive(Operation::VerifyChain, chain, Some(leaf.len())),
    ])
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect)
        .map_err(|error| format!("{}: {error}", file.display()))
}

/// What a server signs: 64 spaces, a context string, a zero and the transcript hash, of SHA-256 here (RFC 8446, section
/// 4.4.3).
fn certificate_verify_content() -> Vec<u8> {
    let context: &[u8] = b"TLS 1.3, server CertificateVerify\0";
    [&[0x20; 64][..], context, &[0xa5; 32]].concat()
}

fn one_line(error: impl Display) -> String {
    error.to_string()
}
