"""The configuration: what is wrong is one clear error that names file, key and remedy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from quicbed.config import ConfigError, Project
from quicbed.plan import builds_needed, campaign_of, cells_of

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "config", tmp_path / "config")
    return tmp_path


def edit(root: Path, name: str, old: str, new: str) -> None:
    file = root / "config" / name
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        ("config.yaml", "testbed:", "tesbed:", ["config.yaml: tesbed: unknown key", "did you mean `testbed`"]),
        ("config.yaml", "scale: quick", "scale: quik", ["scale", "no scale `quik`", "paper, quick"]),
        ("config.yaml", "- aead-goodput", "- aead-godput", ["experiments", "did you mean `aead-goodput`"]),
        ("config.yaml", "testbed: local", "testbed: lab", ["testbed", "`lab` is unknown"]),
        ("config.yaml", "seed: 1", "seed: one", ["seed", "integer", "`one`"]),
        ("config.yaml", "seed: 1", "seed: 1\nseed: 2", ["line 8", "`seed` is given twice"]),
        ("config.yaml", "seed: 1", "seed: [1", ["config.yaml", "not valid YAML"]),
        ("config.yaml", "seed: 1", "gate: {max_run_dely: 1}", ["gate.max_run_dely", "did you mean `max_run_delay`"]),
        ("config.yaml", "  - header-protection", "  - aead-goodput", ["experiments", "twice"]),
        (
            "experiments/aead-goodput.yaml",
            "cipher: aes-256-gcm",
            "ciper: aes-256-gcm",
            ["aead-goodput.yaml: variants.1", "cipher"],
        ),
        (
            "experiments/aead-goodput.yaml",
            "cipher: aes-256-gcm",
            "cipher: aes-512-gcm",
            ["variants.1.cipher", "aes-128-gcm"],
        ),
        (
            "experiments/aead-goodput.yaml",
            "baseline: AES-128-GCM",
            "baseline: AES-129-GCM",
            ["baseline", "`AES-129-GCM` is not the label"],
        ),
        (
            "experiments/aead-goodput.yaml",
            "aead: noop",
            "aead: noop\n    flavour: stock",
            ["variants", "`NOOP` is impossible", "leave out `flavour`"],
        ),
        (
            "experiments/aead-goodput.yaml",
            "libraries: [quiche, quinn, tcp-tls]",
            "libraries: [quiche, {client: quinn, server: tcp-tls}]",
            ["libraries", "same transport"],
        ),
        (
            "experiments/aead-goodput.yaml",
            "libraries: [quiche,",
            "libraries: [quich,",
            ["libraries", "did you mean `quiche`"],
        ),
        ("experiments/aead-goodput.yaml", "mode: throughput", "mode: trough", ["link.mode", "throughput"]),
        ("experiments/aead-goodput.yaml", "min_blocks: 20", "min_blocks: 80", ["min_blocks 80 is more than"]),
        ("libraries/quinn.yaml", "  stock:\n", "  plain:\n", ["quinn.yaml", "`stock` is missing"]),
        ("libraries/quinn.yaml", "transport: quic", "transport: sctp", ["quinn.yaml: transport"]),
        ("testbeds/local.yaml", "kind: local", "kind: remote", ["local.yaml: kind"]),
    ],
)
def test_a_wrong_configuration_names_file_key_and_remedy(
    root: Path, name: str, old: str, new: str, expected: list[str]
) -> None:
    edit(root, name, old, new)
    with pytest.raises(ConfigError) as error:
        Project(root)
    for part in expected:
        assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(root: Path) -> None:
    (root / "config" / "config.yaml").unlink()
    with pytest.raises(ConfigError, match=r"config\.yaml: is missing"):
        Project(root)


def test_overrides_are_checked_like_the_file(root: Path) -> None:
    assert Project(root, {"scale": "tiny"}).config.scale == "tiny"
    with pytest.raises(ConfigError, match="unknown key"):
        Project(root, {"scael": "tiny"})


def test_a_section_is_overridden_key_by_key(root: Path) -> None:
    project = Project(root, {"gate": {"retries": 0}})
    assert project.config.gate.retries == 0
    assert project.config.gate.max_run_delay == Project(root).config.gate.max_run_delay


def test_noop_and_missing_header_protection_are_measured_on_the_noop_build_and_nothing_else_is() -> None:
    project = Project(ROOT)
    for name in project.config.experiments:
        for cell in cells_of(project, name, campaign_of(project, name, {})[0], {}):
            altered = cell.variant["aead"] == "noop" or cell.variant["header_protection"] is False
            expected = "noop" if altered or cell.arm == "control" else "stock"
            assert (cell.client.flavour, cell.server.flavour) == (expected, expected)


def test_every_cell_has_its_own_id_and_its_baseline_is_a_cell_of_the_same_libraries() -> None:
    project = Project(ROOT)
    for name in project.config.experiments:
        cells = {cell.id: cell for cell in cells_of(project, name, "c", {})}
        assert len(cells) == len(cells_of(project, name, "c", {}))
        for cell in cells.values():
            if cell.baseline is not None:
                assert cells[cell.baseline].client.library == cell.client.library
                assert cells[cell.baseline].arm == "main"


def test_a_new_build_makes_new_cells() -> None:
    project = Project(ROOT)
    keys = builds_needed(project, ["aead-goodput"])
    before = {key: {"build": f"{key}-1", "version": "1"} for key in keys}
    after = before | {("quiche", "noop"): {"build": "other", "version": "1"}}
    old = {cell.slug: cell.id for cell in cells_of(project, "aead-goodput", "c", before)}
    new = {cell.slug: cell.id for cell in cells_of(project, "aead-goodput", "c", after)}
    assert {slug for slug in old if old[slug] != new[slug]} == {"quiche-noop"}


def test_a_variant_that_a_library_cannot_do_stays_in_the_plan_with_its_reason(root: Path) -> None:
    edit(root, "libraries/quinn.yaml", "noop: true", "noop: false")
    project = Project(root)
    cells = {cell.slug: cell for cell in cells_of(project, "aead-goodput", "c", {})}
    assert cells["quinn-noop"].unsupported == "quinn has no NOOP AEAD"
    assert cells["quiche-noop"].unsupported is None
    assert ("quinn", "noop") not in builds_needed(project, ["aead-goodput"])


def test_campaigns_differ_by_scale_and_machine_and_not_by_cells(root: Path) -> None:
    project = Project(root)
    ids = {
        campaign_of(project, "aead-goodput", {"host_id": "a"})[0],
        campaign_of(project, "aead-goodput", {"host_id": "b"})[0],
        campaign_of(Project(root, {"scale": "paper"}), "aead-goodput", {"host_id": "a"})[0],
    }
    assert len(ids) == 3
    edit(root, "experiments/aead-goodput.yaml", "libraries: [quiche, quinn, tcp-tls]", "libraries: [quiche]")
    assert campaign_of(Project(root), "aead-goodput", {"host_id": "a"})[0] in ids
