"""When all will be done: synthetic campaigns replayed through the forecast, and what it is made of."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from quicbed.plan.forecast import AGAIN_BUSY, EVERYTHING, Left, Pace, Repeats, Span, Work, blocks_needed

WITHIN = 0.25
RETRIES = 2
ANALYSIS_S = 90.0
BYTES = 268435456
# Gbit/s on the machine of the reference data
GOODPUT = {"aioquic": 0.25, "quiche": 3.0, "quinn": 2.2, "msquic": 4.0, "tcp-tls": 9.0}
GROUPS = {"x25519": 0.004, "kyber768": 0.005, "hqc-256": 0.03, "bike-l5": 0.09}
CIPHERS = {"aes-128-gcm": 1.0, "aes-256-gcm": 0.98, "chacha20-poly1305": 0.85, "noop": 1.2}


@dataclass
class Machine:
    """What runs take in truth."""

    slower: float = 1.0
    """Than that of the reference data."""
    drift: Callable[[float], float] = lambda _: 1.0
    """Factor by the seconds that have passed."""
    libraries: dict[str, float] = field(default_factory=dict)
    """How much slower a library is than there, beside the machine."""
    noise: float = 0.15
    spoilt: float = 0.02
    spread: float = 0.05
    """Standard deviation of the logarithm of a ratio, which decides when an experiment ends."""


@dataclass
class Campaign:
    """An experiment."""

    kind: str
    least: int
    most: int
    max_s: float | None = None
    contrast: float | None = None

    def works(self) -> dict[str, tuple[Work, float, float, str]]:
        """By cell: what is known, seconds of the transfer and beyond it in truth of the reference, and the library."""
        cells = {}
        for library, goodput in GOODPUT.items():
            for name, factor in (CIPHERS if self.kind == "bulk" else GROUPS).items():
                if self.kind == "bulk":
                    size = BYTES // 8 if library == "aioquic" else BYTES
                    transfer = size * 8 / (goodput * factor * 1e9)
                    rough, beyond = size * 8 / (4e8 if library == "aioquic" else 5e9), 0.07
                else:
                    transfer, rough, beyond = 40 * factor, 40 * 0.012, 0.02
                keys = ((self.kind, library, name), (self.kind, name), (self.kind, library), self.kind, EVERYTHING)
                cells[f"{library}-{name}"] = Work(keys, rough, 0.1), transfer, beyond, library
        return cells


@dataclass
class Replay:
    """Measuring experiments one after the other, as the driver does, with predictions before every block."""

    machine: Machine
    campaigns: list[Campaign]
    random: random.Random
    pace: Pace
    repeats: Repeats = field(default_factory=Repeats)
    passed: float = 0.0
    told: list[tuple[float, Span]] = field(default_factory=list)

    def run(self, work: Work, transfer: float, beyond: float, library: str) -> None:
        """One run, measured and learnt from."""
        machine = self.machine
        factor = machine.slower * machine.drift(self.passed) * math.exp(self.random.gauss(0, machine.noise))
        transfer *= factor * machine.libraries.get(library, 1.0)
        beyond *= factor
        self.passed += transfer + beyond
        self.pace.saw(work, transfer + beyond, transfer)

    def measure(self) -> None:
        """All experiments."""
        works = [campaign.works() for campaign in self.campaigns]
        left = [
            Left(
                {cell: known[0] for cell, known in cells.items()},
                dict.fromkeys(cells, 0),
                least=campaign.least,
                most=campaign.most,
                max_s=campaign.max_s,
                needed=None if campaign.contrast else dict.fromkeys(cells, campaign.most),
                start_s=4.0,
            )
            for campaign, cells in zip(self.campaigns, works, strict=True)
        ]
        for number, (campaign, cells) in enumerate(zip(self.campaigns, works, strict=True)):
            own, spent = left[number], 0.0
            self.passed += own.start_s
            own.start_s = 0.0
            for block in range(campaign.most):
                width = 2 * self.machine.spread / math.sqrt(block) if block else math.inf
                if campaign.contrast:
                    needed = blocks_needed(block, width, campaign.contrast, campaign.least)
                    own.needed = None if needed is None else dict.fromkeys(cells, needed)
                    if block >= campaign.least and (
                        width <= campaign.contrast or spent >= (campaign.max_s or math.inf)
                    ):
                        break
                self.predict(left[number:])
                begin = self.passed
                for cell, known in self.random.sample(sorted(cells.items()), len(cells)):
                    for _ in range(1 + RETRIES):
                        self.run(*known)
                        spoilt = self.random.random() < self.machine.spoilt
                        self.repeats.saw(spoilt=spoilt)
                        if not spoilt:
                            break
                    own.done = {**own.done, cell: block + 1}
                spent += self.passed - begin
                own.spent_s = spent
        self.passed += ANALYSIS_S

    def predict(self, left: list[Left]) -> None:
        """Keep what is said of everything."""
        attempts = self.repeats.attempts(RETRIES)
        everything = Span.of(ANALYSIS_S)
        for one in left:
            known = max((left[0].needed or {}).values(), default=one.least)
            everything += replace(one, usual=dict.fromkeys(one.works, known)).span(self.pace, attempts)
        self.told.append((self.passed, everything))


def reference(campaigns: list[Campaign], without: str = "") -> Pace:
    """What runs on another machine tell, of all libraries but one."""
    pace = Pace(forgets=False)
    other = Replay(Machine(spoilt=0.0), campaigns, random.Random("reference"), pace)
    for campaign in campaigns:
        for _ in range(5):
            for known in campaign.works().values():
                if known[-1] != without:
                    other.run(*known)
    return pace


def quick() -> list[Campaign]:
    """As `make all` at scale quick: two experiments on downloads, two on handshakes."""
    downloads = Campaign("bulk", 20, 60, max_s=1200, contrast=0.05)
    return [downloads, downloads, Campaign("handshake", 5, 5), Campaign("handshake", 5, 5)]


def replayed(machine: Machine, seed: int, *, before: int = 0, without: str = "", busy: bool = False) -> Replay:
    """All measured, after *before* blocks of an earlier campaign on the machine."""
    campaigns = quick()
    pace = Pace(reference(campaigns, without), slowdown=machine.slower if busy else 1.0)
    replay = Replay(machine, campaigns, random.Random(f"{seed}"), pace)
    if busy:
        replay.repeats = Repeats(AGAIN_BUSY)
    for _ in range(before):
        for known in campaigns[0].works().values():
            replay.run(*known)
    replay.passed = 0.0
    replay.measure()
    return replay


def errors(replay: Replay, parts: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75)) -> list[float]:
    """Of the first predictions after these parts of the time: relative error of the time that is left."""
    found = []
    for part in parts:
        at, span = next(told for told in replay.told if told[0] >= part * replay.passed)
        found.append(span.expected / (replay.passed - at) - 1)
    return found


SCENARIOS: dict[str, tuple[Machine, dict[str, int | str | bool]]] = {
    "like the reference": (Machine(), {}),
    "a little slower": (Machine(slower=1.15), {}),
    "drifting": (Machine(drift=lambda passed: 1 + 0.2 * math.sin(passed / 300)), {}),
    "slower and slower": (Machine(drift=lambda passed: 1 + passed / 6000), {}),
    "a library that is slow": (Machine(libraries={"quinn": 2.0}), {}),
    "a library nothing is known of": (Machine(), {"without": "msquic"}),
    "many repeated": (Machine(spoilt=0.2), {}),
    "noisy, more blocks are needed": (Machine(spread=0.17, noise=0.3), {"before": 3}),
    "twice as slow, measured on before": (Machine(slower=2.0, libraries={"aioquic": 1.5}), {"before": 2}),
    "busy": (Machine(slower=2.5, spoilt=0.95), {"busy": True}),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_predictions_are_within_a_quarter_of_what_it_took(scenario: str, seed: int) -> None:
    machine, options = SCENARIOS[scenario]
    replay = replayed(machine, seed, **options)  # type: ignore[arg-type]
    found = errors(replay)
    if scenario.startswith("noisy"):
        found = found[1:]  # how many blocks it takes, only blocks tell: before them there is a range
        assert replay.told[0][1].least <= replay.passed <= replay.told[0][1].most * (1 + WITHIN)
    assert max(map(abs, found)) <= WITHIN, [f"{one:+.0%}" for one in found]


@pytest.mark.parametrize("slower", [0.4, 3.0])
def test_a_machine_unlike_any_other_is_known_after_its_first_runs(slower: float) -> None:
    replay = replayed(Machine(slower=slower), 1)
    first, *later = errors(replay)
    assert abs(first) > WITHIN  # nothing can have told
    assert max(map(abs, later)) <= WITHIN
    # two blocks are enough
    at, span = replay.told[2]
    assert abs(span.expected / (replay.passed - at) - 1) <= WITHIN


def test_without_anything_known_the_rough_figures_count() -> None:
    work = Work(("cell", EVERYTHING), 2.0, 0.5)
    assert Pace().parts(work) == (2.0, 0.5)
    assert Pace(slowdown=2.0).seconds(work) == 5.0


def test_what_is_learnt_of_a_run_counts_for_those_alike_and_less_for_others() -> None:
    def work(library: str, cell: str) -> Work:
        return Work((cell, library, EVERYTHING), 1.0, 0.1)

    pace = Pace()
    for _ in range(20):
        pace.saw(work("slow", "a"), 4.4, 4.0)
        pace.saw(work("fast", "b"), 1.1, 1.0)
    assert pace.seconds(work("slow", "a")) == pytest.approx(4.4, rel=0.02)
    assert pace.seconds(work("slow", "not measured yet")) == pytest.approx(4.4, rel=0.1)
    assert pace.seconds(work("fast", "not measured yet")) == pytest.approx(1.1, rel=0.2)
    assert 1.1 < pace.seconds(work("unknown", "unknown")) < 4.4


def test_a_run_that_failed_tells_of_its_own_cell_only() -> None:
    hangs, works = Work(("hangs", EVERYTHING), 1.0, 0.1), Work(("works", EVERYTHING), 1.0, 0.1)
    pace = Pace()
    for _ in range(10):
        pace.saw(hangs, 60.0, None)
        pace.saw(works, 1.1, 1.0)
    assert pace.seconds(hangs) > 50
    assert pace.seconds(works) == pytest.approx(1.1)


def test_the_last_runs_of_a_cell_count_most() -> None:
    work, pace = Work(("cell", EVERYTHING), 1.0, 0.0), Pace()
    for seconds in [1.0] * 50 + [2.0] * 30:
        pace.saw(work, seconds, seconds)
    assert pace.seconds(work) > 1.85


def test_repeated_runs_count_by_the_rate_seen() -> None:
    repeats = Repeats()
    assert 1 < repeats.attempts(2) < 1.05
    for _ in range(300):
        repeats.saw(spoilt=True)
    assert 2.8 < repeats.attempts(2) <= 3
    assert repeats.attempts(0) == 1


def left(**changes: object) -> Left:
    one = Left({"a": Work(("a",), 9.0, 1.0)}, {"a": 5}, least=20, most=60)
    return replace(one, **changes)  # type: ignore[arg-type]


def test_the_rule_that_ends_an_experiment_makes_a_range() -> None:
    assert left().span(Pace(), 1.0) == Span(150, 150, 550)
    assert left(needed={"a": 30}).span(Pace(), 1.0) == Span(250, 150, 550)
    assert left(needed={"a": 90}).span(Pace(), 1.0) == Span(550, 150, 550)
    # 50 s passed already; a block is begun as long as less than 300 s have
    assert left(max_s=300, spent_s=50, needed={"a": 90}).span(Pace(), 1.0) == Span(250, 150, 250)
    assert left(least=60).span(Pace(), 1.0) == Span(550, 550, 550)
    assert left(done={"a": 60}).span(Pace(), 1.0) == Span()


def test_proofs_and_cells_of_the_first_blocks_count() -> None:
    once = left(once=[Work(("proof",), 1.0, 1.0)], start_s=4.0, least=60)
    assert once.span(Pace(), 1.0).expected == 556
    assert left(limits={"a": 6}, least=60).span(Pace(), 1.0).expected == 10


def test_how_many_blocks_an_interval_takes() -> None:
    assert blocks_needed(2, 0.01, 0.05, 20) is None
    assert blocks_needed(10, 0.05, 0.05, 20) == 20
    assert blocks_needed(10, 0.10, 0.05, 20) == 40
    assert blocks_needed(30, 0.0501, 0.05, 20) == 31
    assert blocks_needed(10, math.inf, 0.05, 20) == 10**6


def test_the_time_goes_to_cells_that_are_undecided() -> None:
    two = left(
        works={name: Work((name,), 9.0, 1.0) for name in "ab"}, done={"a": 20, "b": 20}, needed={"a": 20, "b": 50}
    )
    assert two.span(Pace(), 1.0) == Span(300, 0, 800)
    # the last block is begun before 95 s have passed: ten of one cell, or five of both
    assert replace(two, max_s=95).span(Pace(), 1.0) == Span(100, 0, 100)
