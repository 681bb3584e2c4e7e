//! The client of the endpoint contract on ngtcp2, which can begin connections at a rate.

fn main() {
    std::process::exit(quicbed_endpoint_ngtcp2::open_loop::client());
}
