//! The server of the endpoint contract on s2n-quic.

fn main() {
    std::process::exit(quicbed_endpoint_s2n_quic::server::run());
}
