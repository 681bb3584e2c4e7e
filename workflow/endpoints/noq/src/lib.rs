//! Client and server of the endpoint contract on noq, with rustls and ring.
//!
//! noq is a fork of quinn that kept its interface: here the crate `quinn` is noq.

#[path = "../../engine/quinn/mod.rs"]
mod engine;
mod library;
mod socket;

pub use engine::{client, server};
pub use library::{LIBRARY, VERSION};
