"""Claims of "QUIC Steps" are judged by its published raw data."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from clone import ROOT
from pacedruns import copied, times
from quicbed.claims import papers
from quicbed.config.model import Project
from quicbed.importers import samples
from quicbed.papers import published_claims, reading


def steps_copy(directory: Path) -> Path:
    """Repetitions of two configurations of "QUIC Steps" with their gaps: a long train in one packet of ten."""
    files: dict[str, bytes] = {}
    gaps = [10_000] * 5 + [1_000_000] * 45
    times = [sum(gaps[:position]) for position in range(len(gaps) + 1)]
    packets = json.dumps([[moment, moment, 1242, position] for position, moment in enumerate(times)]).encode()
    for library, config, dropped in (("picoquic", "picoquic-bbr", 150), ("tcp+tls", "tcp+tls-cubic", 16)):
        for number in (1, 2, 3):
            made = samples.repetition(library, library, 22.0, size=100 * samples.MIB)
            made |= {"client/tc-stats.txt": samples.tc_stats(dropped + number)}
            inside = [(f"log/{library}_{library}/goodput/1/{name}", data) for name, data in made.items()]
            archive = samples.pack_files(inside, directory / "one.tar")
            files[f"results/detailed/{config}/{config}-rep{number}.tar"] = archive.read_bytes()
            archive.unlink()
            files[f"analysis/build/data/{config}/{config}-rep{number}.pcap.json"] = packets
    return samples.write(files, directory / "copy")


def test_claims_of_quic_steps_are_judged_by_its_logs_and_gaps(tmp_path: Path) -> None:
    reading.read("steps", steps_copy(tmp_path), tmp_path / "steps")
    project = Project(ROOT)
    known = papers.stated(project)
    results = published_claims.evaluate(project, known, {"steps": tmp_path / "steps"})
    assert {result.stated.name for result in results} == {"quic-steps"}  # nothing of the others was imported
    found = {result.stated.claim.id: result for result in results}
    assert found["table1-dropped-tcp-tls"].verdict == "holds"
    assert found["table1-dropped-tcp-tls"].measured[0].value == pytest.approx(18)
    # 6 of 51 packets are in one train
    assert found["fig4-picoquic-bbr"].verdict == "fails"
    assert found["fig4-picoquic-bbr"].measured[0].value == pytest.approx(45 / 51)
    assert found["table1-goodput-quiche"].verdict == "not measured"
    assert published_claims.evaluate(project, known, {}) == []


def test_gap_files_alone_judge_the_claims_on_trains(tmp_path: Path) -> None:
    copy = steps_copy(tmp_path)
    shutil.rmtree(copy / "results")
    reading.read("steps", copy, tmp_path / "steps")
    project = Project(ROOT)
    results = published_claims.evaluate(project, papers.stated(project), {"steps": tmp_path / "steps"})
    found = {result.stated.claim.id: result for result in results}
    assert found["fig4-picoquic-bbr"].verdict == "fails"
    assert found["fig4-picoquic-bbr"].measured[0].value == pytest.approx(45 / 51)
    assert found["fig4-picoquic-bbr"].measured[0].n == 3
    # what only logs tell
    assert found["table1-dropped-tcp-tls"].verdict == "not measured"
    assert found["table1-goodput-tcp-tls"].verdict == "not measured"


def test_claims_are_judged_by_the_numbers_of_the_figures(tmp_path: Path) -> None:
    # 60 % of the packets of picoquic alone, and those of ngtcp2 alone but for a train of six
    packets = {"picoquic-cubic": times([1] * 24 + [16]), "ngtcp2-cubic": times([1] * 94 + [6])}
    repetitions = {name: [one] * 5 for name, one in packets.items()} | {"tcp+tls-cubic": [times([1] * 9)] * 5}
    copied(tmp_path, repetitions)
    project = Project(ROOT)
    wanted = [one for one in papers.stated(project) if one.name == "quic-steps"]
    results = published_claims.evaluate(project, wanted, {"steps": tmp_path / "published"})
    by_claim = {result.stated.claim.id: result for result in results}
    assert by_claim["trains-picoquic"].verdict == "holds"
    assert by_claim["trains-short"].verdict == "fails"
    values = {one.library: one.value for one in by_claim["trains-short"].outcomes}
    assert values == {"ngtcp2": pytest.approx(0.94), "tcp-tls": pytest.approx(1.0)}
    # of which the copy has no logs
    assert by_claim["table1-dropped-ngtcp2"].verdict == "not measured"
