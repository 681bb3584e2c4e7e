"""conda environments of the rules: what a rule's command imports and runs is in the rule's environment.

conda has no part in it: a command runs with every module blocked that belongs to none of the packages listed (or to
what these require). That shows what an environment lacks, not that conda can install it.
"""

from __future__ import annotations

import ast
import importlib.metadata
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import fakeruns
from clone import ROOT, load_tool
from quicbed.analysis import dissect
from quicbed.importers import samples

PACKAGE = ROOT / "workflow" / "quicbed"
CONDA: ModuleType = load_tool(ROOT, "conda_environments")
SET_UP: ModuleType = load_tool(ROOT, "set_up")


@pytest.fixture(autouse=True)
def nothing_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command imports shows only where it has something to build."""
    monkeypatch.setenv("QUICBED_STORE", str(tmp_path / "store"))


# Rules

LIST_RULES = """
import json, sys
from pathlib import Path
from snakemake.api import SnakemakeApi
from snakemake.settings.types import ConfigSettings, OutputSettings, Quietness, ResourceSettings
config = json.loads(sys.argv[2])
with SnakemakeApi(OutputSettings(quiet={Quietness.ALL})) as api:
    opened = api.workflow(
        resource_settings=ResourceSettings(cores=1),
        config_settings=ConfigSettings(config=config),
        snakefile=Path(sys.argv[1]),
    )
    rules = [[rule.name, rule.conda_env and str(rule.conda_env), rule.shellcmd] for rule in opened._workflow.rules]
print(json.dumps(rules))
"""
# Builds on the hosts have a rule only where a testbed has hosts.
TESTBED = """
kind: ssh
build: {where: hosts}
hosts:
  server: {address: 192.0.2.1, interface: {name: eth0}, ip: 10.0.0.1}
  client: {address: 192.0.2.2, interface: {name: eth0}, ip: 10.0.0.2}
"""


@dataclass(frozen=True)
class Rule:
    """A rule with a command: its name, its environment file and the command, as written in the rule."""

    name: str
    environment: Path | None
    command: str

    @property
    def subcommand(self) -> str:
        words = self.command.split()
        assert words[:3] == ["python", "-m", "quicbed"], f"{self.name}: no command of quicbed: {self.command}"
        return words[3]


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rule]:
    """Every rule with a command, as Snakemake reads them."""
    copy = tmp_path_factory.mktemp("rules")
    for part in ("workflow", "config", "notebooks"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__", "target"))
    (copy / "config" / "testbeds" / "hosts.yaml").write_text(TESTBED, encoding="utf-8")
    found: dict[str, Rule] = {}
    for config in ({}, {"testbed": "hosts", "experiments": ["hardware"]}):
        argv = [sys.executable, "-c", LIST_RULES, str(copy / "workflow" / "Snakefile"), json.dumps(config)]
        done = subprocess.run(argv, cwd=copy, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        for name, environment, command in json.loads(done.stdout.splitlines()[-1]):
            if command is not None:
                file = environment and (ROOT / "workflow" / "rules" / environment).resolve()
                found[name] = Rule(name, file, command)
    return found


def test_every_rule_with_a_command_has_an_environment(rules: dict[str, Rule]) -> None:
    assert {"build", "host_builds", "import_published", "measure", "report_reference"} <= set(rules)
    for rule in rules.values():
        assert rule.environment, f"{rule.name} has no `conda:`"
        assert rule.environment.is_file(), f"{rule.name}: {rule.environment} is missing"
    used = {rule.environment for rule in rules.values()}
    assert used == set((ROOT / "envs").glob("*.yaml"))


# Modules


def listed(environment: Path) -> set[str]:
    """Distributions of Python that an environment lists, by PyPI's names."""
    names = {conda: name for name, conda in CONDA.CONDA_NAMES.items()}
    found = set()
    for dependency in yaml.safe_load(environment.read_text(encoding="utf-8"))["dependencies"]:
        if isinstance(dependency, dict):
            found |= {canonicalize_name(Requirement(line).name) for line in dependency["pip"]}
            continue
        name = dependency.split()[0]
        if name not in CONDA.PROGRAMS and name != "python":
            found.add(canonicalize_name(names.get(name, name)))
    return found


def with_dependencies(names: Iterable[str]) -> set[str]:
    """Distributions and all they require, as installed here."""
    found: set[tuple[str, str]] = set()
    waiting = [(canonicalize_name(name), "") for name in names]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in found:
            continue
        found.add((name, extra))
        for line in importlib.metadata.requires(name) or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                waiting += [(canonicalize_name(requirement.name), one) for one in ("", *requirement.extras)]
    return {name for name, _ in found}


# Python imports it as it starts, in the processes of a command too: it blocks modules and notes those of quicbed.
GUARD = """
import atexit, importlib.util, os, pathlib, sys
BLOCKED = {blocked!r}
class Finder:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
def note():
    names = sorted(name for name in list(sys.modules) if name.partition(".")[0] == "quicbed")
    pathlib.Path({loaded!r}, str(os.getpid())).write_text("\\n".join(names))
ask = importlib.util.find_spec
# who only asks whether there is a module gets an answer
importlib.util.find_spec = lambda name, package=None: None if name.partition(".")[0] in BLOCKED else ask(name, package)
sys.meta_path.insert(0, Finder)
atexit.register(note)
"""


@dataclass
class Guarded:
    """An environment in which only some distributions can be imported."""

    directory: Path
    offered: set[str]
    environment: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        allowed = with_dependencies(self.offered) | {"quicbed"}
        owners = importlib.metadata.packages_distributions()
        blocked = {name for name, own in owners.items() if not {canonicalize_name(one) for one in own} & allowed}
        (self.directory / "loaded").mkdir(parents=True)
        guard = GUARD.format(blocked=blocked, loaded=str(self.directory / "loaded"))
        (self.directory / "sitecustomize.py").write_text(guard, encoding="utf-8")
        search = os.pathsep.join((str(self.directory), str(ROOT / "workflow")))
        self.environment = {**os.environ, "PYTHONPATH": search, "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, *argv: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *argv], cwd=ROOT, env=self.environment | more, capture_output=True, text=True
        )

    @property
    def loaded(self) -> set[str]:
        """Modules of quicbed that the commands so far have loaded."""
        files = (self.directory / "loaded").iterdir()
        return {name for file in files for name in file.read_text(encoding="utf-8").split()}


# Imports inside functions of modules that a command loads without ever calling these functions, and why not.
NOT_CALLED = {
    ("measure", "clang.native"): "only a build with cargo needs it",
    ("certificates", "clang.native"): "only a build with cargo needs it",
}


def file_of(module: str) -> Path | None:
    place = ROOT.joinpath("workflow", *module.split("."))
    files = (place / "__init__.py", place.with_suffix(".py"))
    return next((file for file in files if file.is_file()), None)


def inner_imports(module: str) -> set[str]:
    """What functions of a module of quicbed import, and the recipes, which are imported by name."""
    file = file_of(module)
    assert file, module
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found: set[str] = set()
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in (inner for function in functions for inner in ast.walk(function)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                own = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
                base = ".".join([*own[: len(own) - node.level + 1], *filter(None, [node.module])])
            inside = {f"{base}.{alias.name}" for alias in node.names}
            found |= {base, *(name for name in inside if base.startswith("quicbed") and file_of(name))}
        elif isinstance(node, ast.Attribute) and node.attr == "import_module" and module == "quicbed.builds.making":
            found |= {f"{module}.{recipe.stem}" for recipe in file.parent.glob("[a-z]*.py")}
    return {name for name in found if name.partition(".")[0] not in sys.stdlib_module_names}


def import_all(guarded: Guarded, subcommand: str) -> None:
    """Import what the modules that a command has loaded import inside functions, and so on."""
    done: set[str] = set()
    # the command line has each command's imports in a function; the command itself has made those it needs
    while (
        modules := {name for name in guarded.loaded if file_of(name)}
        - done
        - {"quicbed.cli.commands", "quicbed.__main__"}
    ):
        done |= modules
        inside = {name for one in modules for name in inner_imports(one)}
        wanted = sorted(name for name in inside if name != "quicbed" and (subcommand, name) not in NOT_CALLED)
        ran = guarded.run("-c", "import sys\nfor name in sys.argv[1:]:\n    __import__(name)", *wanted)
        assert ran.returncode == 0, f"{', '.join(wanted)}: {ran.stderr}"


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few runs, and captured handshakes."""
    directory = tmp_path_factory.mktemp("environments") / "raw"
    for experiment in fakeruns.EXPERIMENTS:
        fakeruns.write_campaign(directory, experiment, blocks=2)
    quiche = {"library": "quiche", "flavour": "pq", "version": "1", "build": "quiche-pq-000000000001"}
    variant = {"group": "kyber768", "signature": "rsa-2048"}
    fakeruns.write_captured(directory, "quiche", client=quiche, server=quiche, variant=variant)
    return directory


@dataclass(frozen=True)
class Work:
    """How a command is really run."""

    arguments: list[str]
    """With {here} for a directory of the test and {raw} for the runs."""
    ends: str | None = None
    """What it says of something that is not here and ends it early; what its functions import is then tried apart."""
    prepare: Callable[[Path, Path], None] | None = None
    """Makes what it needs in the directory."""
    says: str = ""
    """What it says when all went well, of a command that goes on without what fails."""


def stub_cargo(directory: Path, raw: Path) -> None:
    """A cargo that fetches nothing."""
    file = directory / "bin" / "cargo"
    file.parent.mkdir()
    file.write_text('#!/bin/sh\nfor last; do :; done\nmkdir -p "$last"\n', encoding="utf-8")
    file.chmod(0o755)


def write_published(directory: Path, raw: Path) -> None:
    (directory / "result.json").write_text(
        json.dumps(samples.result_json({("quiche", "quiche"): [100.0, 200.0]})), encoding="utf-8"
    )


def dissect_before(directory: Path, raw: Path) -> None:
    dissect.write(raw, directory / "artifacts" / "tables" / dissect.FILE, 1)


NOTEBOOKS = ["notebooks/quantum-of-quic.ipynb", "notebooks/quic-on-the-highway.ipynb", "--published"]

# By the command of the rule. A rule with another command has to be added here.
WORK: dict[str, Work] = {
    # to the end, but for the network
    "sources": Work(["--log", "{here}/log"], prepare=stub_cargo),
    # up to where they miss the sources
    "build": Work(["quiche", "stock", "--log", "{here}/log"], "is not a fetched source", prepare=stub_cargo),
    "component": Work(["liboqs", "--log", "{here}/log"], "is not a fetched source", prepare=stub_cargo),
    # to the end; those of post-quantum algorithms need OpenSSL, which `component` builds
    "certificates": Work(["ecdsa-p-256", "--log", "{here}/log"]),
    # up to where they miss hosts that builds are to be made on, and certificates
    "host-builds": Work(["--log", "{here}/log"], ""),
    "measure": Work(["aead-goodput", "--marker", "{here}/marker"], "certificate"),
    # to the end
    "tables": Work(["{raw}", "{here}/runs.parquet"]),
    "dissect": Work(["{raw}", "{here}/captures.parquet", "--jobs", "1"]),
    "draw": Work(
        ["aead-goodput", "{raw}", "{here}/artifacts", "--messages", "{here}/log"],
        says="figure goodput-by-aead is ready",
    ),
    "verdicts": Work(["{raw}", "{here}/verdicts.json"]),
    "notebooks": Work(["{raw}", "{here}/artifacts", *NOTEBOOKS]),
    "report": Work(["{raw}", "{here}/artifacts", "--published"], prepare=dissect_before),
    "import": Work(["qir", "{here}/result.json", "--out", "{here}/out"], prepare=write_published),
}


def carried_out(
    subcommand: str, arguments: list[str], guarded: Guarded, here: Path, raw: Path
) -> subprocess.CompletedProcess[str]:
    """Run a command of quicbed in a guarded environment, with directories of its own."""
    paths = {"raw": str(here / "own"), "artifacts": str(here / "artifacts"), "build": str(here / "build")}
    argv = ["-m", "quicbed", "--config", json.dumps({"paths": paths}), subcommand]
    path = os.pathsep.join((str(here / "bin"), os.environ["PATH"]))
    return guarded.run(*argv, *(word.format(here=here, raw=raw) for word in arguments), PATH=path)


def complete(done: subprocess.CompletedProcess[str], work: Work) -> None:
    """A command did what it can here: it lacked nothing."""
    said = done.stdout + done.stderr
    assert "No module named" not in said, said
    assert "Traceback" not in said, said
    assert done.returncode == bool(work.ends), said
    assert (work.ends or work.says) in said, said


def test_every_command_of_a_rule_is_tried(rules: dict[str, Rule]) -> None:
    assert {rule.subcommand for rule in rules.values()} == set(WORK)


@pytest.mark.parametrize("subcommand", WORK)
def test_environment_of_a_rule_holds_what_its_command_imports(
    rules: dict[str, Rule], tmp_path: Path, raw: Path, subcommand: str
) -> None:
    work = WORK[subcommand]
    if work.prepare:
        work.prepare(tmp_path, raw)
    environments = {rule.environment for rule in rules.values() if rule.subcommand == subcommand}
    for number, environment in enumerate(sorted(filter(None, environments))):
        guarded = Guarded(tmp_path / f"guard-{number}", listed(environment))
        complete(carried_out(subcommand, work.arguments, guarded, tmp_path, raw), work)
        assert "quicbed.config.model" in guarded.loaded
        if work.ends is not None:
            import_all(guarded, subcommand)


# A command that imports as it starts, one that does in a function, and one that does in another process.
@pytest.mark.parametrize(
    ("subcommand", "package"),
    [
        ("tables", "polars"),
        ("build", "libclang"),
        ("measure", "asyncssh"),
        ("report", "jinja2"),
        ("dissect", "cryptography"),
    ],
)
def test_a_package_that_an_environment_lacks_is_noticed(
    rules: dict[str, Rule], tmp_path: Path, raw: Path, subcommand: str, package: str
) -> None:
    rule = next(rule for rule in rules.values() if rule.subcommand == subcommand)
    assert rule.environment
    offered = listed(rule.environment)
    assert package in offered
    guarded = Guarded(tmp_path / "guard", offered - {package})
    if prepare := WORK[subcommand].prepare:
        prepare(tmp_path, raw)
    done = carried_out(subcommand, WORK[subcommand].arguments, guarded, tmp_path, raw)

    def judge() -> None:
        complete(done, WORK[subcommand])
        import_all(guarded, subcommand)

    with pytest.raises(AssertionError, match="No module named"):
        judge()


# Programs

# What every Linux has, and conda's packages of Python bring.
UBIQUITOUS = {
    *(
        "/bin/sh",
        "cat",
        "chown",
        "cp",
        "df",
        "env",
        "grep",
        "link",
        "ln",
        "ls",
        "mkdir",
        "mkfifo",
        "mv",
        "python3",
        "realpath",
        "rm",
        "sh",
    ),
    *("sha256sum", "sleep", "stat", "sync", "tar", "test", "true", "type"),
}
# Rules that run what a module runs, by the names of their environments; none: only commands that no rule runs.
RUN_BY: dict[str, set[str]] = {
    "archive": set(),
    "builds": {"build"},
    "callgrind": {"measure"},
    "certificates": {"measure"},
    "driver": {"measure"},
    "generator": {"measure"},
    "hosted": {"host-builds"},
    "look": {"notebooks"},
    "importers": {"analysis"},
    "profile": {"measure"},
    "ping": {"measure"},
    "player": {"measure"},
    "revision": {"analysis", "measure", "notebooks"},
    "testbed": {"measure"},
    # captures are dissected as they are measured, again afterwards, and shown in a notebook
    "tshark": {"analysis", "measure", "notebooks"},
}
RUNNING = {
    *("Popen", "_output", "_run", "_spawn", "_version", "check_output", "find_program", "first_line"),
    *("require_tools", "run", "start", "which"),
}

COMMAND_LINES = {"argv", "ask", "command", "compiler", "make", "package", "quiet_ifb", "uml"}
"""Names of variables, in small letters."""


def first_words(node: ast.expr) -> Iterator[str]:
    """The program of a command line that is written out, as far as it can be seen."""
    match node:
        case ast.Constant(value=str(word)):
            yield word
        case ast.List(elts=[first, *_]) | ast.Tuple(elts=[first, *_]):
            yield from first_words(first)
        case ast.Starred(value=inner) | ast.BinOp(left=inner):
            yield from first_words(inner)


def programs_of(file: Path) -> set[str]:
    """Programs that a module runs or looks for: those known here, and others that this machine has."""
    words: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in RUNNING:
                # the first argument of a recipe's steps is their name
                steps = isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") == "steps"
                words |= {word for argument in node.args[steps:] for word in first_words(argument)}
                if name == "require_tools":
                    words |= {word for one in ast.walk(node) for word in first_words(one) if isinstance(one, ast.expr)}
        elif isinstance(node, ast.Assign) and {getattr(one, "id", "").lower() for one in node.targets} & COMMAND_LINES:
            words |= set(first_words(node.value))
    known = {command for one in (*CONDA.PROGRAMS.values(), *CONDA.MISSING.values()) for command in one.commands}
    system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
    return {word for word in words if word in known or (word.isprintable() and shutil.which(word, path=system))}


def package_of(command: str) -> str | None:
    """conda's package with a command; None where no channel has one. KeyError: it is listed nowhere."""
    for name, program in CONDA.PROGRAMS.items():
        if command in program.commands:
            return str(name)
    if any(command in missing.commands for missing in CONDA.MISSING.values()):
        return None
    raise KeyError(command)


def test_environments_have_the_programs_that_rules_run() -> None:
    files = {group: (ROOT / "envs" / f"{group}.yaml").read_text(encoding="utf-8") for group in CONDA.RULE_GROUPS}
    seen = set()
    for file in sorted(PACKAGE.rglob("*.py")):
        programs = programs_of(file) - UBIQUITOUS
        if not programs:
            continue
        names = file.relative_to(PACKAGE).with_suffix("").parts
        owner = next((name for name in names if name in RUN_BY), None)
        assert owner, f"{'/'.join(names)} runs {', '.join(sorted(programs))}: which rules run it?"
        for program, group in itertools.product(programs, RUN_BY[owner]):
            package = package_of(program)
            assert package is None or f"  - {package} >=" in files[group], f"{group}: {program} of {file.name}"
        seen |= programs
    # the scan does find what is there
    assert {"cargo", "cmake", "gcc", "git", "go", "ip", "iperf3", "perf", "tc", "tcpdump", "tshark", "zstd"} <= seen


def test_a_program_that_nothing_lists_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text('import subprocess\nsubprocess.run(["awk", "1"])\n', encoding="utf-8")
    assert programs_of(file) == {"awk"}
    with pytest.raises(KeyError):
        package_of("awk")


def test_what_debian_users_get_conda_users_get_or_are_told() -> None:
    listed_for_debian = {
        package for one in (*CONDA.PROGRAMS.values(), *CONDA.MISSING.values()) for package in one.debian
    }
    tools = {tool.package for tool in (*SET_UP.MEASURING_TOOLS, SET_UP.CHROMIUM)}
    assert tools - {"python3-venv"} <= listed_for_debian
    page = (ROOT / "docs" / "artifact-evaluation.md").read_text(encoding="utf-8")
    assert all(missing.reason for missing in CONDA.MISSING.values())
    for name, missing in CONDA.MISSING.items():
        assert {name, missing.commands[0]} & set(re.findall(r"[\w-]+", page)), name


def test_compilers_are_as_new_as_set_up_asks_for() -> None:
    for name, least in (("go", SET_UP.toolchains.MINIMUM_GO), ("rust", SET_UP.toolchains.MINIMUM_RUST)):
        assert CONDA.PROGRAMS[name].version == ">=" + ".".join(map(str, least))
    assert ".".join(map(str, SET_UP.MINIMUM_PYTHON)) == CONDA.PYTHON


# The catalog of Snakemake workflows


def test_the_catalog_of_workflows_finds_what_it_looks_for() -> None:
    """What the catalog documents for workflows with standardised usage."""
    for name in ("README.md", "LICENSE", "config/README.md", "config/config.yaml", "workflow/Snakefile"):
        assert (ROOT / name).is_file(), name
    readme = (ROOT / "README.md").read_text(encoding="utf-8").lower()
    assert "snakemake" in readme
    assert "workflow" in readme
    assert list((ROOT / "workflow" / "rules").glob("*.smk"))
    document = yaml.safe_load((ROOT / ".snakemake-workflow-catalog.yml").read_text(encoding="utf-8"))
    assert set(document) == {"usage"}
    usage = document["usage"]
    assert set(usage) == {"mandatory-flags", "software-stack-deployment", "report"}
    assert set(usage["mandatory-flags"]) == {"desc", "flags"}
    assert isinstance(usage["mandatory-flags"]["desc"], str)
    assert all(isinstance(flag, str) for flag in usage["mandatory-flags"]["flags"])
    deployment = usage["software-stack-deployment"]
    assert set(deployment) == {"conda", "apptainer", "apptainer+conda", "report"}
    assert all(isinstance(value, bool) for value in deployment.values())
    # `conda` is true as long as every rule has an environment, which a test above sees to
    assert deployment["conda"]
    assert deployment["report"] is usage["report"] is True
    # flags say what the profile of a clone does
    profile = yaml.safe_load((ROOT / "profiles" / "default" / "profile.yaml").read_text(encoding="utf-8"))
    assert usage["mandatory-flags"]["flags"] == ["--resources", *(f"{k}={v}" for k, v in profile["resources"].items())]
