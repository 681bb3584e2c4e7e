"""Studies: a scale, seed and gate of their own, decided before measuring, whose digest is in what is measured."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from syrupy.assertion import SnapshotAssertion

import wording
from clone import ROOT, copy_config
from quicbed.claims import papers
from quicbed.config.model import ConfigError, Project
from quicbed.plan.cells import campaign_of, cells_of

STUDY: dict[str, Any] = {
    "title": "A study",
    "question": "None.",
    "seed": 7,
    "gate": {"retries": 5},
    "experiments": {
        "aead-goodput": {
            "bytes": 1000,
            "blocks": 9,
            "least_s": 2,
            "half_width": 0.002,
            "claims": ["fig3-aes-equal"],
            "figures": ["goodput-by-aead"],
        },
        "table2-kem": {"bytes": 1, "connections": 7, "blocks": 3, "figures": ["ttfb-by-kem"]},
    },
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    copy_config(tmp_path / "config")
    (tmp_path / "workflow" / "crypto").mkdir(parents=True)
    shutil.copy(ROOT / "workflow" / "crypto" / "algorithms.csv", tmp_path / "workflow" / "crypto")
    write(tmp_path, STUDY)
    return tmp_path


def write(root: Path, study: dict[str, Any]) -> None:
    """The study `mine`."""
    (root / "config" / "studies" / "mine.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")


def changed(**changes: Any) -> dict[str, Any]:
    """The study with other values for its first experiment."""
    first = STUDY["experiments"]["aead-goodput"] | changes
    return STUDY | {"experiments": STUDY["experiments"] | {"aead-goodput": first}}


def test_a_study_says_what_is_measured_and_how(root: Path) -> None:
    project = Project(root, {"study": "mine"})
    assert project.config.experiments == ["aead-goodput", "table2-kem"]
    assert (project.config.seed, project.config.gate.retries) == (7, 5)
    assert project.scale("table2-kem").connections == 7
    contrast = project.experiments["aead-goodput"].contrast
    assert contrast is not None
    assert contrast.half_width == 0.002
    usual = Project(root)
    assert usual.study is None
    assert usual.config.seed != 7
    assert usual.experiments["aead-goodput"].contrast != contrast


def test_some_of_its_experiments_can_be_measured_alone(root: Path) -> None:
    assert Project(root, {"study": "mine", "experiments": ["table2-kem"]}).config.experiments == ["table2-kem"]
    with pytest.raises(ConfigError, match=r"mine\.yaml: experiments: `mtu` is unknown"):
        Project(root, {"study": "mine", "experiments": ["mtu"]})


def test_campaigns_of_a_study_are_none_of_its_scale_or_of_another(root: Path) -> None:
    def campaign(study: dict[str, Any]) -> str:
        write(root, study)
        return campaign_of(Project(root, {"study": "mine"}), "table2-kem", {})[0]

    first = campaign(STUDY)
    assert campaign(STUDY) == first
    assert campaign(changed(blocks=10)) != first, "the rules of any part are rules of the study"
    assert campaign(STUDY | {"gate": {"retries": 4}}) != first
    left_out = [{"experiment": "table2-kem", "campaign": "0123abcd", "reason": "the machine slept"}]
    assert campaign(STUDY | {"left_out": left_out}) == first, "what is left out is known afterwards only"


def test_a_pilot_says_how_many_bytes_all_cells_of_a_pair_download(root: Path) -> None:
    project = Project(root, {"study": "mine", "experiments": ["aead-goodput"], "libraries": ["quinn", "quiche"]})
    cells = cells_of(project, "aead-goodput", "c", {}, {("quinn", "quinn"): 5000})
    sizes = {cell.client.library: set() for cell in cells}
    for cell in cells:
        sizes[cell.client.library].add(cell.bytes)
    assert sizes["quinn"] == {5000}
    assert sizes["quiche"] == {1_250_000_000}, "before the pilot, what is usual"
    before = {cell.slug: cell.id for cell in cells_of(project, "aead-goodput", "c", {})}
    assert all((before[cell.slug] != cell.id) is (cell.client.library == "quinn") for cell in cells)


@pytest.mark.parametrize(
    "study",
    [
        changed(claims=["fig3-aes-eqal"]),
        changed(figures=[]),
        changed(connections=3),
        changed(blcks=3),
        STUDY | {"experiments": {"table2-kem": STUDY["experiments"]["table2-kem"] | {"least_s": 1}}},
        STUDY | {"experiments": {"mtu": changed()["experiments"]["aead-goodput"]}},
        STUDY | {"experiments": {"mtuu": STUDY["experiments"]["table2-kem"]}},
    ],
)
def test_a_study_that_cannot_be_measured_is_one_clear_error(
    root: Path, study: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    write(root, study)
    with pytest.raises(ConfigError) as error:
        papers.stated(Project(root, {"study": "mine"}))
    assert wording.one_line(error.value, root, names="mine.yaml: ") == snapshot


def test_a_study_is_a_scale_of_its_own(root: Path) -> None:
    with pytest.raises(ConfigError, match="scale: the study `mine` is a scale of its own"):
        Project(root, {"study": "mine", "scale": "tiny"})
    with pytest.raises(ConfigError, match="study: `mien` is unknown; did you mean `mine`"):
        Project(root, {"study": "mien"})
    (root / "config" / "studies" / "tiny.yaml").write_text(yaml.safe_dump(STUDY), encoding="utf-8")
    with pytest.raises(ConfigError, match="has a scale `tiny` already; give the study another name"):
        Project(root)


@pytest.mark.parametrize("name", sorted(Project(ROOT).studies))
def test_every_study_of_the_repository_can_be_measured(name: str) -> None:
    project = Project(ROOT, {"study": name})
    assert papers.stated(project)
    assert set(project.config.experiments) == set(project.studies[name].experiments)
    assert all(cells_of(project, experiment, "c", {}) for experiment in project.config.experiments)
