//! Compiles ngtcp2 and its crypto helper for BoringSSL, and generates the Rust declarations of both.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

/// Names the directory of the ngtcp2 source: `deps/ngtcp2` of the ngtcp2-sys package.
const NGTCP2_VARIABLE: &str = "QUICBED_NGTCP2_SOURCE";

/// Names the directory of the BoringSSL that boring-sys links, with its headers in `include`.
const BORINGSSL_VARIABLE: &str = "QUICBED_BORINGSSL";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if let Err(error) = build() {
        println!("cargo::error={error}");
    }
}

fn build() -> Result<(), Box<dyn Error>> {
    let source = directory(NGTCP2_VARIABLE, "deps/ngtcp2 of the ngtcp2-sys source")?;
    let boringssl = directory(BORINGSSL_VARIABLE, "the BoringSSL that is linked")?.join("include");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    let version = version(&source)?;
    println!("cargo:rustc-env=NGTCP2_VERSION={version}");
    let generated = out.join("include");
    write_version_header(&source, &generated, &version)?;
    let includes = [
        source.join("lib/includes"),
        source.join("crypto/includes"),
        generated,
    ];
    compile(&source, &includes, &boringssl)?;
    #[cfg(feature = "noop")]
    compile_noop(&boringssl)?;
    declare(&includes, &out.join("bindings.rs"))
}

fn directory(variable: &str, what: &str) -> Result<PathBuf, String> {
    println!("cargo:rerun-if-env-changed={variable}");
    let value = env::var_os(variable);
    value
        .map(PathBuf::from)
        .ok_or_else(|| format!("{variable} is not set, it must name {what}"))
}

/// The version in `project(ngtcp2 VERSION x.y.z ...)` of ngtcp2's CMakeLists.txt.
fn version(source: &Path) -> Result<String, Box<dyn Error>> {
    let file = source.join("CMakeLists.txt");
    let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut words = text
        .split_ascii_whitespace()
        .skip_while(|word| *word != "project(ngtcp2");
    words
        .nth(2)
        .map(str::to_owned)
        .ok_or_else(|| format!("{}: no project(ngtcp2 VERSION ...)", file.display()).into())
}

/// Writes `ngtcp2/version.h` as ngtcp2's own build does.
fn write_version_header(
    source: &Path,
    generated: &Path,
    version: &str,
) -> Result<(), Box<dyn Error>> {
    let number = version.split('.').try_fold(0, |number, part| {
        part.parse::<u32>().map(|part| number << 8 | part)
    })?;
    let template = fs::read_to_string(source.join("lib/includes/ngtcp2/version.h.in"))?;
    let header = template
        .replace("@PACKAGE_VERSION@", version)
        .replace("@PACKAGE_VERSION_NUM@", &format!("{number:#08x}"));
    fs::create_dir_all(generated.join("ngtcp2"))?;
    fs::write(generated.join("ngtcp2/version.h"), header)?;
    Ok(())
}

fn compile(source: &Path, includes: &[PathBuf], boringssl: &Path) -> Result<(), Box<dyn Error>> {
    let mut build = cc::Build::new();
    build
        .std("c11")
        .warnings(false)
        // As ngtcp2's own release build: no assertions.
        .define("NDEBUG", None)
        .define("NGTCP2_STATICLIB", None)
        .define("_GNU_SOURCE", None)
        .includes(includes)
        .include(source.join("lib"))
        .include(source.join("crypto"))
        .include(boringssl);
    // What ngtcp2's own configuration finds on Linux.
    for name in [
        "HAVE_ARPA_INET_H",
        "HAVE_NETINET_IN_H",
        "HAVE_NETINET_IP_H",
        "HAVE_UNISTD_H",
        "HAVE_ENDIAN_H",
        "HAVE_BYTESWAP_H",
        "HAVE_DECL_BE64TOH",
        "HAVE_DECL_BSWAP_64",
        "HAVE_EXPLICIT_BZERO",
    ] {
        build.define(name, "1");
    }
    if env::var("CARGO_CFG_TARGET_ENDIAN").as_deref() == Ok("big") {
        build.define("WORDS_BIGENDIAN", "1");
    }
    for entry in fs::read_dir(source.join("lib"))? {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "c") {
            build.file(file);
        }
    }
    build
        .file(source.join("crypto/shared.c"))
        .file(source.join("crypto/boringssl/boringssl.c"))
        .compile("ngtcp2");
    Ok(())
}

/// Compiles the no-op AEAD against BoringSSL's internal headers.
#[cfg(feature = "noop")]
fn compile_noop(boringssl: &Path) -> Result<(), Box<dyn Error>> {
    let file = "../../crypto/noop-aead/noop_aead.cc";
    println!("cargo:rerun-if-changed={file}");
    let source = directory(
        "QUICBED_BORINGSSL_SOURCE",
        "deps/boringssl of the boring-sys source",
    )?;
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .flag("-fno-exceptions")
        .flag("-fno-rtti")
        // As BoringSSL itself is built; its headers are not written for -Wextra.
        .define("NDEBUG", None)
        .extra_warnings(false)
        .include(boringssl)
        .include(source)
        .file(file)
        .compile("quicbed_noop_aead");
    Ok(())
}

fn declare(includes: &[PathBuf], bindings: &Path) -> Result<(), Box<dyn Error>> {
    bindgen::builder()
        .header_contents("wrapper.h", "#include <ngtcp2/ngtcp2_crypto.h>\n")
        .clang_args(includes.iter().map(|path| format!("-I{}", path.display())))
        .allowlist_item("ngtcp2_.*|NGTCP2_.*")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .layout_tests(false)
        .generate_comments(false)
        .generate()?
        .write_to_file(bindings)?;
    Ok(())
}
