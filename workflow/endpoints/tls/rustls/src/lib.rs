//! What endpoints on rustls with ring share: one suite, group and signature algorithm, and what packets are protected with.
//!
//! The feature `noop` adds the switchable packet protection of [`protection`], the feature `pq` the groups and signatures of
//! liboqs and the [`primitives`] program. Everything goes through public traits of rustls.

#[cfg(feature = "pq")]
mod ecdh_p521;
mod groups;
#[cfg(feature = "pq")]
mod kem;
pub mod key_log;
#[cfg(feature = "pq")]
mod liboqs_signature;
#[cfg(feature = "pq")]
pub mod primitives;
pub mod probe;
#[cfg(feature = "noop")]
pub mod protection;
#[cfg(feature = "pq")]
mod rsa_1024;
mod signatures;
pub mod tls;

use quicbed_contract::options::Description;

/// Name and version of rustls.
pub const RUSTLS: &str = "rustls 0.23.46";

/// The abilities of a library of this name and version by this build of rustls.
pub fn description(library: &'static str, version: &'static str) -> Description {
    let mut description = Description::quic(library, version, RUSTLS, cfg!(feature = "noop"));
    if cfg!(feature = "pq") {
        description.flavour_features.push("pq");
    }
    Description {
        groups: groups::names(),
        signatures: signatures::names(),
        ..description
    }
}

/// Whether ring uses the AES instructions of the processor. It does not tell, and nothing switches them off: these are
/// the features that it goes by on x86-64 (`RequiredCpuFeatures` of `hw` and `clmul` in its src/aead), read from the same
/// CPUID. `None` on other processors.
pub fn aes_hardware() -> Option<bool> {
    #[cfg(target_arch = "x86_64")]
    return Some(
        is_x86_feature_detected!("aes")
            && is_x86_feature_detected!("pclmulqdq")
            && is_x86_feature_detected!("ssse3"),
    );
    #[cfg(not(target_arch = "x86_64"))]
    None
}

#[cfg(test)]
mod tests {
    #[test]
    fn versions_are_those_of_the_lock_file() {
        let lock = include_str!("../../../../sources/Cargo.lock");
        for library in [super::RUSTLS, super::signatures::RING] {
            let (name, version) = library.split_once(' ').unwrap();
            let entry = format!("name = \"{name}\"\nversion = \"{version}\"\n");
            assert!(lock.contains(&entry), "{library}");
        }
    }
}
