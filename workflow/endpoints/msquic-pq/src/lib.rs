//! The endpoint on MsQuic with the key-exchange groups of liboqs: the crate of the same name, except that quictls gets the
//! provider of `workflow/crypto/pq/openssl-provider` before MsQuic uses it. MsQuic and quictls are those of flavour stock.

use quicbed_contract::options::{CommonOptions, Description};
use quicbed_contract::tls::GROUPS;

pub use endpoint::*;

#[allow(
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unsafe_op_in_unsafe_fn,
    dead_code,
    clippy::all
)]
mod ffi {
    //! Declarations of quictls' libcrypto that bindgen generates.
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}
pub mod primitives;

/// A group of the endpoint without the provider.
const ORDINARY_GROUP: &str = "x25519";

pub fn description() -> Description {
    let mut description = endpoint::description();
    description.flavour_features.push("pq");
    let here = GROUPS.iter().filter(|group| {
        let has_kem = |kem| primitives::implementation_of(kem).is_some();
        group.liboqs.is_none_or(has_kem)
    });
    description.groups = here.map(|group| group.name).collect();
    description
}

/// Why this build cannot do what is asked, or `None` if it can.
pub fn unsupported(options: &CommonOptions) -> Option<String> {
    let description = description();
    if !description.groups.contains(&options.group.as_str()) {
        return description.unsupported(options);
    }
    // Everything but the groups is as without the provider.
    let mut asked = options.clone();
    asked.group = ORDINARY_GROUP.into();
    endpoint::unsupported(&asked)
}

pub mod tls {
    //! The TLS side of MsQuic, with the provider.

    use std::ffi::c_int;

    use quicbed_contract::options::CommonOptions;

    pub use endpoint::tls::*;

    extern "C" {
        fn quicbed_load_provider() -> c_int;
    }

    /// Loads the provider, and chooses what contexts made from now on offer and accept.
    pub fn configure(options: &CommonOptions, server_name: Option<&str>) -> Result<(), String> {
        // Leaves the configuration of the host aside, so it comes before quictls is used.
        endpoint::tls::configure(options, server_name)?;
        // SAFETY: MsQuic, whose threads use quictls, is not started yet.
        match unsafe { quicbed_load_provider() } {
            1 => Ok(()),
            _ => Err("quictls cannot load the groups of flavour pq; build it again".into()),
        }
    }
}
