//! Client and server of the endpoint contract on murmur, a made-up library with the interface of quinn.

#[path = "../../engine/quinn/mod.rs"]
mod engine;
mod library;
#[path = "../../quinn/src/socket.rs"]
mod socket;

pub use engine::{client, server};
pub use library::{LIBRARY, VERSION};
