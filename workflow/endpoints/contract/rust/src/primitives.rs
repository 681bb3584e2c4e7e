//! The `primitives` program of the contract: its command line, and the timing of one operation.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process;
use std::time::Duration;

use lexopt::prelude::*;
use serde::Serialize;

use crate::clock::now_ns;
use crate::exit;
use crate::options::{arguments, number, required, text, UsageError};

/// Repetitions of an operation, whatever its duration.
const REPETITIONS: std::ops::RangeInclusive<usize> = 5..=1_000;

/// What a command line asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    pub events: PathBuf,
    /// Time to spend on one operation.
    pub duration: Duration,
    /// Groups, by name in the table of algorithms.
    pub groups: Vec<String>,
    /// Signature algorithms, with the directory of ca.pem, server.pem and server.key.
    pub signatures: Vec<(String, PathBuf)>,
}

impl Options {
    /// Reads the command line of this process. Does not return for a wrong one.
    pub fn from_command_line() -> Options {
        Options::parse(arguments()).unwrap_or_else(|error| {
            eprintln!("{error}");
            process::exit(exit::USAGE);
        })
    }

    /// Parses arguments without the name of the program.
    pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Options, UsageError> {
        let mut options = Options {
            events: PathBuf::from("-"),
            duration: Duration::from_millis(20),
            groups: Vec::new(),
            signatures: Vec::new(),
        };
        let mut parser = lexopt::Parser::from_args(arguments);
        while let Some(argument) = parser.next()? {
            let Long(name) = argument else {
                return Err(argument.unexpected().into());
            };
            let name = name.to_owned();
            match name.as_str() {
                "events" => options.events = PathBuf::from(parser.value()?),
                "milliseconds" => {
                    let milliseconds = number(&name, &mut parser, 1..=60_000)?;
                    options.duration = Duration::from_millis(milliseconds);
                }
                "group" => options.groups.push(text(&name, &mut parser)?),
                "signature" => {
                    let value = text(&name, &mut parser)?;
                    let (algorithm, directory) = value.split_once('=').unzip();
                    options.signatures.push((
                        required("signature NAME=DIRECTORY", algorithm)?.to_owned(),
                        required("signature NAME=DIRECTORY", directory)?.into(),
                    ));
                }
                _ => return Err(UsageError::unknown(&name)),
            }
        }
        Ok(options)
    }
}

/// An operation of a group or a signature algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// The client's key share.
    Keygen,
    /// The server's share, and the secret it has in common with the client.
    Encapsulate,
    /// The client's side of the secret.
    Decapsulate,
    /// The server's CertificateVerify.
    Sign,
    /// The client's check of CertificateVerify.
    Verify,
    /// The client's check of the certificate against the CA.
    VerifyChain,
}

/// Times of one operation.
#[derive(Clone, Debug, Serialize)]
pub struct Primitive {
    /// `group` or `signature`.
    pub kind: &'static str,
    pub name: String,
    pub operation: Operation,
    /// What computes it, with its version.
    pub implementation: String,
    pub samples_ns: Vec<u64>,
    /// Size of what goes on the wire.
    pub bytes: Option<usize>,
}

/// Times `repetition`, which prepares the operation and returns it, for about `duration`, five times at least and 1000
/// times at most, after one repetition that does not count. Only the operation itself is timed.
///
/// # Errors
/// The first error of the operation ends the timing.
pub fn time<Operation, Error>(
    duration: Duration,
    mut prepare: impl FnMut() -> Result<Operation, Error>,
) -> Result<Vec<u64>, Error>
where
    Operation: FnOnce() -> Result<(), Error>,
{
    prepare()?()?;
    let begin = now_ns();
    let mut samples = Vec::new();
    while samples.len() < *REPETITIONS.start()
        || (samples.len() < *REPETITIONS.end()
            && u128::from(now_ns() - begin) < duration.as_nanos())
    {
        let operation = prepare()?;
        let start = now_ns();
        operation()?;
        samples.push(now_ns() - start);
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(line.split_whitespace().map(OsString::from)).map_err(|e| e.to_string())
    }

    #[test]
    fn algorithms_are_taken_in_order() {
        let options = parse(
            "--group x25519 --milliseconds 7 --signature ed25519=a/b --group p-256 --events e.jsonl",
        )
        .unwrap();
        assert_eq!(options.groups, ["x25519", "p-256"]);
        assert_eq!(options.signatures, [("ed25519".into(), "a/b".into())]);
        assert_eq!(options.duration, Duration::from_millis(7));
        assert_eq!(options.events, PathBuf::from("e.jsonl"));
    }

    #[test]
    fn mistakes_are_named() {
        for (line, named) in [
            ("--signature ed25519", "NAME=DIRECTORY"),
            ("--groups x25519", "--groups"),
            ("--milliseconds 0", "--milliseconds"),
            ("x25519", "x25519"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(named), "{line}: {error}");
        }
    }

    #[test]
    fn repetitions_have_bounds() {
        let mut count = 0;
        let quick = time(Duration::from_secs(60), || {
            count += 1;
            Ok::<_, ()>(|| Ok(()))
        });
        assert_eq!(quick.unwrap().len(), *REPETITIONS.end());
        assert_eq!(count, REPETITIONS.end() + 1);
        let slow = time(Duration::from_millis(1), || {
            Ok::<_, ()>(|| {
                std::thread::sleep(Duration::from_millis(2));
                Ok(())
            })
        });
        assert_eq!(slow.unwrap().len(), *REPETITIONS.start());
    }

    #[test]
    fn an_error_ends_the_timing() {
        let failing = time(Duration::from_secs(60), || Ok(|| Err("no")));
        assert_eq!(failing, Err("no"));
    }
}
