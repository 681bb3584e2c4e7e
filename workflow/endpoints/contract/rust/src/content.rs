//! The content every server sends and every client checks: records of 16 ASCII bytes that name their own position, so
//! that a flipped, swapped, missing or repeated byte is noticed, and that can be recognised in a packet capture.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const RECORD: usize = 16;

/// A prime number of records, so that no power-of-two chunk is a whole number of periods.
const RECORDS: usize = 4093;

/// Length in bytes after which the content repeats.
pub const PERIOD: usize = RECORD * RECORDS;

const PERIODS: usize = 16;

/// Most bytes of content that can be borrowed in one piece, about 1 MB.
pub const LONGEST: usize = PERIODS * PERIOD;

/// One period more than can be borrowed, so that a piece can begin at any offset.
fn buffer() -> &'static [u8] {
    static BUFFER: OnceLock<Vec<u8>> = OnceLock::new();
    BUFFER.get_or_init(|| {
        let period: Vec<u8> = (0..RECORDS)
            .flat_map(|i| format!("quicbed{i:08x}\n").into_bytes())
            .collect();
        period.repeat(PERIODS + 1)
    })
}

/// Content from `offset` on: `max` bytes, but at most [`LONGEST`].
pub fn slice_at(offset: u64, max: usize) -> &'static [u8] {
    let start = (offset % PERIOD as u64) as usize;
    &buffer()[start..start + max.min(LONGEST)]
}

/// What a request asks for: content made in memory, or a file of `--www`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Body {
    length: u64,
    file: Option<&'static [u8]>,
}

impl Body {
    /// The first `length` bytes of content.
    pub fn made(length: u64) -> Body {
        Body { length, file: None }
    }

    pub fn of_file(file: &'static [u8]) -> Body {
        Body {
            length: file.len() as u64,
            file: Some(file),
        }
    }

    /// Bytes of it.
    pub fn length(self) -> u64 {
        self.length
    }

    /// All of it where it is a file.
    pub fn file(self) -> Option<&'static [u8]> {
        self.file
    }

    /// From `offset`, which is not behind the end, on: `max` bytes, but at most [`LONGEST`].
    pub fn slice_at(self, offset: u64, max: usize) -> &'static [u8] {
        match self.file {
            None => slice_at(offset, max),
            Some(file) => {
                let rest = &file[offset as usize..];
                &rest[..rest.len().min(max).min(LONGEST)]
            }
        }
    }
}

/// Why received bytes are not the content asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The first wrong byte is at this offset.
    Byte(u64),
    /// Fewer or more bytes than asked for.
    Length { expected: u64, received: u64 },
    /// What was received could not be written to the file of `--save`.
    NotSaved(String),
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mismatch::Byte(offset) => write!(f, "content differs at byte {offset}"),
            Mismatch::Length { expected, received } => {
                write!(
                    f,
                    "received {received} bytes of content instead of {expected}"
                )
            }
            Mismatch::NotSaved(reason) => write!(f, "--save {reason}"),
        }
    }
}

/// Compares what a client receives, in order, with the content, or saves it.
#[derive(Debug)]
pub struct Checker {
    expected: u64,
    received: u64,
    differs_at: Option<u64>,
    saved: Option<Saved>,
}

impl Checker {
    pub fn new(expected: u64) -> Checker {
        buffer();
        Checker {
            expected,
            received: 0,
            differs_at: None,
            saved: None,
        }
    }

    /// Writes what is received to a new file, compares nothing, and expects any number of bytes.
    pub fn saving(path: &Path) -> Checker {
        Checker {
            saved: Some(Saved::new(path)),
            ..Checker::new(u64::MAX)
        }
    }

    /// Bytes asked for; of a file that is saved, which has no size before its end, those received so far.
    pub fn requested(&self) -> u64 {
        match self.saved {
            Some(_) => self.received,
            None => self.expected,
        }
    }

    /// Bytes received so far.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Takes the next bytes of the stream.
    pub fn receive(&mut self, mut bytes: &[u8]) {
        if let Some(saved) = &mut self.saved {
            saved.take(bytes);
            self.received += bytes.len() as u64;
            return;
        }
        while !bytes.is_empty() {
            let expected = slice_at(self.received, bytes.len());
            let (now, later) = bytes.split_at(expected.len());
            if self.differs_at.is_none() && now != expected {
                let position = now.iter().zip(expected).position(|(a, b)| a != b);
                self.differs_at = position.map(|i| self.received + i as u64);
            }
            self.received += now.len() as u64;
            bytes = later;
        }
    }

    /// The verdict when the stream has ended.
    pub fn verdict(&self) -> Result<(), Mismatch> {
        if let Some(saved) = &self.saved {
            return saved.finish().map_err(Mismatch::NotSaved);
        }
        match self.differs_at {
            Some(offset) => Err(Mismatch::Byte(offset)),
            None if self.received != self.expected => Err(Mismatch::Length {
                expected: self.expected,
                received: self.received,
            }),
            None => Ok(()),
        }
    }
}

/// Bytes that are written to a saved file at once.
const SAVED_AT_ONCE: usize = 1 << 20;

/// A file that a download is written to.
#[derive(Debug)]
struct Saved {
    path: PathBuf,
    file: io::Result<File>,
    /// Bytes in the file, and those that are still to be written behind them.
    written: u64,
    waiting: Vec<u8>,
}

impl Saved {
    fn new(path: &Path) -> Saved {
        Saved {
            path: path.into(),
            file: File::create(path),
            written: 0,
            waiting: Vec::with_capacity(2 * SAVED_AT_ONCE),
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        self.waiting.extend_from_slice(bytes);
        if self.waiting.len() < SAVED_AT_ONCE {
            return;
        }
        if let Err(error) = self.write() {
            self.file = Err(error);
        }
        self.written += self.waiting.len() as u64;
        self.waiting.clear();
    }

    /// Writes the rest, once more where it was written already.
    fn finish(&self) -> Result<(), String> {
        let told = |error: &io::Error| format!("{}: {error}", self.path.display());
        match &self.file {
            Err(error) => Err(told(error)),
            Ok(_) => self.write().map_err(|error| told(&error)),
        }
    }

    fn write(&self) -> io::Result<()> {
        match &self.file {
            Ok(file) => file.write_all_at(&self.waiting, self.written),
            Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The content spelled out from its definition, independent of the buffer.
    fn reference(offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut record = offset / RECORD;
        while bytes.len() < length + RECORD {
            bytes.extend_from_slice(format!("quicbed{:08x}\n", record % 4093).as_bytes());
            record += 1;
        }
        bytes[offset % RECORD..][..length].to_vec()
    }

    fn received(bytes: &[u8], expected: u64, chunk: usize) -> Result<(), Mismatch> {
        let mut checker = Checker::new(expected);
        bytes.chunks(chunk).for_each(|c| checker.receive(c));
        checker.verdict()
    }

    #[test]
    fn period_is_that_of_the_contract() {
        assert_eq!(PERIOD, 65_488);
        assert_eq!(slice_at(0, 32), b"quicbed00000000\nquicbed00000001\n");
        assert_eq!(slice_at(PERIOD as u64 - 1, 9), b"\nquicbed0");
    }

    #[test]
    fn slices_follow_the_definition_at_any_offset() {
        for offset in [0, 1, 15, 16, 4_097, PERIOD - 1, PERIOD, 5 * PERIOD + 77] {
            let slice = slice_at(offset as u64, 2_000_000);
            assert_eq!(slice.len(), LONGEST);
            assert_eq!(slice, reference(offset, LONGEST), "offset {offset}");
        }
    }

    #[test]
    fn intact_content_passes_in_chunks_of_any_size() {
        let bytes = reference(0, 200_000);
        for chunk in [1, 7, 1_350, 65_488, 100_000, 200_000] {
            assert_eq!(received(&bytes, 200_000, chunk), Ok(()), "chunk {chunk}");
        }
        assert_eq!(received(&[], 0, 1), Ok(()));
    }

    #[test]
    fn flipped_byte_is_found() {
        for position in [0, 1, 65_487, 65_488, 131_000] {
            let mut bytes = reference(0, 131_001);
            bytes[position] ^= 1;
            let verdict = received(&bytes, 131_001, 1_350);
            assert_eq!(verdict, Err(Mismatch::Byte(position as u64)));
        }
    }

    #[test]
    fn swapped_packets_are_found() {
        let bytes = reference(0, 4_000);
        let swapped = [&bytes[1_000..2_000], &bytes[..1_000], &bytes[2_000..]].concat();
        assert!(matches!(
            received(&swapped, 4_000, 1_000),
            Err(Mismatch::Byte(_))
        ));
    }

    #[test]
    fn a_body_is_content_or_a_file() {
        assert_eq!(Body::made(5).slice_at(1, 4), b"uicb");
        let file: &'static [u8] = Box::leak(vec![7; LONGEST + 3].into_boxed_slice());
        let body = Body::of_file(file);
        assert_eq!(body.length(), LONGEST as u64 + 3);
        assert_eq!(body.slice_at(0, 2 * LONGEST).len(), LONGEST);
        assert_eq!(body.slice_at(LONGEST as u64, PERIOD), [7; 3]);
        assert!(body.slice_at(body.length(), PERIOD).is_empty());
    }

    #[test]
    fn what_is_saved_is_in_the_file() {
        let path = std::env::temp_dir().join(format!("quicbed-saved-{}", std::process::id()));
        let bytes: Vec<u8> = (0..SAVED_AT_ONCE + 70_000)
            .map(|i| (i % 251) as u8)
            .collect();
        let mut checker = Checker::saving(&path);
        bytes.chunks(1_350).for_each(|c| checker.receive(c));
        assert_eq!(checker.verdict(), Ok(()));
        assert_eq!(checker.verdict(), Ok(()));
        assert_eq!(checker.requested(), bytes.len() as u64);
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        std::fs::remove_file(&path).unwrap();

        let mut nowhere = Checker::saving(&path.join("file"));
        nowhere.receive(&bytes);
        let reason = nowhere.verdict().unwrap_err().to_string();
        assert!(reason.starts_with("--save "), "{reason}");
    }

    #[test]
    fn wrong_length_is_found() {
        let bytes = reference(0, 1_001);
        for length in [999, 1_001] {
            let expected = Err(Mismatch::Length {
                expected: 1_000,
                received: length,
            });
            assert_eq!(received(&bytes[..length as usize], 1_000, 100), expected);
        }
    }
}
