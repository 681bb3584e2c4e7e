"""The commands of the documents for a visitor who may not become root, on a system where nothing has been installed."""

from __future__ import annotations

import pytest

import bareroot
from bareroot import USER, BareRoot
from clone import ROOT
from stranger import (
    COMPARING,
    DEPOSITING,
    LOOKING,
    MEASURING,
    PAGES,
    PLACE,
    UNPACKING,
    debian,
    drawn,
    expect,
    notebook,
    packets_shipped,
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


def test_a_visitor_who_may_not_become_root_draws_the_figures(visited: BareRoot) -> None:
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
