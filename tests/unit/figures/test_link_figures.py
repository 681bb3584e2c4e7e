"""Goodput by what the link does: what is drawn where, and what is said where nothing is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fakeruns
from quicbed.figures import goodput as figures
from quicbed.figures import link_figures
from quicbed.store import runs

DELAYS, LOSSES = (0, 10, 50), (0, 0.1, 1)


def goodput(rtt: float, loss: float) -> float:
    return 200 / (1 + rtt * (0.1 + loss))


def made(rtt: float, loss: float, block: int | None, **changes: Any) -> dict[str, Any]:
    run = fakeruns.make_run(experiment="delay-loss", block=block, **changes)
    label = f"{rtt} ms, {loss} %"
    run["cell"] = run["cell"] | {"id": f"{rtt}-{loss}", "slug": label, "label": label, "baseline": None}
    run["link"] = {"mode": "wire", "mtu": 1500, "rate_mbit": 200, "rtt_ms": rtt, "loss_percent": loss}
    run["host"] = run["host"] | {"ping": {"mean_ms": rtt + 0.5, "deviation_ms": 0.1, "within_limits": True}}
    if run["status"] == "ok":
        run["metrics"] = run["metrics"] | {"goodput_mbps": goodput(rtt, loss) * (1 + 0.1 * (block or 0))}
    return run


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    for rtt in DELAYS:
        for loss in LOSSES:
            if (rtt, loss) == (50, 1):
                refused = made(rtt, loss, None, status="unsupported", reason="no losses: kernel has no <bpf>")
                fakeruns.write_run(tmp_path / "raw", refused)
                continue
            for block in (0, 1):
                fakeruns.write_run(tmp_path / "raw", made(rtt, loss, block))
    return tmp_path / "raw"


def test_a_line_for_every_loss_over_round_trip_times(raw: Path) -> None:
    campaign, table = figures.experiment_table(runs.table(raw), "delay-loss")
    table = link_figures.link_table(campaign, table)
    far = table.filter(label="10 ms, 0.1 %").row(0, named=True)
    assert (far["rtt_ms"], far["loss_percent"], far["rtt_mean_ms"]) == (10, 0.1, 10.5)
    drawn = link_figures.goodput_by_delay(campaign, table, {"quinn": "Quinn"})
    lines = {line.name: line for line in drawn.figure.data}
    assert list(lines) == ["0 % lost", "0.1 % lost", "1 % lost"]
    for loss in LOSSES:
        line = lines[f"{loss:g} % lost"]
        shown = [rtt for rtt in DELAYS if (rtt, loss) != (50, 1)]
        assert list(line.y) == pytest.approx([1.05 * goodput(rtt, loss) for rtt in shown])
        # the smallest and the largest run
        assert list(line.error_y.array) == pytest.approx([0.05 * goodput(rtt, loss) for rtt in shown])
        assert [round(x) for x in line.x] == [DELAYS.index(rtt) for rtt in shown]
    assert "pings before runs: 10.50 ms" in lines["0 % lost"].hovertext[1]
    assert drawn.figure.layout.xaxis.ticktext == ("0", "10", "50")
    assert drawn.figure.layout.yaxis.type == "log"
    assert len(drawn.origins) == 2 * 8


def test_a_library_that_cannot_says_so_in_place(raw: Path) -> None:
    campaign, table = figures.experiment_table(runs.table(raw), "delay-loss")
    figure = link_figures.goodput_by_delay(campaign, link_figures.link_table(campaign, table)).figure
    (note,) = (note for note in figure.layout.annotations if note.textangle == -90)
    assert (note.text, note.x) == ("1 unsupported", 2)
    assert note.hovertext == "no losses: kernel has no &lt;bpf&gt;"


def test_the_caption_tells_how_many_runs_count_although_contaminated(raw: Path) -> None:
    def caption() -> str:
        campaign, table = figures.experiment_table(runs.table(raw), "delay-loss")
        drawn = link_figures.goodput_by_delay(campaign, link_figures.link_table(campaign, table))
        return " ".join(note.text for note in drawn.figure.layout.annotations)

    assert "contaminated" not in caption()
    fakeruns.write_run(raw, made(10, 0, 2, contaminated=True, contamination=["the client waited for a processor"]))
    assert "1 of 17 runs count although contaminated." in caption()


PERMILLE, PACKETS = (1, 10), (8, 830)


def cost(permille: float, packets: int) -> float:
    """Seconds of processors that both ends take for 256 MiB."""
    return 1 + permille * packets / 10000


def put_back(
    permille: float, packets: int, flavour: str = "stock", bbr: bool = False, **changes: Any
) -> dict[str, Any]:
    run = fakeruns.make_run(experiment="reordering", **changes)
    label = f"{flavour}, {permille} by {packets}{', BBR' * bbr}"
    run["cell"] = run["cell"] | {"id": label, "slug": label, "label": label, "baseline": None}
    run["client"] = run["server"] = run["client"] | {"flavour": flavour}
    run["variant"] = run["variant"] | ({"congestion_control": "bbr"} if bbr else {})
    run["link"] = {"mode": "wire", "mtu": 1500, "rate_mbit": None, "rtt_ms": 0, "loss_percent": 0}
    run["link"] |= {"reorder_permille": permille, "reorder_packets": packets}
    if run["status"] == "ok":
        own = {"goodput_mbps": 1000 / (1 + permille), "server_packets_lost": 7}
        spent = {"client_cpu_s": cost(permille, packets) - 0.25, "server_cpu_s": 0.25}
        run["metrics"] = run["metrics"] | own | spent
    return run


def write_reordered(raw: Path) -> None:
    for flavour in ("stock", "splay"):
        fakeruns.write_run(raw, put_back(0, 1, flavour))
        for permille in PERMILLE:
            for packets in PACKETS:
                fakeruns.write_run(raw, put_back(permille, packets, flavour))
    fakeruns.write_run(raw, put_back(0, 1, bbr=True))
    fakeruns.write_run(raw, put_back(10, 8, bbr=True))
    refused = put_back(1, 8, "linear", status="unsupported", reason="quinn has no flavour linear", block=None)
    fakeruns.write_run(raw, refused)


def test_a_line_for_every_distance_and_two_panels_for_every_library_and_flavour(tmp_path: Path) -> None:
    write_reordered(tmp_path / "raw")
    campaign, table = figures.experiment_table(runs.table(tmp_path / "raw"), "reordering")
    table = link_figures.reorder_table(campaign, table)
    drawn = link_figures.reordering(campaign, table, {"quinn": "Quinn"})
    texts = [note.text for note in drawn.figure.layout.annotations]
    panels = [text for text in texts if text.startswith("<b>")]
    assert panels == [
        "<b>Quinn: Mbit/s</b>",
        "<b>Quinn: CPU s/GiB</b>",
        "<b>Quinn (splay): Mbit/s</b>",
        "<b>Quinn (splay): CPU s/GiB</b>",
    ]
    # of each flavour and quantity, and BBR beside the stock one
    assert [line.name for line in drawn.figure.data if line.showlegend] == ["by 8", "by 830"]
    lines = [line for line in drawn.figure.data if line.mode == "lines+markers"]
    assert len(lines) == 2 * 2 * 2
    for line, packets, spent in zip(lines[:4], (8, 830, 8, 830), (False, False, True, True), strict=True):
        assert [round(x) for x in line.x] == [0, 1, 2]
        wanted = [4 * cost(one, packets) if spent else 1000 / (1 + one) for one in (0, *PERMILLE)]
        assert list(line.y) == pytest.approx(wanted)
    hollow = [line for line in drawn.figure.data if line.mode == "markers"]
    assert [line.marker.symbol for line in hollow] == ["circle-open"] * 2
    assert [round(x) for x in hollow[0].x] == [0, 2]
    assert "declared lost by the server: 7 packets" in lines[0].hovertext[0]
    assert drawn.figure.layout.xaxis.ticktext == ("0", "1", "10")


def test_a_library_whose_link_cannot_put_packets_back_says_so_in_place(tmp_path: Path) -> None:
    refused = put_back(1, 8, status="unsupported", reason="no reordering: kernel has no <bpf>", block=None)
    refused["client"] = refused["server"] = refused["client"] | {"library": "quiche"}
    for run in (put_back(0, 1), refused):
        fakeruns.write_run(tmp_path / "raw", run)
    campaign, table = figures.experiment_table(runs.table(tmp_path / "raw"), "reordering")
    figure = link_figures.reordering(campaign, link_figures.reorder_table(campaign, table)).figure
    notes = [note for note in figure.layout.annotations if note.textangle == -90]
    assert [(note.text, note.hovertext) for note in notes] == [
        ("unsupported", "no reordering: kernel has no &lt;bpf&gt;")
    ] * 2
