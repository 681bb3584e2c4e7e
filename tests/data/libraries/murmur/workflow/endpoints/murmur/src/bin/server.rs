//! The server of the endpoint contract on murmur.

fn main() {
    std::process::exit(quicbed_endpoint_murmur::server::run());
}
