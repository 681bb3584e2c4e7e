//! Client and server of the endpoint contract on quinn, with rustls and ring.
//!
//! Both run on tokio's current-thread runtime: one thread for input, output and protocol. Data passes through quinn
//! untouched by this crate; it adds a TLS session that can be read back ([`session`]) and a meter beside the socket
//! ([`socket`], [`traffic`]). The feature `noop` adds the switchable packet protection of [`protection`], the feature `pq` the groups
//! and signatures of liboqs and the [`primitives`] program. Everything goes through public traits of quinn and rustls.

pub mod client;
#[cfg(feature = "pq")]
mod ecdh_p521;
mod groups;
#[cfg(feature = "pq")]
mod kem;
mod key_log;
#[cfg(feature = "pq")]
mod liboqs_signature;
mod library;
mod observation;
#[cfg(feature = "pq")]
pub mod primitives;
#[cfg(feature = "noop")]
mod protection;
#[cfg(feature = "pq")]
mod rsa_1024;
pub mod server;
mod session;
mod setup;
mod signatures;
mod socket;
mod tls;
mod traffic;
