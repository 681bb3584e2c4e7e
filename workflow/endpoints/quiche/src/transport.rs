//! Between quiche and the socket: packets are put together into batches, and a batch that the socket would not take is
//! kept until it does.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;

use bytes::Bytes;
use quicbed_contract::udp::{Socket, MAX_BATCH_BYTES, MAX_BATCH_SEGMENTS};

/// A connection that sends content from where it lies: quiche then copies it only into packets, and not first into a
/// buffer of its own that outgrows the caches.
pub type Connection = quiche::Connection<Borrowed>;

/// Lets quiche queue [`Bytes`], which can be a view of static memory.
#[derive(Clone, Debug, Default)]
pub struct Borrowed;

impl quiche::BufFactory for Borrowed {
    type Buf = Bytes;
    type DgramBuf = Vec<u8>;

    fn buf_from_slice(slice: &[u8]) -> Bytes {
        Bytes::copy_from_slice(slice)
    }

    fn dgram_buf_from_slice(slice: &[u8]) -> Vec<u8> {
        slice.to_vec()
    }
}

/// Length of the connection IDs that both roles choose, in bytes.
pub const CONNECTION_ID_LENGTH: usize = 16;

/// What is received before something is sent. The limits keep a steady stream from holding back acknowledgements, and
/// are high enough that acknowledgements are taken together: a sender that reacts to each single one sends single packets,
/// which are acknowledged singly, and so on.
pub const RECEIVES_PER_TURN: usize = 64;
pub const RECEIVED_BYTES_PER_TURN: usize = 1 << 20;

/// What one connection sends, two full batches, before the socket is read and other connections have their turn.
pub const SENT_BYTES_PER_TURN: usize = 128 << 10;

/// A connection ID that nobody can guess or repeat.
pub fn new_connection_id() -> io::Result<quiche::ConnectionId<'static>> {
    let mut id = vec![0; CONNECTION_ID_LENGTH];
    boring::rand::rand_bytes(&mut id).map_err(io::Error::other)?;
    Ok(quiche::ConnectionId::from_vec(id))
}

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
    max_segments: usize,
}

impl Outbox {
    /// For datagrams of at most `udp_payload` bytes through `socket`.
    pub fn new(socket: &Socket, udp_payload: usize) -> Outbox {
        let max_segments = match socket.gso() {
            true => (MAX_BATCH_BYTES / udp_payload).clamp(1, MAX_BATCH_SEGMENTS),
            false => 1,
        };
        Outbox {
            buffer: vec![0; max_segments * udp_payload],
            waiting: 0..0,
            segment: udp_payload,
            to: SocketAddr::from(([0, 0, 0, 0], 0)),
            max_segments,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Fills the empty outbox with the next packets of a connection and counts them. Only datagrams of one size can go
    /// together: the batch ends with the first that is not full. Returns the number of bytes, 0 if there was nothing to send.
    pub fn fill(
        &mut self,
        connection: &mut Connection,
        sent: &mut Traffic,
    ) -> Result<usize, quiche::Error> {
        debug_assert!(self.is_empty());
        let full = connection.max_send_udp_payload_size();
        let mut end = 0;
        for _ in 0..self.max_segments {
            let Some(space) = self.buffer.get_mut(end..end + full) else {
                break;
            };
            match connection.send(space) {
                Ok((length, info)) => {
                    self.to = info.to;
                    end += length;
                    sent.add(length);
                    if length < full {
                        break;
                    }
                }
                Err(quiche::Error::Done) => break,
                Err(error) => return Err(error),
            }
        }
        self.segment = full;
        self.waiting = 0..end;
        Ok(end)
    }

    /// Puts a datagram that belongs to no connection into the empty outbox.
    pub fn put(&mut self, datagram: &[u8], to: SocketAddr) {
        debug_assert!(self.is_empty());
        self.buffer[..datagram.len()].copy_from_slice(datagram);
        self.segment = datagram.len();
        self.waiting = 0..datagram.len();
        self.to = to;
    }

    /// Hands what is waiting to the socket. Returns false if the socket would block, some or all is then still waiting.
    pub fn flush(&mut self, socket: &Socket) -> io::Result<bool> {
        if !self.waiting.is_empty() {
            self.waiting.start +=
                socket.send(&self.buffer[self.waiting.clone()], self.segment, self.to)?;
        }
        Ok(self.waiting.is_empty())
    }
}
