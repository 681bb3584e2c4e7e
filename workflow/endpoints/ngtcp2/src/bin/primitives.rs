//! Times the cryptographic operations of a handshake through BoringSSL.

fn main() {
    let code = quicbed_boringssl::primitives::run(
        quicbed_endpoint_ngtcp2::LIBRARY,
        quicbed_endpoint_ngtcp2::VERSION,
    );
    std::process::exit(code);
}
