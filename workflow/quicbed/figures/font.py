"""The font of all figures, which goes with them: no machine draws them with another one, and nothing is cut off.

Arimo (SIL Open Font License 1.1, ``arimo/OFL.txt``) has the widths of Arial and Liberation Sans, which stand in for it
where a page may not load it. The files are those of the npm package @fontsource/arimo 5.3.0, unchanged: Latin letters
with the signs of Google Fonts' subset "latin", in regular and bold.
"""

from __future__ import annotations

import base64
import functools
import json
from pathlib import Path

READS = ("workflow/quicbed/figures/arimo/*",)

NAME = "Arimo"
FAMILY = f"{NAME}, Liberation Sans, Arial, Helvetica, sans-serif"
WEIGHTS = (400, 700)

_FILES = Path(__file__).parent / "arimo"

_LOAD = """
for (const [weight, data] of Object.entries(%(files)s)) {
  const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
  document.fonts.add(new FontFace("%(name)s", bytes, {weight}));
}
"""
# A picture is drawn from the text of its SVG alone, which sees no font of the page.
_EMBED = """
const plain = XMLSerializer.prototype.serializeToString;
XMLSerializer.prototype.serializeToString = function (node) {
  if (node.nodeName === "svg") {
    const style = document.createElementNS("http://www.w3.org/2000/svg", "style");
    style.textContent = %(rules)s;
    node.prepend(style);
  }
  return plain.call(this, node);
};
"""


@functools.cache
def _files() -> dict[int, str]:
    """Font files in base64, by weight."""
    return {
        weight: base64.b64encode((_FILES / f"arimo-latin-{weight}-normal.woff2").read_bytes()).decode()
        for weight in WEIGHTS
    }


def script() -> str:
    """An element for the head of a page, before the script that draws: it has the font at once, without waiting."""
    return f"<script>{_LOAD % {'name': NAME, 'files': json.dumps(_files())}}</script>"


def embedding() -> str:
    """As `script`, for a page that makes files: the font goes into every SVG that it writes."""
    rules = "".join(
        f"@font-face{{font-family:{NAME};font-weight:{weight};src:url(data:font/woff2;base64,{data})}}"
        for weight, data in _files().items()
    )
    return f"{script()}<script>{_EMBED % {'rules': json.dumps(rules)}}</script>"
