//! The primitives program of the endpoint contract, on rustls as quinn uses it.

fn main() {
    std::process::exit(quicbed_endpoint_quinn::primitives::run());
}
