//! picoquic as an endpoint of the contract: what its client and its server share.

pub mod client;
mod connection;
mod endpoint;
mod ffi;
mod header;
pub mod io;
#[cfg(feature = "pq")]
pub mod primitives;
pub mod server;

use std::ffi::CStr;

use quicbed_contract::events::OptionsInForce;
use quicbed_contract::options::{CommonOptions, CongestionControl, Description, Pacing};
use quicbed_poll::Library;
use serde::Serialize;

pub const LIBRARY: &str = "picoquic";
pub const VERSION: &str = env!("PICOQUIC_VERSION");
const TLS_LIBRARY: &str = concat!("picotls with OpenSSL ", env!("OPENSSL_VERSION"));

/// A connection without a packet for this long is dead. Long enough that only a lost peer gets there.
const IDLE_TIMEOUT_MS: u64 = 30_000;

/// Largest datagram: picoquic has room for 1536 bytes, of which this endpoint announces these.
const MAX_UDP_PAYLOAD: usize = 1_500;

/// picoquic with picotls and OpenSSL.
pub struct Picoquic;

/// The options in force, and what OpenSSL tells about the processor.
#[derive(Serialize)]
pub struct InForce {
    #[serde(flatten)]
    options: OptionsInForce,
    aes_hardware: Option<bool>,
    /// How datagrams pass, if neither by GSO and GRO nor one by one.
    #[serde(skip_serializing_if = "Option::is_none")]
    io: Option<&'static str>,
    /// Whether AF_XDP copies frames, and where its program is.
    #[serde(skip_serializing_if = "Option::is_none")]
    xdp: Option<String>,
}

impl Library for Picoquic {
    const NAME: &'static str = LIBRARY;
    const VERSION: &'static str = VERSION;
    type InForce = InForce;

    fn description() -> Description {
        let noop = cfg!(feature = "noop");
        let mut description = Description::quic(LIBRARY, VERSION, TLS_LIBRARY, noop);
        for (name, built) in [
            ("pq", cfg!(feature = "pq")),
            ("fusion", cfg!(feature = "fusion")),
            ("linear", cfg!(feature = "linear")),
            ("splay", cfg!(feature = "splay")),
        ] {
            if built {
                description.flavour_features.push(name);
            }
        }
        Description {
            groups: endpoint::groups(),
            signatures: endpoint::signatures(),
            congestion_controls: CongestionControl::ALL.to_vec(),
            pacing: vec![Pacing::Library],
            ..description
        }
    }

    fn unsupported(options: &CommonOptions) -> Option<String> {
        if options.udp_payload > MAX_UDP_PAYLOAD {
            return Some(format!(
                "picoquic has no datagrams above PICOQUIC_MAX_PACKET_SIZE, of which {MAX_UDP_PAYLOAD} bytes are used"
            ));
        }
        // SAFETY: has no conditions; what it returns is static.
        let reason = unsafe { ffi::qp_cannot_run() };
        if !reason.is_null() {
            // SAFETY: as above.
            let reason = unsafe { CStr::from_ptr(reason) };
            return Some(reason.to_string_lossy().into_owned());
        }
        io::cannot().or_else(|| Self::description().unsupported(options))
    }

    fn in_force(mut options: OptionsInForce) -> Self::InForce {
        // picoquic always paces.
        options.pacing = Some(Pacing::Library);
        // What is a batch of GSO for the program is none for the kernel.
        options.gso &= io::given().is_none();
        // SAFETY: has no conditions.
        let aes_hardware = match unsafe { ffi::qp_aes_hardware() } {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        };
        InForce {
            options,
            aes_hardware,
            io: io::given().map(io::Io::name),
            xdp: io::mode(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_works_is_offered() {
        let asked = CommonOptions::default();
        assert_eq!(Picoquic::unsupported(&asked), None);
        for congestion_control in CongestionControl::ALL {
            let asked = CommonOptions {
                congestion_control,
                ..asked.clone()
            };
            assert_eq!(Picoquic::unsupported(&asked), None);
        }
        for pacing in [Pacing::Off, Pacing::Txtime] {
            let asked = CommonOptions {
                pacing: Some(pacing),
                ..asked.clone()
            };
            assert!(Picoquic::unsupported(&asked).is_some());
        }
        let jumbo = CommonOptions {
            udp_payload: 1_501,
            ..asked
        };
        assert!(Picoquic::unsupported(&jumbo).is_some());
    }

    #[test]
    fn versions_are_those_of_the_sources() {
        assert!(VERSION.starts_with("1.1."), "{VERSION}");
        assert!(
            TLS_LIBRARY.starts_with("picotls with OpenSSL 3."),
            "{TLS_LIBRARY}"
        );
    }
}
