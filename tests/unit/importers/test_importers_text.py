"""Copies that went through other systems: ends of lines, byte order marks, languages, and what is no text at all."""

from __future__ import annotations

import codecs
import io
import json
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import benchmarkfiles
from quicbed.base import untrusted
from quicbed.importers import logs, samples
from quicbed.importers.files import CopyError
from quicbed.importers.summary import Summary
from quicbed.papers import reading
from quicbed.papers.highway import perf
from quicbed.papers.highway.samples import perf_script
from quicbed.papers.steps.samples import gap_files

PAIR = "quiche_lsquic"
LOGDIR = "results/baseline/goracle/run1"
CONFIG = "quiche-cubic"


def windows(data: bytes) -> bytes:
    return data.replace(b"\n", b"\r\n")


def twice(data: bytes) -> bytes:
    return windows(windows(data))


def marked(data: bytes) -> bytes:
    return codecs.BOM_UTF8 + data


def wide(data: bytes) -> bytes:
    return data.decode().encode("utf-16")


Change = Callable[[bytes], bytes]
CHANGES: list[Change] = [windows, twice, marked, wide, lambda data: marked(windows(data))]


def archive(files: dict[str, bytes], change: Change) -> bytes:
    """A compressed archive of changed files."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as packed:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            changed = change(data)
            member.size = len(changed)
            packed.addfile(member, io.BytesIO(changed))
    return subprocess.run(["zstd", "-qc"], input=stream.getvalue(), stdout=subprocess.PIPE, check=True).stdout


def highway(change: Change) -> dict[str, bytes]:
    result = samples.result_json({("quiche", "lsquic"): [8 * 8192 * samples.MIB / 20 / 1e6]})
    options: dict[str, Any] = {"parameters": {"rmem_value": 6815744}, "prefix": {"server": logs.AES_SWITCH}}
    repetition = samples.repetition("quiche", "lsquic", 20.0, traces={"server": "++ pos_get_variable -r cc"}, **options)
    repetition["client/tc-stats.txt"] = samples.tc_stats(7)
    csv = f"logdir,server,client,repetition,goodput\n/srv/{LOGDIR},quiche,lsquic,1,3436\n".encode()
    files = {
        f"{LOGDIR}/result.json": json.dumps(result, indent=1).encode(),
        "results/baseline/goracle/processed.csv": csv,
        "perf/mappings/quiche.json": json.dumps({"regex:.*seal.*": "CRYPTO"}, indent=1).encode(),
        **{f"{LOGDIR}/{PAIR}/goodput/1/{name}": data for name, data in repetition.items()},
    }
    changed = {name: change(data) for name, data in files.items()}
    recording = perf_script(perf.program("quiche", "server"), 20, 1)
    # UTF-16 is nothing that perf writes to a pipe
    text = recording if change is wide else change(recording)
    packed = subprocess.run(["zstd", "-qc"], input=text, stdout=subprocess.PIPE, check=True).stdout
    return changed | {f"{LOGDIR}/{PAIR}/goodput/1/server/out.perf.zst": packed}


def steps(change: Change) -> dict[str, bytes]:
    inside = samples.repetition("quiche", "quiche", 20.0, parameters={"rmem_value": 6815744})
    whole, gaps = gap_files(50, seed=1)
    return {
        f"results/detailed/{CONFIG}/{CONFIG}-rep1.tar.zst": archive(
            {f"logs/quiche_quiche/goodput/1/{name}": data for name, data in inside.items()}, change
        ),
        f"analysis/build/data/{CONFIG}/{CONFIG}-rep1.pcap.json": change(whole.replace(b"], ", b"],\n")),
        f"analysis/build/data/{CONFIG}/{CONFIG}-rep2.ipg.json": change(gaps.replace(b", ", b",\n")),
    }


def quic_benchmark(change: Change) -> dict[str, bytes]:
    return {name: change(data.replace(b", ", b",\n")) for name, data in benchmarkfiles.sample().items()}


def qir(change: Change) -> dict[str, bytes]:
    result = samples.result_json({("quiche", "lsquic"): [3436.0, 3500.0]})
    return {"logs/result.json": change(json.dumps(result, indent=1).encode())}


COPIES = {"highway": highway, "steps": steps, "quic-benchmark": quic_benchmark, "qir": qir}


def same(data: bytes) -> bytes:
    return data


def imported(name: str, files: dict[str, bytes], directory: Path) -> tuple[dict[str, pl.DataFrame], Summary]:
    summary = reading.read(name, samples.write(files, directory / "copy"), directory / "out")
    out = directory / "out"
    found = {file.relative_to(out).as_posix(): pl.read_parquet(file) for file in sorted(out.rglob("*.parquet"))}
    return found, summary


@pytest.mark.parametrize("name", list(COPIES))
def test_tables_are_the_same_whatever_ends_the_lines(tmp_path: Path, name: str) -> None:
    wanted, summary = imported(name, COPIES[name](same), tmp_path / "same")
    assert all(table.height for file, table in wanted.items() if file != "packets.parquet")
    for number, change in enumerate(CHANGES):
        tables, told = imported(name, COPIES[name](change), tmp_path / str(number))
        assert tables.keys() == wanted.keys()
        for file, table in tables.items():
            assert table.equals(wanted[file]), f"{file}, change {number}"
        assert (told.skipped, told.differences) == (summary.skipped, summary.differences)


def test_what_the_hosts_were_told_is_not_lost_with_windows_line_ends(tmp_path: Path) -> None:
    row = imported("highway", highway(windows), tmp_path)[0]["runs.parquet"].row(0, named=True)
    assert (row["testbed"], row["client_receive_buffer"], row["rate_mbit"]) == ("birch-alder", 6815744, 40)
    assert row["aes_hardware"] is None  # it is off at one end
    assert "rmem_value" in row["cell"]


@pytest.mark.parametrize("name", ["highway", "steps"])
def test_a_run_whose_variables_are_not_found_is_in_a_cell_of_its_own(tmp_path: Path, name: str) -> None:
    def other_form(data: bytes) -> bytes:
        return data.replace(b"Setting variables:", b"Variables are set:")

    files = COPIES[name](same)
    other = {path.replace("/goodput/1/", "/goodput/2/").replace("rep1", "rep3"): data for path, data in files.items()}
    third = {path.replace("/goodput/2/", "/goodput/3/").replace("rep3", "rep4"): data for path, data in other.items()}
    unknown = COPIES[name](other_form)
    for one in (other, third):
        for (path, _), data in zip(one.items(), unknown.values(), strict=True):
            one[path] = data
    tables, summary = imported(name, files | other | third, tmp_path)
    rows = tables["runs.parquet"].to_dicts()
    assert [row["status"] for row in rows] == ["ok"] * 3
    assert len({row["cell"] for row in rows}) == 3
    told = [count for reason, count in summary.skipped.items() if "without variables of client and server" in reason]
    assert told == [2]


TIMES = ("07:08:09", "07:08:09 AM", "07时08分09秒", "٠٧:٠٨:٠٩", "1700000000")
AVERAGES = ("Average:", "Durchschn.:", "Durchschn,:", "Moyenne :", "平均时间:", "Среднее:", "Media:")


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("point", [".", ",", "٫"])
def test_pidstat_in_any_language(average: str, point: str) -> None:
    for time in TIMES:
        header = f"{time}   UID       PID    %usr %system  %guest   %wait    %CPU   CPU  Command"
        row = "{}     0      4242   20.00   30.00    0.00    0.00   {:6.2f}     {}  endpoint"
        lines = ["Linux 6.6.0 (birch) \t05/06/2031 \t_x86_64_\t(8 CPU)", ""]
        for value in (5, 40, 81, 83, 85, 30, 5):
            lines += [header, row.format(time, value, 3).replace(".", point), ""]
        lines += [header.replace(time, average), average + row.format("", 47, "-").replace(".", point)]
        assert logs.parse_pidstat("\n".join([*lines, ""]).encode()) == 83.0


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
def test_a_number_that_json_has_not_costs_its_own_measurement(tmp_path: Path, name: str) -> None:
    result = samples.result_json({("quiche", "lsquic"): [3436.0], ("lsquic", "lsquic"): [1.5, 2.5]})
    content = json.dumps(result).replace("3436.0", name).encode()
    table = imported("qir", {"result.json": content}, tmp_path)[0]["runs.parquet"]
    assert dict(table.select("slug", "status").rows()) == {"lsquic_lsquic": "ok", "quiche_lsquic": "unreadable"}
    assert "have NaN or Infinity" in table.filter(pl.col("status") == "unreadable")["reason"][0]
    assert table.filter(pl.col("status") == "ok")["goodput_mbps"].to_list() == [2.0]


def test_numbers_that_are_none_in_what_is_only_compared_are_told(tmp_path: Path) -> None:
    files = highway(same)
    files[f"{LOGDIR}/result.json"] = json.dumps(samples.result_json({("quiche", "lsquic"): [float("nan")]})).encode()
    _, summary = imported("highway", files, tmp_path)
    assert any("goodputs that are no numbers" in told for told in summary.differences)


def test_times_of_pings_that_are_none_are_null_and_told(tmp_path: Path) -> None:
    for number, (mean, threshold) in enumerate([("-3.5", 20.0), ("13,9", 20.0), ("13.9", float("nan"))]):
        ping = benchmarkfiles.ping(mean=mean, threshold=threshold)
        tables, summary = imported("quic-benchmark", benchmarkfiles.sample(ping_json=ping), tmp_path / str(number))
        row = tables["runs.parquet"].row(0, named=True)
        assert None in (row["rtt_mean_ms"], row["rtt_threshold_ms"])
        assert any("a time that is none" in told for told in summary.differences)
    ping = benchmarkfiles.ping(threshold=-1.0)
    tables, _ = imported("quic-benchmark", benchmarkfiles.sample(ping_json=ping), tmp_path / "negative")
    assert tables["runs.parquet"]["rtt_threshold_ms"].to_list() == [None]


OTHERS = [
    (b"PK\x03\x04rest", "is a ZIP archive: unpack it"),
    (b"\x1f\x8b\x08rest", "is compressed with gzip"),
    (b"<!DOCTYPE html>\n<html>", "is a page in HTML"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a pointer of Git LFS"),
]


@pytest.mark.parametrize(("content", "told"), OTHERS)
def test_what_is_no_text_is_named(tmp_path: Path, content: bytes, told: str) -> None:
    for parser in (logs.parse_output, logs.parse_json, logs.parse_ethtool, logs.parse_pidstat, logs.parse_netstat):
        with pytest.raises(logs.ParseError, match=told):
            parser(content)
    with pytest.raises(untrusted.UntrustedError, match=told):
        untrusted.parse(content)
    if not content.startswith(b"\x1f"):  # which is unpacked
        (tmp_path / "copy.zip").write_bytes(content)
        with pytest.raises(CopyError, match=told):
            reading.read("highway", tmp_path / "copy.zip", tmp_path / "out")


def test_the_reason_of_numbers_that_json_has_not_is_told() -> None:
    with pytest.raises(untrusted.UntrustedError, match=r"^NaN is not JSON$"):
        untrusted.parse(b"[NaN]")
    assert str(untrusted.parse(b"[NaN]", finite=False)) == "[nan]"


def test_many_carriage_returns_take_no_time_that_grows_faster_than_they_do() -> None:
    assert untrusted.plain_text(b"\r" * (1 << 20) + b"a\r\r\nb\rc") == "\n" * (1 << 20) + "a\nb\nc"


# ---- what stands twice, or has no way to it --------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(COPIES))
def test_no_row_is_doubled_by_members_that_stand_twice(tmp_path: Path, name: str) -> None:
    files = COPIES[name](same)
    once, _ = imported(name, files, tmp_path)
    packed = samples.pack_files([*files.items(), *files.items()], tmp_path / "copy.tar")
    summary = reading.read(name, packed, tmp_path / "again")
    for file, table in once.items():
        again = tmp_path / "again" / file
        assert not again.exists() or pl.read_parquet(again).height <= table.height, file
    rows = pl.read_parquet(tmp_path / "again" / "runs.parquet")
    assert rows.height == once["runs.parquet"].height
    assert any("twice" in reason for reason in summary.skipped)
    if name != "qir":
        assert set(rows["status"]) == {"unreadable"}


def test_periods_of_zero_are_no_shares(tmp_path: Path) -> None:
    files = highway(same)
    text = perf_script(perf.program("quiche", "server"), 20, 1)
    lines = [
        b" ".join([*line.split()[:-2], b"0", b"cycles:"]) if line.endswith(b"cycles: ") else line
        for line in text.split(b"\n")
    ]
    packed = subprocess.run(["zstd", "-qc"], input=b"\n".join(lines), stdout=subprocess.PIPE, check=True).stdout
    files[f"{LOGDIR}/{PAIR}/goodput/1/server/out.perf.zst"] = packed
    tables, summary = imported("highway", files, tmp_path)
    assert "cpu_shares.parquet" not in tables
    assert any("periods of zero" in reason for reason in summary.skipped)


def test_a_path_that_no_system_call_takes_costs_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = samples.write(highway(same), tmp_path / "copy")
    monkeypatch.chdir(copy)
    for _ in range(30):
        Path("d" * 200).mkdir()
        monkeypatch.chdir("d" * 200)
    Path("deep").write_text("deep", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    summary = reading.read("highway", copy, tmp_path / "out")
    assert summary.statuses == {"ok": 1}
    assert any("File name too long" in reason for reason in summary.skipped)


@pytest.mark.parametrize("way", [".", "..", "../work"])
def test_tables_go_to_the_folder_that_is_named_in_any_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    copy = samples.write(qir(same), tmp_path / "copy")
    (tmp_path / "outer" / "work").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "outer" / "work")
    reading.read("qir", copy, Path(way))
    assert {file.name for file in Path(way).glob("*.parquet")} == {"runs.parquet", "results.parquet"}
    with pytest.raises(CopyError, match=r"^/: is no folder for tables; name one in it with --out$"):
        reading.read("qir", copy, Path("/"))
