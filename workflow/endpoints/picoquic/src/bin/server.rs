//! The server of the endpoint contract on picoquic.

fn main() {
    let code = quicbed_poll::server::run::<quicbed_endpoint_picoquic::server::Server>();
    std::process::exit(code);
}
