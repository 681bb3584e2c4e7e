//! Client and server of the endpoint contract on noq, with rustls and ring.
//!
//! noq is a fork of quinn that kept its interface, so the sources are those of the quinn endpoint, linked into this
//! directory: there the crate `quinn` is noq. This crate's own are [`library`] and [`socket`], where the two differ.

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
