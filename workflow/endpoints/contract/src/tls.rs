//! Names of TLS 1.3 code points as IANA registers them, and as the command line of the contract spells them.

/// A key-exchange group, from the registry "TLS Supported Groups".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Value of `--group`.
    pub option: &'static str,
    pub iana: &'static str,
    pub code_point: u16,
}

/// Groups known by name; which of them a library has, its endpoint says.
pub const GROUPS: [Group; 10] = [
    group("x25519", "x25519", 29),
    group("x448", "x448", 30),
    group("p-256", "secp256r1", 23),
    group("p-384", "secp384r1", 24),
    group("p-521", "secp521r1", 25),
    group("mlkem512", "MLKEM512", 512),
    group("mlkem768", "MLKEM768", 513),
    group("mlkem1024", "MLKEM1024", 514),
    group("p-256-mlkem768", "SecP256r1MLKEM768", 4587),
    group("x25519-mlkem768", "X25519MLKEM768", 4588),
];

const fn group(option: &'static str, iana: &'static str, code_point: u16) -> Group {
    Group {
        option,
        iana,
        code_point,
    }
}

/// IANA name of a group, `None` for a code point not known here.
pub fn group_name(code_point: u16) -> Option<&'static str> {
    let known = GROUPS.iter().find(|group| group.code_point == code_point);
    known.map(|group| group.iana)
}

/// IANA name of a signature scheme (registry "TLS SignatureScheme"), `None` for a code point not known here.
pub fn signature_name(code_point: u16) -> Option<&'static str> {
    Some(match code_point {
        0x0401 => "rsa_pkcs1_sha256",
        0x0403 => "ecdsa_secp256r1_sha256",
        0x0501 => "rsa_pkcs1_sha384",
        0x0503 => "ecdsa_secp384r1_sha384",
        0x0601 => "rsa_pkcs1_sha512",
        0x0603 => "ecdsa_secp521r1_sha512",
        0x0804 => "rsa_pss_rsae_sha256",
        0x0805 => "rsa_pss_rsae_sha384",
        0x0806 => "rsa_pss_rsae_sha512",
        0x0807 => "ed25519",
        0x0808 => "ed448",
        0x0809 => "rsa_pss_pss_sha256",
        0x080a => "rsa_pss_pss_sha384",
        0x080b => "rsa_pss_pss_sha512",
        0x0904 => "mldsa44",
        0x0905 => "mldsa65",
        0x0906 => "mldsa87",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_points_have_one_name_each() {
        for group in GROUPS {
            assert_eq!(group_name(group.code_point), Some(group.iana));
        }
        assert_eq!(group_name(23), Some("secp256r1"));
        assert_eq!(group_name(0), None);
        assert_eq!(signature_name(0x0804), Some("rsa_pss_rsae_sha256"));
        assert_eq!(signature_name(0), None);
    }
}
