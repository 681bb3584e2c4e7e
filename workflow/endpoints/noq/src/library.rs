//! What is noq's own in sources that serve quinn too, where the crate `quinn` is noq.

use std::sync::Arc;

use bytes::Bytes;
use quinn::congestion::{Bbr3Config, ControllerFactory};
use quinn::{ConnectionId, ConnectionStats, ReadError, RecvStream, TransportErrorCode};
use quinn_proto::TransportError;

pub const LIBRARY: &str = "noq";
pub const VERSION: &str = "1.4.0";

/// Whether datagrams with Initial packets can have more than 1200 bytes: noq fills them to that size only.
pub const INITIAL_SIZE: bool = false;

/// Largest flow-control window in bytes. noq-proto 1.4.0 ends a connection when more than 2048 frames of a stream wait to be
/// read (`COMPACT_THRESHOLD` in its assembler.rs). Frames of at least 1 KiB are no more than that in this window.
pub const MAX_WINDOW: u64 = 2048 << 10;

/// How noq passes the destination connection id of the first Initial packet.
pub type DestinationId<'a> = ConnectionId;

/// How noq starts sessions of a TLS configuration.
pub type Shared<'a, T> = &'a T;

pub fn share<T>(config: &Arc<T>) -> Shared<'_, T> {
    config
}

pub fn transport_error(code: TransportErrorCode, reason: String) -> TransportError {
    TransportError::new(code, reason)
}

/// BBRv3 with its own initial window.
pub fn bbr() -> Arc<dyn ControllerFactory + Send + Sync> {
    Arc::new(Bbr3Config::default())
}

pub fn packets_lost(stats: &ConnectionStats) -> u64 {
    stats.lost_packets
}

/// Fills `chunks` with the next of the stream; `None` is its end.
pub async fn read_chunks(
    stream: &mut RecvStream,
    chunks: &mut [Bytes],
) -> Result<Option<usize>, ReadError> {
    stream.read_many_chunks(chunks).await
}
