//! MsQuic as an endpoint of the contract: what its client and its server share.

#[allow(unsafe_op_in_unsafe_fn)]
mod ffi;
pub mod hooks;
pub mod library;
#[cfg(feature = "noop")]
mod noop;
pub mod tls;

pub use ffi::{
    HQUIC, QUIC_ADDR, QUIC_BUFFER, QUIC_CONNECTION_EVENT, QUIC_CONNECTION_EVENT_CONNECTED,
    QUIC_CONNECTION_EVENT_PEER_STREAM_STARTED, QUIC_CONNECTION_EVENT_SHUTDOWN_COMPLETE,
    QUIC_CONNECTION_EVENT_SHUTDOWN_INITIATED_BY_PEER,
    QUIC_CONNECTION_EVENT_SHUTDOWN_INITIATED_BY_TRANSPORT, QUIC_CONNECTION_SHUTDOWN_FLAG_NONE,
    QUIC_LISTENER_EVENT, QUIC_LISTENER_EVENT_NEW_CONNECTION, QUIC_SEND_FLAG_FIN,
    QUIC_SEND_FLAG_NONE, QUIC_SEND_FLAG_START, QUIC_STREAM_EVENT,
    QUIC_STREAM_EVENT_PEER_RECEIVE_ABORTED, QUIC_STREAM_EVENT_PEER_SEND_ABORTED,
    QUIC_STREAM_EVENT_PEER_SEND_SHUTDOWN, QUIC_STREAM_EVENT_RECEIVE,
    QUIC_STREAM_EVENT_SEND_COMPLETE, QUIC_STREAM_EVENT_SEND_SHUTDOWN_COMPLETE,
    QUIC_STREAM_EVENT_SHUTDOWN_COMPLETE, QUIC_STREAM_OPEN_FLAG_NONE,
    QUIC_STREAM_SHUTDOWN_FLAG_ABORT, QUIC_STREAM_SHUTDOWN_FLAG_GRACEFUL,
};

use quicbed_contract::events::OptionsInForce;
use quicbed_contract::options::{
    Aead, CommonOptions, CongestionControl, Description, HeaderProtection, Pacing,
};
use quicbed_contract::udp::Socket;
use serde::Serialize;

pub const LIBRARY: &str = "msquic";
pub const VERSION: &str = env!("MSQUIC_VERSION");
const TLS_LIBRARY: &str = "quictls 3.1.7";

/// `QUIC_STATUS_SUCCESS`, a macro that bindgen does not translate.
pub const SUCCESS: u32 = 0;

/// `QUIC_FAILED`: errors are positive, and what will be done later is negative.
pub fn failed(status: u32) -> bool {
    status as i32 > 0
}

/// Groups and signature algorithms that quictls has.
const GROUPS: [&str; 5] = ["x25519", "x448", "p-256", "p-384", "p-521"];
const SIGNATURES: [&str; 6] = [
    "rsa-1024",
    "rsa-2048",
    "rsa-4096",
    "ecdsa-p-256",
    "ecdsa-p-384",
    "ed25519",
];

/// Headers of IPv4 and UDP: MsQuic counts its datagrams with them.
const IPV4_UDP_HEADERS: usize = 28;

/// Least and most that MsQuic takes as an MTU: `QUIC_DPLPMTUD_MIN_MTU` and `CXPLAT_MAX_MTU`.
const MIN_MTU: usize = 1_248;
const MAX_MTU: usize = match usize::from_str_radix(env!("MSQUIC_MAX_MTU"), 10) {
    Ok(found) => found,
    Err(_) => panic!("no number"),
};

pub fn description() -> Description {
    let mut description = Description::quic(LIBRARY, VERSION, TLS_LIBRARY, cfg!(feature = "noop"));
    description.aead.push(Aead::Noenc);
    description.groups = GROUPS.to_vec();
    description.signatures = SIGNATURES.to_vec();
    description.congestion_controls = vec![CongestionControl::Cubic, CongestionControl::Bbr];
    description.pacing = vec![Pacing::Off, Pacing::Library];
    description
}

/// Why this build cannot do what is asked, or `None` if it can.
pub fn unsupported(options: &CommonOptions) -> Option<String> {
    let without_packet_protection = options.aead == Aead::Noenc;
    let mut asked = options.clone();
    if without_packet_protection {
        // MsQuic protects no headers of packets without packet protection.
        asked.header_protection = HeaderProtection::On;
    }
    description().unsupported(&asked).or_else(|| {
        (options.udp_payload > MAX_MTU - IPV4_UDP_HEADERS).then(|| {
            format!(
                "MsQuic sends no datagrams above {} bytes (`CXPLAT_MAX_MTU`)",
                MAX_MTU - IPV4_UDP_HEADERS
            )
        })
    })
}

/// The `options` of the event `start`.
#[derive(Serialize)]
pub struct InForce {
    #[serde(flatten)]
    common: OptionsInForce,
    aes_hardware: Option<bool>,
}

/// What is in force, as far as it is known before MsQuic makes its sockets: buffers and offloads of a socket with the same
/// options, and MsQuic's limits.
pub fn in_force(
    socket: &Socket,
    options: &CommonOptions,
    retry: Option<bool>,
) -> std::io::Result<InForce> {
    let mut common = socket.in_force(options)?;
    common.retry = retry;
    common.pacing = Some(pacing(options));
    common.initial_size = initial_mtu(options) - IPV4_UDP_HEADERS;
    common.window = library::window(options).into();
    if options.aead == Aead::Noenc {
        common.header_protection = HeaderProtection::Off;
    }
    Ok(InForce {
        common,
        aes_hardware: tls::aes_hardware(),
    })
}

/// How MsQuic paces: by itself unless told not to.
fn pacing(options: &CommonOptions) -> Pacing {
    options.pacing.unwrap_or(Pacing::Library)
}

/// The IP packet size MsQuic starts with, and pads Initial packets to.
fn initial_mtu(options: &CommonOptions) -> usize {
    (options.initial_size + IPV4_UDP_HEADERS).max(MIN_MTU)
}

/// The IP packet size that MsQuic's path-MTU discovery ends with.
fn largest_mtu(options: &CommonOptions) -> usize {
    (options.udp_payload + IPV4_UDP_HEADERS).clamp(initial_mtu(options), MAX_MTU)
}
