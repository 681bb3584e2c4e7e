"""The published raw data of "QUIC Steps" as tables that its claims can be judged by (`quicbed.claims.verdicts`).

Repetitions were not measured in blocks; those with the same number are taken as one, which for independent values is as
good as any other pairing.
"""

from __future__ import annotations

import polars as pl

from quicbed.analysis import cpu_shares
from quicbed.analysis.steps_runs import Published
from quicbed.claims import verdicts
from quicbed.store import details

PAPER = "quic-steps"


def steps_campaigns(found: Published) -> verdicts.Tables:
    """The published runs as if they were a campaign of each of our experiments."""
    table = found.runs.with_columns(
        campaign=pl.lit("published data"),
        testbed=pl.lit(verdicts.PUBLISHED),
        cell=pl.concat_str(["experiment", "label", "client_library", "server_library"], separator=" "),
    )
    nothing = pl.DataFrame(schema=details.HANDSHAKES), pl.DataFrame(), pl.DataFrame(schema=cpu_shares.BLOCKS)
    return verdicts.Tables(table, *nothing, published=True)
