"""What the notebooks draw of the reference data: the content of every figure, and that its text can be read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from choreographer.browsers import Chromium
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

import compact
import legible
from clone import ROOT
from quicbed.analysis.place import ARTIFACTS_VARIABLE, PUBLISHED_VARIABLE
from quicbed.config.model import PICTURES_VARIABLE
from quicbed.figures import output
from quicbed.store.paths import RAW_VARIABLE, TABLE_VARIABLE

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def gallery(reference_table: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, output.Drawn]:
    """Every figure by where it is written, without suffix."""
    artifacts = tmp_path_factory.mktemp("artifacts")
    found: dict[str, output.Drawn] = {}
    save = output.save

    def noted(drawn: output.Drawn | Sequence[output.Drawn], directory: Path, **more: Any) -> list[output.Saved]:
        for one in [drawn] if isinstance(drawn, output.Drawn) else drawn:
            name = str((directory / one.name).relative_to(artifacts / "figures"))
            found[name] = one
            if one.column is not None:
                found[f"{name}{output.COLUMN}"] = replace(one, figure=one.column, column=None)
        return save(drawn, directory, **more)

    environment = {RAW_VARIABLE: str(ROOT / "raw" / "reference"), ARTIFACTS_VARIABLE: str(artifacts)}
    environment |= {TABLE_VARIABLE: str(reference_table), PUBLISHED_VARIABLE: "", PICTURES_VARIABLE: ""}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "environ", {**os.environ, **environment})
        patch.setattr(output, "save", noted)
        patch.chdir(ROOT / "notebooks")
        for path in sorted(Path().glob("*.ipynb")):
            namespace: dict[str, Any] = {}
            for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
                if cell["cell_type"] == "code":
                    exec(compile("".join(cell["source"]), str(path), "exec"), namespace)  # noqa: S102 (our own notebook)
    return found


class Lines(SingleFileSnapshotExtension):
    """A file for each figure."""

    _write_mode = WriteMode.TEXT
    file_extension = "txt"


def test_every_figure(gallery: dict[str, output.Drawn], snapshot: SnapshotAssertion, subtests: pytest.Subtests) -> None:
    """Where one is meant to change, `--snapshot-update` writes the new ones, and the difference is looked at."""
    kept = snapshot.use_extension(Lines)
    for name, drawn in sorted(gallery.items()):
        with subtests.test(figure=name):
            assert compact.figure(drawn.figure) == kept(name=name.replace("/", "-"))


@pytest.mark.skipif(Chromium.find_browser(skip_local=False) is None, reason="no Chromium is installed")
def test_all_text_of_the_reference_figures_can_be_read(
    gallery: dict[str, output.Drawn], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {"goodput-by-aead", "cpu-shares", "pairwise", "own/own-ratios"} <= gallery.keys()
    monkeypatch.setenv(PICTURES_VARIABLE, "svg,pdf")
    drawn = [replace(one, name=name.replace("/", "-"), column=None) for name, one in gallery.items()]
    saved = output.save(drawn, tmp_path)
    assert {one.skipped for one in saved} == {None}
    svgs = sorted(tmp_path.glob("*.svg"))
    assert len(svgs) == len(gallery)
    assert legible.problems(svgs, tmp_path) == []
    for file in svgs:
        fonts = set(re.findall(rb"/BaseFont /(?:[A-Z]+\+)?([\w-]+)", file.with_suffix(".pdf").read_bytes()))
        assert fonts <= {b"Arimo-Regular", b"Arimo-Bold"}, file.name
        assert fonts, file.name
