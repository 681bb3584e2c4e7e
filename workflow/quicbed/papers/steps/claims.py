"""The published raw data of "QUIC Steps" as tables that its claims can be judged by (`quicbed.claims.verdicts`).

Repetitions were not measured in blocks; those with the same number are taken as one, which for independent values is as
good as any other pairing.
"""

from __future__ import annotations

from pathlib import Path

from quicbed.claims import verdicts
from quicbed.papers.steps import analysis

PAPER, SOURCE = "quic-steps", analysis.SOURCE


def campaigns(directory: Path | None) -> verdicts.Tables | None:
    """The published runs in *directory* as if they were a campaign of each of our experiments; None without runs."""
    found = analysis.published(directory)
    return None if found.empty else verdicts.Tables(verdicts.as_campaign(found.runs), published=True)
