//! The content every server sends and every client checks: records of 16 ASCII bytes that name their own position, so
//! that a flipped, swapped, missing or repeated byte is noticed, and that can be recognised in a packet capture.

use std::fmt;
use std::sync::OnceLock;

const RECORD: usize = 16;

/// A prime number of records, so that no power-of-two chunk is a whole number of periods.
const RECORDS: usize = 4093;

/// Length in bytes after which the content repeats.
pub const PERIOD: usize = RECORD * RECORDS;

/// Two periods, so that a whole period can be borrowed in one piece from any offset. It stays in the L2 cache.
fn buffer() -> &'static [u8] {
    static BUFFER: OnceLock<Vec<u8>> = OnceLock::new();
    BUFFER.get_or_init(|| {
        (0..2 * RECORDS)
            .flat_map(|i| format!("quicbed{:08x}\n", i % RECORDS).into_bytes())
            .collect()
    })
}

/// Content from `offset` on: `max` bytes, but at most one [`PERIOD`].
pub fn slice_at(offset: u64, max: usize) -> &'static [u8] {
    let start = (offset % PERIOD as u64) as usize;
    &buffer()[start..start + max.min(PERIOD)]
}

/// Why received bytes are not the content asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The first wrong byte is at this offset.
    Byte(u64),
    /// Fewer or more bytes than asked for.
    Length { expected: u64, received: u64 },
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
        }
    }
}

/// Compares what a client receives, in order, with the content.
#[derive(Clone, Debug)]
pub struct Checker {
    expected: u64,
    received: u64,
    differs_at: Option<u64>,
}

impl Checker {
    pub fn new(expected: u64) -> Checker {
        buffer();
        Checker {
            expected,
            received: 0,
            differs_at: None,
        }
    }

    /// Bytes received so far.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Takes the next bytes of the stream.
    pub fn receive(&mut self, mut bytes: &[u8]) {
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
            let slice = slice_at(offset as u64, 70_000);
            assert_eq!(slice.len(), PERIOD);
            assert_eq!(slice, reference(offset, PERIOD), "offset {offset}");
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
