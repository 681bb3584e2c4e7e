//! Groups and signature algorithms, as the command line, TLS and their sources spell them.

pub use crate::algorithms::{GROUPS, SIGNATURES};

/// A key-exchange group: a row of kind `group` in `workflow/crypto/algorithms.csv`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Value of `--group`.
    pub name: &'static str,
    pub tls_name: &'static str,
    pub code_point: u16,
    /// The KEM's name in liboqs, `None` for (EC)DH alone.
    pub liboqs: Option<&'static str>,
    /// The (EC)DH group, `None` for a KEM alone.
    pub classical: Option<&'static str>,
    /// Of a hybrid: whether the KEM's part comes first in shares and secret.
    pub pq_first: bool,
}

/// A signature algorithm of certificates: a row of kind `signature` in `workflow/crypto/algorithms.csv`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Value of `--signature`.
    pub name: &'static str,
    /// The TLS signature scheme; those of RSA keys of all sizes are the same.
    pub tls_name: &'static str,
    pub code_point: u16,
    /// The name in liboqs, `None` for a classical algorithm.
    pub liboqs: Option<&'static str>,
    /// The classical algorithm with its key size, `None` for a post-quantum one.
    pub classical: Option<&'static str>,
    /// Object identifier of the public key, dotted and as a DER OBJECT IDENTIFIER with tag and length.
    pub oid: &'static str,
    pub oid_der: &'static [u8],
}

/// The group that `--group` names.
pub fn group(name: &str) -> Option<&'static Group> {
    GROUPS.iter().find(|group| group.name == name)
}

/// The signature algorithm that `--signature` names.
pub fn signature(name: &str) -> Option<&'static Signature> {
    SIGNATURES.iter().find(|signature| signature.name == name)
}

/// TLS name of a group, `None` for a code point that is not in the table.
pub fn group_name(code_point: u16) -> Option<&'static str> {
    let known = GROUPS.iter().find(|group| group.code_point == code_point);
    known.map(|group| group.tls_name)
}

/// TLS name of a signature scheme, `None` for a code point that is not in the table and no further scheme of RSA or ECDSA
/// that a peer may choose.
pub fn signature_name(code_point: u16) -> Option<&'static str> {
    let known = SIGNATURES.iter().find(|s| s.code_point == code_point);
    known.map(|s| s.tls_name).or(match code_point {
        0x0401 => Some("rsa_pkcs1_sha256"),
        0x0501 => Some("rsa_pkcs1_sha384"),
        0x0601 => Some("rsa_pkcs1_sha512"),
        0x0603 => Some("ecdsa_secp521r1_sha512"),
        0x0805 => Some("rsa_pss_rsae_sha384"),
        0x0806 => Some("rsa_pss_rsae_sha512"),
        0x0808 => Some("ed448"),
        0x0809 => Some("rsa_pss_pss_sha256"),
        0x080a => Some("rsa_pss_pss_sha384"),
        0x080b => Some("rsa_pss_pss_sha512"),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_points_have_one_name_each() {
        for group in GROUPS {
            assert_eq!(group_name(group.code_point), Some(group.tls_name));
            assert_eq!(super::group(group.name).unwrap(), &group);
        }
        for signature in SIGNATURES {
            assert_eq!(
                signature_name(signature.code_point),
                Some(signature.tls_name)
            );
            assert_eq!(super::signature(signature.name).unwrap(), &signature);
        }
        assert_eq!(group_name(23), Some("secp256r1"));
        assert_eq!(group_name(0), None);
        assert_eq!(signature_name(0x0804), Some("rsa_pss_rsae_sha256"));
        assert_eq!(signature_name(0x0601), Some("rsa_pkcs1_sha512"));
        assert_eq!(signature_name(0), None);
    }

    #[test]
    fn object_identifiers_are_whole() {
        for signature in SIGNATURES {
            assert_eq!(signature.oid_der[0], 0x06);
            assert_eq!(
                usize::from(signature.oid_der[1]),
                signature.oid_der.len() - 2
            );
        }
        // RFC 8410, section 3
        let ed25519 = signature("ed25519").unwrap();
        assert_eq!(ed25519.oid_der, [0x06, 0x03, 0x2b, 0x65, 0x70]);
    }
}
