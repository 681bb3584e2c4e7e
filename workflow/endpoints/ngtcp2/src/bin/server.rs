//! The server of the endpoint contract on ngtcp2.

fn main() {
    std::process::exit(quicbed_poll::server::run::<
        quicbed_endpoint_ngtcp2::server::Server,
    >());
}
