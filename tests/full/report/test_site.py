"""The report in a browser: what it loads, links, filters, the grid of runs, widths, paper, keyboard, screen readers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import axe_core_python
import pytest

import fakeruns
from benchmarks import chromium
from benchmarks.chromium import Page
from clone import ROOT
from quicbed.analysis import comparison
from quicbed.config.model import Project
from quicbed.figures import goodput, output
from quicbed.report import grid
from quicbed.report import page as report
from quicbed.store import details, runs

pytestmark = pytest.mark.skipif(chromium.path() is None, reason="no Chromium is installed")

WIDTHS = (390, 768, 1280)
OWNED = "document.title='owned'"
HOSTILE = f"</script><script>{OWNED}</script><img src=x onerror={OWNED}> & 'single' \"double\" \u2028 ]]> -->"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on two experiments, one of which has runs that say hostile things of themselves."""
    root = tmp_path_factory.mktemp("site")
    raw, artifacts = root / "raw", root / "artifacts"
    fakeruns.write_campaign(raw, "aead-goodput", blocks=6)
    fakeruns.write_run(
        raw,
        fakeruns.make_run(
            experiment="hardware", block=0, status="failed", reason=HOSTILE, metrics={},
            testbed=fakeruns.make_run()["testbed"] | {"cpu_model": HOSTILE, "kernel": HOSTILE},
        ),
    )  # fmt: skip
    fakeruns.write_run(raw, fakeruns.make_run(experiment="hardware", block=1))
    table = details.write_tables(raw, artifacts / "tables" / "runs.parquet")
    campaign, cells = goodput.experiment_table(table, "aead-goodput")
    comparison.write_figure_table(cells, "aead-goodput", artifacts / "tables")
    output.save(goodput.goodput_by_aead(campaign, cells), artifacts / "figures")
    return report.write(artifacts, raw, project=Project(ROOT)).parent


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with chromium.opened() as opened:
        yield opened


def pages(site: Path) -> list[Path]:
    found = sorted(site.glob("*.html"))
    assert {"index.html", "claims.html", "runs.html", "experiment-hardware.html", "paper-quantum-of-quic.html"} <= {
        one.name for one in found
    }
    return found


def counted(page: Page) -> tuple[int, int]:
    """How many runs or claims a page says that it shows, and of how many."""
    shown, _, rest = str(page.evaluate("document.getElementById('count').textContent")).partition(" of ")
    return int(shown), int(rest.split()[0])


def choose(page: Page, name: str, value: str) -> None:
    """Set a filter as a reader does."""
    script = """((name, value) => {
      const element = document.getElementById("filters").elements[name];
      element.value = value;
      element.dispatchEvent(new Event("input", {bubbles: true}));
    })"""
    page.evaluate(f"{script}({json.dumps(name)}, {json.dumps(value)})")


@pytest.mark.parametrize("width", WIDTHS)
def test_pages_open_from_files_at_every_width(site: Path, page: Page, width: int) -> None:
    for file in pages(site):
        page.open(file, width=width)
        assert page.errors == [], file.name
        asked = [one for one in page.requests if not one.startswith(("file:", "data:", "about:"))]
        assert asked == [], file.name
        # what is wider than the screen is moved in a box of its own, never the page
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), file.name
        assert page.evaluate("document.title") != "owned", file.name
        assert page.evaluate("[...document.images].every((one) => one.complete && one.naturalWidth > 0)"), file.name


def test_policy_keeps_scripts_in_pages_and_the_network_out(site: Path, page: Page) -> None:
    page.open(site / "index.html")
    refused = page.evaluate(
        f"""(async () => {{
          const refused = [];
          addEventListener("securitypolicyviolation", (event) => refused.push(event.effectiveDirective));
          document.body.append(Object.assign(document.createElement("script"), {{ textContent: "{OWNED}" }}));
          document.body.append(Object.assign(new Image(), {{ src: "http://192.0.2.1/" }}));
          while (refused.length < 2) await new Promise((done) => setTimeout(done, 10));
          return refused;
        }})()"""
    )
    assert sorted(refused) == ["img-src", "script-src-elem"]
    assert page.evaluate("document.title") != "owned"


def test_every_link_leads_somewhere_and_every_number_to_runs(site: Path, page: Page) -> None:
    selections = set()
    for file in pages(site):
        page.open(file)
        for href in page.evaluate("[...document.links].map((one) => one.href)"):
            target = Path(unquote(urlsplit(href).path))
            assert target.is_file(), href
            fragment = urlsplit(href).fragment
            if target.name == "runs.html" and fragment:
                selections.add(fragment)
            elif fragment and "=" not in fragment:
                assert f'id="{unquote(fragment)}"' in target.read_text(encoding="utf-8"), href
    assert len(selections) > 50
    assert any(one.startswith("run=") for one in selections)
    page.open(site / "runs.html")
    script = """(async (selections) => {
      const empty = [];
      for (const one of selections) {
        const changed = new Promise((done) => addEventListener("hashchange", () => setTimeout(done), {once: true}));
        location.hash = one;
        await changed;
        if (document.getElementById("count").textContent.startsWith("0 of")) empty.push(one);
      }
      return empty;
    })"""
    empty = page.evaluate(f"{script}({json.dumps(sorted(selections))})")
    # the first page leads to what was disturbed, also where nothing was
    assert [one for one in empty if not one.startswith("status=")] == []


def test_a_number_of_a_table_leads_to_the_runs_of_its_cell(site: Path, page: Page) -> None:
    page.open(site / "experiment-aead-goodput.html")
    script = """(() => {
      const row = [...document.querySelectorAll(".sheet tbody tr")].find((one) => one.textContent.includes("NOOP")
        && one.querySelector("a"));
      const link = row.querySelectorAll("td")[4].querySelector("a");
      return {n: Number(row.querySelectorAll("td")[3].textContent), hash: new URL(link.href).hash};
    })()"""
    found = page.evaluate(script)
    page.open(site / "runs.html", found["hash"])
    assert counted(page)[0] == found["n"] == 6
    assert page.evaluate("document.querySelectorAll('#chosen button').length") == 2  # campaign and cell
    page.evaluate("document.querySelectorAll('#chosen button')[1].click()")
    assert counted(page)[0] > 6


@pytest.mark.parametrize("width", WIDTHS)
def test_the_grid_is_filtered_and_shows_a_run_with_its_command(site: Path, page: Page, width: int) -> None:
    page.open(site / "runs.html", width=width)
    shown, total = counted(page)
    assert shown == total == len(runs.table(site.parents[1] / "raw"))
    # rows that are not seen are not there: the page opens as fast with a hundred times as many
    assert page.evaluate("document.querySelectorAll('.tabulator-row').length") < min(total, 60)
    choose(page, "experiment", "hardware")
    assert counted(page)[0] == 2
    choose(page, "words", "ALERT")
    assert counted(page)[0] == 0
    choose(page, "words", "single")
    assert counted(page)[0] == 1
    assert page.evaluate("location.hash") == "#experiment=hardware&words=single"
    # by keyboard alone
    page.evaluate("document.querySelector('.tabulator-row button').focus()")
    page.press("Enter", 13, "\r")
    origin = page.evaluate("[...document.querySelectorAll('#run dt')].find((one) => one.textContent === 'lies in')"
                           ".nextElementSibling.textContent")  # fmt: skip
    command = page.evaluate("document.querySelector('#run pre code').textContent")
    assert command == f"quicbed show {origin}"
    assert page.evaluate("document.activeElement.id") == "run"
    assert HOSTILE.replace("\u2028", "") in page.evaluate("document.querySelector('#run dl').textContent").replace(
        "\u2028", ""
    )
    page.evaluate("document.querySelector('#filters button').click()")
    page.evaluate("new Promise((done) => setTimeout(done))")
    assert counted(page)[0] == total
    assert page.errors == []
    # sorted by a column, the largest first
    page.evaluate(
        "[...document.querySelectorAll('.tabulator-col')].find((one) => one.textContent === 'Mbit/s').click()"
    )
    page.evaluate(
        "[...document.querySelectorAll('.tabulator-col')].find((one) => one.textContent === 'Mbit/s').click()"
    )
    first = page.evaluate("document.querySelector('.tabulator-row [tabulator-field=goodput_mbps]').textContent")
    assert float(first) == pytest.approx(runs.table(site.parents[1] / "raw")["goodput_mbps"].max(), abs=0.06)


def test_the_runs_of_a_host_are_those_that_are_counted(site: Path, page: Page) -> None:
    page.open(site / "provenance.html")
    counts = page.evaluate(
        "[...document.querySelectorAll('#hosts ~ .scroll a[href^=\"runs.html#host=\"]')]"
        ".map((one) => [one.getAttribute('href').split('#')[1], Number(one.textContent)])"
    )
    assert counts
    for selected, runs_here in counts:
        page.open(site / "runs.html", f"#{selected}")
        assert counted(page)[0] == runs_here


@pytest.mark.parametrize("width", WIDTHS)
def test_claims_are_filtered_and_an_address_says_how(site: Path, page: Page, width: int) -> None:
    page.open(site / "claims.html", "#verdict=holds", width=width)
    shown, total = counted(page)
    assert 0 < shown < total
    visible = "[...document.querySelectorAll('.claim')].filter((one) => !one.hidden).map((one) => one.dataset.{})"
    assert set(page.evaluate(visible.format("verdict"))) == {"holds"}
    choose(page, "paper", "quantum-of-quic")
    assert set(page.evaluate(visible.format("paper"))) == {"quantum-of-quic"}
    choose(page, "words", "noop goodput")
    assert 0 < counted(page)[0] < shown
    assert "words=noop+goodput" in page.evaluate("location.hash")
    page.evaluate("document.querySelector('#filters button').click()")
    page.evaluate("new Promise((done) => setTimeout(done))")
    assert counted(page) == (total, total)
    # a number of a table is seen although it stands in what is folded
    number = page.evaluate("document.querySelector('tr.claim').id")
    page.open(site / "claims.html", f"#{number}", width=width)
    assert page.evaluate(f"document.getElementById({json.dumps(number)}).checkVisibility()")
    assert page.errors == []


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_serious_keeps_a_screen_reader_out(site: Path, page: Page, width: int) -> None:
    axe = (resources.files(axe_core_python) / "axe.min.js").read_text(encoding="utf-8")
    for file in pages(site):
        page.open(file, width=width)
        page.command("Runtime.evaluate", expression=axe)
        found: list[dict[str, Any]] = page.evaluate(
            "axe.run(document, {resultTypes: ['violations']}).then((found) => found.violations"
            ".map((one) => ({id: one.id, impact: one.impact, at: one.nodes.map((node) => node.html.slice(0, 200))})))"
        )
        assert [one for one in found if one["impact"] in ("serious", "critical")] == [], file.name


def test_paper_gets_text_and_figures_without_what_only_a_screen_has(site: Path, page: Page) -> None:
    page.command("Emulation.setEmulatedMedia", media="print")
    try:
        for file in pages(site):
            page.open(file, width=720)  # of A4 less its margins, in CSS pixels
            hidden = "[...document.querySelectorAll('header, form, #grid')].every((one) => !one.checkVisibility())"
            assert page.evaluate(hidden), file.name
            assert page.evaluate("document.querySelector('h1').checkVisibility()"), file.name
            assert page.printed().startswith(b"%PDF-")
    finally:
        page.command("Emulation.setEmulatedMedia", media="")


def test_json_cannot_leave_its_element() -> None:
    text = grid.for_page({HOSTILE: [HOSTILE, None, 1.5]})
    assert json.loads(text) == {HOSTILE: [HOSTILE, None, 1.5]}
    assert not {"<", ">", "&", "\u2028"} & set(text)
