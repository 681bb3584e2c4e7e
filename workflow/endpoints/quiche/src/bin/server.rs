//! The server of the endpoint contract on quiche.

fn main() {
    std::process::exit(quicbed_poll::server::run::<
        quicbed_endpoint_quiche::server::Server,
    >());
}
