"""Reading raw runs: nothing is left out silently, equal runs give equal bytes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from syrupy.assertion import SnapshotAssertion

import fakeruns
import wording
from quicbed.analysis import comparison
from quicbed.plan.host import FACTS, host_of
from quicbed.store import details, record, runs
from quicbed.store.paths import ARCHIVE_SUFFIXES
from quicbed.store.record import RunsError


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    path = tmp_path / "raw"
    path.mkdir()
    return path


def test_one_typed_row_for_every_run(raw: Path) -> None:
    directory = fakeruns.write_run(raw, fakeruns.make_run())
    table = runs.table(raw)
    assert table.schema == pl.Schema(runs.SCHEMA)
    row = table.row(0, named=True)
    assert row["origin"] == directory.relative_to(raw.parent).as_posix()
    assert row["library"] == row["client_library"] == "quinn"
    assert row["header_protection"] is True
    assert row["goodput_mbps"] == 2000.0
    assert row["client_cpu_s_per_gib"] == 2.0  # 0.5 s for a quarter of a GiB
    assert row["server_cpu_s_per_gib"] == 3.0
    assert row["client_run_delay_s"] == 0.01
    assert row["server_negotiated_cipher"] == "TLS_AES_128_GCM_SHA256"
    assert row["proof"] == "proof-1"
    assert row["started_at"] == datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def test_no_runs_give_an_empty_table_with_all_columns(raw: Path) -> None:
    table = runs.table(raw)
    assert table.is_empty()
    assert table.schema == pl.Schema(runs.SCHEMA)


def test_a_missing_directory_is_named(raw: Path) -> None:
    with pytest.raises(RunsError, match="elsewhere"):
        runs.table(raw / "elsewhere")


def test_failed_contaminated_and_unsupported_runs_are_rows(raw: Path) -> None:
    written = fakeruns.write_campaign(raw, "aead-goodput", blocks=12)
    table = runs.table(raw)
    assert len(table) == len(written)
    expected = {status: sum(run["status"] == status for run in written) for status in record.STATUSES}
    assert all(expected.values()), "the generator makes every status"
    assert dict(table.group_by("status").len().rows()) == expected
    assert table["contaminated"].sum() == sum(run["contaminated"] for run in written)
    unsupported = table.filter(pl.col("status") == "unsupported")
    assert unsupported["block"].to_list() == [None]
    assert unsupported["reason"].to_list() == ["quinn has no NOOP AEAD"]


def test_contamination_reasons_are_kept(raw: Path) -> None:
    fakeruns.write_run(raw, fakeruns.make_run(contaminated=True, contamination=["a > 1", "b > 2"]))
    assert runs.table(raw)["contamination"].to_list() == ["a > 1; b > 2"]


def test_header_protection_is_null_for_tcp(raw: Path) -> None:
    variant = {"cipher": "aes-128-gcm", "aead": "standard", "header_protection": None, "group": "x25519"}
    fakeruns.write_run(raw, fakeruns.make_run(variant=variant))
    assert runs.table(raw)["header_protection"].to_list() == [None]


def test_what_the_kernel_counted_is_in_columns(raw: Path) -> None:
    delta = {
        "client.udp.RcvbufErrors": 7,
        "client.udp.OutDatagrams": 100,
        "server.udp.OutDatagrams": 2000.0,
        "link.lost_to_client": 12,
        "link.reorder_held_to_client": 30,
        "link.reorder_put_back_to_client": 28,
        "link.reorder_flushed_to_client": 3,
        "client.netstat.UdpRcvbufErrors": 7,
        "server.netstat.TcpExtTCPTimeouts": 1,
        "client.ethtool.rx_queue_0.drops": 3,
        "middle.client0.rx_packets": 9,
    }
    host = {"delta": delta, "cpu": {"server": {"percent": 55.5, "samples": [50.0, 60]}}, "loss_seed": 2**32 - 1}
    host["ping"] = {"mean_ms": 10.5, "deviation_ms": 0.25, "within_limits": False}
    fakeruns.write_run(raw, fakeruns.make_run(host=host))
    (row,) = runs.table(raw).rows(named=True)
    assert (row["client_udp_receive_buffer_errors"], row["server_udp_receive_buffer_errors"]) == (7, None)
    assert (row["client_udp_packets_sent"], row["server_udp_packets_sent"]) == (100, 2000)
    assert (row["frames_lost_to_client"], row["frames_lost_to_server"]) == (12, None)
    assert [row[f"frames_{name}_to_client"] for name in ("held", "put_back", "flushed")] == [30, 28, 3]
    assert row["frames_held_to_server"] is None
    assert (row["server_cpu_percent"], row["server_cpu_samples"]) == (55.5, [50.0, 60.0])
    assert (row["client_cpu_percent"], row["client_cpu_samples"]) == (None, None)
    assert (row["rtt_mean_ms"], row["rtt_deviation_ms"], row["rtt_within_limits"]) == (10.5, 0.25, False)
    assert row["loss_seed"] == 2**32 - 1
    assert [tuple(counter.values()) for counter in row["counters"]] == [
        ("client", "ethtool", "rx_queue_0.drops", 3),
        ("client", "netstat", "UdpRcvbufErrors", 7),
        ("server", "netstat", "TcpExtTCPTimeouts", 1),
    ]


def _damage(name: str, content: bytes) -> bytes:
    document = json.loads(content)
    match name:
        case "truncated":
            return content[: len(content) // 2]
        case "binary":
            return b"\xff\xfe\x00garbage"
        case "empty":
            return b""
        case "foreign":
            return b'{"hello": "world"}'
        case "list":
            return b"[1, 2]"
        case "future":
            document["format"] = 3
        case "no cell":
            del document["cell"]["id"]
        case "type":
            document["mtu"] = None
            document["link"]["mtu"] = "1500"
        case "bool":
            document["link"]["mtu"] = True
        case "nested":
            document["link"] = 7
        case "status":
            document["status"] = "fine"
        case "no goodput":
            del document["metrics"]["goodput_mbps"]
        case "zero goodput":
            document["metrics"]["goodput_mbps"] = 0.0
        case "no block":
            document["block"] = None
        case "no counters":
            document["host"]["delta"] = [1]
        case "half a count":
            document["host"]["delta"] = {"client.udp.InDatagrams": 1.5}
        case "time":
            document["started_at"] = "yesterday"
        case "naive time":
            document["started_at"] = "2030-01-02T03:04:05"
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    "name",
    [
        "truncated",
        "binary",
        "empty",
        "foreign",
        "list",
        "future",
        "no cell",
        "type",
        "bool",
        "nested",
        "status",
        "no goodput",
        "zero goodput",
        "no block",
        "no counters",
        "half a count",
        "time",
        "naive time",
    ],
)
def test_a_bad_file_is_a_row_that_says_why_and_the_others_go_on(
    raw: Path, name: str, snapshot: SnapshotAssertion
) -> None:
    fakeruns.write_run(raw, fakeruns.make_run(block=0))
    bad = fakeruns.write_run(raw, fakeruns.make_run(block=1)) / "run.json"
    fakeruns.write_run(raw, fakeruns.make_run(block=2))
    bad.write_bytes(_damage(name, bad.read_bytes()))
    table = runs.table(raw)
    assert table["status"].to_list().count("ok") == 2
    (problem,) = runs.problems(table)
    assert problem.startswith(bad.parent.relative_to(raw.parent).as_posix())
    assert wording.one_line(problem) == snapshot


def test_runs_that_are_still_being_stored_are_not_read(raw: Path) -> None:
    directory = fakeruns.write_run(raw, fakeruns.make_run())
    directory.rename(directory.with_name(f".{directory.name}.partial"))
    assert runs.table(raw).is_empty()


@pytest.mark.parametrize("suffix", ARCHIVE_SUFFIXES)
def test_an_archive_gives_the_same_runs_as_the_tree(raw: Path, suffix: str) -> None:
    fakeruns.write_campaign(raw, "aead-goodput", blocks=2)
    tree = runs.table(raw / "local")
    archive = fakeruns.archive(raw, "local", "aead-goodput", raw / "reference" / f"aead-goodput{suffix}")
    packed = runs.table(archive.parent)
    own = ["origin", "source"]
    assert packed.drop(own).equals(tree.drop(own))
    assert set(packed["source"]) == {f"raw/reference/aead-goodput{suffix}"}
    prefix = f"raw/reference/aead-goodput{suffix}!local/aead-goodput/c0ffee00/"
    assert packed["origin"].str.starts_with(prefix).all()


@pytest.mark.parametrize("suffix", ARCHIVE_SUFFIXES)
def test_a_damaged_archive_is_reported(raw: Path, suffix: str) -> None:
    fakeruns.write_campaign(raw, "aead-goodput", blocks=2)
    archive = fakeruns.archive(raw, "local", "aead-goodput", raw / "reference" / f"a{suffix}")
    archive.write_bytes(archive.read_bytes()[:-1000])
    # a run whose file is cut is one more
    told = runs.problems(runs.table(raw / "reference"))
    assert [one for one in told if one.startswith(f"raw/reference/a{suffix}: damaged archive, ")]


def test_an_archive_without_runs_is_reported(raw: Path) -> None:
    (raw / "local" / "nothing").mkdir(parents=True)
    fakeruns.archive(raw, "local", "nothing", raw / "reference" / "nothing.tar.gz")
    (problem,) = runs.problems(runs.table(raw / "reference"))
    assert problem == "raw/reference/nothing.tar.gz: archive without a run.json"


def test_the_same_runs_give_the_same_bytes(raw: Path, tmp_path: Path) -> None:
    fakeruns.write_campaign(raw, "aead-goodput", blocks=3)
    first, second = tmp_path / "a" / "runs.parquet", tmp_path / "b" / "runs.parquet"
    details.write_tables(raw, first)
    details.write_tables(raw, second)
    assert first.read_bytes() == second.read_bytes()
    assert pl.read_parquet(first).equals(runs.table(raw))
    assert {path.stem for path in first.parent.iterdir()} == {"runs", "read", *details.SCHEMAS}  # nothing half written


def test_the_newest_campaign_is_chosen_and_never_mixed(raw: Path) -> None:
    later = fakeruns.START + timedelta(days=1)
    fakeruns.write_campaign(raw, "aead-goodput", blocks=2, campaign_id="aaaa", start=later)
    fakeruns.write_campaign(raw, "aead-goodput", blocks=2, campaign_id="bbbb", scale="paper")
    table = runs.table(raw)
    assert set(runs.select_campaign(table, "aead-goodput")["campaign"]) == {"aaaa"}
    assert set(runs.select_campaign(table, "aead-goodput", campaign="bbbb")["scale"]) == {"paper"}
    assert runs.select_campaign(table, "aead-goodput", testbed="elsewhere").is_empty()
    assert runs.select_campaign(table, "header-protection").is_empty()


def chosen(raw: Path, **named: str) -> set[tuple[str, str]]:
    campaign = runs.select_campaign(runs.table(raw), "aead-goodput", **named)
    return set(campaign.select("campaign", "client_library").rows())


@pytest.mark.parametrize("day", [-1, 1], ids=["before", "after"])
def test_an_external_endpoint_that_a_campaign_lacks_is_taken_from_its_own(raw: Path, day: int) -> None:
    fakeruns.write_campaign(raw, "aead-goodput", blocks=2, campaign_id="aaaa")
    fakeruns.write_external(raw, "lsquic", "cccc", day)
    fakeruns.write_external(raw, "lsquic", "bbbb", day - 2)  # an earlier one
    fakeruns.write_external(raw, "xquic", "dddd", day, scale="paper" if day < 0 else "quick")
    own = {("aaaa", name) for name in ("quiche", "quinn", "tcp-tls")}
    alike = {("dddd", "xquic")} if day > 0 else set()
    assert chosen(raw) == own | {("cccc", "lsquic")} | alike
    assert chosen(raw, campaign="cccc") == {("cccc", "lsquic")}
    # those of the project's own libraries come first
    table = runs.select_campaign(runs.table(raw), "aead-goodput")
    assert table["campaign"][0] == "aaaa"
    ratios = comparison.figure_table(table).filter(pl.col("client_library") == "lsquic")
    assert ratios["ratio"].count() == 3  # two ciphers and A/A


def test_an_external_endpoint_that_a_campaign_has_is_not_taken_from_another(raw: Path) -> None:
    fakeruns.write_campaign(raw, "aead-goodput", blocks=2, campaign_id="aaaa")
    fakeruns.write_external(raw, "lsquic", "aaaa", 0)
    fakeruns.write_external(raw, "lsquic", "bbbb", 1)
    assert ("aaaa", "lsquic") in chosen(raw)
    assert "bbbb" not in dict(chosen(raw))


def test_an_external_endpoint_alone_is_a_campaign(raw: Path) -> None:
    fakeruns.write_external(raw, "lsquic", "bbbb", 0)
    assert chosen(raw) == {("bbbb", "lsquic")}


@pytest.mark.parametrize("fact", FACTS)
def test_one_campaign_on_two_hosts_is_not_mixed(raw: Path, fact: str) -> None:
    for block, told in enumerate(("one", "two")):
        testbed = fakeruns.make_run()["testbed"] | {"memory": "8 GiB"} | {fact: told}
        moment = (fakeruns.START + timedelta(hours=block)).isoformat()
        fakeruns.write_run(raw, fakeruns.make_run(testbed=testbed, block=block, started_at=moment))
    table = runs.table(raw)
    assert table["host"].n_unique() == 2
    assert runs.select_campaign(table, "aead-goodput")[fact].to_list() == ["two"]
    # nor do two attempts at one cell stand for each other
    assert len(comparison.counted(table.with_columns(block=pl.lit(0, pl.Int64)))) == 2


def session_of(raw: Path, hours: int, memory_gib: int, experiment: str = "aead-goodput", **facts: str) -> None:
    """A session that began then and says how much memory there is."""
    moment = fakeruns.START + timedelta(hours=hours)
    file = fakeruns.write_session(raw, experiment, fakeruns.plan([fakeruns.make_run()]), moment)
    told = fakeruns.make_run()["testbed"] | {"memory_bytes": memory_gib * 2**30} | facts
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | {"facts": told}), encoding="utf-8")


def test_what_a_run_does_not_say_of_its_host_its_session_does(raw: Path) -> None:
    for block, hours in enumerate((1, 3, 5)):
        moment = (fakeruns.START + timedelta(hours=hours)).isoformat()
        fakeruns.write_run(raw, fakeruns.make_run(block=block, started_at=moment))
    proof = fakeruns.make_run()["cell"] | {"arm": "proof"}
    fakeruns.write_run(raw, fakeruns.make_run(experiment="proofs", cell=proof, block=None))
    without = runs.table(raw)
    assert without["memory"].null_count() == 4
    assert without["host"].n_unique() == 1
    session_of(raw, 0, 8)
    session_of(raw, 2, 16, experiment="mtu")  # any session on this testbed
    session_of(raw, 4, 32, kernel="6.2.0")  # of another host
    table = runs.table(raw).sort("started_at")
    assert table["memory"].to_list() == ["8 GiB", "8 GiB", "16 GiB", "16 GiB"]
    assert table["microcode"].to_list() == [None] * 4
    assert table["host"].to_list() == [
        host_of(fakeruns.make_run()["testbed"] | {"memory_bytes": gib * 2**30}).id for gib in (8, 8, 16, 16)
    ]


def test_a_proof_from_before_all_sessions_here_is_of_the_first(raw: Path) -> None:
    fakeruns.write_run(raw, fakeruns.make_run())
    session_of(raw, 1, 8)
    session_of(raw, 2, 16)
    assert runs.table(raw)["memory"].to_list() == ["8 GiB"]


def test_a_run_that_says_who_measured_it_is_believed(raw: Path) -> None:
    testbed = fakeruns.make_run()["testbed"] | {"memory": "4 GiB", "microcode": "0x7"}
    fakeruns.write_run(raw, fakeruns.make_run(testbed=testbed))
    session_of(raw, -1, 8)
    assert runs.table(raw).select("memory", "microcode").rows() == [("4 GiB", "0x7")]


def test_warm_up_runs_are_rows_but_part_of_no_campaign(raw: Path) -> None:
    fakeruns.write_run(raw, fakeruns.make_run())
    cell = fakeruns.make_run()["cell"] | {"arm": "warm-up"}
    fakeruns.write_run(raw, fakeruns.make_run(cell=cell, block=None, order=None))
    table = runs.table(raw)
    assert sorted(table["arm"]) == ["main", "warm-up"]
    assert runs.select_campaign(table, "aead-goodput")["arm"].to_list() == ["main"]


def test_starting_a_finished_campaign_again_makes_it_the_newest(raw: Path) -> None:
    hour = timedelta(hours=1)
    quick = fakeruns.write_campaign(raw, "aead-goodput", blocks=2, campaign_id="aaaa")
    tiny = {"campaign_id": "bbbb", "scale": "tiny", "start": fakeruns.START + hour}
    fakeruns.write_campaign(raw, "aead-goodput", blocks=1, **tiny)
    assert set(runs.select_campaign(runs.table(raw), "aead-goodput")["scale"]) == {"tiny"}
    fakeruns.write_session(raw, "aead-goodput", fakeruns.plan(quick), fakeruns.START + 2 * hour, "aaaa")
    assert set(runs.select_campaign(runs.table(raw), "aead-goodput")["scale"]) == {"quick"}


def test_a_campaign_without_sessions_is_as_new_as_its_newest_run(raw: Path) -> None:
    fakeruns.write_campaign(raw, "aead-goodput", blocks=1, campaign_id="aaaa")
    for day, name in ((-1, "bbbb"), (1, "cccc")):
        moment = (fakeruns.START + timedelta(days=day)).isoformat()
        fakeruns.write_run(raw, fakeruns.make_run(campaign=name, started_at=moment))
        chosen = set(runs.select_campaign(runs.table(raw), "aead-goodput")["campaign"])
        assert chosen == {"aaaa" if day < 0 else "cccc"}


def test_a_campaign_whose_planned_cells_have_no_runs_is_not_measured(raw: Path) -> None:
    fakeruns.write_campaign(raw, "aead-goodput", blocks=1, campaign_id="aaaa")
    fakeruns.write_campaign(raw, "aead-goodput", blocks=1, campaign_id="bbbb", start=fakeruns.START + timedelta(days=1))
    cell = fakeruns.make_run()["cell"] | {"id": "ffffffff"}
    fakeruns.write_session(raw, "aead-goodput", [cell], fakeruns.START + timedelta(days=2), "bbbb")
    assert runs.select_campaign(runs.table(raw), "aead-goodput").is_empty()


def test_a_table_that_was_written_is_read_where_the_workflow_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = tmp_path / "raw"
    fakeruns.write_campaign(raw, "aead-goodput", blocks=2)
    file = tmp_path / "tables" / "runs.parquet"
    whole = details.write_tables(raw, file)
    fakeruns.write_campaign(raw, "header-protection", blocks=1)
    more = runs.table(raw)
    assert len(more) > len(whole)
    monkeypatch.setenv("QUICBED_TABLE", str(file))
    monkeypatch.setenv("QUICBED_RAW", str(raw))
    assert runs.table(raw).equals(whole)
    assert set(runs.table(raw, "local/aead-goodput")["origin"]) < set(more["origin"])
    monkeypatch.setenv("QUICBED_RAW", str(tmp_path / "elsewhere"))
    assert runs.table(raw).equals(more)


def test_a_table_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    file = tmp_path / "runs.parquet"
    file.write_text("no table", encoding="utf-8")
    with pytest.raises(RunsError, match=r"runs\.parquet: cannot be read: .*; run `quicbed tables` again"):
        runs.read_parquet(file, runs.SCHEMA)
    pl.DataFrame({"status": ["ok"]}).write_parquet(file)
    with pytest.raises(RunsError, match=r"runs\.parquet: was written by another version"):
        runs.read_parquet(file, runs.SCHEMA)


def test_spreadsheets_are_given_no_formulas(tmp_path: Path) -> None:
    values = ["=HYPERLINK(1)", "+1", "-x", "@a", "\ty", "a = b", 'one, "two"\nthree', None]
    frame = pl.DataFrame({"text": values, "number": [-1.5] * len(values), "other": ["b"] * len(values)})
    runs.write_csv(frame, tmp_path / "table.csv")
    found = pl.read_csv(tmp_path / "table.csv")
    assert found["text"].to_list() == [*(f"'{value}" for value in values[:5]), *values[5:]]
    assert found.drop("text").equals(frame.drop("text"))
