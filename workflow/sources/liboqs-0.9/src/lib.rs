//! Empty on purpose: this package only exists so that `Cargo.lock` pins the source named in `Cargo.toml`.
