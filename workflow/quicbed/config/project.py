"""Everything below config/, read and checked against each other."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from quicbed.config import algorithms, pages, videos
from quicbed.config.experiments import Experiment, Scale
from quicbed.config.libraries import read_libraries
from quicbed.config.reading import ConfigError, check_known, read_directory
from quicbed.config.settings import Config, read_config
from quicbed.config.studies import Study
from quicbed.config.testbeds import March, Testbed

Side = Literal["client", "server"]


class Project:
    """Everything under config/, read and checked against each other."""

    march: March | None = None
    """Instruction set that is built for (`quicbed.plan.march.applied`), where it is not that of every processor."""
    host: Side | None = None
    """Host of the testbed that builds, where it is not the controller."""

    def __init__(self, root: Path, overrides: Mapping[str, Any] | None = None) -> None:
        self.root = root
        directory = root / "config"
        written = any((directory / "studies").glob("*.yaml"))
        self.studies = read_directory(directory / "studies", Study) if written else {}
        self.config = self._of_study(read_config(directory / "config.yaml", overrides), overrides or {})
        # now: while builds are made, the environment lacks what names it (`quicbed.base.environment.only_named`)
        self.store = self._store()
        """Directory of finished builds, components and third-party sources (`quicbed.builds.build_store`)."""
        self.testbeds = read_directory(directory / "testbeds", Testbed)
        self.algorithms = _algorithms(root)
        self.pages = _pages(root)
        self.videos, self.rate_traces = _videos(root)
        self.libraries = read_libraries(root, directory / "libraries", self.algorithms)
        experiments = self._studied(read_directory(directory / "experiments", Experiment))
        self.experiments = {
            name: experiment.resolved(self.libraries, self.config.libraries) for name, experiment in experiments.items()
        }
        self._check(directory)

    def _of_study(self, config: Config, overrides: Mapping[str, Any]) -> Config:
        """The configuration with what its study says instead of it."""
        if config.study is None:
            return config
        file = self.root / "config" / "config.yaml"
        check_known("study", config.study, self.studies, file)
        study = self.studies[config.study]
        if "scale" in overrides:
            raise ConfigError(f"{file}: scale: the study `{config.study}` is a scale of its own; leave out one of both")
        names = config.experiments if "experiments" in overrides or "study" not in overrides else study.experiments
        for name in names:
            check_known(
                "experiments", name, study.experiments, self.root / "config" / "studies" / f"{config.study}.yaml"
            )
        changed = {"scale": config.study, "seed": study.seed, "gate": study.gate, "experiments": list(names)}
        return config.model_copy(update=changed)

    def _studied(self, experiments: Mapping[str, Experiment]) -> dict[str, Experiment]:
        """The experiments with studies among their scales, and with the half width of the chosen one."""
        found = dict(experiments)
        for title, study in self.studies.items():
            file = self.root / "config" / "studies" / f"{title}.yaml"
            for name, part in study.experiments.items():
                key = f"experiments.{name}"
                check_known("experiments", name, experiments, file)
                experiment = found[name]
                if title in experiment.scales:
                    raise ConfigError(f"{file}: {key} has a scale `{title}` already; give the study another name")
                if (problem := experiment.scale_problem(part)) is not None:
                    raise ConfigError(f"{file}: {key}: {problem}")
                if part.half_width is not None and experiment.contrast is None:
                    raise ConfigError(f"{file}: {key}.half_width: the experiment has no contrast; leave it out")
                update: dict[str, Any] = {"scales": {**experiment.scales, title: part}}
                if part.half_width is not None and title == self.config.study and experiment.contrast is not None:
                    update["contrast"] = experiment.contrast.model_copy(update={"half_width": part.half_width})
                found[name] = experiment.model_copy(update=update)
        return found

    @property
    def study(self) -> Study | None:
        """The study named in config.yaml."""
        return self.studies[self.config.study] if self.config.study is not None else None

    @property
    def left_out(self) -> dict[tuple[str, str], tuple[str, str]]:
        """Campaigns that a study leaves out, by experiment and id: the name of the study, and the reason."""
        return {
            (one.experiment, one.campaign): (name, one.reason)
            for name, study in self.studies.items()
            for one in study.left_out
        }

    def study_of(self, digest: str | None) -> str | None:
        """Name of the study with these rules, in words where none has them any more; None for runs of none."""
        known = {study.digest: name for name, study in self.studies.items()}
        return None if digest is None else known.get(digest, f"with rules that no longer exist ({digest})")

    @property
    def testbed(self) -> Testbed:
        """The testbed named in config.yaml."""
        return self.testbeds[self.config.testbed]

    def of_flavour(self, name: str, flavour: str) -> Project:
        """This project with a library as it is in one of its flavours: with the flavour's own endpoint and package."""
        library = self.libraries[name]
        chosen = library.flavours[flavour]
        own = {"endpoint": chosen.endpoint, "package": chosen.package}
        project = copy.copy(self)
        changed = library.model_copy(update={key: value for key, value in own.items() if value is not None})
        project.libraries = {**self.libraries, name: changed}
        return project

    @property
    def raw(self) -> Path:
        """Directory of runs."""
        return self.root / self.config.paths.raw

    @property
    def build(self) -> Path:
        """Directory of links to builds, and of what is compiled."""
        return self.root / self.config.paths.build

    def _store(self) -> Path:
        named = self.config.paths.store or os.environ.get("QUICBED_STORE")
        if named:
            try:
                return (self.root / Path(named).expanduser()).resolve()
            except (RuntimeError, OSError, ValueError) as error:
                raise ConfigError(
                    f"{named}: {error}; name a directory in paths.store, or in the variable QUICBED_STORE"
                ) from None
        home, cache = Path(os.environ.get("HOME") or "/nonexistent"), os.environ.get("XDG_CACHE_HOME")
        try:
            # make gives who has none a home below the directory of builds
            usable = home.stat().st_uid == os.geteuid() and not home.is_relative_to(self.build.resolve())
        except OSError:
            usable = False
        if cache and Path(cache).is_absolute():  # XDG Base Directory Specification: others are ignored
            return (Path(cache) / "quicbed").resolve()
        return (
            (home / ".cache" / "quicbed") if usable and os.access(home, os.W_OK) else self.build / "store"
        ).resolve()

    @property
    def artifacts(self) -> Path:
        """Directory of tables, figures and report."""
        return self.root / self.config.paths.artifacts

    @property
    def published(self) -> dict[str, Path]:
        """Local copies of published results, by format."""
        return {name: self.root / path for name, path in self.config.published.items()}

    @property
    def published_tables(self) -> Path:
        """Directory of the tables made from them, one directory a format."""
        return self.artifacts / "published"

    def scale(self, experiment: str) -> Scale:
        """The scale named in config.yaml, as the experiment defines it."""
        return self.experiments[experiment].scales[self.config.scale]

    def without_study(self) -> Project:
        """This project at the scale that it has by default, which every experiment knows, if a study is chosen."""
        if self.config.study is None:
            return self
        other = copy.copy(self)
        default = Config.model_fields["scale"].default
        other.config = self.config.model_copy(update={"study": None, "scale": default})
        return other

    def restricted(self, experiments: Sequence[str], libraries: Sequence[str]) -> Project:
        """The same project with these experiments, and only these of their libraries, as config.yaml can ask for."""
        other = copy.copy(self)
        other.config = self.config.model_copy(update={"experiments": list(experiments), "libraries": list(libraries)})
        other.experiments = {
            name: experiment.resolved(self.libraries, libraries) for name, experiment in self.experiments.items()
        }
        return other

    def without_folders(self) -> Project:
        """The project as it comes, without the folders of external endpoints that somebody has added."""
        built = {name: library for name, library in self.libraries.items() if library.external is None}
        other = self.restricted(self.config.experiments, list(built))
        other.config, other.libraries = self.config, built
        return other

    def _check(self, directory: Path) -> None:
        config_file = directory / "config.yaml"
        check_known("testbed", self.config.testbed, self.testbeds, config_file)
        for library in self.config.libraries or []:
            check_known("libraries", library, self.libraries, config_file)
        for name, path in self.published.items():
            if not path.exists():
                raise ConfigError(
                    f"{config_file}: published.{name}: {path} does not exist; name a local copy of the data, or leave "
                    "out the key"
                )
        for name in self.config.experiments:
            check_known("experiments", name, self.experiments, config_file)
            experiment = self.experiments[name]
            if not experiment.pairs():
                chosen = ", ".join(self.config.libraries or [])
                raise ConfigError(
                    f"{config_file}: libraries: experiment `{name}` has none of {chosen}; "
                    "name one that it measures, or leave out the experiment"
                )
            file = directory / "experiments" / f"{name}.yaml"
            if self.config.scale not in experiment.scales:
                raise ConfigError(
                    f"{config_file}: scale: experiment `{name}` has no scale `{self.config.scale}`; it has "
                    f"{', '.join(sorted(experiment.scales))}"
                )
        groups = {group.name: group for group in self.algorithms.groups}
        signatures = {signature.name: signature for signature in self.algorithms.signatures}
        for name, described in self.libraries.items():
            file = directory / "libraries" / f"{name}.yaml"
            for group in described.supports.groups:
                check_known("supports.groups", group, groups, file)
            for signature in described.supports.signatures:
                check_known("supports.signatures", signature, signatures, file)
            for flavour_name, flavour in described.flavours.items():
                for algorithm in flavour.unsupported:
                    check_known(f"flavours.{flavour_name}.unsupported", algorithm, groups | signatures, file)
        flavours = {flavour: None for described in self.libraries.values() for flavour in described.flavours}
        for name, described in self.libraries.items():
            for missing in described.no_flavour:
                check_known("no_flavour", missing, flavours, directory / "libraries" / f"{name}.yaml")
        for name, experiment in self.experiments.items():
            file = directory / "experiments" / f"{name}.yaml"
            for variant in experiment.variants:
                check_known(f"variants: `{variant.label}`: group", variant.group, groups, file)
                check_known(f"variants: `{variant.label}`: signature", variant.signature, signatures, file)
                if variant.page is not None:
                    check_known(f"variants: `{variant.label}`: page", variant.page, self.pages, file)
                if variant.video is not None:
                    check_known(f"variants: `{variant.label}`: video", variant.video, self.videos, file)
                if variant.rate_trace is not None:
                    check_known(f"variants: `{variant.label}`: rate_trace", variant.rate_trace, self.rate_traces, file)
                if variant.against is not None:
                    check_known(f"variants: `{variant.label}`: against", variant.against, self.libraries, file)
            if experiment.alone is not None:
                check_known("alone", experiment.alone, self.experiments, file)
                labels = {variant.label: None for variant in self.experiments[experiment.alone].variants}
                for variant in experiment.variants:
                    check_known(f"alone: `{experiment.alone}`: label", variant.label, labels, file)
            if experiment.open_loop is not None:
                check_known("open_loop.client", experiment.open_loop.client, self.libraries, file)
            for pair in experiment.pairs():
                for library in (pair.client, pair.server):
                    check_known("libraries", library, self.libraries, file)
                if not self.libraries[pair.client].pairs_with(self.libraries[pair.server]):
                    raise ConfigError(
                        f"{file}: libraries: {pair.client} and {pair.server} do not use the same transport and "
                        "application protocol; pair QUIC with QUIC, TCP with TCP and equal `alpn`"
                    )
            for variant in experiment.variants:
                # a library without the flavour is unsupported; a flavour that none has is a mistake
                if variant.flavour:
                    check_known(f"variants: `{variant.label}`: flavour", variant.flavour, flavours, file)
                unprotected = not variant.header_protection and variant.aead != "noenc"
                if variant.flavour == "stock" and (variant.aead == "noop" or unprotected):
                    raise ConfigError(
                        f"{file}: variants: `{variant.label}` is impossible: a stock build has neither a NOOP AEAD nor "
                        "a switch for header protection; leave out `flavour`"
                    )


def _pages(root: Path) -> dict[str, pages.Page]:
    try:
        return pages.read(root)
    except pages.PageError as error:
        raise ConfigError(str(error)) from None


def _videos(root: Path) -> tuple[dict[str, videos.Video], dict[str, videos.RateTrace]]:
    try:
        return videos.read(root), videos.read_traces(root)
    except videos.VideoError as error:
        raise ConfigError(str(error)) from None


def _algorithms(root: Path) -> algorithms.Table:
    try:
        return algorithms.read(root)
    except algorithms.AlgorithmError as error:
        raise ConfigError(str(error)) from None
