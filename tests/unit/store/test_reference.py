"""Reference data: what is packed is byte-stable, small, and gives the tables and figures of what was measured."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import capacityruns
import fakeruns
from clone import ROOT, copy_config
from quicbed.analysis import pairs
from quicbed.config.model import ConfigError, Project
from quicbed.figures import goodput
from quicbed.store import details, reference, runs, stacks, symbols, walk
from quicbed.store.paths import archives_below

AES = {"cipher": "aes-128-gcm", "aead": "standard", "header_protection": True, "group": "x25519"}
NOOP = AES | {"aead": "noop", "header_protection": False}
HANDSHAKE = AES | {"signature": "rsa-2048", "retry": False, "rtt_ms": 0, "initial_size": 1200}


@dataclass(frozen=True)
class Proof:
    """A proof and its capture."""

    slug: str
    variant: dict[str, Any]
    size: int
    id: str = ""
    status: str = "ok"


DOWNLOADS = [
    Proof("aes-large", AES | {"receive_buffer": 212992}, 3000),
    Proof("aes-small", AES | {"receive_buffer": 6815744}, 2000),
    Proof("aes-failed", AES, 10, id="aes-small", status="failed"),
    Proof("noop", NOOP, 2500),
]
HANDSHAKES = [
    Proof("shown", HANDSHAKE, 900_000),
    Proof("retry", HANDSHAKE | {"retry": True}, 100),
    Proof("far", HANDSHAKE | {"rtt_ms": 40}, 100),
    Proof("other", HANDSHAKE | {"group": "bike-l1"}, 100),
    Proof("failed", HANDSHAKE, 100, id="shown", status="failed"),
]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A repository of its own: packing writes below the root."""
    copy_config(tmp_path / "clone" / "config")
    (tmp_path / "clone" / "workflow").symlink_to(ROOT / "workflow")
    return Project(tmp_path / "clone", {"experiments": ["mtu"]})


def measure(project: Project, proofs: list[Proof], experiment: str = "mtu") -> None:
    """A run for each proof that succeeded, and the proofs; beside these one of another experiment."""
    kind = "handshake" if proofs is HANDSHAKES else "bulk"
    measured = []
    for one in proofs:
        if one.status == "ok":
            made = fakeruns.make_run(
                experiment=experiment,
                cell={"id": f"cell-{one.slug}", "slug": one.slug, "arm": "main", "label": one.slug, "baseline": None},
                variant=one.variant,
                evidence=fakeruns.make_run()["evidence"] | {"proof": one.id or one.slug},
                workload={"kind": kind, "bytes": 1000, "connections": 1},
            )
            fakeruns.write_run(project.raw, made)
            measured.append(made)
    fakeruns.write_session(project.raw, experiment, fakeruns.plan(measured), fakeruns.START)
    for one in [*proofs, Proof("foreign", AES, 1)]:
        made = fakeruns.make_run(
            format=2,
            experiment="proofs",
            cell={"id": one.id or one.slug, "slug": one.slug, "arm": "proof", "label": one.slug, "baseline": None},
            variant=one.variant,
            block=None,
            status=one.status,
            metrics={
                "client_mean_frame_bytes": 100.0,
                "server_mean_frame_bytes": 1000.0 + one.size,
                "goodput_mbps": 90.0,
                "bytes": 262144,
                "ttfb_ms": 2.0,
            },
            workload={"kind": kind, "bytes": 262144, "connections": 1},
        )
        directory = project.raw / "local" / "proofs" / "01234567" / f"{one.slug}.0"
        directory.mkdir(parents=True)
        (directory / "run.json").write_text(json.dumps(made), encoding="utf-8")
        (directory / "capture.pcap").write_bytes(f"{one.slug} ".encode().ljust(one.size, b"."))
        if kind == "handshake":
            (directory / "keys.log").write_text(f"# secrets of {one.slug}\n", encoding="utf-8")
            (directory / "handshakes.json").write_text("[]", encoding="utf-8")


def unpack(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive, "r:xz") as opened:
        members = [(member, opened.extractfile(member)) for member in opened]
        assert [(member.mtime, member.uid, member.gid, member.uname) for member, _ in members] == [
            (0, 0, 0, "") for _ in members
        ]
        assert len({member.name for member, _ in members}) == len(members)
        return {member.name: file.read() for member, file in members if file}


def packed(project: Project, experiment: str = "mtu") -> dict[str, bytes]:
    (archive,) = reference.pack(project, [experiment])
    return unpack(archive)


def captured(files: dict[str, bytes]) -> set[str]:
    """Proofs whose captures were packed."""
    return {name.split("/")[-2].removesuffix(".0") for name in files if name.endswith("/capture.pcap")}


@pytest.mark.parametrize("proofs", [DOWNLOADS, HANDSHAKES], ids=["downloads", "handshakes"])
def test_every_file_is_packed_as_it_is_or_listed_with_its_checksum(project: Project, proofs: list[Proof]) -> None:
    measure(project, proofs)
    # a run that is being stored is none yet
    unfinished = project.raw / "local" / "mtu" / "c0ffee00" / "b0009" / ".slug.0.partial"
    unfinished.mkdir(parents=True)
    (unfinished / "client.jsonl").touch()
    files = packed(project)
    left_out = {one["file"]: one for one in json.loads(files.pop("left-out.json"))["left_out"]}
    assert left_out
    assert not left_out.keys() & files.keys()
    there = {
        file.relative_to(project.raw).as_posix(): file.read_bytes()
        for file in (project.raw / "local").rglob("*")
        if file.is_file() and not {"foreign.0", unfinished.name} & set(file.parts)
    }
    assert left_out.keys() | files.keys() == there.keys()
    for name, content in there.items():
        if name in files:
            assert files[name] == content
        else:
            assert left_out[name] == {
                "file": name,
                "bytes": len(content),
                "sha256": hashlib.sha256(content).hexdigest(),
            }


def test_of_downloads_the_smallest_capture_of_each_variant_is_packed(project: Project) -> None:
    measure(project, DOWNLOADS, "header-protection")
    assert captured(packed(project, "header-protection")) == {"aes-small", "noop"}


def test_downloads_that_differ_in_nothing_that_a_capture_shows_are_left_out(project: Project) -> None:
    measure(project, DOWNLOADS)
    assert captured(packed(project)) == set()


@pytest.mark.parametrize(("room", "kept"), [(4500, {"aes-small", "noop"}), (4499, {"noop"}), (2499, set())])
def test_captures_of_downloads_stay_within_their_limit(
    project: Project, monkeypatch: pytest.MonkeyPatch, room: int, kept: set[str]
) -> None:
    measure(project, DOWNLOADS, "header-protection")
    monkeypatch.setattr(reference, "DOWNLOADS_BYTES", room)
    assert captured(packed(project, "header-protection")) == kept


def test_of_handshakes_those_to_be_shown_are_packed_with_their_secrets(project: Project) -> None:
    measure(project, HANDSHAKES, "native-handshake")
    files = packed(project, "native-handshake")
    assert captured(files) == {"shown"}
    assert [name for name in files if name.endswith("/keys.log")] == ["local/proofs/01234567/shown.0/keys.log"]
    assert len([name for name in files if name.endswith("/handshakes.json")]) == len(HANDSHAKES)


def test_handshakes_that_another_archive_shows_are_left_out(project: Project) -> None:
    measure(project, HANDSHAKES, "table2-kem")
    assert captured(packed(project, "table2-kem")) == set()


def test_events_of_connections_that_begin_at_a_rate_are_left_out(project: Project) -> None:
    capacityruns.write(project.raw)
    for directory in (project.raw / "local" / "capacity").glob("*/b*/*"):
        for role in ("client", "server"):
            (directory / f"{role}.jsonl").write_text("{}\n", encoding="utf-8")
    campaign = project.raw / "local" / "capacity" / "c0ffee00"
    for name, arm, load in (("pilot", "pilot", 0.1), ("warm-up", "warm-up", 0.1), ("pilot", "pilot", None)):
        run = fakeruns.make_run()
        run["cell"] |= {"arm": arm}
        run["variant"] |= {"load": load}
        directory = campaign / name / f"{arm}-{load}"
        directory.mkdir(parents=True)
        (directory / "run.json").write_text(json.dumps(run), encoding="utf-8")
        (directory / "client.jsonl").write_text("{}\n", encoding="utf-8")
    fakeruns.write_session(project.raw, "capacity", [], fakeruns.START)
    (archive,) = reference.pack(project, ["capacity"])
    files = unpack(archive)
    left_out = json.loads(files.pop("left-out.json"))["left_out"]
    assert {Path(one["file"]).name for one in left_out} == {"client.jsonl", "server.jsonl"}
    at_rate = runs.table(project.raw / "local").filter(pl.col("rate_per_s").is_not_null())
    assert len(left_out) == 2 * len(at_rate) + 1 > 1  # and of the pilot that finds the rates
    assert sorted(name for name in files if name.endswith(".jsonl")) == [
        (campaign / name / "client.jsonl").relative_to(project.raw).as_posix()
        for name in ("pilot/pilot-None", "warm-up/warm-up-0.1")
    ]
    # they are not missed
    found = details.read(archive.parent)
    assert (found.problems, len(found.connections)) == ([], 0)


def test_events_of_several_downloads_in_a_run_are_left_out(project: Project) -> None:
    fakeruns.write_campaign(project.raw, "aead-goodput", blocks=1)
    several = set()
    for number, file in enumerate(sorted((project.raw / "local" / "aead-goodput").glob("*/b*/*/run.json"))):
        run = json.loads(file.read_text(encoding="utf-8"))
        run["workload"] |= {"kind": "bulk", "connections": 1 + number % 2}
        file.write_text(json.dumps(run), encoding="utf-8")
        for role in ("client", "server"):
            events = file.with_name(f"{role}.jsonl")
            events.write_text("{}\n", encoding="utf-8")
            if number % 2:
                several.add(events.relative_to(project.raw).as_posix())
    (archive,) = reference.pack(project, ["aead-goodput"])
    files = unpack(archive)
    assert {one["file"] for one in json.loads(files.pop("left-out.json"))["left_out"]} == several
    assert len([name for name in files if name.endswith(".jsonl")]) == len(several) > 0


def test_what_was_not_captured_needs_no_list(project: Project) -> None:
    fakeruns.write_campaign(project.raw, "aead-goodput", blocks=1)
    (archive,) = reference.pack(project, ["aead-goodput"])
    assert "left-out.json" not in unpack(archive)


def test_what_changed_files_measured_is_not_packed(project: Project) -> None:
    fakeruns.write_campaign(project.raw, "aead-goodput", blocks=1)
    (session,) = project.raw.glob("local/aead-goodput/*/sessions/*.json")
    kept = json.loads(session.read_text(encoding="utf-8"))
    commit = "0123456789abcdef0123456789abcdef01234567"
    session.write_text(json.dumps(kept | {"revision": f"{commit}-dirty"}), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        reference.pack(project, ["aead-goodput"])
    campaign = session.parents[1]
    assert str(caught.value) == (
        f"{session}: measured by changed files that are in no commit (revision {commit}-dirty); commit them, move "
        f"{campaign} away and run `quicbed measure aead-goodput`"
    )
    assert not (project.root / "raw" / "reference").exists()
    session.write_text(json.dumps(kept | {"revision": commit}), encoding="utf-8")
    assert reference.pack(project, ["aead-goodput"])


def test_an_archive_is_the_same_whenever_and_by_whomever_it_is_packed(project: Project) -> None:
    measure(project, DOWNLOADS)
    (archive,) = reference.pack(project, ["mtu"])
    first = archive.read_bytes()
    for file in project.raw.rglob("*"):
        os.utime(file, (1, 1))
        file.chmod(0o700)
    (archive,) = reference.pack(project, ["mtu"])
    assert archive.read_bytes() == first
    assert not list(archive.parent.glob("*.partial"))


def test_a_large_event_file_is_packed_by_columns_and_read_as_it_was(project: Project) -> None:
    fakeruns.write_campaign(project.raw, "aead-goodput", blocks=1)
    (run, *_) = sorted(project.raw.glob("local/aead-goodput/*/b*/*/run.json"))
    first = run.with_name("client.jsonl")
    lines = b"".join(b'{"event":"connection","t":%d,"index":%d}\n' % (10**9 + n * n, n) for n in range(1000))
    first.write_bytes(lines)
    (archive,) = reference.pack(project, ["aead-goodput"])
    inside = first.relative_to(project.raw).as_posix()
    packed = unpack(archive)
    assert len(packed[f"{inside}.columns"]) < len(lines) / 2
    assert inside not in packed
    assert dict(walk.unpacked(archive, lambda path: str(path) == inside)) == {inside: lines}


def test_stacks_of_counted_instructions_are_packed_with_the_functions_that_decide(project: Project) -> None:
    """They are sorted as before; damaged ones are packed as they are, and samples too."""
    fakeruns.write_campaign(project.raw, "aead-goodput", blocks=1)
    (counted, damaged, sampled, *_) = sorted(project.raw.glob("local/aead-goodput/*/b*/quinn-*/run.json"))
    decides = "server`quinn_proto::connection::Connection::poll_transmit"
    folded = {
        f"it;server`main;{decides};libc.so.6`memcpy": 7,
        f"it;server`main;{decides};libc.so.6`memset": 5,
        "it;server`main;server`<quinn_proto::crypto::rustls::<impl quinn_proto::crypto::PacketKey for K>::encrypt": 9,
        "it;server`main;server`unheard of": 3,
    }
    for file, event in ((counted, stacks.INSTRUCTIONS), (damaged, stacks.INSTRUCTIONS), (sampled, "cpu-clock")):
        run = json.loads(file.read_text(encoding="utf-8"))
        run["host"]["perf"] = {"event": event}
        file.write_text(json.dumps(run), encoding="utf-8")
        stacks.write_folded(file.with_name(stacks.folded_name("server")), folded)
    damaged.with_name(stacks.folded_name("server")).write_bytes(gzip.compress(b"damaged"))
    (archive,) = reference.pack(project, ["aead-goodput"])
    packed = unpack(archive)
    fewer, broken, whole = (
        one.with_name(stacks.folded_name("server")).relative_to(project.raw).as_posix()
        for one in (counted, damaged, sampled)
    )
    assert f"server;{decides} 12\n".encode() in packed[f"{fewer}.plain"]
    assert packed[f"{fewer}.plain"].count(b"\n") == 3
    mapping = symbols.symbol_map(project.root, "quinn", "server")
    before, after = (stacks.read_folded(packed[f"{one}.plain"]) for one in (whole, fewer))
    assert mapping.count(after) == mapping.count(before)
    assert len(mapping.count(before)) == 3
    assert before.total() == 24
    assert packed[f"{broken}.plain"] == b"damaged"
    assert [one["file"] for one in json.loads(packed[reference.LEFT_OUT])["left_out"] if "folded" in one["file"]] == [
        fewer
    ]


def test_stacks_are_packed_without_gzip_and_read_as_they_were(project: Project) -> None:
    fakeruns.write_campaign(project.raw, "aead-goodput", blocks=1)
    (run, other, *_) = sorted(project.raw.glob("local/aead-goodput/*/b*/*/run.json"))
    files = [one.with_name(stacks.folded_name("client")) for one in (run, other)]
    stacks.write_folded(files[0], {"quiche;bin`main;bin`send": 7})
    files[1].write_bytes(b"no gzip")
    before = stacks.read_folded(files[0].read_bytes())
    (archive,) = reference.pack(project, ["aead-goodput"])
    inside = [one.relative_to(project.raw).as_posix() for one in files]
    packed = unpack(archive)
    assert packed[f"{inside[0]}.plain"] == b"quiche;bin`main;bin`send 7\n"
    assert packed[inside[1]] == b"no gzip"
    read = dict(walk.unpacked(archive, lambda path: str(path) in inside))
    assert stacks.read_folded(read[inside[0]]) == before
    assert read[inside[1]] == b"no gzip"


def test_a_campaign_of_an_external_endpoint_alone_goes_beside_that_of_the_others(project: Project) -> None:
    fakeruns.write_campaign(project.raw, "aead-goodput", blocks=1)
    (first,) = reference.pack(project, ["aead-goodput"])
    fakeruns.write_external(project.raw, "lsquic", "bbbb", day=1)
    (second,) = reference.pack(project, ["aead-goodput"])
    assert [first.name, second.name] == ["aead-goodput.tar.xz", "aead-goodput-lsquic.tar.xz"]
    shipped = runs.select_campaign(runs.table(project.raw / "reference"), "aead-goodput")
    assert {"lsquic", "quinn"} < set(shipped["client_library"])


def test_tables_and_figures_are_those_of_what_was_measured(project: Project) -> None:
    measure(project, DOWNLOADS)
    reference.pack(project, ["mtu"])
    own, shipped = (runs.table(project.raw / name) for name in ("local", "reference"))
    own = own.filter(pl.col("slug") != "foreign")
    place = ["source", "origin"]
    assert runs.problems(shipped) == []
    assert shipped.drop(place).sort("cell", "slug").equals(own.drop(place).sort("cell", "slug"))
    drawn = []
    for table in (own, shipped):
        campaign, cells = goodput.experiment_table(table, "mtu")
        drawn.append(pairs.mtu_table(table, campaign, cells))
    assert drawn[0]["server_mean_frame_bytes"].null_count() == 0
    assert drawn[1].equals(drawn[0])


def test_of_runs_that_were_captured_besides_the_frame_sizes_are_packed(project: Project) -> None:
    measure(project, DOWNLOADS)
    run = fakeruns.make_run(
        experiment="mtu",
        cell={"id": "besides", "slug": "noop-captured", "arm": "captured", "label": "noop", "baseline": None},
        variant=NOOP,
        evidence=fakeruns.make_run()["evidence"] | {"proof": "noop"},
    )
    run["metrics"] |= {"client_mean_frame_bytes": 80.0, "server_mean_frame_bytes": 9014.0}
    (fakeruns.write_run(project.raw, run) / "capture.pcap").write_bytes(b"frames")
    files = packed(project)
    left_out = json.loads(files["left-out.json"])["left_out"]
    assert [one["bytes"] for one in left_out if "noop-captured" in one["file"]] == [6]
    assert captured(files) == set()
    table = runs.table(project.raw / "reference")
    campaign, cells = goodput.experiment_table(table, "mtu")
    sizes = pairs.mtu_table(table, campaign, cells)
    assert dict(sizes.select("label", "frames_arm").rows()) == {
        "aes-large": "proof",
        "aes-small": "proof",
        "noop": "captured",
    }


def test_the_campaign_that_was_worked_on_last_is_packed(project: Project) -> None:
    fakeruns.write_campaign(project.raw, "aead-goodput", blocks=1, campaign_id="00000000")
    earlier = fakeruns.START.replace(year=2029)
    fakeruns.write_campaign(project.raw, "aead-goodput", blocks=1, campaign_id="ffffffff", start=earlier)
    (archive,) = reference.pack(project, ["aead-goodput"])
    assert {name.split("/")[2] for name in unpack(archive)} == {"00000000"}


def test_of_a_study_the_one_campaign_is_packed_that_it_does_not_leave_out(project: Project) -> None:
    part = {"bytes": 1000, "blocks": 2, "figures": ["goodput-by-aead"]}
    study = {"title": "A study", "question": "None.", "experiments": {"aead-goodput": part}}
    file = project.root / "config" / "studies" / "mine.yaml"

    def again() -> Project:
        file.write_text(json.dumps(study), encoding="utf-8")
        return Project(project.root, {"study": "mine"})

    found = again().study
    assert found is not None
    for number, own in enumerate([{"study": found.digest}, {"study": found.digest}, {"study": "other"}, {}]):
        name = f"0000000{number}"
        start = fakeruns.START.replace(year=2029 + number)
        fakeruns.write_campaign(project.raw, "aead-goodput", blocks=1, campaign_id=name, start=start)
        directory = project.raw / "local" / "aead-goodput" / name
        (directory / "campaign.json").write_text(json.dumps(fakeruns.CAMPAIGN | {"id": name, **own}), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"2 campaigns of the study `mine`: 00000000, 00000001; name all but one"):
        reference.pack(again(), ["aead-goodput"])
    study["left_out"] = [{"experiment": "aead-goodput", "campaign": "00000001", "reason": "the machine slept"}]
    (archive,) = reference.pack(again(), ["aead-goodput"])
    assert {name.split("/")[2] for name in unpack(archive)} == {"00000000"}
    study["seed"] = 2
    with pytest.raises(ConfigError, match=r"has no campaign of the study `mine` as it is written now"):
        reference.pack(again(), ["aead-goodput"])


def test_an_experiment_that_was_not_measured_is_named(project: Project) -> None:
    with pytest.raises(ConfigError, match=r"local/mtu: has no measured campaign; run `quicbed measure mtu`"):
        reference.pack(project, ["mtu"])


def test_the_shipped_archives_stay_small(repository: Path) -> None:
    sizes = {file.name: file.stat().st_size for file in archives_below(repository / "raw" / "reference")}
    assert sizes
    assert max(sizes.values()) < 10_000_000, sizes
    assert sum(sizes.values()) < 36_000_000, sizes
