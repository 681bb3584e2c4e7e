"""The commands of the documents, as a stranger runs them on a system where nothing has been installed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bareroot
from bareroot import USER, BareRoot
from clone import ROOT
from quicbed.figures import output
from quicbed.figures.sheets import Sheet

PAGES = ("README.md", "docs/artifact-evaluation.md")
# Spaces and letters that are not ASCII, as home directories have them.
PLACE = f"/home/{USER}/Übung mit QUIC/quicbed"

ACTIVATING = ". .venv/bin/activate"
LOOKING = (
    "make figures",
    ACTIVATING,
    "quicbed summary",
    "quicbed claims",
    "quicbed claims fig3-aes-equal",
    "quicbed claims --verdict fails",
)
DEPOSITING = ("make archive",)
UNPACKING = ("tar -xzf quicbed-*.tar.gz && cd quicbed-*/", "sha256sum --check --quiet SHA256SUMS && echo complete")
COMPARING = (
    "make figures",
    "diff -r --brief results/reference/tables artifacts/reference/tables && echo same",
)
PROOF = "quicbed show raw/local/proofs/*/quinn-noop-*.0"
MEASURING = (
    "make figures",
    "make setup",
    "quicbed doctor",
    'make all SCALE=tiny CONFIG="experiments=[aead-goodput] libraries=[aioquic,quinn]"',
    PROOF,
    "quicbed dissect raw/reference artifacts/captures.parquet",
    'make test TESTS="tests/unit/wire tests/unit/store tests/unit/analysis"',
    'make all CONFIG="experiments=[aead-goodput] libraries=[aioquic,quinn]"',
    "make all",
    "make test",
    "make check",
    "make docs",
    "make bench",
)


# What is drawn a second time is less: of each wing of the notebooks something, with what is compared.
KEPT = ("aead-goodput", "table2-kem", "web")
LESSENING = (
    f"git rm --quiet $(ls raw/reference/* | grep -v -E '/({'|'.join(KEPT)})[.]') && "
    "git -c user.name=Test -c user.email=test@example.org commit --quiet --message Less"
)


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareRoot]:
    """A minimal Debian 12, made once and removed afterwards."""
    if problem := bareroot.problem():
        pytest.fail(problem)
    with bareroot.made(tmp_path_factory.mktemp("bare") / "bookworm", "bookworm") as root:
        yield root


@pytest.fixture(scope="module")
def visited(debian: BareRoot, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareRoot]:
    """A system with a visitor's clone: in it the same command fails for one reason after the other, and then works."""
    with bareroot.copy(debian, tmp_path_factory.mktemp("visited") / "root") as root:
        root.clone(ROOT, PLACE, user=USER)
        yield root


def words(command: str) -> str:
    """A command without what a line break in a document adds."""
    return re.sub(r"\s+", " ", command)


def expect(root: BareRoot, command: str, cwd: str, user: str = "root", **how: Any) -> str:
    """Run a command that has to succeed; returns what it printed. *how* is that of `BareRoot.run`."""
    # a shell of its own for each command: what a visitor's shell has been told is told again
    active = f"{ACTIVATING} && {command}" if command.startswith("quicbed ") else command
    done = root.run(active, cwd=cwd, user=user, **how)
    assert done.code == 0, f"$ {command}\n{done.said[-6000:]}"
    assert "Traceback" not in done.said, f"$ {command}\n{done.said[-6000:]}"
    return done.said


def stopped(
    root: BareRoot, says: str, *, command: str = "make figures", cwd: str = PLACE, user: str = USER, **how: Any
) -> None:
    """Run a command that set-up has to stop, with one line that has this pattern in it."""
    done = root.run(command, cwd=cwd, user=user, **how)
    assert done.code != 0, f"$ {command}\n{done.said[-6000:]}"
    lines = done.said.splitlines()
    (error,) = (line for line in lines if line.startswith("set-up: error: "))
    assert re.search(says, error), error
    others = [line for line in lines if line is not error and not line.startswith(("set-up: ", "make: "))]
    assert not others, done.said


def drawn(results: Path, suffix: str) -> set[str]:
    """Names of the figures that were drawn in a format, without their versions for a column, which have no page."""
    names = {file.stem for file in (results / "figures").glob(f"*.{suffix}")}
    return {name for name in names if not name.endswith(output.COLUMN)}


# What is shipped of the handshake that the notebook shows packet by packet.
PACKETS = "raw/reference/table2-kem.packets.jsonl"
SHOWN = {"library": "quiche", "group": "kyber768", "signature": "rsa-2048"}


def packets_shipped() -> str:
    """The notebook's table of the handshake, as the shipped file has it."""
    head, *handshakes = map(json.loads, (ROOT / PACKETS).read_text(encoding="utf-8").splitlines())
    (packets,) = (one["packets"] for one in handshakes if SHOWN.items() <= one.items())
    return Sheet(head["columns"], packets, frozenset({0, 1, 3, 5}))._repr_html_().replace("'", '"')


def notebook(results: Path) -> str:
    """The page of the notebook that shows a handshake."""
    return (results / "notebooks" / "quantum-of-quic.html").read_text(encoding="utf-8").replace("'", '"')
