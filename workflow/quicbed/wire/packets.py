"""Captures as tables: a row a frame, in Parquet, written by the program in workflow/capture.

For captures of any size: the program reads millions of packets a second in constant memory. It reads pcap and pcapng,
plain or in gzip or zstd. What the columns mean is in docs/pacing.md. Where the contents of packets count, as for
proofs and handshakes, `quicbed.wire.pcap` reads them.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import polars as pl
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from quicbed.base import durable, untrusted
from quicbed.wire.pcap import CaptureError

SNAP_BYTES = 128
"""Snap length with which every header that the table needs is whole: Ethernet, IPv6, UDP, a long header of QUIC."""

Progress = Callable[[int, int, int], None]
"""Told once a second: bytes read of the file, bytes it has, frames so far."""

_LONGEST_LINE = 1 << 16
_UNPACKED_SHARE = 10
"""A compressed capture may unpack to a tenth of what archives may: packets that are encrypted hardly compress."""


class Packets(BaseModel):
    """What a capture is, and what is wrong with it. Frames are counted from 1, as Wireshark does."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: str = Field(description="pcap or pcapng.")
    packing: str | None = Field(description="gzip or zstd; null: not compressed.")
    interfaces: int
    frames: int = Field(description="Rows of the table.")
    connections: int
    packets: int | None = Field(None, description="Frames with a UDP datagram or a TCP segment.")
    other_frames: int = Field(description="Frames with neither UDP nor TCP, or without a whole header of them.")
    fragment_frames: int = Field(0, description="Frames with a fragment of a UDP datagram or TCP segment.")
    first_fragment: int | None = None
    unread_datagrams: int = Field(0, description="Datagrams of versions of QUIC that are not read.")
    first_unread: int | None = None
    unread_versions: tuple[int, ...] = Field((), description="Such versions, the first few.")
    short_frames: int = Field(description="Frames captured so short that a header the table needs is not whole.")
    first_short: int | None
    backward_frames: int = Field(description="Frames stamped before the one before of their interface.")
    first_backward: int | None
    unstamped_frames: int = Field(description="Frames without a time, which pcapng allows.")
    unknown_connection: int = Field(description="Packets of connections beyond the most that are distinguished.")
    dropped_frames: int | None = Field(description="Frames lost, by the capturing program; null: it reports none.")
    truncated: str | None = Field(description="Where and how the file ends too early.")
    encrypted: int = Field(0, description="1-RTT packets without a number although there is a key log.")
    one_rtt: int = Field(0, description="1-RTT packets, where there is a key log.")
    key_log: str | None = Field(None, description="The key log.")

    def problems(self, capture: Path) -> list[str]:
        """Why times and sizes of this capture are not to be relied on: a line each, with the remedy; empty if they are.

        The table holds what there is all the same.
        """
        found = []
        if self.truncated:
            found.append(f"{self.truncated}: the table has the {self.frames} frames before; capture again")
        if self.short_frames:
            found.append(
                f"{self.short_frames} frames, the first is frame {self.first_short}, were captured too short for their "
                f"headers; capture with a snap length of at least {SNAP_BYTES} bytes"
            )
        if self.fragment_frames:
            found.append(
                f"{self.fragment_frames} frames, the first is frame {self.first_fragment}, hold fragments of IP "
                "packets, which are not put together; capture with a larger MTU"
            )
        if self.unread_datagrams:
            versions = ", ".join(f"0x{version:08x}" for version in self.unread_versions)
            found.append(
                f"{self.unread_datagrams} datagrams, the first in frame {self.first_unread}, are of QUIC version "
                f"{versions}, which is not read; read are versions 1 and 2, drafts 23 to 34"
            )
        if self.encrypted:
            which = "none" if self.encrypted == self.one_rtt else f"only {self.one_rtt - self.encrypted}"
            found.append(
                f"{which} of the {self.one_rtt} 1-RTT packets could be decrypted with {self.key_log}; "
                "name the key log of this capture, of whole connections and whole packets"
            )
        if self.backward_frames:
            found.append(
                f"{self.backward_frames} frames, the first is frame {self.first_backward}, are stamped before the one "
                "before: a clock was set, or files were joined; capture again, or sort with reordercap what was joined"
            )
        if self.unstamped_frames:
            found.append(f"{self.unstamped_frames} frames have no time; capture again with another program")
        if self.dropped_frames:
            found.append(
                f"the program that captured lost {self.dropped_frames} frames; capture again with a larger buffer or a "
                "shorter snap length"
            )
        if self.unknown_connection:
            found.append(f"{self.unknown_connection} packets are of too many connections; capture fewer of them")
        if self.packets == 0 and not found:
            found.append(
                f"none of its {self.frames} frames has a UDP datagram or TCP segment; capture another interface"
            )
        return [f"{capture}: {problem}" for problem in found]


@dataclass(frozen=True)
class Keys:
    """What opens packets of a capture (`quicbed.wire.numbers`)."""

    log: Path
    numbers: Callable[[Path], Mapping[int, int]]
    """Of every frame of a pcap file, counted from 1, with a QUIC packet that could be opened its number."""


def read(
    program: Path,
    capture: Path,
    output: Path,
    *,
    server: tuple[str, int] | None = None,
    visible_numbers: bool = False,
    keys: Keys | None = None,
    progress: Progress | None = None,
) -> Packets:
    """Write the table of a capture, whole or not at all; *program* is the built component ``capture-reader``.

    *server* is the address and port of the server; without it the one who sends the first SYN or Initial packet is
    taken for the client. With *visible_numbers* packets of connections with short headers have no header protection,
    and their numbers are read. With *keys* packets of QUIC are opened for their numbers, in minutes for a million of
    them and in memory that grows with them. A `CaptureError` is one line that names the file and the remedy.
    """
    if not capture.is_file():
        raise CaptureError(f"{capture}: is no file; name a capture in pcap or pcapng format")
    most = untrusted.MOST_UNPACKED + untrusted.UNPACKED_RATIO // _UNPACKED_SHARE * capture.stat().st_size
    argv = [str(program), str(capture.absolute()), "", f"--most-unpacked={most}"]
    if server is not None:
        address, port = server
        argv.append(f"--server=[{address}]:{port}" if ":" in address else f"--server={address}:{port}")
    if visible_numbers:
        argv.append("--visible-numbers")
    with tempfile.TemporaryDirectory() as directory, durable.replacing(output) as partial:
        argv[2] = str(partial.absolute())
        if keys is not None:
            plain = Path(directory) / "frames.pcap"
            argv.append(f"--frames={plain}")
        found = _run(argv, capture, progress)
        if keys is None:
            return found
        told = _numbered(partial, keys.numbers(plain) if found.frames else {})
        return found.model_copy(update={**told, "key_log": str(keys.log)})


def _numbered(table: Path, numbers: Mapping[int, int]) -> dict[str, int]:
    """Put numbers of packets into a table by frame; returns how many 1-RTT packets it has, and how many without one."""
    opened = pl.DataFrame(
        {"frame": list(numbers), "opened": list(numbers.values())}, schema={"frame": pl.Int64(), "opened": pl.Int64()}
    )
    rows = pl.read_parquet(table, glob=False).join(opened, on="frame", how="left", maintain_order="left")
    rows = rows.with_columns(pl.coalesce("packet_number", "opened").alias("packet_number")).drop("opened")
    rows.write_parquet(table)
    one_rtt = pl.col("packet_type") == "1rtt"
    without = one_rtt & pl.col("packet_number").is_null()
    return rows.select(one_rtt.sum().alias("one_rtt"), without.sum().alias("encrypted")).row(0, named=True)


def _run(argv: Sequence[str], capture: Path, progress: Progress | None) -> Packets:
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        )
    except OSError as error:
        raise CaptureError(f"{argv[0]}: cannot be started: {error.strerror}; build the component again") from None
    with process:
        try:
            assert process.stdout is not None  # noqa: S101 (a pipe, as asked for)
            assert process.stderr is not None  # noqa: S101
            said = _said(process.stderr, progress)
            summary = process.stdout.read(_LONGEST_LINE)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise CaptureError(said or f"{capture}: the reader ended with {process.returncode} and printed nothing")
    try:
        return Packets.model_validate_json(summary)
    except ValidationError:
        raise CaptureError(f"{argv[0]}: is of another version; build the component again") from None


def _said(lines: IO[str], progress: Progress | None) -> str:
    """The last line that is no progress, with progress told meanwhile."""
    said = ""
    while line := lines.readline(_LONGEST_LINE):
        words = line.split()
        if len(words) == 4 and words[0] == "progress" and all(word.isdecimal() for word in words[1:]):
            if progress is not None:
                progress(int(words[1]), int(words[2]), int(words[3]))
        else:
            said = untrusted.one_line(line)
    return said
