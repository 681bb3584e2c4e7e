//! What every Rust endpoint shares, so that two of them differ in the library under test and in nothing else.
//!
//! `workflow/endpoints/ENDPOINT.md` is the contract; each module here implements one of its parts.

mod algorithms;
pub mod clock;
pub mod content;
pub mod events;
pub mod options;
pub mod primitives;
pub mod request;
pub mod tls;
pub mod udp;

/// Version of the contract in `ENDPOINT.md` that this crate implements.
pub const CONTRACT: u32 = 2;

/// ALPN protocol of the QUIC endpoints that are told no other: HTTP/0.9 on QUIC v1 streams.
pub const ALPN: &str = "hq-interop";

/// Exit codes of the contract.
pub mod exit {
    /// Every connection succeeded, or the server was stopped after serving.
    pub const OK: i32 = 0;
    /// A connection or the program itself failed.
    pub const FAILED: i32 = 1;
    /// The command line is wrong.
    pub const USAGE: i32 = 2;
    /// This build cannot do this variant or workload.
    pub const UNSUPPORTED: i32 = 127;
}
