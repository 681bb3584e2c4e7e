"""Hooks of mkdocs: the pages that lie outside docs/, and links that lead out of it.

Links in the pages are those of the repository, so that they work where the pages are read as Markdown. In the site,
what is linked and is no page is a file below ``source/``; a link to a folder becomes its name.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
# Where pages that lie elsewhere in the repository are in the site.
ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "workflow/endpoints/ENDPOINT.md": "endpoint-contract.md",
}
SOURCE = {uri: path for path, uri in ELSEWHERE.items()}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)


def path_of(uri: str) -> str:
    """Where a page of the site lies in the repository."""
    return SOURCE.get(uri, f"docs/{uri}")


def target_of(page: str, link: str) -> str | None:
    """What a link of a page leads to, by its path in the repository; None for other sites and places in the page."""
    file = link.partition("#")[0]
    if not file or "://" in file or file.startswith("mailto:"):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), file))


def uri_of(path: str) -> str:
    """Where a file of the repository is in the site."""
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie elsewhere, and the files that pages link."""
    for own, uri in ELSEWHERE.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / own)))
    for page in files.documentation_pages():
        for _, _, link in LINK.findall(page.content_string):
            path = target_of(path_of(page.src_uri), link)
            if path is not None and (ROOT / path).is_file() and files.get_file_from_path(uri_of(path)) is None:
                files.append(File.generated(config, uri_of(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to what they name in the site, and indent lists as deep as Markdown in Python asks for."""
    del config, files
    here = page.file.src_uri

    def led(found: re.Match[str]) -> str:
        path = target_of(path_of(here), found[3])
        if path is None:
            return found[0]
        if (ROOT / path).is_dir():
            return found[2]
        anchor = f"#{found[3].partition('#')[2]}" if "#" in found[3] else ""
        return f"{found[1]}[{found[2]}]({posixpath.relpath(uri_of(path), posixpath.dirname(here) or '.')}{anchor})"

    # a drawing of mermaid needs a script from elsewhere; the table below it says the same
    text = re.sub(r"^```mermaid\n.*?^```\n", "", markdown, flags=re.DOTALL | re.MULTILINE)
    if re.search(r"^\d\. ", text, re.MULTILINE):
        text = re.sub(r"^ {3}(?=\S)", "    ", text, flags=re.MULTILINE)
    parts = FENCE.split(text)
    fences = [*FENCE.findall(text), ""]
    return "".join(LINK.sub(led, part) + fence for part, fence in zip(parts, fences, strict=True))
