//! The client of the endpoint contract on murmur.

fn main() {
    std::process::exit(quicbed_endpoint_murmur::client::run());
}
