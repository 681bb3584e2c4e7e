"""Figures: what they show of a table, and the files they are written to."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import polars as pl
import pytest
from choreographer.browsers.chromium import Chromium

import fakeruns
from clone import EXTERNAL, ROOT
from fakeproject import described
from quicbed.analysis import comparison
from quicbed.figures import cpu_figures, goodput, layout, output, sheets
from quicbed.plan.host import FACTS
from quicbed.store import runs, symbols

TITLES = {"tcp-tls": "TCP+TLS"}


def drawn(tmp_path: Path, experiment: str = "aead-goodput", **options: Any) -> output.Drawn:
    raw = tmp_path / "raw"
    fakeruns.write_campaign(raw, experiment, **options)
    campaign, table = goodput.experiment_table(runs.table(raw), experiment)
    if experiment == "aead-goodput":
        return goodput.goodput_by_aead(campaign, table, TITLES)
    return goodput.header_protection(campaign, goodput.within_builds(campaign, table), TITLES)


def texts(figure: output.Drawn) -> str:
    return " | ".join(str(annotation.text) for annotation in figure.figure.layout.annotations)


def traces(figure: output.Drawn, kind: str) -> list[Any]:
    return [trace for trace in figure.figure.data if trace.type == kind]


def test_boxes_are_the_numbers_of_the_table(tmp_path: Path) -> None:
    figure = drawn(tmp_path)
    main = figure.table.filter((pl.col("arm") == "main") & (pl.col("n") > 0))
    boxes = traces(figure, "box")
    assert [box.name for box in boxes] == ["AES-128-GCM", "AES-256-GCM", "ChaCha20-Poly1305", "NOOP"]
    for box in boxes:
        expected = main.filter(pl.col("label") == box.name)
        for key, column in (
            ("q1", "q1"),
            ("median", "median"),
            ("q3", "q3"),
            ("lowerfence", "min"),
            ("upperfence", "max"),
        ):
            assert sorted(box[key]) == pytest.approx(sorted(expected[column] / 1000))


def test_every_run_that_counts_is_a_point_that_names_its_directory(tmp_path: Path) -> None:
    figure = drawn(tmp_path)
    points = {row[0] for trace in traces(figure, "scatter") if trace.customdata is not None for row in trace.customdata}
    cells = figure.table.filter(pl.col("arm") == "main")
    assert len(points) == cells["n"].sum()
    assert points < set(figure.origins)  # the manifest has the A/A runs too
    assert all((tmp_path / origin / "run.json").is_file() for origin in figure.origins)


def test_differences_and_noise_floor_are_those_of_the_table(tmp_path: Path) -> None:
    figure = drawn(tmp_path)
    ratios = figure.table.filter((pl.col("arm") == "main") & pl.col("ratio").is_not_null())
    shown = {
        round(trace.y[0], 9): trace.error_y for trace in traces(figure, "scatter") if trace.error_y.array is not None
    }
    assert sorted(shown) == pytest.approx(sorted(100 * (ratios["ratio"] - 1)))
    for cell in ratios.to_dicts():
        bar = shown[round(100 * (cell["ratio"] - 1), 9)]
        assert bar.array[0] == pytest.approx(100 * (cell["ratio_high"] - cell["ratio"]))
        assert bar.arrayminus[0] == pytest.approx(100 * (cell["ratio"] - cell["ratio_low"]))
    bands = sorted((s.y0, s.y1) for s in figure.figure.layout.shapes if s.fillcolor == goodput.FLOOR)
    floors = figure.table.filter(pl.col("arm") == "aa")
    expected = sorted(zip(100 * (floors["ratio_low"] - 1), 100 * (floors["ratio_high"] - 1), strict=True))
    assert bands == [pytest.approx(pair) for pair in expected]


def test_what_the_paper_states_is_behind_each_difference(tmp_path: Path) -> None:
    figure = drawn(tmp_path, incidents=False)
    libraries = figure.table.filter(pl.col("label") == "NOOP")["client_library"].n_unique()
    stated = [(s.y0, s.y1) for s in figure.figure.layout.shapes if s.fillcolor == goodput.PUBLISHED]
    assert stated.count(pytest.approx((10, 20))) == libraries  # NOOP: 10 to 20 % more
    assert stated.count(pytest.approx((-16, -9))) == libraries  # ChaCha20-Poly1305: 9 to 16 % less
    assert "published" in [trace.name for trace in figure.figure.data]


def test_all_lines_of_libraries_have_the_same_axes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(goodput, "ROW_GROUPS", 1)
    axes = drawn(tmp_path).figure.layout
    assert axes.yaxis.title.text == axes.yaxis3.title.text == "Goodput [Gbit/s]"
    assert (axes.yaxis.range, axes.yaxis2.range) == (axes.yaxis3.range, axes.yaxis4.range)


def test_aeads_are_told_apart_without_colour(tmp_path: Path) -> None:
    drawn_as = {trace.name: trace.marker.symbol for trace in drawn(tmp_path).figure.data if trace.showlegend is None}
    marks = {name: mark for name, _, _, mark in goodput.AEADS.values()}
    assert len(set(marks.values())) == len(marks)
    assert drawn_as.items() >= {name: marks[name] for name in ("AES-128-GCM", "ChaCha20-Poly1305", "NOOP")}.items()


def lightness(colour: str) -> float:
    """That of CIELAB, from 0 to 100: what is left of a colour in grey."""
    parts = [int(colour[first : first + 2], 16) / 255 for first in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    luminance = sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return float(116 * luminance ** (1 / 3) - 16)


def test_neighbours_in_bars_of_processor_time_are_told_apart_in_grey() -> None:
    parts = [lightness(cpu_figures.COLOURS[category]) for category in symbols.CATEGORIES]
    assert min(abs(one - other) for one, other in itertools.pairwise(parts)) > 15


def test_lines_have_as_many_libraries_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(goodput, "ROW_GROUPS", 2)
    figure = drawn(tmp_path).figure
    names = [note.xref for note in figure.layout.annotations if note.text.startswith("<b>")]
    lines = [names.count(line) for line in dict.fromkeys(names)]
    assert sum(lines) == len(names) > 2
    assert max(lines) - min(lines) <= 1


def test_a_version_for_a_column_has_the_libraries_of_the_paper(tmp_path: Path) -> None:
    fakeruns.write_campaign(tmp_path / "raw", "aead-goodput", incidents=False)
    campaign, table = goodput.experiment_table(runs.table(tmp_path / "raw"), "aead-goodput")
    of_paper = goodput.goodput_by_aead(campaign, table, TITLES, of_paper=["quinn", "lsquic"])
    column = of_paper.column
    assert column is not None
    assert (column.layout.width, column.layout.title.text) == (layout.COLUMN_PX, None)
    names = [text.text for text in column.layout.annotations if text.text.startswith("<b>")]
    assert names == ["<b>quinn</b>"]
    assert goodput.goodput_by_aead(campaign, table, TITLES, of_paper=["lsquic"]).column is None


def test_title_axis_and_caption_say_what_was_measured(tmp_path: Path) -> None:
    figure = drawn(tmp_path, blocks=8)
    layout = figure.figure.layout
    assert "CPU-bound, local · testbed local · scale quick · 256 MiB per run" in layout.title.text
    assert layout.yaxis.title.text == "Goodput [Gbit/s]"
    assert layout.yaxis.range[0] == 0
    assert "8 blocks; " in texts(figure)
    assert f"{figure.table['failed'].sum()} failed" in texts(figure)
    assert "TCP+TLS" in texts(figure)


def test_sizes_that_a_pilot_has_found_are_told_from_the_smallest_to_the_largest(tmp_path: Path) -> None:
    for block, size in enumerate((2**28, 2_000_500_000, 2**29)):
        run = fakeruns.make_run(block=block)
        run["workload"]["bytes"] = size
        fakeruns.write_run(tmp_path, run)
    assert "256 MiB to 1.863 GiB per run" in goodput.conditions(runs.table(tmp_path))


@pytest.mark.parametrize(("mtus", "told"), [((1500, 1500), True), ((1500, 9000), False)])
def test_an_mtu_is_told_where_it_is_not_a_factor(tmp_path: Path, mtus: tuple[int, int], told: bool) -> None:
    for block, mtu in enumerate(mtus):
        run = fakeruns.make_run(block=block)
        fakeruns.write_run(tmp_path, run | {"link": run["link"] | {"mtu": mtu}})
    assert ("MTU 1500" in goodput.conditions(runs.table(tmp_path))) == told


@pytest.mark.parametrize("fact", FACTS)
def test_a_figure_shows_one_host_and_names_it(tmp_path: Path, fact: str) -> None:
    raw = tmp_path / "raw"
    written = list(fakeruns.campaign("aead-goodput", blocks=4))
    for run in written:
        # half of the blocks, and of the pairs of a ratio, on each
        later = run["block"] is not None and run["block"] >= 2
        testbed = run["testbed"] | {"memory": "8 GiB"} | ({fact: "later"} if later else {})
        fakeruns.write_run(raw, run | {"testbed": testbed})
    campaign, table = goodput.experiment_table(runs.table(raw), "aead-goodput")
    assert campaign[fact].unique().to_list() == ["later"]
    assert set(campaign["block"]) == {2, 3}
    assert table["n"].max() == table["ratio_n"].max() == 2
    figure = goodput.goodput_by_aead(campaign, table)
    (host,) = layout.measured_on([campaign])
    told = {"cpu_model": "later", "processor": "Example CPU (later)"}.get(fact, "Example CPU")
    kernel = "later" if fact == "kernel" else "6.1.0"
    assert host == f"Measured on {told}, kernel {kernel} (host {campaign['host'][0]})."
    assert figure.figure.layout.annotations[-1].text.endswith(f"<br>{host}")
    assert figure.figure.layout.meta["caption"].endswith(host)


def test_the_host_of_an_external_endpoint_is_named_with_it(tmp_path: Path) -> None:
    fakeruns.write_campaign(tmp_path, "aead-goodput")
    fakeruns.write_external(tmp_path, "lsquic", "bbbb", day=1, cpu_model="Another CPU")
    campaign = runs.select_campaign(runs.table(tmp_path), "aead-goodput")
    for table in (campaign, comparison.figure_table(campaign)):
        first, second = sorted(layout.measured_on([table]), reverse=True)
        assert first.startswith("Measured on Example CPU, ")
        assert "lsquic" not in first
        assert second.startswith("Measured on Another CPU, ")
        assert second.endswith("; lsquic).")


def test_hosts_beside_each_other_are_all_named(tmp_path: Path) -> None:
    tables = []
    for testbed, processor in (("lab", "A" * 120), ("other", "<B>"), ("third", "<B>")):
        raw = tmp_path / testbed / "raw"
        facts = fakeruns.make_run()["testbed"] | {"name": testbed, "cpu_model": processor}
        fakeruns.write_run(raw, fakeruns.make_run(testbed=facts))
        tables.append(runs.select_campaign(runs.table(raw), "aead-goodput"))
    first, second = layout.measured_on(tables)
    assert first == f"Measured on {'A' * 120}, kernel 6.1.0 (testbed lab, host {tables[0]['host'][0]})."
    assert second == f"Measured on <B>, kernel 6.1.0 (testbed other, third, host {tables[1]['host'][0]})."
    figure = go.Figure()
    layout.finish(figure, "T", "c", "caption", tables, height=300, bottom=50)
    lines = figure.layout.annotations[0].text.split("<br>")
    assert lines[0] == "caption"
    assert lines[-1].startswith("Measured on &lt;B&gt;, ")
    assert max(map(len, lines)) <= 120
    # each has room of its own
    more = layout.HOST_PX * (len(lines) - 1)
    assert (figure.layout.height, figure.layout.margin.b) == (300 + more, 50 + more)


def test_a_shaped_link_is_not_called_cpu_bound(tmp_path: Path) -> None:
    for run in fakeruns.campaign("aead-goodput", blocks=1):
        run["link"] = run["link"] | {"rate_mbit": 1000}
        fakeruns.write_run(tmp_path / "raw", run)
    campaign, table = goodput.experiment_table(runs.table(tmp_path / "raw"), "aead-goodput")
    title = goodput.goodput_by_aead(campaign, table).figure.layout.title.text
    assert "CPU-bound" not in title
    assert "local, 1000 Mbit/s" in title


def test_an_unsupported_cell_is_labelled_in_place_with_its_reason(tmp_path: Path) -> None:
    figure = drawn(tmp_path)
    (label,) = [a for a in figure.figure.layout.annotations if a.text == "unsupported"]
    assert label.hovertext == "quinn has no NOOP AEAD"


def test_cells_without_a_finished_run_are_labelled(tmp_path: Path) -> None:
    for run in fakeruns.campaign("aead-goodput", blocks=2, incidents=False):
        if run["cell"]["label"] == "NOOP":
            run |= {"status": "failed", "reason": "the server exited with 1", "metrics": {}}
        if run["cell"]["label"] != "AES-256-GCM":
            fakeruns.write_run(tmp_path / "raw", run)
    figure = goodput.goodput_by_aead(*goodput.experiment_table(runs.table(tmp_path / "raw"), "aead-goodput"))
    labels = [(a.text, a.hovertext) for a in figure.figure.layout.annotations if a.hovertext]
    assert (
        sorted(labels)
        == [("failed", "the server exited with 1")] * 3 + [("not measured", "not part of this campaign")] * 3
    )


def test_header_protection_is_compared_within_pairs(tmp_path: Path) -> None:
    figure = drawn(tmp_path, "header-protection", incidents=False)
    gains = figure.table.filter((pl.col("arm") == "main") & pl.col("header_protection").not_())
    aes, chacha = (f"{cipher} in the noop build" for cipher in ("AES-128-GCM", "ChaCha20-Poly1305"))
    assert set(gains["baseline_label"]) == {aes, chacha, "NOOP with HP"}
    shown = [t.y[0] for t in traces(figure, "scatter") if t.error_y.array is not None]
    assert sorted(shown) == pytest.approx(sorted(100 * (gains["ratio"] - 1)))
    assert "Both boxes of a pair use one build" in texts(figure)
    # the control arm is tabulated, not drawn
    control = figure.table.filter(pl.col("arm") == "control")
    assert len(control) == 2
    assert not any(f"-{cell}." in origin for cell in control["cell"] for origin in figure.origins)


def test_header_protection_is_never_compared_between_builds(tmp_path: Path) -> None:
    """ChaCha20 has header protection on the stock build only; AES on both, and was planned to be compared with that."""
    planned = drawn(tmp_path / "planned", "header-protection", incidents=False, blocks=4).table
    for run in fakeruns.campaign("header-protection", incidents=False, blocks=4):
        cell = run["cell"]
        if cell["label"] == "ChaCha20-Poly1305 in the noop build":
            run["client"] = run["server"] = run["client"] | {"flavour": "stock", "build": "a-stock-0123456789ab"}
        if cell["label"] == "AES-128-GCM without HP":
            cell["baseline"] = f"{cell['id'][0]}0000006"  # AES-128-GCM of the stock build
        fakeruns.write_run(tmp_path / "raw", run)
    campaign, table = goodput.experiment_table(runs.table(tmp_path / "raw"), "header-protection")
    within = goodput.within_builds(campaign, table)
    lost = pl.col("label") == "ChaCha20-Poly1305 without HP"
    builds = ["client_build", "server_build"]
    assert within.filter(~lost).drop(builds).equals(planned.filter(~lost).drop(builds))
    assert not within.filter(~lost).equals(table.filter(~lost))
    assert within.filter(lost)["ratio"].null_count() == within.filter(lost)["baseline"].null_count() == 2
    figure = goodput.header_protection(campaign, within)
    assert texts(figure).count("not measured") == 2
    assert len([t for t in traces(figure, "scatter") if t.error_y.array is not None]) == 2 * 2


def test_one_block_has_no_interval_and_still_draws(tmp_path: Path) -> None:
    figure = drawn(tmp_path, blocks=1, incidents=False)
    assert figure.table["ratio_low"].is_null().all()
    assert not [s for s in figure.figure.layout.shapes if s.fillcolor == goodput.FLOOR]
    assert "1 block; " in texts(figure)


def test_libraries_have_the_names_of_their_description_and_external_ones_a_mark() -> None:
    columns = {"client_library": ["quinn", "elsewhere"], "server_library": ["elsewhere", "quiche"]}
    table = pl.DataFrame({**columns, "client_external": [None, True], "server_external": [True, None]})
    titles = goodput.library_titles(ROOT, table)
    assert {"quiche", "quinn", "tcp-tls"} <= set(titles)
    assert [name for name, title in titles.items() if title.endswith("(external)")] == ["elsewhere"]
    assert titles["elsewhere"] == "elsewhere (external)"
    named = {"elsewhere": described(path=str(EXTERNAL / "wrapping"))}
    assert comparison.titles(named, table) == {"elsewhere": "wrapped (external)"}


def test_without_chromium_there_is_still_a_page_and_the_manifest_says_so(tmp_path: Path) -> None:
    out = tmp_path / "figures"
    out.mkdir()
    stale = out / "goodput-by-aead.svg"
    stale.write_text("of an earlier figure")
    (saved,) = output.save(drawn(tmp_path), out)
    assert sorted(path.name for path in out.iterdir()) == [
        "goodput-by-aead.html",
        "goodput-by-aead.json",
        "plotly.min.js",
    ]
    manifest = json.loads((out / "goodput-by-aead.json").read_text())
    assert "no Chromium found" in manifest["skipped"]
    assert list(manifest["files"]) == ["goodput-by-aead.html"]
    assert "Plotly.newPlot" in saved._repr_mimebundle_(exclude={output.INTERACTIVE})["text/html"]
    assert saved._repr_mimebundle_().keys() == {"text/plain", output.INTERACTIVE}


def test_a_browser_that_cannot_start_is_no_error_but_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "chromium"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(Chromium, "find_browser", lambda **_: str(broken))
    (saved,) = output.save(drawn(tmp_path), tmp_path / "figures")
    assert saved.skipped is not None
    assert "Chromium" in saved.skipped
    assert (tmp_path / "figures" / "goodput-by-aead.html").is_file()


def test_a_library_that_differs_from_itself_is_marked(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    fakeruns.write_campaign(raw, "aead-goodput", blocks=3)
    campaign, found = goodput.experiment_table(runs.table(raw), "aead-goodput")

    def table(library: str) -> pl.DataFrame:
        """With an A/A interval of this library that excludes 1."""
        arms = pl.when(pl.col("arm") != "aa")
        ends = {"ratio_low": (1.02, 0.98), "ratio_high": (1.05, 1.01)}
        return found.with_columns(
            arms.then(name).when(pl.col("client_library") == library).then(off).otherwise(usual).alias(name)
            for name, (off, usual) in ends.items()
        )

    unlike, like = table("quinn"), table("nothing")
    told = texts(goodput.goodput_by_aead(campaign, unlike, {"quinn": "Quinn"}))
    assert f"<b>Quinn {goodput.UNLIKE_ITSELF}</b>" in told
    assert goodput.UNLIKE_ITSELF_MEANS in told
    assert told.count(goodput.UNLIKE_ITSELF) == 2  # and at no other library
    assert goodput.UNLIKE_ITSELF not in texts(goodput.goodput_by_aead(campaign, like))
    assert goodput.marked(unlike, {})[0] == {"quinn": f"quinn {goodput.UNLIKE_ITSELF}"}
    page = sheets.summary(unlike)._repr_html_()
    assert f"1.020 to 1.050 {goodput.UNLIKE_ITSELF}</td>" in page
    assert page.count(goodput.UNLIKE_ITSELF_MEANS) == 1
    assert goodput.UNLIKE_ITSELF not in sheets.summary(like)._repr_html_()
