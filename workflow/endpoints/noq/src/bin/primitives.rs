//! The primitives program of the endpoint contract, on rustls as noq uses it.

fn main() {
    std::process::exit(quicbed_endpoint_noq::primitives::run());
}
