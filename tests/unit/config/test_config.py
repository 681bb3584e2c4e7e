"""The configuration: what is wrong is one clear error that names file, key and remedy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

import wording
from clone import ROOT, copy_config
from quicbed.analysis import published
from quicbed.cli.generate import library_page
from quicbed.config.model import MOST_LEVELS, ConfigError, Project, read_yaml
from quicbed.plan.arms import PRIMITIVES
from quicbed.plan.built import Build
from quicbed.plan.cells import builds_needed, campaign_of, cells_of
from quicbed.plan.factors import noenc_reason

EXTERNAL = "external: {path: endpoint}\n"
SUPPORTS = {"ciphers": ["aes-128-gcm"], "groups": ["x25519"], "congestion_controls": ["cubic"]}


def folder(root: Path, library: str = EXTERNAL, **more: Any) -> Project:
    """The project with a library `external` whose folder states this; `supports` are on top of the least there is."""
    (root / "endpoint").mkdir(exist_ok=True)
    supports = SUPPORTS | more.pop("supports", {})
    text = json.dumps({"statement": 1, "title": "external", "supports": supports, **more})
    (root / "endpoint" / "quicbed.yaml").write_text(text, encoding="utf-8")
    (root / "config" / "libraries" / "external.yaml").write_text(library, encoding="utf-8")
    return Project(root)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    copy_config(tmp_path / "config")
    (tmp_path / "workflow" / "crypto").mkdir(parents=True)
    shutil.copy(ROOT / "workflow" / "crypto" / "algorithms.csv", tmp_path / "workflow" / "crypto")
    return tmp_path


def edit(root: Path, name: str, old: str, new: str) -> None:
    file = root / "config" / name
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("config.yaml", "testbed:", "tesbed:"),
        ("config.yaml", "scale: quick", "scale: quik"),
        ("config.yaml", "- aead-goodput", "- aead-godput"),
        ("config.yaml", "testbed: local", "testbed: lab"),
        ("config.yaml", "seed: 1", "seed: one"),
        ("config.yaml", "testbed: local", "testbed: local\ntestbed: local"),
        ("config.yaml", "seed: 1", "seed: [1"),
        ("config.yaml", "seed: 1", "gate: {max_run_dely: 1}"),
        ("config.yaml", "  - header-protection", "  - aead-goodput"),
        ("config.yaml", "seed: 1", "published: {highwy: x}"),
        ("config.yaml", "seed: 1", "published: {steps: nowhere}"),
        ("experiments/pairwise.yaml", "failures: findings", "failures: ignored"),
        ("experiments/aead-goodput.yaml", "cipher: aes-256-gcm", "ciper: aes-256-gcm"),
        ("experiments/aead-goodput.yaml", "cipher: aes-256-gcm", "cipher: aes-512-gcm"),
        ("experiments/aead-goodput.yaml", "baseline: AES-128-GCM", "baseline: AES-129-GCM"),
        ("experiments/aead-goodput.yaml", "aead: noop", "aead: noop\n    flavour: stock"),
        ("experiments/aead-goodput.yaml", "libraries: all", "libraries: [quiche, {client: quinn, server: tcp-tls}]"),
        ("experiments/aead-goodput.yaml", "libraries: all", "libraries: [quich]"),
        ("experiments/aead-goodput.yaml", "mode: throughput", "mode: trough"),
        ("experiments/aead-pairs.yaml", "min_blocks: 5", "min_blocks: 280"),
        ("experiments/aead-pairs.yaml", "alone: aead-goodput", "alone: header-protection"),
        ("libraries/quinn.yaml", "  stock:\n", "  plain:\n"),
        ("libraries/quinn.yaml", "transport: quic", "transport: sctp"),
        ("testbeds/local.yaml", "kind: local", "kind: remote"),
        ("experiments/table2-kem.yaml", "group: kyber512", "group: kyber521"),
        ("experiments/table3-signature.yaml", "signature: dilithium3", "signature: dilithum3"),
        ("experiments/table3-signature.yaml", "flavour: pq", "flavour: qp"),
        ("experiments/table2-kem.yaml", "kind: handshake", "kind: handshakes"),
        ("experiments/table2-kem.yaml", "connections: 20,", "connections: 0,"),
        ("experiments/amplification.yaml", "mode: wire", "mode: wire\n  mtu: 1400"),
        ("experiments/amplification.yaml", "rtt_ms: 10,", "rtt_ms: -10,"),
        ("experiments/aead-goodput.yaml", "control: any", "control: any\nprimitives: 1"),
        ("experiments/aead-goodput.yaml", "cipher: aes-256-gcm", "cipher: aes-256-gcm\n    retry: true"),
        ("experiments/aead-pairs.yaml", "min_blocks: 5", "connections: 20"),
        ("experiments/aead-goodput.yaml", "cipher: aes-256-gcm", "cipher: aes-256-gcm\n    loss_percent: 1"),
        ("experiments/delay-loss.yaml", "loss_percent: 0.1}", "offloads: default}"),
        ("experiments/delay-loss.yaml", "loss_percent: 1}", "loss_percent: 51}"),
        (
            "experiments/reordering.yaml",
            'label: "1 permille by 8", reorder_permille: 1, ',
            'label: "1 permille by 8", ',
        ),
        ("experiments/reordering.yaml", "mode: wire", "mode: throughput"),
        ("experiments/reordering.yaml", "mode: wire", "mode: wire\n  mtu: 9000"),
        (
            "experiments/reordering.yaml",
            '10 permille by 8", reorder_permille: 10',
            '10 permille by 8", reorder_permille: 600',
        ),
        ("experiments/offloads.yaml", "offloads: gso-gro}", "offloads: gso}"),
        ("experiments/offloads.yaml", 'offloads: "off"}', "offloads: off}"),
        ("libraries/quinn.yaml", "x448: neither", "x484: neither"),
        ("libraries/quinn.yaml", "algorithms: all", "algorithms: listed"),
        ("libraries/quinn.yaml", "  stock:\n", "  stock:\n    endpoint: other\n"),
        ("libraries/quinn.yaml", "groups: [x25519,", "groups: [x25591,"),
        ("libraries/quic-go.yaml", "pq: >-", "qp: >-"),
        ("libraries/quic-go.yaml", "pq: >-", "noop: >-"),
    ],
    ids=wording.name,
)
def test_a_wrong_configuration_names_file_key_and_remedy(
    root: Path, name: str, old: str, new: str, snapshot: SnapshotAssertion
) -> None:
    edit(root, name, old, new)
    with pytest.raises(ConfigError) as error:
        Project(root)
    assert wording.one_line(error.value, root, names=f"{name}: ") == snapshot


def test_a_missing_file_is_named(root: Path) -> None:
    (root / "config" / "config.yaml").unlink()
    with pytest.raises(ConfigError, match=r"config\.yaml: is missing"):
        Project(root)


def test_overrides_are_checked_like_the_file(root: Path) -> None:
    assert Project(root, {"scale": "tiny"}).config.scale == "tiny"
    with pytest.raises(ConfigError, match="unknown key"):
        Project(root, {"scael": "tiny"})


def test_libraries_without_a_flavour_of_other_experiments_can_be_chosen() -> None:
    # the experiments of flavour pq, which are not chosen, keep none of their libraries
    project = Project(ROOT, {"experiments": ["aead-goodput"], "libraries": ["quic-go"]})
    assert "pq" not in project.libraries["quic-go"].flavours
    assert project.experiments["table2-kem"].pairs() == []
    assert [pair.client for pair in project.experiments["aead-goodput"].pairs()] == ["quic-go"]


def test_a_section_is_overridden_key_by_key(root: Path) -> None:
    project = Project(root, {"gate": {"retries": 0}})
    assert project.config.gate.retries == 0
    assert project.config.gate.max_run_delay == Project(root).config.gate.max_run_delay


def test_noop_and_missing_header_protection_are_measured_on_the_noop_build_and_nothing_else_is() -> None:
    project = Project(ROOT).without_folders()
    for name, experiment in project.experiments.items():
        if experiment.workload.kind != "bulk":
            continue
        for cell in cells_of(project, name, campaign_of(project, name, {})[0], {}):
            # NOENC, which has no header protection either, is a switch of the stock build
            aead = cell.variant.aead
            altered = aead == "noop" or (cell.variant.header_protection is False and aead != "noenc")
            expected = "noop" if altered or cell.label.endswith(" in the noop build") else "stock"
            if name == "mtu" and cell.client.library == "msquic":
                expected = "jumbo"
            if cell.label.endswith("no roll-back"):
                expected = "no-rollback"
            if cell.label.startswith(("splay, ", "linear, ")):
                expected = cell.label.partition(",")[0]
            assert (cell.client.flavour, cell.server.flavour) == (expected, expected)


def test_every_cell_has_its_own_id_and_its_baseline_is_a_cell_of_the_library_that_it_is_compared_with() -> None:
    project = Project(ROOT).without_folders()
    for name in project.experiments:
        cells = {cell.id: cell for cell in cells_of(project, name, "c", {})}
        assert len(cells) == len(cells_of(project, name, "c", {}))
        for cell in cells.values():
            if cell.baseline is not None:
                variant = project.experiments[name].variant(cell.label) if project.experiments[name].paired else None
                other = variant.against if variant is not None and cell.arm == "main" else None
                assert cells[cell.baseline].client.library == (other or cell.client.library)
                assert cells[cell.baseline].arm == ("beside" if project.experiments[name].paired else "main")


def test_what_tcp_cannot_do_is_a_cell_of_its_own_with_the_reason() -> None:
    project = Project(ROOT).without_folders()
    cells = {cell.slug: cell for cell in cells_of(project, "amplification", "c", {}) if cell.transport == "tcp"}
    plain, retry, large = (cells[f"tcp-tls-rsa-2048-{arm}0-ms"] for arm in ("", "retry-", "initial-1472-"))
    assert (plain.variant.retry, plain.variant.initial_size, plain.unsupported) == (None, None, None)
    assert (retry.variant.retry, retry.unsupported) == (True, "TCP+TLS: TCP has no Retry packets")
    assert (large.variant.initial_size, large.unsupported) == (1472, "TCP+TLS: TCP has no Initial packets")


def test_a_flavour_with_all_algorithms_lacks_those_it_names_with_their_reason(root: Path) -> None:
    edit(root, "libraries/quinn.yaml", "x448:", "bike-l1: too odd\n      dilithium3: too long\n      x448:")
    project = Project(root)
    reasons = {
        cell.slug: cell.unsupported
        for name in ("table2-kem", "table3-signature")
        for cell in cells_of(project, name, "c", {})
        if cell.client.library == "quinn" and cell.unsupported
    }
    assert reasons == {"quinn-bike-l1": "quinn: too odd", "quinn-dilithium3": "quinn: too long"}


def test_a_stock_flavour_has_only_the_listed_algorithms(root: Path) -> None:
    edit(root, "experiments/table2-kem.yaml", "flavour: pq", "flavour: stock")
    cells = {cell.slug: cell for cell in cells_of(Project(root), "table2-kem", "c", {})}
    assert cells["quinn-x25519"].unsupported is None
    assert cells["quinn-kyber512"].unsupported == "quinn has no group kyber512 in flavour stock"


def test_handshake_experiments_name_algorithms_as_the_table_does_and_cover_the_papers_tables() -> None:
    project = Project(ROOT).without_folders()
    for name, kind, printed in (
        ("table2-kem", "group", published.kems()),
        ("table3-signature", "signature", published.signatures()),
    ):
        variants = project.experiments[name].variants
        for variant in variants:
            assert variant.label == getattr(project.algorithms, kind)(getattr(variant, kind)).title
            assert variant.flavour == "pq"
        assert set(printed["algorithm"]) <= {variant.label for variant in variants}
    slow = {variant.signature for variant in project.experiments["table3-signature"].variants if variant.slow}
    assert slow == {f"sphincs-{kind}-{bits}s" for kind in ("sha2", "shake") for bits in (128, 192, 256)}


def test_the_parts_of_every_hybrid_are_measured_beside_it() -> None:
    project = Project(ROOT).without_folders()
    groups = [project.algorithms.group(v.group) for v in project.experiments["hybrid-cost"].variants]
    measured = {group.name for group in groups}
    hybrids = [group for group in groups if group.hybrid]
    assert len(hybrids) == 15
    by_liboqs = {group.liboqs: group.name for group in groups if group.liboqs and not group.classical}
    for hybrid in hybrids:
        assert {hybrid.classical, by_liboqs[hybrid.liboqs]} <= measured


def test_unpatched_builds_of_every_library_are_asked_for_the_algorithms_they_say_they_have(root: Path) -> None:
    """External endpoints, which have no other flavour, and libraries without flavour pq."""
    project = folder(root)
    cells = [cell for cell in cells_of(project, "native-handshake", "c", {}) if cell.arm == "main"]
    known = {name for name, one in project.libraries.items() if one.transport != "udp"}
    assert {cell.client.library for cell in cells} == known >= {"external", "quic-go", "s2n-quic"}
    variants = {variant.label: variant for variant in project.experiments["native-handshake"].variants}
    for cell in cells:
        library, variant = project.libraries[cell.client.library], variants[cell.label]
        assert cell.client.flavour == "stock"
        if variant.group not in library.supports.groups:
            assert cell.unsupported == f"{library.title} has no group {variant.group} in flavour stock"
        elif variant.signature not in library.supports.signatures:
            assert cell.unsupported == f"{library.title} has no signature {variant.signature} in flavour stock"
        else:
            assert cell.unsupported is None
    # every variant is one that some library has, and the baseline one that all have
    able = [cell for cell in cells if cell.unsupported is None]
    assert {cell.label for cell in able} == set(variants)
    assert {cell.client.library for cell in able if cell.label == "X25519"} == known
    native = {g for lib in project.libraries.values() for g in lib.supports.groups if "-mlkem" in g}
    assert native == {variant.group for variant in variants.values()} - {"x25519"}


def of_external(project: Project, experiment: str) -> dict[str, str | None]:
    """Why each cell of an experiment with the external library alone is unsupported, by label."""
    cells = cells_of(project, experiment, "c", {})
    return {cell.label: cell.unsupported for cell in cells if cell.libraries == ("external", "external")}


def test_external_endpoints_are_not_measured_for_what_their_folders_do_not_state(root: Path) -> None:
    project = folder(root)
    said = "external: its quicbed.yaml does not say "
    assert set(of_external(project, "udp-buffer").values()) == {f"{said}that it sets the size of its buffers"}
    assert set(of_external(project, "offloads").values()) == {f"{said}whether it uses UDP GSO"}
    assert set(of_external(project, "header-protection").values()) == {"external has no flavour noop", None}
    assert of_external(project, "table2-kem") == {}
    mtus = of_external(project, "mtu")
    assert "external sends datagrams of at most 1472 bytes, which an MTU of 1500 holds" in mtus.values()
    assert None in mtus.values()
    cells = [cell for cell in cells_of(project, "aead-goodput", "c", {}) if cell.client.library == "external"]
    aes = next(cell for cell in cells if cell.label == "AES-128-GCM")
    assert (aes.unsupported, aes.client.as_dict()["external"], "times" in aes.client.as_dict()) == (None, True, False)
    assert project.libraries["external"].shown_as == "external (external)"
    assert project.libraries["quiche"].shown_as == "quiche"


def test_external_endpoints_are_measured_for_what_their_folders_state(root: Path) -> None:
    table2 = {variant.group for variant in Project(root).experiments["table2-kem"].variants}
    supports = {
        "ciphers": ["aes-128-gcm", "aes-256-gcm", "chacha20-poly1305"],
        "noop": True,
        "header_protection_off": True,
        "receive_buffer": True,
        "gso": [True, False],
        "gro": [True, False],
        "udp_payload_max": 8972,
        "aes_hardware_off": True,
    }
    flavours = {"stock": {}, "noop": {}, "pq": {"groups": sorted(table2 - {"bike-l1"})}}
    project = folder(root, supports=supports, flavours=flavours, times=True)
    for name in ("udp-buffer", "offloads", "header-protection", "mtu", "aes-ni"):
        assert set(of_external(project, name).values()) == {None}, name
    table = of_external(project, "table2-kem")
    assert {reason for reason in table.values() if reason} == {"external: its quicbed.yaml does not list bike-l1"}
    assert len(table) == len(project.experiments["table2-kem"].variants)
    assert ("external", "noop") in builds_needed(project, ["aead-goodput"])
    # but no primitives, which its scripts cannot time
    both = ("external", "quinn")
    built = {(one, "pq"): Build(build=f"{one}-1", library=one, flavour="pq", version="1") for one in both}
    timed = cells_of(project, "table2-kem", "c", built)
    assert {cell.client.library for cell in timed if cell.arm == PRIMITIVES} == {"quinn"}
    (aes, *_) = (c for c in cells_of(project, "aead-goodput", "c", {}) if c.client.library == "external")
    assert aes.client.as_dict()["times"] is True


def test_a_folder_is_made_of_the_components_that_it_states(root: Path) -> None:
    flavours = {"stock": {"components": ["boringssl"]}, "pq": {"components": ["liboqs"], "groups": ["mlkem768"]}}
    made = folder(root, flavours=flavours).libraries["external"].flavours
    assert {name: one.components for name, one in made.items()} == {"stock": ["boringssl"], "pq": ["liboqs"]}
    assert all("workflow/crypto/noop-aead" in one.sources for one in made.values())
    assert "mlkem768" not in made["pq"].unsupported
    plain = folder(root).libraries["external"].flavours["stock"]
    assert (plain.components, plain.sources) == ([], [])


def test_what_a_folder_always_does_is_not_varied(root: Path) -> None:
    project = folder(root, supports={"gso": [True], "gro": [True, False]})
    found = of_external(project, "offloads")
    assert found["off"] == "external: its quicbed.yaml says that it always uses UDP GSO"
    assert {reason for label, reason in found.items() if label != "off"} == {None}


@pytest.mark.parametrize(
    "stated",
    [
        None,
        {"supports": {"groups": ["x25518"]}},
        {"supports": {"noop": True}},
        {"supports": {"nop": True}},
        {"statement": 2},
        {"flavours": {"stock": {"components": ["boringsssl"]}}},
        {"times": True, "requests": 3},
    ],
    ids=wording.name,
)
def test_a_folder_whose_statement_cannot_be_used_is_left_out_with_the_reason(
    stated: dict[str, Any] | None, snapshot: SnapshotAssertion, root: Path
) -> None:
    folder(root, **(stated or {}))
    if stated is None:
        (root / "endpoint" / "quicbed.yaml").unlink()
    project = Project(root)
    (reason,) = set(of_external(project, "aead-goodput").values())
    assert str(reason).startswith("external: config/libraries/external.yaml: external.path: ")
    assert wording.one_line(reason, root) == snapshot
    # so that building it says why
    assert builds_needed(project.restricted(["aead-goodput"], ["external"]), ["aead-goodput"]) == [
        ("external", "stock")
    ]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("title: x\nexternal: {path: endpoint}\n", "title"),
        ("external: {path: endpoint, requests: 3}\n", "external.requests"),
        ("recipe: external\n", "recipe"),
    ],
)
def test_the_old_form_of_an_external_endpoint_is_an_error_that_says_where_it_belongs(
    text: str, key: str, root: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"external\.yaml: {key}: .* is described in quicbed\.yaml in its folder"):
        folder(root, text)


def test_an_optional_library_takes_part_where_the_configuration_names_it(root: Path) -> None:
    optional = EXTERNAL + "optional: true\n"
    assert of_external(folder(root, optional), "aead-goodput") == {}
    asked = {"libraries": ["external"], "experiments": ["aead-goodput"]}
    assert of_external(Project(root, asked), "aead-goodput")


def test_a_variant_s_connections_are_those_of_its_scale() -> None:
    project = Project(ROOT).without_folders()
    cells = {cell.slug: cell for cell in cells_of(project, "table3-signature", "c", {})}
    assert cells["openssl-rsa-2048"].connections == 20
    assert cells["openssl-sphincs-sha2-128s"].connections == 2
    scale = project.scale("table3-signature")
    assert scale.blocks * scale.connections >= 100
    assert scale.blocks * (scale.slow_connections or 0) >= 10


def test_a_new_build_makes_new_cells() -> None:
    project = Project(ROOT).without_folders()
    keys = builds_needed(project, ["aead-goodput"])
    before = {key: Build(build=f"{key}-1", library=key[0], flavour=key[1], version="1") for key in keys}
    after = before | {("quiche", "noop"): Build(build="other", library="quiche", flavour="noop", version="1")}
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


def test_a_flavour_that_a_library_has_not_has_the_same_reason_in_tables_and_documentation(root: Path) -> None:
    edit(root, "experiments/table2-kem.yaml", "libraries: [", "libraries: [quic-go, s2n-quic, ")
    cells = cells_of(Project(root), "table2-kem", "c", {})
    project = Project(ROOT).without_folders()
    lines = [line for name in project.libraries for line in library_page(project, name).splitlines()]
    lines = [line for line in lines if line.startswith("| flavour `")]
    # what one library alone needs has no reason in the others
    flavours = {
        name for library in project.libraries.values() for name, one in library.flavours.items() if not one.jumbo
    }
    missing = {}
    for name, library in project.libraries.items():
        assert set(library.no_flavour) == flavours - set(library.flavours), f"{name}: every one with its reason"
        missing |= {(name, flavour): reason for flavour, reason in sorted(library.no_flavour.items())}
    assert lines == [f"| flavour `{flavour}` | {why} |" for (_, flavour), why in missing.items()]
    for name in ("quic-go", "s2n-quic"):
        reasons = {cell.unsupported for cell in cells if cell.client.library == name}
        assert reasons == {f"{name}: {missing[name, 'pq']}"}


def test_a_library_without_noenc_has_the_same_reason_in_tables_and_documentation() -> None:
    project = Project(ROOT).without_folders()
    cells = {cell.client.library: cell for cell in cells_of(project, "aead-goodput", "c", {}) if cell.label == "NOENC"}
    for name in cells:
        library = project.libraries[name]
        line = f"| NOENC, 1-RTT packets without packet protection | {noenc_reason(library)} |"
        section = library_page(project, name)
        assert (line in section) == (not library.supports.noenc) == (cells[name].unsupported is not None)
        if reason := cells[name].unsupported:
            assert reason == f"{library.title} cannot leave out packet protection: {noenc_reason(library)}"


def test_campaigns_differ_by_scale_and_machine_and_not_by_cells(root: Path) -> None:
    project = Project(root)
    ids = {
        campaign_of(project, "aead-goodput", {"host_id": "a"})[0],
        campaign_of(project, "aead-goodput", {"host_id": "b"})[0],
        campaign_of(project, "aead-goodput", {"host_id": "a", "cpu_model": "x"})[0],
        campaign_of(project, "aead-goodput", {"host_id": "a", "microcode": "0x1"})[0],
        campaign_of(project, "aead-goodput", {"host_id": "a", "kernel": "6.1"})[0],
        campaign_of(project, "aead-goodput", {"host_id": "a", "memory_bytes": 2**33})[0],
        campaign_of(Project(root, {"scale": "paper"}), "aead-goodput", {"host_id": "a"})[0],
    }
    assert len(ids) == 7
    edit(root, "experiments/aead-goodput.yaml", "libraries: all", "libraries: [quiche]")
    assert campaign_of(Project(root), "aead-goodput", {"host_id": "a"})[0] in ids


def test_campaigns_over_ssh_differ_by_what_is_set_on_the_hosts(root: Path) -> None:
    machine = {"host_id": "a"}
    # those of this machine have the ids that they had before there were others
    _, local = campaign_of(Project(root), "aead-goodput", machine)
    assert set(local) == {"experiment", "scale", "testbed", "machine", "bytes", "connections", "workload", "link"}
    file = root / "config" / "testbeds" / "pair.yaml"

    def id_with(**settings: Any) -> str:
        host = {"interface": {"name": "eth1"}, "address": "a.example"}
        hosts = {"client": host | {"ip": "192.0.2.1"}, "server": host | {"ip": "192.0.2.2"} | settings}
        file.write_text(json.dumps({"kind": "ssh", "hosts": hosts}), encoding="utf-8")
        return campaign_of(Project(root, {"testbed": "pair"}), "aead-goodput", machine)[0]

    changes: list[dict[str, Any]] = [
        {},
        {"cpus": "2-3"},
        {"governor": "performance"},
        {"irq_cpus": "0-1"},
        {"rings": {"rx": 512}},
        {"rings": {"rx": 1024}},
        {"sysctl": {"net.core.rmem_max": 1}},
        {"ingress": ["fq"]},
    ]
    assert len({id_with(**change) for change in changes}) == len(changes)
    # not by how that is written, nor by what a host is reached with
    assert id_with(irq_cpus="1,0") == id_with(irq_cpus="0-1")
    assert id_with(sysctl={"net.core.rmem_max": "1"}) == id_with(sysctl={"net.core.rmem_max": 1})
    assert id_with(address="b.example", record=["net.core.somaxconn"]) == id_with()


def libraries_of(root: Path, text: str) -> list[tuple[str, str]]:
    """Pairs of an experiment whose `libraries` are as given."""
    edit(root, "experiments/table2-kem.yaml", "baseline:", f"libraries: {text}\nbaseline:")
    file = root / "config" / "experiments" / "table2-kem.yaml"
    first = next(line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("libraries:"))
    edit(root, "experiments/table2-kem.yaml", f"{first}\n", "")
    return [(pair.client, pair.server) for pair in Project(root).experiments["table2-kem"].pairs()]


def test_every_library_has_an_example_to_compare_with_or_the_reason_why_not() -> None:
    libraries = Project(ROOT).without_folders().libraries.values()
    assert all((library.example is None) != (library.no_example is None) for library in libraries)


def test_an_example_and_a_reason_why_there_is_none_contradict_each_other(root: Path) -> None:
    edit(root, "libraries/quinn.yaml", "flavours:", "no_example: it has none\nflavours:")
    with pytest.raises(ConfigError, match=r"quinn\.yaml: .*no_example: gives a reason for no example"):
        Project(root)


def test_all_libraries_are_those_of_the_directory_but_optional_ones(root: Path) -> None:
    known = [name for name in Project(root).libraries if name != "bare-udp"]
    assert libraries_of(root, "all") == [(name, name) for name in known]
    edit(root, "libraries/quinn.yaml", "transport: quic", "transport: quic\noptional: true")
    left = [(name, name) for name in known if name != "quinn"]
    assert libraries_of(root, "all") == left
    assert libraries_of(root, "quic") == [pair for pair in left if pair[0] != "tcp-tls"]


def test_pairwise_is_every_client_with_every_server_it_can_talk_to(root: Path) -> None:
    found = libraries_of(root, "[quiche, quinn, tcp-tls]\npairwise: true")
    quic = ("quiche", "quinn")
    assert sorted(found) == sorted([(a, b) for a in quic for b in quic] + [("tcp-tls", "tcp-tls")])


def test_endpoints_of_different_application_protocols_are_not_paired(root: Path) -> None:
    edit(root, "libraries/quinn.yaml", "transport: quic", "transport: quic\nalpn: h3")
    with pytest.raises(ConfigError, match=r"table2-kem\.yaml: libraries: quiche and quinn do not use the same"):
        libraries_of(root, "[{client: quiche, server: quinn}]")


def test_pairs_in_a_pairwise_experiment_are_an_error(root: Path) -> None:
    with pytest.raises(ConfigError, match="name libraries, not pairs"):
        libraries_of(root, "[{client: quiche, server: quinn}]\npairwise: true")


def test_only_chosen_libraries_are_measured(root: Path) -> None:
    project = Project(root, {"libraries": ["quiche", "tcp-tls"], "experiments": ["aead-goodput"]})
    assert {pair.client for pair in project.experiments["aead-goodput"].pairs()} == {"quiche", "tcp-tls"}
    assert {library for library, _ in builds_needed(project, ["aead-goodput"])} == {"quiche", "tcp-tls"}
    pairs = project.experiments["pairwise"].pairs()
    assert [(pair.client, pair.server) for pair in pairs] == [("quiche", "quiche")]
    with pytest.raises(ConfigError, match=r"libraries: `quich` is unknown; did you mean `quiche`"):
        Project(root, {"libraries": ["quich"]})
    with pytest.raises(ConfigError, match=r"experiment `header-protection` has none of tcp-tls; name one"):
        Project(root, {"libraries": ["tcp-tls"], "experiments": ["header-protection"]})


DEFAULTS = """
title: Test
source: none
question: none
workload: {kind: bulk}
link: {mode: wire}
libraries: [quinn]
defaults: {cipher: aes-128-gcm, rtt_ms: 10}
variants:
  - {label: one}
  - {label: other, cipher: chacha20-poly1305}
baseline: one
scales:
  tiny: {bytes: 1000, blocks: 3, timeout_s: 1}
"""


def test_variants_have_the_defaults_unless_they_say_otherwise(root: Path) -> None:
    file = root / "config" / "experiments" / "test.yaml"
    file.write_text(DEFAULTS, encoding="utf-8")
    one, other = Project(root).experiments["test"].variants
    assert (one.cipher, one.rtt_ms) == ("aes-128-gcm", 10)
    assert (other.cipher, other.rtt_ms) == ("chacha20-poly1305", 10)
    file.write_text(DEFAULTS.replace("rtt_ms", "rtt"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"test\.yaml: defaults: `rtt` is no key of variants"):
        Project(root)
    file.write_text(DEFAULTS.replace("rtt_ms: 10", "label: one"), encoding="utf-8")
    with pytest.raises(ConfigError, match="defaults: `label` is no key of variants that may be the same in several"):
        Project(root)


STAIRS = {
    "of mappings": "".join(f"{' ' * level}k:\n" for level in range(MOST_LEVELS - 2)),
    "of lists": "".join(f"{' ' * level}k:\n{' ' * level}-\n" for level in range(MOST_LEVELS - 2)),
}


@pytest.mark.parametrize("stairs", STAIRS.values(), ids=STAIRS)
def test_deep_files_are_read(tmp_path: Path, stairs: str) -> None:
    """A fast loader of YAML has the stack of C, which ends in a crash and no exception."""
    file = tmp_path / "deep.yaml"
    file.write_text(stairs, encoding="utf-8")
    assert list(read_yaml(file)) == ["k"]


@pytest.mark.parametrize("deeper", ["- " * 20_000, f"{'[' * (MOST_LEVELS - 1)}{']' * (MOST_LEVELS - 1)}"])
def test_deeper_files_are_an_error(tmp_path: Path, deeper: str) -> None:
    file = tmp_path / "deep.yaml"
    file.write_text(f"a:\n  {deeper}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"deep\.yaml: .*not valid YAML"):
        read_yaml(file)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
def test_files_of_other_editors_are_read(tmp_path: Path, encoding: str, ends: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_bytes(ends.join(["title: Größe", "rate: 1", ""]).encode(encoding))
    assert read_yaml(file) == {"title": "Größe", "rate": 1}
    file.write_bytes(b"PK\x03\x04 and more")
    with pytest.raises(ConfigError, match=r"x\.yaml: cannot be read: is a ZIP archive: unpack it"):
        read_yaml(file)


def test_a_key_given_twice_is_an_error_in_files_with_long_lines_too(tmp_path: Path) -> None:
    for text in ("a: 1\nb: 2\na: 3\n", f"a: {'x' * MOST_LEVELS}\nb: 2\na: 3\n"):
        file = tmp_path / "twice.yaml"
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match="line 3: not valid YAML: key `a` is given twice"):
            read_yaml(file)
