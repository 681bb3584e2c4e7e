//! The client of the endpoint contract on picoquic.

fn main() {
    let code = quicbed_poll::client::run::<quicbed_endpoint_picoquic::client::Client>();
    std::process::exit(code);
}
