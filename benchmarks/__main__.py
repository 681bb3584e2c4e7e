"""`python -m benchmarks`: print the benchmarks, ratios measured side by side in one run."""

import sys
from collections.abc import Sequence

from benchmarks.bench import bench
from quicbed.cli import commands


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmarks; returns the exit code, as `quicbed` does."""
    parser = commands.configured(
        "python -m benchmarks", "Print the benchmarks: ratios measured side by side in one run."
    )
    parser.add_argument("--only", action="append", default=[], help="name of a benchmark, may be repeated")
    parser.set_defaults(run=lambda arguments: bench(commands.project_of(arguments), arguments.only))
    return commands.run(parser, argv)


if __name__ == "__main__":
    sys.exit(main())
