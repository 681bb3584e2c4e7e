//! Times the cryptographic operations of a handshake through BoringSSL.

fn main() {
    let code = quicbed_boringssl::primitives::run(
        quicbed_endpoint_quiche::LIBRARY,
        quicbed_endpoint_quiche::VERSION,
    );
    std::process::exit(code);
}
