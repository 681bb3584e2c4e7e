"""Builds on the hosts of a testbed: which there are, what identifies them, what is sent, and what is not taken back."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clone import ROOT
from quicbed.builds import making
from quicbed.builds.kit import BuildError
from quicbed.config.model import ConfigError, Project, parse_model, read_yaml
from quicbed.config.model import Testbed as Settings
from quicbed.measure import hosted
from quicbed.plan import march
from quicbed.plan.built import Build
from quicbed.plan.cells import build_of, builds_needed, cells_of
from quicbed.testbed import TestbedError
from quicbed.testbed.agent import tree_digest
from quicbed.testbed.base import Completed
from quicbed.testbed.remote import RemoteHost


def on_hosts(**build: str) -> Project:
    """This repository on a testbed whose hosts build what runs there."""
    host = {"interface": {"name": "eth1"}}
    hosts = {
        "client": host | {"address": "one.example", "ip": "192.0.2.1"},
        "server": host | {"address": "two.example", "ip": "192.0.2.2", "jump": {"address": "gate.example"}},
    }
    project = Project(ROOT)
    settings = {"kind": "ssh", "hosts": hosts, "build": {"where": "hosts", **build}}
    project.testbeds = project.testbeds | {project.config.testbed: parse_model(Settings, settings, "own.yaml")}
    return project


def test_each_host_has_builds_of_its_own() -> None:
    project = on_hosts(march="native")
    variant = project.experiments["aead-goodput"].variants[0]
    assert build_of(project, "quinn", variant, "client") == "stock@native+client"
    assert build_of(project, "quinn", variant, "server") == "stock@native+server"
    assert build_of(project, "aioquic", variant, "server") == "stock"  # which is not compiled
    needed = builds_needed(project, ["aead-goodput"])
    assert {("quinn", "stock@native+client"), ("quinn", "stock@native+server"), ("aioquic", "stock")} < set(needed)
    made = {key: Build(build="/".join(key), library=key[0], flavour=key[1], version="1") for key in needed}
    cell = next(cell for cell in cells_of(project, "aead-goodput", "", made) if cell.client.library == "quinn")
    assert (cell.client.build, cell.server.build) == ("quinn/stock@native+client", "quinn/stock@native+server")
    assert cell.client.as_dict()["flavour"] == "stock"
    # primitives are timed on the client's host
    timed = builds_needed(project, ["table2-kem"])
    assert ("tcp-tls", "pq@native+client") in timed


def test_a_build_of_a_host_is_identified_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    project = on_hosts()
    names = ("stock", "stock+client", "stock+server", "stock@native+client", "stock@x86-64-v3+client")
    ids = {name: making.build_id(project, "quinn", name) for name in names}
    assert all(ids[name].startswith(f"quinn-{name}-") for name in names)
    assert len({one[-12:] for one in ids.values()}) == len(names)
    assert ids["stock"] == making.build_id(Project(ROOT), "quinn", "stock")
    # what processor the controller has is of no importance
    monkeypatch.setattr(march, "processor", lambda: {"flags": []})
    assert {name: making.build_id(project, "quinn", name) for name in names} == ids
    other = on_hosts()
    client = other.testbed.hosts["client"].model_copy(update={"port": 2222})
    hosts = other.testbed.hosts | {"client": client}
    other.testbeds[other.config.testbed] = other.testbed.model_copy(update={"hosts": hosts})
    assert making.build_id(other, "quinn", "stock+client") != ids["stock+client"]
    assert making.build_id(other, "quinn", "stock+server") == ids["stock+server"]


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"build\.where: `hosts` needs kind `ssh`"):
        parse_model(Settings, {"kind": "local", "build": {"where": "hosts"}}, "own.yaml")
    with pytest.raises(BuildError, match="quinn: `stock\\+client`: testbed local has no host client"):
        making.build_id(Project(ROOT), "quinn", "stock+client")
    with pytest.raises(BuildError, match="aioquic cannot be built on a host: is Python"):
        making.build_id(on_hosts(), "aioquic", "stock+client")
    with pytest.raises(BuildError, match="builds of the host client are made there; run `quicbed host-builds`"):
        making.build(on_hosts(), "quinn", "stock+client", jobs=1, log=tmp_path / "log")


def test_what_is_sent_is_the_same_for_the_same_content(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    text = tmp_path / "text"
    text.write_text("text\n", encoding="utf-8")
    first = hosted._packed(tmp_path / "one", {"b/text": text, "a": program}) / "content.tar"
    text.touch()
    second = hosted._packed(tmp_path / "two", {"a": program, "b/text": text}) / "content.tar"
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as archive:
        assert [(member.name, member.mode) for member in archive] == [("a", 0o755), ("b/text", 0o644)]


def test_modules_are_those_of_the_cache_by_their_names_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = tmp_path / "workflow" / "endpoints" / "quic-go"
    endpoint.mkdir(parents=True)
    module = "example.org/Some/Module v1.2.3"
    sums = [f"{module} h1:a=", f"{module}/go.mod h1:b=", "example.org/x v0.1.0/go.mod h1:c="]
    (endpoint / "go.sum").write_text("\n".join(sums) + "\n", encoding="utf-8")
    cache = tmp_path / "modules" / "cache" / "download"
    kept = (
        "example.org/!some/!module/@v/v1.2.3.zip",
        "example.org/!some/!module/@v/v1.2.3.mod",
        "example.org/x/@v/v0.1.0.mod",
    )
    for name in (*kept, "example.org/y/@v/v0.1.0.mod"):
        (cache / name).parent.mkdir(parents=True, exist_ok=True)
        (cache / name).write_text("", encoding="utf-8")
    project = Project(ROOT)
    project.root = tmp_path
    monkeypatch.setattr(hosted.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=f"{tmp_path / 'modules'}\n"))
    assert hosted._go_modules(project, ["quinn"]) == {}
    assert hosted._go_modules(project, ["quic-go"]) == {name: cache / name for name in kept}


class Host:
    """A host that says what it is told to, and has a build to fetch."""

    name = "client"
    where = "client (one.example)"
    key = "one.example"

    def __init__(self, archive: bytes = b"", digest: str | None = None, python: str = "3.9") -> None:
        self.settings = SimpleNamespace(directory="/var/lib/quicbed")
        self.hello = dict.fromkeys(hosted._RECORDED, "x") | {"disk_free_bytes": 2**30, "cpus": 2}
        self.archive = archive
        self.digest = digest or hashlib.sha256(archive).hexdigest()
        self.python = python

    def run(self, argv: Sequence[str], **_: object) -> Completed:
        told = {"python3": f"{self.python}\n/bin\n/root\n", "sha256sum": f"{self.digest}  x\n"}
        return Completed(tuple(argv), 0, told.get(argv[0], ""), "")

    def workspace(self, _directory: Path) -> Path:
        return Path("/runs")

    def collect(self, directory: Path) -> None:
        (directory / "build.tar").write_bytes(self.archive)


def builder(project: Project, host: Host, log: Path) -> hosted.Builder:
    return hosted.Builder(project, cast(RemoteHost, host), log)


def test_a_host_that_cannot_build_is_told_why(tmp_path: Path) -> None:
    project = on_hosts()
    host = Host()
    with pytest.raises(
        TestbedError, match=r"client \(one\.example\): to build there python3 has to be .*, and it is 3\.9;"
    ):
        builder(project, host, tmp_path / "log").send(["quinn"])
    with pytest.raises(
        TestbedError, match=r"1024 MiB free in /var/lib/quicbed, \d+ are needed to build there; make room"
    ):
        hosted._on_host(project, cast(RemoteHost, host), [("quinn", "stock+client")], tmp_path / "log")


def test_hosts_are_not_told_how_testbeds_are_reached_and_reserved(tmp_path: Path) -> None:
    project = on_hosts()
    files = builder(project, Host(), tmp_path / "log")._repository(tmp_path)
    (name,) = [name for name in files if name.startswith("config/testbeds/")]
    assert name == f"config/testbeds/{project.config.testbed}.yaml"
    assert parse_model(Settings, read_yaml(files[name]), name) == parse_model(Settings, {"kind": "local"}, "plain")
    assert "config/libraries/quinn.yaml" in files


class LocalHost(Host):
    """A host whose commands run here."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.settings = SimpleNamespace(directory=str(directory))

    def run(self, argv: Sequence[str], *, check: bool = True, **_: object) -> Completed:
        done = subprocess.run(argv, capture_output=True, text=True, check=check)
        return Completed(tuple(argv), done.returncode, done.stdout, done.stderr)

    def provide(self, directory: Path) -> Path:
        stored = Path(self.settings.directory) / "store" / tree_digest(directory)
        shutil.copytree(directory, stored, dirs_exist_ok=True)
        return stored


def test_trees_that_newer_ones_have_replaced_are_removed_and_nothing_else(tmp_path: Path) -> None:
    project, host = on_hosts(), LocalHost(tmp_path / "host")
    file = tmp_path / "file"

    def sent(number: int, **contents: str) -> hosted.Builder:
        """A builder that has been sent trees with a file of this content, by their kinds."""
        one = builder(project, host, tmp_path / "log")
        for kind, content in contents.items():
            file.write_text(content, encoding="utf-8")
            parent = tmp_path / str(number)
            parent.mkdir(exist_ok=True)
            one._unpacked(hosted._packed(parent / kind, {"file": file}))
        return one

    first = sent(1, python="same", sources="older", go="not sent again")
    below = first.directory
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    (below / "sources-0123456789ab").symlink_to(outside)
    (below / "python-0123456789ab").touch()
    for name in ("project", "sources", "sources-mine", "mysources-0123456789ab", "sources-0123456789abc"):
        (below / name).mkdir()
    (below / "sources-ba9876543210.partial").mkdir()
    before = {path.name for path in below.iterdir()}
    second = sent(2, python="same", sources="newer")
    assert {path.name for path in below.iterdir()} == before | second.trees
    second.tidy()
    (older,) = (name for name in first.trees if name.startswith("sources-"))
    kept = before - {older, "sources-ba9876543210.partial"} | second.trees
    assert {path.name for path in below.iterdir()} == kept
    assert (outside / "file").exists()
    (newer,) = second.trees - first.trees
    assert (below / newer / "file").read_text(encoding="utf-8") == "newer"
    # what is stored by its content stays, so that nothing has to be sent again
    sent(3, sources="older").tidy()
    assert {path.name for path in below.iterdir()} == kept - {newer} | {older}


def test_a_host_keeps_what_older_builds_were_made_of_until_a_new_one_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    broken = [True]

    def build(*_: object) -> None:
        done.append("build")
        if broken:
            raise BuildError("the compiler failed")

    monkeypatch.setattr(hosted.Builder, "send", lambda *_: done.append("send"))
    monkeypatch.setattr(hosted.Builder, "build", build)
    monkeypatch.setattr(hosted.Builder, "tidy", lambda *_: done.append("tidy"))
    host = Host()
    host.hello["disk_free_bytes"] = 2**40
    arguments = (on_hosts(), cast(RemoteHost, host), [("quinn", "stock+client"), ("quiche", "stock+client")])
    with pytest.raises(BuildError, match="the compiler failed"):
        hosted._on_host(*arguments, tmp_path / "log")
    assert done == ["send", "build"]
    broken.clear()
    done.clear()
    hosted._on_host(*arguments, tmp_path / "log")
    assert done == ["send", "build", "build", "tidy"]


def packed(*names: str, **content: Any) -> bytes:
    """An archive with these files, and with a build.json of this content."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in names:
            text = json.dumps(content).encode()
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
    return out.getvalue()


def packed_link(link: str, target: str, through: str) -> bytes:
    """An archive with a link, and with an empty file."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo(link)
        info.type, info.linkname = tarfile.SYMTYPE, target
        archive.addfile(info)
        archive.addfile(tarfile.TarInfo(through))
    return out.getvalue()


def test_only_what_left_a_host_and_is_a_build_of_these_files_is_taken(tmp_path: Path) -> None:
    project = on_hosts()
    told = {"build": "made", "library": "quinn", "flavour": "stock", "version": "1"}
    good = packed("made/build.json", **told)
    with pytest.raises(BuildError, match="made: arrived with another SHA-256 than it left with"):
        builder(project, Host(good, "0" * 64), tmp_path / "log")._fetch("made", tmp_path)
    for name in ("made/../other", "/made/x", "other/x"):
        with pytest.raises(BuildError, match="which is no part of it"):
            builder(project, Host(packed(name)), tmp_path / "log")._fetch("made", tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    through = builder(project, Host(packed_link("made/x", str(outside), "made/x/file")), tmp_path / "log")
    with pytest.raises(BuildError, match="made: holds 'made/x', a link out of it"):
        through._fetch("made", tmp_path)
    assert not list(outside.iterdir())
    one = builder(project, Host(good), tmp_path / "log")
    fetched = one._fetch("made", tmp_path)
    with pytest.raises(BuildError, match="made: was made of other files than are here"):
        one._keep(fetched, tmp_path / "kept", "quinn", "stock+client")
    files = making.identity(project, "quinn", "stock+client")["files"]
    (fetched / "build.json").write_text(json.dumps(told | {"files": files}), encoding="utf-8")
    one._keep(fetched, tmp_path / "kept", "quinn", "stock+client")
    info = json.loads((tmp_path / "kept" / "build.json").read_text(encoding="utf-8"))
    assert (info["build"], info["files"]) == ("kept", files)
    assert info["built_on"] == dict.fromkeys(hosted._RECORDED, "x") | {
        "role": "client",
        "address": "one.example",
        "build": "made",
    }
