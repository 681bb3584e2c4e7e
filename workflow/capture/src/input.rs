//! The bytes of a capture, unpacked, with a bound on how many there are.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::Path;
use std::rc::Rc;

const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// Largest window of a Zstandard frame, as its logarithm: what `zstd` itself unpacks without being asked for more.
const ZSTD_WINDOW_LOG: u32 = 27;
const PACKED_BUFFER: usize = 1 << 17;

/// What is known of the reading so far, shared with whoever reads.
#[derive(Default)]
pub struct State {
    /// Bytes taken from the file.
    pub taken: Cell<u64>,
    /// Why reading failed.
    pub error: RefCell<Option<String>>,
    /// Whether the compressed data end before they are whole.
    pub cut: Cell<bool>,
}

struct Counted {
    file: File,
    state: Rc<State>,
}

impl Read for Counted {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        let size = self.file.read(space)?;
        self.state.taken.set(self.state.taken.get() + size as u64);
        Ok(size)
    }
}

/// Bytes of a capture. Every read fills its buffer, except at the end.
pub struct Input {
    source: Box<dyn Read>,
    left: u64,
    most: u64,
    state: Rc<State>,
}

/// How the file is compressed.
pub type Packing = Option<&'static str>;

impl Input {
    /// Opens a capture that may unpack to `most` bytes; returns how it is compressed, and the file's size.
    pub fn open(path: &Path, most: u64) -> io::Result<(Input, Rc<State>, Packing, u64)> {
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        let state = Rc::new(State::default());
        let mut buffered = BufReader::with_capacity(
            PACKED_BUFFER,
            Counted {
                file,
                state: state.clone(),
            },
        );
        let start = buffered.fill_buf()?;
        let (source, packing, left): (Box<dyn Read>, Packing, u64) = if start.starts_with(GZIP) {
            (
                Box::new(flate2::bufread::MultiGzDecoder::new(buffered)),
                Some("gzip"),
                most,
            )
        } else if start.starts_with(ZSTD) {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(buffered)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG)?;
            (Box::new(decoder), Some("zstd"), most)
        } else {
            (Box::new(buffered), None, u64::MAX)
        };
        Ok((
            Input {
                source,
                left,
                most,
                state: state.clone(),
            },
            state,
            packing,
            size,
        ))
    }
}

impl Read for Input {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < space.len() {
            match self.source.read(&mut space[filled..]) {
                Ok(0) => break,
                Ok(size) => filled += size,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    self.state.cut.set(true);
                    break;
                }
                Err(error) => {
                    self.state
                        .error
                        .replace(Some(format!("cannot be read: {error}")));
                    return Err(error);
                }
            }
        }
        match self.left.checked_sub(filled as u64) {
            Some(left) => self.left = left,
            None => {
                let text = format!(
                    "unpacks to more than {} bytes, which no capture of its size does; \
                     unpack it by hand if you trust it",
                    self.most
                );
                self.state.error.replace(Some(text.clone()));
                return Err(io::Error::other(text));
            }
        }
        Ok(filled)
    }
}
