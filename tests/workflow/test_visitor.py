"""The commands of the documents for a visitor who may not become root, on a system where nothing has been installed."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

import bareroot
from bareroot import USER, BareRoot
from clone import ROOT
from quicbed.figures.sheets import Sheet
from stranger import (
    COMPARING,
    DEPOSITING,
    LESSENING,
    LOOKING,
    MEASURING,
    PAGES,
    PLACE,
    UNPACKING,
    debian,
    drawn,
    expect,
    visited,
    words,
)

__all__ = ["debian", "visited"]  # fixtures

# namespaces of a bare system are its own
pytestmark = [pytest.mark.root, pytest.mark.xdist_group("bare system"), pytest.mark.timeout(3000)]


def test_every_command_of_the_documents_is_run_here_as_it_is_written() -> None:
    written = {words(command) for page in PAGES for command in bareroot.commands((ROOT / page).read_text("utf-8"))}
    run = {words(command) for command in (*LOOKING, *DEPOSITING, *UNPACKING, *COMPARING, *MEASURING)}
    assert written == run


BAD_CHROMIUM = "#!/bin/sh\nkill -SEGV $$\n"
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


def test_a_visitor_who_may_not_become_root_draws_the_figures_and_makes_the_archive(visited: BareRoot) -> None:
    root = visited
    clone = root.directory / PLACE.lstrip("/")
    refused = root.run("su -c true || test $(id -u) = 0", user=USER)
    assert refused.code != 0, "the visitor is, or can become, root"
    # what is made in a changed root may not make any
    assert root.run("unshare --user true", user=USER).code != 0, "the visitor has user namespaces"
    for program in ("tshark", "cc", "gcc", "cargo", "go", "chromium", "pip", "pip3", "ip", "tcpdump"):
        assert root.run(f"command -v {program}", user=USER).code != 0, f"a bare system has {program}"

    said = {command: expect(root, command, PLACE, USER) for command in LOOKING}
    results = clone / "artifacts" / "reference"
    figures = drawn(results, "html")
    assert figures >= {"goodput-by-aead", "header-protection", "ttfb-by-kem", "cpu-shares", "pairwise"}
    assert not drawn(results, "svg")
    assert "no Chromium: figures are made as HTML only" in said["make figures"]
    # the handshake packet by packet comes from data that was dissected where there was tshark
    assert packets_shipped() in notebook(results)
    report = results / "report"
    first = (report / "index.html").read_text(encoding="utf-8")
    assert "For QUIC, goodput with NOOP is 10 to 20 % higher than with AES." in first
    assert (report / "runs.html").stat().st_size > 100_000
    assert "Packet protection. " in said["quicbed summary"]
    assert "fig3-aes-equal" in said["quicbed claims fig3-aes-equal"]

    expect(root, LESSENING, PLACE, USER)
    full = f'mount -t tmpfs -o size=100k,uid={bareroot.USER_ID} tmpfs "$root{PLACE}/artifacts"'
    done = root.run("make figures", cwd=PLACE, user=USER, before=full)
    assert done.code != 0
    assert re.search(r"(?m)^quicbed: .*/runs.parquet: .*No space left on device", done.said), done.said
    assert "Traceback" not in done.said

    # a home directory that cannot be written, a Chromium that crashes
    chromium = root.directory / "usr" / "bin" / "chromium"
    chromium.write_text(BAD_CHROMIUM, encoding="utf-8")
    chromium.chmod(0o755)
    home = f'h="$root/home/{USER}"; p="$root{PLACE}"; mount --bind "$h" "$h"; mount --bind "$p" "$p"; '
    home += 'mount -o remount,bind,ro "$h"'
    for command in DEPOSITING:
        told = expect(root, command, PLACE, USER, before=home)
        shown, figures = figures, drawn(results, "html")
        assert {"goodput-by-aead", "ttfb-by-kem", "web-connection"} <= figures < shown
        assert "home directory '/home/visitor' cannot be written; caches go to build/home" in told
        assert re.search(rf"(?m)^{len(figures)} figures are HTML only.*: /usr/bin/chromium fails: ", told), told
    chromium.unlink()

    (archive,) = (clone / "artifacts" / "archive").glob("quicbed-*.tar.gz")
    place = f"/home/{USER}/deposited"
    target = root.directory / place.lstrip("/")
    target.mkdir()
    archive.rename(target / archive.name)
    root.give(target, USER)
    unpack, check = UNPACKING
    assert expect(root, f"{unpack} && {check}", place, USER).endswith("complete\n")
    (inside,) = (path for path in target.iterdir() if path.is_dir())
    draw, compare = COMPARING
    # a small machine, and no home directory; packages are in the cache that the first set-up has filled
    processor = str(min(os.sched_getaffinity(0)))
    small = ("taskset", "--cpu-list", processor, "prlimit", f"--as={2 << 30}")
    (inside / PACKETS).unlink()
    homeless = {"HOME": "/home/nobody", "PIP_CACHE_DIR": f"/home/{USER}/.cache/pip"}
    expect(root, draw, f"{place}/{inside.name}", USER, prefix=small, environment=homeless)
    assert expect(root, compare, f"{place}/{inside.name}", USER) == "same\n"
    results = inside / "artifacts" / "reference"
    assert drawn(results, "html") == figures
    assert packets_shipped() not in notebook(results)
    what = " with ".join([SHOWN["library"], f"{SHOWN['group']} and {SHOWN['signature']}"])
    assert f"a handshake of {what}: tshark is missing; install with: apt-get install tshark" in notebook(results)
    # two clones with their environments, of which nothing is asked any more: the disk may be small
    shutil.rmtree(root.directory / "home" / USER)
