//! Client and server of the endpoint contract on the interface of quinn, which its forks have too.
//!
//! These are no package: the endpoint of each library compiles them (`#[path]`), with the dependencies `quinn` and
//! `quinn_proto` being that library, and modules `library` and `socket` for what libraries do differently. Both programs run
//! on tokio's current-thread runtime: one thread for input, output and protocol. Data passes through the library
//! untouched; beside it there is a TLS session that can be read back ([`session`]) and a meter at the socket ([`traffic`]).

pub mod client;
mod observation;
pub mod server;
mod session;
mod setup;
pub mod traffic;
