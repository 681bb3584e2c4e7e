//! `--io`: how datagrams pass between a program and the kernel where it is not by GSO and GRO, see `c/io.c`.
//!
//! The command line that all endpoints in Rust share does not have this option. A program that is given it takes it out,
//! and executes itself anew without it.

use std::env;
use std::ffi::{c_char, CStr, OsString};
use std::io::Error;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{self, Command};

use quicbed_contract::exit;

use crate::connection::Address;
use crate::ffi;

const OPTION: &str = "--io";

/// Environment variable by which the program that is executed anew knows what it was given.
const GIVEN: &str = "QUICBED_PICOQUIC_IO";

/// A way of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    /// Many in one call: sendmmsg(2) and recvmmsg(2).
    Mmsg,
    /// Through the rings of io_uring(7).
    IoUring,
    /// Past the kernel's stack, by AF_XDP.
    AfXdp,
}

impl Io {
    const ALL: [Io; 3] = [Io::Mmsg, Io::IoUring, Io::AfXdp];

    /// Value of `--io`.
    pub fn name(self) -> &'static str {
        match self {
            Io::Mmsg => "mmsg",
            Io::IoUring => "io-uring",
            Io::AfXdp => "af-xdp",
        }
    }

    fn of_name(name: &str) -> Option<Io> {
        Io::ALL.into_iter().find(|io| io.name() == name)
    }

    /// As `enum way` of `c/library.h` has it.
    fn number(self) -> u32 {
        match self {
            Io::Mmsg => 1,
            Io::IoUring => 2,
            Io::AfXdp => 3,
        }
    }
}

/// The way that this program was given, if it was.
pub fn given() -> Option<Io> {
    env::var(GIVEN).ok().and_then(|name| Io::of_name(&name))
}

/// Chooses the way that is on the command line. To be called before anything else.
pub fn choose() {
    let (given_here, rest) = match split(env::args_os()) {
        Ok(words) => words,
        Err(reason) => {
            eprintln!("{reason}");
            process::exit(exit::USAGE);
        }
    };
    if let Some(io) = given_here {
        let error = again(io, &rest);
        eprintln!("{OPTION}: cannot execute itself anew: {error}");
        process::exit(exit::FAILED);
    }
    if let Some(io) = given() {
        // SAFETY: it is one of the numbers that there are, and there is no socket yet.
        unsafe { ffi::qp_choose_io(io.number()) };
        if let Some((address, peer)) = place(&rest) {
            let address = Address::from(address);
            // SAFETY: the address is valid during the call.
            unsafe { ffi::qp_choose_place(address.pointer(), peer) };
        }
    }
}

/// The address on a command line by which this end of the link is found, and whether it is that of the peer.
fn place(words: &[OsString]) -> Option<(SocketAddr, bool)> {
    words.windows(2).find_map(|pair| {
        let peer = match pair[0].to_str()? {
            "--connect" => true,
            "--listen" => false,
            _ => return None,
        };
        Some((pair[1].to_str()?.parse().ok()?, peer))
    })
}

/// Why the kernel does not have the way chosen, or `None` if it has.
pub fn cannot() -> Option<String> {
    // SAFETY: has no conditions.
    told(unsafe { ffi::qp_cannot_io() })
}

/// Whether AF_XDP copies frames, and where its program is.
pub fn mode() -> Option<String> {
    // SAFETY: has no conditions.
    told(unsafe { ffi::qp_io_mode() })
}

/// What AF_XDP lost so far. Before a transfer has finished, only what cannot go well is looked for.
pub fn lost(finished: bool) -> Option<String> {
    // SAFETY: has no conditions.
    told(unsafe { ffi::qp_io_lost(finished) })
}

fn told(text: *const c_char) -> Option<String> {
    // SAFETY: it is static, and changes only with the next call.
    (!text.is_null()).then(|| {
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    })
}

/// Executes this program anew with the other words of its command line, and returns only with an error.
fn again(io: Io, rest: &[OsString]) -> Error {
    let own = match env::current_exe() {
        Ok(own) => own,
        Err(error) => return error,
    };
    let mut command = Command::new(own);
    if let Some((name, words)) = rest.split_first() {
        command.arg0(name).args(words);
    }
    // Batches are what is sent in another way, and datagrams come as they are.
    command.args(["--gso", "on", "--gro", "off"]);
    command.env(GIVEN, io.name()).exec()
}

/// The value of the option, if it is there, and all other words.
fn split(words: impl IntoIterator<Item = OsString>) -> Result<(Option<Io>, Vec<OsString>), String> {
    let mut value = None;
    let mut rest = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        if text == OPTION {
            let next = words.next().ok_or(format!("{OPTION}: needs a value"))?;
            value = Some(next.to_string_lossy().into_owned());
        } else if let Some(joined) = text.strip_prefix("--io=") {
            value = Some(joined.to_owned());
        } else {
            rest.push(word);
        }
    }
    let Some(value) = value else {
        return Ok((None, rest));
    };
    let names = Io::ALL.map(Io::name).join(", ");
    let io = Io::of_name(&value).ok_or(format!("{OPTION}: not one of {names}: {value:?}"))?;
    Ok((Some(io), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn the_option_is_taken_out_of_the_command_line() {
        for (line, io, rest) in [
            ("client --gso on", None, "client --gso on"),
            (
                "client --io mmsg --gro off",
                Some(Io::Mmsg),
                "client --gro off",
            ),
            (
                "client --retry on --io=io-uring",
                Some(Io::IoUring),
                "client --retry on",
            ),
        ] {
            assert_eq!(split(words(line)), Ok((io, words(rest))), "{line}");
        }
    }

    #[test]
    fn the_end_of_the_link_is_found_by_the_address_on_the_command_line() {
        let address = "10.0.0.1:4433".parse().unwrap();
        for (line, found) in [
            (
                "client --connect 10.0.0.1:4433 --gro off",
                Some((address, true)),
            ),
            (
                "server --gso on --listen 10.0.0.1:4433",
                Some((address, false)),
            ),
            ("server --listen nowhere", None),
        ] {
            assert_eq!(place(&words(line)), found, "{line}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (line, named) in [
            ("client --io gso", "mmsg, io-uring, af-xdp"),
            ("client --io", "a value"),
        ] {
            let error = split(words(line)).unwrap_err();
            assert!(
                error.starts_with("--io: ") && error.contains(named),
                "{error}"
            );
        }
    }
}
