//! The programs that are tested, and what they can do.

pub const CLIENT: &str = env!("CARGO_BIN_EXE_quicbed-quinn-client");
pub const SERVER: &str = env!("CARGO_BIN_EXE_quicbed-quinn-server");

/// Values of `--initial-size`.
pub const INITIAL_SIZES: &[u64] = &[1200, 1350, 1472];
