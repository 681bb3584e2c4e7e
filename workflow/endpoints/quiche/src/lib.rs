//! quiche as an endpoint of the contract: what its client and its server share.

pub mod client;
mod closing;
mod connection;
mod http3;
mod noop;
mod pq;
mod releases;
pub mod server;
mod token;

use quicbed_contract::events::OptionsInForce;
use quicbed_contract::options::{Alpn, CommonOptions, CongestionControl, Description, Pacing};
use quicbed_poll::Library;

pub const LIBRARY: &str = "quiche";
pub const VERSION: &str = "0.30.0";
const TLS_LIBRARY: &str = "BoringSSL of boring-sys 5.4.0";

/// A connection without a packet for this long is dead. Long enough that only a lost peer gets there.
const IDLE_TIMEOUT_MS: u64 = 30_000;

/// Streams a client may have open at once.
const MAX_STREAMS: u64 = 100;

/// Largest datagram quiche sends after the handshake: it writes packet lengths as two-byte integers.
const MAX_UDP_PAYLOAD: usize = 16_383;

/// quiche with BoringSSL.
pub struct Quiche;

impl Library for Quiche {
    const NAME: &'static str = LIBRARY;
    const VERSION: &'static str = VERSION;
    type InForce = quicbed_boringssl::InForce;

    fn description() -> Description {
        let mut description = Description::quic(LIBRARY, VERSION, TLS_LIBRARY, noop::AVAILABLE);
        if pq::AVAILABLE {
            description.flavour_features.push("pq");
        }
        Description {
            alpn: vec![Alpn::HqInterop, Alpn::H3],
            groups: quicbed_boringssl::groups(),
            signatures: quicbed_boringssl::signatures(),
            initial_size: pq::AVAILABLE,
            congestion_controls: CongestionControl::ALL.to_vec(),
            pacing: vec![Pacing::Off, Pacing::Library, Pacing::Txtime],
            gso_paced: true,
            ..description
        }
    }

    fn unsupported(options: &CommonOptions) -> Option<String> {
        if options.udp_payload > MAX_UDP_PAYLOAD {
            return Some(format!(
                "quiche sends no datagrams above {MAX_UDP_PAYLOAD} bytes"
            ));
        }
        if options.initial_size > quiche::MIN_CLIENT_INITIAL_LEN && !pq::AVAILABLE {
            return Some(format!(
                "quiche sends no datagrams above MIN_CLIENT_INITIAL_LEN, {} bytes, until the handshake is complete",
                quiche::MIN_CLIENT_INITIAL_LEN
            ));
        }
        if options.congestion_control != CongestionControl::Bbr
            && matches!(options.pacing, Some(Pacing::Library | Pacing::Txtime))
        {
            return Some("quiche computes release times with BBR only".into());
        }
        Self::description().unsupported(options)
    }

    fn in_force(options: OptionsInForce) -> Self::InForce {
        quicbed_boringssl::InForce::new(options)
    }
}

/// The transport configuration of both roles around a TLS context.
fn configure(
    tls: boring::ssl::SslContextBuilder,
    options: &CommonOptions,
) -> Result<quiche::Config, String> {
    configuration(tls, options).map_err(|error| format!("cannot set up quiche: {error}"))
}

fn configuration(
    tls: boring::ssl::SslContextBuilder,
    options: &CommonOptions,
) -> Result<quiche::Config, quiche::Error> {
    let mut config = quiche::Config::with_boring_ssl_ctx_builder(quiche::PROTOCOL_VERSION, tls)?;
    config.set_application_protos(&[options.alpn.name().as_bytes()])?;
    config.set_cc_algorithm(match options.congestion_control {
        CongestionControl::Cubic => quiche::CongestionControlAlgorithm::CUBIC,
        CongestionControl::Reno => quiche::CongestionControlAlgorithm::Reno,
        CongestionControl::Bbr => quiche::CongestionControlAlgorithm::Bbr2Gcongestion,
    });
    // quiche never sleeps between packets, it only tells the program when each should leave; without pacing that is at once.
    config.enable_pacing(quicbed_poll::pacing(options) != Pacing::Off);
    config.discover_pmtu(false);
    config.set_max_send_udp_payload_size(options.udp_payload);
    pq::set_initial_size(&mut config, options.initial_size);
    config.set_max_idle_timeout(IDLE_TIMEOUT_MS);
    config.set_disable_active_migration(true);
    // quiche starts with the initial limits as its windows and never lets them grow beyond the maxima.
    config.set_initial_max_data(options.window);
    config.set_initial_max_stream_data_bidi_local(options.window);
    config.set_initial_max_stream_data_bidi_remote(options.window);
    config.set_max_connection_window(options.window);
    config.set_max_stream_window(options.window);
    config.set_initial_max_streams_bidi(MAX_STREAMS);
    if options.alpn == Alpn::H3 {
        http3::allow(&mut config, options.window);
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_of_the_lock_file() {
        let lock = include_str!("../../../sources/Cargo.lock");
        let boring = TLS_LIBRARY.rsplit(' ').next().unwrap();
        for (name, version) in [("quiche", VERSION), ("boring-sys", boring)] {
            let entry = format!("name = \"{name}\"\nversion = \"{version}\"\n");
            assert!(
                lock.contains(&entry),
                "{name} {version} is not in Cargo.lock"
            );
        }
    }

    #[test]
    fn only_what_works_is_offered() {
        let asked = CommonOptions::default();
        assert_eq!(Quiche::unsupported(&asked), None);
        let http3 = CommonOptions {
            alpn: Alpn::H3,
            ..asked.clone()
        };
        assert_eq!(Quiche::unsupported(&http3), None);
        for congestion_control in CongestionControl::ALL {
            let paced = CommonOptions {
                congestion_control,
                pacing: Some(Pacing::Txtime),
                ..asked.clone()
            };
            let able = congestion_control == CongestionControl::Bbr;
            assert_eq!(Quiche::unsupported(&paced).is_none(), able);
        }
        let larger_initial = CommonOptions {
            initial_size: 1_201,
            ..asked.clone()
        };
        assert_eq!(
            Quiche::unsupported(&larger_initial).is_none(),
            pq::AVAILABLE
        );
        let jumbo = CommonOptions {
            udp_payload: 16_384,
            ..asked
        };
        assert!(Quiche::unsupported(&jumbo).is_some());
    }
}
