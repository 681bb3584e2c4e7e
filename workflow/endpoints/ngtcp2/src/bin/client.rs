//! The client of the endpoint contract on ngtcp2.

fn main() {
    std::process::exit(quicbed_poll::client::run::<
        quicbed_endpoint_ngtcp2::client::Client,
    >());
}
