//! Links MsQuic and quictls, and generates the Rust declarations of both.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

/// Names the directory of MsQuic, with `include` and `lib`.
const MSQUIC_VARIABLE: &str = "QUICBED_MSQUIC";

/// Names the directory of the quictls that MsQuic was compiled with.
const QUICTLS_VARIABLE: &str = "QUICBED_QUICTLS";

/// Functions that MsQuic calls and that `src/hooks.rs` and `src/tls.rs` have a part in (`--wrap` of ld(1)).
const WRAPPED: [&str; 6] = [
    "setsockopt",
    "sendmsg",
    "sendmmsg",
    "recvmmsg",
    "QuicCryptoHandshakeConfirmed",
    "SSL_CTX_new",
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if let Err(error) = build() {
        println!("cargo::error={error}");
    }
}

fn build() -> Result<(), Box<dyn Error>> {
    let msquic = directory(MSQUIC_VARIABLE, "the MsQuic that is linked")?;
    let quictls = directory(QUICTLS_VARIABLE, "the quictls that MsQuic uses")?;
    println!("cargo:rustc-env=MSQUIC_VERSION={}", version(&msquic)?);
    println!("cargo:rustc-env=MSQUIC_MAX_MTU={}", max_mtu(&msquic)?);
    #[cfg(feature = "noop")]
    compile_noop(&quictls);
    for (directory, libraries) in [
        (&msquic, ["core", "msquic_platform"]),
        (&quictls, ["ssl", "crypto"]),
    ] {
        println!("cargo:rustc-link-search=native={}/lib", directory.display());
        for library in libraries {
            println!("cargo:rustc-link-lib=static={library}");
        }
    }
    for function in WRAPPED {
        println!("cargo:rustc-link-arg=-Wl,--wrap={function}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    declare(
        &[msquic.join("include"), quictls.join("include")],
        &out.join("bindings.rs"),
    )
}

fn directory(variable: &str, what: &str) -> Result<PathBuf, String> {
    println!("cargo:rerun-if-env-changed={variable}");
    let value = env::var_os(variable);
    value
        .map(PathBuf::from)
        .ok_or_else(|| format!("{variable} is not set, it must name {what}"))
}

/// The version in `msquic.ver`.
fn version(msquic: &Path) -> Result<String, Box<dyn Error>> {
    let file = msquic.join("include/msquic.ver");
    let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let parts: Vec<&str> = ["VER_MAJOR", "VER_MINOR", "VER_PATCH"]
        .iter()
        .filter_map(|part| {
            let mut lines = text.lines().map(str::split_ascii_whitespace);
            lines.find_map(|mut words| {
                (words.next() == Some("#define") && words.next() == Some(part))
                    .then(|| words.next())
                    .flatten()
            })
        })
        .collect();
    match parts.len() {
        3 => Ok(parts.join(".")),
        _ => Err(format!("{}: tells no version", file.display()).into()),
    }
}

/// `CXPLAT_MAX_MTU`, which differs by flavour.
fn max_mtu(msquic: &Path) -> Result<u16, Box<dyn Error>> {
    let file = msquic.join("include/quic_datapath.h");
    let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let told = text
        .lines()
        .find_map(|line| line.strip_prefix("#define CXPLAT_MAX_MTU "));
    let told = told.ok_or_else(|| format!("{}: tells no CXPLAT_MAX_MTU", file.display()))?;
    Ok(told.trim().parse()?)
}

/// Compiles the ciphers that do not encrypt.
#[cfg(feature = "noop")]
fn compile_noop(quictls: &Path) {
    let files = ["src/noop.c", "../../crypto/noop-provider/noop_provider.c"];
    for file in files {
        println!("cargo:rerun-if-changed={file}");
    }
    cc::Build::new()
        .std("c11")
        .extra_warnings(true)
        .include(quictls.join("include"))
        .files(files)
        .compile("quicbed_noop");
}

fn declare(includes: &[PathBuf], bindings: &Path) -> Result<(), Box<dyn Error>> {
    bindgen::builder()
        .header_contents(
            "wrapper.h",
            // As MsQuic itself is compiled: NOENC is an insecure feature, BBR one of the preview.
            "#define QUIC_API_ENABLE_INSECURE_FEATURES 1\n#define QUIC_API_ENABLE_PREVIEW_FEATURES 1\n\
             #define QUIC_BUILD_STATIC 1\n#include <msquic.h>\n#include <openssl/ssl.h>\n",
        )
        .clang_args(includes.iter().map(|path| format!("-I{}", path.display())))
        .clang_arg("-fms-extensions")
        .allowlist_item("QUIC_.*|MsQuic.*|HQUIC")
        .allowlist_type("SSL_METHOD|EVP_CIPHER")
        .allowlist_function("SSL_CTX_(ctrl|free|get0_param|set_(keylog_callback|msg_callback|security_level))")
        .allowlist_function("SSL_(CIPHER_standard_name|get_(ex_new_index|current_cipher|ex_data|version))")
        .allowlist_function("SSL_(ctrl|get0_alpn_selected|group_to_name|set_ex_data)")
        .allowlist_function("CRYPTO_get_ex_new_index|X509_VERIFY_PARAM_set1_host|OPENSSL_info")
        .allowlist_var("SSL_CTRL_.*|SSL3_RT_HANDSHAKE|SSL3_MT_.*|OPENSSL_INFO_CPU_SETTINGS|CRYPTO_EX_INDEX_SSL")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .layout_tests(false)
        .generate_comments(false)
        .generate()?
        .write_to_file(bindings)?;
    Ok(())
}
