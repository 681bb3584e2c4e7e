//! Compiles the access to BoringSSL's key shares against its internal headers; without `pq` there is nothing to build.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "pq")]
    key_share::build();
}

#[cfg(feature = "pq")]
mod key_share {
    use std::env;
    use std::path::PathBuf;

    /// Names the directory of the BoringSSL that boring-sys links, with its headers in `include`.
    const LINKED: &str = "QUICBED_BORINGSSL";

    /// Names the directory of its source, for the internal headers: `deps/boringssl` of the boring-sys package.
    const SOURCE: &str = "QUICBED_BORINGSSL_SOURCE";

    pub fn build() {
        let file = "src/key_share.cc";
        println!("cargo:rerun-if-changed={file}");
        let (Some(linked), Some(source)) = (directory(LINKED), directory(SOURCE)) else {
            return;
        };
        cc::Build::new()
            .cpp(true)
            .std("c++17")
            .flag("-fno-exceptions")
            .flag("-fno-rtti")
            // As BoringSSL itself is built; its headers are not written for -Wextra.
            .define("NDEBUG", None)
            .extra_warnings(false)
            .include(linked.join("include"))
            .include(source)
            .file(file)
            .compile("quicbed_key_share");
    }

    fn directory(variable: &str) -> Option<PathBuf> {
        println!("cargo:rerun-if-env-changed={variable}");
        let directory = env::var_os(variable).map(PathBuf::from);
        if directory.is_none() {
            println!("cargo::error={variable} is not set; build with `quicbed build`, which sets it for BoringSSL");
        }
        directory
    }
}
