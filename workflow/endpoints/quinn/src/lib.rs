//! Client and server of the endpoint contract on quinn, with rustls and ring.

#[path = "../../engine/quinn/mod.rs"]
mod engine;
mod library;
mod socket;

pub use engine::{client, server};
pub use library::{LIBRARY, VERSION};
