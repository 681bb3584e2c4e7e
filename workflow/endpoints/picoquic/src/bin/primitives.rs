//! Times the cryptographic operations of a handshake through picotls and OpenSSL.

fn main() {
    std::process::exit(quicbed_endpoint_picoquic::primitives::run());
}
