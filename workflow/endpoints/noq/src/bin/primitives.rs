//! The primitives program of the endpoint contract, on rustls as noq uses it.

use quicbed_endpoint_noq::{LIBRARY, VERSION};

fn main() {
    std::process::exit(quicbed_rustls::primitives::run(LIBRARY, VERSION));
}
