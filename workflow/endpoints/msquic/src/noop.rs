//! The switches of a MsQuic patched with `workflow/crypto/patches/msquic/noop.patch`.

use std::ffi::c_char;

use quicbed_contract::options::{Aead, CommonOptions, HeaderProtection};

use crate::ffi;

extern "C" {
    fn quicbed_noop_cipher(name: *const c_char) -> *mut ffi::EVP_CIPHER;
    /// In the order of `CXPLAT_AEAD_TYPE`.
    static mut CxPlatReplacementCipher: [*mut ffi::EVP_CIPHER; 3];
    static mut CxPlatHeaderProtectionDisabled: u8;
}

/// Chooses what the keys of Handshake and 1-RTT packets do. To be called before MsQuic is started.
pub fn configure(options: &CommonOptions) -> Result<(), String> {
    // SAFETY: the worker threads, which read these, are not started yet; the names are strings of C.
    unsafe {
        CxPlatHeaderProtectionDisabled =
            (options.header_protection == HeaderProtection::Off).into();
        if options.aead == Aead::Noop {
            let names = [c"AES-128-GCM", c"AES-256-GCM", c"ChaCha20-Poly1305"];
            let ciphers = names.map(|name| quicbed_noop_cipher(name.as_ptr()));
            if ciphers.iter().any(|cipher| cipher.is_null()) {
                return Err(
                    "quictls cannot load the ciphers of flavour noop; build it again".into(),
                );
            }
            CxPlatReplacementCipher = ciphers;
        }
    }
    Ok(())
}
