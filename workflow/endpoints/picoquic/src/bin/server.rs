//! The server of the endpoint contract on picoquic.

fn main() {
    quicbed_endpoint_picoquic::io::choose();
    let code = quicbed_poll::server::run::<quicbed_endpoint_picoquic::server::Server>();
    std::process::exit(code);
}
