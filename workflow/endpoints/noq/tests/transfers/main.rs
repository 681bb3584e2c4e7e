//! The programs of noq that are tested, and what they can do.

const CLIENT: &str = env!("CARGO_BIN_EXE_quicbed-noq-client");
const SERVER: &str = env!("CARGO_BIN_EXE_quicbed-noq-server");

/// Values of `--initial-size`.
const INITIAL_SIZES: &[u64] = &[1200];

#[path = "../../../engine/quinn/transfers.rs"]
mod transfers;
