"""Figures, tables and findings of quic-benchmark, of shipped captures and of published ones made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from benchmarkfiles import FOLDER, sample
from clone import ROOT
from openedcaptures import DRAFT_27, SIZE, Quic, Tls, key_log
from quicbed.analysis.place import Place
from quicbed.claims import papers
from quicbed.config.model import Project
from quicbed.figures import browser
from quicbed.figures.output import NotMeasured
from quicbed.importers import samples
from quicbed.papers import published_claims, reading
from quicbed.papers.quic_benchmark import analysis, figures, sections
from quicbed.papers.quic_benchmark.analysis import Measured
from quicbed.store import runs
from wirefixtures import pcap

NAMES = {"quiche": "quiche", "tcp-tls": "TCP+TLS"}


def imported(tmp_path: Path) -> Path:
    """A copy of two repetitions a transport, at 10 ms, imported."""
    files: dict[str, bytes] = {}
    for time in ("2021-03-11 00-31-37.6", "2021-03-11 00-36-41.0"):
        for transport, frames in (("quic", Quic(version=DRAFT_27).frames()), ("tcp", Tls().frames())):
            capture = pcap(tmp_path / "one.pcap", frames).read_bytes()
            own = {f"{transport}_pcap": capture, "ssl__keys_log": key_log(0x1301).encode()}
            files |= sample(f"{FOLDER}/{transport}/remote/{time}", **own)
    reading.read("quic-benchmark", samples.write(files, tmp_path / "copy"), tmp_path / "out")
    return tmp_path / "out"


def own_side() -> Measured:
    """Ours: three connections of quiche and one download over TCP."""
    place = {"source": "raw/local", "library": "quiche", "label": "handshake", "origin": "raw/local/proofs/1/a"}
    rows, times = [], []
    for connection in range(3):
        for number, (role, what, layer) in enumerate(
            [("client", "Initial: ClientHello", "tls"), ("server", "1-RTT: STREAM", "content")]
        ):
            one = {"connection": connection, "packet": number, "role": role, "what": what, "frame_bytes": 100}
            rows.append(place | one | {"time_ms": number + connection / 10, "link": 40, layer: 60, "opaque": 0})
        for basis in ("events", "capture"):
            of = {"handshake_ms": 1.0, "first_byte_ms": 2.0 + (basis == "events"), "transfer_ms": 0.0, "close_ms": 1.0}
            times.append(place | {"connection": connection, "basis": basis} | of)
    download = place | {"library": "tcp-tls", "label": "download", "origin": "raw/local/proofs/1/b"}
    one = {"connection": 0, "packet": 0, "role": "server", "what": "data", "frame_bytes": 1000, "time_ms": 0.0}
    rows.append(download | one | {"link": 50, "content": 950})
    packets = pl.DataFrame(rows, schema=dict(analysis.PACKETS), orient="row")
    layers = pl.col(list(analysis.LAYERS)).fill_null(0)
    measured = [
        {"origin": origin, "experiment": "proofs", "campaign": "1", "testbed": "local", "scale": "quick", "host": "abc"}
        for origin in ("raw/local/proofs/1/a", "raw/local/proofs/1/b")
    ]
    return Measured(
        packets.with_columns(layers),
        pl.DataFrame(times, schema=dict(analysis.DURATIONS), orient="row"),
        pl.DataFrame([{name: row.get(name) for name in runs.SCHEMA} for row in measured], schema=runs.SCHEMA),
    )


def test_published_captures_of_a_draft_are_opened(tmp_path: Path) -> None:
    found = analysis.published(imported(tmp_path))
    assert found.missing is None
    assert found.packets["opaque"].sum() == 0
    content = (
        found.packets.filter(pl.col("role") == "server").group_by("library", "origin").agg(pl.col("content").sum())
    )
    assert sorted(content.select("library", "content").rows()) == [("quic", SIZE)] * 2 + [("tcp", SIZE + 1400)] * 2
    assert sorted(set(found.durations["basis"])) == ["capture", "events"]
    assert "2 settings" in found._repr_html_()


def test_every_figure_is_drawn_of_both_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser, "render", lambda _: "not in this test")
    here = Place(ROOT, tmp_path / "raw", tmp_path / "artifacts", {})
    theirs = analysis.published(imported(tmp_path))
    saved = figures.save(theirs, own_side(), NAMES, here)
    kinds = ("flow", "overhead", "timeline", "differences")
    assert set(saved) == {
        *(
            f"benchmark-{name}"
            for name in ("flow-handshake", "overhead-handshake", "overhead-transfer", "flow-transfer")
        ),
        *("benchmark-timeline", "benchmark-differences", *(f"benchmark-published-{kind}" for kind in kinds)),
    }
    for name, one in saved.items():
        manifest = json.loads((here.figures / f"{name}.json").read_text())
        assert manifest["source"] == "quic-benchmark"
        assert (here.artifacts / manifest["table"]).is_file()
        ours = not name.startswith("benchmark-published")
        assert bool(manifest["runs"]) == ours
        assert one.drawn.figure.layout.height > 100
    assert json.loads((here.figures / "benchmark-flow-handshake.json").read_text())["runs"] == ["raw/local/proofs/1/a"]
    again = figures.save(analysis.published(None), own_side(), NAMES, here)
    assert len(again) == 6
    assert not list(here.figures.glob("benchmark-published-*"))


def texts(drawn: figures.Drawn | None) -> list[str]:
    assert drawn is not None
    return [text for trace in drawn.figure.data for text in (trace.text or ()) if trace.mode == "text"]


def test_a_chart_has_time_size_and_direction_of_every_packet() -> None:
    drawn = figures.flow("flow", own_side(), "handshake", NAMES)
    assert texts(drawn) == [
        "0.10 \N{PLUS-MINUS SIGN} 0.10",
        "1.10 \N{PLUS-MINUS SIGN} 0.10",
        "Initial: CH <span style='color:#6b6b6b'>100</span>",
        "1-RTT: STREAM <span style='color:#6b6b6b'>100</span>",
    ]
    assert drawn is not None
    tips = [(trace.marker.symbol, list(trace.y)) for trace in drawn.figure.data if trace.mode == "markers"]
    assert tips == [("triangle-right", [0.32]), ("triangle-left", [1.32])]
    single = texts(figures.flow("flow", own_side(), "download", NAMES))
    assert single[0] == "0.00"


def test_bars_of_an_end_add_up_to_all_bytes() -> None:
    drawn = figures.overhead("overhead", own_side(), "handshake", NAMES)
    assert drawn is not None
    shares = {(trace.name, trace.xaxis): list(trace.x) for trace in drawn.figure.data}
    assert shares == {
        ("Ethernet", "x"): [40.0],
        ("TLS messages", "x"): [60.0],
        ("content", "x"): [0.0],
        ("Ethernet", "x2"): [40.0],
        ("TLS messages", "x2"): [0.0],
        ("content", "x2"): [60.0],
    }


def test_differences_leave_out_what_takes_no_time() -> None:
    drawn = figures.differences("differences", own_side(), "handshake", NAMES)
    assert drawn is not None
    assert [list(trace.x) for trace in drawn.figure.data] == [[0.0] * 3, [1.0] * 3, [0.0] * 3]
    timeline = figures.timelines("timeline", own_side(), "handshake", NAMES)
    assert timeline is not None
    # by events, by capture
    assert [list(trace.x) for trace in timeline.figure.data] == [[1, 1], [2, 1], [0, 0], [1, 1]]


SETTING = FOLDER.removeprefix("samples/")


def theirs(
    label: str, *, events: bool = True, close_ms: float = 4.0, role: str = "client", layer: str = "content"
) -> Measured:
    """A published connection: QUIC, one packet of an end."""
    place = {"source": analysis.SOURCE, "library": "quic", "label": label, "origin": label, "connection": 0}
    packet = place | {"packet": 0, "time_ms": 0.0, "role": role, "what": "1-RTT", "frame_bytes": 100, "link": 40}
    packets = pl.DataFrame([packet | {layer: 60}], schema=dict(analysis.PACKETS), orient="row")
    times = {"handshake_ms": 10.0, "first_byte_ms": 12.0, "transfer_ms": 8.0}
    bases = [("capture", 4.0), *([("events", close_ms)] if events else [])]
    durations = [place | {"basis": basis, "close_ms": close} | times for basis, close in bases]
    run = {"origin": label, "campaign": label, "testbed": "remote"}
    return Measured(
        packets.with_columns(pl.col(list(analysis.LAYERS)).fill_null(0)),
        pl.DataFrame(durations, schema=dict(analysis.DURATIONS), orient="row"),
        pl.DataFrame([{name: run.get(name) for name in runs.SCHEMA}], schema=runs.SCHEMA),
    )


def together(*sides: Measured) -> Measured:
    return Measured(*(pl.concat([getattr(side, name) for side in sides]) for name in ("packets", "durations", "runs")))


def test_a_server_that_waits_for_its_timeout_leaves_the_rest_of_the_timeline_to_be_seen() -> None:
    sides = [theirs("nginx-measurements", events=False), theirs(SETTING, close_ms=9994.0)]
    drawn = figures.timelines("timeline", together(*sides), None, {})
    assert drawn is not None
    cells, bases = drawn.figure.data[0].y
    # nginx logs no events, and has no row of them
    assert list(zip(cells, bases, strict=True)) == [
        ("QUIC, 10 ms delay", "by events"),
        ("QUIC, 10 ms delay", "by capture"),
        ("QUIC, nginx", "by capture"),
    ]
    assert list(drawn.figure.layout.xaxis.range) == [0, pytest.approx(1.05 * 24)]
    caption = drawn.figure.layout.meta["caption"]
    assert "Closing continues beyond the axis: QUIC, 10 ms delay by events 9994 ms." in caption.replace("<br>", " ")
    short = figures.timelines("timeline", theirs(SETTING), None, {})
    assert short is not None
    assert short.figure.layout.xaxis.range is None
    assert "beyond" not in short.figure.layout.meta["caption"]
    # two settings are no one campaign
    assert set(drawn.table["campaign"]) == {None}
    assert set(short.table["campaign"]) == {SETTING}


def test_published_settings_are_named_for_people() -> None:
    names = ["samples_threshold25_dev2_delay20", "samples_threshold30_dev2_delay20", "nginx-measurements"]
    sheet = figures.overhead_table(together(*map(theirs, names)), {})
    assert sheet is not None
    told = {row[0] for row in sheet.rows}
    # with other limits than those of the project the name stays, so that no two settings are one
    assert told == {"QUIC, 20 ms delay", f"QUIC, {names[1]}", "QUIC, nginx"}
    drawn = figures.overhead("overhead", together(*map(theirs, names)), None, {})
    assert drawn is not None
    assert drawn.figure.layout.margin.l > 0.5 * 12 * len(f"QUIC, {names[1]}")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"role": "server"}, "40.00 % of what the server sends is no content: 40.00 % Ethernet"),
        ({"role": "client"}, "40.00 % of what the client sends is no content: 40.00 % Ethernet"),
        ({"role": "server", "layer": "opaque"}, "60.00 % of what the server sends is not decrypted, so that content"),
        ({"role": "server", "layer": "padding"}, "100.00 % of what the server sends is no content: 40.00 % Ethernet"),
    ],
)
def test_overhead_is_told_of_the_end_that_sends_content_and_not_where_that_is_unknown(
    changes: dict[str, str], text: str
) -> None:
    told = figures.found_overhead(theirs("nginx-measurements", **changes), {})
    assert told is not None
    assert told.sentences[0].startswith(f"QUIC, nginx: {text}")


def test_tables_and_sentences_say_the_numbers(tmp_path: Path) -> None:
    side = own_side()
    sheet = figures.overhead_table(side, NAMES)
    assert sheet is not None
    assert [list(row[:6]) for row in sheet.rows] == [
        ["TCP+TLS", "download", "server", 1, "1000", "50 (5.0 %)"],
        ["quiche", "handshake", "client", 3, "100", "40 (40.0 %)"],
        ["quiche", "handshake", "server", 3, "100", "40 (40.0 %)"],
    ]
    durations = figures.durations_table(side, NAMES)
    assert durations is not None
    plus = "\N{PLUS-MINUS SIGN}"
    assert durations.rows[1][2:] == [
        *("time to first byte", 3, f"3.000 {plus} 0.000", f"2.000 {plus} 0.000", f"1.000 {plus} 0.000"),
        "1.000 to 1.000",
    ]
    flow = figures.found_flow(side, NAMES)
    assert flow is not None
    assert flow.sentences == [
        "Measured here: a connection takes 2.0 packets (quiche) to 2.0 (quiche) in both directions, means of 3 runs "
        "and 3 runs."
    ]
    overhead = figures.found_overhead(side, NAMES)
    assert overhead is not None
    assert overhead.sentences[0].startswith("TCP+TLS: 5.00 % of what the server sends is no content: 5.00 % Ethernet")
    told = figures.found_durations(side, NAMES)
    assert told is not None
    assert "time to first byte: events less captures are +1.000 ms (quiche)" in told.sentences[1]
    assert [row[5] for row in figures.captures(side, NAMES).rows] == list(side.runs["origin"][::-1])
    nothing = analysis.published(None)
    assert figures.drawn(nothing, nothing, NAMES) == []
    assert figures.overhead_table(nothing, NAMES) is None
    assert figures.found_durations(nothing, NAMES) is None


def cells_of(notebook: str) -> list[str]:
    cells = json.loads((ROOT / "notebooks" / f"{notebook}.ipynb").read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_the_notebook_says_how_to_measure_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raw").mkdir()
    for name, value in (("RAW", tmp_path / "raw"), ("ARTIFACTS", tmp_path / "artifacts"), ("PUBLISHED", "")):
        monkeypatch.setenv(f"QUICBED_{name}", str(value))
    monkeypatch.chdir(ROOT / "notebooks")
    namespace: dict[str, Any] = {}
    shown = []
    for source in cells_of("quic-benchmark"):
        *statements, last = source.splitlines()
        exec("\n".join(statements), namespace)  # noqa: S102 (our own notebook)
        shown.append(eval(last, namespace))  # noqa: S307
    told = [one.experiment for one in shown if isinstance(one, NotMeasured)]
    assert told == [
        *("native-handshake", "aead-goodput", "native-handshake", "aead-goodput"),
        *("native-handshake", "native-handshake"),
    ]
    assert any(isinstance(one, Measured) and one.missing for one in shown)
    assert set(sections.MEASURED_BY.values()) <= set(Project(ROOT).experiments)


def test_conditions_are_judged_by_published_pings(tmp_path: Path) -> None:
    project = Project(ROOT)
    wanted = [one for one in papers.stated(project) if one.name == "quic-benchmark"]
    results = published_claims.evaluate(project, wanted, {"quic-benchmark": imported(tmp_path)})
    outcomes = {result.stated.claim.id: result for result in results}
    (value,) = outcomes["rtt-10"].outcomes
    assert value.missing is None
    assert outcomes["rtt-0"].outcomes[0].missing is not None  # no sample without delay in the copy
    assert published_claims.evaluate(project, wanted, {}) == []
