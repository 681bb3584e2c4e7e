//! Compiles the no-op AEAD against BoringSSL's internal headers; the stock flavour has nothing to build.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "noop")]
    noop::build();
}

#[cfg(feature = "noop")]
mod noop {
    use std::env;
    use std::path::PathBuf;

    /// Names the directory of the BoringSSL source: `deps/boringssl` of the boring-sys package that is linked.
    const SOURCE_VARIABLE: &str = "QUICBED_BORINGSSL_SOURCE";

    pub fn build() {
        let file = "../../crypto/noop-aead/noop_aead.cc";
        println!("cargo:rerun-if-changed={file}");
        println!("cargo:rerun-if-env-changed={SOURCE_VARIABLE}");
        let Some(source) = env::var_os(SOURCE_VARIABLE).map(PathBuf::from) else {
            println!("cargo::error={SOURCE_VARIABLE} is not set, it must name deps/boringssl of the boring-sys source");
            return;
        };
        cc::Build::new()
            .cpp(true)
            .std("c++17")
            .flag("-fno-exceptions")
            .flag("-fno-rtti")
            // As the archive is built; its headers are not written for -Wextra.
            .define("NDEBUG", None)
            .extra_warnings(false)
            .include(&source)
            .include(source.join("include"))
            .file(file)
            .compile("quicbed_noop_aead");
    }
}
