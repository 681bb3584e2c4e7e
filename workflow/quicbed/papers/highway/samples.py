"""Made-up results and perf recordings as large as the published ones, drawn from a seed: for tests and benchmarks."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
from collections.abc import Iterator, Sequence

from quicbed.importers.files import zstd_program
from quicbed.importers.samples import MIB, repetition, result_json
from quicbed.papers.highway import perf


def results(repetitions: int, queues: int = 17) -> Iterator[tuple[str, bytes]]:
    """Results in 12 files and about 65 kB a repetition, 20 to a pair."""
    more = {f"rx_counter_of_the_port_{number}": 0 for number in range(150)}
    generator = random.Random(1)
    implementations = ("lsquic", "quiche", "picoquic", "mvfst", "quic-go")
    pairs = [(server, client) for server in implementations for client in implementations]
    done: dict[str, dict[tuple[str, str], list[float]]] = {}
    for index in range(repetitions):
        block, place = divmod(index, 20)
        logdir = f"results/baseline/run{block // len(pairs)}"
        server, client = pairs[block % len(pairs)]
        duration = generator.uniform(20, 40)
        done.setdefault(logdir, {}).setdefault((server, client), []).append(8 * 8192 * MIB / duration / 1e6)
        folder = f"{logdir}/{server}_{client}/goodput/{place + 1}"
        cpu = [generator.uniform(80, 100) for _ in range(30)]
        packets = generator.randrange(1_000_000, 9_000_000)
        files = repetition(server, client, duration, queues=queues, packets=packets, cpu=cpu, more=more)
        for name, data in files.items():
            yield f"{folder}/{name}", data
    for logdir, found in done.items():
        yield f"{logdir}/result.json", json.dumps(result_json(found)).encode()


_KINDS = ("aead_seal", "header_mask", "udp_sendmsg", "recvmmsg", "stream_frame", "ack_range", "timer", "allocate")
_COPY, _LOOP = len(_KINDS), len(_KINDS) + 1
_FUNCTIONS = 15
"""Of each kind, and of the two that are no category: what copies, and the loop that calls all."""
PROFILED = (("lsquic", "lsquic"), ("quiche", "quiche"), ("lsquic", "quiche"), ("quiche", "lsquic"))
"""Servers and clients of which samples were taken."""


def perf_script(command: str, count: int, seed: int) -> bytes:
    """``perf script`` of a host: *count* samples in about 800 bytes each, nine of ten of the process *command*."""
    generator = random.Random(seed)

    def frame(function: int, offset: int) -> str:
        kind, number = divmod(function, _FUNCTIONS)
        symbol = f"{(*_KINDS, 'copy', 'loop')[kind]}_{number}+{offset:#x}"
        if function % 3:
            return f"\t    {0x55AACCB00000 + 4096 * function + offset:x} {symbol} (/opt/endpoint/{command})\n"
        return f"\t{0xFFFFFFFF92000000 + 4096 * function + offset:x} {symbol} ([kernel.kallsyms])\n"

    def functions(kind: int) -> range:
        return range(kind * _FUNCTIONS, (kind + 1) * _FUNCTIONS)

    def often(lines: Sequence[str]) -> str:
        return lines[int(len(lines) * generator.random() ** 8)]

    innermost = [frame(function, offset) for function in functions(_COPY) for offset in range(0, 240, 4)]
    callers = []
    for number in range(min(600, count)):
        stack = generator.choices(functions(number % len(_KINDS)), k=generator.randint(2, 6))
        stack += generator.choices(functions(_LOOP), k=generator.randint(4, 12))
        callers.append("".join(frame(function, generator.choice((16, 64, 144))) for function in stack))
    clock, text = 3346.0, []
    for _ in range(count):
        clock += generator.choice((0.000469, 0.000503, 0.000621))
        program, processor = (f"{command} 19895", 8) if generator.random() < 0.9 else ("swapper     0", 31)
        period = generator.randrange(1_500_000, 1_700_000, 5_000)
        text.append(f"{program} [{processor:03}] {clock:12.6f}: {period:10}   cycles: \n")
        # few stacks take most of the time
        text += (often(innermost), often(callers), "\n")
    return "".join(text).encode()


def profiled(repetitions: int, count: int) -> Iterator[tuple[str, bytes]]:
    """Repetitions of four pairs with perf recordings of both sides, *count* samples each, after mappings for them.

    All recordings of an endpoint are the same one.
    """
    recordings = {}
    implementations = sorted({name for pair in PROFILED for name in pair})
    for seed, (name, role) in enumerate(itertools.product(implementations, ("client", "server"))):
        text = perf_script(perf.program(name, role), count, seed)
        packed = subprocess.run([zstd_program(), "-qc"], input=text, stdout=subprocess.PIPE, check=True)
        recordings[name, role] = packed.stdout
    expressions = {f"regex:.*{kind}_{digit}.*": f"{kind.upper()} ({digit})" for kind in _KINDS for digit in range(10)}
    for name in implementations:
        yield f"analysis-pipeline/result-parsing/util/perf/mappings/{name}.json", json.dumps(expressions).encode()
    for server, client in PROFILED:
        for number in range(1, repetitions + 1):
            files = repetition(server, client, 30.0)
            files |= {"client/out.perf.zst": recordings[client, "client"]}
            files |= {"server/out.perf.zst": recordings[server, "server"]}
            for name, data in files.items():
                yield f"results/perf/goracle/optimized/run1/{server}_{client}/goodput/{number}/{name}", data
