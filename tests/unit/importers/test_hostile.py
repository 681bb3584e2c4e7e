"""What programs, machines and people that are not trusted left is read without a traceback, a hang or a file outside.

Each property is tried on thousands of inputs made of good ones (`hostile`). They say what holds of all; what exactly
becomes of single ones is in test_unreadable.py.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

import polars as pl
import pytest
import yaml

import eventlines
import fakeruns
from benchmarkfiles import sample
from hostile import damaged, document, property_of, tar, text
from quicbed.analysis import comparison
from quicbed.base import untrusted
from quicbed.base.untrusted import UntrustedError
from quicbed.claims import papers
from quicbed.config.model import ConfigError, parse_model, read_yaml
from quicbed.contract import events
from quicbed.importers import files, qir, samples
from quicbed.importers.files import CopyError
from quicbed.importers.summary import Summary
from quicbed.papers import reading
from quicbed.papers.steps import samples as steps
from quicbed.store import details, provenance, record, runs, stacks, symbols
from quicbed.store.record import Run, RunsError

pytestmark = pytest.mark.timeout(3600)
"""`QUICBED_INPUTS` may be large."""


@contextmanager
def alone() -> Iterator[Path]:
    """A directory in one that has nothing else, and has nothing else after; in memory, as there are many."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="quicbed-hostile-", dir=memory if memory.is_dir() else None) as outer:
        place = Path(outer, "place")
        place.mkdir()
        yield place
        assert list(Path(outer).iterdir()) == [place]


def one_line(error: Exception, names: str = "") -> None:
    told = str(error)
    assert told
    assert "\n" not in told
    assert names in told


# ---- runs ------------------------------------------------------------------------------------------------------------

GOOD = fakeruns.make_run(cell=fakeruns.make_run()["cell"] | {"id": "good"})
HANDSHAKES = fakeruns.make_run(workload={"kind": "handshake", "connections": 2})
STATUSES = {*record.STATUSES, runs.UNREADABLE}


def put(directory: Path, content: bytes, rng: random.Random) -> None:
    """A run.json with this content; now and then not even a file."""
    directory.mkdir(parents=True)
    file = directory / "run.json"
    match rng.randrange(40):
        case 0:
            os.mkfifo(file)
        case 1:
            file.symlink_to(rng.choice(["/dev/zero", "/etc/passwd", "run.json", "nowhere"]))
        case 2:
            file.mkdir()
        case 3:
            with file.open("wb") as sparse:
                sparse.truncate(1 << 40)
        case _:
            file.write_bytes(content)


@property_of(batch=100)
def test_a_run_json_is_a_row_or_a_reason(rng: random.Random) -> None:
    rows = []
    for _ in range(100):
        try:
            found = Run.parse(document(rng, rng.choice([GOOD, HANDSHAKES])))
            rows.append(runs.row("raw/local/e/c/b/r", found))
        except RunsError as error:
            one_line(error)
    complete = [{name: row.get(name) for name in runs.SCHEMA} for row in rows]
    table = pl.DataFrame(complete, schema=runs.SCHEMA, orient="row")
    table.write_parquet(io.BytesIO())
    assert set(table["status"]) <= set(record.STATUSES)


@property_of(batch=50, share=0.05)
def test_every_run_is_one_row_whatever_run_json_is(rng: random.Random) -> None:
    with alone() as place:
        raw = place / "raw"
        fakeruns.write_run(raw, GOOD)
        campaign = raw / "local" / "aead-goodput" / "c0ffee00"
        for number in range(50):
            put(campaign / "b0001" / str(number), document(rng, rng.choice([GOOD, HANDSHAKES])), rng)
        (campaign / "sessions").mkdir()
        (campaign / "campaign.json").write_bytes(document(rng, {"campaign": "c0ffee00"}))
        plan = fakeruns.plan([GOOD])
        session = {"started_at": "2030-01-01T00:00:00+00:00", "cells": plan}
        (campaign / "sessions" / "1.json").write_bytes(document(rng, session))
        table = runs.table(raw)
        runs.write_parquet(table, place / "runs.parquet")
        assert table.height == 51
        assert set(table["status"]) <= STATUSES
        assert not table.filter((pl.col("status") == runs.UNREADABLE) & pl.col("reason").is_null()).height
        assert table.filter(pl.col("cell") == "good", pl.col("goodput_mbps") == 2000).height >= 1
        for name in table["experiment"].drop_nulls().unique():
            comparison.figure_table(runs.select_campaign(table, name))
        found = details.read(raw)
        assert found.connections.height == found.primitives.height == found.handshakes.height == 0
        assert provenance.of_frame(provenance.frame(found.campaigns)) == found.campaigns


CLIENT = [
    eventlines.start("client"),
    *(eventlines.client_connection(index) for index in range(2)),
    eventlines.end(connections=2),
]
LOGS = {
    "client.jsonl": CLIENT,
    "server.jsonl": [
        eventlines.start("server"),
        eventlines.ready(),
        *(eventlines.server_connection(index) for index in range(2)),
        eventlines.end(connections=2),
    ],
}
PRIMITIVES = [
    eventlines.start("primitives"),
    {
        "event": "primitive",
        "t": 2_000,
        "kind": "group",
        "name": "x25519",
        "operation": "keygen",
        "implementation": "x",
        "samples_ns": [1, 2],
        "bytes": 32,
    },
    eventlines.end(),
]


def lines(rng: random.Random, good: list[dict[str, Any]]) -> bytes:
    """An event file, one of whose lines is not as it should be."""
    found = [json.dumps(event).encode() for event in good]
    place = rng.randrange(len(found))
    found[place] = document(rng, good[place])
    content = b"\n".join(found) + b"\n"
    return damaged(rng, content) if rng.random() < 0.1 else content


@property_of(batch=50)
def test_an_event_file_is_read_or_refused(rng: random.Random) -> None:
    with alone() as place:
        file = place / "events.jsonl"
        for _ in range(50):
            name = rng.choice([*LOGS, "primitives.jsonl"])
            file.write_bytes(lines(rng, LOGS.get(name, PRIMITIVES)))
            try:
                if name == "primitives.jsonl":
                    events.read_primitives(file)
                else:
                    log = events.read(file, "client" if name == "client.jsonl" else "server")
                    json.dumps([log.start.model_dump(mode="json"), *log.errors], allow_nan=False).encode()
            except events.EventError as error:
                one_line(error)


@property_of(batch=40, share=0.15)
def test_what_lies_beside_a_run_costs_its_rows_only(rng: random.Random) -> None:
    with alone() as place:
        raw = place / "raw"
        for number in range(40):
            run = HANDSHAKES | {"block": number}
            if number % 2:
                run |= {"workload": {"kind": "primitives"}}
            directory = fakeruns.write_run(raw, run)
            for name, good in (LOGS | {"primitives.jsonl": PRIMITIVES}).items():
                (directory / name).write_bytes(lines(rng, good))
            if rng.random() < 0.2:
                (directory / "openings.json").write_bytes(
                    document(rng, [{"t_client_hello": 1, "t_client_one_rtt": 2}] * 2)
                )
        details.write_tables(raw, place / "runs.parquet")
        found = details.read(raw)
        origins = set(found.connections["origin"]) | set(found.primitives["origin"])
        told = {line.partition(": ")[0] for line in found.problems}
        assert len(origins | told) == 40
        assert not origins & told


# ---- archives --------------------------------------------------------------------------------------------------------

PACKED = {
    "local/e/c/campaign.json": b"{}",
    **{f"local/e/c/b0001/{number}/run.json": json.dumps(GOOD).encode() for number in range(3)},
    "local/e/c/b0001/1/client.jsonl": b"\n".join(json.dumps(event).encode() for event in CLIENT),
}


@property_of(batch=100)
def test_an_archive_of_runs_is_read_as_far_as_it_can_be(rng: random.Random) -> None:
    with alone() as place:
        archive = place / "x.tar.gz"
        for _ in range(100):
            archive.write_bytes(tar(rng, PACKED))
            seen = []
            try:
                for name, content in untrusted.packed(archive, lambda path: path.suffix in (".json", ".jsonl")):
                    assert isinstance(content, bytes | UntrustedError)
                    seen.append(name.encode())
            except UntrustedError as error:
                one_line(error)
            assert len(seen) <= 10


@property_of(batch=20, share=0.1)
def test_archives_become_rows_and_nothing_outside(rng: random.Random) -> None:
    with alone() as place:
        raw = place / "raw"
        raw.mkdir()
        for number in range(20):
            (raw / f"{number}.tar.gz").write_bytes(tar(rng, PACKED))
        table = runs.table(raw)
        assert {one.partition("!")[0] for one in table["origin"]} == {f"raw/{number}.tar.gz" for number in range(20)}
        assert set(table["status"]) <= STATUSES
        found = details.read(raw)
        assert provenance.of_frame(provenance.frame(found.campaigns)) == found.campaigns
        assert len(list(raw.iterdir())) == 20


@property_of(batch=100)
def test_an_archive_of_a_copy_is_read_as_far_as_it_can_be(rng: random.Random) -> None:
    content = {"a/one": b"1" * 600, "a/two": b"2", "b/three": b""}
    for _ in range(100):
        summary = Summary("test")
        stream = io.BytesIO(tar(rng, content, compressed=False))
        for entry in files.members_of(stream, "x", summary, 1 << 30):
            files.content_of(entry, summary)
            entry.path.encode()
        summary.text().encode()


# ---- importers -------------------------------------------------------------------------------------------------------

REPETITION = samples.repetition("quiche", "lsquic", 20.0) | {"client/tc-stats.txt": samples.tc_stats(3)}
RESULT = samples.result_json({("quiche", "lsquic"): [3435.97, 3435.97]})


def imported(name: str, content: Mapping[str, bytes], place: Path, *, packed: bool = False) -> pl.DataFrame | None:
    """The table of runs of a copy, None where nothing of it is of the format."""
    if packed:
        copy = place / "copy.tar"
        samples.pack_files(content.items(), copy)
    else:
        copy = samples.write(content, place / "copy")
    before = sorted(path for path in copy.rglob("*"))
    try:
        reading.read(name, copy, place / "out").text().encode()
    except CopyError as error:
        one_line(error)
        return None
    assert sorted(path for path in copy.rglob("*")) == before
    assert (place / "out" / "import.json").is_file()
    table = pl.read_parquet(place / "out" / "runs.parquet")
    finished = table.filter(pl.col("status") == "ok")
    for column in ("goodput_mbps", "ttfb_ms", "wall_s", "client_cpu_percent"):
        assert finished[column].drop_nulls().is_between(0, 1e12).all(), column
    return table


def log(rng: random.Random, name: str, content: bytes) -> bytes:
    return document(rng, json.loads(content)) if name.endswith(".json") else text(rng, content)


@property_of(batch=40, share=0.25)
def test_one_bad_file_of_highway_costs_its_repetition(rng: random.Random) -> None:
    found: dict[str, bytes] = {}
    for number in range(40):
        place = f"results/x/run/quiche_lsquic/goodput/{number}"
        bad = rng.choice(list(REPETITION))
        changed = REPETITION | {bad: log(rng, bad, REPETITION[bad])}
        found |= {f"{place}/{name}": content for name, content in changed.items()}
    found |= {f"results/x/run/quiche_lsquic/goodput/99/{name}": content for name, content in REPETITION.items()}
    found["results/x/run/result.json"] = document(rng, RESULT)
    with alone() as place:
        table = imported("highway", found, place, packed=rng.random() < 0.5)
        assert table is not None
        assert table.height == 41
        good = table.filter(pl.col("origin").str.ends_with("/99")).row(0, named=True)
        assert (good["status"], good["goodput_mbps"]) == ("ok", pytest.approx(3435.97, rel=1e-3))


@property_of(batch=40, share=0.25)
def test_one_bad_file_of_steps_costs_its_repetition(rng: random.Random) -> None:
    inside = {f"logs/quiche_lsquic/goodput/1/{name}": content for name, content in REPETITION.items()}
    packets, gaps = steps.gap_files(20, 1)
    found: dict[str, bytes] = {}
    for number in range(1, 21):
        bad = rng.choice(list(inside))
        changed = inside | {bad: log(rng, bad, inside[bad])}
        found[f"detailed/c/c-rep{number}.tar"] = tar(rng, changed, compressed=False)
        bad_gaps = rng.choice([text, document_of_numbers])
        found[f"data/c/c-rep{number}.pcap.json"] = bad_gaps(rng, packets)
        found[f"data/c/c-rep{number}.ipg.json"] = bad_gaps(rng, gaps)
    with alone() as place:
        imported("steps", found, place)


def document_of_numbers(rng: random.Random, content: bytes) -> bytes:
    return document(rng, json.loads(content))


@property_of(batch=40, share=0.15)
def test_one_bad_file_of_quic_benchmark_costs_its_sample(rng: random.Random) -> None:
    found: dict[str, bytes] = {}
    for number in range(40):
        transport = rng.choice(["quic", "tcp"])
        delay = rng.choice(["10", "10", "1.5", "1.2.3", "..", "9" * 50])
        folder = f"samples/samples_threshold15_dev2_delay{delay}"
        good = sample(f"{folder.split('/')[0]}/{folder.split('/')[1]}/{transport}/host/{number}")
        bad = rng.choice(list(good))
        good[bad] = document(rng, json.loads(good[bad]))
        if rng.random() < 0.1:
            good[f"{PurePosixPath(bad).parent}/{transport}.pcap"] = rng.randbytes(100)
        found |= good
    with alone() as place:
        imported("quic-benchmark", found, place)


QIR = {
    "start_time": 1.7e9,
    "log_dir": "logs",
    "servers": ["a", "b"],
    "clients": ["a", "b"],
    "tests": {"G": {"name": "goodput", "desc": ""}, "H": {"name": "handshake", "desc": ""}},
    "results": [[{"abbr": "H", "name": "handshake", "result": "succeeded"}]] * 4,
    "measurements": [
        [{"abbr": "G", "name": "goodput", "result": "succeeded", "details": "8123 (± 45) kbps", "filesize": 100}],
        [{"abbr": "G", "name": "goodput", "result": "succeeded", "details": [1.5, 2], "client": "b", "server": "a"}],
    ]
    * 2,
}


@property_of(batch=50, share=0.4)
def test_one_bad_result_json_costs_its_rows(rng: random.Random) -> None:
    found = {f"{number}/result.json": document(rng, QIR) for number in range(50)}
    found["good/result.json"] = json.dumps(QIR).encode()
    with alone() as place:
        table = imported("qir", found, place, packed=rng.random() < 0.5)
        assert table is not None
        good = table.filter(pl.col("origin").str.starts_with("good/"))
        assert good["goodput_mbps"].to_list() == pytest.approx([8.123, 1.75, 8.123, 1.75])
        assert (table["goodput_mbps"].max() or 0) < qir.FASTEST_MBPS


# ---- mappings and claims ---------------------------------------------------------------------------------------------

SYMBOLS = {
    "description": "x",
    "include": ["aead"],
    "claims": {"packet-protection": ["^aes_", {"symbol": "memcpy", "under": "^seal"}], "packet-io": ["send"]},
    "rest": {"connection-management": ["."]},
    "unsupported": {"application": "x"},
}
WORDS = [
    *(
        "(",
        "(?P<",
        "a{9999999999}",
        "(" * 300,
        "*",
        "[",
        "{row",
        "{0.x}",
        "{library!z}",
        ".nan",
        ".inf",
        "-.inf",
        "2024-99-99",
    ),
    *(
        "&a [*a]",
        "!!python/object:os.system x",
        "? [a]: b",
        "[" * 2000,
        "{" * 2000,
        "'",
        '"\\ud800"',
        "\t",
        "\0",
        "%",
        "<<: x",
    ),
]


def _dump(good: Any) -> str:
    # the one in C, where there is one, takes a tenth of the time
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(good, Dumper=dumper, sort_keys=False, allow_unicode=True))


def yaml_like(rng: random.Random, good: Any) -> bytes:
    """YAML like a good document, with places that are not."""
    content = _dump(json.loads(json.dumps(good)))
    if rng.random() < 0.5:
        with suppress(ValueError, RecursionError, yaml.YAMLError):
            content = _dump(json.loads(document(rng, good)))
    if rng.random() < 0.7:
        place = rng.choice(content.splitlines() or [""])
        content = content.replace(place, place.partition(":")[0] + ": " + rng.choice(WORDS), 1)
    data = content.encode(errors="surrogatepass")
    return damaged(rng, data) if rng.random() < 0.2 else data


@property_of(batch=20, share=0.2)
def test_a_mapping_of_symbols_is_read_or_refused(rng: random.Random) -> None:
    with alone() as place:
        (place / "shared").mkdir()
        (place / "shared" / "aead.yaml").write_text("claims: {header-protection: [mask]}\n", encoding="utf-8")
        file = place / "library.yaml"
        for _ in range(20):
            file.write_bytes(yaml_like(rng, SYMBOLS))
            try:
                symbols._read(file, "client").sort(["aes_seal", "send", "main"])
            except ConfigError as error:
                one_line(error, "library.yaml")


PAPER = {
    "title": "x",
    "citation": "x",
    "population": "x",
    "libraries": {"quiche": "quiche"},
    "claims": [
        {
            "id": "one",
            "source": "x",
            "statement": "x",
            "libraries": ["quiche"],
            "reads": {"experiment": "aead-goodput", "metric": "goodput_mbps"},
            "compare": [{"of": [{"label": "NOOP"}], "over": [{"label": "AES-128-GCM"}]}],
            "predicate": {"kind": "above", "value": 1.0},
            "no_figure": "x",
        }
    ],
    "cells": [
        {
            "id": "table",
            "source": "x",
            "statement": "{row} {library} {value}",
            "data": "kem",
            "column": "ttfb_ms_{library}",
            "libraries": ["quiche"],
            "reads": {"experiment": "table2-kem", "metric": "ttfb_ms"},
            "no_figure": "x",
        }
    ],
}


@property_of(batch=20, share=0.2)
def test_claims_are_read_or_refused(rng: random.Random) -> None:
    with alone() as place:
        file = place / "paper.yaml"
        for _ in range(20):
            file.write_bytes(yaml_like(rng, PAPER))
            try:
                paper = parse_model(papers.Paper, read_yaml(file), file)
                for cells in paper.cells:
                    list(papers._claims(cells, file.with_suffix("")))
            except ConfigError as error:
                one_line(error, "paper")


@property_of(batch=100)
def test_folded_stacks_are_read_or_refused(rng: random.Random) -> None:
    for _ in range(50):
        content = text(rng, b"comm;a`f 3\ncomm;a`f;b`g 4\n")
        for packed in (gzip.compress(content), damaged(rng, gzip.compress(content))):
            try:
                assert stacks.read_folded(packed).total() > 0
            except stacks.PerfError as error:
                one_line(error)
