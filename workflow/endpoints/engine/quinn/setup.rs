//! What client and server have in common: abilities, transport parameters, socket, and the report of a connection.

use std::error::Error;
use std::io;
use std::sync::Arc;

use quicbed_contract::clock::CpuTime;
use quicbed_contract::events::{ConnectionCommon, Events, OptionsInForce, Role};
use quicbed_contract::options::{
    Aead, CommonOptions, CongestionControl, Description, HeaderProtection, Pacing,
};
use quicbed_contract::udp::Socket;
use quinn::congestion::{ControllerFactory, CubicConfig, NewRenoConfig};
use quinn::{
    ConnectionStats, Endpoint, EndpointConfig, MtuDiscoveryConfig, Runtime, ServerConfig,
    TokioRuntime, TransportConfig, VarInt,
};
use serde::Serialize;

use super::observation::{Observation, Observed};
use super::session::QUIC_V1;
use super::traffic::{Meter, Stamp};
use crate::library::{self, LIBRARY, VERSION};
use crate::socket;

/// Largest `--udp-payload`: quinn gives the length of a handshake packet two bytes and panics when 14 bits do not hold it.
const MAX_UDP_PAYLOAD: usize = 1 << 14;

/// Bytes of CRYPTO frames that may arrive before a missing one. quinn's default, 16 KiB, is less than the window in flight
/// while a certificate and a signature of 50 kB each arrive; one lost packet would end the connection.
const CRYPTO_BUFFER: usize = 1 << 18;

/// The abilities of this build.
pub fn description() -> Description {
    Description {
        congestion_controls: vec![
            CongestionControl::Cubic,
            CongestionControl::Reno,
            CongestionControl::Bbr,
        ],
        initial_size: library::INITIAL_SIZE,
        ..quicbed_rustls::description(LIBRARY, VERSION)
    }
}

/// Opens the events and ends the program if this build cannot do what is asked.
pub fn open_events(description: &Description, options: &CommonOptions) -> Events {
    let events = Events::open(&options.events);
    let reason = description.unsupported(options).or_else(|| {
        let largest = MAX_UDP_PAYLOAD;
        (options.udp_payload > largest)
            .then(|| format!("{LIBRARY} makes no datagrams of more than {largest} bytes"))
    });
    match reason {
        Some(reason) => events.exit_unsupported(&reason),
        None => events,
    }
}

/// Transport parameters and behaviour of a connection. `large` tells whether it is worth while to send datagrams larger than
/// `--initial-size` after the handshake.
pub fn transport(options: &CommonOptions, large: bool) -> TransportConfig {
    let window = VarInt::from_u64(window(options)).expect("the command line checks the window");
    // The contract's ranges of both end below 2^16.
    let (initial, payload) = (options.initial_size as u16, options.udp_payload as u16);
    let mut transport = TransportConfig::default();
    transport
        .congestion_controller_factory(congestion_controller(options))
        .stream_receive_window(window)
        .receive_window(window)
        .send_window(options.window)
        .initial_mtu(initial)
        .min_mtu(initial)
        .mtu_discovery_config(growth(initial, payload).filter(|_| large))
        .crypto_buffer_size(CRYPTO_BUFFER)
        .enable_segmentation_offload(options.gso.is_on());
    transport
}

/// The flow-control window in force, of a stream and of a connection, in bytes.
fn window(options: &CommonOptions) -> u64 {
    options.window.min(library::MAX_WINDOW)
}

/// Datagrams of `payload` bytes after the handshake, `initial` before. quinn changes their size only by probing: a single
/// probe of the whole size, after which it has nothing left to search.
fn growth(initial: u16, payload: u16) -> Option<MtuDiscoveryConfig> {
    let change = payload.checked_sub(initial).filter(|change| *change > 0)?;
    let mut config = MtuDiscoveryConfig::default();
    config.upper_bound(payload).minimum_change(change);
    Some(config)
}

/// The congestion controller asked for, starting with the window of RFC 9002, section 7.2. quinn's default window assumes
/// datagrams of 1200 bytes.
fn congestion_controller(options: &CommonOptions) -> Arc<dyn ControllerFactory + Send + Sync> {
    let datagram = options.initial_size as u64;
    let initial_window = (10 * datagram).min(14_720.max(2 * datagram));
    match options.congestion_control {
        CongestionControl::Cubic => {
            let mut config = CubicConfig::default();
            config.initial_window(initial_window);
            Arc::new(config)
        }
        CongestionControl::Reno => {
            let mut config = NewRenoConfig::default();
            config.initial_window(initial_window);
            Arc::new(config)
        }
        CongestionControl::Bbr => library::bbr(),
    }
}

/// One thread for everything: client and server share the machine, and more threads only add hand-overs.
pub fn runtime() -> Result<tokio::runtime::Runtime, String> {
    tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(|error| format!("cannot start the runtime: {error}"))
}

/// The options in force, and what is known of the processor.
#[derive(Serialize)]
pub struct InForce {
    #[serde(flatten)]
    pub options: OptionsInForce,
    aes_hardware: Option<bool>,
}

/// Makes a quinn endpoint on `socket`, and tells the options in force.
pub fn endpoint(
    socket: &Socket,
    meter: Meter,
    options: &CommonOptions,
    server: Option<ServerConfig>,
) -> io::Result<(Endpoint, InForce)> {
    let runtime = Arc::new(TokioRuntime);
    let quinn_socket = runtime.wrap_udp_socket(socket.try_clone_std()?)?;
    // quinn has switched GRO on.
    socket.restore_gro()?;
    let mut in_force = socket.in_force(options)?;
    in_force.gso &= socket::has_gso(&quinn_socket);
    in_force.window = window(options);
    in_force.pacing = Some(Pacing::Library);
    let metered = socket::metered(
        quinn_socket,
        meter,
        in_force.gso,
        in_force.gro,
        options.udp_payload,
    );

    let mut config = EndpointConfig::default();
    config.supported_versions(vec![QUIC_V1]);
    // Insist on the fixed bit (RFC 9000, section 17.3.1). Some libraries fill a client's datagrams with zeroes behind the
    // last packet; quinn would take them for a packet and leave it to the AEAD to discard it, which NOOP does not do.
    config.grease_quic_bit(false);
    let largest = config
        .get_max_udp_payload_size()
        .max(options.udp_payload as u64);
    config
        .max_udp_payload_size(largest as u16)
        .map_err(io::Error::other)?;
    let endpoint = Endpoint::new_with_abstract_socket(config, server, metered, runtime)?;
    let in_force = InForce {
        options: in_force,
        aes_hardware: quicbed_rustls::aes_hardware(),
    };
    Ok((endpoint, in_force))
}

/// Fills in what was read back from a connection.
///
/// Packets are UDP datagrams as quinn counts them; a datagram of a handshake can hold several QUIC packets.
pub fn report(
    role: Role,
    common: &mut ConnectionCommon,
    observation: &Observation,
    stats: Option<ConnectionStats>,
    cpu: Option<(Stamp, Stamp)>,
) {
    let observed = observation.observed();
    common.t_handshake_complete = observed.t_handshake_complete;
    common.t_handshake_confirmed = confirmed(role, &observed, stats.as_ref());
    common.hello_retry_request = observed.hello_retry_request;
    common.retry = Some(observed.retry);
    common.cipher = observed.cipher;
    common.group = observed.group;
    common.signature = observed.signature;
    common.alpn = observed.alpn;
    common.tls_version = observed.tls_version;
    if let Some(protection) = observed.protection {
        common.aead = Some(match protection.noop_aead {
            true => Aead::Noop,
            false => Aead::Standard,
        });
        common.header_protection = Some(match protection.header_protection {
            true => HeaderProtection::On,
            false => HeaderProtection::Off,
        });
    }
    if let Some(handshake) = observed.handshake {
        common.handshake_packets_sent = Some(handshake.datagrams_sent);
        common.handshake_packets_received = Some(handshake.datagrams_received);
        common.handshake_bytes_sent = Some(handshake.bytes_sent);
        common.handshake_bytes_received = Some(handshake.bytes_received);
    }
    if let Some(stats) = stats {
        common.packets_sent = Some(stats.udp_tx.datagrams);
        common.packets_received = Some(stats.udp_rx.datagrams);
        common.packets_lost = Some(library::packets_lost(&stats));
    }
    if let Some((start, end)) = cpu {
        let CpuTime { user_ns, system_ns } = end.cpu.since(start.cpu);
        common.cpu_user_ns = Some(user_ns);
        common.cpu_system_ns = Some(system_ns);
    }
}

/// When the handshake was confirmed (RFC 9001, section 4.1.2): the server is done when it is complete, the client drops the
/// keys of Handshake packets as soon as it receives HANDSHAKE_DONE.
fn confirmed(role: Role, observed: &Observed, stats: Option<&ConnectionStats>) -> Option<u64> {
    match role {
        Role::Client => observed
            .t_handshake_keys_discarded
            .filter(|_| stats.is_some_and(|stats| stats.frame_rx.handshake_done > 0)),
        _ => observed.t_handshake_complete,
    }
}

/// An error and what caused it, as one line.
pub fn one_line(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // Some errors repeat what caused them.
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_that_of_the_lock_file() {
        let lock = include_str!("../../../sources/Cargo.lock");
        let entry = format!("name = \"{LIBRARY}\"\nversion = \"{VERSION}\"\n");
        assert!(lock.contains(&entry));
    }

    #[test]
    fn errors_are_one_line_with_their_cause() {
        let lost = quinn::ReadError::ConnectionLost(quinn::ConnectionError::TimedOut);
        assert_eq!(one_line(&lost), "connection lost: timed out");
        assert_eq!(one_line(&io::Error::other("a\n  b\tc")), "a b c");
    }
}
