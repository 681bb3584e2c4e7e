//! What client and server have in common: abilities, transport parameters, input and output.

use std::net::SocketAddr;
use std::time::Duration;

use quicbed_contract::events::{Events, OptionsInForce};
use quicbed_contract::options::{CommonOptions, CongestionControl, Description, Pacing};
use quicbed_contract::udp::{Socket, MAX_BATCH_BYTES};
use quicbed_contract::ALPN;
use s2n_quic::provider::limits::Limits;
use s2n_quic::provider::tls::s2n_tls::config;
use s2n_quic::provider::tls::s2n_tls::error::Error;
use s2n_quic::provider::tls::s2n_tls::security::DEFAULT_TLS13;
use s2n_quic::provider::{io, mtu};
use serde::Serialize;

use crate::{key_log::KeyLogFile, policy, protection};

pub const LIBRARY: &str = "s2n-quic";
pub const VERSION: &str = "1.91.0";
const TLS_LIBRARY: &str = "s2n-tls 0.3.47";

/// Most datagrams that s2n-quic sends in one GSO batch (`DEFAULT_SEGMENTS` in s2n-quic-platform).
const GSO_SEGMENTS: usize = 10;

/// Bytes of UDP and IP headers, which s2n-quic counts to the size of a datagram.
const fn headers(peer: SocketAddr) -> u16 {
    match peer {
        SocketAddr::V4(_) => 8 + 20,
        SocketAddr::V6(_) => 8 + 40,
    }
}

/// The abilities of this build.
pub fn description() -> Description {
    Description {
        groups: policy::GROUPS.to_vec(),
        signatures: policy::SIGNATURES.to_vec(),
        congestion_controls: vec![CongestionControl::Cubic, CongestionControl::Bbr],
        ..Description::quic(LIBRARY, VERSION, TLS_LIBRARY, cfg!(feature = "noop"))
    }
}

/// Opens the events and ends the program if this build cannot do what is asked; else makes the process do it.
pub fn open_events(description: &Description, options: &CommonOptions, peer: SocketAddr) -> Events {
    let events = Events::open(&options.events);
    let reason = description
        .unsupported(options)
        .or_else(|| impossible(options, peer));
    if let Some(reason) = reason {
        events.exit_unsupported(&reason);
    }
    policy::apply(options);
    protection::apply(options);
    events
}

/// Why s2n-quic cannot have the sizes asked for, or `None` if it can.
fn impossible(options: &CommonOptions, peer: SocketAddr) -> Option<String> {
    let (payload, window) = (options.udp_payload, options.window);
    let largest = usize::from(u16::MAX - headers(peer));
    if payload > largest {
        return Some(format!(
            "s2n-quic makes no datagrams of more than {largest} bytes"
        ));
    }
    // It fills a buffer of 65 535 bytes, however many bytes an IP packet takes.
    let batch = payload * GSO_SEGMENTS.min(usize::from(u16::MAX) / payload);
    if options.gso.is_on() && batch > MAX_BATCH_BYTES {
        return Some(format!(
            "s2n-quic makes GSO batches of {batch} bytes of such datagrams, the system takes {MAX_BATCH_BYTES}"
        ));
    }
    let widest = u64::from(u32::MAX);
    (window > widest).then(|| format!("s2n-quic has no windows of more than {widest} bytes"))
}

/// The options in force, and what AWS-LC tells about the processor.
#[derive(Serialize)]
pub struct InForce {
    #[serde(flatten)]
    pub options: OptionsInForce,
    aes_hardware: bool,
}

impl InForce {
    pub fn read(socket: &Socket, options: &CommonOptions) -> std::io::Result<Self> {
        let mut options = socket.in_force(options)?;
        options.pacing = Some(Pacing::Library);
        Ok(Self {
            options,
            // SAFETY: has no conditions.
            aes_hardware: unsafe { aws_lc_sys::EVP_has_aes_hardware() } == 1,
        })
    }
}

/// A TLS configuration with the security policy of this process and without certificates.
pub fn tls(key_log: &KeyLogFile) -> Result<config::Builder, Error> {
    let mut config = config::Builder::new();
    config.enable_quic()?;
    config.set_security_policy(&DEFAULT_TLS13)?;
    config.set_application_protocol_preference([ALPN])?;
    config.wipe_trust_store()?;
    key_log.log_from(&mut config)?;
    Ok(config)
}

/// One thread for everything: client and server share the machine, and more threads only add hand-overs.
pub fn runtime() -> Result<tokio::runtime::Runtime, String> {
    tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(|error| format!("cannot start the runtime: {error}"))
}

/// Flow control, and how long a handshake may take.
pub fn limits(options: &CommonOptions, handshake: Duration) -> Result<Limits, String> {
    let window = options.window;
    let limits = || {
        Limits::new()
            .with_data_window(window)?
            .with_bidirectional_local_data_window(window)?
            .with_bidirectional_remote_data_window(window)?
            .with_max_send_buffer_size(window as u32)?
            .with_max_handshake_duration(handshake)
    };
    limits().map_err(|error| format!("--window {window}: {error}"))
}

/// s2n-quic's own input and output on `socket`.
pub fn io(
    socket: &Socket,
    options: &CommonOptions,
    peer: SocketAddr,
) -> std::io::Result<io::Default> {
    let sizes = Sizes::new(options, peer);
    io::tokio::Builder::default()
        .with_rx_socket(socket.try_clone_std()?)?
        .with_gso(options.gso.is_on())?
        .with_gro(options.gro)?
        .with_base_mtu(sizes.initial)?
        .with_initial_mtu(sizes.initial)?
        .with_max_mtu(sizes.largest)?
        .build()
}

/// Sizes of the datagrams of a connection. `large` tells whether it is worth while to send larger ones than
/// `--initial-size` after the handshake.
pub fn mtu(options: &CommonOptions, peer: SocketAddr, large: bool) -> Result<mtu::Config, String> {
    let sizes = Sizes::new(options, peer);
    let largest = if large { sizes.largest } else { sizes.initial };
    let config = || {
        mtu::Config::builder()
            .with_base_mtu(sizes.initial)?
            .with_initial_mtu(sizes.initial)?
            .with_max_mtu(largest)?
            .build()
    };
    config().map_err(|error| format!("--udp-payload {}: {error}", options.udp_payload))
}

/// Sizes of datagrams with their headers.
struct Sizes {
    initial: u16,
    largest: u16,
}

impl Sizes {
    fn new(options: &CommonOptions, peer: SocketAddr) -> Self {
        let headers = headers(peer);
        // `open_events` has checked both.
        let (initial, payload) = (options.initial_size as u16, options.udp_payload as u16);
        Self {
            initial: initial + headers,
            largest: search_limit(initial, payload, headers) + headers,
        }
    }
}

/// s2n-quic changes the size of datagrams by probing only, and ends its search (RFC 8899) as soon as the next probe
/// would be less than this above what it has. This and [`search_end`] are those of `s2n_quic_core::path::mtu`.
const PROBE_THRESHOLD: u16 = 20;
const ETHERNET_MTU: u16 = 1500;

/// The upper limit of a search that ends at `wanted` bytes of payload exactly, if there is one; else `wanted`.
fn search_limit(initial: u16, wanted: u16, headers: u16) -> u16 {
    let highest = (u16::MAX - headers).min(wanted.saturating_add(2 * PROBE_THRESHOLD));
    (wanted..=highest)
        .find(|limit| search_end(initial, *limit, headers) == wanted)
        .unwrap_or(wanted)
}

/// Where a search from `initial` to `limit` bytes of payload ends if every probe is acknowledged.
fn search_end(initial: u16, limit: u16, headers: u16) -> u16 {
    let half_way = |from: u16| from + (limit - from) / 2;
    let mut size = initial;
    let mut probe = match initial + headers > ETHERNET_MTU - PROBE_THRESHOLD {
        true => half_way(initial),
        false => (ETHERNET_MTU - headers).min(limit),
    };
    while probe - size >= PROBE_THRESHOLD {
        size = probe;
        probe = half_way(size);
    }
    size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_of_the_lock_file() {
        let lock = include_str!("../../../sources/Cargo.lock");
        for library in [format!("{LIBRARY} {VERSION}"), TLS_LIBRARY.into()] {
            let (name, version) = library.split_once(' ').unwrap();
            let entry = format!("name = \"{name}\"\nversion = \"{version}\"\n");
            assert!(lock.contains(&entry), "{library}");
        }
    }

    #[test]
    fn searches_end_at_the_size_asked_for() {
        assert_eq!(search_limit(1200, 1472, 28), 1472);
        assert_eq!(search_limit(1200, 1300, 28), 1300);
        for wanted in [2972, 5972, 8972, 16384] {
            let limit = search_limit(1200, wanted, 28);
            assert_eq!(search_end(1200, limit, 28), wanted);
            assert!(limit > wanted);
        }
    }

    #[test]
    fn sizes_close_to_the_first_are_not_searched() {
        assert_eq!(search_limit(1200, 1210, 28), 1210);
        assert_eq!(search_end(1200, 1210, 28), 1200);
    }
}
