"""Builds for an instruction set: what compilers are told, what identifies such builds, and where they are refused."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

import fakeproject
from clone import ROOT
from fakeproject import runs
from quicbed.builds import components, making
from quicbed.builds.kit import BuildError
from quicbed.builds.recipes import go
from quicbed.config.model import ConfigError, Project, parse_model
from quicbed.config.model import Testbed as Settings
from quicbed.plan import march
from quicbed.plan.built import Build, InstructionSet
from quicbed.plan.cells import build_of, builds_needed, cells_of
from quicbed.plan.factors import unsupported_reason
from quicbed.store import runs as tables
from quicbed.testbed.deploy import march_problem
from quicbed.wire import proof

PROJECT = Project(ROOT)
X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="levels are those of x86-64")

EPYC = """processor	: 0
vendor_id	: AuthenticAMD
cpu family	: 25
model		: 1
model name	: AMD EPYC 7543 32-Core Processor
cpu MHz		: 2794.750
flags		: fpu cx16 lahf_lm popcnt pni ssse3 sse4_1 sse4_2 avx avx2 bmi1 bmi2 f16c fma abm movbe xsave vaes ibpb

processor	: 1
vendor_id	: AuthenticAMD
"""
march_of = march.processor
ARM = "processor	: 0\nFeatures	: fp asimd aes sha2\nCPU implementer	: 0x41\nCPU part	: 0xd0c\n"


def test_a_build_is_named_by_flavour_and_instruction_set() -> None:
    for name, parts in (
        ("stock", march.Parts("stock", None, None)),
        ("noop@x86-64-v3", march.Parts("noop", "x86-64-v3", None)),
        ("pq@native+server", march.Parts("pq", "native", "server")),
        ("stock+client", march.Parts("stock", None, "client")),
    ):
        assert march.parts(name) == parts
        assert march.named(*parts) == name
    with pytest.raises(ValueError, match="`stock\\+middle`: `middle` is no host; known are client, server"):
        march.parts("stock+middle")
    with pytest.raises(ValueError, match="`stock@v3`: `v3` is no instruction set; known are native, x86-64-v2"):
        march.parts("stock@v3")
    with pytest.raises(BuildError, match="quinn: `stock@`: `` is no instruction set"):
        making.build_id(PROJECT, "quinn", "stock@")


def test_a_processor_is_its_model_and_what_compilers_use() -> None:
    found = march.processor(EPYC)
    assert found.pop("flags") == sorted(march.LEVELS["x86-64-v3"] | {"vaes"})  # and none of the kernel's mitigations
    assert found == {
        "vendor_id": "AuthenticAMD",
        "cpu family": "25",
        "model": "1",
        "model name": "AMD EPYC 7543 32-Core Processor",
    }
    assert march.processor(EPYC.replace("2794.750", "1500.000")) == march.processor(EPYC)
    assert march.processor(ARM)["flags"] == ["aes", "asimd", "fp", "sha2"]
    assert march.processor() == march.processor(Path("/proc/cpuinfo").read_text(encoding="utf-8"))


def test_levels_contain_each_other() -> None:
    assert march.LEVELS["x86-64-v2"] < march.LEVELS["x86-64-v3"] < march.LEVELS["x86-64-v4"] < march.EXTENSIONS
    assert march.highest_level(march.processor(EPYC)["flags"]) == "x86-64-v3"
    assert march.highest_level(sorted(march.LEVELS["x86-64-v3"] - {"avx2"})) == "x86-64-v2"
    assert march.highest_level([]) is None


def test_a_processor_that_lacks_something_is_told_what() -> None:
    epyc = march.processor(EPYC)
    native = {"level": "native", "processor": epyc}
    assert march.processor_problem({"level": "x86-64-v3"}, epyc) is None
    assert march.processor_problem({"level": "x86-64-v4"}, epyc) == (
        "x86-64-v4 needs avx512bw, avx512cd, avx512dq, avx512f, avx512vl, which the processor does not have"
    )
    assert march.processor_problem(native, epyc) is None
    other = march.processor(EPYC.replace("7543 32-Core", "7551P 32-Core").replace(" vaes", ""))
    assert march.processor_problem(native, other) == (
        "it is made for AMD EPYC 7543 32-Core Processor, and the processor is AMD EPYC 7551P 32-Core Processor, "
        "without vaes"
    )


def test_builds_for_every_processor_are_as_if_there_were_no_others(tmp_path: Path) -> None:
    """The identity that ids are made of has nothing of it, on a testbed with builds for a processor too."""
    project = on(tmp_path, "native")
    for name, library in project.libraries.items():
        if library.external is None:
            for flavour in library.flavours:
                known = making.identity(project, name, flavour)
                assert set(known) == {
                    *("library", "flavour", "features", "environment", "crates"),
                    *("components", "recipe", "patches", "contents", "profile", "files"),
                }
                assert known["environment"] == library.environment
    for component, made in components.COMPONENTS.items():
        assert set(components.identity(project, component)) == {
            *("component", "package", "recipe", "options", "contents", "files", "needs"),
            *(("crates", "profile") if made.compiles else ()),
        }


def on(tmp_path: Path, level: str | None) -> Project:
    """This repository's configuration with a testbed whose builds are for an instruction set."""
    for name in ("config", "workflow"):
        ignored = shutil.ignore_patterns("target", "__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=ignored, dirs_exist_ok=True)
    text = f"kind: local\nbuild: {{march: {json.dumps(level)}}}\n"
    (tmp_path / "config" / "testbeds" / "own.yaml").write_text(text, encoding="utf-8")
    return Project(tmp_path, {"testbed": "own"})


@X86
def test_an_instruction_set_makes_another_build_of_other_components(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, flavour in (("quinn", "stock"), ("openssl", "pq"), ("quic-go", "noop"), ("quiche", "stock")):
        plain = making.build_id(PROJECT, name, flavour)
        level = making.build_id(PROJECT, name, f"{flavour}@x86-64-v3")
        native = making.build_id(PROJECT, name, f"{flavour}@native")
        assert plain.startswith(f"{name}-{flavour}-")
        assert level.startswith(f"{name}-{flavour}@x86-64-v3-")
        assert native.startswith(f"{name}-{flavour}@native-")
        assert len({one[-12:] for one in (plain, level, native)}) == 3
        monkeypatch.setattr(march, "processor", lambda cpuinfo=EPYC: march_of(cpuinfo))
        assert making.build_id(PROJECT, name, f"{flavour}@native") != native  # that of another machine
        assert making.build_id(PROJECT, name, f"{flavour}@x86-64-v3") == level
        assert making.build_id(PROJECT, name, flavour) == plain
        monkeypatch.undo()
    applied = march.applied(PROJECT, "x86-64-v3")
    for component in components.COMPONENTS:
        assert components.directory(applied, component) != components.directory(PROJECT, component)
    # a build that is made within another is for the same processors
    assert making.build_id(applied, "tcp-tls", "stock") == making.build_id(PROJECT, "tcp-tls", "stock@x86-64-v3")


@X86
def test_compilers_other_than_those_for_c_are_told_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    level, native = (march.applied(PROJECT, one).libraries for one in ("x86-64-v3", "native"))
    assert level["quinn"].environment["RUSTFLAGS"] == "-C force-frame-pointers=yes -C target-cpu=x86-64-v3"
    assert native["quinn"].environment["RUSTFLAGS"] == "-C force-frame-pointers=yes -C target-cpu=native"
    # what the library's description says stays
    assert PROJECT.libraries["quiche"].environment.items() <= level["quiche"].environment.items()
    assert go.environment(level["quic-go"].environment)["GOAMD64"] == "v3"
    assert level["openssl"].environment == PROJECT.libraries["openssl"].environment
    monkeypatch.setattr(march, "processor", lambda: march_of(EPYC))
    assert march.applied(PROJECT, "native").libraries["quic-go"].environment["GOAMD64"] == "v3"
    assert march.recorded(march.applied(PROJECT, "native"), "quic-go") == {
        "march": {
            "level": "native",
            "processor": march_of(EPYC),
            "flags": {"cc": "-march=native", "GOAMD64": "v3"},
        }
    }
    assert march.recorded(PROJECT, "quic-go") == {}


def macros(*argv: str) -> set[str]:
    """Macros of instruction sets that a compiler defines."""
    done = subprocess.run([*argv, "-dM", "-E", "-x", "c", os.devnull], capture_output=True, text=True, check=True)
    return {line.split()[1] for line in done.stdout.splitlines()} & {"__AVX2__", "__AVX512F__", "__SSE4_2__"}


@X86
@pytest.mark.parametrize("compiler", ["cc", "c++", "gcc", "g++"])
def test_compilers_for_c_get_the_instruction_set_last(tmp_path: Path, compiler: str) -> None:
    project = Project(ROOT, {"paths": {"build": str(tmp_path)}})
    before = os.environ["PATH"]
    assert macros(compiler) == set()
    with march.compilers(project):
        assert os.environ["PATH"] == before  # nothing for every processor
    with march.compilers(march.applied(project, "x86-64-v3")):
        assert macros(compiler) == macros(compiler, "-march=x86-64") == {"__AVX2__", "__SSE4_2__"}
        with march.compilers(march.applied(project, "x86-64-v3")):  # a component within a build
            assert macros(compiler) == {"__AVX2__", "__SSE4_2__"}
        with march.compilers(march.applied(project, "x86-64-v2")):
            assert macros(compiler) == {"__SSE4_2__"}
        assert macros(compiler) == {"__AVX2__", "__SSE4_2__"}
    assert os.environ["PATH"] == before
    assert macros(compiler) == set()


def test_what_cannot_be_built_here_is_refused_before_anything_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(ROOT, {"paths": {"build": str(tmp_path)}})
    monkeypatch.setattr(march, "processor", lambda: march_of(EPYC))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    with pytest.raises(BuildError, match=r"quinn-stock@x86-64-v4-\w{12} cannot be built here: march: x86-64-v4 needs"):
        making.build(project, "quinn", "stock@x86-64-v4", jobs=1, log=tmp_path / "log")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(BuildError, match="x86-64-v3 is for x86-64, and this machine is aarch64"):
        making.build(project, "quinn", "stock@x86-64-v3", jobs=1, log=tmp_path / "log")
    with pytest.raises(BuildError, match="aioquic cannot be built for an instruction set: is Python, and its packages"):
        making.build(project, "aioquic", "stock@native", jobs=1, log=tmp_path / "log")
    assert not (tmp_path / "log").exists()


def test_a_host_that_cannot_run_a_build_is_told_why(tmp_path: Path) -> None:
    assert march_problem(tmp_path, EPYC) is None  # certificates
    file = tmp_path / "build.json"
    made = Build(build="b", library="quinn", flavour="stock", version="1")
    made.write(file)
    assert march_problem(tmp_path, EPYC) is None
    made.model_copy(update={"march": InstructionSet(level="x86-64-v4")}).write(file)
    assert (march_problem(tmp_path, EPYC) or "").startswith("x86-64-v4 needs avx512bw")
    made.model_copy(update={"march": InstructionSet(level="x86-64-v3")}).write(file)
    assert march_problem(tmp_path, EPYC) is None
    file.write_text("{}", encoding="utf-8")
    assert march_problem(tmp_path, EPYC) == "build.json: key 'build' is missing"


def test_a_testbed_has_an_instruction_set_and_a_variant_another(tmp_path: Path) -> None:
    project = on(tmp_path, "x86-64-v2")
    first, second = project.experiments["hardware"].variants
    assert [build_of(project, "quinn", variant, "client") for variant in (first, second)] == [
        "stock@x86-64-v2",
        "stock@native",
    ]
    assert [build_of(project, "aioquic", variant, "client") for variant in (first, second)] == ["stock", "stock@native"]
    needed = builds_needed(project, ["hardware"])
    assert {("quinn", "stock@native"), ("quinn", "stock@x86-64-v2"), ("aioquic", "stock")} < set(needed)
    assert ("aioquic", "stock@native") not in needed  # which cannot be
    assert ("quinn", "stock@x86-64-v2") in builds_needed(project, ["aead-goodput"])
    assert builds_needed(PROJECT, ["hardware"]) != needed
    build = Build(build="b", library="quinn", flavour="stock@native", version="1")
    cells = cells_of(project, "hardware", "", {("quinn", "stock@native"): build})
    (cell,) = (one for one in cells if one.client.library == "quinn" and one.label == second.label)
    assert cell.client.as_dict() == {
        "library": "quinn",
        "flavour": "stock",
        "version": "1",
        "build": "b",
        "march": "native",
    }
    assert "march" not in cells_of(PROJECT, "hardware", "", {})[0].client.as_dict()


def test_what_is_not_compiled_here_says_so() -> None:
    library = PROJECT.libraries["aioquic"]
    variant = PROJECT.experiments["hardware"].variants[1]
    reason = "aioquic: is Python, and its packages come compiled for every processor"
    assert unsupported_reason(library, variant, "any") == reason
    compiled = [one for one in PROJECT.libraries.values() if march.unsupported_reason(one) is None]
    assert not any(one.recipe in ("python", "external") for one in compiled)
    assert len(compiled) > 8


def test_an_unknown_instruction_set_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match=r"x\.yaml: build\.march: .*'x86-64-v4'"):
        parse_model(Settings, {"kind": "local", "build": {"march": "x86-64-v5"}}, "x.yaml")


EXPERIMENT = """
title: Test
source: none
question: none
workload: {kind: bulk}
link: {mode: wire}
libraries: [quiche, aioquic]
variants:
  - {label: one, cipher: aes-128-gcm}
  - {label: two, cipher: aes-128-gcm, march: native}
baseline: one
aa: false
scales:
  tiny: {bytes: 1000, blocks: 1, timeout_s: 5}
"""


class Proven:
    """What an examined capture says, where the capture itself is not the subject of a test."""

    def model_dump(self, mode: str) -> dict[str, object]:
        return {"mode": mode, "server_to_client": {}, "client_to_server": {}}


def test_runs_tell_what_they_were_built_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "examine", lambda *_args, **_options: Proven())
    monkeypatch.setattr(proof, "check", lambda *_args: [])
    project = fakeproject.make(tmp_path, EXPERIMENT, monkeypatch)
    fakeproject.run(project)
    seen = {(run["cell"]["slug"], run["client"]["build"], run["client"].get("march")) for run in runs(project)}
    assert seen == {
        ("quiche-one", "quiche-stock", None),
        ("quiche-two", "quiche-stock@native", "native"),
        ("aioquic-one", "aioquic-stock", None),
    }
    (excluded,) = runs(project, "test/*/excluded")
    assert excluded["reason"].startswith("aioquic: is Python")
    assert excluded["client"]["march"] == "native"
    table = tables.table(project.raw)
    measured = table.filter(table["block"].is_not_null()).select("slug", "client_march", "server_march").unique()
    assert sorted(measured.rows(), key=str) == [
        ("aioquic-one", None, None),
        ("quiche-one", None, None),
        ("quiche-two", "native", "native"),
    ]
