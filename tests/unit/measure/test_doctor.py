"""What is said of the experiments that a testbed can measure."""

from __future__ import annotations

import pytest

from clone import ROOT
from quicbed.config.model import Project
from quicbed.measure import doctor, workflow_estimate
from quicbed.testbed import Feature

NO = Feature(False, "kernel has no netem")


@pytest.fixture
def project() -> Project:
    return Project(ROOT).without_folders()


def test_an_experiment_without_anything_against_it_can_be_measured(project: Project) -> None:
    verdict, reasons = doctor.judged(project, "header-protection", {})
    assert verdict.startswith("yes, ")
    assert reasons == []


def test_what_libraries_cannot_do_is_grouped_by_reason(project: Project) -> None:
    verdict, reasons = doctor.judged(project, "aes-ni", {})
    assert verdict.startswith("in part, ")
    assert reasons == [
        "2 unsupported (AES without AES-NI): noq, quinn: ring has no switch for the AES instructions of the processor"
    ]


def test_cells_that_need_what_the_kernel_lacks_are_told(project: Project) -> None:
    verdict, reasons = doctor.judged(project, "delay-loss", {"delay": NO})
    assert verdict.startswith("in part, ")
    assert [line.endswith(": no round-trip time: kernel has no netem") for line in reasons] == [True]


def test_cells_that_need_a_queueing_discipline_are_told(project: Project) -> None:
    verdict, reasons = doctor.judged(project, "pacing-fq", {"fq": NO})
    assert verdict.startswith("in part, ")
    assert [
        line for line in reasons if "(FQ" in line and line.endswith(": no queueing discipline fq: kernel has no netem")
    ]
    with_etf = doctor.judged(project, "pacing-etf", {"fq": NO})
    assert with_etf[0] == "in part, 2 of 4 cells"
    assert doctor.judged(project, "pacing-etf", {})[0] == "in part, 3 of 4 cells"


def test_cells_that_need_what_a_processor_lacks_are_told(project: Project) -> None:
    every = {"aes", "avx2", "bmi1", "pclmulqdq"}
    assert doctor.judged(project, "table2-kem", {}, [every]) == doctor.judged(project, "table2-kem", {})
    # of two hosts one
    verdict, reasons = doctor.judged(project, "table2-kem", {}, [every, every - {"avx2"}])
    assert verdict.startswith("in part, ")
    told = [line for line in reasons if "needs a processor with avx2" in line]
    older = [one for one in project.algorithms.groups if one.processor]
    assert older
    measured = {one.group for one in project.experiments["table2-kem"].variants}
    assert len(told) == len([one for one in older if one.name in measured])
    assert any("(HQC-128 (AVX2)): HQC-128 (AVX2) needs a processor with avx2" in line for line in told)


@pytest.mark.parametrize("lacks", doctor.NEEDED)
def test_without_what_every_experiment_needs_none_is_measured(project: Project, lacks: str) -> None:
    assert doctor.judged(project, "mtu", {lacks: NO}) == ("no", [f"{lacks}: kernel has no netem"])


def test_handshakes_need_tshark_and_downloads_do_not(project: Project) -> None:
    lacking = {"tshark": Feature(False, "tshark is missing")}
    assert doctor.judged(project, "table2-kem", lacking) == ("no", ["tshark is missing"])
    assert doctor.judged(project, "header-protection", lacking)[0].startswith("yes, ")


def test_a_disk_that_is_too_small_is_told_with_both_sizes(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflow_estimate, "disk_mb", lambda *_: 1e12)
    verdict, (reason,) = doctor.judged(project, "mtu", {})
    assert verdict == "no"
    assert reason.startswith("its builds and runs need 1000000000.0 GB of disk, ")


def test_experiments_that_a_study_leaves_to_others_are_judged_too() -> None:
    studied = Project(ROOT, {"study": "reference"})
    assert "web" not in studied.studies["reference"].experiments
    assert doctor.judged(studied, "web", {}) == doctor.judged(Project(ROOT), "web", {})
