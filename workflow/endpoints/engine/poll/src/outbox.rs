//! Between a library and the socket: packets are put together into batches, and a batch that the socket would not take is
//! kept until it does.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;

use quicbed_contract::options::{CommonOptions, Gso};
use quicbed_contract::udp::{Socket, MAX_BATCH_BYTES, MAX_BATCH_SEGMENTS};

use crate::{Connection, Failed};

/// Datagrams and bytes of UDP payload through the socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub datagrams: u64,
    pub bytes: u64,
}

impl Traffic {
    pub fn add(&mut self, datagram: usize) {
        self.datagrams += 1;
        self.bytes += datagram as u64;
    }
}

/// One batch of datagrams on its way to the socket.
#[derive(Debug)]
pub struct Outbox {
    buffer: Vec<u8>,
    waiting: Range<usize>,
    segment: usize,
    to: SocketAddr,
    /// When the kernel is to let it go.
    departure: Option<u64>,
    max_segments: usize,
    /// Whether a batch holds only what may leave at one time.
    paced: bool,
}

impl Outbox {
    /// For the datagrams that `options` ask for, several a call if `gso`.
    pub fn new(gso: bool, options: &CommonOptions) -> Outbox {
        let udp_payload = options.udp_payload;
        let max_segments = match gso {
            true => (MAX_BATCH_BYTES / udp_payload).clamp(1, MAX_BATCH_SEGMENTS),
            false => 1,
        };
        Outbox {
            buffer: vec![0; max_segments * udp_payload],
            waiting: 0..0,
            segment: udp_payload,
            to: SocketAddr::from(([0, 0, 0, 0], 0)),
            departure: None,
            max_segments,
            paced: options.gso == Gso::Paced,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Throws away what is waiting, for a socket that is no more.
    pub fn clear(&mut self) {
        self.waiting = 0..0;
    }

    /// Fills the empty outbox with the next packets of a connection, at most `most` bytes if more than one datagram, and
    /// counts them. Only datagrams of one size can go together: the batch ends with the first that is not full. Returns
    /// the number of bytes, 0 if there was nothing to send; what there is before an error is in the outbox all the same.
    pub fn fill(
        &mut self,
        connection: &mut impl Connection,
        most: usize,
        sent: &mut Traffic,
    ) -> Result<usize, Failed> {
        debug_assert!(self.is_empty());
        let full = connection.datagram_size();
        self.departure = connection.departure();
        let mut end = 0;
        let mut result = Ok(());
        for _ in 0..self.max_segments {
            if end > 0 && (end + full > most || !self.may_join(connection)) {
                break;
            }
            let Some(space) = self.buffer.get_mut(end..end + full) else {
                break;
            };
            match connection.write(space) {
                Ok(0) => break,
                Ok(length) => {
                    end += length;
                    sent.add(length);
                    if length < full {
                        break;
                    }
                }
                Err(failed) => {
                    result = Err(failed);
                    break;
                }
            }
        }
        self.segment = full;
        self.to = connection.peer();
        self.waiting = 0..end;
        result.map(|()| end)
    }

    fn may_join(&self, connection: &impl Connection) -> bool {
        let departure = self.departure.filter(|_| self.paced);
        departure.is_none_or(|departure| connection.leaves_with(departure))
    }

    /// Puts a datagram that belongs to no connection into the empty outbox, as `write` makes it in the space given; nothing
    /// for a length of 0.
    pub fn put(&mut self, to: SocketAddr, write: impl FnOnce(&mut [u8]) -> usize) -> usize {
        debug_assert!(self.is_empty());
        let length = write(&mut self.buffer);
        self.segment = length.max(1);
        self.waiting = 0..length;
        self.to = to;
        self.departure = None;
        length
    }

    /// Hands what is waiting to the socket. Returns false if the socket would block, some or all is then still waiting.
    pub fn flush(&mut self, socket: &Socket) -> io::Result<bool> {
        if !self.waiting.is_empty() {
            self.waiting.start += socket.send(
                &self.buffer[self.waiting.clone()],
                self.segment,
                self.to,
                self.departure,
            )?;
        }
        Ok(self.waiting.is_empty())
    }
}
