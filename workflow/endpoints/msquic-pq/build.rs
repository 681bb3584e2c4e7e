//! Compiles the provider for the quictls that MsQuic uses, links it and liboqs, and generates the Rust declarations of
//! quictls' libcrypto.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

/// Names the directory of the quictls that MsQuic was compiled with.
const QUICTLS_VARIABLE: &str = "QUICBED_QUICTLS";

/// Names the directory of the component `liboqs`, with `include` and `lib`.
const LIBOQS_VARIABLE: &str = "QUICBED_LIBOQS";

/// The C interface to liboqs, and the provider on top of it.
const INTERFACE: &str = "../../crypto/pq";
const PROVIDER: &str = "../../crypto/pq/openssl-provider";

/// As in the build script of the endpoint on MsQuic, whose arguments for the linker hold for its own programs only. One
/// that is missing here is an undefined symbol `__real_...` there.
const WRAPPED: [&str; 6] = [
    "setsockopt",
    "sendmsg",
    "sendmmsg",
    "recvmmsg",
    "QuicCryptoHandshakeConfirmed",
    "SSL_CTX_new",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if let Err(error) = build() {
        println!("cargo::error={error}");
    }
}

fn build() -> Result<(), Box<dyn Error>> {
    let quictls = directory(QUICTLS_VARIABLE, "the quictls that MsQuic uses")?;
    let liboqs = directory(LIBOQS_VARIABLE, "the liboqs that is linked")?;
    let mut sources = vec![
        PathBuf::from("src/provider.c"),
        Path::new(INTERFACE).join("pq.c"),
    ];
    for header in ["pq.h", "kem.h", "algorithms.h"] {
        println!("cargo::rerun-if-changed={INTERFACE}/{header}");
    }
    for entry in fs::read_dir(PROVIDER).map_err(|error| format!("{PROVIDER}: {error}"))? {
        let file = entry?.path();
        println!("cargo::rerun-if-changed={}", file.display());
        if file.extension().is_some_and(|extension| extension == "c") {
            sources.push(file);
        }
    }
    sources.sort();
    cc::Build::new()
        .std("c11")
        .extra_warnings(true)
        .include(INTERFACE)
        .includes([&quictls, &liboqs].map(|directory| directory.join("include")))
        .files(&sources)
        .compile("quicbed_provider");
    println!("cargo::rustc-link-search=native={}/lib", liboqs.display());
    println!("cargo::rustc-link-lib=static=oqs");
    for function in WRAPPED {
        println!("cargo::rustc-link-arg-bins=-Wl,--wrap={function}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    declare(&quictls.join("include"), &out.join("bindings.rs"))
}

fn declare(include: &Path, bindings: &Path) -> Result<(), Box<dyn Error>> {
    bindgen::builder()
        .header_contents(
            "wrapper.h",
            "#include <openssl/err.h>\n#include <openssl/evp.h>\n#include <openssl/pem.h>\n#include <openssl/rsa.h>\n\
             #include <openssl/x509_vfy.h>\n",
        )
        .clang_arg(format!("-I{}", include.display()))
        .allowlist_function("EVP_PKEY_(new|free|copy_parameters|paramgen|keygen)(_init)?")
        .allowlist_function("EVP_PKEY_(encapsulate|decapsulate|derive)(_init|_set_peer)?")
        .allowlist_function("EVP_PKEY_(get1|set1)_encoded_public_key|EVP_PKEY_CTX_(new_from_(name|pkey)|free)")
        .allowlist_function("EVP_PKEY_CTX_set_(group_name|rsa_padding|rsa_pss_saltlen)|EVP_MD_CTX_(new|free)")
        .allowlist_function("EVP_Digest(Sign|Verify)(Init_ex)?|CRYPTO_free|ERR_(get|clear)_error|ERR_reason_error_string")
        .allowlist_function("BIO_(new_mem_buf|free_all)|PEM_read_bio_(PrivateKey|X509)|(d2i|i2d)_X509")
        .allowlist_function("X509_(free|get0_pubkey|verify_cert)|X509_STORE_(new|free|load_file)")
        .allowlist_function("X509_STORE_CTX_(new|free|init|set_default)")
        .allowlist_var("RSA_PKCS1_PSS_PADDING|RSA_PSS_SALTLEN_DIGEST")
        .layout_tests(false)
        .generate_comments(false)
        .generate()?
        .write_to_file(bindings)?;
    Ok(())
}

fn directory(variable: &str, what: &str) -> Result<PathBuf, String> {
    println!("cargo::rerun-if-env-changed={variable}");
    let value = env::var_os(variable);
    value
        .map(PathBuf::from)
        .ok_or_else(|| format!("{variable} is not set, it must name {what}"))
}
