"""Proofs: once per pair of builds, that a variant does on the wire what it says."""

from __future__ import annotations

import itertools
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path

from quicbed.base.hashing import digest
from quicbed.config.model import STATEMENT
from quicbed.measure import captures
from quicbed.measure.attempt import Attempt
from quicbed.measure.examine import Examiner
from quicbed.measure.progress import now
from quicbed.measure.runner import Runner
from quicbed.measure.storing import Store, read_run, stored
from quicbed.plan.spec import PROOF_BYTES_LARGE, PROOF_BYTES_LARGEST, RunSpec
from quicbed.store.record import Run
from quicbed.testbed import Capture, HostLostError

PROOF_ATTEMPTS = 2


@dataclass(frozen=True)
class Verdict:
    """Whether a variant was proven between two builds."""

    proof: str
    """Id of the proof."""
    status: str
    """`ok`, `failed` or `unsupported`."""
    reason: str | None
    """Why it is not proven."""
    transferred: bool
    """Whether client and server did what they were asked to, so that it is the capture that does not prove it."""


class Prover:
    """Proofs made on one host, and those that are missing."""

    def __init__(self, runner: Runner, store: Store) -> None:
        self._runner = runner
        self._store = store
        self.directory = store.raw / "proofs" / store.host.id
        """A directory each, named `<slug>-<id>.<number>`."""

    def id_of(self, spec: RunSpec) -> str:
        """Id of a proof (`quicbed.plan.spec.proof_spec`)."""
        return digest(
            {
                "client": spec.cell.client.build,
                "server": spec.cell.server.build,
                "variant": spec.cell.variant.as_dict(),
                "mtu": spec.link.mtu,
                "workload": spec.workload.model_dump(),
                "host": self._store.host.id,
            }
        )

    def prove(self, spec: RunSpec) -> Verdict:
        """Make the proof that *spec* describes, unless there is one."""
        proof = self.id_of(spec)
        # not what a killed driver had not stored yet, whose name begins with a dot
        done = sorted(self.directory.glob(f"[!.]*-{proof}.*/run.json"))
        for file in done:
            if (verdict := self._known(spec, proof, file)) is not None:
                return verdict
        # an attempt that was lost with a host has left none of its number
        first = 1 + max((int(file.parent.name.rpartition(".")[2]) for file in done), default=-1)
        verdict = Verdict(proof, "failed", None, transferred=False)
        for number in itertools.islice(itertools.count(first), PROOF_ATTEMPTS):
            again = number > first and not spec.handshakes and not spec.page
            verdict = self._attempt(replace(spec, bytes=PROOF_BYTES_LARGE) if again else spec, proof, number)
            if verdict.status != "failed":
                break
        return verdict

    def _examiner(self, spec: RunSpec) -> Examiner:
        return Examiner(self._runner.project, spec, str(self._runner.testbed.server.address))

    def _known(self, spec: RunSpec, proof: str, file: Path) -> Verdict | None:
        """What an earlier attempt at a proof says; None if it has failed."""
        run = read_run(file)
        if run.status == "unsupported":
            return Verdict(proof, run.status, run.reason, transferred=False)
        # looked at again, because what examines captures may have changed since
        if run.status == "ok" and (spec.handshakes or not self._examiner(spec).download(file.parent)[1]):
            return Verdict(proof, "ok", None, transferred=True)
        return None

    def _attempt(self, spec: RunSpec, proof: str, number: int) -> Verdict:
        """One more attempt at a proof."""
        begin = time.monotonic()
        self._runner.link.prepare(spec)
        try:
            attempt, transferred = self._stored(spec, proof, number, begin)
        except HostLostError as error:
            # the capture was lost with the host, and so is this attempt
            attempt, transferred = self._runner.link.lost(error, now()), False
        return Verdict(proof, attempt.status, attempt.reason, transferred)

    def _stored(self, spec: RunSpec, proof: str, number: int, begin: float) -> tuple[Attempt, bool]:
        """One stored attempt at a proof, and whether all was transferred.

        A download that was too small to decide is no attempt: it is made again, as large as it has to be.
        """
        with stored(self.directory / f"{spec.cell.slug.removesuffix('-aa')}-{proof}.{number}") as directory:
            attempt, transferred = self._captured(spec, directory, proof)
            while transferred and not attempt.ok and (size := self._decisive(spec, directory)) is not None:
                for path in directory.iterdir():
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
                spec = replace(spec, bytes=size)
                attempt, transferred = self._captured(spec, directory, proof)
            self._store.keep(self._record(spec, attempt, proof, number), directory, begin)
        return attempt, transferred

    def _captured(self, spec: RunSpec, directory: Path, proof: str) -> tuple[Attempt, bool]:
        """One captured run, examined, and whether all was transferred."""
        captured: Capture | None = None
        if spec.observed:  # which is captured anyway
            attempt = self._runner.execute(spec, directory)
        else:
            snaplen = captures.whole_frames(spec.link)
            attempt, captured = self._runner.capturing(spec, directory, snaplen)
        attempt.contamination = []
        transferred = attempt.ok
        if transferred:
            attempt.evidence["proof"] = proof
            self._examine(attempt, spec, directory, captured)
        return attempt, transferred

    def _decisive(self, spec: RunSpec, directory: Path) -> int | None:
        """Bytes of a download that decides what the captured one is too small for; None if no larger one is made."""
        if spec.handshakes or spec.page or spec.bytes >= PROOF_BYTES_LARGEST:
            return None
        times = self._examiner(spec).undecided(directory)
        return None if times is None else min(round(spec.bytes * times), PROOF_BYTES_LARGEST)

    def _examine(self, attempt: Attempt, spec: RunSpec, directory: Path, captured: Capture | None) -> None:
        problems: list[str] = []
        with attempt.judging():
            problems = self._examiner(spec).problems(attempt, directory, captured)
            if stated := [one.title for one in spec.libraries.values() if one.external is not None]:
                told = f" ({STATEMENT} of {' and '.join(dict.fromkeys(stated))} states otherwise)"
                problems = [problem + told for problem in problems]
        if captured is not None and captured.packets_lost:
            problems.append(captures.lost_packets(captured))
        for problem in problems:
            attempt.fail(f"capture: {problem}")

    def _record(self, spec: RunSpec, attempt: Attempt, proof: str, number: int) -> Run:
        return self._store.record(
            spec,
            attempt,
            named={"id": proof, "arm": "proof", "baseline": None},
            experiment="proofs",
            campaign=self.directory.name,
            block=None,
            order=None,
            attempt=number,
        )
