//! The switches of the noop flavour: packet protection replaced for the whole process.

use quicbed_contract::options::CommonOptions;

/// Whether this build has the switches.
pub const AVAILABLE: bool = cfg!(feature = "noop");

/// Does to packet protection what the options ask for. To be called once, before the first connection.
#[cfg(feature = "noop")]
pub fn apply(options: &CommonOptions) {
    use quicbed_contract::options::{Aead, HeaderProtection};
    use std::ffi::c_void;

    extern "C" {
        /// workflow/crypto/noop-aead/noop_aead.cc
        fn quicbed_noop_aead(key_length: usize) -> *const c_void;
    }

    let aead: Option<quiche::AeadByKeyLen> = match options.aead {
        Aead::Noop => Some(quicbed_noop_aead),
        Aead::Standard | Aead::Noenc => None,
    };
    let clear_headers = options.header_protection == HeaderProtection::Off;
    let first = quiche::override_packet_protection(aead, clear_headers);
    assert!(first, "packet protection is chosen once per process");
}

/// A stock build protects packets as the library does; other options are refused before.
#[cfg(not(feature = "noop"))]
pub fn apply(_options: &CommonOptions) {}
