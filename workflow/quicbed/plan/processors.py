"""Names of processors: generations of x86, by what /proc/cpuinfo tells, and their vector and crypto extensions."""

from __future__ import annotations

import re
from collections.abc import Iterable

_ZEN = "17:00-2f=Zen 17:50-5f=Zen 17:30-4f=Zen_2 17:60-af=Zen_2 19:00-0f=Zen_3 19:20-5f=Zen_3 19:10-1f=Zen_4"
_ZEN_LATER = "19:60-af=Zen_4 1a:00-4f=Zen_5 1a:60-7f=Zen_5 1a:d0-d7=Zen_5 1a:50-5f=Zen_6 1a:80-cf=Zen_6"
_INTEL = """
    06:2a=Sandy_Bridge 06:2d=Sandy_Bridge 06:3a=Ivy_Bridge 06:3e=Ivy_Bridge 06:3c=Haswell 06:3f=Haswell 06:45-46=Haswell
    06:3d=Broadwell 06:47=Broadwell 06:4f=Broadwell 06:56=Broadwell 06:4e=Skylake 06:5e=Skylake 06:8e=Kaby_Lake
    06:9e=Kaby_Lake 06:a5-a6=Comet_Lake 06:6a=Ice_Lake 06:6c=Ice_Lake 06:7d-7e=Ice_Lake 06:a7=Rocket_Lake
    06:8c-8d=Tiger_Lake 06:97=Alder_Lake 06:9a=Alder_Lake 06:be=Alder_Lake 06:b7=Raptor_Lake 06:ba=Raptor_Lake
    06:bf=Raptor_Lake 06:8f=Sapphire_Rapids 06:cf=Emerald_Rapids 06:ad-ae=Granite_Rapids 06:af=Sierra_Forest
    06:aa=Meteor_Lake 06:ac=Meteor_Lake 06:bd=Lunar_Lake 06:b5=Arrow_Lake 06:c5-c6=Arrow_Lake 06:cc=Panther_Lake
"""


def _ranges(text: str) -> list[tuple[int, range, str]]:
    """`family:first-last=Name` in hexadecimal, a word each, as (family, models, name)."""
    found = []
    for word in text.split():
        numbers, _, name = word.partition("=")
        family, _, models = numbers.partition(":")
        first, _, last = models.partition("-")
        found.append((int(family, 16), range(int(first, 16), int(last or first, 16) + 1), name.replace("_", " ")))
    return found


_GENERATIONS = {"AuthenticAMD": _ranges(f"{_ZEN} {_ZEN_LATER}"), "GenuineIntel": _ranges(_INTEL)}
"""Families and models (CPUID leaf 1) of a maker, as the makers' manuals and the kernel's headers name them."""

_X86 = re.compile(r"(\S+) family (\d+) model (\d+)(?: stepping (\d+))?")

_CASCADE_LAKE, _COOPER_LAKE = 5, 10
"""Least stepping, of the model that Skylake servers have too."""

_SHOWN = {
    "AES": {"aes", "zvkned"},
    "VAES": {"vaes"},
    "PMULL": {"pmull"},
    "SHA": {"sha_ni", "sha2"},
    "AVX2": {"avx2"},
    "AVX-512": {"avx512f"},
    "AVX10": {"avx10"},
    "SVE": {"sve"},
    "SVE2": {"sve2"},
    "LASX": {"lasx"},
    "V": {"v"},
}
"""Extensions that captions name, by flags one of which is enough."""


def generation(processor: str) -> str:
    """The generation of a processor by family, model and stepping (`Host.processor`); its numbers if it has no name."""
    found = _X86.fullmatch(processor)
    if found is None:
        return processor
    maker, family, model = found[1], int(found[2]), int(found[3])
    if (maker, family, model) == ("GenuineIntel", 6, 0x55):
        stepping = int(found[4] or 0)
        return "Cooper Lake" if stepping >= _COOPER_LAKE else "Cascade Lake" if stepping >= _CASCADE_LAKE else "Skylake"
    names = (name for own, models, name in _GENERATIONS.get(maker, ()) if own == family and model in models)
    return next(names, processor.removeprefix(f"{maker} "))


def named_extensions(flags: Iterable[str]) -> str:
    """Vector and crypto extensions among flags, in a few words."""
    own = set(flags)
    return ", ".join(name for name, enough in _SHOWN.items() if own & enough) or "no vector extensions"


def described(model: str | None, processor: str | None, extensions: str | None) -> str | None:
    """A processor in a line of text (the fields of `quicbed.plan.host.Host`), of two hosts where both are told."""
    if model is None or processor is None:
        return model
    parts = [dict.fromkeys(map(generation, processor.split(" / ")))]
    if extensions is not None:
        parts.append(dict.fromkeys(named_extensions(one.split()) for one in extensions.split(" / ")))
    return f"{model} ({'; '.join(' / '.join(one) for one in parts)})"
