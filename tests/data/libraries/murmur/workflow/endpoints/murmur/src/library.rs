//! What is murmur's own in sources that serve quinn: nothing, for murmur is quinn under another name.

use std::sync::Arc;

use bytes::Bytes;
use quinn::congestion::{BbrConfig, ControllerFactory};
use quinn::{ConnectionId, ConnectionStats, ReadError, RecvStream, TransportErrorCode};
use quinn_proto::TransportError;

pub const LIBRARY: &str = "murmur";
pub const VERSION: &str = "0.11.12";

/// Whether datagrams with Initial packets can have more than 1200 bytes.
pub const INITIAL_SIZE: bool = true;

/// Largest flow-control window in bytes: the largest integer of a transport parameter (RFC 9000, section 16).
pub const MAX_WINDOW: u64 = (1 << 62) - 1;

/// How quinn passes the destination connection id of the first Initial packet.
pub type DestinationId<'a> = &'a ConnectionId;

/// How quinn starts sessions of a TLS configuration.
pub type Shared<'a, T> = Arc<T>;

pub fn share<T>(config: &Arc<T>) -> Shared<'_, T> {
    config.clone()
}

pub fn transport_error(code: TransportErrorCode, reason: String) -> TransportError {
    TransportError {
        code,
        frame: None,
        reason,
    }
}

/// BBR with its own initial window, 240 000 bytes.
pub fn bbr() -> Arc<dyn ControllerFactory + Send + Sync> {
    Arc::new(BbrConfig::default())
}

pub fn packets_lost(stats: &ConnectionStats) -> u64 {
    stats.path.lost_packets
}

/// Fills `chunks` with the next of the stream; `None` is its end.
pub async fn read_chunks(
    stream: &mut RecvStream,
    chunks: &mut [Bytes],
) -> Result<Option<usize>, ReadError> {
    stream.read_chunks(chunks).await
}
