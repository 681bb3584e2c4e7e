"""What the capture of a proof shows, and where that contradicts the cell."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from quicbed.builds import kit
from quicbed.config.model import Project
from quicbed.contract import events
from quicbed.measure import captures, certificates
from quicbed.measure.attempt import Attempt
from quicbed.plan.factors import UDP_OVERHEAD
from quicbed.plan.spec import RunSpec
from quicbed.store.paths import CAPTURE, DISSECTED, KEYS, PORT
from quicbed.testbed import Capture
from quicbed.wire import handshake, proof, tshark
from quicbed.wire.pcap import CaptureError

_DIRECTIONS = (("client", "client_to_server"), ("server", "server_to_client"))


@dataclass(frozen=True)
class _Claims:
    """What a cell says about the bytes on the wire."""

    aead: str
    header_protection: bool | None
    cipher_suite: int | None
    group: int | None


@dataclass(frozen=True)
class Examiner:
    """Looks at the capture of one proof."""

    project: Project
    spec: RunSpec
    server: str
    """Address of the server."""

    @property
    def _transport(self) -> Literal["quic", "tcp"]:
        """What carries a handshake."""
        return "quic" if self.spec.quic else "tcp"

    @property
    def _bare(self) -> bool:
        """Whether there is no handshake."""
        return self.spec.cell.transport == "udp"

    @property
    def _expected(self) -> dict[str, Any]:
        """What every handshake has to be."""
        variant = self.spec.cell.variant
        return {
            "group": variant.group,
            "signature": variant.signature,
            "cipher": variant.cipher,
            "retry": bool(variant.retry),
            "certificate_bytes": self._certificate_bytes,
        }

    @property
    def _certificate_bytes(self) -> int | None:
        """Size of the Certificate message that a cell with a chain of its own has to show; None for other cells."""
        variant = self.spec.cell.variant
        if variant.chain is None:
            return None
        identity = certificates.directory(self.project, certificates.of_variant(variant))
        return certificates.message_bytes(identity)

    def problems(self, attempt: Attempt, directory: Path, captured: Capture | None) -> list[str]:
        """Keep what the capture shows; returns where that contradicts the cell."""
        if self.spec.handshakes:
            attempt.evidence["handshake"], problems = self.handshakes(directory)
            return problems + self._of_folders(directory)
        attempt.evidence["seen"], problems = self.download(directory)
        problems += self._of_folders(directory)
        if self.spec.secrets:
            problems += self._secrets(attempt, directory)
        complete = captured is None or not captured.packets_lost
        for role, direction in _DIRECTIONS:
            # what a capture with gaps shows is kept as evidence, and is no metric
            if complete and (mean := attempt.evidence["seen"].get(direction, {}).get("mean_frame_bytes")):
                attempt.metrics[f"{role}_mean_frame_bytes"] = mean
        return problems

    def download(self, directory: Path) -> tuple[dict[str, Any], list[str]]:
        """What the capture of a download shows, and where that contradicts the cell."""
        try:
            seen = self._seen(directory)
        except (CaptureError, OSError) as error:
            return {}, [str(error)]
        problems = proof.check(seen, self._claims, self._resumed)
        return seen.model_dump(mode="json"), problems + self._of_one_connection(seen)

    def undecided(self, directory: Path) -> float | None:
        """How many times as large the captured download has to be, where it is too small to decide; else None."""
        try:
            return proof.undecided(self._seen(directory), self._claims, self._resumed)
        except (CaptureError, OSError):
            return None

    def _seen(self, directory: Path) -> proof.Proof:
        return proof.examine(
            directory / CAPTURE,
            server_ip=self.server,
            server_port=PORT,
            transport="udp" if self._bare else self._transport,
            mtu=self.spec.link.mtu,
        )

    @property
    def _claims(self) -> _Claims:
        variant = self.spec.cell.variant
        if self._bare:
            return _Claims(variant.aead, None, None, None)
        # the suite tells the version too; a ServerHello of TLS 1.2 has no group
        old = variant.tls_version == "TLSv1.2"
        return _Claims(
            variant.aead,
            variant.header_protection,
            (handshake.TLS12_SUITES if old else handshake.CIPHER_SUITES)[variant.cipher],
            None if old else self.project.algorithms.group(variant.group).code_point,
        )

    def _of_one_connection(self, seen: proof.Proof) -> list[str]:
        """Where loads that were to go over one connection did not, by how many there are and what the server sent."""
        if not self.spec.kept:
            return []
        problems = []
        loads = self.spec.visits_before + self.spec.connections
        if seen.connections != 1:
            problems.append(f"There are {seen.connections} connections, but {loads} loads were to go over one.")
        least = loads * self.spec.bytes
        if seen.examined_bytes < least:
            problems.append(f"The server sent {seen.examined_bytes} bytes, less than the {least} of {loads} loads.")
        return problems

    @property
    def _resumed(self) -> int | None:
        """How many connections have to be resumed; None where `_of_folders` looks at that."""
        if any(self.spec.external(role) for role in self.spec.libraries):
            return None
        return 0 if self.spec.cell.variant.visit in (None, "kept") else self.spec.connections

    def _of_folders(self, directory: Path) -> list[str]:
        """What is wrong with a connection of an external endpoint that no other endpoint makes."""
        if not any(self.spec.external(role) for role in self.spec.libraries):
            return []
        try:
            problem = captures.resumption(directory, self.spec, self.server)
        except (CaptureError, OSError):
            return []  # which is said already
        return [] if problem is None else [problem]

    def _secrets(self, attempt: Attempt, directory: Path) -> list[str]:
        """Where what the key log of a captured download shows, beyond the ServerHello, contradicts the cell.

        Not every endpoint writes a key log: what is not seen then is noted as unproven.
        """
        problem = tshark.problem() if (directory / KEYS).is_file() else "there is no key log"
        if problem is None:
            try:
                seen = self._dissected(directory)
            except handshake.HandshakeError as error:
                problem = str(error)
            else:
                problem = next((one.problem for one in seen if one.problem), None)
                if not seen:
                    problem = "there is no handshake of TLS 1.3"
        if problem is not None:
            shown = problem.replace(f"{directory}/", "")
            what = (
                "the signature algorithm is" if self.spec.cell.variant.chain is None else "the chain of certificates is"
            )
            attempt.unproven(f"{what} not seen: {shown}")
            return []
        attempt.evidence["signatures"] = sorted({one.signature for one in seen if one.signature is not None})
        visit = self.spec.cell.variant.visit
        again = visit not in (None, "kept")
        first = seen[: self.spec.visits_before] if again else seen
        problems = handshake.contradictions(first, self.project.algorithms, **self._expected)
        if again:
            later = seen[self.spec.visits_before :]
            attempt.evidence["early_bytes"] = [one.early_bytes for one in later]
            problems += handshake.contradictions(
                later,
                self.project.algorithms,
                connections=self.spec.connections,
                resumed=True,
                early_data=visit == "early-data",
                **self._expected,
            )
        return problems

    def _dissected(self, directory: Path) -> list[handshake.Handshake]:
        return handshake.examine(
            directory / CAPTURE,
            directory / KEYS,
            server_ip=self.server,
            server_port=PORT,
            transport=self._transport,
        )

    def handshakes(self, directory: Path) -> tuple[dict[str, Any], list[str]]:
        """What the capture of a series of handshakes shows, and where that contradicts the cell.

        Writes handshakes.json: an object per connection (`quicbed.wire.handshake.Handshake`).
        """
        quic = self.spec.quic
        try:
            seen = self._dissected(directory)
        except (handshake.HandshakeError, OSError) as error:
            return {}, [str(error).replace(f"{directory}/", "")]
        kit.write_json(directory / DISSECTED, [one.model_dump(mode="json") for one in seen])
        problems = handshake.contradictions(
            seen,
            self.project.algorithms,
            connections=self.spec.connections,
            udp_payload=self.spec.link.mtu - UDP_OVERHEAD if quic else None,
            **self._expected,
        )
        client = events.read(directory / "client.jsonl", "client")
        server = events.read(directory / "server.jsonl", "server")
        summary: dict[str, Any] = {
            # comparing counts needs one connection of each side for every one in the capture
            "count_differences": handshake.count_differences(seen, client.connections, server.connections)
            if quic and len(client.connections) == len(server.connections)
            else [],
        }
        for role in ("client", "server"):
            sent = [one.client if role == "client" else one.server for one in seen]
            summary[role] = {
                name: statistics.median(getattr(one, name) for one in sent) if sent else None
                for name in ("packets", "datagrams", "bytes", "ack_only_packets")
            }
        return summary, problems
