//! The programs that are tested.

pub const CLIENT: &str = env!("CARGO_BIN_EXE_quicbed-quinn-client");
pub const SERVER: &str = env!("CARGO_BIN_EXE_quicbed-quinn-server");
