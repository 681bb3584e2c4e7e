"""Figures and claims of "QUIC on the Highway": published values are those of the raw files and stand beside ours."""

from __future__ import annotations

import json
import math
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fakeruns
from clone import ROOT
from quicbed.analysis import cpu_shares
from quicbed.analysis.pairs import pair_table
from quicbed.analysis.place import Place
from quicbed.claims import claims_report, papers, verdicts
from quicbed.config.model import Project
from quicbed.figures import goodput as goodputs
from quicbed.figures import output, sheets
from quicbed.importers import samples, tables
from quicbed.papers import reading
from quicbed.papers.highway import analysis, claims, figures, processed
from quicbed.papers.highway.analysis import Published
from quicbed.report import pictures
from quicbed.store import runs
from runlinks import filters

GIB = 2**30
DEFAULT, LARGE = 212992, 6815744
NOTHING = Published(
    pl.DataFrame(schema=tables.RUNS),
    pl.DataFrame(schema=tables.CPU_SHARES),
    pl.DataFrame(schema=tables.PROCESSED),
    "name a copy",
)


def row(experiment: str, library: str, number: int, goodput: float | None, **values: Any) -> dict[str, Any]:
    """A published repetition of a library with itself; without a goodput it failed."""
    server = values.get("server_library", library)
    origin = f"results/{experiment}/{values.get('campaign', 'run1')}/{server}_{library}/goodput/{number}"
    common = {
        "experiment": experiment,
        "campaign": "run1",
        "scale": "published",
        "testbed": "goracle-gard",
        "workload": "bulk",
        "client_library": library,
        "server_library": library,
        "client_flavour": "stock",
        "server_flavour": "stock",
        "slug": f"{server}_{library}",
        "repetition": number,
        "block": number,
        "client_receive_buffer": LARGE,
        "bytes": 8 * GIB,
        "goodput_mbps": goodput,
    }
    return tables.run("highway", origin, "ok" if goodput else "failed", **(common | values))


def published(rows: list[dict[str, Any]], shares: Any = (), compared: Any = ()) -> Published:
    return Published(
        tables.frame(rows, tables.RUNS, runs.SORT),
        tables.frame(shares, tables.CPU_SHARES, ["origin"]),
        tables.frame(compared, tables.PROCESSED, ["file", "origin"]),
    )


def own(raw: Path, experiment: str, cells: dict[str, float], library: str = "quiche", **more: Any) -> pl.DataFrame:
    """Three blocks of runs of a library with itself; *cells* gives the goodput in Mbit/s by label."""
    first = next(iter(cells))
    for label, goodput in cells.items():
        for block in (1, 2, 3):
            endpoint = {"library": library, "flavour": "stock", "version": "1", "build": library}
            cell = {"id": f"{library}-{label}", "slug": "x", "label": label, "arm": "main"}
            metrics = {"goodput_mbps": goodput * (1 + block / 100), "bytes": GIB // 2}
            changes = {
                "cell": cell | {"baseline": f"{library}-{first}"},
                "client": endpoint,
                "server": endpoint,
                "metrics": metrics,
            }
            fakeruns.write_run(raw, fakeruns.make_run(experiment=experiment, block=block, **(changes | more)))
    return runs.table(raw)


def values_of(table: pl.DataFrame, key: str = "mean") -> dict[tuple[str, str], Any]:
    return {(library, label): value for library, label, value in table.select("library", "label", key).rows()}


def panels(drawn: output.Drawn) -> list[str]:
    """Titles of the panels that are shown, in their order, without markup."""
    names = [name for name in drawn.figure.layout if name.startswith("xaxis")]
    axes = [drawn.figure.layout[name] for name in sorted(names, key=lambda name: int(name[5:] or 1))]
    return [re.sub("<[^>]*>", "", axis.title.text) for axis in axes if axis.visible is not False]


def notes(drawn: output.Drawn) -> list[str]:
    return [annotation.text for annotation in drawn.figure.layout.annotations]


# ---- what figures show -----------------------------------------------------------------------------------------------


def test_a_buffer_is_the_one_that_was_applied_and_logdirs_are_pooled() -> None:
    buffers = "buffer/udp/run3"
    rows = [
        row(buffers, "lsquic", 1, 3000.0, client_receive_buffer=DEFAULT, campaign="udp-buffer-212992"),
        row(buffers, "lsquic", 2, 3200.0, client_receive_buffer=DEFAULT, campaign="udp-buffer-212992"),
        row(buffers, "lsquic", 3, None, client_receive_buffer=DEFAULT, campaign="udp-buffer-212992"),
        # the script that sets it did not run
        row(buffers, "lsquic", 1, 3100.0, client_receive_buffer=DEFAULT, campaign="udp-buffer-6815744"),
        row(buffers, "lsquic", 2, 3410.0, client_receive_buffer=LARGE, campaign="udp-buffer-6815744"),
        row(buffers, "lsquic", 3, 3410.0, client_receive_buffer=LARGE, campaign="udp-buffer-6815744"),
        row(buffers, "lsquic", 9, 1.0, client_receive_buffer=LARGE, server_library="quiche"),
        row("elsewhere", "lsquic", 1, 1.0, client_receive_buffer=DEFAULT),
    ]
    table = analysis.published_summary(analysis.FIG5, published(rows).runs)
    assert table.schema == pl.Schema(analysis.SUMMARY)
    assert values_of(table) == {("lsquic", "1x"): pytest.approx(3.1), ("lsquic", "32x"): pytest.approx(3.41)}
    assert values_of(table, "failed") == {("lsquic", "1x"): 1, ("lsquic", "32x"): 0}
    large = table.filter(pl.col("label") == "32x").row(0, named=True)
    assert (large["baseline"], large["n"]) == ("1x", 2)
    assert large["ratio"] == pytest.approx(1.1)
    assert large["ratio_low"] < 1.1 < large["ratio_high"]


def with_arm(raw: Path, library: str, of_itself: float) -> pl.DataFrame:
    """Runs of offloads of a library, and its A/A arm, which has *of_itself* times the goodput of the baseline."""
    own(raw, "offloads", {"default": 1000.0, "off": 500.0}, library)
    cell = {"id": f"{library}-aa", "slug": "x", "label": "A/A", "arm": "aa", "baseline": f"{library}-default"}
    return own(raw, "offloads", {"A/A": 1000.0 * of_itself}, library, cell=cell)


def test_a_library_that_differs_from_itself_is_marked_beside_its_settings(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    with_arm(raw, "quinn", 1.0)
    table = with_arm(raw, "quiche", 1.1)
    theirs = published([row("offloading/goracle/off", "quiche", number, 900.0 + number) for number in (1, 2)])
    drawn = figures.by_setting(analysis.FIG8, theirs, table, {"quiche": "quiche", "quinn": "Quinn"})
    assert drawn is not None
    assert panels(drawn) == ["quiche, published", f"quiche {goodputs.UNLIKE_ITSELF}, measured", "Quinn, measured"]
    assert goodputs.UNLIKE_ITSELF_MEANS in notes(drawn)[-1]
    like = with_arm(tmp_path / "like", "quinn", 1.0)
    other = figures.by_setting(analysis.FIG8, published([]), like)
    assert other is not None
    assert goodputs.UNLIKE_ITSELF not in str(other.figure.layout)


def test_packets_are_per_gib_and_drops_may_be_none(tmp_path: Path) -> None:
    packets = {"client_udp_packets_sent": 8000, "client_udp_receive_buffer_errors": 0}
    found = published([row("buffer/udp/run3", "quiche", 1, 1.0, client_receive_buffer=DEFAULT, **packets)]).runs
    assert values_of(analysis.published_summary(analysis.FIG6, found)) == {("quiche", "1x"): pytest.approx(1.0)}
    assert values_of(analysis.published_summary(analysis.DROPS, found)) == {("quiche", "1x"): 0.0}
    table = own(tmp_path / "raw", "udp-buffer", {"1x": 1.0, "32x": 1.0}).with_columns(
        client_ack_packets=pl.lit(3000), client_udp_receive_buffer_errors=pl.lit(0)
    )
    acks = analysis.own_summary(analysis.FIG6, analysis.own_campaigns(analysis.FIG6, table))
    assert values_of(acks) == {("quiche", "1x"): pytest.approx(6.0), ("quiche", "32x"): pytest.approx(6.0)}
    drops = analysis.own_summary(analysis.DROPS, analysis.own_campaigns(analysis.DROPS, table))
    assert values_of(drops) == {("quiche", "1x"): 0.0, ("quiche", "32x"): 0.0}
    assert drops["ratio"].null_count() == 2


def test_settings_are_told_by_the_directory_and_builds_of_a_library_are_one() -> None:
    rows = [
        row("crypto/aes-noni", "quiche", 1, 1300.0, client_flavour="aes", aes_hardware=False),
        row("crypto/aes-ni", "quiche", 1, 2600.0, aes_hardware=True),
        # a copy that begins further up
        row("copy/results-2023/crypto/chacha20", "quiche", 1, 2500.0),
        row("offloading/goracle/only-udp", "tcp-tls", 1, 5800.0),
    ]
    found = published(rows).runs
    assert values_of(analysis.published_summary(analysis.FIG7, found)) == {
        ("quiche", "AES without AES-NI"): pytest.approx(1.3),
        ("quiche", "AES with AES-NI"): pytest.approx(2.6),
        ("quiche", "ChaCha20"): pytest.approx(2.5),
    }
    table = analysis.published_summary(analysis.FIG8, found)
    assert values_of(table) == {("tcp-tls", "gso-gro"): pytest.approx(5.8)}
    assert table["ratio"].to_list() == [None]  # its baseline is not in the copy


AES = json.dumps({"client": {"cipher": "TLS_AES_128_GCM_SHA256"}, "server": {"cipher": "TLS_AES_128_GCM_SHA256"}})
CHACHA = {"unread_parameters": json.dumps({"client": {"cipher": "TLS_CHACHA20_POLY1305_SHA256"}, "server": {}})}


def contradictory() -> list[dict[str, Any]]:
    """Runs of Fig. 7 and 8, some of which were not measured as their directory says."""
    return [
        row("crypto/aes-noni", "quiche", 1, 1300.0, aes_hardware=False),
        row("crypto/aes-noni", "quiche", 2, 2600.0, aes_hardware=True),
        row("crypto/aes-ni", "quiche", 1, 2600.0, aes_hardware=True),
        row("crypto/aes-ni", "lsquic", 1, 1200.0, aes_hardware=False),
        row("crypto/aes-ni", "lsquic", 2, 1400.0),
        row("crypto/chacha20", "quiche", 1, 2600.0, aes_hardware=True) | CHACHA,
        row("crypto/chacha20", "lsquic", 1, 2300.0),
        row("offloading/goracle/off", "quiche", 1, 2000.0),
        row("offloading/goracle/default", "quiche", 1, 2500.0)
        | {"unread_parameters": json.dumps({"client": {}, "server": {"offloads": "on", "CC_ALGO": 2}})},
    ]


def test_runs_that_contradict_their_directory_are_left_out_or_marked_and_listed() -> None:
    table = analysis.published_summary(analysis.FIG7, published(contradictory()).runs)
    assert values_of(table) == {
        ("quiche", "AES without AES-NI"): pytest.approx(1.3),
        ("quiche", "AES with AES-NI"): pytest.approx(2.6),
        ("quiche", "ChaCha20"): pytest.approx(2.6),
        ("lsquic", "AES with AES-NI"): pytest.approx(1.3),
        ("lsquic", "ChaCha20"): pytest.approx(2.3),
    }
    one_side = "AES instructions switched off on one side, or not reported"
    unshown = "not shown to be ChaCha20: its log has no cipher that anything read"
    unread = f"{unshown}; nothing read the parameter cipher"
    assert {key: told for key, told in values_of(table, "deviation").items() if told} == {
        ("quiche", "ChaCha20"): unread,
        ("lsquic", "ChaCha20"): unshown,
        ("lsquic", "AES with AES-NI"): f"AES instructions not used; {one_side}",
    }
    sheet = figures.deviations(published(contradictory()))
    assert isinstance(sheet, sheets.Sheet)
    assert [list(line) for line in sheet.rows] == [
        ["Fig. 7", "AES with AES-NI", "LSQUIC", "LSQUIC", 1, "AES instructions not used"],
        ["Fig. 7", "AES with AES-NI", "LSQUIC", "LSQUIC", 1, one_side],
        ["Fig. 7", "AES without AES-NI", "quiche", "quiche", 1, "AES instructions used"],
        ["Fig. 7", "ChaCha20", "LSQUIC", "LSQUIC", 1, unshown],
        ["Fig. 7", "ChaCha20", "quiche", "quiche", 1, unread],
        ["Fig. 8", "default", "quiche", "quiche", 1, "nothing read the parameter offloads"],
    ]
    drawn = figures.by_setting(analysis.FIG7, published(contradictory()), pl.DataFrame(schema=runs.SCHEMA))
    assert drawn is not None
    assert sum(note.endswith("\N{PILCROW SIGN}") for note in notes(drawn)) == 3
    marked = "\N{PILCROW SIGN} not measured as the figure says: AES instructions not used"
    assert any(marked in note.replace("<br>", " ") for note in notes(drawn))
    judged = claims.as_campaigns(published(contradictory())).runs
    assert set(judged.select("experiment", "client_library", "label").rows()) == {
        ("aes-ni", "quiche", "AES without AES-NI"),
        ("aes-ni", "quiche", "AES with AES-NI"),
        ("offloads", "quiche", "off"),
    }


def test_a_run_is_one_with_chacha20_where_its_log_shows_it(tmp_path: Path) -> None:
    """As in the data set: only what is told of TCP+TLS names a cipher, which the script of its server reads."""
    files: dict[str, bytes] = {}
    for setting, server, goodput, cipher in (
        ("aes-ni", "lsquic", 3229.0, None),
        ("chacha20", "lsquic", 3128.0, None),
        ("aes-ni", "quiche", 2628.0, None),
        ("chacha20", "quiche", 2574.0, "TLS_CHACHA20_POLY1305_SHA256"),
        ("aes-ni", "tls1.3", 7984.0, "TLS_AES_128_GCM_SHA256"),
        ("chacha20", "tls1.3", 2669.0, "TLS_CHACHA20_POLY1305_SHA256"),
        ("chacha20", "tls1.3", 7880.0, "TLS_AES_128_GCM_SHA256"),
    ):
        parameters = {"rmem_value": LARGE} | ({"cipher": cipher} if cipher else {})
        found = samples.repetition(server, server, 8 * 8192 * samples.MIB / goodput / 1e6, parameters=parameters)
        place = f"results/crypto/{setting}/run1/{server}_{server}/goodput/{1 if goodput != 7880.0 else 2}"
        files |= {f"{place}/{name}": data for name, data in found.items()}
    reading.read("highway", samples.write(files, tmp_path / "copy"), tmp_path / "out")
    found = analysis.labelled(analysis.FIG7, analysis.published(tmp_path / "out").runs)
    told = {(row["client_library"], round(row["value"], 2)): row["deviation"] for row in found.to_dicts()}
    unshown = "not shown to be ChaCha20: its log has "
    assert told == {
        ("lsquic", 3.23): None,
        ("lsquic", 3.13): f"{unshown}no cipher that anything read",
        ("quiche", 2.63): None,
        ("quiche", 2.57): f"{unshown}no cipher that anything read; nothing read the parameter cipher",
        ("tcp-tls", 7.98): None,
        ("tcp-tls", 7.88): f"{unshown}aes-128-gcm",
        ("tcp-tls", 2.67): None,
    }
    judged = claims.as_campaigns(analysis.published(tmp_path / "out")).runs
    shown = judged.filter((pl.col("experiment") == "aes-ni") & (pl.col("label") == "ChaCha20"))
    assert shown.select("client_library", "cipher").rows() == [("tcp-tls", "chacha20-poly1305")]


def test_hosts_have_the_names_of_the_paper_and_native_builds_a_star() -> None:
    hosts = {"goracle-gard": 3000.0, "tinyman-idex": 4000.0, "new-pair": 1.0}
    rows = [row("hardware/optimized", "lsquic", 1, goodput, testbed=pair) for pair, goodput in hosts.items()]
    rows.append(row("hardware/optimized", "lsquic", 2, 3600.0, client_flavour="goracle"))
    table = analysis.published_summary(analysis.FIG9, published(rows).runs)
    assert values_of(table) == {
        ("lsquic", "AMD-2"): pytest.approx(3.0),
        ("lsquic", "AMD-2*"): pytest.approx(3.6),
        ("lsquic", "Intel-3"): pytest.approx(4.0),
    }
    assert values_of(table, "ratio")["lsquic", "AMD-2*"] == pytest.approx(1.2)
    drawn = figures.by_setting(analysis.FIG9, published(rows), pl.DataFrame(schema=runs.SCHEMA))
    assert drawn is not None
    assert any("AMD-2 EPYC 7543" in note for note in notes(drawn))
    drawn = figures.by_setting(analysis.FIG8, offloads(), pl.DataFrame(schema=runs.SCHEMA))
    assert drawn is not None
    assert not any("EPYC" in note for note in notes(drawn))


def test_our_testbeds_stand_for_hosts(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    own(raw, "hardware", {"default": 1000.0})
    table = own(raw, "hardware", {"default": 2000.0}, testbed=fakeruns.make_run()["testbed"] | {"name": "lab"})
    found = analysis.own_summary(analysis.FIG9, analysis.own_campaigns(analysis.FIG9, table))
    assert {label for _, label in values_of(found)} == {"local", "lab"}
    drawn = figures.by_setting(analysis.FIG9, NOTHING, table)
    assert drawn is not None
    assert list(drawn.figure.layout.xaxis.ticktext) == ["lab", "local"]


def test_our_builds_for_a_processor_have_a_star_beside_the_same_hosts(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    endpoint = {"library": "quiche", "flavour": "stock", "version": "1", "build": "quiche"}
    for testbed, label, level, goodput in (
        ("lab", "default", None, 1000.0),
        ("lab", "march=native", "native", 1200.0),
        ("far", "default", "x86-64-v3", 900.0),
    ):
        made = endpoint | ({"march": level} if level else {})
        where = fakeruns.make_run()["testbed"] | {"name": testbed}
        cell = {"id": f"quiche-{label}", "slug": "x", "label": label, "arm": "main", "baseline": "quiche-default"}
        own(raw, "hardware", {label: goodput}, testbed=where, cell=cell, client=made, server=made)
    table = runs.table(raw)
    found = analysis.own_summary(analysis.FIG9, analysis.own_campaigns(analysis.FIG9, table))
    assert values_of(found, "baseline") == {
        ("quiche", "far x86-64-v3"): None,
        ("quiche", "lab"): None,
        ("quiche", "lab*"): "lab",
    }
    assert values_of(found, "ratio")["quiche", "lab*"] == pytest.approx(1.2)
    drawn = figures.by_setting(analysis.FIG9, NOTHING, table)
    assert drawn is not None
    assert list(drawn.figure.layout.xaxis.ticktext) == ["far x86-64-v3", "lab", "*"]


def test_pairs_that_were_measured_otherwise_are_marked_and_do_not_count_beside_others() -> None:
    both = {"server_library": "lsquic"}
    rows = [
        row(analysis.FIG10, "quiche", 1, 2500.0),
        row(analysis.FIG10, "quiche", 2, 100.0, client_receive_buffer=DEFAULT, campaign="run2"),
        row(analysis.FIG10, "quiche", 1, 1000.0, client_receive_buffer=DEFAULT, testbed="algofi-zone", **both),
        row(analysis.FIG10, "quiche", 2, 1200.0, client_receive_buffer=DEFAULT, testbed="algofi-zone", **both)
        | {"unread_parameters": json.dumps({"client": {"rmem_vlaue": 1}})},
        row(analysis.FIG10, "quiche", 3, None, client_receive_buffer=DEFAULT, testbed="algofi-zone", **both),
    ]
    table = analysis.published_pairs(published(rows).runs, analysis.FIG10)
    cells = {(r["client_library"], r["server_library"]): r for r in table.to_dicts()}
    assert cells["quiche", "quiche"]["mean"] == 2500.0
    assert cells["quiche", "quiche"]["deviation"] is None
    other = cells["quiche", "lsquic"]
    assert (other["mean"], other["n"], other["failed"]) == (1100.0, 2, 1)
    assert other["deviation"] == ("receive buffer 208 KiB; hosts algofi-zone; nothing read the parameter rmem_vlaue")
    sheet = figures.deviations(published(rows))
    assert isinstance(sheet, sheets.Sheet)
    assert [list(line) for line in sheet.rows] == [["Fig. 10", None, "quiche", "LSQUIC", 2, other["deviation"]]]


def test_the_ratio_of_means_has_the_interval_of_unpaired_values() -> None:
    values, baseline = np.arange(95.0, 106.0), np.arange(190.0, 211.0)
    middle, low, high = analysis.ratio(values, baseline)
    assert middle == 0.5
    assert low is not None
    assert high is not None
    # the standard error of a ratio of independent means
    error = 0.5 * np.hypot(values.std(ddof=1) / 100 / 11**0.5, baseline.std(ddof=1) / 200 / 21**0.5)
    assert high - low == pytest.approx(2 * 2.23 * error, rel=0.1)
    assert analysis.ratio(values[:1], baseline) == (pytest.approx(0.475), None, None)


# ---- perf samples ----------------------------------------------------------------------------------------------------


def shares_of(origin: str, role: str, counted: dict[str, int]) -> list[dict[str, Any]]:
    common = {"source": "highway", "origin": origin, "role": role, "endpoint_samples": 80, "all_samples": 100}
    return [common | {"category": category, "samples": samples} for category, samples in counted.items()]


def profiled() -> Published:
    rows = [row(analysis.FIG4, "quiche", number, 2500.0) for number in (1, 2)]
    shares = []
    for one, packets in zip(rows, (40, 50), strict=True):
        shares += shares_of(one["origin"], "server", {"PACKET_IO": packets, "CRYPTO": 20, "GENERAL": 10})
    return published(rows, shares)


def measured() -> cpu_shares.Profiled:
    cell = {"cell": "c1", "label": "AES-128-GCM", "client_library": "quinn", "server_library": "quinn"}
    split = {"packet-io": 0.5, "packet-protection": 0.2, "header-protection": 0.1, "kernel": 0.2}
    shares = [
        cell | {"role": "client", "library": "quinn", "category": name, "share": share} for name, share in split.items()
    ]
    blocks = [
        {"cell": "c1", "role": "client", "category": name, "block": block, "share": share}
        for name, share in split.items()
        for block in (1, 2)
    ]
    return cpu_shares.Profiled(
        pl.DataFrame(schema=runs.SCHEMA),
        pl.DataFrame(
            [{name: one.get(name) for name in cpu_shares.SHARES} for one in shares],
            schema=cpu_shares.SHARES,
            orient="row",
        ),
        pl.DataFrame(blocks, schema=cpu_shares.BLOCKS, orient="row"),
    )


def test_shares_are_of_the_hosts_samples_there_and_of_the_endpoints_here() -> None:
    theirs = analysis.published_shares(profiled())
    found = {one["category"]: one for one in theirs.to_dicts()}
    assert (found["Packet I/O"]["mean"], found["Crypto"]["mean"], found["Packet I/O"]["n"]) == (45.0, 20.0, 2)
    found_ours = measured()
    ours = analysis.own_shares(found_ours.shares, found_ours.blocks, "AES-128-GCM")
    assert dict(ours.select("category", "mean").rows()) == {
        "Packet I/O": 50.0,
        "Crypto": pytest.approx(30.0),
        "Kernel": 20.0,
    }
    drawn = figures.samples(profiled(), measured(), "AES-128-GCM")
    assert drawn is not None
    assert panels(drawn) == ["quiche, published", "quinn, measured"]
    assert figures.samples(NOTHING, measured(), "AES-128-GCM") is None


# ---- figures ---------------------------------------------------------------------------------------------------------


def offloads() -> Published:
    means = {"off": 5000.0, "only-udp": 5800.0, "default": 7800.0}
    rows = [
        row(f"offloading/goracle/{name}", library, number, goodput + 100 * number)
        for name, goodput in means.items()
        for library in ("tcp-tls", "lsquic")
        for number in (1, 2)
    ]
    return published(rows)


def test_a_library_of_both_sides_stands_beside_itself_and_others_of_ours_follow(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    goodputs = {"default": 8000.0, "off": 4000.0}
    own(raw, "offloads", goodputs, "quinn")
    table = own(raw, "offloads", goodputs, "tcp-tls")
    drawn = figures.by_setting(analysis.FIG8, offloads(), table, {"quinn": "Quinn"})
    assert drawn is not None
    assert panels(drawn) == [
        "LSQUIC, published",
        "LSQUIC, measured",
        "TCP+TLS, published",
        "TCP+TLS, measured",
        "Quinn, measured",
    ]
    assert any("not among our libraries" in note for note in notes(drawn))
    assert "\N{MINUS SIGN}50.0<br>\N{PLUS-MINUS SIGN}0.0" in notes(drawn)  # ours without offloads
    boxes = [trace for trace in drawn.figure.data if trace.type == "box"]
    assert list(boxes[0].median) == pytest.approx([5.15, 5.95, 7.95])
    # the first rows decide which campaign the figure belongs to
    assert drawn.table["scale"].to_list()[0] == "quick"
    sheet = figures.setting_sheet(drawn.table, "Goodput [Gbit/s]")
    lines = {(line[0], line[1]): line for line in sheet.rows}
    assert lines["TCP+TLS", "off"][2:5] == ["2", "5.150", "0.648"]
    assert lines["TCP+TLS", "off"][6:9] == ["3", "4.080", "0.500"]
    assert lines["quinn", "off"][2:6] == [None] * 4
    row = sheet.rows.index(lines["TCP+TLS", "off"])
    assert (row, 3) not in sheet.behind  # published
    values, ratios = (table.filter(filters(sheet.behind[row, column])) for column in (7, 8))
    assert (set(values["label"]), len(values)) == ({"off"}, 3)
    assert set(ratios["label"]) == {"off", "default"}
    assert set(ratios["client_library"]) == {"tcp-tls"}


def test_without_our_runs_only_published_panels_are_drawn_and_without_either_nothing(tmp_path: Path) -> None:
    empty = pl.DataFrame(schema=runs.SCHEMA)
    drawn = figures.by_setting(analysis.FIG8, offloads(), empty)
    assert drawn is not None
    assert panels(drawn) == ["LSQUIC, published", "TCP+TLS, published"]
    assert "nothing yet, see experiment offloads" in drawn.figure.layout.title.text
    assert figures.by_setting(analysis.FIG8, NOTHING, empty) is None
    table = own(tmp_path / "raw", "aes-ni", {"AES with AES-NI": 1000.0})
    assert figures.by_setting(analysis.FIG7, NOTHING, table) is None  # it has a figure that tells more


def test_what_has_no_value_says_why(tmp_path: Path) -> None:
    table = own(tmp_path / "raw", "offloads", {"default": 1.0}, status="failed", reason="it <hung>", metrics={})
    drawn = figures.by_setting(analysis.FIG8, NOTHING, table)
    assert drawn is not None
    (note,) = (one for one in drawn.figure.layout.annotations if one.text == "failed")
    assert note.hovertext == "it &lt;hung&gt;"


def test_heat_maps_stand_side_by_side_and_mark_what_deviates(tmp_path: Path) -> None:
    rows = [
        row(analysis.FIG3, "quiche", 1, 2500.0, client_receive_buffer=DEFAULT),
        row(analysis.FIG3, "lsquic", 1, 1000.0, server_library="quiche"),
    ]
    cells = {"208 KiB": 4000.0, "6.5 MiB": 9000.0}
    campaign, table = goodputs.experiment_table(own(tmp_path / "raw", "pairwise", cells), "pairwise")
    pairs = (campaign, pair_table(campaign, table))
    drawn = figures.all_pairs(published(rows), analysis.FIG3, *pairs, "208 KiB")
    assert drawn is not None
    theirs, ours = drawn.figure.data
    assert list(theirs.y) == ["quiche", "LSQUIC"]
    assert theirs.text[0][0] == "2.50"
    assert theirs.text[1][0] == "1.00\N{PILCROW SIGN}"  # client LSQUIC, server quiche
    assert [list(line) for line in ours.text] == [["4.08"]]
    assert any("receive buffer 6656 KiB" in note for note in notes(drawn))
    assert drawn.table["mean"].to_list() == [pytest.approx(4080.0), 1000.0, 2500.0]
    assert figures.all_pairs(NOTHING, analysis.FIG3, *pairs, "208 KiB") is None


# ---- claims ----------------------------------------------------------------------------------------------------------


def spread(experiment: str, library: str, goodput: float, **values: Any) -> list[dict[str, Any]]:
    """Ten repetitions around a goodput."""
    return [row(experiment, library, number, goodput + number, **values) for number in range(10)]


def verdicts_on(found: Published) -> dict[str, verdicts.Result]:
    project = Project(ROOT)
    known = [one for one in papers.stated(project) if one.name == claims.PAPER]
    results = verdicts.evaluate(project, known, claims.as_campaigns(found))
    return {result.stated.claim.id: result for result in results}


def test_claims_are_judged_by_the_runs_behind_the_figures() -> None:
    small = {"client_receive_buffer": DEFAULT}
    rows = [
        *spread(analysis.FIG3, "quiche", 1100.0, server_library="lsquic", **small),
        *spread(analysis.FIG3, "lsquic", 2500.0, server_library="quiche", **small),
        *spread(analysis.FIG3, "lsquic", 3000.0, **small),
        # a cipher that it was to have and that nothing read leaves its goodput that of AES
        *(one | {"unread_parameters": AES} for one in spread("crypto/aes-ni", "tcp-tls", 8000.0, aes_hardware=True)),
        *spread("crypto/aes-ni", "lsquic", 3000.0, aes_hardware=True),
        *spread("crypto/aes-noni", "lsquic", 1600.0, aes_hardware=False),
        *spread("crypto/chacha20", "lsquic", 2700.0, cipher="chacha20-poly1305"),
        *spread("crypto/aes-noni", "tcp-tls", 1600.0, aes_hardware=False),
        *spread("crypto/chacha20", "tcp-tls", 2700.0, cipher="chacha20-poly1305"),
        *spread("offloading/goracle/off", "tcp-tls", 8000.0),
        *spread("offloading/goracle/default", "tcp-tls", 7000.0),
        row("offloading/goracle/default", "tcp-tls", 99, None),
        *spread("hardware/optimized", "lsquic", 3000.0),
        *spread("hardware/optimized", "lsquic", 3600.0, campaign="run2", client_flavour="goracle"),
        *spread("hardware/optimized", "lsquic", 4000.0, testbed="tinyman-idex"),
        *spread("hardware/optimized", "lsquic", 3000.0, testbed="tinyman-idex", client_flavour="goracle"),
    ]
    found = verdicts_on(published(rows))
    assert found["fig3-lsquic-quiche"].verdict == "holds"
    assert found["fig3-lsquic-quiche"].measured[0].n == 10
    assert found["fig3-tcp-goodput"].verdict == "holds"  # a value, judged as one
    assert [one.library for one in found["fig3-tcp"].measured] == ["lsquic"]
    assert found["fig7-order"].verdict == "holds"
    assert [one.library for one in found["fig7-order"].measured] == ["lsquic", "lsquic", "tcp-tls"]
    assert found["fig8-tcp-gains"].verdict == "fails"
    # three of 36 pairs: others may be slower, and faster
    assert found["fig3-slowest"].verdict == "inconclusive"
    assert found["fig3-fastest"].verdict == "inconclusive"
    assert "1104 over 3 of 36 pairs is the most that it can be over all" in found["fig3-slowest"].reason
    assert found["fig7-order"].more_blocks is None
    assert "the published data have no runs" in found["fig7-order"].reason
    assert found["fig9-native"].verdict == "holds"
    assert [round(one.value, 2) for one in found["fig9-native"].measured] == [1.2]
    # needs hardware that no local testbed has, but the published data are of it
    assert found["fig9-native-hosts"].verdict == "fails"
    assert [round(one.value, 2) for one in found["fig9-native-hosts"].measured] == [1.2, 0.75]


def test_the_fastest_and_the_slowest_published_pair_are_judged_as_values() -> None:
    rows = []
    for client in analysis.LIBRARIES:
        for server in analysis.LIBRARIES:
            goodput = {("aioquic", "mvfst"): 48.0, ("lsquic", "lsquic"): 3000.0}.get((client, server), 1000.0)
            rows += spread(analysis.FIG3, client, goodput, server_library=server, client_receive_buffer=DEFAULT)
    found = verdicts_on(published(rows))
    names = ("fig3-slowest", "fig3-fastest", "fig3-range")
    assert [(found[name].verdict, found[name].reason) for name in names] == [("holds", "")] * 3
    assert found["fig3-slowest"].outcomes[0].value == pytest.approx(52.5)
    assert found["fig3-slowest"].outcomes[0].text == "smallest, 208 KiB: mvfst to aioquic, 36 of 36 pairs"


def test_claims_on_shares_are_of_the_endpoints_samples() -> None:
    rows = spread(analysis.FIG4, "lsquic", 3000.0)
    shares = []
    for one in rows:
        for role in ("client", "server"):
            counted = {"PACKET_IO": 50 + one["repetition"], "CRYPTO": 20, "CONN_MGMT": 9, "IO": 0}
            shares += shares_of(one["origin"], role, counted | {"GENERAL": 2 if one["repetition"] else 0})
    result = verdicts_on(published(rows, shares))["fig4-packet-io"]
    assert result.verdict == "holds"
    values = [2.7, 6.0, math.inf, 545 / 18]
    assert [one.value for one in result.measured] == pytest.approx(values * 2, abs=0.1)
    # which the data set does not tell apart, and the claim does not ask for
    assert "kernel" not in result.reason
    larger = [share | ({"samples": 70} if share["category"] == "GENERAL" else {}) for share in shares]
    assert verdicts_on(published(rows, larger))["fig4-packet-io"].verdict == "fails"


def test_verdicts_of_both_sides_stand_together() -> None:
    rows = spread("offloading/goracle/off", "tcp-tls", 5000.0) + spread("offloading/goracle/default", "tcp-tls", 7000.0)
    found = verdicts_on(published(rows))
    theirs = found["fig8-tcp-gains"]
    ours = verdicts.Result(theirs.stated, reason="nothing here")
    both = claims_report.by_claim([theirs])
    lines = claims_report.text([ours], cells=True, tested={}, published=both).splitlines()
    assert lines[-3].split()[:2] == ["not", "measured"]
    assert lines[-1].strip().startswith("published data: holds: 1.4 [")
    assert "published data" not in claims_report.text([ours], cells=True, tested={})
    for name in ("fig5-lsquic-gain", "fig9-native"):
        assert (found[name].verdict, found[name].reason) == (
            "not measured",
            "the published data here have no runs for it",
        )


# ---- all of it -------------------------------------------------------------------------------------------------------


def copy_with_a_shifted_table(directory: Path) -> Path:
    """A copy of the data set whose second repetition failed, with what the authors' parser would make of it."""
    files: dict[str, bytes] = {}
    logdir = "results/offloading/goracle/off/run1"
    for number, (seconds, verdict) in enumerate([(20.0, None), (0.01, "Test failed"), (25.0, None)], 1):
        made = samples.repetition("quiche", "quiche", seconds, **({"verdict": verdict} if verdict else {}))
        files |= {f"{logdir}/quiche_quiche/goodput/{number}/{name}": data for name, data in made.items()}
    goodputs = [8 * 8192 * samples.MIB / seconds / 1e6 for seconds in (20.0, 25.0)]
    lines = [f"{logdir},quiche,quiche,{number},{value}" for number, value in enumerate([*goodputs, ""], 1)]
    text = "\n".join(["logdir,server,client,repetition,goodput", *lines])
    return samples.write(files | {"results/offloading/goracle/off/processed.csv": text.encode()}, directory)


def place(directory: Path) -> Place:
    return Place(
        directory, directory / "raw", directory / "artifacts", {"highway": directory / "published" / "highway"}
    )


def test_an_imported_copy_is_drawn_and_reported_and_its_differences_are_listed(tmp_path: Path) -> None:
    here = place(tmp_path)
    reading.read("highway", copy_with_a_shifted_table(tmp_path / "copy"), here.published["highway"])
    found = analysis.published(here.published["highway"])
    empty = pl.DataFrame(schema=runs.SCHEMA)
    none = cpu_shares.profiled(empty, here.raw, here.root)
    beside = figures.beside(found, empty, (empty, empty), none, here, {})
    assert list(beside.saved) == ["highway-fig8", "highway-fig8-cpu"]
    assert isinstance(beside.sheet("highway-fig8"), sheets.Sheet)
    assert (here.tables / "highway-fig8.csv").is_file()
    assert beside.show("highway-fig3") is None
    manifest = json.loads((here.figures / "highway-fig8.json").read_text(encoding="utf-8"))
    assert manifest["table"] == "tables/highway-fig8.parquet"
    assert [figure["figure"] for figure in pictures.found(here.artifacts, empty)] == list(beside.saved)

    changed = figures.changed_sheet(found, here.tables)
    assert isinstance(changed, sheets.Sheet)
    ((number, slug, *_, difference),) = changed.rows
    assert (number, slug) == ("Fig. 8", "quiche_quiche")
    assert difference == "+0.000 %"  # shifted, the mean stays
    listed = figures.difference_sheet(found, here.tables)
    assert isinstance(listed, sheets.Sheet)
    assert {(line[0], line[2], line[3], line[4]) for line in listed.rows} == {
        ("Fig. 8", "goodput_mbps", processed.ONLY_PROCESSED, 1),
        ("Fig. 8", "goodput_mbps", processed.ONLY_RAW, 1),
    }
    told = figures.implementations(found)
    assert isinstance(told, sheets.Sheet)
    assert [line[0] for line in told.rows] == ["quiche"]

    # drawn again without the copy, nothing of it is left
    figures.beside(analysis.published(None), empty, (empty, empty), none, here, {})
    assert [file for file in here.artifacts.rglob("*") if file.is_file() and file.name != "plotly.min.js"] == []


def test_the_figure_of_hosts_has_every_testbed_that_was_measured_here(tmp_path: Path) -> None:
    for testbed, goodput in (("local", 1000.0), ("lab", 2000.0), ("reference", 3000.0)):
        where = fakeruns.make_run()["testbed"] | {"name": testbed}
        own(tmp_path / "raw", "hardware", {"default": goodput}, testbed=where, campaign=f"campaign-{testbed}")
        own(tmp_path / "raw", "offloads", {"off": goodput}, testbed=where, campaign=f"campaign-{testbed}")
    empty = pl.DataFrame(schema=runs.SCHEMA)
    shown = {}
    for testbed in ("local", "reference"):
        # as the workflow's notebook, which is given the runs of one testbed
        here = Place(tmp_path, tmp_path / "raw" / testbed, tmp_path / testbed, {})
        table = runs.table(here.raw)
        none = cpu_shares.profiled(empty, here.raw, here.root)
        beside = figures.beside(NOTHING, table, (empty, empty), none, here, {})
        figure = beside.show("highway-fig9")
        shown[testbed] = list(figure.drawn.figure.layout.xaxis.ticktext) if isinstance(figure, output.Saved) else figure
        assert {figure["figure"] for figure in pictures.found(here.artifacts, table)} == set(beside.saved)
    # of a single pair of hosts there is a table, without columns of what was published
    assert shown == {"local": ["lab", "local"], "reference": None}
    sheet = beside.sheet("highway-fig9")
    assert sheet is not None
    assert sheet.headers[2:5] == ["measured here: n", "mean of goodput [Gbit/s]", "ratio"]
    assert [line[:4] for line in sheet.rows] == [["quiche", "reference", "3", "3.060"]]
    assert sheet.headers[6:] == ["remark"]
    assert set(table.filter(filters(sheet.behind[0, 3]))["experiment"]) == {"hardware"}
    assert (tmp_path / "reference" / "tables" / "highway-fig9.csv").is_file()
    assert pl.read_parquet(tmp_path / "local" / "tables" / "highway-fig8.parquet")["testbed"].to_list() == ["local"]
    manifest = json.loads((tmp_path / "local" / "figures" / "highway-fig9.json").read_text(encoding="utf-8"))
    assert (manifest["campaign"], manifest["testbed"]) == ("campaign-lab, campaign-local", "lab, local")
    assert {run.split("/")[1] for run in manifest["runs"]} == {"lab", "local"}


def test_notebooks_are_run_again_when_another_testbed_was_measured(tmp_path: Path) -> None:
    for testbed, experiment in (("local", "hardware"), ("lab", "hardware"), ("lab", "mtu"), ("farm", "hardware")):
        marker = tmp_path / "measured" / testbed / f"{experiment}.json"
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
    known = {"RESULTS": {"own": tmp_path}, "TESTBED": "local"}
    # a file of functions
    markers = runpy.run_path(str(ROOT / "workflow" / "rules" / "common.smk"), known)["markers_of_others"]
    assert markers("own") == [str(tmp_path / "measured" / testbed / "hardware.json") for testbed in ("farm", "lab")]
    assert markers("reference") == []


def html_of(shown: Any) -> str:
    return str(shown._repr_html_())


def test_without_published_results_everything_says_so_and_the_first_how_to_get_them(tmp_path: Path) -> None:
    here = place(tmp_path)
    found = analysis.published(here.published["highway"])
    assert analysis.published(None).missing == found.missing
    empty = pl.DataFrame(schema=runs.SCHEMA)
    none = cpu_shares.profiled(empty, here.raw, here.root)
    beside = figures.beside(found, empty, (empty, empty), none, here, {})
    assert "published: {highway: PATH}" in html_of(found)
    assert beside.show("highway-fig7") is None  # ours is shown by a figure of its own
    assert "experiments=[udp-buffer]" in html_of(beside.show("highway-fig5"))
    assert beside.sheet("highway-fig5") is None
    assert beside.found("highway-fig5", {"32x": "Goodput"}) is None
    assert figures.changed_sheet(found, here.tables) is found
    for one in (
        figures.implementations(found),
        figures.deviations(found),
        figures.difference_sheet(found, here.tables),
    ):
        assert one is None
    assert not here.artifacts.exists()
