"""What other people's programs say and leave is bounded, and reading it neither waits nor follows links."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import random
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

import wording
from nesting import nested
from quicbed.base import environment, untrusted


def test_text_is_one_line_of_limited_length() -> None:
    assert untrusted.one_line("a\x1b[31mb\n\ud800c\x00 \u2028d") == "a [31mb c d"
    assert untrusted.one_line("x" * 10**6, 10) == "x" * 10
    untrusted.one_line("\ud800 lone").encode()


def test_no_text_commands_a_terminal() -> None:
    assert untrusted.visible("a\x1b[2J\tb\r\nc\u202e\udcff") == "a\ufffd[2J b\ufffd\nc\ufffd\udcff"
    assert untrusted.shown("a\u202eb\u2066") == "a\ufffdb\ufffd"
    assert untrusted.problem_with_name("a\u202eb") == "name with control characters"


def test_every_signal_has_a_name() -> None:
    assert untrusted.signal_name(signal.SIGSEGV) == "SIGSEGV"
    assert untrusted.signal_name(40) == "signal 40"
    assert untrusted.signal_name(10**9) == "signal 1000000000"


def test_links_fifos_and_directories_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("abc", encoding="ascii")
    assert untrusted.beginning(tmp_path / "file", 2) == b"ab"
    assert untrusted.end(tmp_path / "file", 2) == b"bc"
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "fifo")
    for name, what in (("link", "is a link"), ("fifo", "is not a regular file"), (".", "Is a directory")):
        with pytest.raises(untrusted.UntrustedError, match=what):
            untrusted.beginning(tmp_path / name, 10)


@pytest.mark.parametrize(
    "text",
    [
        "18446744073709551616",
        "-9223372036854775809",
        "9" * 5000,
        '{"one": [1e300]}',
        "1e999",
        "[" * 66 + "]" * 66,
        "[" * 100_000,
    ],
    ids=wording.name,
)
def test_numbers_and_depth_of_json_are_limited(text: str, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(untrusted.UntrustedError) as error:
        untrusted.parse(text.encode())
    assert wording.one_line(error.value) == snapshot


@pytest.mark.parametrize("value", [(1 << 64) - 1, -(1 << 63), -0.5, 1e19, ["[{" * 70], [[]] * 100, {"a": {"b": [1]}}])
def test_json_within_the_limits_is_what_it_says(value: object) -> None:
    assert untrusted.parse(json.dumps(value).encode()) == value


def test_what_is_no_file_or_not_for_endpoints_to_write_is_removed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("", encoding="ascii")
    run = tmp_path / "run"
    (run / "client.logs" / "run.json").mkdir(parents=True)
    (run / "client.jsonl").write_text("", encoding="ascii")
    (run / "openings.json").mkdir()
    (run / "openings.json" / "deep").write_text("", encoding="ascii")
    (run / "server.jsonl").symlink_to("/nowhere")
    (run / "client.logs" / "there").symlink_to(outside)
    os.mkfifo(run / "client.logs" / "fifo\n")
    removed = untrusted.scrub(run, frozenset({"openings.json", "run.json"}))
    assert removed == ["client.logs/fifo", "client.logs/there", "openings.json", "server.jsonl"]
    assert sorted(path.name for path in run.rglob("*")) == ["client.jsonl", "client.logs", "run.json"]
    assert (outside / "kept").is_file()


def test_what_is_too_deep_or_begins_with_a_dot_is_removed_but_for_what_was_there(tmp_path: Path) -> None:
    run = tmp_path / "run"
    nested(run, 100)
    for name in (".run.json.partial", ".client", "kept/.hidden"):
        (run / name).mkdir(parents=True)
    (run / "capture.pcap").write_bytes(b"")
    removed = untrusted.scrub(run, {"capture.pcap"}, there={".client", "capture.pcap"})
    assert removed == [
        ".run.json.partial",
        f"{'/'.join(['d'] * (untrusted.DEEPEST_DIRECTORIES + 1))} (more than 64 directories deep)",
    ]
    names = sorted(path.relative_to(run).as_posix() for path in run.rglob("*") if path.name != "d")
    assert names == [".client", "capture.pcap", "kept", "kept/.hidden"]


def test_programs_are_given_named_variables_only(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = (
        "SSH_AUTH_SOCK",
        "AWS_SECRET_ACCESS_KEY",
        "CARGO_REGISTRY_TOKEN",
        "CARGO_REGISTRIES_X_TOKEN",
        "PIP_PASSWORD",
    )
    for name in secret:
        monkeypatch.setenv(name, "secret")
    for name in ("https_proxy", "PIP_INDEX_URL", "CARGO_HTTP_CAINFO", "RUSTUP_TOOLCHAIN"):
        monkeypatch.setenv(name, "kept")
    found = environment.named({"MORE": "1"})
    assert not set(secret) & set(found)
    assert [found[name] for name in ("https_proxy", "PIP_INDEX_URL", "CARGO_HTTP_CAINFO", "MORE")] == [
        *["kept"] * 3,
        "1",
    ]
    with environment.only_named(), environment.only_named():
        assert not set(secret) & set(os.environ)
        assert os.environ["RUSTUP_TOOLCHAIN"] == "kept"
    assert os.environ["SSH_AUTH_SOCK"] == "secret"


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress], ids=["gzip", "bzip2", "xz"])
def test_what_was_compressed_in_parts_is_read_whole(compress: Callable[[bytes], bytes]) -> None:
    one, two = random.Random(1).randbytes(3 << 20), b"two" * 1000
    first = compress(one)
    parts = first + compress(b"") + compress(two)
    for size in (1, 1 << 20):
        for padding in (b"", b"\0" * 4):
            stream = untrusted.Unpacking(io.BytesIO(parts + padding))
            found = b""
            while piece := stream.read1(size if len(found) > len(one) else 1 << 22):
                found += piece
            assert found == one + two
    for cut in (1, 20, 1000):
        stream = untrusted.Unpacking(io.BytesIO(first[:-cut]))
        with pytest.raises(EOFError):
            list(iter(partial(stream.read1, 1 << 22), b""))


def test_a_name_of_any_length_in_a_gzip_header_is_passed_over() -> None:
    packed = gzip.compress(b"content")
    header = packed[:3] + b"\x08" + packed[4:10]
    assert untrusted.gunzip(header + b"n" * (64 << 20) + b"\0" + packed[10:]) == b"content"
