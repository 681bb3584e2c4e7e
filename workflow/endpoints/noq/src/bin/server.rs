//! The server of the endpoint contract on noq.

fn main() {
    std::process::exit(quicbed_endpoint_noq::server::run());
}
