"""Shapes of pages: read strictly, and what a variant of workload `page` must have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from syrupy.assertion import SnapshotAssertion

import wording
from clone import ROOT
from quicbed.config import pages
from quicbed.config.model import Experiment

HEADER = ",".join(pages.COLUMNS)


def table(root: Path, *lines: str, header: str = HEADER) -> Path:
    (root / "config").mkdir()
    (root / "config/pages.csv").write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return root


def test_sizes_of_a_type_add_up_to_what_is_published(tmp_path: Path) -> None:
    root = table(tmp_path, "a,html,1,2,here,2025-07", "a,image,3,10,here,2025-07")
    page = pages.read(root)["a"]
    assert page.sizes == (2048, 3414, 3413, 3413)
    assert page.bytes == 12 * 1024


def test_the_pages_that_come_with_the_repository_name_their_source() -> None:
    known = pages.read(ROOT)
    # Web Almanac 2025, "Median page by the bytes" and "File type requests": 22 + 82 + 139 + 697 + 1058 KB
    assert (len(known["median-2025"].sizes), known["median-2025"].bytes) == (3 + 8 + 4 + 22 + 19, 1998 * 1024)
    assert all(part.source.startswith("https://") and part.date for page in known.values() for part in page.parts)


@pytest.mark.parametrize(
    "lines",
    [
        ["a,html,0,2,here,2025-07"],
        ["a,html,1,two,here,2025-07"],
        ["a,image,1,2,here,2025-07"],
        ["a,html,1,2,here,2025-07", "a,html,1,2,here,2025-07"],
        [",html,1,2,here,2025-07"],
    ],
    ids=wording.name,
)
def test_a_table_that_cannot_be_used_says_where(tmp_path: Path, lines: list[str], snapshot: SnapshotAssertion) -> None:
    with pytest.raises(pages.PageError) as error:
        pages.read(table(tmp_path, *lines))
    assert wording.one_line(error.value, tmp_path, names="pages.csv: ") == snapshot


def test_other_columns_are_refused(tmp_path: Path) -> None:
    with pytest.raises(pages.PageError, match=f"the first line has to be {HEADER}"):
        pages.read(table(tmp_path, header="page,type,objects"))


def experiment(**changes: Any) -> dict[str, Any]:
    read = yaml.safe_load((ROOT / "config/experiments/web.yaml").read_text(encoding="utf-8"))
    return dict(read) | changes


def test_only_pages_have_a_page_and_all_of_them() -> None:
    Experiment.model_validate(experiment())
    with pytest.raises(ValidationError, match=r"page is of workload\.kind `page`, where each has one"):
        Experiment.model_validate(experiment(workload={"kind": "bulk"}))
    with pytest.raises(ValidationError, match=r"page is of workload\.kind `page`, where each has one"):
        Experiment.model_validate(experiment(defaults={"cipher": "aes-128-gcm"}))


def test_only_pages_are_loaded_by_a_browser() -> None:
    in_browser = [{"label": "a", "loaded_by": "chromium"}]
    read = Experiment.model_validate(experiment(variants=in_browser, baseline="a"))
    assert read.variants[0].loaded_by == "chromium"
    with pytest.raises(ValidationError, match=r"`a`: loaded_by is of workload\.kind `page`"):
        Experiment.model_validate(
            experiment(variants=in_browser, baseline="a", workload={"kind": "bulk"}, defaults={"cipher": "aes-128-gcm"})
        )
    with pytest.raises(ValidationError, match="Input should be 'endpoint' or 'chromium'"):
        Experiment.model_validate(experiment(variants=[{"label": "a", "loaded_by": "firefox"}], baseline="a"))


def test_only_pages_are_visited_again() -> None:
    again = [{"label": "a", "visit": "resumed"}]
    assert Experiment.model_validate(experiment(variants=again, baseline="a")).variants[0].visit == "resumed"
    with pytest.raises(ValidationError, match=r"`a`: visit is of workload\.kind `page`"):
        Experiment.model_validate(
            experiment(variants=again, baseline="a", workload={"kind": "bulk"}, defaults={"cipher": "aes-128-gcm"})
        )


def test_a_page_can_be_loaded_over_a_connection_that_is_kept() -> None:
    kept = [{"label": "a", "visit": "kept"}]
    assert Experiment.model_validate(experiment(variants=kept, baseline="a")).variants[0].visit == "kept"
    with pytest.raises(ValidationError, match="Input should be 'first', 'resumed', 'early-data' or 'kept'"):
        Experiment.model_validate(experiment(variants=[{"label": "a", "visit": "open"}], baseline="a"))


def test_low_rates_need_frames_of_their_own_size() -> None:
    with pytest.raises(ValidationError, match=r"`slow`: rate_mbit below 40 needs link\.mode `wire`"):
        Experiment.model_validate(
            experiment(
                link={"mode": "throughput"}, variants=[{"label": "slow", "rate_mbit": 5, "rtt_ms": 0}], baseline="slow"
            )
        )
    with pytest.raises(ValidationError, match="rate_mbit: below 40 needs mode `wire`"):
        Experiment.model_validate(experiment(link={"mode": "throughput", "rate_mbit": 5}))
