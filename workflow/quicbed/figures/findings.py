"""What was found here, in a sentence: numbers of a figure's table with their 95 % intervals, for the notebooks.

Of several libraries a sentence names the middle one, with its interval, and the two that are furthest apart. Nothing is
averaged over libraries, which are no sample of anything.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from quicbed.analysis import comparison
from quicbed.analysis.ttfb import Transport
from quicbed.figures import goodput
from quicbed.plan.estimate import duration


@dataclass(frozen=True)
class Found:
    """Sentences below a figure in a notebook."""

    sentences: Sequence[str]

    def _repr_html_(self) -> str:
        told = "<br>".join(map(html.escape, self.sentences))
        return f"<p class='found'><strong>Found here:</strong> {told}</p>"


def joined(*found: Found | None) -> Found | None:
    """The sentences of all; None if there are none."""
    sentences = [sentence for one in found if one is not None for sentence in one.sentences]
    return Found(sentences) if sentences else None


def contrasts(
    table: pl.DataFrame,
    labels: Mapping[str, str],
    titles: Mapping[str, str],
    *,
    by: str = "label",
    times: bool = False,
) -> Found | None:
    """A sentence on every label of a figure's table, by the words that it begins with; None if nothing is compared.

    Rows are those of the main arm whose column *by* has the label, with their ratio to the baseline of their library:
    as a difference in per cent, or as it is where the figure shows it in *times*.
    """
    compared = table.filter(pl.col("ratio_low").is_not_null() & pl.col("ratio_high").is_not_null())
    if "arm" in compared.columns:
        compared = compared.filter(pl.col("arm") == "main")
    told = [
        _contrast(what, _changes(compared.filter(pl.col(by) == label), titles, times=times))
        for label, what in labels.items()
        if label in set(compared[by])
    ]
    return Found(told) if told else None


@dataclass(frozen=True)
class _Change:
    """A difference in per cent of one library, or a ratio in times, and its interval."""

    name: str
    value: float
    low: float
    high: float
    times: bool = False

    @property
    def none(self) -> int:
        """The value of no difference."""
        return 1 if self.times else 0

    def number(self, value: float) -> str:
        return f"{value:.3g}" if self.times else goodput.signed(value)

    @property
    def text(self) -> str:
        return f"{self.number(self.value)} {'times' if self.times else '%'}"

    @property
    def interval(self) -> str:
        return f"95 % interval {self.number(self.low)} to {self.number(self.high)}{'' if self.times else ' %'}"


def _changes(cells: pl.DataFrame, titles: Mapping[str, str], *, times: bool) -> list[_Change]:
    found = []
    for cell in cells.to_dicts():
        ratios = (cell["ratio"], cell["ratio_low"], cell["ratio_high"])
        value, low, high = ratios if times else map(goodput.percent, ratios)
        found.append(_Change(_name(cell, titles), value, low, high, times))
    return found


def _name(cell: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    if "library" in cell:
        return titles.get(cell["library"], cell["library"])
    return comparison.pair_title((cell["client_library"], cell["server_library"]), titles)


def _contrast(what: str, changes: Sequence[_Change]) -> str:
    ordered = sorted(changes, key=lambda one: (one.value, one.name))
    middle, first, last = ordered[(len(ordered) - 1) // 2], ordered[0], ordered[-1]
    text = f"{what}: {middle.text} with {middle.name} ({middle.interval})"
    if len(ordered) < 2:
        return text + "."
    clear = sum(not one.low <= one.none <= one.high for one in ordered)
    return (
        f"{text}, the middle one of {len(ordered)}; from {first.text} ({first.name}) to "
        f"{last.text} ({last.name}). {clear} of {len(ordered)} intervals exclude {middle.none}."
    )


def strongest(table: pl.DataFrame, what: str, titles: Mapping[str, str]) -> Found | None:
    """As `contrasts`, of that label whose change is the largest in a library."""
    compared = table.filter((pl.col("arm") == "main") & pl.col("ratio_low").is_not_null())
    if compared.is_empty():
        return None
    label = compared.sort(pl.col("ratio").log().abs(), descending=True)["label"][0]
    return contrasts(compared, {label: f"{what}, {label}"}, titles)


def undecided(found: pl.DataFrame, titles: Mapping[str, str]) -> Found | None:
    """What it takes until no row of `quicbed.analysis.comparison.undecided` is left; None where none is."""
    if found.is_empty():
        return None
    by_pair = found.group_by("client_library", "server_library").agg(
        blocks=pl.col("more_blocks").max(),
        hours=pl.col("more_hours").max(),
        open=pl.col("more_blocks").null_count(),
    )
    known = by_pair.filter((pl.col("open") == 0) & pl.col("hours").is_not_null()).sort("hours", "client_library")
    wanted = 100 * float(found["wanted"][0])
    said = f"{len(found)} intervals are wider than \N{PLUS-MINUS SIGN}{wanted:g} %"
    if known.is_empty():
        return Found([f"{said}; blocks will not change that."])
    first, last = (known.row(number, named=True) for number in (0, -1))
    names = [comparison.pair_title((one["client_library"], one["server_library"]), titles) for one in (first, last)]
    ends = [
        f"{one['blocks']} more blocks of {name} ({duration(60 * one['hours'])})"
        for one, name in zip((first, last), names, strict=True)
    ]
    each, all_of_them = " to ".join(dict.fromkeys(ends)), duration(60 * float(known["hours"].sum()))
    return Found([f"{said}. If further blocks differ as these do, it takes {each}, {all_of_them} together."])


def hybrids(sums: pl.DataFrame, titles: Mapping[str, str]) -> Found | None:
    """How far hybrids are from the sum of their parts (`quicbed.analysis.ttfb.hybrids`)."""
    cells = sums.filter(pl.col("excess_low").is_not_null()).to_dicts()
    changes = [
        _Change(
            f"{cell['algorithm']} by {titles.get(cell['client_library'], cell['client_library'])}",
            *(100 * cell[key] / cell["ttfb_ms"] for key in ("excess_ms", "excess_low", "excess_high")),
        )
        for cell in cells
    ]
    return Found([_contrast("Hybrids beyond the sum of their parts", changes)]) if changes else None


def drops(table: pl.DataFrame, labels: tuple[str, str], titles: Mapping[str, str]) -> Found | None:
    """How many thousand datagrams per GiB were dropped with the first and the second of two settings.

    Of means by library and label; counts may be zero, so that there is no ratio of them.
    """
    usual, other = (dict(table.filter(pl.col("label") == label).select("library", "mean").rows()) for label in labels)
    both = [name for name in usual if usual[name] is not None and other.get(name) is not None]
    if not both:
        return None
    worst = max(both, key=lambda name: (usual[name], name))
    fewer = sum(other[name] < usual[name] for name in both)
    return Found(
        [
            f"Datagrams dropped: fewer with {labels[1]} than with {labels[0]} by {fewer} of {len(both)} libraries; "
            f"most with {labels[0]} by {titles.get(worst, worst)}, {usual[worst]:.2f} thousand per GiB, and "
            f"{other[worst]:.2f} with {labels[1]}."
        ]
    )


def parts(cells: pl.DataFrame, library: str, titles: Mapping[str, str]) -> Found | None:
    """Share of a library's TTFB that its cryptography takes as timed by itself, of cells of `quicbed.analysis.ttfb`."""
    own = cells.filter(
        (pl.col("arm") == "main")
        & (pl.col("client_library") == library)
        & (pl.col("server_library") == library)
        & pl.col("ttfb_ms").is_not_null()
        & pl.col("crypto_ms").is_not_null()
    )
    if own.is_empty():
        return None
    ordered = own.select("label", share=100 * pl.col("crypto_ms") / pl.col("ttfb_ms")).sort("share", "label").rows()
    (first, low), (name, middle), (last, high) = (ordered[n] for n in (0, (len(ordered) - 1) // 2, -1))
    who = titles.get(library, library)
    return Found(
        [
            f"Cryptography, timed separately, takes {middle:.0f} % of the TTFB of {who} with {name}, the middle one of "
            f"{len(ordered)}; from {low:.0f} % ({first}) to {high:.0f} % ({last})."
        ]
    )


def per_bytes(fits: Mapping[str, Transport], titles: Mapping[str, str]) -> Found | None:
    """What a further 1000 bytes of a handshake take, as fitted."""
    if not fits:
        return None
    ordered = sorted((fit.per_kb_ms, titles.get(name, name)) for name, fit in fits.items())
    (low, first), (middle, name), (high, last) = (ordered[n] for n in (0, (len(ordered) - 1) // 2, -1))
    said = f"A further 1000 bytes of handshake take {middle:.3f} ms with {name}, as fitted"
    if len(ordered) > 1:
        said += f", the middle one of {len(ordered)}; from {low:.3f} ms ({first}) to {high:.3f} ms ({last})"
    return Found([f"{said}."])


def errors(shares: pl.Series, what: str) -> Found | None:
    """The middle of relative errors and the range of 95 % of them."""
    known = shares.drop_nulls()
    if known.is_empty():
        return None
    low, middle, high = (100 * float(known.quantile(q, "linear") or 0.0) for q in (0.025, 0.5, 0.975))
    said = f"{what}: {goodput.signed(middle)} % in the middle, 95 % of {len(known)} between {goodput.signed(low)} and "
    return Found([f"{said}{goodput.signed(high)} %."])


def shares(
    table: pl.DataFrame, category: str, what: str, labels: Sequence[str], titles: Mapping[str, str]
) -> Found | None:
    """Share of samples of a category in servers (`quicbed.analysis.cpu_shares`), a sentence for each label."""
    told = []
    for label in labels:
        cells = table.filter(
            (pl.col("category") == category)
            & (pl.col("role") == "server")
            & (pl.col("label") == label)
            & (pl.col("client_library") == pl.col("server_library"))
            & pl.col("low").is_not_null()
        ).sort("share", "library")
        if cells.is_empty():
            continue
        rows = cells.to_dicts()
        middle, first, last = (
            {**row, "name": titles.get(row["library"], row["library"])}
            for row in (rows[(len(rows) - 1) // 2], rows[0], rows[-1])
        )
        whose = "servers" if len(rows) > 1 else "the server"
        others = (
            f", the middle one of {len(rows)}; from {100 * first['share']:.1f} % ({first['name']}) to "
            f"{100 * last['share']:.1f} % ({last['name']})"
        )
        told.append(
            f"{what} of {whose} with {label}: {100 * middle['share']:.1f} % of the "
            f"samples with {middle['name']} (95 % interval {100 * middle['low']:.1f} to {100 * middle['high']:.1f} %)"
            f"{others if len(rows) > 1 else ''}."
        )
    return Found(told) if told else None


def extremes(table: pl.DataFrame, titles: Mapping[str, str]) -> Found | None:
    """The slowest and the fastest pair of `quicbed.analysis.pairs.pair_table`, and how many runs of pairs failed."""
    main = table.filter(pl.col("arm") == "main")
    known = main.filter(pl.col("mean_low").is_not_null()).sort("mean", "cell").to_dicts()
    if not known:
        return None

    def said(cell: Mapping[str, Any]) -> str:
        mean, low, high = (f"{cell[key] / 1000:.2f}" for key in ("mean", "mean_low", "mean_high"))
        pair = comparison.pair_title((cell["client_library"], cell["server_library"]), titles)
        return f"{mean} Gbit/s (95 % interval {low} to {high}; {pair}, {cell['label']})"

    failed, tried = int(main["failed"].sum()), int(main["runs"].sum())
    return Found([f"From {said(known[0])} to {said(known[-1])}; {failed} of {tried} runs failed."])
