//! The switches of the noop flavour: packet protection replaced for the whole process, in Handshake and 1-RTT packets.

/// Whether this build has the switches.
pub const AVAILABLE: bool = cfg!(feature = "noop");

#[cfg(not(feature = "noop"))]
pub use crate::ffi::ngtcp2_crypto_hp_mask_cb as mask;
#[cfg(feature = "noop")]
pub use noop::mask;

use quicbed_contract::options::CommonOptions;

/// Does to packet protection what the options ask for. To be called once, after ngtcp2's helper has taken the context and
/// before the first connection.
#[cfg(feature = "noop")]
pub fn apply(
    context: &mut boring::ssl::SslContextBuilder,
    options: &CommonOptions,
) -> Result<(), String> {
    noop::apply(context, options)
}

/// A stock build protects packets as the library does; other options are refused before.
#[cfg(not(feature = "noop"))]
pub fn apply(
    _context: &mut boring::ssl::SslContextBuilder,
    _options: &CommonOptions,
) -> Result<(), String> {
    Ok(())
}

#[cfg(feature = "noop")]
mod noop {
    use std::ffi::{c_int, c_void};
    use std::mem;
    use std::ptr;
    use std::sync::atomic::{AtomicI32, Ordering};
    use std::sync::OnceLock;

    use boring::ssl::SslContextBuilder;
    use boring_sys::{ssl_encryption_level_t, SSL, SSL_CIPHER, SSL_QUIC_METHOD};
    use quicbed_contract::options::{Aead, CommonOptions, HeaderProtection};

    use crate::ffi;

    extern "C" {
        /// workflow/crypto/noop-aead/noop_aead.cc
        fn quicbed_noop_aead(key_length: usize) -> *const c_void;
    }

    static CHOSEN: OnceLock<(Aead, HeaderProtection)> = OnceLock::new();

    /// A cipher for header protection of the same kind as the one negotiated (its description is one enumeration), told
    /// apart from that of Initial packets by its address.
    static CLEAR: AtomicI32 = AtomicI32::new(0);

    /// What ngtcp2's helper registers, with the two functions replaced that install keys.
    static METHOD: SSL_QUIC_METHOD = SSL_QUIC_METHOD {
        set_read_secret: Some(set_read_secret),
        set_write_secret: Some(set_write_secret),
        add_handshake_data: Some(add_handshake_data),
        flush_flight: Some(flush_flight),
        send_alert: Some(send_alert),
    };

    pub fn apply(context: &mut SslContextBuilder, options: &CommonOptions) -> Result<(), String> {
        let chosen = (options.aead, options.header_protection);
        CHOSEN
            .set(chosen)
            .map_err(|_| "packet protection is chosen once per process")?;
        // SAFETY: the context is valid, and the method lives for ever.
        match unsafe { boring_sys::SSL_CTX_set_quic_method(context.as_ptr(), &METHOD) } {
            1 => Ok(()),
            _ => Err("BoringSSL does not take the callbacks of the noop flavour".into()),
        }
    }

    /// The connection of a TLS session.
    ///
    /// # Safety
    /// In this and the following functions, BoringSSL and ngtcp2 pass valid objects and buffers, the session's
    /// application data being the connection's reference.
    unsafe fn connection(ssl: *mut SSL) -> *mut ffi::ngtcp2_conn {
        // SAFETY: see above.
        unsafe {
            let reference: *mut ffi::ngtcp2_crypto_conn_ref =
                boring_sys::SSL_get_ex_data(ssl, 0).cast();
            (*reference).user_data.cast()
        }
    }

    /// Sets the algorithms of Handshake and 1-RTT packets, before the first key is derived for them.
    unsafe fn choose(connection: *mut ffi::ngtcp2_conn, ssl: *mut SSL) -> bool {
        // SAFETY: see `connection`; all zeroes is a valid structure, and the first call fills it.
        unsafe {
            let known = ffi::ngtcp2_conn_get_crypto_ctx2(connection);
            if !(*known).aead.native_handle.is_null() {
                return true;
            }
            let mut context: ffi::ngtcp2_crypto_ctx = mem::zeroed();
            if ffi::ngtcp2_crypto_ctx_tls(&mut context, ssl.cast()).is_null() {
                return false;
            }
            let (aead, header_protection) = CHOSEN.get().expect("chosen before the first session");
            if *aead == Aead::Noop {
                // Key, nonce and overhead have the lengths of the AEAD that is replaced.
                let noop = quicbed_noop_aead(ffi::ngtcp2_crypto_aead_keylen(&context.aead));
                context.aead.native_handle = noop.cast_mut();
            }
            if *header_protection == HeaderProtection::Off {
                CLEAR.store(*context.hp.native_handle.cast::<i32>(), Ordering::Relaxed);
                context.hp.native_handle = CLEAR.as_ptr().cast();
            }
            ffi::ngtcp2_conn_set_crypto_ctx(connection, &context);
            true
        }
    }

    unsafe extern "C" fn set_read_secret(
        ssl: *mut SSL,
        level: ssl_encryption_level_t,
        _: *const SSL_CIPHER,
        secret: *const u8,
        length: usize,
    ) -> c_int {
        // SAFETY: see `connection`. The keys themselves are not asked for.
        unsafe {
            let connection = connection(ssl);
            let (none, level) = (ptr::null_mut(), level_of(level));
            let installed = choose(connection, ssl)
                && ffi::ngtcp2_crypto_derive_and_install_rx_key(
                    connection, none, none, none, level, secret, length,
                ) == 0;
            installed.into()
        }
    }

    unsafe extern "C" fn set_write_secret(
        ssl: *mut SSL,
        level: ssl_encryption_level_t,
        _: *const SSL_CIPHER,
        secret: *const u8,
        length: usize,
    ) -> c_int {
        // SAFETY: see `set_read_secret`.
        unsafe {
            let connection = connection(ssl);
            let (none, level) = (ptr::null_mut(), level_of(level));
            let installed = choose(connection, ssl)
                && ffi::ngtcp2_crypto_derive_and_install_tx_key(
                    connection, none, none, none, level, secret, length,
                ) == 0;
            installed.into()
        }
    }

    unsafe extern "C" fn add_handshake_data(
        ssl: *mut SSL,
        level: ssl_encryption_level_t,
        data: *const u8,
        length: usize,
    ) -> c_int {
        // SAFETY: see `connection`.
        unsafe {
            let connection = connection(ssl);
            let code =
                ffi::ngtcp2_conn_submit_crypto_data(connection, level_of(level), data, length);
            if code != 0 {
                ffi::ngtcp2_conn_set_tls_error(connection, code);
            }
            (code == 0).into()
        }
    }

    unsafe extern "C" fn flush_flight(_: *mut SSL) -> c_int {
        1
    }

    unsafe extern "C" fn send_alert(ssl: *mut SSL, _: ssl_encryption_level_t, alert: u8) -> c_int {
        // SAFETY: see `connection`.
        unsafe { ffi::ngtcp2_conn_set_tls_alert(connection(ssl), alert) };
        1
    }

    fn level_of(level: ssl_encryption_level_t) -> ffi::ngtcp2_encryption_level {
        // SAFETY: BoringSSL passes no other levels than those the helper knows.
        unsafe { ffi::ngtcp2_crypto_boringssl_from_ssl_encryption_level(level) }
    }

    /// The mask of header protection: zeroes for those packets whose headers are to be in the clear.
    ///
    /// # Safety
    /// To be called by ngtcp2, as one of its callbacks.
    pub unsafe extern "C" fn mask(
        destination: *mut u8,
        cipher: *const ffi::ngtcp2_crypto_cipher,
        context: *const ffi::ngtcp2_crypto_cipher_ctx,
        sample: *const u8,
    ) -> c_int {
        // SAFETY: see `connection`; the destination has room for a sample.
        unsafe {
            if (*cipher).native_handle == CLEAR.as_ptr().cast() {
                ptr::write_bytes(destination, 0, ffi::NGTCP2_HP_SAMPLELEN as usize);
                return 0;
            }
            ffi::ngtcp2_crypto_hp_mask_cb(destination, cipher, context, sample)
        }
    }
}
