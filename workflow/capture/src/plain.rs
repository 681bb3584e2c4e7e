//! Frames as a pcap file that is not compressed, for whoever opens packets with keys.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

const MAGIC_NS: u32 = 0xa1b2_3c4d;
const NS_PER_S: i64 = 1_000_000_000;
/// Longest frame of which this makes no promise to whoever reads it.
const SNAP: u32 = 262_144;

/// A pcap file with nanoseconds, of one type of link: that of the first frame.
pub struct Plain {
    out: BufWriter<File>,
    link: Option<i32>,
}

impl Plain {
    pub fn create(path: &Path) -> Result<Plain, String> {
        let file = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Plain {
            out: BufWriter::new(file),
            link: None,
        })
    }

    /// Adds frame `number`; one without a time, or with one beyond what pcap can say, has the time 0.
    pub fn frame(
        &mut self,
        number: i64,
        link: i32,
        time_ns: Option<i64>,
        wire: u32,
        data: &[u8],
    ) -> Result<(), String> {
        let written = |error: std::io::Error| format!("frames for the key log: {error}");
        match self.link {
            None => {
                self.link = Some(link);
                self.numbers(&[MAGIC_NS, 4 << 16 | 2, 0, 0, SNAP, link as u32])
                    .map_err(written)?;
            }
            Some(first) if first != link => {
                return Err(format!(
                    "frame {number} is of link type {link} and those before of {first}; to open packets with keys, \
                     capture on one interface"
                ));
            }
            Some(_) => {}
        }
        let ns = time_ns.unwrap_or(0).max(0);
        let (seconds, rest) = match u32::try_from(ns / NS_PER_S) {
            Ok(seconds) => (seconds, (ns % NS_PER_S) as u32),
            Err(_) => (0, 0),
        };
        self.numbers(&[seconds, rest, data.len() as u32, wire])
            .and_then(|()| self.out.write_all(data))
            .map_err(written)
    }

    fn numbers(&mut self, numbers: &[u32]) -> std::io::Result<()> {
        for number in numbers {
            self.out.write_all(&number.to_le_bytes())?;
        }
        Ok(())
    }

    pub fn close(mut self) -> Result<(), String> {
        self.out
            .flush()
            .map_err(|error| format!("frames for the key log: {error}"))
    }
}
