"""Figures of every client with every server, and by MTU: every cell is drawn, or says why it is not."""

from __future__ import annotations

import json
import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fakeruns
from quicbed.analysis import pairs
from quicbed.figures import goodput, output, pair_figures
from quicbed.store import runs

SIZES = {"208 KiB": 212992, "6.5 MiB": 6815744}
LIBRARIES = ("quiche", "quinn")


def pair_runs(raw: Path, failing: tuple[str, str] | None = None) -> pl.DataFrame:
    """Runs of two libraries with each other: goodput grows with the block, the server and the buffers."""
    for label, size in SIZES.items():
        for client in LIBRARIES:
            for server in LIBRARIES:
                for block in (1, 2, 3):
                    cell = f"{client}-{server}-{size}"
                    metrics = {"goodput_mbps": 1000.0 * block + size / 1e4 + len(server), "bytes": 1000}
                    made = fakeruns.make_run(
                        experiment="pairwise",
                        cell={"id": cell, "slug": cell, "label": label, "arm": "main", "baseline": None},
                        client={"library": client, "flavour": "stock", "version": "1", "build": client},
                        server={"library": server, "flavour": "stock", "version": "1", "build": server},
                        block=block,
                        metrics=metrics,
                    )
                    made["variant"] = made["variant"] | {"receive_buffer": size}
                    if (client, server) == failing:
                        made |= {"status": "failed", "reason": "it <hung>", "metrics": {}}
                    fakeruns.write_run(raw, made)
    return runs.table(raw)


def drawn(table: pl.DataFrame) -> output.Drawn:
    campaign, cells = goodput.experiment_table(table, "pairwise")
    return pair_figures.pairwise(campaign, pairs.pair_table(campaign, cells), {"quiche": "Quiche"})


def maps(figure: output.Drawn) -> list[Any]:
    return [trace for trace in figure.figure.data if trace.type == "heatmap"]


def test_a_panel_for_each_size_in_order_with_the_means_of_the_table(tmp_path: Path) -> None:
    figure = drawn(pair_runs(tmp_path / "raw"))
    assert [a.text for a in figure.figure.layout.annotations][:2] == [
        "Socket buffers of 208 KiB",
        "Socket buffers of 6.5 MiB",
    ]
    for trace, size in zip(maps(figure), SIZES.values(), strict=True):
        assert list(trace.x) == ["Quiche", "quinn"]  # clients
        assert list(trace.y) == ["Quiche", "quinn"]  # servers
        for row, server in zip(trace.z, LIBRARIES, strict=True):
            assert list(row) == pytest.approx([math.log10((2000 + size / 1e4 + len(server)) / 1000)] * 2)
    low, high = figure.table.select("mean_low", "mean_high").row(0)
    assert low < figure.table["mean"][0] < high
    assert len(figure.origins) == 24


def test_a_pair_that_failed_is_marked_with_its_reason(tmp_path: Path) -> None:
    figure = drawn(pair_runs(tmp_path / "raw", failing=("quiche", "quinn")))
    for trace in maps(figure):
        assert trace.z[1][0] is None
        assert "3 of 3 runs failed, the last: it &lt;hung&gt;" in trace.hovertext[1][0]
        assert trace.text[1][0] == "3/3 failed"
    assert figure.table.filter(pl.col("failed") > 0)["runs"].to_list() == [3, 3]


def test_a_pair_that_fails_at_times_has_its_mean_and_its_rate(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    table = pair_runs(raw)
    run = json.loads((tmp_path / table["origin"][0] / "run.json").read_text(encoding="utf-8"))
    fakeruns.write_run(raw, run | {"block": 4, "status": "failed", "reason": "it hung", "metrics": {}})
    text = [text for trace in maps(drawn(runs.table(raw))) for row in trace.text for text in row]
    assert [entry.endswith("<br>1/4 failed") for entry in text].count(True) == 1
    assert not any(entry.startswith("1/4") for entry in text)


def test_a_pair_that_could_not_be_proven_says_so(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    pair_runs(raw)
    made = fakeruns.make_run(
        experiment="pairwise",
        cell={"id": "unproven", "slug": "unproven", "label": "208 KiB", "arm": "main", "baseline": None},
        client={"library": "quiche", "flavour": "stock", "version": "1", "build": "quiche"},
        server={"library": "msquic", "flavour": "stock", "version": "1", "build": "msquic"},
        block=None,
        status="failed",
        reason="capture: the tags are <mixed>",
        metrics={},
    )
    fakeruns.write_run(raw, made)
    figure = drawn(runs.table(raw))
    panel = maps(figure)[0]
    at = list(panel.y).index("msquic"), list(panel.x).index("Quiche")
    assert panel.text[at[0]][at[1]] == "not<br>proven"
    assert "not proven: capture: the tags are &lt;mixed&gt;" in panel.hovertext[at[0]][at[1]]
    notes = " ".join(str(note.text) for note in figure.figure.layout.annotations)
    assert "0 of 24 runs failed" in notes
    assert "1 cells could not be proven" in notes


def write_mtu(raw: Path, mtu: int, arm: str, sizes: tuple[float, float] | None = None, **changes: Any) -> None:
    """A run with this MTU, or its proof; with mean frame sizes of server and client."""
    block = None if arm == "proof" else 1
    made = fakeruns.make_run(**{"experiment": "proofs" if arm == "proof" else "mtu", "block": block} | changes)
    name = f"p{mtu}" if arm == "proof" else f"{arm}-{mtu}"
    made["cell"] = {"id": name, "slug": name, "arm": arm, "label": f"MTU {mtu}", "baseline": None}
    made["link"] = made["link"] | {"mtu": mtu}
    made["evidence"] = made["evidence"] | {"proof": f"p{mtu}"}
    made["workload"] = made["workload"] | {"bytes": 2**22 if arm == "proof" else 2**27}
    if sizes is not None:
        made["metrics"] |= dict(zip(("server_mean_frame_bytes", "client_mean_frame_bytes"), sizes, strict=True))
    fakeruns.write_run(raw, made)


def by_mtu(raw: Path) -> tuple[pl.DataFrame, Any, str]:
    """Table, figure and what stands around it."""
    everything = runs.table(raw)
    campaign, cells = goodput.experiment_table(everything, "mtu")
    table = pairs.mtu_table(everything, campaign, cells)
    figure = pair_figures.goodput_by_mtu(campaign, table).figure
    return table, figure, " ".join(str(note.text) for note in figure.layout.annotations).replace("<br>", " ")


FRAMES = ["server_mean_frame_bytes", "client_mean_frame_bytes", "frames_arm", "frames_download_bytes"]


def test_frame_sizes_are_not_those_of_a_proof_of_another_host(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    other = fakeruns.make_run()["testbed"] | {"cpu_model": "Another CPU"}
    write_mtu(raw, 3000, "proof", (2950.5, 90.0), testbed=other)
    write_mtu(raw, 3000, "main")
    table, _, notes = by_mtu(raw)
    assert table.select(FRAMES).rows() == [(None, None, None, None)]
    assert "Measured on Example CPU, kernel 6.1.0 (host " in notes
    assert "Another CPU" not in notes


def test_frame_sizes_of_a_cell_without_a_captured_run_are_those_of_its_proof(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    write_mtu(raw, 3000, "proof", (2950.5, 90.0))
    write_mtu(raw, 3000, "main")
    write_mtu(raw, 3000, "main", block=2)
    table, figure, notes = by_mtu(raw)
    assert table.select(FRAMES).rows() == [(2950.5, 90.0, "proof", 2**22)]
    assert "with AES-128-GCM, from a capture of a download of 4 MiB that is not timed. " in notes
    assert figure.layout.xaxis.ticktext == ("3000<br>2950\u2193<br>90\u2191",)
    assert [a.text for a in figure.layout.annotations].count("not measured") == 1  # NOOP
    assert "MTU" not in figure.layout.title.text.partition("<br>")[2]


def test_frame_sizes_of_a_cell_are_those_of_its_newest_whole_capture(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    write_mtu(raw, 3000, "proof", (2100.0, 90.0))
    for block in (1, 2):
        write_mtu(raw, 3000, "main", block=block)
    moments = [(fakeruns.START + timedelta(seconds=number)).isoformat() for number in range(5)]
    write_mtu(raw, 3000, "captured", (2981.4, 71.0), attempt=1, started_at=moments[1])
    write_mtu(raw, 3000, "captured", (2500.0, 70.0), started_at=moments[0])
    write_mtu(raw, 3000, "captured", attempt=2, started_at=moments[2])  # which lost frames
    write_mtu(raw, 3000, "captured", (1.0, 1.0), attempt=3, started_at=moments[3], status="failed", reason="it hung")
    write_mtu(raw, 3000, "captured", (1.0, 1.0), started_at=moments[4], campaign="another")
    table, figure, notes = by_mtu(raw)
    assert table.select(FRAMES).rows() == [(2981.4, 71.0, "captured", 2**27)]
    assert table.select("n", "failed").rows() == [(2, 0)]
    assert "with AES-128-GCM, from a capture of a download of 128 MiB that is not timed. " in notes
    assert figure.layout.xaxis.ticktext == ("3000<br>2981\u2193<br>71\u2191",)


def test_frame_sizes_of_proofs_are_marked_beside_others(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    for mtu in (3000, 9000):
        write_mtu(raw, mtu, "proof", (mtu - 900.0, 90.0))
        write_mtu(raw, mtu, "main")
    write_mtu(raw, 3000, "captured", (2981.4, 71.0))
    write_mtu(raw, 9000, "captured")
    table, figure, notes = by_mtu(raw)
    assert table.sort("mtu").select(FRAMES).rows() == [
        (2981.4, 71.0, "captured", 2**27),
        (8100.0, 90.0, "proof", 2**22),
    ]
    assert "from a capture of a download that is not timed, of 128 MiB, * of 4 MiB. " in notes
    assert figure.layout.xaxis.ticktext == (
        "3000<br>2981\u2193<br>71\u2191",
        "9000<br>8100\u2193*<br>90\u2191*",
    )


def test_the_gain_of_noop_is_that_at_the_same_mtu_paired_within_blocks(tmp_path: Path) -> None:
    for mtu, gain in ((1500, 1.1), (9000, 1.3)):
        for block in (1, 2, 3):
            for aead, ratio in (("standard", 1.0), ("noop", gain)):
                run = fakeruns.make_run(experiment="mtu", block=block)
                name = f"{aead}-{mtu}"
                cell = {"id": name, "slug": name, "arm": "main", "label": name, "baseline": "standard-1500"}
                changed = run["variant"] | {"aead": aead}
                run |= {"cell": cell, "link": run["link"] | {"mtu": mtu}, "variant": changed}
                run["metrics"] |= {"goodput_mbps": 1000.0 * block * ratio + mtu * block}
                fakeruns.write_run(tmp_path / "raw", run)
    table, figure, notes = by_mtu(tmp_path / "raw")
    noop = {row["mtu"]: row for row in table.to_dicts() if row["aead"] == "noop"}
    expected = {1500: 100 * 100 / 2500, 9000: 100 * 300 / 10000}
    assert {mtu: 100 * (row["noop_ratio"] - 1) for mtu, row in noop.items()} == pytest.approx(expected)
    assert noop[1500]["ratio"] == pytest.approx(noop[1500]["noop_ratio"])
    assert noop[9000]["ratio"] != pytest.approx(noop[9000]["noop_ratio"])
    assert table.filter(pl.col("aead") != "noop")["noop_ratio"].null_count() == 2
    (below,) = [trace for trace in figure.data if trace.mode == "markers"]
    assert list(below.y) == pytest.approx(list(expected.values()))
    assert figure.layout.yaxis.domain[0] > figure.layout[f"yaxis{below.yaxis[1:]}"].domain[1]
    assert "paired within blocks" in notes


def test_frame_sizes_that_nothing_tells_are_left_out(tmp_path: Path) -> None:
    write_mtu(tmp_path / "raw", 3000, "main")
    _, figure, notes = by_mtu(tmp_path / "raw")
    assert "with AES-128-GCM, which were not captured. " in notes
    assert figure.layout.xaxis.ticktext == ("3000<br>\u2013<br>\u2013",)


def test_what_neither_aead_has_is_said_once(tmp_path: Path) -> None:
    for mtu in (1500, 9000):
        for aead in ("standard", "noop"):
            lacking = {"status": "unsupported", "reason": f"no <{aead}>"} if mtu == 9000 else {}
            run = fakeruns.make_run(experiment="mtu", block=None if lacking else 1, **lacking)
            name = f"{aead}-{mtu}"
            cell = {"id": name, "slug": name, "arm": "main", "label": name, "baseline": None}
            run |= {"cell": cell, "link": run["link"] | {"mtu": mtu}, "variant": run["variant"] | {"aead": aead}}
            fakeruns.write_run(tmp_path / "raw", run)
    _, figure, _ = by_mtu(tmp_path / "raw")
    (note,) = (note for note in figure.layout.annotations if note.text == "unsupported")
    assert (note.x, note.hovertext) == (1, "no &lt;standard&gt;; no &lt;noop&gt;")
