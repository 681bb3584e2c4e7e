//! Reads a packet capture into a Parquet table, a row a frame, in constant memory.
//!
//! `quicbed-capture CAPTURE OUTPUT --most-unpacked BYTES [--server IP:PORT] [--visible-numbers] [--frames FILE]`
//! prints a summary as JSON and, once a second, a line `progress READ SIZE FRAMES` on standard error. A capture that cannot be read as a
//! whole is one line on standard error and exit code 1; one that ends too early gives the frames before its end.

mod connections;
mod frames;
mod input;
mod plain;
mod quic;
mod reading;
mod table;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use lexopt::prelude::{Long, Value, ValueExt};

/// What the command line asks for.
pub struct Options {
    pub capture: PathBuf,
    pub output: PathBuf,
    /// Bytes to which a compressed capture may unpack.
    pub most_unpacked: u64,
    /// Address of the server, where the caller knows it.
    pub server: Option<SocketAddr>,
    /// Whether packet numbers of short headers are sent as they are, without header protection.
    pub visible_numbers: bool,
    /// Where the frames are written to, as they are read.
    pub frames: Option<PathBuf>,
}

fn options() -> Result<Options, lexopt::Error> {
    let mut files: Vec<PathBuf> = Vec::new();
    let (mut most_unpacked, mut server, mut visible_numbers) = (u64::MAX, None, false);
    let mut frames = None;
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("most-unpacked") => most_unpacked = parser.value()?.parse()?,
            Long("server") => server = Some(parser.value()?.parse()?),
            Long("visible-numbers") => visible_numbers = true,
            Long("frames") => frames = Some(parser.value()?.into()),
            Value(file) => files.push(file.into()),
            other => return Err(other.unexpected()),
        }
    }
    let [capture, output] =
        <[PathBuf; 2]>::try_from(files).map_err(|_| "needs a capture and an output")?;
    Ok(Options {
        capture,
        output,
        most_unpacked,
        server,
        visible_numbers,
        frames,
    })
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    match reading::read(&options) {
        Ok(summary) => {
            println!(
                "{}",
                serde_json::to_string(&summary).expect("a summary is JSON")
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
