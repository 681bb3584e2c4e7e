"""What a browser needs to load a page in the place of a client: the page's files, and the program that drives it.

It is put together once for each page, in a directory that is given to both hosts::

    www/        files of the page or video (`quicbed.contract.webpage`, `videofiles`)
    bin/client  starts the program
    lib/        its modules
    dash.js     what plays a video

The directory's name has a digest of all of it, so that a changed page or program is another directory.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from quicbed.base.hashing import digest
from quicbed.builds import kit
from quicbed.config.model import Project
from quicbed.config.pages import Page
from quicbed.config.videos import Video
from quicbed.contract import videofiles
from quicbed.measure import player
from quicbed.plan import browser
from quicbed.testbed import Host

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
"""What the browser is called, in the order in which it is looked for."""
VARIABLE = "BROWSER_PATH"
"""Of the environment: the path of the browser."""
_VERSION = re.compile(r"[\w ]*?[\d.]+")
"""In what it prints: `Chromium 156.0.8078.79 built on Debian GNU/Linux 12 (bookworm)`."""
START = """\
import sys

from endpoint.client import main

sys.exit(main())
"""
PLAY = """\
import sys

from endpoint.client import main
from endpoint.player import Player

sys.exit(main(Player))
"""
VIDEO_DOCUMENT = b"""\
<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><title>video</title><link rel="icon" href="data:,"><video muted></video></html>
"""
LAUNCHER = """\
#!/bin/sh
# Runs the program; where its interpreter is not, as on another host, with the Python there.
python={interpreter}
test -x "$python" || python=python3
exec "$python" -IBS "${{0%/*}}/../lib" "$@"
"""


def provided(project: Project, page: Page) -> Path:
    """The directory for a page on this machine, made where it is missing."""
    files = browser.files(project.root, page)
    files |= _program(START)
    target = project.build / "pages" / f"{page.name}-{browser.identity(files)}"
    return kit.filled(target, lambda made: write(made, files.items()))


def provided_video(project: Project, video: Video, play_s: float) -> Path:
    """As `provided` for a video; PlayerError without its player."""
    files = browser.modules(project.root) | _program(PLAY) | {player.FILE: player.fetch(project).read_bytes()}
    seconds = video.segments(play_s) * video.segment_s
    chosen = {"files": browser.identity(files), "video": browser.video_identity(project.root, video, play_s)}
    target = project.build / "pages" / f"{video.name}-{seconds:g}-{digest(chosen)}"

    def fill(made: Path) -> None:
        write(made, files.items())
        played = videofiles.files(video, play_s, VIDEO_DOCUMENT)
        write(made, ((f"www/{name}", content) for name, content in played))

    return kit.filled(target, fill)


def _program(start: str) -> dict[str, bytes]:
    return {"lib/__main__.py": start.encode(), "bin/client": launcher()}


def launcher() -> bytes:
    """What starts the Python program of `lib/` beside it."""
    return LAUNCHER.format(interpreter=shlex.quote(str(Path(sys.executable).resolve()))).encode()


def write(directory: Path, files: Iterable[tuple[str, bytes]]) -> None:
    """Write files of this content by name below a directory; those of `bin/` are programs."""
    for name, content in files:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        if name.startswith("bin/"):
            path.chmod(0o755)


def problem() -> str | None:
    """Why this machine loads no pages in Chromium, or None."""
    named = os.environ.get(VARIABLE)
    if (named and os.access(named, os.X_OK)) or (not named and any(map(shutil.which, NAMES))):
        return None
    return f"no Chromium found (Debian: apt-get install chromium, or set {VARIABLE})"


def version(host: Host) -> str | None:
    """Name and version of the browser of a host, as a run records it; None where there is none that tells."""
    named = os.environ.get(VARIABLE)
    look = 'for name; do path=$(command -v "$name") && exec "$path" --version; done'
    argv = ["sh", "-c", look, "sh", *([named] if named else NAMES)]
    found = _VERSION.match(host.run(argv, check=False).stdout)
    return " ".join(found[0].split()) if found else None


def environment(identity: Path, directory: Path, transport: str) -> dict[str, str]:
    """What the program is told that is not on its command line: page, key of the server, transport and browser."""
    chosen = {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}
    own = {"QUICBED_PAGE": str(directory / "www"), "QUICBED_PIN": pin(identity), "QUICBED_TRANSPORT": transport}
    own["QUICBED_PLAYER"] = str(directory / player.FILE)
    return chosen | own


def pin(identity: Path) -> str:
    """SHA-256 of the public key of a directory's server certificate in Base64 (RFC 7469, 2.4)."""
    certificate = x509.load_pem_x509_certificate((identity / "server.pem").read_bytes())
    key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(hashlib.sha256(key).digest()).decode("ascii")
