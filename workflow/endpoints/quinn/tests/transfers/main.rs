//! The programs of quinn that are tested, and what they can do.

const CLIENT: &str = env!("CARGO_BIN_EXE_quicbed-quinn-client");
const SERVER: &str = env!("CARGO_BIN_EXE_quicbed-quinn-server");

/// Values of `--initial-size`.
const INITIAL_SIZES: &[u64] = &[1200, 1350, 1472];

#[path = "../../../engine/quinn/transfers.rs"]
mod transfers;
