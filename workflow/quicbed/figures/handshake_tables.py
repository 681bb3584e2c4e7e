"""Tables II and III of A Quantum of QUIC: published values beside measured ones, to read, to print (LaTeX), as data."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from quicbed.analysis import additivity
from quicbed.analysis.place import RUNS_PAGE
from quicbed.analysis.published import LIBRARIES
from quicbed.analysis.ttfb import Transport
from quicbed.base import durable, untrusted
from quicbed.config import algorithms
from quicbed.figures import goodput, layout
from quicbed.figures.handshake_figures import libraries
from quicbed.figures.sheets import Sheet, leading, runs_page
from quicbed.plan.arms import PRIMITIVES
from quicbed.store import runs

PUBLISHED_TITLES = {"lsquic": "LSQUIC", "quiche": "quiche"}

SIZES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "group": ({"client_share_bytes": "public key", "server_share_bytes": "ciphertext"}, {}),
    "signature": (
        {"tls_public_key_bytes": "public key", "signature_bytes": "signature", "certificate_bytes": "certificate"},
        {"public_key_bytes": "public key", "signature_bytes": "signature", "certificate_bytes": "certificate"},
    ),
}
"""Sizes by factor: measured and published ones, each column with its heading."""


@dataclass(frozen=True)
class Printed:
    """A table as the paper prints it, and the notes under it; shows itself in a notebook."""

    title: str
    bands: Sequence[tuple[str, int]]  # headings above the headers, each over a number of columns
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]
    numeric: frozenset[int]
    behind: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """As that of `Sheet`."""

    def table(self, runs_page: str | None = None) -> str:
        """The table alone, as that of `Sheet`."""
        sheet = Sheet(self.headers, self.rows, self.numeric, behind=self.behind).table(runs_page)
        bands = "".join(
            f"<th colspan='{span}'>{html.escape(title)}</th>" if title else f"<td colspan='{span}'></td>"
            for title, span in self.bands
        )
        return sheet.replace("<thead>", f"<thead><tr>{bands}</tr>", 1)

    def _repr_html_(self) -> str:
        return self._whole(runs_page())

    def _whole(self, runs_page: str | None) -> str:
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        title = f"<p><strong>{html.escape(self.title)}</strong></p>"
        return title + self.table(runs_page) + (f"<ul>{notes}</ul>" if notes else "")

    def __html__(self) -> str:
        return self.table(RUNS_PAGE)

    def latex(self) -> str:
        """A ``table*`` with booktabs rules; the notes follow as small text."""
        columns = "".join("r" if column in self.numeric else "l" for column in range(len(self.headers)))
        lines = [
            "% needs \\usepackage{booktabs}",
            "\\begin{table*}",
            f"\\caption{{{_tex(self.title)}}}",
            "\\centering\\scriptsize\\setlength{\\tabcolsep}{3pt}",
            f"\\begin{{tabular}}{{{columns}}}",
            "\\toprule",
            " & ".join(f"\\multicolumn{{{span}}}{{c}}{{{_tex(title)}}}" for title, span in self.bands) + " \\\\",
            *self._rules(),
            " & ".join(_tex(header) for header in self.headers) + " \\\\",
            "\\midrule",
        ]
        level = None
        for row in self.rows:
            if level is not None and row[0] != level:
                lines.append("\\midrule")
            level = row[0]
            # a bracket after the end of a line would be read as its argument
            begin = "{}" if row[0].startswith("[") else ""
            lines.append(begin + " & ".join(_tex(value) for value in row) + " \\\\")
        lines += ["\\bottomrule", "\\end{tabular}"]
        lines += [f"\\par\\smallskip\\raggedright {_tex(note)}" for note in self.notes]
        return "\n".join([*lines, "\\end{table*}", ""])

    def _rules(self) -> list[str]:
        first, rules = 1, []
        for title, span in self.bands:
            if title:
                rules.append(f"\\cmidrule(lr){{{first}-{first + span - 1}}}")
            first += span
        return rules

    def page(self) -> str:
        """A page of its own, for a directory beside that of the report."""
        style = (
            "body{font-family:sans-serif;margin:2em;max-width:120em}table{border-collapse:collapse;font-size:85%}"
            "th,td{padding:.15em .6em;border-bottom:1px solid #ddd}ul{font-size:85%}"
        )
        head = f"<meta charset='utf-8'><title>{html.escape(self.title)}</title><style>{style}</style>"
        body = self._whole(f"../report/{RUNS_PAGE}")
        return f"<!doctype html><html lang='en'><head>{head}</head><body>{body}</body></html>\n"


_TEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
)


def _tex(text: str) -> str:
    # one line: an empty one would end the paragraph, which a cell of a table may not
    escaped = untrusted.shown(" ".join(text.split()), most=10_000).translate(_TEX)
    commands = {"±": "$\\pm$", "\N{EN DASH}": "--", "3x": "$3\\times$", goodput.UNLIKE_ITSELF: "\\S{}"}
    for plain, command in commands.items():
        escaped = escaped.replace(plain, command)
    return escaped


def handshake_table(cells: pl.DataFrame, factor: str, titles: Mapping[str, str] | None = None) -> Printed:
    """Table II (*factor* ``group``) or III (``signature``) from the cells of `quicbed.analysis.ttfb.table`.

    Times are medians in ms with the half width of their 95 % interval; packets are medians over captured connections,
    client/server. ``-`` is a cell the paper leaves empty or that was not measured here, a letter after it is a note.
    """
    titles, unlike = goodput.marked(cells, titles or {})
    shown = cells.filter(pl.col("arm") == "main")
    names = libraries(shown)
    own_sizes, sizes = SIZES[factor]
    bands = [
        ("", 3),
        ("TTFB [ms], published", len(LIBRARIES)),
        ("TTFB [ms]", len(names)),
        ("packets, published", len(LIBRARIES)),
        ("packets", len(names)),
        ("sizes [B]", len(own_sizes)),
        ("sizes [B], published", len(sizes)),
        ("", 1),
    ]
    headers = [
        "NIST level",
        "key exchange" if factor == "group" else "signature",
        "quantum-safe",
        *(PUBLISHED_TITLES[name] for name in LIBRARIES),
        *(titles.get(name, name) for name in names),
        *(PUBLISHED_TITLES[name] for name in LIBRARIES),
        *(titles.get(name, name) for name in names),
        *own_sizes.values(),
        *sizes.values(),
        "implementation",
    ]
    rows: list[list[str]] = []
    notes = _Notes()
    behind: dict[tuple[int, int], str] = {}
    # times stand after three names and the published times, packets after those and the published packets
    columns = {name: 3 + len(LIBRARIES) + position for position, name in enumerate(names)}
    between = len(names) + len(LIBRARIES)
    for (algorithm,), own in shown.group_by("algorithm", maintain_order=True):
        by_library = {
            cell["client_library"]: cell for cell in own.to_dicts() if cell["client_library"] == cell["server_library"]
        }
        first = own.row(0, named=True)
        for name, cell in by_library.items():
            chosen = runs.selection(cell["campaign"], cell["cell"])
            behind |= dict.fromkeys([(len(rows), columns[name]), (len(rows), columns[name] + between)], chosen)
        rows.append(
            [
                str(first["published_nist_level"] or first["nist_level"]),
                str(algorithm),
                "yes" if first["quantum_safe"] else "no",
                *(_decimal(first[f"published_ttfb_ms_{name}"]) for name in LIBRARIES),
                *(_time(by_library.get(name), notes) for name in names),
                *(_pair(first, f"published_packets_{{role}}_{name}") for name in LIBRARIES),
                *(_packets(by_library.get(name), first, notes) for name in names),
                *(_whole(own[name].max()) for name in own_sizes),
                *(_whole(first[f"published_{name}"]) for name in sizes),
                "; ".join(dict.fromkeys(map(_implementation, own["implementation"].drop_nulls().sort()))) or "-",
            ]
        )
    what = "key exchange" if factor == "group" else "signature algorithm"
    title = f"TTFB [ms] and packets (client/server) of handshakes by {what}"
    below = [*notes.texts(), _OWN, *filter(None, [unlike.removeprefix("<br>")]), *layout.measured_on([shown])]
    numeric = frozenset(range(3, len(headers) - 1))
    return Printed(title, [band for band in bands if band[1]], headers, rows, below, numeric, behind)


_OWN = "own: code of the library's TLS. The table of primitives names it, and the code that liboqs selects here."


def _implementation(told: str) -> str:
    """What computes an algorithm, with `own` in the place of everything that is not liboqs."""
    return " + ".join(part if part.startswith("liboqs") else "own" for part in told.split(" + "))


OPERATIONS = {"group": ("keygen", "encapsulate", "decapsulate"), "signature": ("sign", "verify", "verify-chain")}


def primitive_times(
    primitives: pl.DataFrame,
    campaign: str,
    factor: str,
    known: algorithms.Table,
    titles: Mapping[str, str] | None = None,
) -> Printed:
    """What groups or signatures (*factor*) take by themselves, a row for every implementation of each.

    *primitives* are those of `quicbed.analysis.ttfb.crypto`, of one campaign. Times are medians over blocks, and over
    the libraries that call the implementation, in microseconds.
    """
    titles = titles or {}
    rows: list[list[str]] = []
    selected: list[str | None] = []
    for algorithm in known.groups if factor == "group" else known.signatures:
        own = primitives.filter((pl.col("kind") == factor) & (pl.col("name") == algorithm.name))
        for (implementation,), same in own.sort("implementation").group_by("implementation", maintain_order=True):
            times = dict(same.group_by("operation").agg(pl.col("ms").median()).rows())
            users = sorted(set(same["library"]))
            callers = sorted(titles.get(name, name) for name in users)
            only = {"library": users[0]} if len(users) == 1 else {}
            selected.append(runs.selection(campaign, arm=PRIMITIVES, **only))
            rows.append(
                [
                    str(algorithm.nist_level),
                    algorithm.title,
                    str(implementation),
                    ", ".join(callers),
                    *(_microseconds(times.get(name)) for name in OPERATIONS[factor]),
                ]
            )
    what = "key exchange" if factor == "group" else "signature"
    headers = ["NIST level", what, "implementation", "libraries", *OPERATIONS[factor]]
    notes = [
        "Portable, AVX2, AVX-512: what liboqs selects on this processor, by its own conditions.",
        "Without liboqs: code of the library's TLS, which itself selects for the processor.",
    ]
    numeric = frozenset(range(4, len(headers)))
    title = f"Times of primitives by {what if factor == 'group' else 'signature algorithm'} and implementation"
    return Printed(title, [("", 4), ("time [us]", 3)], headers, rows, notes, numeric, leading(selected, numeric))


def _microseconds(ms: float | None) -> str:
    """Without an exponent, which a reader of a column would overlook."""
    if ms is None:
        return "-"
    return f"{1000 * ms:.0f}" if ms >= 1 else f"{1000 * ms:.4g}"


class _Notes:
    """Reasons for empty cells, each with a letter."""

    def __init__(self) -> None:
        self._letters: dict[str, str] = {}

    def letter(self, text: str) -> str:
        """The letter of a note: a, b, ... z, aa, ab, ..."""
        if text not in self._letters:
            number, letters = len(self._letters), ""
            while number >= 0:
                letters = chr(ord("a") + number % 26) + letters
                number = number // 26 - 1
            self._letters[text] = letters
        return self._letters[text]

    def texts(self) -> list[str]:
        return [f"{letter}: {text}" for text, letter in self._letters.items()]


def _whole(value: Any) -> str:
    return "-" if value is None else f"{value:g}"


def _decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _time(cell: Mapping[str, Any] | None, notes: _Notes) -> str:
    if cell is None:
        return "-"
    if cell["ttfb_ms"] is None:
        kind = "unsupported" if cell["unsupported"] else "failed"
        reason = cell["unsupported"] or cell["failure"] or "no run counts"
        return f"- {notes.letter(f'{kind}: {reason}')}"
    if cell["ttfb_low"] is None:
        return f"{cell['ttfb_ms']:.2f}"
    return f"{cell['ttfb_ms']:.2f} ± {(cell['ttfb_high'] - cell['ttfb_low']) / 2:.2f}"


def _pair(cell: Mapping[str, Any] | None, column: str) -> str:
    if cell is None:
        return "-"
    values = [cell[column.format(role=role)] for role in ("client", "server")]
    return "-" if None in values else "/".join(f"{value:g}" for value in values)


def _packets(cell: Mapping[str, Any] | None, printed: Mapping[str, Any], notes: _Notes) -> str:
    """Packets of a cell; where the paper has others for the same library, with a note on what the capture shows."""
    shown = _pair(cell, "packets_{role}")
    if cell is None or cell["client_library"] not in LIBRARIES or shown == "-":
        return shown
    paper = _pair(printed, f"published_packets_{{role}}_{cell['client_library']}")
    if paper in ("-", shown):
        return shown
    return f"{shown} {notes.letter(_packet_note(cell, paper))}"


def _packet_note(cell: Mapping[str, Any], paper: str) -> str:
    """What the packets of a handshake were, as captured (medians)."""
    sides = []
    for role in ("client", "server"):
        levels = [
            f"{cell[f'packets_{level}_{role}']:g} {title} ({cell[f'bytes_{level}_{role}']:.0f} B)"
            for level, title in (
                ("retry", "Retry"),
                ("initial", "Initial"),
                ("handshake", "Handshake"),
                ("1rtt", "1-RTT"),
            )
            if cell[f"packets_{level}_{role}"]
        ]
        text = f"{role} {', '.join(levels)} in {cell[f'datagrams_{role}']:g} datagrams"
        if cell[f"ack_only_packets_{role}"]:
            text += f", {cell[f'ack_only_packets_{role}']:g} of them acknowledgements only"
        sides.append(text)
    messages = ", ".join(
        f"{title} {cell[f'tls_{name}_bytes']:.0f} B"
        for name, title in (
            ("client_hello", "ClientHello"),
            ("server_hello", "ServerHello"),
            ("certificate", "Certificate"),
            ("certificate_verify", "CertificateVerify"),
        )
        if cell[f"tls_{name}_bytes"] is not None
    )
    waits = f"; {cell['waits']:g} further round trips" if cell["waits"] else ""
    return f"{cell['algorithm']}, {paper} in the paper: {'; '.join(sides)}; {messages}{waits}"


def write(table: Printed, cells: pl.DataFrame, name: str, directory: Path) -> list[Path]:
    """Write the printed table as ``<name>.html`` and ``.tex``, and its cells as ``.csv`` and ``.parquet``."""
    directory.mkdir(parents=True, exist_ok=True)
    files = {suffix: directory / f"{name}.{suffix}" for suffix in ("html", "tex", "csv", "parquet")}
    durable.write_text(files["html"], table.page())
    durable.write_text(files["tex"], table.latex())
    runs.write_csv(cells, files["csv"])
    runs.write_parquet(cells, files["parquet"])
    return list(files.values())


def transports(
    fits: Mapping[tuple[str, str], Mapping[str, Transport]], titles: Mapping[str, str] | None = None
) -> Sheet:
    """The fitted transport of every library by experiment and campaign: see `quicbed.analysis.ttfb`."""
    headers = ["experiment", "library", "fixed [ms]", "per kB [ms]", "per further round trip [ms]", "cells"]
    rows = [
        [
            experiment,
            (titles or {}).get(library, library),
            f"{fit.fixed_ms:.3f}",
            f"{fit.per_kb_ms:.4f}",
            f"{fit.per_wait_ms:.3f}",
            fit.cells,
            f"{100 * fit.median_error:.1f}",
        ]
        for (experiment, _), found in fits.items()
        for library, fit in sorted(found.items())
    ]
    numeric = frozenset(range(2, 7))
    selected = [runs.selection(campaign, library=one) for (_, campaign), found in fits.items() for one in sorted(found)]
    behind = leading(selected, numeric)
    return Sheet([*headers, "median error [%]"], rows, numeric, behind=behind)


def additivity_table(
    predictions: pl.DataFrame, lacking: Sequence[str], known: algorithms.Table, titles: Mapping[str, str] | None = None
) -> Printed:
    """How far predicted handshakes are from measured ones, a row for every prediction and library.

    *predictions* are those of `quicbed.analysis.additivity`. Errors are predicted over measured value, minus 1, in per
    cent; *95 % within* is the range that predictions of `quicbed predict` have. Packets are those of both sides.
    """
    titles = titles or {}
    bands = [("", 4), ("TTFB, error [%]", 4), ("packets", 2), ("bytes, error [%]", 2)]
    headers = [
        *("fitted on", "predicted", "library", "cells"),
        *("median", "95 % within", "worst", "worst cell"),
        *("as predicted", "worst"),
        *("median", "worst"),
    ]
    rows: list[list[str]] = []
    behind: dict[tuple[int, int], str] = {}
    keys = ["fitted_on", "experiment", "library"]
    for (fitted_on, predicted, library), own in predictions.group_by(keys, maintain_order=True):
        worst = own.sort(pl.col("error").abs()).row(-1, named=True)
        ratio = additivity.kept_ratio(own["predicted_ms"].to_list(), own["ttfb_ms"].to_list())
        packets = (
            own.filter(pl.col("packets_client").is_not_null())
            .with_columns(
                predicted_packets=pl.col("predicted_packets_client") + pl.col("predicted_packets_server"),
                packets=pl.col("packets_client") + pl.col("packets_server"),
                bytes_error=pl.col("predicted_bytes") / pl.col("handshake_bytes") - 1,
            )
            .with_columns(off=pl.col("predicted_packets") - pl.col("packets"))
        )
        chosen = runs.selection(worst["campaign"], *own["cell"].unique(maintain_order=True))
        behind |= dict.fromkeys([(len(rows), column) for column in range(3, len(headers))], chosen)
        rows.append(
            [
                str(fitted_on),
                str(predicted),
                titles.get(str(library), str(library)),
                str(len(own)),
                _percent(own["error"].abs().median()),
                "-" if ratio == math.inf else f"± {100 * (ratio - 1):.1f}",
                f"{100 * worst['error']:+.1f}",
                _algorithms(worst, known),
                *(["-"] * 4 if packets.is_empty() else _packet_errors(packets)),
            ]
        )
    numeric = frozenset({3, 4, 5, 6, 8, 9, 10, 11})
    return Printed("Handshakes predicted out of sample", bands, headers, rows, list(lacking), numeric, behind)


def _algorithms(cell: Mapping[str, Any], known: algorithms.Table) -> str:
    delay = f", {cell['rtt_ms']:g} ms" if cell["rtt_ms"] else ""
    return f"{known.group(cell['group']).title}, {known.signature(cell['signature']).title}{delay}"


def _packet_errors(packets: pl.DataFrame) -> list[str]:
    worst = packets.sort(pl.col("off").abs()).row(-1, named=True)
    most = packets.sort(pl.col("bytes_error").abs()).row(-1, named=True)
    return [
        f"{(packets['off'] == 0).sum()} of {len(packets)}",
        f"{worst['predicted_packets']:g} for {worst['packets']:g}",
        _percent(packets["bytes_error"].abs().median()),
        f"{100 * most['bytes_error']:+.1f}",
    ]


def _percent(share: Any) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def breaks(predictions: pl.DataFrame, known: algorithms.Table, titles: Mapping[str, str] | None = None) -> Sheet:
    """Errors of predicted handshakes where something may break additivity, and elsewhere, by library.

    *waited* counts the cells whose captured server waited at the amplification limit.
    """
    titles = titles or {}
    headers = ["condition", "library", "cells", "waited", "median error of TTFB [%]", "worst [%]", "server's packets"]
    rows = []
    selected: list[str | None] = []
    shown = predictions.filter(pl.col("packets_server").is_not_null())
    for condition in (additivity.PLAIN, additivity.LIMIT, additivity.SILENT):
        within = shown.filter(pl.col("condition") == condition).sort("library", maintain_order=True)
        for (library,), own in within.group_by("library", maintain_order=True):
            off = (pl.col("packets_server") - pl.col("predicted_packets_server")).abs()
            most = own.sort(off).row(-1, named=True)
            worst = own.sort(pl.col("error").abs())["error"][-1]
            selected.append(runs.selection(None, *own["cell"].unique(maintain_order=True)))
            rows.append(
                [
                    condition,
                    titles.get(str(library), str(library)),
                    len(own),
                    int((own["waits"] > 0).sum()),
                    _percent(own["error"].abs().median()),
                    f"{100 * worst:+.1f}",
                    f"{most['packets_server']:g} for {most['predicted_packets_server']} predicted:"
                    f" {_algorithms(most, known)}",
                ]
            )
    numeric = frozenset(range(2, 6))
    return Sheet(headers, rows, numeric, behind=leading(selected, numeric))
