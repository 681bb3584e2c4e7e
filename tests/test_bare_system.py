"""The commands of the documents, as written there, on a system where nothing has been installed.

Each runs in a clone of the commit under test inside a minimal Debian, as a visitor who may not become root or as root.
What measures is cut to a few small downloads through the clone's configuration, not through the commands.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import bareroot
from bareroot import USER, BareRoot

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(3000)]

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/artifact-evaluation.md")
# Spaces and letters that are not ASCII, as home directories have them.
PLACE = f"/home/{USER}/Übung mit QUIC/quicbed"

LOOKING = (
    "make figures",
    ".venv/bin/python -m quicbed claims",
    ".venv/bin/python -m quicbed claims fig3-aes-equal",
    ".venv/bin/python -m quicbed --help",
)
DEPOSITING = ("make archive",)
UNPACKING = ("tar -xzf quicbed-*.tar.gz && cd quicbed-*/", "sha256sum --check --quiet SHA256SUMS && echo complete")
COMPARING = (
    "make figures",
    "diff -r --brief results/reference/tables artifacts/reference/tables && echo same",
)
MEASURING = (
    "make figures",
    "make setup",
    ".venv/bin/python -m quicbed doctor",
    'make all SCALE=tiny CONFIG="experiments=[aead-goodput] libraries=[aioquic,quinn]"',
    ".venv/bin/python -c 'import json, sys; print(json.dumps(json.load(open(sys.argv[1]))[\"evidence\"], indent=1))' "
    "raw/local/proofs/*/quinn-noop-*.0/run.json",
    ".venv/bin/python -m quicbed dissect raw/reference artifacts/captures.parquet",
    'make test TESTS="tests/test_proof.py tests/test_capture.py tests/test_analysis.py tests/test_runs.py '
    'tests/test_reference.py"',
    'make all CONFIG="experiments=[aead-goodput] libraries=[aioquic,quinn]"',
    "make all",
    "make test",
    "make check",
    "make bench",
)


def words(command: str) -> str:
    """A command without what a line break in a document adds."""
    return re.sub(r"\s+", " ", command)


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareRoot]:
    """A minimal Debian 12, made once and removed afterwards."""
    if problem := bareroot.problem():
        pytest.fail(problem)
    with bareroot.made(tmp_path_factory.mktemp("bare") / "bookworm", "bookworm") as root:
        yield root


def expect(root: BareRoot, command: str, cwd: str, user: str = "root", **more: str) -> str:
    """Run a command that has to succeed; returns what it printed."""
    done = root.run(command, cwd=cwd, user=user, environment=more)
    assert done.code == 0, f"$ {command}\n{done.said[-6000:]}"
    assert "Traceback" not in done.said, f"$ {command}\n{done.said[-6000:]}"
    return done.said


def drawn(results: Path, suffix: str) -> set[str]:
    """Names of the figures that were drawn in a format."""
    return {file.stem for file in (results / "figures").glob(f"*.{suffix}")}


def test_every_command_of_the_documents_is_run_here_as_it_is_written() -> None:
    written = {words(command) for page in PAGES for command in bareroot.commands((ROOT / page).read_text("utf-8"))}
    run = {words(command) for command in (*LOOKING, *DEPOSITING, *UNPACKING, *COMPARING, *MEASURING)}
    assert written == run


def test_a_visitor_who_may_not_become_root_draws_the_figures_and_makes_the_archive(
    debian: BareRoot, tmp_path: Path
) -> None:
    with bareroot.copy(debian, tmp_path / "root") as root:
        refused = root.run("su -c true || test $(id -u) = 0", user=USER)
        assert refused.code != 0, "the visitor is, or can become, root"
        for program in ("tshark", "cc", "gcc", "cargo", "go", "chromium", "pip", "pip3", "ip", "tcpdump"):
            assert root.run(f"command -v {program}", user=USER).code != 0, f"a bare system has {program}"

        clone = root.clone(ROOT, PLACE, user=USER)
        said = {command: expect(root, command, PLACE, USER) for command in LOOKING}
        results = clone / "artifacts" / "reference"
        figures = drawn(results, "html")
        assert figures >= {"goodput-by-aead", "header-protection", "ttfb-by-kem", "cpu-shares", "pairwise"}
        assert not drawn(results, "svg")
        assert "no Chromium: figures are made as HTML only" in said["make figures"]
        # the handshake packet by packet comes from data that was dissected where there was tshark
        page = (results / "notebooks" / "quantum-of-quic.html").read_text(encoding="utf-8")
        assert "ClientHello" in page
        assert "EncryptedExtensions" in page
        assert (results / "report" / "index.html").stat().st_size > 100_000
        assert "fig3-aes-equal" in said[".venv/bin/python -m quicbed claims fig3-aes-equal"]

        for command in DEPOSITING:
            expect(root, command, PLACE, USER)
        (archive,) = (clone / "artifacts" / "archive").glob("quicbed-*.tar.gz")
        place = f"/home/{USER}/deposited"
        target = root.directory / place.lstrip("/")
        target.mkdir()
        archive.rename(target / archive.name)
        root.give(target, USER)
        unpack, check = UNPACKING
        assert expect(root, f"{unpack} && {check}", place, USER).endswith("complete\n")
        (inside,) = (path for path in target.iterdir() if path.is_dir())
        draw, compare = COMPARING
        expect(root, draw, f"{place}/{inside.name}", USER)
        assert expect(root, compare, f"{place}/{inside.name}", USER) == "same\n"


def cut(clone: Path) -> None:
    """Let the clone's configuration measure little, whatever scale is asked for, and commit that."""
    config = clone / "config" / "config.yaml"
    settings = yaml.safe_load(config.read_text(encoding="utf-8"))
    settings |= {"experiments": ["aead-goodput"], "libraries": ["aioquic"], "gate": {"retries": 0}}
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    file = clone / "config" / "experiments" / "aead-goodput.yaml"
    experiment = yaml.safe_load(file.read_text(encoding="utf-8"))
    for scale in experiment["scales"].values():
        scale |= {"bytes": 262144, "blocks": 2, "timeout_s": 60}
        scale.pop("min_blocks", None)
    file.write_text(yaml.safe_dump(experiment), encoding="utf-8")
    for line in ("config user.name Test", "config user.email test@example.org", "commit --all --quiet --message Cut"):
        subprocess.run(["git", "-C", str(clone), *line.split()], check=True)


def steps(recipe: str) -> list[str]:
    """The commands that a recipe for containers runs, without what concerns the image only."""
    text = (ROOT / recipe).read_text(encoding="utf-8")
    if recipe == "Containerfile":
        return re.findall(r"^RUN (.+)$", text, re.MULTILINE)
    post = text.partition("%post\n")[2].partition("\n%")[0]
    lines = (line.strip() for line in post.splitlines())
    return [line for line in lines if line and not line.startswith(("#", "cd ", "chmod "))]


def test_recipes_for_containers_take_the_same_steps_from_the_same_system() -> None:
    assert steps("Containerfile") == steps("quicbed.def")
    assert steps("Containerfile")[-1] == "make setup"
    bases = re.findall(r"(?mi)^from:? (?:docker.io/library/)?(\S+)$", (ROOT / "Containerfile").read_text("utf-8"))
    assert bases == re.findall(r"(?mi)^from: (\S+)$", (ROOT / "quicbed.def").read_text("utf-8"))
    assert re.fullmatch(r"debian:12-slim@sha256:[0-9a-f]{64}", bases[0])


def test_root_draws_builds_measures_and_tests(debian: BareRoot, tmp_path: Path) -> None:
    place = "/srv/quicbed"
    # the whole suite would not end within itself; all checks and benchmarks run where everything is built
    less = {"CHECKS": "ruff snakefmt", "BENCH": "goodput", "PYTEST_ADDOPTS": "-k 'citation_file or shipped_archives'"}
    with bareroot.copy(debian, tmp_path / "root") as root:
        clone = root.clone(ROOT, place)
        cut(clone)
        said: dict[str, str] = {}
        for command in MEASURING:
            said[command] = expect(root, command, place, **less)
            if command == "make figures":
                results = clone / "artifacts" / "reference"
                assert drawn(results, "html") == drawn(results, "svg") == drawn(results, "pdf")
                assert "goodput-by-aead" in drawn(results, "svg")
                # the containers' recipes, whose last step is the set-up; asked for again, it has nothing to do
                recipe = "".join(expect(root, step, place) for step in steps("Containerfile"))
                assert "installing Rust into .toolchains/" in recipe
                assert "installing Go into .toolchains/" in recipe
            elif command == "make setup":
                assert "installing" not in said[command]
            elif "libraries=[aioquic,quinn]" in command:
                assert drawn(clone / "artifacts", "svg") == {"goodput-by-aead"}
                assert (clone / "artifacts" / "report" / "index.html").is_file()
        proof = said[MEASURING[4]]
        assert '"payload_in_clear": true' in proof
        measured = list((clone / "raw" / "local" / "aead-goodput").glob("*/b*/*/run.json"))
        assert measured
