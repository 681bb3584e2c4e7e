"""What cryptography costs QUIC by the runs there are, in a few sentences: the head of the report and `quicbed summary`.

Of several libraries a sentence names the middle one with its interval, and the two furthest apart. Nothing is averaged
over libraries, which are no sample of anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from quicbed.analysis import comparison, paired_runs, ttfb
from quicbed.claims import causes
from quicbed.claims.judged import Judged
from quicbed.claims.verdicts import Result
from quicbed.config import algorithms
from quicbed.config.model import Project
from quicbed.figures import cost_figures, findings
from quicbed.figures.goodput import percent, signed
from quicbed.store.details import Details

READING = (
    "For several libraries, each value is that of the middle one, with its 95 % interval in brackets, followed by the "
    "smallest and the largest."
)
AEAD = {
    "ChaCha20-Poly1305": "ChaCha20-Poly1305",
    "AES-256-GCM": "AES-256-GCM",
    "NOOP": "NOOP without header protection",
}
HEADER_PROTECTION = {"AES-128-GCM without HP": "AES-128-GCM", "ChaCha20-Poly1305 without HP": "ChaCha20-Poly1305"}
HANDSHAKES = (
    ("table2-kem", "group", ("X25519MLKEM768",)),
    ("table3-signature", "signature", ("ML-DSA-44", "SPHINCS+-SHA2-128f")),
)
"""Experiments, what they vary, and labels of the cells that are told."""


@dataclass(frozen=True)
class Answer:
    """One sentence, and what it is about."""

    topic: str
    text: str
    experiments: Sequence[str] = ()
    """That it comes from."""


def of_project(project: Project, table: pl.DataFrame, beside: Details, judged: Judged) -> list[Answer]:
    """What runs say (`answers`), with all verdicts on them and all ratios that are not narrow enough."""
    campaigns = comparison.Campaigns(table)
    wide = pl.DataFrame(schema=comparison.UNDECIDED)
    for name in project.experiments:
        wide = pl.concat([wide, cost_figures.undecided(campaigns, project.experiments, name)])
    return answers(project, table, beside, judged.results, judged.found(project, judged.results), wide)


def answers(
    project: Project,
    table: pl.DataFrame,
    beside: Details,
    results: Sequence[Result],
    found: causes.Found | None,
    undecided: pl.DataFrame,
) -> list[Answer]:
    """What runs say, each answer that they have one for.

    *table* has the runs that count, *beside* what lies beside them. *results* are the verdicts on all claims, and
    *undecided* the ratios that are not as narrow as their experiment wants (`quicbed.analysis.comparison.undecided`).
    """
    campaigns = comparison.Campaigns(table)
    titles = comparison.titles(project.libraries, table)
    told = [
        _packets(project, campaigns, "aead-goodput", AEAD, titles),
        _packets(project, campaigns, "header-protection", HEADER_PROTECTION, titles),
        _handshakes(project, table, beside, titles),
        _papers(results, found),
        _open(results, undecided, titles),
    ]
    return [one for one in told if one is not None]


def _packets(
    project: Project, campaigns: comparison.Campaigns, alone: str, labels: Mapping[str, str], titles: Mapping[str, str]
) -> Answer | None:
    """What packet or header protection costs: processor time of pairs if measured, else goodput of separate runs."""
    pairs = paired_runs.deciding(campaigns, project.experiments, alone)
    experiment, what = (alone, "goodput") if pairs is None else (pairs, "the processor time of both ends")
    campaign = campaigns.newest(experiment)
    if campaign.is_empty():
        return None
    if pairs is None:
        cells = cost_figures.as_drawn(alone, campaign, campaigns.figure(alone))
    else:
        renamed = {f"both_{end}": end for end in ("ratio", "ratio_low", "ratio_high")}
        cells = paired_runs.table(campaigns, pairs).rename(renamed)
    said = {name: found for label, name in labels.items() if (found := _middle(_compared(cells, label), titles))}
    if not said:
        return None
    if labels is AEAD:
        listed = "; ".join(f"{name} by {found}" for name, found in said.items()).replace(
            " by ", f" changes {what} by ", 1
        )
        return Answer("Packet protection", f"Instead of AES-128-GCM, {listed}.", [experiment])
    listed = "; ".join(f"by {found} with {name}" for name, found in said.items())
    return Answer("Header protection", f"Leaving it out changes {what} {listed}.", [experiment])


def _compared(cells: pl.DataFrame, label: str) -> list[dict[str, Any]]:
    """Cells of one library of this label, by their ratio."""
    own = cells.filter(
        (pl.col("label") == label)
        & (pl.col("arm") == "main")
        & (pl.col("client_library") == pl.col("server_library"))
        & pl.col("ratio_low").is_not_null()
        & pl.col("ratio_high").is_not_null()
    )
    return own.sort("ratio", "client_library").to_dicts()


def _middle(cells: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> str | None:
    """The middle ratio with its interval, and the two furthest apart, as differences in per cent."""
    if not cells:
        return None

    def of(cell: Mapping[str, Any]) -> str:
        return titles.get(cell["client_library"], str(cell["client_library"]))

    middle = cells[(len(cells) - 1) // 2]
    value, low, high = (_short(middle[name]) for name in ("ratio", "ratio_low", "ratio_high"))
    others = [middle] if len(cells) == 1 else [cells[0], cells[-1]]
    named = ", ".join(f"{of(cell)} {_short(cell['ratio'])}" for cell in others)
    return f"{value} % [{low}, {high}] ({named if len(cells) > 1 else of(middle)})"


def _short(ratio: float) -> str:
    """A ratio as a difference in per cent, in two digits or all before the point."""
    value = percent(ratio)
    return signed(value) if abs(value) < 9.95 else f"{value:+,.0f}".replace("-", "\N{MINUS SIGN}")


def _handshakes(project: Project, table: pl.DataFrame, beside: Details, titles: Mapping[str, str]) -> Answer | None:
    """Time, packets and round trips that post-quantum key exchange and certificates add."""
    known = algorithms.read(project.root)
    parts: list[str] = []
    experiments = []
    for experiment, factor, labels in HANDSHAKES:
        measured = ttfb.handshakes(table, beside, experiment, factor, known)
        if measured.empty:
            continue
        experiments.append(experiment)
        for label in labels:
            cells = _compared(measured.cells, label)
            if said := _middle(cells, titles):
                instead = f"{label} instead of {cells[0]['baseline_label']}"
                changes = "changes the time to first byte by" if not parts else "by"
                parts.append(f"{instead} {changes} {said}{_more(measured.cells, cells)}")
    if not parts:
        return None
    return Answer("Post-quantum handshakes", f"{'; '.join(parts)}.", experiments)


def _more(every: pl.DataFrame, cells: Sequence[Mapping[str, Any]]) -> str:
    """How many packets and round trips the handshakes of cells have more than those of their baselines."""
    by_cell = {cell["cell"]: cell for cell in every.to_dicts()}
    said = []
    for what, columns in (("packet", ("packets_client", "packets_server")), ("round trip", ("round_trips_blocked",))):
        more = sorted(
            round(sum(cell[name] - by_cell[cell["baseline"]][name] for name in columns))
            for cell in cells
            if all(cell[name] is not None and by_cell[cell["baseline"]][name] is not None for name in columns)
        )
        if more and (more[0] or more[-1]):
            ends = " to ".join(dict.fromkeys(map(str, (more[0], more[-1])))).replace("-", "\N{MINUS SIGN}")
            said.append(f"{ends} {what}{'' if ends == '1' else 's'}")
    return f" and takes {' and '.join(said)} more" if said else ""


def _papers(results: Sequence[Result], found: causes.Found | None) -> Answer | None:
    """How many claims hold, by paper, and why most others do not."""
    judged = [result for result in results if result.verdict in ("holds", "fails", "inconclusive")]
    if not judged:
        return None
    counts = Counter(result.verdict for result in judged)
    by_paper = {
        of.short or of.title: Counter(one.verdict for one in judged if one.stated.paper.title == of.title)
        for of in {result.stated.name: result.stated.paper for result in judged}.values()
    }
    papers = [f"{paper} {of['holds']} of {of.total()}" for paper, of in by_paper.items()]
    text = (
        f"Of {len(judged)} findings and numbers of papers that these runs can judge, {counts['holds']} hold "
        f"({', '.join(papers)}) and {counts['fails']} fail"
    )
    if counts["fails"] and found is not None:
        status = Counter(_known(found.of.get(result.stated.id, ())) for result in judged if result.verdict == "fails")
        text += ": " + ", ".join(f"{status[one]} with {one}" for one in _CAUSES if status[one])
    return Answer("Where papers hold", f"{text}.")


_CAUSES = ("a cause that tests support", "a cause that no test decides", "no known cause")


def _known(explained: Sequence[causes.Tested]) -> str:
    status = {one.status for one in explained}
    return _CAUSES[0] if "supported" in status else _CAUSES[1] if status - {"contradicted"} else _CAUSES[2]


def _open(results: Sequence[Result], undecided: pl.DataFrame, titles: Mapping[str, str]) -> Answer | None:
    """What these runs cannot tell, and what it would take."""
    told = findings.undecided(undecided, titles)
    count = sum(result.verdict == "inconclusive" for result in results)
    parts = [f"{count} findings and numbers of papers, because an interval contains a bound"] if count else []
    if told is not None:
        parts.append(told.sentences[0].removesuffix("."))
    return Answer("What is undecided", f"{'; '.join(parts)}.") if parts else None
