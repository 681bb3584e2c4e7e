"""Event files by columns: as they were after reading, smaller before, and no way to harm a reader."""

from __future__ import annotations

import json
import random
import tarfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from quicbed.base import untrusted
from quicbed.base.untrusted import MOST_BYTES, UntrustedError
from quicbed.store import columns, walk

CONNECTIONS = 60


def events(seed: int = 1) -> bytes:
    """An event file as endpoints write it."""
    rng = random.Random(seed)
    lines: list[dict[str, Any]] = [{"event": "start", "t": 35671757692352, "version": "1.25.0 100%d", "options": {}}]
    now = 35671757692352
    for index in range(CONNECTIONS):
        now += rng.randrange(10**6, 10**7)
        times = {name: now - rng.randrange(10**6) for name in ("t_client_hello", "t_first_byte")}
        if index % 7 == 0:
            times |= {"t_first_byte": None}  # type: ignore[dict-item]
        lines.append({"event": "connection", "t": now, "index": index, "samples": [-1, 0, 2.5, index], **times})
    lines.append({"event": "end", "t": now})
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()


@pytest.mark.parametrize(
    "content",
    [
        events(),
        events().removesuffix(b"\n"),
        events().replace(b",", b", ").replace(b":", b": "),
        events().replace(b"connection", "Verbindung %d %% ü".encode()),
        events().replace(b"\n", b"\r\n"),
        b"\n" * 2 + events() * 3,
        events()[:-100],
        events().replace(b'"index":1,', b'"index":-0,"a":007,"b":1e5,"c":99999999999999999999,'),
    ],
)
def test_a_file_comes_out_as_it_was(content: bytes) -> None:
    packed = columns.packed(content)
    assert packed is not None
    assert columns.unpacked(packed) == content
    assert len(packed) < len(content) / 2


@pytest.mark.parametrize("content", [b"", events()[:8000], events() + b"\xff", bytes(range(256)) * 100])
def test_what_gains_nothing_stays_as_it_is(content: bytes) -> None:
    assert columns.packed(content) is None


def document(**changed: Any) -> bytes:
    kind = {"text": '{"t":%d,"n":%d}', "count": 2, "columns": [{"numbers": [1, 2]}, {"less": "first", "numbers": 5}]}
    kind |= {key: value for key, value in changed.items() if key in kind}
    return json.dumps({"format": 1, "order": changed.get("order", [[0, 2]]), "kinds": [kind]}).encode()


def test_the_document_of_these_tests_is_one() -> None:
    assert columns.unpacked(document()) == b'{"t":1,"n":6}\n{"t":2,"n":7}'


def test_a_number_is_written_without_the_one_of_its_line_that_it_resembles() -> None:
    rng = random.Random(3)
    rows = [(10**12 + rng.randrange(10**6), 10**15 + rng.randrange(10**9)) for _ in range(300)]
    packed = columns.packed("\n".join(f'{{"a":{a},"b":{b},"c":{b + 7}}}' for a, b in rows).encode())
    assert packed is not None
    assert json.loads(packed)["kinds"][0]["columns"][2] == {"less": 1, "numbers": 7}


@pytest.mark.parametrize(
    "hostile",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"format":2,"order":[],"kinds":[]}',
        document(order=[[0, 3]]),
        document(order=[[1, 2]]),
        document(order=[[0, -2]]),
        document(order=[[0, 1]]),
        document(count=3),
        document(count=-1),
        document(count=10**30, order=[[0, 10**30]]),
        document(text="", columns=[], count=10**9, order=[[0, 10**9]]),
        document(text="x" * 10**5, columns=[], count=10**6, order=[[0, 10**6]]),
        document(text="%1000000000d %d"),
        document(text="%d %s"),
        document(text="%d %"),
        document(text="%(a)d %d"),
        document(text="%d"),
        document(columns=[{"numbers": [1, 2]}]),
        document(columns=[{"numbers": [1]}, {"numbers": 1}]),
        document(columns=[{"numbers": ["1", 2]}, {"numbers": 1}]),
        document(columns=[{"less": "first", "numbers": 1}, {"numbers": 1}]),
        document(columns=[{"numbers": 1}, {"less": 1, "numbers": 1}]),
        document(columns=[{"numbers": 1}, {"less": -1, "numbers": 1}]),
        document(columns=[{"numbers": 1}, {"less": 10**30, "numbers": 1}]),
        document(columns=[{"numbers": 10**30}, {"numbers": 1}]),
    ],
)
def test_what_nobody_packed_is_refused(hostile: bytes) -> None:
    with pytest.raises(UntrustedError):
        columns.unpacked(hostile)


def test_damage_is_refused_or_gives_another_file() -> None:
    packed = columns.packed(events())
    assert packed is not None
    rng = random.Random(2)
    for _ in range(300):
        damaged = bytearray(packed)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            assert len(columns.unpacked(bytes(damaged))) < MOST_BYTES
        except UntrustedError:
            continue


def archive(path: Path, members: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as made:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            made.addfile(info, BytesIO(content))
    return path


def test_readers_of_archives_see_lines(tmp_path: Path) -> None:
    packed = columns.packed(events())
    assert packed is not None
    members = {"c/1/run.json": b"{}", f"c/1/client.jsonl{columns.COLUMNS_SUFFIX}": packed, "c/2/client.jsonl": b"x"}
    made = archive(tmp_path / "a.tar.gz", members)
    assert list(walk.archived(made, {"client.jsonl"})) == [
        ("c/1", "client.jsonl", events()),
        ("c/2", "client.jsonl", b"x"),
    ]
    (run,) = walk.packed(made, "raw/a.tar.gz", {"client.jsonl"}).runs.values()
    assert run["client.jsonl"] == events()


@pytest.mark.parametrize("first", [0, 1])
def test_a_file_that_is_there_in_both_forms_is_refused(tmp_path: Path, first: int) -> None:
    packed = columns.packed(events())
    assert packed is not None
    both = [(f"1/client.jsonl{columns.COLUMNS_SUFFIX}", packed), ("1/client.jsonl", events())]
    made = archive(tmp_path / "a.tar.gz", dict([both[first], both[1 - first]]))
    (_, one), (_, other) = walk.unpacked(made, lambda path: path.name == "client.jsonl")
    assert one == events()
    assert str(other) == "is in the archive twice"


def test_a_bomb_costs_its_own_file(tmp_path: Path) -> None:
    bomb = document(text="x" * 60, columns=[], count=10**9, order=[[0, 10**9]])
    made = archive(tmp_path / "a.tar.gz", {f"1/client.jsonl{columns.COLUMNS_SUFFIX}": bomb, "2/client.jsonl": b"good"})
    (_, refused), (_, good) = walk.unpacked(made, lambda path: path.name == "client.jsonl")
    assert isinstance(refused, UntrustedError)
    assert good == b"good"


@pytest.mark.parametrize(
    "lines",
    [
        # a line that is short but for its numbers
        {"text": "%d", "count": 900_000, "columns": [{"numbers": 10**18}]},
        {"text": "%d" * 100, "count": 80_000, "columns": [{"numbers": 1}] * 100},
        {"text": "%d", "count": 3, "columns": [{"less": "above", "numbers": 9 * 10**19}]},
    ],
)
def test_a_file_is_no_larger_than_allowed_whatever_its_numbers_take(lines: dict[str, Any]) -> None:
    file = {"format": 1, "order": [[0, lines["count"]]], "kinds": [lines]}
    with pytest.raises(UntrustedError):
        columns.unpacked(json.dumps(file).encode(), 4 << 20)


def test_only_directories_that_are_in_no_other_are_runs() -> None:
    found = {"a", "a/b", "a-b", "a/b/c", "b/c", "b/cd", "/", "/x", "d" + "/e" * 100_000}
    assert walk.own(found) == sorted({"a", "a-b", "b/c", "b/cd", "/", "d" + "/e" * 100_000})
    assert walk.own({".", "a", "a/b"}) == ["."]


def test_an_archive_with_a_long_name_or_too_many_members_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def archive(*names: str) -> Path:
        file = tmp_path / "x.tar.gz"
        with tarfile.open(file, "w:gz", format=tarfile.PAX_FORMAT) as tar:
            for name in names:
                tar.addfile(tarfile.TarInfo(name))
        return file

    place = walk.packed(archive("a/run.json", "a/" * 3000 + "run.json"), "x", ())
    assert place.damage == "a name of more than 4000 bytes"
    assert list(place.runs) == ["x!a"]
    monkeypatch.setattr(untrusted, "MOST_OF_RUNS", 3)
    assert walk.packed(archive(*"abcd"), "x", ()).damage == "more than 3 members"
    assert walk.packed(archive(*"ab"), "x", ()).damage is None
