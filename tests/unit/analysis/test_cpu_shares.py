"""cpu-shares: shares of categories over blocks, Table I, bars, flame graphs, and runs without samples."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fakeruns
from quicbed.analysis import cpu_shares, published
from quicbed.base import statistics
from quicbed.claims import verdicts
from quicbed.figures import cpu_figures, handshake_tables, layout, output
from quicbed.store import runs, symbols
from quicbed.store.stacks import folded_name, write_folded

TITLES = {"msquic": "MsQuic"}
MAPPING = """
claims:
  packet-protection: ['^seal$']
  header-protection: ['^mask$']
rest:
  connection-management: ['^lib_']
"""
LINUX = "claims: {packet-io: ['^udp_']}\n"
LINES = {
    "packet-protection": "program;bin`main;bin`lib_send;bin`seal",
    "header-protection": "program;bin`main;bin`lib_send;bin`mask",
    "connection-management": "program;bin`main;bin`lib_send",
    "packet-io": "program;bin`main;bin`lib_send;kernel`sys_send;kernel`udp_sendmsg",
    "kernel": "program;bin`main;kernel`tick",
    "uncategorised": "program;bin`main",
}
AES, NOOP = "AES-128-GCM", "NOOP"


def samples(run: dict[str, Any], role: str) -> dict[str, int]:
    """What perf saw: 100 samples an endpoint, packet protection growing by one from block to block."""
    sealed = 20 + run["block"] if run["cell"]["label"] == AES else 2
    sealed += 5 if role == "server" else 0
    return {"packet-protection": sealed, "header-protection": 3, "packet-io": 10, "connection-management": 87 - sealed}


class Campaign:
    """A campaign of cpu-shares below a directory that is raw data and repository at once."""

    def __init__(self, root: Path) -> None:
        self.root, self.raw = root, root / "raw"
        self.symbols = root / "config" / "symbols"
        (self.symbols / "shared").mkdir(parents=True)
        (self.symbols / "shared" / "linux.yaml").write_text(LINUX)
        for library in ("quiche", "quinn"):
            self.map(library, MAPPING)

    def map(self, library: str, text: str) -> None:
        (self.symbols / f"{library}.yaml").write_text(text)
        symbols.symbol_map.cache_clear()

    def measure(
        self,
        change: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda run: run,
        experiment: str = cpu_shares.EXPERIMENT,
        **options: Any,
    ) -> list[Path]:
        """Write its runs, each as `change` returns it, and what perf saw of those that succeeded; their directories."""
        options = {"blocks": 5, "incidents": False, "libraries": ("quiche", "quinn")} | options
        directories = []
        for run in fakeruns.campaign(experiment, **options):
            changed = change(run)
            if changed is None:
                continue
            directory = fakeruns.write_run(self.raw, changed)
            if changed["status"] == "ok":
                for role in cpu_shares.ROLES:
                    folded = {LINES[category]: count for category, count in samples(changed, role).items()}
                    write_folded(directory / folded_name(role), folded)
                directories.append(directory)
        return directories

    def shares(self) -> cpu_shares.Profiled:
        return cpu_shares.profiled(runs.table(self.raw), self.raw, self.root)


@pytest.fixture
def campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Campaign:
    rows = [(AES, fakeruns.AES128, None, "main", 1.0), (NOOP, fakeruns.NOOP | fakeruns.NO_HP, AES, "main", 1.1)]
    monkeypatch.setitem(fakeruns.EXPERIMENTS, cpu_shares.EXPERIMENT, rows)
    return Campaign(tmp_path)


def row(found: cpu_shares.Profiled, library: str, label: str, role: str, category: str) -> dict[str, Any]:
    (only,) = found.shares.filter(
        (pl.col("library") == library)
        & (pl.col("label") == label)
        & (pl.col("role") == role)
        & (pl.col("category") == category)
    ).to_dicts()
    return only


def problems(found: cpu_shares.Profiled) -> set[tuple[str, str, str]]:
    failed = found.shares.filter(pl.col("problem").is_not_null())
    return set(failed.select("library", "label", "problem").rows())


# ---- shares ----------------------------------------------------------------------------------------------------------


def test_a_share_is_the_mean_over_blocks_with_an_interval_that_resamples_them(campaign: Campaign) -> None:
    campaign.measure()
    found = campaign.shares()
    client = row(found, "quiche", AES, "client", "packet-protection")
    server = row(found, "quiche", AES, "server", "packet-protection")
    low, high = statistics.mean_interval(np.array([0.20, 0.21, 0.22, 0.23, 0.24]))
    assert client["share"] == pytest.approx(0.22)
    assert (client["low"], client["high"]) == pytest.approx((low, high))
    assert client["low"] < client["share"] < client["high"]
    assert (client["blocks"], client["samples"]) == (5, 500)
    assert server["share"] == pytest.approx(0.27)
    assert row(found, "quiche", NOOP, "client", "packet-protection")["share"] == pytest.approx(0.02)


def test_cost_is_the_processor_time_of_a_run_times_its_shares_at_both_ends(campaign: Campaign) -> None:
    campaign.measure()
    found = campaign.shares()
    table = cpu_shares.cryptography_cost(found)
    assert table.columns == list(cpu_shares.COST)
    assert set(table["library"]) == {"quiche", "quinn"}
    used = found.campaign.filter((pl.col("client_library") == "quinn") & (pl.col("label") == AES)).sort("block")
    shares = np.arange(5) / 100  # what packet protection grows by from block to block
    client, server = (used[f"{role}_cpu_s_per_gib"].to_numpy() for role in cpu_shares.ROLES)
    expected = {
        "packet-protection": (0.20 + shares) * client + (0.25 + shares) * server,
        "header-protection": 0.03 * (client + server),
    }
    expected["rest"] = client + server - sum(expected.values())
    for one in table.filter(pl.col("library") == "quinn").to_dicts():
        low, high = statistics.mean_interval(expected[one["part"]], 0)
        assert one["s_per_gib"] == pytest.approx(expected[one["part"]].mean())
        assert (one["low"], one["high"], one["blocks"]) == (pytest.approx(low), pytest.approx(high), 5)


def test_bars_of_cost_are_cut_where_one_is_many_times_as_long(campaign: Campaign) -> None:
    campaign.measure()
    found = campaign.shares()
    table = cpu_shares.cryptography_cost(found)
    drawn = cpu_figures.crypto_cost(found, table, {"quinn": "Quinn"})
    assert drawn.name == "crypto-cost"
    assert [bar.name for bar in drawn.figure.data] == ["packet protection", "header protection", "all else"]
    assert not [one for one in drawn.figure.layout.annotations if "s/GiB" in (one.text or "")]
    slow = table.with_columns(
        s_per_gib=pl.col("s_per_gib") * pl.when(pl.col("library") == "quinn").then(50).otherwise(1)
    )
    cut = cpu_figures.crypto_cost(found, slow, {"quinn": "Quinn"}).figure
    (note,) = (one for one in cut.layout.annotations if "s/GiB" in (one.text or ""))
    assert note.y == "Quinn"


def test_every_cell_and_role_has_a_row_a_category_and_shares_of_one_in_sum(campaign: Campaign) -> None:
    campaign.measure()
    shares = campaign.shares().shares
    assert shares.columns == list(cpu_shares.SHARES)
    for _, part in shares.group_by("cell", "role"):
        assert sorted(part["category"]) == sorted(symbols.CATEGORIES)
        assert part["share"].sum() == pytest.approx(1)
    assert shares["cell"].n_unique() == 4


def test_a_block_counts_the_same_however_many_samples_it_has(campaign: Campaign) -> None:
    directories = campaign.measure(blocks=2)
    long = next(path for path in directories if "b0000" in path.parts and path.name.startswith("quiche-aes"))
    stacks = {LINES["packet-protection"]: 900, LINES["kernel"]: 100}
    write_folded(long / folded_name("client"), stacks)
    found = row(campaign.shares(), "quiche", AES, "client", "packet-protection")
    assert found["share"] == pytest.approx((0.9 + 0.21) / 2)
    assert found["samples"] == 1100


def test_one_block_has_no_interval(campaign: Campaign) -> None:
    campaign.measure(blocks=1)
    found = campaign.shares()
    only = row(found, "quinn", AES, "client", "packet-protection")
    assert (only["share"], only["low"], only["high"], only["blocks"]) == (pytest.approx(0.2), None, None, 1)
    assert ["AES-128-GCM", "quinn", "20.00", "3.00", "25.00", "3.00"] in [
        list(shown[:6]) for shown in cpu_figures.table_i(found.shares).rows
    ]


def test_an_archive_gives_the_same_shares_as_the_tree(campaign: Campaign) -> None:
    campaign.measure()
    tree = campaign.shares()
    archive = fakeruns.archive(campaign.raw, "local", cpu_shares.EXPERIMENT, campaign.raw / "reference" / "c.tar.gz")
    packed = cpu_shares.profiled(runs.table(archive.parent), archive.parent, campaign.root)
    assert packed.shares.equals(tree.shares)
    assert packed.stacks == tree.stacks


def test_a_mended_mapping_holds_for_runs_that_were_measured_before(campaign: Campaign) -> None:
    campaign.measure()
    before = row(campaign.shares(), "quinn", AES, "client", "application")
    campaign.map("quinn", MAPPING.replace("connection-management", "application"))
    after = campaign.shares()
    assert before["share"] == 0
    assert row(after, "quinn", AES, "client", "application")["share"] > 0.5
    assert row(after, "quiche", AES, "client", "application")["share"] == 0


# ---- runs without samples, and mappings that do not fit --------------------------------------------------------------


def test_nothing_measured_is_empty(campaign: Campaign) -> None:
    fakeruns.write_campaign(campaign.raw, "aead-goodput", blocks=1)
    assert campaign.shares().empty


def test_a_failed_run_counts_in_no_share(campaign: Campaign) -> None:
    def fail(run: dict[str, Any]) -> dict[str, Any]:
        failed = run["client"]["library"] == "quinn" and (run["block"] == 4 or run["cell"]["label"] == NOOP)
        reason = "perf recorded no sample of the client during the transfer"
        return run | {"status": "failed", "reason": reason, "metrics": {}} if failed else run

    campaign.measure(fail)
    found = campaign.shares()
    assert row(found, "quinn", AES, "client", "packet-protection")["blocks"] == 4
    assert row(found, "quinn", AES, "client", "packet-protection")["share"] == pytest.approx(0.215)
    assert problems(found) == {("quinn", NOOP, "perf recorded no sample of the client during the transfer")}


def test_an_unsupported_cell_has_its_reason_and_the_rest_its_shares(campaign: Campaign) -> None:
    def refuse(run: dict[str, Any]) -> dict[str, Any] | None:
        if (run["client"]["library"], run["cell"]["label"]) != ("quinn", NOOP):
            return run
        nowhere = {"block": None, "order": None, "metrics": {}}
        refused = run | nowhere | {"status": "unsupported", "reason": "perf is not permitted to sample programs"}
        return refused if run["block"] == 0 else None

    campaign.measure(refuse)
    found = campaign.shares()
    assert problems(found) == {("quinn", NOOP, "perf is not permitted to sample programs")}
    assert found.shares["share"].null_count() == len(cpu_shares.ROLES) * len(symbols.CATEGORIES)
    assert len(found.stacks) == 3 * len(cpu_shares.ROLES)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"client\.folded\.gz is missing or cannot be read"),
        (b"", "client: folded stacks without a sample"),
        (gzip.compress(b"", mtime=0), "client: folded stacks without a sample"),
        (gzip.compress(b"program;bin`main many\n", mtime=0), "client: damaged folded stacks"),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03" + b"\xff" * 20, "client: damaged folded stacks"),
    ],
)
def test_stacks_that_cannot_be_read_are_a_problem_of_their_cell_that_names_the_run(
    campaign: Campaign, content: bytes | None, message: str
) -> None:
    directories = campaign.measure()
    run = next(path for path in directories if path.name.startswith("quinn-aes"))
    file = run / folded_name("client")
    file.unlink() if content is None else file.write_bytes(content)
    found = campaign.shares()
    ((library, label, problem),) = problems(found)
    assert (library, label) == ("quinn", AES)
    assert pytest.approx(0.22) == row(found, "quiche", AES, "client", "packet-protection")["share"]
    assert pytest.approx(0.27) == row(found, "quinn", AES, "server", "packet-protection")["share"]
    assert problem.startswith(run.relative_to(campaign.root).as_posix())
    assert "\n" not in problem
    assert re.search(message, problem)


@pytest.mark.parametrize(
    ("mapping", "problem"),
    [
        (None, "config/symbols/quinn.yaml: is missing"),
        ("claims: {packet-io: ['(']}", "config/symbols/quinn.yaml: claims.packet-io: bad pattern `(`"),
        ("claims: {packets: ['a']}", "config/symbols/quinn.yaml: claims"),
        ("claims: [", "config/symbols/quinn.yaml: line 1: not valid YAML"),
        (
            "claims: {packet-protection: ['^seal'], header-protection: ['seal$']}",
            "config/symbols/quinn.yaml: claims: symbol `seal` is claimed by packet-protection",
        ),
    ],
)
def test_a_bad_mapping_is_a_problem_of_its_library_alone(campaign: Campaign, mapping: str | None, problem: str) -> None:
    campaign.measure()
    if mapping is None:
        (campaign.symbols / "quinn.yaml").unlink()
        symbols.symbol_map.cache_clear()
    else:
        campaign.map("quinn", mapping)
    found = campaign.shares()
    assert {library for library, _, _ in problems(found)} == {"quinn"}
    assert all(text.startswith(problem) for _, _, text in problems(found))
    assert found.shares.filter(pl.col("library") == "quiche")["share"].null_count() == 0
    assert {drawn.name for drawn in cpu_figures.flames(found, campaign.root)} == {"flame-quiche-aes-128-gcm"}


def test_a_category_that_stacks_do_not_show_has_a_reason_instead_of_a_share(campaign: Campaign) -> None:
    campaign.map("quinn", MAPPING + "unsupported: {application: perf sees the interpreter}\n")
    campaign.measure()
    found = campaign.shares()
    hidden = row(found, "quinn", AES, "client", "application")
    assert (hidden["share"], hidden["problem"]) == (None, "perf sees the interpreter")
    shown = (pl.col("library") == "quinn") & (pl.col("label") == AES) & (pl.col("role") == "client")
    assert found.shares.filter(shown)["share"].sum() == pytest.approx(1)
    assert "quinn shows no application: perf sees the interpreter." in caption(cpu_figures.stacked(found))
    assert cpu_figures.table_i(found.shares).notes == layout.measured_on([found.campaign])


def test_stacks_have_intervals_and_what_the_paper_prints(campaign: Campaign) -> None:
    campaign.measure()
    found = campaign.shares()
    drawn = cpu_figures.stacked(found, label=AES)
    names = sorted({"quiche", "quinn"})
    client = [trace for trace in drawn.figure.data if trace.xaxis == "x"]
    printed = [(list(trace.y), list(trace.x)) for trace in client if trace.name == "published"]
    assert printed == [(["quiche"], [15.30]), (["quiche"], [pytest.approx(15.30 + 2.45)])]
    ends = [trace for trace in client if trace.type == "scatter" and trace.error_x.array is not None]
    assert [list(trace.y) for trace in ends] == [names] * 2
    assert [list(trace.x) for trace in ends] == [pytest.approx([22, 22]), pytest.approx([25, 25])]
    half = 50 * np.diff(statistics.mean_interval(np.array([0.20, 0.21, 0.22, 0.23, 0.24])))[0]
    assert list(ends[0].error_x.array) == pytest.approx([half, half])
    assert "as A Quantum of QUIC prints it" in caption(drawn)


# ---- the shipped data ------------------------------------------------------------------------------------------------


# ---- Table I ---------------------------------------------------------------------------------------------------------


def test_table_i_has_the_measured_shares_beside_the_published_ones(campaign: Campaign) -> None:
    campaign.measure()
    found = campaign.shares()
    table = cpu_figures.table_i(found.shares, TITLES)
    rows = {(shown[0], shown[1]): list(shown[2:]) for shown in table.rows}
    half = 50 * np.diff(statistics.mean_interval(np.array([0.20, 0.21, 0.22, 0.23, 0.24])))[0]
    published_of_quiche = ["15.30", "2.45", "14.75", "0.92"]
    measured = [f"22.00 ± {half:.2f}", "3.00 ± 0.00", f"27.00 ± {half:.2f}", "3.00 ± 0.00"]
    assert rows[AES, "quiche"] == measured + published_of_quiche
    assert rows[AES, "quinn"] == measured + ["-"] * 4
    assert rows[AES, "LSQUIC"] == ["-"] * 4 + ["16.83", "0.31", "14.83", "0.08"]
    assert rows[NOOP, "quiche"][0] == "2.00 ± 0.00"
    assert table.notes == layout.measured_on([found.campaign])


def test_table_i_keeps_the_papers_order_and_leaves_nothing_published_out() -> None:
    paper = published.cpu_shares()
    assert list(dict.fromkeys(paper["label"])) == [AES, "ChaCha20-Poly1305", NOOP, "NOENC"]
    assert len(paper) == 10
    # what packet protection falls to without a cipher, and that header protection is off with it
    noop = paper.filter(pl.col("label") == NOOP)
    assert noop["server_packet_protection"].max() < 3
    assert noop["server_header_protection"].max() < 0.1


def test_a_library_without_a_variant_is_a_note_and_no_empty_row(campaign: Campaign) -> None:
    def refuse(run: dict[str, Any]) -> dict[str, Any]:
        if (run["client"]["library"], run["cell"]["label"]) != ("quinn", NOOP):
            return run
        return run | {"status": "failed", "reason": "quinn has no NOOP AEAD", "metrics": {}}

    campaign.measure(refuse)
    table = cpu_figures.table_i(campaign.shares().shares)
    assert (NOOP, "quinn") not in {(shown[0], shown[1]) for shown in table.rows}
    assert (NOOP, "quiche") in {(shown[0], shown[1]) for shown in table.rows}
    reason, host = table.notes
    assert reason == "NOOP: quinn has no NOOP AEAD"
    assert host.startswith("Measured on Example CPU, kernel 6.1.0 (host ")


def test_table_i_is_of_libraries_with_themselves(campaign: Campaign) -> None:
    def cross(run: dict[str, Any]) -> dict[str, Any]:
        if run["client"]["library"] == "quinn":
            return run | {"server": run["server"] | {"library": "quiche"}}
        return run

    campaign.measure(cross)
    shares = campaign.shares().shares
    assert set(shares.select("client_library", "server_library").rows()) == {("quiche", "quiche"), ("quinn", "quiche")}
    assert "quinn" not in {shown[1] for shown in cpu_figures.table_i(shares).rows}


def test_table_i_is_written_for_papers_too(campaign: Campaign, tmp_path: Path) -> None:
    campaign.measure()
    shares = campaign.shares().shares
    handshake_tables.write(cpu_figures.table_i(shares, TITLES), shares, "cpu-shares", tmp_path / "tables")
    latex = (tmp_path / "tables" / "cpu-shares.tex").read_text()
    assert "quiche & 22.00 $\\pm$" in latex
    assert "\\multicolumn{4}{c}{published}" in latex


# ---- figures ---------------------------------------------------------------------------------------------------------


def caption(drawn: output.Drawn) -> str:
    return " ".join(str(annotation.text) for annotation in drawn.figure.layout.annotations)


def test_bars_of_all_categories_add_up_to_everything(campaign: Campaign) -> None:
    campaign.measure()
    drawn = cpu_figures.stacked(campaign.shares())
    bars = [trace for trace in drawn.figure.data if trace.type == "bar"]
    assert [bar.name for bar in bars[: len(symbols.CATEGORIES)]] == [
        "packet protection",
        "header protection",
        "packet I/O",
        "connection management",
        "application",
        "kernel",
        "uncategorised",
    ]
    client = [bar for bar in bars if bar.xaxis == "x"]
    assert [list(names) for names in client[0].y] == [["quiche", "quiche", "quinn", "quinn"], [AES, NOOP, AES, NOOP]]
    assert [sum(bar.x[place] for bar in client) for place in range(4)] == pytest.approx([100.0] * 4)
    assert list(client[0].x) == pytest.approx([22.0, 2.0, 22.0, 2.0])
    assert "Mean of 5 blocks" in caption(drawn)
    directories = campaign.raw.glob("*/*/*/b*/*")
    assert set(drawn.origins) == {path.relative_to(campaign.root).as_posix() for path in directories}


def test_the_interval_is_shown_where_it_begins_at_zero(campaign: Campaign) -> None:
    for directory in campaign.measure(blocks=3):
        first = "b0000" in directory.parts
        stacks = {LINES["packet-io"]: 100} if first else {LINES["packet-io"]: 99, LINES["kernel"]: 1}
        write_folded(directory / folded_name("client"), stacks)
    found = campaign.shares()
    assert row(found, "quiche", AES, "client", "kernel")["low"] == 0
    kernel = next(trace for trace in cpu_figures.stacked(found).figure.data if trace.name == "kernel")
    assert kernel.hovertext[0].startswith("0.67 % (0.00 to ")


def test_bars_of_one_variant_are_named_by_library_alone(campaign: Campaign) -> None:
    campaign.measure()
    drawn = cpu_figures.stacked(campaign.shares(), {"quiche": "Quiche"}, AES)
    assert drawn.name == "cpu-shares-by-library"
    assert list(drawn.figure.data[0].y) == ["Quiche", "quinn"]
    assert AES in drawn.figure.layout.title.text


def test_bars_stand_in_the_order_that_is_asked_for(campaign: Campaign) -> None:
    campaign.measure(libraries=("quiche",))
    found = campaign.shares()
    for labels, told in (((), [AES, NOOP]), ((NOOP,), [NOOP, AES]), (("absent", NOOP, AES), [NOOP, AES])):
        assert list(cpu_figures.stacked(found, labels=labels).figure.data[0].y[1]) == told


def test_claims_read_shares_of_ways_of_datagrams_too(campaign: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        fakeruns.EXPERIMENTS, cpu_shares.BYPASS, [("single", fakeruns.AES128 | {"io": "single"}, None, "main", 1.0)]
    )
    campaign.measure()
    campaign.measure(experiment=cpu_shares.BYPASS, libraries=("quiche",))
    read = verdicts.tables(campaign.raw, campaign.root).shares
    own = cpu_shares.profiled(runs.table(campaign.raw), campaign.raw, campaign.root, cpu_shares.BYPASS).blocks
    assert len(own) == 5 * len(cpu_shares.ROLES) * len(symbols.CATEGORIES)
    assert set(own["cell"]) < set(read["cell"])
    assert len(read) == len(own) + len(campaign.shares().blocks)


def test_bars_say_what_is_missing(campaign: Campaign) -> None:
    def refuse(run: dict[str, Any]) -> dict[str, Any]:
        if run["cell"]["label"] == NOOP and run["client"]["library"] == "quinn":
            return run | {"status": "failed", "reason": "no NOOP", "metrics": {}}
        return run

    campaign.measure(refuse)
    drawn = cpu_figures.stacked(campaign.shares())
    assert "Unsupported or failed: NOOP by quinn." in caption(drawn)
    assert [list(names) for names in drawn.figure.data[0].y] == [["quiche", "quiche", "quinn"], [AES, NOOP, AES]]


def test_bars_say_where_a_mapping_leaves_too_much_uncategorised(campaign: Campaign) -> None:
    for directory in campaign.measure(blocks=2):
        if directory.name.startswith("quinn-noop"):
            stacks = {LINES["uncategorised"]: 11, LINES["kernel"]: 89}
        else:
            stacks = {LINES["uncategorised"]: 10, LINES["kernel"]: 90}
        write_folded(directory / folded_name("server"), stacks)
    shown = caption(cpu_figures.stacked(campaign.shares(), {"quinn": "Quinn"}))
    assert "More than 10 % uncategorised: Quinn server, NOOP." in shown


def test_figures_of_a_campaign_without_any_sample_are_empty_and_say_so(campaign: Campaign) -> None:
    reason = "perf does not record the client: it does not answer"
    campaign.measure(lambda run: run | {"status": "failed", "reason": reason, "metrics": {}}, blocks=1)
    found = campaign.shares()
    assert {text for _, _, text in problems(found)} == {reason}
    assert "Unsupported or failed: AES-128-GCM by quiche, quinn; NOOP by quiche, quinn." in caption(
        cpu_figures.stacked(found)
    )
    assert cpu_figures.flames(found, campaign.root) == []
    assert {shown[1] for shown in cpu_figures.table_i(found.shares, TITLES).rows} == {"LSQUIC", "MsQuic", "quiche"}


def test_a_flame_graph_has_the_samples_of_every_stack_under_its_callers(campaign: Campaign) -> None:
    campaign.measure()
    found = campaign.shares()
    drawn = cpu_figures.flames(found, campaign.root)[0]
    client = drawn.figure.data[0]
    frames = {tuple(path.split("\x00")[1:]): place for place, path in enumerate(client.ids)}
    whole, seal = frames[()], frames["bin`main", "bin`lib_send", "bin`seal"]
    assert (client.labels[whole], client.parents[whole], client["values"][whole]) == ("client", "", 500)
    assert client["values"][frames["bin`main", "bin`lib_send"]] == 500
    assert (client.labels[seal], client["values"][seal]) == ("seal", 110)
    assert client.marker.colors[seal] == cpu_figures.COLOURS["packet-protection"]
    # its own, whatever most samples below it are
    assert client.marker.colors[frames["bin`main", "bin`lib_send"]] == cpu_figures.COLOURS["connection-management"]
    assert client.marker.colors[whole] == cpu_figures.COLOURS["uncategorised"]
    assert set(client.parents) - {""} <= set(client.ids)


def test_a_flame_graph_leaves_out_frames_too_small_to_see(campaign: Campaign) -> None:
    for directory in campaign.measure(blocks=1):
        write_folded(directory / folded_name("client"), {LINES["packet-io"]: 999, "program;bin`main;bin`rare": 1})
    client = cpu_figures.flames(campaign.shares(), campaign.root)[0].figure.data[0]
    assert "udp_sendmsg" in client.labels
    assert "rare" not in client.labels
    assert client["values"][0] == 1000


def test_stacks_are_exported_as_flame_graph_tools_read_them(campaign: Campaign, tmp_path: Path) -> None:
    campaign.measure()
    found = campaign.shares()
    files = cpu_figures.export(found, tmp_path / "folded")
    assert [file.name for file in files] == [
        f"{library}-{label}-{role}.folded"
        for library in ("quiche", "quinn")
        for label in ("aes-128-gcm", "noop")
        for role in cpu_shares.ROLES
    ]
    lines = files[0].read_text().splitlines()
    counts = Counter({stack: int(count) for stack, _, count in (line.rpartition(" ") for line in lines)})
    assert counts["bin`main;bin`lib_send;bin`seal"] == 110
    assert counts.total() == 500
    assert lines == sorted(lines)


# ---- header protection -----------------------------------------------------------------------------------------------

CHACHA, WITHOUT = "ChaCha20-Poly1305", "AES-128-GCM without HP"


def spent(protect: int, header: int, rest: int) -> dict[str, int]:
    return {"packet-protection": protect, "header-protection": header, "connection-management": rest}


@pytest.fixture
def headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Campaign:
    rows = [
        (AES, fakeruns.AES128, None, "main", 1.0),
        (WITHOUT, fakeruns.AES128 | fakeruns.NO_HP, AES, "main", 1.0),
        (CHACHA, fakeruns.CHACHA, AES, "main", 1.0),
        (NOOP, fakeruns.NOOP | fakeruns.NO_HP, AES, "main", 1.1),
    ]
    monkeypatch.setitem(fakeruns.EXPERIMENTS, cpu_shares.EXPERIMENT, rows)
    # of each cell as many samples as it takes for the same bytes, and twice as many in a server
    took = {AES: spent(20, 5, 75), WITHOUT: spent(20, 1, 75), CHACHA: spent(40, 10, 75), NOOP: spent(5, 2, 75)}
    monkeypatch.setattr(
        f"{__name__}.samples",
        lambda run, role: {
            name: count * (2 if role == "server" else 1) * 10 for name, count in took[run["cell"]["label"]].items()
        },
    )
    return Campaign(tmp_path)


def gains(found: cpu_shares.Profiled, library: str = "quinn") -> dict[tuple[str, str], dict[str, Any]]:
    table = cpu_shares.header_protection(found).filter(pl.col("client_library") == library)
    return {(row["label"], row["end"]): row for row in table.to_dicts()}


def test_header_protection_costs_what_is_in_its_functions_less_what_stays_there(headers: Campaign) -> None:
    headers.measure()
    told = gains(headers.shares())
    assert set(told) == {(label, end) for label in (AES, CHACHA) for end in ("client", "server", "both")}
    for end in ("client", "server", "both"):
        # four of 100, and with NOOP as the only one without it, eight of 125
        assert told[AES, end]["gain"] == pytest.approx(4 / 96)
        assert told[CHACHA, end]["gain"] == pytest.approx(8 / 117)
        assert told[AES, end]["low"] <= told[AES, end]["gain"] <= told[AES, end]["high"]
        assert told[AES, end]["blocks"] == 5
    assert (told[AES, "both"]["without"], told[CHACHA, "both"]["without"]) == (WITHOUT, NOOP)


def test_header_protection_that_samples_do_not_tell_apart_has_no_gain(headers: Campaign) -> None:
    apart = "{category: header-protection, role: server, cipher: chacha20-poly1305, reason: one function does both}"
    headers.map("quinn", f"{MAPPING}inseparable: [{apart}]\n")
    headers.measure()
    found = headers.shares()
    told = gains(found)
    for end in ("server", "both"):
        assert (told[CHACHA, end]["gain"], told[CHACHA, end]["problem"]) == (None, "one function does both")
    assert told[CHACHA, "client"]["gain"] == pytest.approx(8 / 117)
    assert told[AES, "both"]["problem"] is None
    hidden = row(found, "quinn", CHACHA, "server", "header-protection")
    assert (hidden["share"], hidden["problem"]) == (None, "one function does both")
    drawn = str(cpu_figures.stacked(found).figure.to_dict())
    assert "quinn shows no header-protection: one function does both" in drawn


def test_without_a_cell_that_has_none_header_protection_has_no_gain(headers: Campaign) -> None:
    headers.measure(lambda run: run if run["variant"]["header_protection"] else None)
    told = gains(headers.shares())
    assert {row["problem"] for row in told.values()} == {"not measured without header protection"}


def test_the_witnesses_of_header_protection_stand_side_by_side(headers: Campaign) -> None:
    headers.measure()
    timed = pl.DataFrame(
        [
            {
                "campaign": "01234567",
                "cell": "89abcdef",
                "client_library": "quinn",
                "server_library": "quinn",
                "arm": "main",
                "cipher": "aes-128-gcm",
                "aead": "standard",
                "header_protection": False,
                "ratio": 1.02,
                "ratio_low": 1.01,
                "ratio_high": 1.03,
                "cpu_ratio": 1.04,
                "cpu_ratio_low": 1.03,
                "cpu_ratio_high": 1.05,
            }
        ]
    )
    paired = timed.with_columns(ratio=1.005, ratio_low=1.002, ratio_high=1.008)
    found = headers.shares()
    table = cpu_shares.header_protection(found)
    counted, measured = {("quinn", "quinn", "aes-128-gcm"): 0.0123}, {"Samples": found.campaign}
    shown = cpu_figures.header_protection(table, timed, paired, counted, measured=measured)
    lines = {(line[0], line[1]): line[2:] for line in shown.rows}
    assert shown.headers[2:6] == ["goodput", "both, alone", "both, in pairs", "both"]
    assert lines[AES, "quinn"] == ["2.00 ± 1.00", "4.00 ± 1.00", "0.50 ± 0.30", *["4.17 ± 0.00"] * 3, "1.23"]
    assert lines[AES, "quiche"][:3] == ["-", "-", "-"]
    assert lines[CHACHA, "quinn"][-1] == "-"
    at = next(number for number, line in enumerate(shown.rows) if line[:2] == [AES, "quinn"])
    assert "01234567" in shown.behind[at, 4]
    assert (at, 3) not in shown.behind
    assert shown.notes[0].endswith("is subtracted from AES-128-GCM without HP and NOOP.")
    assert shown.notes[-1].startswith("Samples: measured on ")
    assert not any("not measured" in note for note in shown.notes)
    without = cpu_figures.header_protection(table, timed, paired.clear(), {})
    assert "Instructions are not measured; the experiment `instructions` counts them." in without.notes
    assert {line[4] for line in without.rows} == {"-"}


@pytest.mark.parametrize(
    ("rule", "said"),
    {
        "{symbol: '^mask$'}": "needs `under` or `alone: true`, and not both",
        "{symbol: '^mask$', alone: true, under: x}": "needs `under` or `alone: true`, and not both",
        "{symbol: '^mask$', alone: true, role: middle}": "role",
    }.items(),
)
def test_a_rule_without_a_condition_is_refused(campaign: Campaign, rule: str, said: str) -> None:
    campaign.map("quinn", f"claims: {{header-protection: [{rule}]}}\n")
    campaign.measure()
    found = campaign.shares()
    assert said in str(row(found, "quinn", AES, "client", "header-protection")["problem"])
