//! Compiles the C interface and links it and liboqs.

use std::env;
use std::path::PathBuf;

/// Names the directory of the component `liboqs`, with `include/` and `lib/liboqs.a`.
const LIBOQS: &str = "QUICBED_LIBOQS";

fn main() {
    println!("cargo::rerun-if-env-changed={LIBOQS}");
    for file in ["pq.c", "pq.h", "kem.h", "algorithms.h"] {
        println!("cargo::rerun-if-changed=../{file}");
    }
    let Some(liboqs) = env::var_os(LIBOQS).map(PathBuf::from) else {
        println!("cargo::error={LIBOQS} is not set; build with `quicbed build`, which sets it for flavours with the component liboqs");
        return;
    };
    let archive = liboqs.join("lib").join("liboqs.a");
    if !archive.is_file() {
        println!(
            "cargo::error={LIBOQS} is {}, which has no lib/liboqs.a",
            liboqs.display()
        );
        return;
    }
    println!("cargo::rerun-if-changed={}", archive.display());
    cc::Build::new()
        .std("c11")
        .warnings(true)
        .extra_warnings(true)
        .include(liboqs.join("include"))
        .file("../pq.c")
        .compile("quicbed_pq_core");
    println!(
        "cargo::rustc-link-search=native={}",
        liboqs.join("lib").display()
    );
    println!("cargo::rustc-link-lib=static=oqs");
}
