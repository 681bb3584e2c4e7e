//! Key-exchange groups by their names on the command line, as objects of rustls' public trait.

use quicbed_contract::tls::{self, Group};
use rustls::crypto::ring::kx_group;
use rustls::crypto::SupportedKxGroup;

use crate::signatures::RING;

/// A group and what computes it.
#[derive(Clone)]
pub struct KeyExchange {
    pub group: &'static dyn SupportedKxGroup,
    /// Names and versions of the implementations, in the order of the parts of the key share.
    #[cfg_attr(not(feature = "pq"), expect(dead_code, reason = "told by primitives"))]
    pub implementation: String,
}

/// Names of the groups of this build.
pub fn names() -> Vec<&'static str> {
    tls::GROUPS
        .iter()
        .filter(|group| supported(group))
        .map(|group| group.name)
        .collect()
}

/// The group of a name, `None` if this build does not have it. Lives as long as the process, as rustls wants it.
pub fn find(name: &str) -> Option<KeyExchange> {
    let group = tls::group(name)?;
    match group.liboqs {
        Some(kem) => post_quantum(group, kem),
        None => classical(group.classical?),
    }
}

fn supported(group: &Group) -> bool {
    group.liboqs.is_none_or(has_kem) && group.classical.is_none_or(|name| classical(name).is_some())
}

/// Whether this build has a KEM, and an implementation of it for this processor.
#[cfg(feature = "pq")]
fn has_kem(name: &str) -> bool {
    quicbed_pq::Kem::find(name).is_some()
}

#[cfg(not(feature = "pq"))]
fn has_kem(_: &str) -> bool {
    false
}

fn classical(name: &str) -> Option<KeyExchange> {
    let of_ring = |group| {
        Some(KeyExchange {
            group,
            implementation: RING.into(),
        })
    };
    match name {
        "x25519" => of_ring(kx_group::X25519),
        "p-256" => of_ring(kx_group::SECP256R1),
        "p-384" => of_ring(kx_group::SECP384R1),
        #[cfg(feature = "pq")]
        "p-521" => Some(KeyExchange {
            group: &crate::ecdh_p521::EcdhP521,
            implementation: crate::ecdh_p521::IMPLEMENTATION.into(),
        }),
        _ => None,
    }
}

#[cfg(feature = "pq")]
fn post_quantum(group: &Group, kem: &str) -> Option<KeyExchange> {
    use crate::kem::{Hybrid, LiboqsKem};

    let kem = quicbed_pq::Kem::find(kem)?;
    let liboqs = kem.implementation();
    let kem = LiboqsKem::new(kem, group.code_point.into());
    let Some(name) = group.classical else {
        return Some(KeyExchange {
            group: Box::leak(Box::new(kem)),
            implementation: liboqs.into(),
        });
    };
    let classical = classical(name)?;
    let implementation = match group.pq_first {
        true => format!("{liboqs} + {}", classical.implementation),
        false => format!("{} + {liboqs}", classical.implementation),
    };
    Some(KeyExchange {
        group: Box::leak(Box::new(Hybrid::new(classical.group, kem, group.pq_first))),
        implementation,
    })
}

#[cfg(not(feature = "pq"))]
fn post_quantum(_: &Group, _: &str) -> Option<KeyExchange> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_with_its_code_point() {
        for name in names() {
            let found = find(name).unwrap();
            let expected = tls::group(name).unwrap().code_point;
            assert_eq!(u16::from(found.group.name()), expected, "{name}");
        }
        assert!(names().starts_with(&["x25519", "p-256", "p-384"]));
    }

    #[test]
    fn other_names_are_not_found() {
        for name in ["x448", "X25519", ""] {
            assert!(find(name).is_none(), "{name}");
        }
        #[cfg(not(feature = "pq"))]
        assert!(find("kyber512").is_none());
    }

    #[test]
    fn both_sides_get_the_same_secret() {
        for name in names() {
            let group = find(name).unwrap().group;
            let client = group.start().unwrap();
            let server = group.start_and_complete(client.pub_key()).unwrap();
            assert_eq!(client.group(), server.group);
            let secret = client.complete(&server.pub_key).unwrap();
            assert_eq!(
                secret.secret_bytes(),
                server.secret.secret_bytes(),
                "{name}"
            );
        }
    }

    #[test]
    fn shares_of_wrong_sizes_are_refused() {
        for name in names() {
            let group = find(name).unwrap().group;
            let share = group.start().unwrap().pub_key().to_vec();
            for wrong in [&share[..share.len() - 1], &[&share[..], &[0]].concat(), &[]] {
                assert!(group.start_and_complete(wrong).is_err(), "{name}");
            }
            let answer = group.start_and_complete(&share).unwrap().pub_key;
            for wrong in [
                &answer[..answer.len() - 1],
                &[&answer[..], &[0]].concat(),
                &[],
            ] {
                assert!(group.start().unwrap().complete(wrong).is_err(), "{name}");
            }
        }
    }
}
