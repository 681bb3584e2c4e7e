//! What a client receives, whatever library it comes from.

use quicbed_contract::clock::{now_ns, CpuTime};
use quicbed_contract::content::Checker;

/// The content of a download.
#[derive(Debug)]
pub struct Transfer {
    pub(crate) checker: Checker,
    pub(crate) finished: bool,
    pub(crate) reset: Option<u64>,
    pub(crate) t_first_byte: Option<u64>,
    pub(crate) t_last_byte: Option<u64>,
    pub(crate) cpu_at_end: Option<CpuTime>,
}

impl Transfer {
    pub fn new(checker: Checker) -> Transfer {
        Transfer {
            checker,
            finished: false,
            reset: None,
            t_first_byte: None,
            t_last_byte: None,
            cpu_at_end: None,
        }
    }

    /// Bytes have arrived, in order; `last` with the end of the stream.
    pub fn received(&mut self, bytes: &[u8], last: bool) {
        if !bytes.is_empty() {
            let now = now_ns();
            self.t_first_byte.get_or_insert(now);
            self.t_last_byte = Some(now);
        }
        if last {
            self.cpu_at_end = Some(CpuTime::now());
            self.finished = true;
        }
        self.checker.receive(bytes);
    }

    /// The server has given up sending.
    pub fn reset(&mut self, code: u64) {
        self.reset = Some(code);
    }

    pub fn is_finished(&self) -> bool {
        self.finished
    }
}
