//! Client and server on libraries that do no input and output of their own: one thread that waits in poll, takes what has
//! arrived, runs timers, and sends what there is to send.
//!
//! What is about a library implements [`Library`] and [`Connection`], for a client [`client::Connector`] and
//! [`client::Download`], for a server [`server::Listener`] and [`server::Serve`]; the programs are [`client::run`] and
//! [`server::run`].

pub mod answers;
pub mod client;
mod outbox;
pub mod server;
pub mod transfer;

use std::net::SocketAddr;
use std::time::Duration;

use quicbed_contract::events::{ConnectionCommon, OptionsInForce};
use quicbed_contract::options::{CommonOptions, CongestionControl, Description, Pacing};
use serde::Serialize;

pub use outbox::Traffic;

/// What is received before something is sent. The limits keep a steady stream from holding back acknowledgements, and
/// are high enough that acknowledgements are taken together: a sender that reacts to each single one sends single packets,
/// which are acknowledged singly, and so on.
const RECEIVES_PER_TURN: usize = 64;
const RECEIVED_BYTES_PER_TURN: usize = 1 << 20;

/// What one connection sends, two full batches, before the socket is read and other connections have their turn.
const SENT_BYTES_PER_TURN: usize = 128 << 10;

/// A QUIC library in a build of an endpoint.
pub trait Library {
    const NAME: &'static str;
    const VERSION: &'static str;

    /// What the `start` event tells: the options in force, and what is known of the processor.
    type InForce: Serialize;

    /// What this build can do.
    fn description() -> Description;

    /// Why this build cannot do what is asked, or `None` if it can.
    fn unsupported(options: &CommonOptions) -> Option<String> {
        Self::description().unsupported(options)
    }

    fn in_force(options: OptionsInForce) -> Self::InForce;
}

/// How a program paces: as asked, else only where congestion control depends on it.
pub fn pacing(options: &CommonOptions) -> Pacing {
    options.pacing.unwrap_or(match options.congestion_control {
        CongestionControl::Bbr => Pacing::Library,
        CongestionControl::Cubic | CongestionControl::Reno => Pacing::Off,
    })
}

/// What the `start` event tells of a socket's program.
fn in_force<L: Library>(mut of_socket: OptionsInForce, options: &CommonOptions) -> L::InForce {
    of_socket.pacing = Some(pacing(options));
    L::in_force(of_socket)
}

/// Nothing more can be written than the end of the connection: why, if [`Connection::reason`] does not tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed(pub Option<String>);

/// Packets of a connection as the library counts them.
#[derive(Clone, Copy, Debug)]
pub struct PacketCounts {
    pub sent: u64,
    pub received: u64,
    pub lost: u64,
}

/// A connection of a library.
pub trait Connection {
    /// What the library tells times by.
    type Time: Copy + PartialOrd;

    fn now() -> Self::Time;

    /// When [`Connection::on_timeout`] is to be called.
    fn expiry(&self) -> Option<Self::Time>;

    /// Time until then.
    fn timeout(&self) -> Option<Duration>;

    /// Does what the time asks for, if it does.
    fn on_timeout(&mut self);

    /// Takes one datagram. If that closes the connection, [`Connection::has_ended`] tells.
    fn read(&mut self, datagram: &mut [u8], from: SocketAddr);

    /// Bytes of a full datagram for now.
    fn datagram_size(&self) -> usize;

    /// Writes the next datagram into `space`. Returns its length, 0 if there is nothing to send.
    fn write(&mut self, space: &mut [u8]) -> Result<usize, Failed>;

    /// Where the datagram written last goes.
    fn peer(&self) -> SocketAddr;

    /// Bytes that may be sent at once; [`Connection::end_burst`] is called after them.
    fn burst(&self) -> usize {
        usize::MAX
    }

    fn end_burst(&mut self) {}

    /// Bytes that the next batch of datagrams may have when `left` are left of the turn: a batch is not broken up, so that
    /// the last one of a turn may go beyond it.
    fn batch(&self, _left: usize) -> usize {
        usize::MAX
    }

    /// When the kernel is to let the next datagram go (CLOCK_MONOTONIC in ns), if it is told.
    fn departure(&self) -> Option<u64> {
        None
    }

    /// Whether the next datagram may leave with a batch whose first leaves at `departure`.
    fn leaves_with(&self, _departure: u64) -> bool {
        true
    }

    /// Ends the connection with `code` of the application unless it has ended; the peer is told by the next
    /// [`Connection::write`].
    fn close(&mut self, code: u64, reason: &str);

    /// Whether the TLS handshake is complete (RFC 9001, section 4.1.1).
    fn is_established(&self) -> bool;

    /// Whether the connection has ended, on this side or the other, and the peer is told if it is to be told.
    fn has_ended(&self) -> bool;

    /// Why the connection ended, as one line, or `None` if it did so in agreement or has not.
    fn reason(&mut self) -> Option<String>;

    fn packets(&self) -> PacketCounts;

    /// Fills in what was negotiated.
    fn read_back(&mut self, common: &mut ConnectionCommon);
}
