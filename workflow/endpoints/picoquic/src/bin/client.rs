//! The client of the endpoint contract on picoquic.

fn main() {
    quicbed_endpoint_picoquic::io::choose();
    let code = quicbed_poll::client::run::<quicbed_endpoint_picoquic::client::Client>();
    std::process::exit(code);
}
