"""Figures of web pages: which cells stand beside each other, what is compared, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fakeruns
from quicbed.figures import layout, output
from quicbed.papers.workloads import web, web_figures
from quicbed.store import runs

BASE = {"rtt_ms": 50.0, "rate_mbit": 50.0, "loss_percent": 0.0, "page": "median-2025", "group": "x25519"}
SIZES = {"light-2019": 172_032, "median-2025": 2_045_952}
VARIANTS: dict[str, dict[str, Any]] = {
    "base": {},
    "near": {"rtt_ms": 0.0},
    "far": {"rtt_ms": 200.0},
    "far and lost": {"rtt_ms": 200.0, "loss_percent": 1.0},
    "lost": {"loss_percent": 1.0},
    "slow": {"rate_mbit": 5.0},
    "light": {"page": "light-2019"},
    "hybrid": {"group": "x25519-mlkem768"},
    "chain": {"chain": "intermediate-scts"},
    "ML-DSA": {"signature": "mldsa65"},
    "ML-DSA, chain": {"signature": "mldsa65", "chain": "two-intermediates"},
    "old": {"tls_version": "TLSv1.2"},
    "far and old": {"rtt_ms": 200.0, "tls_version": "TLSv1.2"},
    "again": {"visit": "resumed"},
    "early": {"visit": "early-data"},
    "early hybrid": {"visit": "early-data", "group": "x25519-mlkem768"},
    "again ML-DSA": {"visit": "resumed", "signature": "mldsa65"},
    "again old": {"visit": "resumed", "tls_version": "TLSv1.2"},
}
QUIC, TCP = "nginx-h3", "tcp-tls"
BLOCKS = 4


def made(library: str, label: str, block: int | None, **changes: Any) -> dict[str, Any]:
    factors = BASE | VARIANTS[label]
    run = fakeruns.make_run(experiment="web", block=block, **changes)
    baseline = None if label == "base" else f"{library}-base"
    run["cell"] |= {"id": f"{library}-{label}", "slug": f"{library}-{label}", "label": label, "baseline": baseline}
    run["client"] = run["server"] = run["client"] | {"library": library}
    link = {name: factors[name] for name in ("rate_mbit", "rtt_ms", "loss_percent")}
    run["link"] = {"mode": "wire", "mtu": 1500} | link
    run["variant"] |= {"page": factors["page"], "group": factors["group"], "rtt_ms": 50}
    run["variant"]["signature"] = factors.get("signature", "rsa-2048")
    run["variant"]["chain"] = factors.get("chain")
    run["variant"]["visit"] = factors.get("visit")
    run["variant"]["header_protection"] = True if library == QUIC else None
    run["variant"]["tls_version"] = factors.get("tls_version")
    run["workload"] = {"kind": "page", "bytes": SIZES[factors["page"]], "connections": 1}
    if run["status"] == "ok":
        trips = 1 if library == QUIC else 3 if "tls_version" in factors else 2
        trips -= factors.get("visit") == "early-data" or (library == TCP and label == "again old")
        noise = 1 + 0.01 * (block or 0)
        connection = (2 + trips * factors["rtt_ms"]) * noise * (1.1 if label == "hybrid" else 1)
        load = connection + 4 * factors["rtt_ms"] + SIZES[factors["page"]] * 8e-3 / factors["rate_mbit"]
        run["metrics"] |= {
            "connection_ms": connection,
            "page_first_byte_ms": connection + factors["rtt_ms"],
            "page_load_ms": load,
        }
    return run


@pytest.fixture
def campaign(tmp_path: Path) -> pl.DataFrame:
    for library in (QUIC, TCP):
        for label in VARIANTS:
            if (library, label) == (TCP, "light"):
                fakeruns.write_run(tmp_path, made(library, label, None, status="unsupported", reason="no <pages>"))
                continue
            if library == QUIC and VARIANTS[label].get("visit") == "early-data":
                fakeruns.write_run(tmp_path, made(library, label, None, status="unsupported", reason="no 0-RTT"))
                continue
            if library == QUIC and "tls_version" in VARIANTS[label]:
                fakeruns.write_run(tmp_path, made(library, label, None, status="unsupported", reason="TLS 1.3 only"))
                continue
            for block in range(BLOCKS):
                fakeruns.write_run(tmp_path, made(library, label, block))
    return runs.select_campaign(runs.table(tmp_path), web.EXPERIMENT)


def test_the_caption_names_the_browsers_that_loaded_pages(campaign: pl.DataFrame) -> None:
    assert layout.loaded_by([campaign]) == []
    told = campaign.with_columns(
        client_browser=pl.when(pl.col("client_library") == QUIC).then(pl.lit("Chromium 156.0.8078.79"))
    )
    table = web.by_metric(told).filter(pl.col("metric") == "connection_ms")
    drawn = web_figures.times(told, table, web.against_tcp(told, table), "connection_ms")
    assert "Pages loaded by Chromium 156.0.8078.79." in drawn.figure.layout.meta["caption"]


def test_a_panel_has_the_cells_that_differ_in_its_factor_alone(campaign: pl.DataFrame) -> None:
    table = web.by_metric(campaign).filter(pl.col("metric") == "page_load_ms")

    def labels(name: str, library: str = QUIC) -> list[str]:
        return web.panel(table, name).filter(pl.col("client_library") == library)["label"].to_list()

    assert labels("rtt") == ["near", "base", "far"]
    assert labels("loss") == ["lost", "far and lost"]
    assert labels("rate") == ["slow", "base"]
    assert labels("page") == ["light", "base"]
    assert labels("cryptography") == ["ML-DSA", "base", "hybrid"]
    assert labels("chains") == ["ML-DSA", "ML-DSA, chain", "base", "chain"]
    # over TCP with both versions of TLS
    assert set(labels("rtt", TCP)) == {"near", "base", "far", "old", "far and old"}


def test_times_over_quic_are_compared_with_those_over_tcp_within_blocks(campaign: pl.DataFrame) -> None:
    ratios = web.against_tcp(campaign, web.by_metric(campaign))
    assert "light" not in ratios["label"]  # which one of them has not measured
    for version, trips in (("TLSv1.3", 2), ("TLSv1.2", 3)):
        (far,) = ratios.filter(metric="connection_ms", label="far", tls_version=version).to_dicts()
        assert (far["quic"], far["tcp"], far["n"]) == (QUIC, TCP, BLOCKS)
        # what changes from block to block changes both, and cancels
        assert [far[key] for key in ("ratio", "low", "high")] == pytest.approx([202 / (2 + trips * 200)] * 3)


def test_a_figure_shows_times_above_and_ratios_below(campaign: pl.DataFrame) -> None:
    table = web.by_metric(campaign)
    drawn = web_figures.times(campaign, table, web.against_tcp(campaign, table), "connection_ms")
    assert drawn.name == "web-connection"
    lines = {(line.name, line.xaxis): line for line in drawn.figure.data if line.name}
    mean = 1 + 0.01 * (BLOCKS - 1) / 2
    assert list(lines["HTTP/3", "x"].y) == pytest.approx([2 * mean, 52 * mean, 202 * mean])
    assert list(lines["HTTP/2, TLS 1.3", "x"].y) == pytest.approx([2 * mean, 102 * mean, 402 * mean])
    assert list(lines["HTTP/2, TLS 1.2", "x"].y) == pytest.approx([152 * mean, 602 * mean])
    new, old = (line for line in drawn.figure.data if line.xaxis == "x5")
    assert sorted(new.y) == pytest.approx(sorted(100 * (ratio - 1) for ratio in (1, 52 / 102, 202 / 402)))
    assert sorted(old.y) == pytest.approx(sorted(100 * (ratio - 1) for ratio in (52 / 152, 202 / 602)))
    (note,) = (note for note in drawn.figure.layout.annotations if note.text == web_figures.NO_VALUE)
    assert (note.hovertext, note.font.color) == ("no &lt;pages&gt;", web_figures.COLOURS[1])
    assert (
        f"{web_figures.NO_VALUE} no value: unsupported (light over HTTP/2, TLS 1.3)."
        in drawn.figure.layout.meta["caption"]
    )


def test_cryptography_is_compared_over_the_same_protocol(campaign: pl.DataFrame) -> None:
    drawn = web_figures.cryptography(campaign, web.by_metric(campaign))
    connection = [line for line in drawn.figure.data if line.xaxis == "x"]
    assert [line.name for line in connection] == ["HTTP/3", "HTTP/2, TLS 1.3"]
    assert list(drawn.figure.layout.yaxis.ticktext) == ["ML-DSA", "hybrid"]
    assert [list(line.x) for line in connection] == [pytest.approx([0, 10])] * 2


def test_chains_are_compared_with_the_server_s_certificate_alone(campaign: pl.DataFrame) -> None:
    drawn = web_figures.chains(campaign, web.by_metric(campaign))
    assert drawn.name == "web-chains"
    assert list(drawn.figure.layout.yaxis.ticktext) == ["ML-DSA", "ML-DSA, chain", "chain"]
    connection = [line for line in drawn.figure.data if line.xaxis == "x"]
    assert [list(line.y) for line in connection] == [
        pytest.approx([-0.07, 0.93, 1.93]),
        pytest.approx([0.07, 1.07, 2.07]),
    ]


def test_first_and_second_visits_stand_beside_each_other(campaign: pl.DataFrame) -> None:
    table = web.by_metric(campaign)
    drawn = web_figures.visits(campaign, table)
    assert isinstance(drawn, output.Drawn)
    assert drawn.name == "web-visits"
    assert list(drawn.figure.layout.xaxis.ticktext) == [
        *("first visit", "first visit<br>ML-DSA", "first visit<br>hybrid"),
        *("resumed", "resumed<br>ML-DSA", "0-RTT", "0-RTT<br>hybrid"),
    ]
    new, old = (
        next(line for line in drawn.figure.data if line.name == name and line.xaxis == "x")
        for name in ("HTTP/2, TLS 1.3", "HTTP/2, TLS 1.2")
    )
    mean = 1 + 0.01 * (BLOCKS - 1) / 2
    shown = dict(zip([round(x) for x in new.x], new.y, strict=True))
    assert shown == pytest.approx({0: 102, 1: 102, 2: 112.2, 3: 102, 4: 102, 5: 52, 6: 52}, rel=0.02)
    assert sorted(old.y) == pytest.approx([102 * mean, 152 * mean])
    notes = [note.hovertext for note in drawn.figure.layout.annotations if note.text == web_figures.NO_VALUE]
    assert set(notes) == {"no 0-RTT"}


def test_what_a_second_visit_saves_is_paired(campaign: pl.DataFrame) -> None:
    saved = web.saved(campaign, web.by_metric(campaign)).filter(metric="connection_ms", library=TCP)
    found = {(row["label"], row["against"]): row["ratio"] for row in saved.to_dicts()}
    assert found == pytest.approx(
        {
            ("again", "base"): 1,
            ("early", "base"): 52 / 102,
            ("early", "again"): 52 / 102,
            ("early hybrid", "hybrid"): 52 / 112.2,
            ("early hybrid", "early"): 1,
            ("again ML-DSA", "ML-DSA"): 1,
            ("again ML-DSA", "again"): 1,
            ("again old", "old"): 102 / 152,
        }
    )
    told = web_figures.found_visits(saved, "connection_ms")
    assert told is not None
    assert "HTTP/2, TLS 1.2, again old: connection time differs from that of old by " in " ".join(told.sentences)


KEPT: dict[str, dict[str, Any]] = {
    "base": {},
    "both": {"group": "x25519-mlkem768", "signature": "mldsa65"},
    "far": {"rtt_ms": 200.0},
    "old": {"tls_version": "TLSv1.2"},
    "again": {"visit": "resumed"},
    "early": {"visit": "early-data"},
    "open": {"visit": "kept"},
    "open both": {"visit": "kept", "group": "x25519-mlkem768", "signature": "mldsa65"},
    "open far": {"visit": "kept", "rtt_ms": 200.0},
    "open old": {"visit": "kept", "tls_version": "TLSv1.2"},
}
LOADS = {"base": 400, "both": 500, "far": 1600, "old": 450, "again": 380, "early": 350} | {
    "open": 100,
    "open both": 100,
    "open far": 400,
    "open old": 100,
}


@pytest.fixture
def reuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pl.DataFrame:
    """Runs over TCP of pages over connections that are kept."""
    for label, factors in KEPT.items():
        monkeypatch.setitem(VARIANTS, label, factors)
        for block in range(BLOCKS):
            run = made(TCP, label, block)
            run["experiment"] = web.REUSE
            run["metrics"]["page_load_ms"] = LOADS[label] * (1 + 0.01 * block)
            run["metrics"]["connection_ms"] = 102
            if factors.get("visit") == "kept":
                del run["metrics"]["connection_ms"]
            fakeruns.write_run(tmp_path, run)
    return runs.select_campaign(runs.table(tmp_path), web.REUSE)


def test_a_kept_connection_stands_beside_other_visits_and_has_no_connection_time(reuse: pl.DataFrame) -> None:
    drawn = web_figures.visits(reuse, web.by_metric(reuse))
    assert isinstance(drawn, output.Drawn)
    assert (drawn.name, drawn.table_name) == ("connection-reuse-visits", web.REUSE)
    assert list(drawn.figure.layout.xaxis.ticktext) == [
        *("first visit", "first visit<br>far", "first visit<br>both"),
        *("resumed", "0-RTT", "kept open", "kept open<br>far", "kept open<br>both"),
    ]
    notes = [note for note in drawn.figure.layout.annotations if note.text == web_figures.NO_VALUE]
    # with TLS 1.3 three, with TLS 1.2 one, all above
    assert {note.hovertext for note in notes} == {"the connection is that of the first visit"}
    assert len(notes) == 4
    assert "over the connection of the first visit" in drawn.figure.layout.meta["caption"]


def test_what_a_kept_connection_saves_is_told_against_every_other_visit(reuse: pl.DataFrame) -> None:
    saved = web.saved(reuse, web.by_metric(reuse))
    loads = saved.filter(metric="page_load_ms")
    found = {(row["label"], row["against"]): row["ratio"] for row in loads.to_dicts()}
    assert found == pytest.approx(
        {
            ("again", "base"): 0.95,
            ("early", "base"): 0.875,
            ("early", "again"): 350 / 380,
            ("open", "base"): 0.25,
            ("open", "again"): 100 / 380,
            ("open", "early"): 100 / 350,
            ("open far", "far"): 0.25,
            ("open old", "old"): 100 / 450,
            ("open both", "both"): 0.2,
            # what is left of the cost of cryptography, and what it costs a first visit
            ("open both", "open"): 1,
            ("both", "base"): 1.25,
        }
    )
    assert not any(label.startswith("open") for label in saved.filter(metric="connection_ms")["label"])
    told = web_figures.found_visits(saved, "page_load_ms")
    assert told is not None
    assert any("open: page load time differs from that of early by" in one for one in told.sentences)


def test_without_second_visits_none_are_drawn(campaign: pl.DataFrame) -> None:
    first = campaign.filter(pl.col("visit").is_null())
    told = web_figures.visits(first, web.by_metric(first))
    assert "there are no second visits of web here" in told._repr_html_()


def test_a_browser_has_what_a_visitor_sees(tmp_path: Path) -> None:
    for library in (QUIC, TCP):
        for label in ("base", "far", "hybrid", "chain"):
            for block in range(BLOCKS):
                run = made(library, label, block)
                run["experiment"] = web.BROWSER
                run["variant"]["loaded_by"] = "chromium"
                load = run["metrics"]["page_load_ms"]
                run["metrics"] |= {"load_event_ms": load + 10, "largest_contentful_paint_ms": load / 2}
                fakeruns.write_run(tmp_path, run)
    campaign = runs.select_campaign(runs.table(tmp_path), web.BROWSER)
    table = web.by_metric(campaign)
    assert set(table["metric"]) == {*web.METRICS, *web.DRAWN}
    ratios = web.against_tcp(campaign, table)
    drawn = web_figures.times(campaign, table, ratios, "largest_contentful_paint_ms")
    assert (drawn.name, drawn.table_name) == ("web-browser-largest-contentful-paint", web.BROWSER)
    assert "Largest contentful paint of web pages in Chromium" in drawn.figure.layout.title.text
    notes = " ".join(str(note.text) for note in drawn.figure.layout.annotations)
    assert "begin with the navigation" in notes.replace("<br>", " ")
    handshakes = web_figures.handshakes(campaign, table)
    assert list(handshakes.figure.layout.yaxis.ticktext) == ["chain", "hybrid"]
    assert handshakes.figure.layout.xaxis2.title.text == "largest contentful paint [%]"


def test_what_was_found_has_its_interval(campaign: pl.DataFrame) -> None:
    ratios = web.against_tcp(campaign, web.by_metric(campaign))
    told = web_figures.found(ratios, "connection_ms", ["far", "light"])
    assert told is not None
    minus = "\N{MINUS SIGN}"
    assert told.sentences == [
        f"far: connection time over HTTP/3 differs from that over HTTP/2, TLS {version} by {minus}{less} % "
        f"(95 % interval {minus}{less} to {minus}{less} %)."
        for version, less in (("1.3", 49.8), ("1.2", 66.4))
    ]
    assert web_figures.found(ratios, "connection_ms", ["light"]) is None
    one = ratios.with_columns(low=pl.lit(None, pl.Float64))
    assert web_figures.found(one, "connection_ms", ["far"]) is None
