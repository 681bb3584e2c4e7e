//! The server of the endpoint contract on quinn.

fn main() {
    std::process::exit(quicbed_endpoint_quinn::server::run());
}
