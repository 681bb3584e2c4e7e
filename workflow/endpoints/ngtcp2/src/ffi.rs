//! Declarations of ngtcp2 1.x and its crypto helper, generated from their headers.
#![allow(
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    dead_code,
    missing_docs,
    clippy::all
)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

extern "C" {
    // ngtcp2/ngtcp2_crypto_boringssl.h, whose types are those of boring-sys.
    pub fn ngtcp2_crypto_boringssl_configure_server_context(
        ssl_ctx: *mut boring_sys::SSL_CTX,
    ) -> i32;
    pub fn ngtcp2_crypto_boringssl_configure_client_context(
        ssl_ctx: *mut boring_sys::SSL_CTX,
    ) -> i32;
    #[cfg(feature = "noop")]
    pub fn ngtcp2_crypto_boringssl_from_ssl_encryption_level(
        ssl_level: boring_sys::ssl_encryption_level_t,
    ) -> ngtcp2_encryption_level;
}
