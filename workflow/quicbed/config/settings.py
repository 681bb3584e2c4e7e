"""config/config.yaml: which experiments are measured, where, and at what scale."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field, field_validator

from quicbed.config.reading import Model, Name, parse_model, read_yaml

PublishedFormat = Literal["highway", "steps", "quic-benchmark", "qir"]


class Paths(Model):
    """Where files go, relative to the repository's root."""

    raw: str = Field("raw", description="Runs: append-only, nothing there is ever overwritten or deleted.")
    build: str = Field("build", description="Links to builds, and what is compiled; can be deleted and made again.")
    store: str | None = Field(
        None,
        description="Store of finished builds, components and third-party sources, which clones share; `~` is the home "
        "directory. Null: the variable QUICBED_STORE, else `quicbed` below XDG_CACHE_HOME or `~/.cache`, else `store` "
        "below the directory of builds, where there is no home directory of this user's own.",
    )
    artifacts: str = Field("artifacts", description="Tables, figures and report; can be deleted and made again.")


class PingLimits(Model):
    """Pings before every run of an experiment that asks for them, and what they must show."""

    count: int = Field(20, ge=2, le=1000, description="Pings at a time.")
    interval_ms: float = Field(10, ge=2, le=1000, description="Time between two pings in ms.")
    max_difference_ms: float = Field(
        2, gt=0, description="Largest difference in ms between their mean and the round-trip time of the cell."
    )
    max_deviation_ms: float = Field(1, gt=0, description="Largest standard deviation in ms.")
    attempts: int = Field(
        5, ge=1, le=100, description="How often they are repeated before the run is made none the less and marked."
    )


class Gate(Model):
    """When a run counts as contaminated by something else on the machine."""

    max_run_delay: float = Field(
        0.15,
        gt=0,
        description="Largest share of the run's wall time that the client or the server may have spent runnable but "
        "waiting for a processor (second field of /proc/PID/schedstat). Not asked of endpoints with several `threads`.",
    )
    max_foreign_cpu: float = Field(
        0.10,
        gt=0,
        description="Largest share of all processor time during the run that may have gone to anything but the two "
        "endpoints.",
    )
    retries: int = Field(
        2,
        ge=0,
        le=10,
        description="How often a contaminated run is measured again within its block.",
    )
    link_wait_s: float = Field(
        60,
        ge=0,
        le=3600,
        description="How long a block waits, in s, for a link that is down or not as it was set up, and measuring "
        "for a host that is lost, at least 60 s; then measuring ends, and finished runs remain.",
    )
    ping: PingLimits = Field(default_factory=PingLimits, description="Pings before runs.")


class Limits(Model):
    """What is taken at most from endpoints and hosts, which are other people's programs and machines."""

    line_kib: int = Field(1024, ge=1, le=65536, description="Longest line of an endpoint's events, in KiB.")
    log_mib: int = Field(256, ge=1, le=16384, description="Largest file of an endpoint's events, in MiB.")
    file_mib: int = Field(
        4096,
        ge=1,
        le=2**20,
        description="Largest file that an endpoint may write, its output and complaints included, in MiB besides what "
        "it downloads.",
    )
    memory_mib: int = Field(
        16384, ge=64, le=2**24, description="Largest data segment of a process of an endpoint (RLIMIT_DATA), in MiB."
    )
    total_memory_mib: int = Field(
        16384,
        ge=64,
        le=2**24,
        description="Largest resident memory of all processes of an endpoint together, in MiB.",
    )
    processes: int = Field(
        4096, ge=16, le=2**22, description="Most processes and threads of an endpoint at a time (RLIMIT_NPROC)."
    )
    open_files: int = Field(4096, ge=64, le=2**20, description="Files that a process of an endpoint may have open.")
    goodput_gbps: float = Field(
        400, gt=0, description="Largest goodput that is believed where the link has no rate, in Gbit/s."
    )
    files: int = Field(
        50000,
        ge=16,
        le=10**7,
        description="Most files that a program of an endpoint may leave, or that are taken from a host "
        "over SSH as a run or a build.",
    )
    total_mib: int = Field(
        32768,
        ge=16,
        le=2**24,
        description="Largest size of the files that an endpoint leaves, besides what it "
        "downloads, or of a run or a build that is taken from a host, in MiB.",
    )
    path_bytes: int = Field(
        1024, ge=64, le=4096, description="Longest name of a file, with its directories, that an endpoint leaves."
    )


Picture = Literal["svg", "pdf", "png"]
PICTURES: tuple[Picture, ...] = get_args(Picture)
PICTURES_VARIABLE = "QUICBED_PICTURES"
"""Names `pictures` of the configuration to what draws, separated by commas."""


class Config(Model):
    """config/config.yaml: which experiments are measured, where, and at what scale."""

    testbed: Name = Field("local", description="Name of a file in config/testbeds/, without .yaml.")
    scale: Name = Field(
        "quick",
        description="`quick` (minutes), `paper` (8 GiB and 25 repetitions as published; hours) or `tiny` (seconds, "
        "for trying the workflow); each experiment says what its scales mean.",
    )
    study: Name | None = Field(
        None,
        description="Name of a file in config/studies/, without .yaml, that says instead of `scale`, `seed` and `gate` "
        "how it is measured; null: none.",
    )
    experiments: list[Name] = Field(
        description="Experiments to measure: names of files in config/experiments/, without .yaml. Where only `study` "
        "is overridden, those of the study.",
        min_length=1,
    )
    libraries: list[Name] | None = Field(
        None,
        description="Only these of an experiment's libraries are built and measured; null: all of them.",
        min_length=1,
    )
    seed: int = Field(1, ge=0, description="Seed of the random order of runs; recorded with every run.")
    gate: Gate = Field(default_factory=Gate, description="Contamination gate.")
    limits: Limits = Field(default_factory=Limits, description="Limits of endpoints and hosts.")
    paths: Paths = Field(default_factory=Paths, description="Directories.")
    published: dict[PublishedFormat, str] = Field(
        default_factory=dict,
        description="Local copies of published results, imported beside our own (docs/importing.md): folder, tar "
        "archive or file by format, `highway`, `steps`, `quic-benchmark` or `qir`.",
    )
    pictures: list[Picture] = Field(
        default_factory=lambda: [PICTURES[0]],
        description="Formats that figures are drawn in beside their interactive pages, where there is a Chromium: "
        "`svg`, which notebooks and report show, `pdf` and `png`.",
    )

    @field_validator("experiments")
    @classmethod
    def _unique(cls, value: list[str]) -> list[str]:
        if len(set(value)) != len(value):
            raise ValueError("names an experiment twice")
        return value


def read_config(file: Path, overrides: Mapping[str, Any] | None = None) -> Config:
    """config.yaml with overrides (from `snakemake --config`) on top; an empty mapping takes what is there away."""
    data = read_yaml(file)
    for key, value in (overrides or {}).items():
        if isinstance(value, Mapping) and value and isinstance(data.get(key), Mapping):
            data[key] = {**data[key], **value}
        else:
            data[key] = value
    return parse_model(Config, data, file)
