"""The archive to deposit: complete, checked, the same bytes twice; and the bill of materials in it."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.licenses import canonicalize_license_expression

from clone import ROOT
from quicbed.builds import bom, kit, making
from quicbed.builds.kit import BuildError
from quicbed.cli import archive
from quicbed.cli.commands import main
from quicbed.config.model import Project, read_config

PAGE = "# Commands\n"
RESULTS = {
    "report/index.html": b"<p>report</p>",
    "figures/one.svg": b"<svg/>",
    "tables/runs.parquet": bytes(range(256)) * 50,
}

# ---- bill of materials


@pytest.fixture(scope="module")
def bill() -> dict[str, Any]:
    return dict(json.loads(bom.text(Project(ROOT).without_folders(), "0123456789abcdef")))


def by_reference(bill: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = {one["bom-ref"]: one for one in bill["components"]}
    assert len(found) == len(bill["components"])
    return found


def depends_on(bill: dict[str, Any]) -> dict[str, list[str]]:
    return {one["ref"]: one.get("dependsOn", []) for one in bill["dependencies"]}


def test_the_bill_is_valid_and_its_references_lead_somewhere(bill: dict[str, Any]) -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(bill)) is None
    own = bill["metadata"]["component"]
    assert own["properties"] == [{"name": "quicbed:revision", "value": "0123456789abcdef"}]
    references = {own["bom-ref"], *by_reference(bill)}
    graph = depends_on(bill)
    assert graph.keys() <= references
    reached = {own["bom-ref"]}.union(*graph.values())
    assert reached == references


def test_every_package_of_every_lock_is_in_it_with_its_checksum(bill: dict[str, Any]) -> None:
    components = by_reference(bill)
    hashes = {name: {one["content"] for one in entry.get("hashes", [])} for name, entry in components.items()}
    locked = (kit.lock_packages(ROOT, workspace).values() for workspace in kit.WORKSPACES)
    crates = [one for packages in locked for versions in packages for one in versions if "checksum" in one]
    assert len(crates) > 200
    for one in crates:
        version = one["version"].replace("+", "%2B")
        assert hashes[f"pkg:{one.get('registry', 'cargo')}/{one['name']}@{version}"] == {one["checksum"]}
    locks = [*ROOT.glob("requirements/*.txt"), *ROOT.glob("workflow/*/*/requirements.txt")]
    assert len(locks) >= 6
    for lock in locks:
        text = lock.read_text(encoding="utf-8")
        urls = [f"pkg:pypi/{name}@{version}" for name, version in re.findall(r"(?m)^(\S+?)==([^\s;\\]+)", text)]
        assert urls
        assert set().union(*(hashes[url] for url in urls)) >= set(re.findall(r"sha256:([0-9a-f]{64})", text))
    for sums in ROOT.glob("workflow/endpoints/*/go.sum"):
        for module in re.findall(r"(?m)^\s+(?:require )?(\S+/\S+) (v\S+)", sums.with_name("go.mod").read_text()):
            entry = components[f"pkg:golang/{module[0].lower()}@{module[1]}"]
            (told,) = (one["value"] for one in entry["properties"] if one["name"] == "quicbed:go.sum")
            assert f"{module[0]} {module[1]} {told}\n" in sums.read_text(encoding="utf-8")


def test_it_says_what_every_library_is_built_from(bill: dict[str, Any]) -> None:
    graph = depends_on(bill)
    components = by_reference(bill)
    for name, library in Project(ROOT).without_folders().libraries.items():
        entry = components[f"endpoint:{name}"]
        assert entry["licenses"] == [{"expression": library.licence}]
        names = {components[url]["name"] for url in graph[f"endpoint:{name}"]}
        for one in making.sources_of(Project(ROOT).without_folders(), name):
            assert one["name"] in names
    # shared components are parts of the endpoints that link them
    (openssl,) = (entry for entry in components.values() if entry["name"] == "openssl-src")
    inside = {one["value"] for one in openssl["properties"] if one["name"] == "quicbed:component"}
    assert inside == {"openssl", "openssl-provider"}
    assert any(url.startswith("pkg:cargo/openssl-src@") for url in graph["endpoint:openssl"])
    assert any(url.startswith("pkg:cargo/oqs-sys@") for url in graph["endpoint:aioquic"])
    # the environment of the workflow is its own, also where an endpoint has the same package
    assert any(url.startswith("pkg:pypi/snakemake@") for url in graph["quicbed"])
    assert any(url.startswith("pkg:pypi/cffi@") for url in graph["quicbed"])


def test_packages_have_the_licences_that_their_registries_state(bill: dict[str, Any]) -> None:
    stated = [one for one in by_reference(bill).values() if one.get("licenses")]
    for one in stated:
        for licence in one["licenses"]:
            if expression := licence.get("expression"):
                assert canonicalize_license_expression(expression) == expression, one["bom-ref"]
    packages = bom.packages(Project(ROOT).without_folders())
    # in the registry of Rust the two state a file instead, and that of Go states none
    crates = {one.url for one in packages if one.kind == "cargo"}
    silent = {"pkg:cargo/nghttp3-sys@0.2.0", "pkg:cargo/ngtcp2-sys@0.2.0"}
    assert crates - bom.licences().keys() == silent, "run tools/licences.py"
    assert bom.licences().keys() <= {one.url for one in packages}
    tool = runpy.run_path(str(ROOT / "tools" / "licences.py"))
    always = {one.url for one in packages if ("lock", "requirements/runtime.txt") in one.properties}
    installed = {url: told for url, told in tool["wheels"](sys.path) if url in always}
    assert len(installed) > 50
    assert installed.items() <= bom.licences().items(), "run tools/licences.py"


def test_libraries_inside_crates_are_named_with_version_and_licence(bill: dict[str, Any]) -> None:
    components, graph = by_reference(bill), depends_on(bill)
    rows = list(csv.DictReader(bom.EMBEDDED.open(encoding="utf-8")))
    for row in rows:
        crate = f"pkg:{row['kind']}/{row['crate']}@{row['crate_version'].replace('+', '%2B')}"
        (url,) = (url for url in graph[crate] if components[url]["name"] == row["name"])
        assert components[url].get("version", "") == row["version"]
        assert components[url]["licenses"] == [{"expression": row["licence"]}]
        # the version of a crate often ends with that of the library
        assert "+" not in row["crate_version"] or row["crate_version"].endswith(row["version"])
    names = {row["name"] for row in rows}
    assert names >= {"boringssl", "curl", "liboqs", "msquic", "nghttp3", "nginx", "ngtcp2", "openssl", "quictls"}


def test_equal_locks_give_an_equal_bill(bill: dict[str, Any]) -> None:
    assert (
        bom.text(Project(ROOT).without_folders(), "0123456789abcdef")
        == json.dumps(bill, indent=1, sort_keys=True) + "\n"
    )
    assert "properties" not in json.loads(bom.text(Project(ROOT).without_folders()))["metadata"]["component"]


# ---- archive


def git(root: Path, *arguments: str) -> str:
    identity = {"GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_AUTHOR_DATE": "1700000000 +0000"}
    identity |= {key.replace("AUTHOR", "COMMITTER"): value for key, value in identity.items()}
    environment = {**os.environ, **identity, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    done = subprocess.run(
        ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with what a bill of materials is made of, a script, a link and results."""
    root = tmp_path / "clone"
    ignored = shutil.ignore_patterns("target", "__pycache__", "venv")
    for name in ("config", "requirements", "workflow/sources", "workflow/endpoints", "workflow/crypto"):
        shutil.copytree(ROOT / name, root / name, symlinks=True, ignore=ignored)
    (root / "run").write_text("#!/bin/sh\n", encoding="utf-8")
    (root / "run").chmod(0o755)
    (root / "link").symlink_to("run")
    (root / ".gitignore").write_text("/artifacts/\n", encoding="utf-8")
    for name, content in RESULTS.items():
        file = root / "artifacts" / "reference" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    git(tmp_path, "init", "--quiet", str(root))
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "All")
    return root


def made(root: Path, out: Path) -> Path:
    return archive.make(Project(root), out, {root / "docs" / "commands.md": PAGE})


def test_an_archive_has_the_commit_the_results_the_bill_and_checksums_of_all(clone: Path, tmp_path: Path) -> None:
    (clone / "artifacts" / "reference" / "tables" / ".runs.parquet.123").touch()
    file = made(clone, tmp_path / "out")
    commit = git(clone, "rev-parse", "HEAD")
    assert file.name == f"quicbed-0.1.0-{commit[:12]}.tar.gz"
    with tarfile.open(file) as opened:
        assert opened.pax_headers["comment"] == commit
        members = opened.getmembers()
        opened.extractall(tmp_path / "unpacked")  # noqa: S202 (made just now)
    assert [one.name for one in members] == sorted(one.name for one in members)
    assert {(one.mtime, one.uid, one.gid, one.uname, one.gname) for one in members} == {(1700000000, 0, 0, "", "")}
    top = tmp_path / "unpacked" / "quicbed-0.1.0"
    found = {path.relative_to(top).as_posix() for path in top.rglob("*") if not path.is_dir() or path.is_symlink()}
    committed = set(git(clone, "ls-files").splitlines())
    added = {f"results/reference/{name}" for name in RESULTS} | {"sbom.cdx.json", "SHA256SUMS", "docs/commands.md"}
    assert found == committed | added
    for name in committed:
        if not (clone / name).is_symlink():
            assert (top / name).read_bytes() == (clone / name).read_bytes()
            assert os.access(top / name, os.X_OK) == os.access(clone / name, os.X_OK), name
    assert (top / "link").readlink() == Path("run")
    assert (top / "docs" / "commands.md").read_text(encoding="utf-8") == PAGE
    for name, content in RESULTS.items():
        assert (top / "results" / "reference" / name).read_bytes() == content
    # the report of the archive links to the same files as the one that `make figures` writes
    link = os.path.relpath(clone / "config" / "config.yaml", clone / "artifacts" / "reference" / "report")
    assert (top / "results" / "reference" / "report" / link).resolve() == top.resolve() / "config" / "config.yaml"
    assert json.loads((top / "sbom.cdx.json").read_text()) == json.loads(bom.text(Project(clone), commit))
    links = {name for name in committed if (clone / name).is_symlink()}
    sums = dict(reversed(line.split("  ")) for line in (top / "SHA256SUMS").read_text().splitlines())
    assert sums.keys() == found - links - {"SHA256SUMS"}
    for name, digest in sums.items():
        assert hashlib.sha256((top / name).read_bytes()).hexdigest() == digest


def test_the_same_commit_gives_the_same_bytes_in_another_clone(clone: Path, tmp_path: Path) -> None:
    first = made(clone, tmp_path / "one")
    git(tmp_path, "clone", "--quiet", str(clone), str(tmp_path / "other"))
    shutil.copytree(clone / "artifacts", tmp_path / "other" / "artifacts")
    for path in (tmp_path / "other").rglob("*"):
        if ".git" not in path.parts:
            os.utime(path, (1, 1), follow_symlinks=False)
    git(tmp_path / "other", "update-index", "--refresh")
    second = made(tmp_path / "other", tmp_path / "two")
    assert second.name == first.name
    assert second.read_bytes() == first.read_bytes()
    assert [path.name for path in second.parent.iterdir()] == [second.name]


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda root: (root / "run").write_text("#!/bin/bash\n"), "not committed: M run; commit"),
        (lambda root: (root / "new").touch(), r"not committed: \?\? new; commit, stash or ignore"),
        (lambda root: (root / "artifacts/reference/report/index.html").unlink(), "is missing; run `make figures`"),
        (lambda root: shutil.rmtree(root / ".git"), "make the archive in a (git )?clone"),
    ],
    ids=["changed", "untracked", "no results", "no clone"],
)
def test_what_cannot_be_archived_is_one_line(clone: Path, tmp_path: Path, spoil: Any, expected: str) -> None:
    spoil(clone)
    with pytest.raises(archive.ArchiveError, match=expected) as error:
        made(clone, tmp_path / "out")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_clone_of_another_user_is_named_with_the_remedy(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("GIT_CONFIG_GLOBAL", os.devnull), ("GIT_CONFIG_SYSTEM", os.devnull)):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # git believes so
    monkeypatch.setattr("quicbed.cli.commands.ROOT", clone)
    assert main(["archive", "--check"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"quicbed: {clone}: git takes no clone of another user; make the archive as the user")
    assert line.endswith(f"`git config --global --add safe.directory {clone}`")
    monkeypatch.delenv("GIT_TEST_ASSUME_DIFFERENT_OWNER")
    assert main(["archive", "--check"]) == 0
    assert not (clone / "artifacts" / "archive").exists()


def test_a_copy_inside_another_clone_is_not_taken_for_it(clone: Path, tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", str(tmp_path))
    shutil.rmtree(clone / ".git")
    with pytest.raises(archive.ArchiveError, match="is not a git clone but inside that of"):
        made(clone, tmp_path / "out")


def test_a_committed_file_is_not_replaced(clone: Path, tmp_path: Path) -> None:
    (clone / "SHA256SUMS").touch()
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "--message", "One more")
    with pytest.raises(archive.ArchiveError, match="SHA256SUMS: the archive has something else of this name"):
        made(clone, tmp_path / "out")


def test_a_lock_that_is_missing_is_named(clone: Path) -> None:
    (clone / "workflow" / "sources" / "Cargo.lock").unlink()
    with pytest.raises(BuildError, match=r"Cargo\.lock: cannot be read"):
        bom.text(Project(clone))


def test_results_of_an_archive_are_drawn_without_published_data(tmp_path: Path) -> None:
    done = subprocess.run(["make", "-n", "archive"], cwd=ROOT, capture_output=True, text=True, check=True)
    (snakemake,) = (line for line in done.stdout.splitlines() if "snakemake" in line)
    assert snakemake.endswith('figures --config "published={}" "pictures=[svg,pdf,png]"')
    file = tmp_path / "config.yaml"
    text = (ROOT / "config" / "config.yaml").read_text(encoding="utf-8")
    file.write_text(f"{text}\npublished: {{highway: somewhere}}\n", encoding="utf-8")
    assert read_config(file).published == {"highway": "somewhere"}
    assert read_config(file, {"published": {}}).published == {}


def test_the_command_prints_archive_size_and_checksum(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("quicbed.cli.commands.ROOT", clone)
    assert main(["archive", "--out", str(tmp_path)]) == 0
    (file,) = tmp_path.glob("*.tar.gz")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert capsys.readouterr().out == f"{file}: {file.stat().st_size / 1e6:.1f} MB, SHA-256 {digest}\n"
    (clone / "run").unlink()
    assert main(["archive", "--out", str(tmp_path)]) == 1
    assert "not committed: D run; commit, stash or ignore what has changed" in capsys.readouterr().err
