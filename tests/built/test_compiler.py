"""What builds share of compiled crates relies on a compiler that replaces files and does not write into them."""

from __future__ import annotations

import subprocess
from pathlib import Path


def test_a_compiler_replaces_what_is_shared(tmp_path: Path) -> None:
    """A library compiled again, with other code, leaves the file as it was that another directory has of it."""
    source = tmp_path / "src" / "lib.rs"
    source.parent.mkdir()
    (tmp_path / "Cargo.toml").write_text('[package]\nname = "one"\nversion = "1.0.0"\nedition = "2021"\n')
    shared = {}
    for code in ("pub fn one() -> u8 { 1 }", "pub fn one() -> u16 { 65535 }"):
        source.write_text(code)
        subprocess.run(["cargo", "build", "--offline", "--quiet", "--release"], cwd=tmp_path, check=True)
        for path in (tmp_path / "target" / "release" / "deps").glob("libone-*.r*"):
            kept = tmp_path / f"kept{path.suffix}"
            if kept in shared:
                assert kept.read_bytes() == shared[kept] != path.read_bytes()
            else:
                kept.hardlink_to(path)
                shared[kept] = path.read_bytes()
    assert {path.suffix for path in shared} == {".rlib", ".rmeta"}
