//! The client of the endpoint contract on quiche.

fn main() {
    std::process::exit(quicbed_poll::client::run::<
        quicbed_endpoint_quiche::client::Client,
    >());
}
