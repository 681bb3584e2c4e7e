//! The client of the endpoint contract on quinn.

fn main() {
    std::process::exit(quicbed_endpoint_quinn::client::run());
}
