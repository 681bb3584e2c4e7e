//! The primitives program of the endpoint contract, on quictls as MsQuic uses it.

fn main() {
    std::process::exit(quicbed_endpoint_msquic::primitives::run());
}
