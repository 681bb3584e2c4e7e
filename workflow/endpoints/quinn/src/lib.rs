//! Client and server of the endpoint contract on quinn, with rustls and ring.
//!
//! Both run on tokio's current-thread runtime: one thread for input, output and protocol. Data passes through quinn
//! untouched by this crate; it adds a TLS session that can be read back ([`session`]) and a meter beside the socket
//! ([`socket`]). The feature `noop` adds the switchable packet protection of [`protection`].

pub mod client;
mod key_log;
mod observation;
#[cfg(feature = "noop")]
mod protection;
pub mod server;
mod session;
mod setup;
mod socket;
mod tls;
