//! Compiles the part in C and links it with picoquic, picotls and OpenSSL, which are built already.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

/// Name the directories of the components `picoquic` and `openssl`.
const PICOQUIC: &str = "QUICBED_PICOQUIC";
const OPENSSL: &str = "QUICBED_OPENSSL";

/// Functions of picoquic that a flavour has another for, under the name that the linker gives it (`--wrap`).
const WRAPPED: [(&str, &str); 2] = [
    ("noop", "picoquic_compute_new_rotated_keys"),
    ("linear", "picosplay_find_previous"),
];

/// Functions of the C library that datagrams pass through, which `c/io.c` has others for.
const CALLED: [&str; 5] = ["bind", "sendto", "sendmsg", "recvmsg", "ppoll"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=c");
    if let Err(error) = build() {
        println!("cargo::error={error}");
    }
}

fn build() -> Result<(), Box<dyn Error>> {
    let picoquic = directory(PICOQUIC)?;
    let openssl = directory(OPENSSL)?;
    let mut build = cc::Build::new();
    build
        .std("gnu11")
        .warnings(true)
        .extra_warnings(true)
        // As the library is compiled, whose headers have the structures.
        .define("NDEBUG", None)
        .include("c");
    for directory in [&picoquic, &openssl] {
        // Headers of others are not looked at for warnings.
        let include = directory.join("include");
        build.flag(format!("-isystem{}", include.display()));
    }
    for feature in ["noop", "pq", "fusion", "linear", "splay"] {
        if enabled(feature) {
            build.define(&format!("QUICBED_{}", feature.to_uppercase()), None);
        }
    }
    for file in sources(Path::new("c"))? {
        build.file(file);
    }
    if enabled("pq") {
        // The provider, linked in as where OpenSSL has no loadable modules.
        let own = Path::new("../../crypto/pq");
        println!("cargo:rerun-if-changed={}", own.display());
        build.define("OSSL_provider_init", "quicbed_pq_provider_init");
        build.include(own);
        for file in sources(&own.join("openssl-provider"))? {
            build.file(file);
        }
    }
    build.compile("quicbed_picoquic");
    let wrapped = WRAPPED.iter().filter(|(feature, _)| enabled(feature));
    for function in wrapped.map(|(_, function)| function).chain(&CALLED) {
        println!("cargo:rustc-link-arg=-Wl,--wrap={function}");
    }
    for directory in [&picoquic, &openssl] {
        let lib = directory.join("lib");
        println!("cargo:rustc-link-search=native={}", lib.display());
    }
    let own = ["picoquic-core", "picotls-fusion", "picotls-openssl"];
    let below = ["picotls-minicrypto", "picotls-core", "ssl", "crypto"];
    for library in own.iter().chain(&below) {
        println!("cargo:rustc-link-lib=static={library}");
    }
    println!("cargo:rustc-env=PICOQUIC_VERSION={}", version(&picoquic)?);
    println!(
        "cargo:rustc-env=OPENSSL_VERSION={}",
        openssl_version(&openssl)?
    );
    Ok(())
}

fn enabled(feature: &str) -> bool {
    env::var_os(format!("CARGO_FEATURE_{}", feature.to_uppercase())).is_some()
}

fn directory(variable: &str) -> Result<PathBuf, String> {
    println!("cargo:rerun-if-env-changed={variable}");
    env::var_os(variable)
        .map(PathBuf::from)
        .ok_or_else(|| format!("{variable} is not set; build with `quicbed build`, which sets it"))
}

fn sources(directory: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "c") {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

/// The text between quotation marks in the line of a header that defines a name.
fn defined(file: &Path, name: &str) -> Result<String, Box<dyn Error>> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut lines = text.lines();
    let line = lines.find(|line| line.contains(&format!("define {name} ")));
    line.and_then(|line| line.split('"').nth(1))
        .map(str::to_owned)
        .ok_or_else(|| format!("{}: does not define {name}", file.display()).into())
}

/// picoquic's, without the last of four numbers, which is 0.
fn version(picoquic: &Path) -> Result<String, Box<dyn Error>> {
    let four = defined(&picoquic.join("include/picoquic.h"), "PICOQUIC_VERSION")?;
    Ok(four.splitn(4, '.').take(3).collect::<Vec<_>>().join("."))
}

fn openssl_version(openssl: &Path) -> Result<String, Box<dyn Error>> {
    let file = openssl.join("include/openssl/opensslv.h");
    defined(&file, "OPENSSL_VERSION_STR")
}
