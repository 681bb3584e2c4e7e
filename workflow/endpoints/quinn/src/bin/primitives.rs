//! The primitives program of the endpoint contract, on rustls as quinn uses it.

use quicbed_endpoint_quinn::{LIBRARY, VERSION};

fn main() {
    std::process::exit(quicbed_rustls::primitives::run(LIBRARY, VERSION));
}
