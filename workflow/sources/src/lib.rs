//! Empty on purpose: this package only exists so that `Cargo.lock` pins the sources named in `Cargo.toml`.
