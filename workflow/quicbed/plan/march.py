"""Builds for more than the least processor: what compilers are told, what that identifies, and who cannot run it.

A build is named by its flavour, and by flavour and instruction set, as `stock@native` or `stock@x86-64-v3`, where it is
for processors that have more than every x86-64 has. Libraries' own build systems drop, reorder and overwrite compiler
flags, so compilers for C and C++ get theirs from programs of the same names that stand before them on the PATH and put
it last; rustc and go take it from the environment. What libraries have in assembler, and choose at run time by what the
processor has, is the same in every build.
"""

from __future__ import annotations

import copy
import fcntl
import os
import platform
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

from quicbed.base import durable
from quicbed.base.hashing import digest
from quicbed.config.model import Library, March, Project, Side

# Frame pointers let perf walk stacks cheaply; they are the same in every flavour.
RUSTFLAGS = "-C force-frame-pointers=yes"

NATIVE: March = "native"

_V2 = frozenset({"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"})
_V3 = _V2 | {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
LEVELS: Mapping[str, frozenset[str]] = {"x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4}
"""Flags of /proc/cpuinfo that a processor of a level has (System V ABI for AMD64, "Processor architecture")."""

EXTENSIONS = _V4 | set(
    """
    3dnowprefetch adx aes amx_bf16 amx_complex amx_fp16 amx_int8 amx_tile avx512_4fmaps avx512_4vnniw avx512_bf16
    avx512_bitalg avx512_fp16 avx512_vbmi2 avx512_vnni avx512_vp2intersect avx512_vpopcntdq avx512er avx512ifma avx512pf
    avx512vbmi avx_ifma avx_ne_convert avx_vnni avx_vnni_int16 avx_vnni_int8 cldemote clflushopt clwb clzero cmpccxadd
    enqcmd fma4 fsgsbase gfni hle hreset kl lwp movdir64b movdiri mwaitx pclmulqdq pku prefetchi ptwrite rdpid rdrand
    rdseed rtm serialize sgx sha512 sha_ni sm3 sm4 sse4a tbm tsxldtrk uintr vaes vpclmulqdq waitpkg wbnoinvd widekl xop
    xsavec xsaveopt xsaves
    """.split()  # noqa: SIM905
)
"""Flags of /proc/cpuinfo that `native` of gcc and LLVM depends on; the others tell of the kernel and mitigations."""

_MODEL = ("vendor_id", "cpu family", "model", "model name", "CPU implementer", "CPU part", "CPU variant")

_NOT_COMPILED = {
    "python": "is Python, and its packages come compiled for every processor",
    "external": "is compiled by the scripts of its folder",
}
"""Recipes that compile nothing of the library, and why."""

_TOLD = "QUICBED_MARCH"
"""Variable that nothing reads: cargo cannot see what the compiler for C is told, nor for which processor, and so it
compiles in a directory of its own (`quicbed.builds.recipes.cargo`)."""

_COMPILERS = ("cc", "c++", "gcc", "g++")


class Parts(NamedTuple):
    """What a build's name tells."""

    flavour: str
    march: March | None
    host: Side | None
    """Host of the testbed that it is made on; None: the controller."""


def parts(build: str) -> Parts:
    """Parts of a build's name; ValueError with those there are, where it names others."""
    before, plus, host = build.partition("+")
    flavour, at, level = before.partition("@")
    if at and level not in get_args(March):
        raise ValueError(f"`{build}`: `{level}` is no instruction set; known are {', '.join(get_args(March))}")
    if plus and host not in get_args(Side):
        raise ValueError(f"`{build}`: `{host}` is no host; known are {', '.join(get_args(Side))}")
    return Parts(flavour, cast(March, level) if at else None, cast(Side, host) if plus else None)


def named(flavour: str, level: March | None, host: Side | None = None) -> str:
    """Name of the build of a flavour for an instruction set, made on a host of the testbed."""
    return flavour + (f"@{level}" if level else "") + (f"+{host}" if host else "")


def unsupported_reason(library: Library) -> str | None:
    """Why a library cannot be built for an instruction set, or None if it can."""
    return _NOT_COMPILED.get(library.recipe)


def applied(project: Project, level: March | None, host: Side | None = None) -> Project:
    """The project with builds for an instruction set instead of those for every processor, made on a host."""
    if (level is None or level == project.march) and host == project.host:
        return project
    other = copy.copy(project)
    other.march, other.host = level, host
    if host or not level:
        return other  # the host knows what its compilers are to be told
    # of all libraries: what one has compiled is of use to others (quicbed.builds.compiled)
    other.libraries = {
        name: library.model_copy(update={"environment": library.environment | _environment(library.recipe, level)})
        for name, library in project.libraries.items()
    }
    return other


def _environment(recipe: str, level: March) -> dict[str, str]:
    """What the compiler of a recipe, other than one for C, takes from the environment."""
    if recipe == "cargo":
        return {"RUSTFLAGS": f"{RUSTFLAGS} -C target-cpu={level}", _TOLD: digest(identity(level))}
    if recipe == "go":
        reached = level if level != NATIVE else highest_level(processor()["flags"])
        return {"GOAMD64": reached.removeprefix("x86-64-") if reached else "v1"}
    return {}


def highest_level(flags: list[str]) -> str | None:
    """The highest level that a processor with these flags has; None for the least, and for other architectures."""
    return max((level for level, needed in LEVELS.items() if needed <= set(flags)), default=None)


def identified(project: Project) -> dict[str, Any]:
    """What builds of a project are a function of beside sources and recipes; nothing for those of every processor.

    A host's processor and compilers are known only when it is asked: its address stands for them.
    """
    if project.host:
        settings = project.testbed.hosts[project.host]
        jump = settings.jump and settings.jump.address
        level = {"march": project.march} if project.march else {}
        return {"host": {"address": settings.address, "port": settings.port, "jump": jump, **level}}
    return {"march": identity(project.march)} if project.march else {}


def identity(level: March) -> dict[str, Any]:
    """What a build for an instruction set is a function of beside all others: for `native`, the processor at hand."""
    return {"level": level} | ({"processor": processor()} if level == NATIVE else {})


def processor(cpuinfo: str | None = None) -> dict[str, Any]:
    """Model and instruction-set extensions (`flags`, sorted) of a processor out of /proc/cpuinfo, by default ours."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8") if cpuinfo is None else cpuinfo
    first = text.strip().split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    fields = {key.strip(): value.strip() for key, _, value in pairs}
    # all that Arm's kernels tell are extensions
    flags = set(fields["flags"].split()) & EXTENSIONS if "flags" in fields else set(fields.get("Features", "").split())
    model = {key: fields[key] for key in _MODEL if key in fields}
    return {**model, "flags": sorted(flags)}


def processor_problem(known: Mapping[str, Any], found: Mapping[str, Any]) -> str | None:
    """Why a processor (`processor`) cannot run a build (`identity` in its build.json), or None.

    What is made for one processor is refused by every other model, since it is tuned for the first.
    """
    level = known["level"]
    if level != NATIVE:
        missing = LEVELS[level] - set(found["flags"])
        return f"{level} needs {', '.join(sorted(missing))}, which the processor does not have" if missing else None
    wanted = known["processor"]
    if wanted == found:
        return None
    lost = sorted(set(wanted["flags"]) - set(found["flags"]))
    names = [str(one.get("model name") or one.get("CPU part") or "another one") for one in (wanted, found)]
    less = f", without {', '.join(lost)}" if lost else ""
    return f"it is made for {names[0]}, and the processor is {names[1]}{less}"


def builder_problem(level: March) -> str | None:
    """Why nothing can be built here for an instruction set, or None: every program is started once after its build."""
    if level != NATIVE and platform.machine() != "x86_64":
        return f"{level} is for x86-64, and this machine is {platform.machine()}"
    return processor_problem(identity(level), processor())


@contextmanager
def compilers(project: Project) -> Iterator[None]:
    """Have `cc`, `c++`, `gcc` and `g++` on the PATH compile for the project's instruction set while this lasts."""
    if project.march is None:
        yield
        return
    directory = (project.build / "work" / f"march-{project.march}").absolute()
    before = os.environ.get("PATH", os.defpath)
    directory.mkdir(parents=True, exist_ok=True)
    for name in _COMPILERS:
        program = shutil.which(name, path=_without(before, directory))
        if program is not None:
            text = f'#!/bin/sh\nexec {shlex.quote(program)} "$@" -march={project.march}\n'
            _write_program(directory / name, text)
    os.environ["PATH"] = os.pathsep.join((str(directory), before))
    try:
        yield
    finally:
        os.environ["PATH"] = before


def _without(path: str, directory: Path) -> str:
    """A PATH without our directories, one of which is there already where one build is made within another."""
    return os.pathsep.join(part for part in path.split(os.pathsep) if Path(part).parent != directory.parent)


def _write_program(file: Path, text: str) -> None:
    """Write a program unless it is there; whoever runs it meanwhile sees the old or the whole new one."""
    directory = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # builds start at the same time; closing ends the lock
        fcntl.flock(directory, fcntl.LOCK_EX)
        if not (file.is_file() and file.read_text(encoding="utf-8") == text):
            durable.write_text(file, text, mode=0o777)
    finally:
        os.close(directory)


def recorded(project: Project, name: str) -> dict[str, Any]:
    """What build.json tells of a build for an instruction set: its identity, and what compilers are told."""
    level = project.march
    if level is None:
        return {}
    told = {key: value for key, value in _environment(project.libraries[name].recipe, level).items() if key != _TOLD}
    return {"march": {**identity(level), "flags": {"cc": f"-march={level}", **told}}}
