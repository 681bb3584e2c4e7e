"""How datagrams pass: a row for each way, and what is said where nothing is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fakeruns
from quicbed.figures.goodput import experiment_table
from quicbed.papers.dissecting import figures
from quicbed.store import runs

WAYS = {"single": 100, "GSO": 400, "AF_XDP": 300}


def made(label: str, goodput: float, io: str, block: int | None = 0, **changes: Any) -> dict[str, Any]:
    run = fakeruns.make_run(experiment="kernel-bypass", block=block, **changes)
    run["cell"] = run["cell"] | {"id": label, "slug": label, "label": label, "baseline": None}
    run["variant"] = run["variant"] | {"io": io}
    run["link"] = {"mode": "wire", "mtu": 1500, "rate_mbit": None, "rtt_ms": 0, "loss_percent": 0}
    if run["status"] == "ok":
        spent = {"client_cpu_s": 1000 / goodput, "server_cpu_s": 2000 / goodput}
        run["metrics"] = run["metrics"] | spent | {"goodput_mbps": goodput * (1 + 0.1 * (block or 0))}
        if io == "af-xdp":
            options = {role: {"io": io, "xdp": "copy, native"} for role in ("client", "server")}
            run["host"] = run["host"] | {"options": options}
    return run


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    for label, goodput in WAYS.items():
        io = {"GSO": "gso", "AF_XDP": "af-xdp"}.get(label, label)
        for block in (0, 1):
            fakeruns.write_run(tmp_path / "raw", made(label, goodput, io, block))
    noop = made("NOOP, GSO", 800, "gso")
    noop["variant"] = noop["variant"] | {"aead": "noop", "header_protection": False}
    fakeruns.write_run(tmp_path / "raw", noop)
    refused = made("io_uring", 1, "io-uring", None, status="unsupported", reason="no io_uring: <forbidden>")
    fakeruns.write_run(tmp_path / "raw", refused)
    return tmp_path / "raw"


def test_a_panel_for_goodput_and_for_the_processor_time_of_each_end(raw: Path) -> None:
    campaign, table = experiment_table(runs.table(raw), "kernel-bypass")
    table = figures.io_table(campaign, table)
    bypassing = table.filter(label="AF_XDP").row(0, named=True)
    assert (bypassing["io"], bypassing["io_at"], bypassing["client_xdp"]) == ("af-xdp", None, "copy, native")
    drawn = figures.by_io(campaign, table, {"quinn": "Quinn"})
    notes = drawn.figure.layout.annotations
    panels = [note.text for note in notes if note.text.startswith("<b>")]
    assert panels == [
        "<b>Quinn: Mbit/s</b>",
        "<b>CPU s/GiB, client</b>",
        "<b>CPU s/GiB, server</b>",
    ]
    labels = list(drawn.figure.layout.yaxis.ticktext)
    assert labels == ["single", "GSO", "io_uring", "AF_XDP", "NOOP, GSO"]
    rows = {mark.name: mark for mark in drawn.figure.data if mark.showlegend}
    assert list(rows) == ["AES-128", "NOOP"]
    # the mean of both blocks, from the smaller to the larger
    assert [rows["AES-128"].x[list(rows["AES-128"].y).index(labels.index(way))] for way in WAYS] == pytest.approx(
        [1.05 * goodput for goodput in WAYS.values()]
    )
    assert list(rows["AES-128"].error_x.array) == pytest.approx([0.05 * x / 1.05 for x in rows["AES-128"].x])
    client, server = (
        {
            labels[row]: x
            for mark in drawn.figure.data
            if mark.xaxis == axis
            for row, x in zip(mark.y, mark.x, strict=True)
        }
        for axis in ("x2", "x3")
    )
    assert client["single"] == pytest.approx(4 * client["GSO"])
    assert server == pytest.approx({label: 2 * spent for label, spent in client.items()})
    assert "<br>AF_XDP: copy, native." in notes[-1].text
    assert "AF_XDP of the client: copy, native" in "".join(rows["AES-128"].hovertext)
    assert len(drawn.origins) == 2 * len(WAYS) + 1


def test_bare_udp_has_panels_of_its_own_and_every_aead_is_once_in_the_legend(raw: Path) -> None:
    for label, aead in (("GSO", "standard"), ("NOENC, GSO", "noenc")):
        bare = made(label, 1000, "gso")
        bare["cell"] |= {"id": f"bare {label}", "slug": f"bare {label}"}
        bare["variant"] |= {"aead": aead}
        bare |= {end: bare[end] | {"library": "bare-udp"} for end in ("client", "server")}
        fakeruns.write_run(raw, bare)
    campaign, table = experiment_table(runs.table(raw), "kernel-bypass")
    figure = figures.by_io(campaign, figures.io_table(campaign, table), {"bare-udp": "Bare UDP"}).figure
    titles = [note.text for note in figure.layout.annotations if note.text.startswith("<b>")]
    assert (len(titles), titles[0]) == (6, "<b>Bare UDP: Mbit/s</b>")
    assert sorted(mark.name for mark in figure.data if mark.showlegend) == ["AES-128", "NOENC", "NOOP"]
    assert list(figure.layout.yaxis.ticktext)[-1] == "NOENC, GSO"


def test_a_way_that_a_kernel_does_not_have_says_so_in_its_row(raw: Path) -> None:
    campaign, table = experiment_table(runs.table(raw), "kernel-bypass")
    figure = figures.by_io(campaign, figures.io_table(campaign, table)).figure
    row = list(figure.layout.yaxis.ticktext).index("io_uring")
    said = [note for note in figure.layout.annotations if note.text == "unsupported"]
    assert [(note.y, note.hovertext) for note in said] == [(row, "no io_uring: &lt;forbidden&gt;")] * 3
