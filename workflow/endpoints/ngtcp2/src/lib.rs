//! ngtcp2 as an endpoint of the contract: what its client and its server share.

pub mod client;
mod connection;
#[allow(unsafe_op_in_unsafe_fn)]
mod ffi;
pub mod open_loop;
mod protection;
pub mod server;

use quicbed_contract::events::OptionsInForce;
use quicbed_contract::options::{CongestionControl, Description, Pacing};
use quicbed_poll::Library;

pub const LIBRARY: &str = "ngtcp2";
pub const VERSION: &str = env!("NGTCP2_VERSION");
const TLS_LIBRARY: &str = "BoringSSL of boring-sys 5.4.0";

/// A connection without a packet for this long is dead. Long enough that only a lost peer gets there.
const IDLE_TIMEOUT_NS: u64 = 30_000_000_000;

/// Streams a client may have open at once.
const MAX_STREAMS: u64 = 100;

/// Length of the connection IDs that both roles choose, in bytes.
const CONNECTION_ID_LENGTH: usize = 16;

/// ngtcp2 with BoringSSL.
pub struct Ngtcp2;

impl Library for Ngtcp2 {
    const NAME: &'static str = LIBRARY;
    const VERSION: &'static str = VERSION;
    type InForce = quicbed_boringssl::InForce;

    fn description() -> Description {
        let mut description =
            Description::quic(LIBRARY, VERSION, TLS_LIBRARY, protection::AVAILABLE);
        if cfg!(feature = "pq") {
            description.flavour_features.push("pq");
        }
        Description {
            groups: quicbed_boringssl::groups(),
            signatures: quicbed_boringssl::signatures(),
            congestion_controls: CongestionControl::ALL.to_vec(),
            pacing: vec![Pacing::Off, Pacing::Library],
            ..description
        }
    }

    fn in_force(options: OptionsInForce) -> Self::InForce {
        quicbed_boringssl::InForce::new(options)
    }
}

#[cfg(test)]
mod tests {
    use quicbed_contract::options::CommonOptions;

    use super::*;

    #[test]
    fn versions_are_those_of_the_sources() {
        assert!(VERSION.starts_with("1."), "{VERSION}");
        let lock = include_str!("../../../sources/Cargo.lock");
        let boring = TLS_LIBRARY.rsplit(' ').next().unwrap();
        let entry = format!("name = \"boring-sys\"\nversion = \"{boring}\"\n");
        assert!(lock.contains(&entry), "boring-sys {boring}");
    }

    #[test]
    fn every_congestion_control_is_offered() {
        for congestion_control in CongestionControl::ALL {
            let asked = CommonOptions {
                congestion_control,
                ..CommonOptions::default()
            };
            assert_eq!(Ngtcp2::unsupported(&asked), None);
        }
    }
}
