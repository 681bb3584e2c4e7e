"""Text of drawn figures that cannot be read: outside of its frame, or over other text.

A browser says where it puts each line of text. What is compared are the upright or turned rectangles of its letters,
without the room that the font leaves above and below them.
"""

from __future__ import annotations

import html
import itertools
import json
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from choreographer.browsers import Chromium

TOLERANCE_PX = 1.0
MARGIN_PX = 3
"""Between text and the edge of its figure."""
ABOVE, BELOW = 0.17, 0.12
"""Shares of the height of a line that capitals and descenders leave free."""

Point = tuple[float, float]
Quad = Sequence[Point]

_PAGE = """<!DOCTYPE html><meta charset="utf-8"><body style="margin:0"></body><script>
const margin = %(margin)d;
function corners(box, matrix) {
  return [[0, 0], [1, 0], [1, 1], [0, 1]].map(([right, down]) => {
    const point = new DOMPoint(box.x + right * box.width, box.y + down * box.height).matrixTransform(matrix);
    return [point.x, point.y];
  });
}
function frames(root, element) {
  const [width, height] = ["width", "height"].map((key) => +root.getAttribute(key) - 2 * margin);
  const found = [corners({x: margin, y: margin, width, height}, root.getScreenCTM())];
  for (let one = element; one !== root; one = one.parentElement) {
    const name = /#([^"')]+)/.exec(one.getAttribute("clip-path") || "");
    const rect = name && root.querySelector(`[id="${name[1]}"] > rect`);
    if (rect) {
      const box = Object.fromEntries(["x", "y", "width", "height"].map((key) => [key, +rect.getAttribute(key) || 0]));
      found.push(corners(box, one.getScreenCTM()));
    }
  }
  return found;
}
function lines(root) {
  const elements = [...root.querySelectorAll("text")].flatMap((text) => {
    const parts = [...text.querySelectorAll("tspan.line")];
    return parts.length ? parts : [text];
  });
  return elements.filter((one) => one.textContent.trim() && one.checkVisibility({opacityProperty: true})).map((one) => {
    const box = one.getBBox(), above = %(above)f * box.height, below = %(below)f * box.height;
    const letters = {x: box.x, y: box.y + above, width: box.width, height: box.height - above - below};
    return {text: one.textContent, quad: corners(letters, one.getScreenCTM()), frames: frames(root, one)};
  }).filter((one) => one.quad[0][0] !== one.quad[2][0]);
}
async function measure(svg) {
  const root = document.adoptNode(new DOMParser().parseFromString(svg, "image/svg+xml").documentElement);
  document.body.replaceChildren(root);
  await Promise.all([...document.fonts].map((face) => face.load()));
  return lines(root);
}
(async () => {
  const found = [];
  for (const svg of %(svgs)s) found.push(await measure(svg));
  document.body.replaceChildren(Object.assign(document.createElement("pre"), {textContent: JSON.stringify(found)}));
})();
</script>"""


def problems(svgs: Iterable[Path], scratch: Path) -> list[str]:
    """What is wrong with the text of figures, a line each; a page is left in *scratch*."""
    files = list(svgs)
    found = _measured([file.read_text(encoding="utf-8") for file in files], scratch)
    return [f"{file.name}: {told}" for file, lines in zip(files, found, strict=True) for told in _of_figure(lines)]


def _measured(svgs: Sequence[str], scratch: Path) -> list[list[dict[str, Any]]]:
    page = scratch / "legible.html"
    told = json.dumps(svgs).replace("</", "<\\/")
    page.write_text(_PAGE % {"margin": MARGIN_PX, "above": ABOVE, "below": BELOW, "svgs": told}, encoding="utf-8")
    browser = Chromium.find_browser(skip_local=False)
    assert browser
    options = ["--headless", "--no-sandbox", f"--user-data-dir={scratch / 'profile'}", "--virtual-time-budget=600000"]
    done = subprocess.run([browser, *options, "--dump-dom", page.as_uri()], capture_output=True, check=True)
    result = re.search(r"<pre>(.*)</pre>", done.stdout.decode(), re.DOTALL)
    assert result, done.stdout[-2000:]
    measured: list[list[dict[str, Any]]] = json.loads(html.unescape(result.group(1)))
    return measured


def _of_figure(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    assert lines, "a figure without text"
    for line in lines:
        beyond = max(_beyond(line["quad"], frame) for frame in line["frames"])
        if beyond > TOLERANCE_PX:
            yield f"'{line['text']}' is cut off, {beyond:.1f} px stand outside"
    for one, other in itertools.combinations(lines, 2):
        if (over := _over(one["quad"], other["quad"])) > TOLERANCE_PX:
            yield f"'{one['text']}' and '{other['text']}' stand over each other by {over:.1f} px"


def _beyond(quad: Quad, frame: Quad) -> float:
    """How far a quadrilateral reaches out of an upright rectangle."""
    (left, top), _, (right, bottom), _ = frame
    return max(max(left - x, x - right, top - y, y - bottom) for x, y in quad)


def _over(one: Quad, other: Quad) -> float:
    """By how much rectangles of any direction overlap: the least distance that separates them, negative if none."""
    depths = []
    for (ax, ay), (bx, by) in ((quad[side], quad[side + 1]) for quad in (one, other) for side in (0, 1)):
        length = ((bx - ax) ** 2 + (by - ay) ** 2) ** 0.5
        across = ((bx - ax) / length, (by - ay) / length)
        mine, theirs = ([x * across[0] + y * across[1] for x, y in quad] for quad in (one, other))
        depths.append(min(max(mine) - min(theirs), max(theirs) - min(mine)))
    return min(depths)
