//! A connection of quiche as the loop in poll takes it: what both roles have in common.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quicbed_contract::clock::now_ns;
use quicbed_contract::events::ConnectionCommon;
use quicbed_contract::options::{Alpn, CommonOptions, Pacing};
use quicbed_poll::{Failed, PacketCounts};

use crate::closing;
use crate::http3;
use crate::releases::Releases;

/// A connection that sends content from where it lies: quiche then copies it only into packets, and not first into a
/// buffer of its own that outgrows the caches.
pub type QuicheConnection = quiche::Connection<Borrowed>;

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

/// Times that are no farther apart are one.
const ONE_TIME_NS: u64 = 50_000;

/// A connection ID that nobody can guess or repeat.
pub fn new_connection_id() -> io::Result<Vec<u8>> {
    let mut id = vec![0; CONNECTION_ID_LENGTH];
    boring::rand::rand_bytes(&mut id).map_err(io::Error::other)?;
    Ok(id)
}

/// A connection and what a role does with its streams.
pub struct Connection<Role> {
    pub(crate) quiche: QuicheConnection,
    pub(crate) role: Role,
    local: SocketAddr,
    peer: SocketAddr,
    pub(crate) alpn: Alpn,
    pacing: Pacing,
    /// Until when nothing is written, because the next packet is not to leave yet.
    held: Option<Instant>,
    /// What the pacer means, where somebody wants to know.
    releases: Option<Releases>,
    /// What ended the connection on this side, in the library's words.
    failure: Option<String>,
}

/// What a role notes.
pub trait Role {
    /// A datagram was taken.
    fn received(&mut self, _: &QuicheConnection) {}
}

impl<R> Connection<R> {
    pub fn new(
        quiche: QuicheConnection,
        role: R,
        options: &CommonOptions,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Self {
        Connection {
            quiche,
            role,
            local,
            peer,
            alpn: options.alpn,
            pacing: quicbed_poll::pacing(options),
            held: None,
            releases: Releases::wanted(),
            failure: None,
        }
    }

    /// Until when the next packet is to be held back: until it may leave, or shortly before where the kernel is told when.
    fn hold(&self) -> Option<Instant> {
        let now = Instant::now();
        let release = self.quiche.get_next_release_time()?;
        let at = release.time(now)?;
        match self.pacing {
            Pacing::Off => None,
            Pacing::Library => (!release.can_burst()).then_some(at),
            Pacing::Txtime => {
                let from = at - self.quiche.max_release_into_future();
                (from > now).then_some(from)
            }
        }
    }
}

impl<R> Connection<R> {
    /// When the next packet is to leave by the pacer, `None` where it may leave at once. `held` is until when it was held
    /// back before now.
    ///
    /// Asked before the packet is written: what quiche tells with it (`SendInfo::at`) is the time of the one after.
    fn intended(&self, held: Option<Instant>) -> Option<Instant> {
        let now = Instant::now();
        let release = self.quiche.get_next_release_time()?;
        match self.pacing {
            Pacing::Off => None,
            Pacing::Txtime => release.time(now),
            // let go in one burst with the one before
            Pacing::Library if release.can_burst() => self.releases.as_ref()?.last(),
            Pacing::Library => held.filter(|at| *at <= now),
        }
    }
}

impl<R: Role> quicbed_poll::Connection for Connection<R> {
    type Time = Instant;

    fn now() -> Instant {
        Instant::now()
    }

    fn expiry(&self) -> Option<Instant> {
        let timer = self.quiche.timeout_instant();
        timer.into_iter().chain(self.held).min()
    }

    fn timeout(&self) -> Option<Duration> {
        let at = self.expiry()?;
        Some(at.saturating_duration_since(Instant::now()))
    }

    fn on_timeout(&mut self) {
        self.quiche.on_timeout();
    }

    fn read(&mut self, datagram: &mut [u8], from: SocketAddr) {
        let to = self.local;
        let info = quiche::RecvInfo { from, to };
        closing::receive(&mut self.quiche, datagram, info, &mut self.failure);
        self.role.received(&self.quiche);
    }

    fn datagram_size(&self) -> usize {
        self.quiche.max_send_udp_payload_size()
    }

    fn write(&mut self, space: &mut [u8]) -> Result<usize, Failed> {
        let held = self.held;
        self.held = self.hold();
        if self.held.is_some() {
            return Ok(0);
        }
        let intended = self.releases.as_ref().and_then(|_| self.intended(held));
        match self.quiche.send(space) {
            Ok((length, info)) => {
                self.peer = info.to;
                if let Some(releases) = &mut self.releases {
                    releases.note(&space[..length], intended);
                }
                Ok(length)
            }
            Err(quiche::Error::Done) => Ok(0),
            Err(error) => Err(Failed(Some(format!("quiche: {error}")))),
        }
    }

    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn burst(&self) -> usize {
        match self.pacing {
            Pacing::Off | Pacing::Library => usize::MAX,
            Pacing::Txtime => self.quiche.send_quantum(),
        }
    }

    fn batch(&self, left: usize) -> usize {
        left
    }

    fn departure(&self) -> Option<u64> {
        if self.pacing != Pacing::Txtime {
            return None;
        }
        let now = Instant::now();
        let release = self.quiche.get_next_release_time()?;
        let ahead = release.time(now).map_or(Duration::ZERO, |at| at - now);
        Some(now_ns() + ahead.as_nanos() as u64)
    }

    /// What quiche takes for one time (`ReleaseDecision::time_eq`), or lets go in one burst.
    fn leaves_with(&self, departure: u64) -> bool {
        let release = self.quiche.get_next_release_time();
        let together = release.is_some_and(|release| release.can_burst());
        let next = self.departure();
        together || next.is_some_and(|next| next.abs_diff(departure) <= ONE_TIME_NS)
    }

    fn close(&mut self, code: u64, reason: &str) {
        let code = match self.alpn {
            Alpn::HqInterop => code,
            Alpn::H3 => http3::NO_ERROR + code,
        };
        // An error means that it has been closed before.
        let _ = self.quiche.close(true, code, reason.as_bytes());
    }

    fn is_established(&self) -> bool {
        self.quiche.is_established()
    }

    fn has_ended(&self) -> bool {
        self.quiche.is_draining() || self.quiche.is_closed()
    }

    fn reason(&mut self) -> Option<String> {
        let agreed = match self.alpn {
            Alpn::HqInterop => 0,
            Alpn::H3 => http3::NO_ERROR,
        };
        closing::reason(&mut self.quiche, self.failure.as_deref(), agreed)
    }

    fn packets(&self) -> PacketCounts {
        let stats = self.quiche.stats();
        PacketCounts {
            sent: stats.sent as u64,
            received: stats.recv as u64,
            lost: stats.lost as u64,
        }
    }

    fn read_back(&mut self, common: &mut ConnectionCommon) {
        quicbed_boringssl::read_back(self.quiche.as_mut(), common);
    }
}
