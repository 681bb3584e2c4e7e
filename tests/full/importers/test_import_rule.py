"""The workflow imports copies of published data sets."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import yaml

from clone import ROOT
from quicbed.importers import samples

OTHER = "quantum-of-quic"
"""A notebook that shows no published data; it is run with the others."""


def repetition(number: int) -> dict[str, bytes]:
    return samples.repetition("quiche", "lsquic", 20.0 + number)


def highway_copy() -> dict[str, bytes]:
    folder = "results/baseline/run1/quiche_lsquic/goodput"
    return {f"{folder}/{number}/{name}": data for number in (1, 2) for name, data in repetition(number).items()} | {
        "results/baseline/run1/result.json": json.dumps(samples.result_json({("quiche", "lsquic"): []})).encode()
    }


def test_the_workflow_imports_the_copies_of_the_configuration(tmp_path: Path) -> None:
    copy = samples.write(highway_copy(), tmp_path / "a copy")
    config = tmp_path / "config.yaml"
    paths = {"artifacts": str(tmp_path / "artifacts"), "raw": str(tmp_path / "raw")}
    config.write_text(yaml.safe_dump({"paths": paths, "published": {"highway": str(copy)}}), encoding="utf-8")
    snakemake = str(Path(sys.executable).parent / "snakemake")
    argv = [snakemake, "--cores", "1", "--configfile", str(config), "--nolock"]
    pages = [f"{tmp_path}/artifacts/reference/notebooks/{name}.html" for name in ("quic-on-the-highway", OTHER)]
    planned = subprocess.run([*argv, "-np", *pages], cwd=ROOT, capture_output=True, text=True, check=False)
    assert planned.returncode == 0, planned.stderr[-3000:]
    assert "import_published" in planned.stdout  # the notebook shows them
    told = re.findall(r"quicbed notebooks (.*\.ipynb) .* --published (.*)> ", planned.stdout)
    assert [published for _, published in told] == [f"{tmp_path}/artifacts/published/highway "]
    assert OTHER in told[0][0]
    done = subprocess.run([*argv, "published"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert pl.read_parquet(tmp_path / "artifacts/published/highway/runs.parquet").height == 2
