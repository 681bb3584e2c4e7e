"""The model of verdicts as they are kept: what `claims.json` beside the report's tables holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from quicbed.base.models import Integer, Part, Record
from quicbed.claims.causes import Found, Status
from quicbed.claims.verdicts import Basis, Outcome, Result, Verdict


class Compared(Part):
    """One comparison of a claim, for one library; an infinite bound or value is null."""

    library: str | None
    """Null if the comparison itself names its libraries."""
    in_population: bool
    """Whether the paper makes the claim about this library too."""
    compared: str
    low_bound: float | None
    high_bound: float | None
    value: float | None
    low: float | None
    """Lower end of the 95 % interval, or lower quartile of the captured connections."""
    high: float | None
    """Upper end of this interval, or upper quartile."""
    n: Integer
    """Number of blocks, or of captured connections."""
    contaminated: Integer | None
    """Number of runs that count although they are contaminated."""
    aa_low: float | None
    """Lower end of the widest interval of the A/A arms."""
    aa_high: float | None
    """Upper end of this interval."""
    published: float | None
    """The same value, computed from the paper's own numbers."""
    missing: Verdict | None
    """Why there is no value: `not measured` or `not applicable`."""
    reason: str | None
    cells: list[str]
    """Ids of the cells that are compared."""
    pairs: str | None = None
    """Experiment of concurrent pairs that it was made of; null for separate runs."""


class Explanation(Part):
    """A cause of a failed claim."""

    cause: str
    """Id of the cause in config/causes.yaml."""
    status: Status


class ProcessorTime(Part):
    """The verdict on a claim about cost by what both ends download per second of processor time; same bounds."""

    verdict: Verdict
    reason: str | None
    p: float | None
    adjusted_p: float | None
    """Adjusted only among the p-values for processor time."""
    outcomes: list[Compared]


class ClaimVerdict(Part):
    """The verdict on a claim, and what it is based on."""

    paper: str
    claim: str
    """Id of the claim in config/claims/."""
    source: str
    statement: str
    verdict: Verdict
    reason: str | None
    judged_as: Basis | None
    p: float | None
    adjusted_p: float | None
    more_blocks: Integer | None
    """Additional blocks that would decide the claim if the values stay as they are."""
    more_hours: float | None = None
    """Hours that these blocks take."""
    experiment: str
    campaign: str | None
    testbed: str | None
    scale: str | None
    causes: list[Explanation]
    outcomes: list[Compared]
    processor_time: ProcessorTime | None = None
    """For a claim about cost: shown beside the verdict, but does not affect it."""


class Verdicts(Record):
    """claims.json: the verdicts on all claims. claims-published.json: the verdicts based on the authors' own data."""

    FORMAT: ClassVar[int] = 1

    format: Literal[1]
    """Version of this model."""
    verdicts: list[ClaimVerdict] = Field([])


def record_of(results: Sequence[Result], found: Found | None = None) -> Verdicts:
    """All verdicts with what they rest on, and the causes of those that fail with what tests say of them."""
    of = found.of if found else {}
    kept = []
    for result in results:
        claim = result.stated.claim
        kept.append(
            ClaimVerdict(
                paper=result.stated.name,
                claim=claim.id,
                source=claim.source,
                statement=claim.statement,
                verdict=result.verdict,
                reason=result.reason or None,
                judged_as=result.basis if result.measured else None,
                p=result.p,
                adjusted_p=result.adjusted,
                more_blocks=result.more_blocks,
                more_hours=result.more_hours,
                experiment=result.experiment,
                campaign=result.campaign,
                testbed=result.testbed,
                scale=result.scale,
                causes=[Explanation(cause=one.cause.id, status=one.status) for one in of.get(result.stated.id, ())],
                outcomes=_outcomes(result),
                processor_time=_processor_time(result.twin),
            )
        )
    return Verdicts(format=1, verdicts=kept)


def _outcomes(result: Result) -> list[Compared]:
    return [_compared(one, True) for one in result.outcomes] + [_compared(one, False) for one in result.beyond]


def _processor_time(twin: Result | None) -> ProcessorTime | None:
    if twin is None:
        return None
    return ProcessorTime(
        verdict=twin.verdict,
        reason=twin.reason or None,
        p=twin.p,
        adjusted_p=twin.adjusted,
        outcomes=_outcomes(twin),
    )


def _compared(one: Outcome, in_population: bool) -> Compared:
    def known(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return Compared(
        library=one.library,
        in_population=in_population,
        compared=one.text,
        low_bound=known(one.low_bound),
        high_bound=known(one.high_bound),
        value=known(one.value),
        low=known(one.low),
        high=known(one.high),
        n=one.n,
        contaminated=one.contaminated,
        aa_low=one.floor[0] if one.floor else None,
        aa_high=one.floor[1] if one.floor else None,
        published=one.published,
        missing=one.missing,
        reason=one.reason or None,
        cells=list(one.cells),
        pairs=one.through,
    )
