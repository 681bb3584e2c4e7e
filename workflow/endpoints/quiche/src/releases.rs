//! What quiche's pacer meant: when each datagram was to leave, for whoever compares it with a capture
//! (workflow/endpoints/ENDPOINT.md, "Release times").

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use quicbed_contract::clock::now_ns;

/// Names the file; without it nothing is noted.
pub const VARIABLE: &str = "QUICBED_RELEASE_TIMES";

const MAGIC: &[u8; 8] = b"qbreleas";
const VERSION: u32 = 1;
const RECORD_BYTES: usize = 24;

/// Datagrams of a connection that are noted; memory and file are bounded by it.
const MOST: usize = 1 << 19;

/// Bytes of a datagram that it is recognised by.
const TELLING: usize = 64;

/// FNV-1a of the first bytes of a datagram.
fn fingerprint(datagram: &[u8]) -> u64 {
    let telling = &datagram[..datagram.len().min(TELLING)];
    telling.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Datagrams of a connection in the order in which they were written; they go to the file when the connection is dropped.
pub struct Releases {
    file: PathBuf,
    began: (Instant, u64),
    records: Vec<u8>,
    /// When the datagram before was to leave, if that is known.
    last: Option<Instant>,
}

impl Releases {
    /// For the file that the environment names, if it does.
    pub fn wanted() -> Option<Releases> {
        std::env::var_os(VARIABLE).map(|file| Releases::new(Path::new(&file)))
    }

    fn new(file: &Path) -> Releases {
        Releases {
            file: file.to_owned(),
            began: (Instant::now(), now_ns()),
            records: Vec::new(),
            last: None,
        }
    }

    /// When the datagram before was to leave, if that is known.
    pub fn last(&self) -> Option<Instant> {
        self.last
    }

    /// Notes a datagram that was to leave at a time, or `None` where it might leave at once.
    pub fn note(&mut self, datagram: &[u8], intended: Option<Instant>) {
        self.last = intended;
        if self.records.len() == MOST * RECORD_BYTES {
            return;
        }
        let (instant, ns) = self.began;
        let at = intended.map_or(0, |at| {
            ns + at.saturating_duration_since(instant).as_nanos() as u64
        });
        self.records.extend(fingerprint(datagram).to_le_bytes());
        self.records.extend(at.to_le_bytes());
        self.records.extend((datagram.len() as u64).to_le_bytes());
    }

    fn write(&self) -> io::Result<()> {
        let mut open = OpenOptions::new();
        let mut file = open.create(true).append(true).open(&self.file)?;
        if file.metadata()?.len() == 0 {
            file.write_all(MAGIC)?;
            file.write_all(&VERSION.to_le_bytes())?;
            file.write_all(&(RECORD_BYTES as u32).to_le_bytes())?;
        }
        file.write_all(&self.records)
    }
}

impl Drop for Releases {
    fn drop(&mut self) {
        if let Err(error) = self.write() {
            eprintln!("{}: {error}", self.file.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_fingerprint_is_that_of_the_contract() {
        assert_eq!(fingerprint(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fingerprint(b"foobar"), 0x8594_4171_f739_67e8);
        let long = [7; 100];
        assert_eq!(fingerprint(&long), fingerprint(&long[..TELLING]));
    }

    #[test]
    fn what_was_meant_is_in_the_file_in_order() {
        let name = format!("quicbed-releases-{}", std::process::id());
        let file = std::env::temp_dir().join(name);
        let mut releases = Releases::new(&file);
        let (instant, ns) = releases.began;
        releases.note(b"foobar", Some(instant + Duration::from_micros(5)));
        assert_eq!(releases.last(), Some(instant + Duration::from_micros(5)));
        releases.note(b"", None);
        assert_eq!(releases.last(), None);
        drop(releases);
        drop(Releases::new(&file));
        let content = std::fs::read(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let word = |at: usize| u64::from_le_bytes(content[at..at + 8].try_into().unwrap());
        assert_eq!(&content[..8], MAGIC);
        assert_eq!(content[8..16], [1, 0, 0, 0, 24, 0, 0, 0]);
        assert_eq!(content.len(), 16 + 2 * RECORD_BYTES);
        assert_eq!((word(24), word(32)), (ns + 5_000, 6));
        assert_eq!((word(48), word(56)), (0, 0));
    }

    #[test]
    fn no_more_than_there_is_room_for_is_noted() {
        let mut releases = Releases::new(Path::new("/dev/null"));
        releases.records = vec![0; MOST * RECORD_BYTES];
        releases.note(b"foobar", None);
        assert_eq!(releases.records.len(), MOST * RECORD_BYTES);
    }
}
