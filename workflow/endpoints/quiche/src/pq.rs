//! What flavour `pq` can do because quiche is patched there.

use crate::connection::QuicheConnection;

/// Whether this build has the patch.
pub const AVAILABLE: bool = cfg!(feature = "pq");

/// Sets the size of datagrams that start a connection, and the largest sent until the handshake is complete.
#[cfg(feature = "pq")]
pub fn set_initial_size(config: &mut quiche::Config, bytes: usize) {
    config.set_handshake_udp_payload_size(bytes);
}

/// quiche itself sends 1200 bytes; other sizes are refused before.
#[cfg(not(feature = "pq"))]
pub fn set_initial_size(_config: &mut quiche::Config, _bytes: usize) {}

/// Whether the handshake is confirmed (RFC 9001, section 4.1.2).
#[cfg(feature = "pq")]
pub fn is_confirmed(connection: &QuicheConnection) -> Option<bool> {
    Some(connection.is_handshake_confirmed())
}

/// quiche knows, but has no function that tells.
#[cfg(not(feature = "pq"))]
pub fn is_confirmed(_connection: &QuicheConnection) -> Option<bool> {
    None
}
