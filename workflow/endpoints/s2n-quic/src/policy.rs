//! The security policy of this process: one cipher suite, one group, one signature scheme.
//!
//! s2n-tls negotiates what the policy of its configuration lists, and its policies are fixed lists, in a table that
//! `s2n_config_set_cipher_preferences` searches by name. The table is a global that can be written, so the policy that
//! s2n-quic asks for by default is made to be ours before s2n-tls is initialised. Structures are those of s2n-tls-sys
//! 0.3.47 (`tls/s2n_security_policies.h` and the headers it includes), which Cargo.lock pins; what was negotiated is
//! read back from the connection.

use std::ffi::{c_char, CStr};
use std::ptr;

use quicbed_contract::options::{Cipher, CommonOptions};

/// The policy that `s2n_quic::provider::tls::s2n_tls` sets by default.
const REPLACED: &CStr = c"default_tls13";

/// `S2N_TLS13`.
const TLS13: u8 = 34;

/// `S2N_SECURITY_RULES_COUNT`.
const RULES: usize = 2;

/// A structure of s2n-tls that is only pointed to.
#[repr(C)]
struct Opaque {
    _private: [u8; 0],
}

// SAFETY: constants of a C library.
unsafe impl Sync for Opaque {}

#[repr(C)]
struct CipherPreferences {
    count: u16,
    suites: *const *const Opaque,
    allow_chacha20_boosting: bool,
}

#[repr(C)]
struct KemPreferences {
    kem_count: u8,
    kems: *const *const Opaque,
    tls13_kem_group_count: u8,
    tls13_kem_groups: *const *const Opaque,
}

/// `s2n_signature_preferences` and `s2n_ecc_preferences`.
#[repr(C)]
struct Preferences {
    count: u8,
    entries: *const *const Opaque,
}

/// `s2n_security_policy`
#[repr(C)]
struct Policy {
    minimum_protocol_version: u8,
    cipher_preferences: *const CipherPreferences,
    kem_preferences: *const KemPreferences,
    signature_preferences: *const Preferences,
    /// Null does not restrict the signatures inside certificates.
    certificate_signature_preferences: *const Preferences,
    ecc_preferences: *const Preferences,
    strongly_preferred_groups: *const Opaque,
    certificate_key_preferences: *const Opaque,
    certificate_preferences_apply_locally: bool,
    rules: [bool; RULES],
}

/// `s2n_security_policy_selection`; s2n-tls fills in the flags when it is initialised.
#[repr(C)]
struct Selection {
    version: *const c_char,
    policy: *const Policy,
    flags: u32,
}

extern "C" {
    /// Ends with an entry without a version.
    static mut security_policy_selection: [Selection; 0];

    static s2n_tls13_aes_128_gcm_sha256: Opaque;
    static s2n_tls13_aes_256_gcm_sha384: Opaque;
    static s2n_tls13_chacha20_poly1305_sha256: Opaque;

    static s2n_ecc_curve_x25519: Opaque;
    static s2n_ecc_curve_secp256r1: Opaque;
    static s2n_ecc_curve_secp384r1: Opaque;
    static s2n_ecc_curve_secp521r1: Opaque;

    static s2n_pure_mlkem_1024: Opaque;
    static s2n_secp256r1_mlkem_768: Opaque;
    static s2n_secp384r1_mlkem_1024: Opaque;
    static s2n_x25519_mlkem_768: Opaque;

    static s2n_rsa_pss_rsae_sha256: Opaque;
    static s2n_ecdsa_sha256: Opaque;
    static s2n_ecdsa_sha384: Opaque;
    static s2n_mldsa44: Opaque;
    static s2n_mldsa65: Opaque;
    static s2n_mldsa87: Opaque;
}

/// A key-exchange group of TLS 1.3.
enum Group {
    Curve(&'static Opaque),
    Kem(&'static Opaque),
}

pub const GROUPS: [&str; 8] = [
    "x25519",
    "p-256",
    "p-384",
    "p-521",
    "mlkem1024",
    "p-256-mlkem768",
    "x25519-mlkem768",
    "p-384-mlkem1024",
];

fn group(name: &str) -> Option<Group> {
    // SAFETY: constants of s2n-tls.
    unsafe {
        Some(match name {
            "x25519" => Group::Curve(&s2n_ecc_curve_x25519),
            "p-256" => Group::Curve(&s2n_ecc_curve_secp256r1),
            "p-384" => Group::Curve(&s2n_ecc_curve_secp384r1),
            "p-521" => Group::Curve(&s2n_ecc_curve_secp521r1),
            "mlkem1024" => Group::Kem(&s2n_pure_mlkem_1024),
            "p-256-mlkem768" => Group::Kem(&s2n_secp256r1_mlkem_768),
            "x25519-mlkem768" => Group::Kem(&s2n_x25519_mlkem_768),
            "p-384-mlkem1024" => Group::Kem(&s2n_secp384r1_mlkem_1024),
            _ => return None,
        })
    }
}

pub const SIGNATURES: [&str; 8] = [
    "rsa-1024",
    "rsa-2048",
    "rsa-4096",
    "ecdsa-p-256",
    "ecdsa-p-384",
    "mldsa44",
    "mldsa65",
    "mldsa87",
];

fn signature(name: &str) -> Option<&'static Opaque> {
    // SAFETY: constants of s2n-tls.
    unsafe {
        Some(match name {
            "rsa-1024" | "rsa-2048" | "rsa-4096" => &s2n_rsa_pss_rsae_sha256,
            "ecdsa-p-256" => &s2n_ecdsa_sha256,
            "ecdsa-p-384" => &s2n_ecdsa_sha384,
            "mldsa44" => &s2n_mldsa44,
            "mldsa65" => &s2n_mldsa65,
            "mldsa87" => &s2n_mldsa87,
            _ => return None,
        })
    }
}

fn cipher(cipher: Cipher) -> &'static Opaque {
    // SAFETY: constants of s2n-tls.
    unsafe {
        match cipher {
            Cipher::Aes128Gcm => &s2n_tls13_aes_128_gcm_sha256,
            Cipher::Aes256Gcm => &s2n_tls13_aes_256_gcm_sha384,
            Cipher::ChaCha20Poly1305 => &s2n_tls13_chacha20_poly1305_sha256,
        }
    }
}

/// `value`, for as long as the process lives.
fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// A list of the one entry.
fn only(entry: &'static Opaque) -> *const *const Opaque {
    leak(ptr::from_ref(entry))
}

/// Makes the policy of a supported variant the default one. To be called once, before anything of s2n-tls is.
pub fn apply(options: &CommonOptions) {
    let group = group(&options.group).expect("other groups are unsupported");
    let scheme = signature(&options.signature).expect("other algorithms are unsupported");
    let (curves, kems) = match group {
        Group::Curve(curve) => ((1, only(curve)), (0, ptr::null())),
        Group::Kem(kem) => ((0, ptr::null()), (1, only(kem))),
    };
    let policy = leak(Policy {
        minimum_protocol_version: TLS13,
        cipher_preferences: leak(CipherPreferences {
            count: 1,
            suites: only(cipher(options.cipher)),
            allow_chacha20_boosting: false,
        }),
        kem_preferences: leak(KemPreferences {
            kem_count: 0,
            kems: ptr::null(),
            tls13_kem_group_count: kems.0,
            tls13_kem_groups: kems.1,
        }),
        signature_preferences: leak(Preferences {
            count: 1,
            entries: only(scheme),
        }),
        certificate_signature_preferences: ptr::null(),
        ecc_preferences: leak(Preferences {
            count: curves.0,
            entries: curves.1,
        }),
        strongly_preferred_groups: ptr::null(),
        certificate_key_preferences: ptr::null(),
        certificate_preferences_apply_locally: false,
        rules: [false; RULES],
    });
    // SAFETY: the table is an array that ends with a null version; no other thread is there to read it yet.
    unsafe {
        let mut entry: *mut Selection = (&raw mut security_policy_selection).cast();
        while !(*entry).version.is_null() {
            if CStr::from_ptr((*entry).version) == REPLACED {
                (*entry).policy = policy;
                return;
            }
            entry = entry.add(1);
        }
    }
    unreachable!("s2n-tls has a policy {REPLACED:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found() {
        assert!(GROUPS.iter().all(|name| group(name).is_some()));
        assert!(SIGNATURES.iter().all(|name| signature(name).is_some()));
        assert!(group("mlkem768").is_none());
        assert!(signature("ed25519").is_none());
    }
}
