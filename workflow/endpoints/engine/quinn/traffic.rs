//! Counts the datagrams of handshakes and notes when chosen ones are handed to the system.

use std::collections::HashMap;
use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use quicbed_contract::clock::{now_ns, CpuTime};
use quinn::udp::{RecvMeta, Transmit};
use tokio::sync::Notify;

/// A moment: time in nanoseconds of CLOCK_MONOTONIC, and CPU time the process had used by then.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    pub t: u64,
    pub cpu: CpuTime,
}

impl Stamp {
    pub fn now() -> Self {
        Self {
            t: now_ns(),
            cpu: CpuTime::now(),
        }
    }
}

/// UDP datagrams and bytes of UDP payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficCount {
    pub datagrams_sent: u64,
    pub bytes_sent: u64,
    pub datagrams_received: u64,
    pub bytes_received: u64,
}

/// Counts what is exchanged with one peer, and notes when it starts.
#[derive(Debug, Default)]
pub struct Traffic {
    datagrams_sent: AtomicU64,
    bytes_sent: AtomicU64,
    datagrams_received: AtomicU64,
    bytes_received: AtomicU64,
    first_sent: OnceLock<Stamp>,
    first_received: OnceLock<Stamp>,
    /// The next datagram to leave is to be noted.
    armed: AtomicBool,
    departure: Mutex<Option<Stamp>>,
    departed: Notify,
}

impl Traffic {
    /// The counts so far.
    pub fn count(&self) -> TrafficCount {
        TrafficCount {
            datagrams_sent: self.datagrams_sent.load(Relaxed),
            bytes_sent: self.bytes_sent.load(Relaxed),
            datagrams_received: self.datagrams_received.load(Relaxed),
            bytes_received: self.bytes_received.load(Relaxed),
        }
    }

    /// Just before the first datagram was handed to the system.
    pub fn first_sent(&self) -> Option<Stamp> {
        self.first_sent.get().copied()
    }

    /// When the first datagram was received.
    pub fn first_received(&self) -> Option<Stamp> {
        self.first_received.get().copied()
    }

    /// Asks to note when the next datagram leaves; see `departure`.
    pub fn watch_departure(&self) {
        *self.lock_departure() = None;
        self.armed.store(true, Relaxed);
    }

    /// Just before the first datagram since `watch_departure` was handed to the system.
    pub fn departure(&self) -> Option<Stamp> {
        *self.lock_departure()
    }

    /// Waits until a datagram has left since `watch_departure`.
    pub async fn departed(&self) {
        while self.departure().is_none() {
            self.departed.notified().await;
        }
    }

    fn lock_departure(&self) -> MutexGuard<'_, Option<Stamp>> {
        self.departure
            .lock()
            .expect("nothing panics while noting a departure")
    }

    /// Now, if the time of the datagram about to leave is wanted.
    fn before_send(&self) -> Option<Stamp> {
        let wanted = self.armed.load(Relaxed) || self.first_sent.get().is_none();
        wanted.then(Stamp::now)
    }

    fn sent(&self, transmit: &Transmit, before: Option<Stamp>) {
        let bytes = transmit.contents.len();
        let segment = transmit.segment_size.unwrap_or(bytes).max(1);
        self.datagrams_sent
            .fetch_add(bytes.div_ceil(segment) as u64, Relaxed);
        self.bytes_sent.fetch_add(bytes as u64, Relaxed);
        if let Some(before) = before {
            self.first_sent.get_or_init(|| before);
            if self.armed.swap(false, Relaxed) {
                *self.lock_departure() = Some(before);
                self.departed.notify_one();
            }
        }
    }

    fn received(&self, meta: &RecvMeta) {
        self.first_received.get_or_init(Stamp::now);
        self.datagrams_received
            .fetch_add(meta.len.div_ceil(meta.stride.max(1)) as u64, Relaxed);
        self.bytes_received.fetch_add(meta.len as u64, Relaxed);
    }
}

/// Counts per client address, from the first Initial packet until the handshake is over.
#[derive(Debug, Default)]
pub struct Peers(Mutex<HashMap<SocketAddr, Arc<Traffic>>>);

/// Addresses kept at once. Handshakes take milliseconds, so more are leftovers of datagrams that led to no connection.
const MAX_PEERS: usize = 4096;

impl Peers {
    /// The counts of `peer`'s handshake, fresh ones if none of its datagrams were noticed.
    pub fn traffic(&self, peer: SocketAddr) -> Arc<Traffic> {
        self.lock().get(&peer).cloned().unwrap_or_default()
    }

    /// Stops counting for `peer`.
    pub fn forget(&self, peer: SocketAddr) {
        self.lock().remove(&peer);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SocketAddr, Arc<Traffic>>> {
        self.0.lock().expect("nothing panics while counting")
    }

    fn received(&self, datagrams: &[u8], meta: &RecvMeta) {
        let mut peers = self.lock();
        if let Some(traffic) = peers.get(&meta.addr) {
            traffic.received(meta);
        } else if datagrams.first().is_some_and(is_initial) {
            if peers.len() >= MAX_PEERS {
                peers.clear();
            }
            peers.entry(meta.addr).or_default().received(meta);
        }
    }
}

/// Whether a QUIC v1 packet with this first byte is an Initial packet: long header, type 0 (RFC 9000, section 17.2.2).
fn is_initial(first: &u8) -> bool {
    first & 0b1011_0000 == 0b1000_0000
}

/// Whose datagrams a socket counts.
#[derive(Clone, Debug)]
pub enum Meter {
    /// A client's socket has one peer.
    Connection(Arc<Traffic>),
    /// A server's socket has many.
    Peers(Arc<Peers>),
}

impl Meter {
    /// To be called before a datagram is handed to the system; the result belongs to `sent`.
    pub fn before_send(&self) -> Option<Stamp> {
        match self {
            Meter::Connection(traffic) => traffic.before_send(),
            Meter::Peers(_) => None,
        }
    }

    /// The system took what is in `transmit`.
    pub fn sent(&self, transmit: &Transmit, before: Option<Stamp>) {
        match self {
            Meter::Connection(traffic) => traffic.sent(transmit, before),
            Meter::Peers(peers) => {
                if let Some(traffic) = peers.lock().get(&transmit.destination) {
                    traffic.sent(transmit, before);
                }
            }
        }
    }

    /// The system filled the first `count` of `bufs`, as `meta` tells.
    pub fn received(&self, count: usize, bufs: &[IoSliceMut<'_>], meta: &[RecvMeta]) {
        for (meta, buf) in meta.iter().zip(bufs).take(count) {
            match self {
                Meter::Connection(traffic) => traffic.received(meta),
                Meter::Peers(peers) => peers.received(&buf[..meta.len], meta),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(port: u16, len: usize, stride: usize) -> RecvMeta {
        let mut meta = RecvMeta::default();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        (meta.addr, meta.len, meta.stride) = (address, len, stride);
        meta
    }

    #[test]
    fn segments_are_counted_as_datagrams() {
        let traffic = Traffic::default();
        let contents = [0; 3000];
        let transmit = Transmit {
            destination: SocketAddr::from(([127, 0, 0, 1], 1)),
            ecn: None,
            contents: &contents,
            segment_size: Some(1472),
            src_ip: None,
        };
        traffic.sent(&transmit, None);
        traffic.received(&meta(1, 2400, 1200));
        traffic.received(&meta(1, 40, 40));
        let expected = TrafficCount {
            datagrams_sent: 3,
            bytes_sent: 3000,
            datagrams_received: 3,
            bytes_received: 2440,
        };
        assert_eq!(traffic.count(), expected);
    }

    #[test]
    fn only_initial_packets_make_a_peer() {
        let peers = Peers::default();
        peers.received(&[0x43, 0], &meta(1, 1200, 1200));
        peers.received(&[0xe3, 0], &meta(1, 1200, 1200));
        assert!(peers.lock().is_empty());
        peers.received(&[0xc3, 0], &meta(1, 1200, 1200));
        peers.received(&[0x43, 0], &meta(1, 50, 50));
        let traffic = peers.traffic(meta(1, 0, 0).addr);
        assert_eq!(traffic.count().datagrams_received, 2);
        assert!(traffic.first_received().is_some());
        peers.forget(meta(1, 0, 0).addr);
        assert!(peers.lock().is_empty());
    }

    #[test]
    fn strangers_do_not_fill_the_memory() {
        let peers = Peers::default();
        for stranger in 0..=u16::MAX {
            peers.received(&[0xc0], &meta(stranger, 1200, 1200));
        }
        assert!(peers.lock().len() <= MAX_PEERS);
    }
}
