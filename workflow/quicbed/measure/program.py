"""What a program of an endpoint is started with: command line, environment, and what it may use and see."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from quicbed.builds.recipes import external
from quicbed.config.model import Library, Project, Side
from quicbed.measure import browser, callgrind, certificates, fleet
from quicbed.plan.cells import Endpoint
from quicbed.plan.factors import UDP_OVERHEAD, congestion_control_of, io_of, pacing_of
from quicbed.plan.spec import HOLD_S, RunSpec
from quicbed.store.paths import KEYS, PORT, RELEASES
from quicbed.testbed import Confined, Host, Testbed

SERVER_NAME = "server"
BYPASSING = ("bpf", "ipc_lock", "net_admin", "net_raw")
"""Capabilities that an AF_XDP socket takes, with its memory and a program at the interface (capabilities(7))."""
RELEASE_TIMES = "QUICBED_RELEASE_TIMES"
"""Variable that names the file for them (`quicbed.wire.releases`)."""
# A handshake that takes longer has failed, in seconds; the whole run has the limit of its scale.
CONNECTION_TIMEOUT = 20.0


@dataclass(frozen=True)
class Program:
    """The client or the server of one run, with its output in a directory."""

    project: Project
    testbed: Testbed
    spec: RunSpec
    directory: Path
    role: Side
    port: int = PORT
    """Of the server."""

    @property
    def side(self) -> Endpoint:
        """The build it is of."""
        return self.spec.side(self.role)

    @property
    def library(self) -> Library:
        """Description of its library."""
        return self.spec.libraries[self.role]

    @property
    def host(self) -> Host:
        """Where it runs."""
        return self.testbed.hosts[self.role]

    @property
    def output(self) -> Path:
        """Where it writes on its host."""
        return self.host.place(self.directory)

    @property
    def log(self) -> Path:
        """Its events on its host."""
        return self.output / f"{self.role}.jsonl"

    @property
    def set_up_s(self) -> float:
        """Seconds that it may take before it does anything: an external one sets up its folder."""
        return external.SET_UP_TIMEOUT if self.spec.external(self.role) else 0.0

    def provide(self) -> None:
        """Have all that it is made of on its host."""
        self.host.provide(self.project.build / self.side.build)
        if self.spec.external(self.role):
            self._folder()

    def _folder(self) -> Path:
        """Where the folder of an external endpoint is on its host."""
        folder = external.folder_of_build(self.project.build / self.side.build, self.role)
        described = self.library.external
        if described is not None and described.folder.root and self.testbed.kind == "local":
            return folder
        return self.host.provide_copy(folder, external.MADE_ON_HOST)

    # ---- command line --------------------------------------------------------------------------------------------

    def argv(self) -> list[str]:
        """Its command line (workflow/endpoints/ENDPOINT.md)."""
        built = self._page if self._is_browser else self.host.provide(self.project.build / self.side.build)
        program = built / "bin" / self.role
        identity = self.host.provide(self._identity)
        ends = self._server(identity) if self.role == "server" else self._client(identity)
        words = [str(program), "--events", str(self.log), *self._asked(), *ends, *self._negotiated()]
        words += self._quic() if self.spec.quic else []
        if self.spec.copies == 1:
            return words
        runs_them = self.host.provide(fleet.provided(self.project)) / "bin" / fleet.PROGRAM
        return [str(runs_them), str(self.spec.copies), *words]

    @property
    def _is_browser(self) -> bool:
        """Whether it is a browser in the place of the client."""
        return self.spec.browser and self.role == "client"

    @property
    def _page(self) -> Path:
        """Directory on its host with the page or video that a browser loads (`quicbed.measure.browser`)."""
        if self.spec.video is not None:
            return self.host.provide(browser.provided_video(self.project, self.spec.video, self.spec.play_s))
        page = self.project.pages[str(self.spec.cell.variant.page)]
        return self.host.provide(browser.provided(self.project, page))

    @property
    def _identity(self) -> Path:
        """Directory of the server's certificate and of who signed it, on this machine."""
        return certificates.directory(self.project, certificates.of_variant(self.spec.cell.variant))

    @property
    def _address(self) -> str:
        return f"{self.testbed.server.address}:{self.port}"

    def _asked(self) -> list[str]:
        """How much is transferred, and where TLS secrets go."""
        spec = self.spec
        words = ["--connections", str(spec.connections + spec.visits_before)]
        if self.role == "server":
            sizes = () if spec.browser else dict.fromkeys(spec.page or files(spec))
            words = [part for size in sizes for part in ("--content", str(size))]
            words += ["--www", str(self._page / "www")] if spec.browser else []
            words += ["--requests", str(spec.requests)] if spec.requests else []
        elif spec.rate_per_s is not None:
            words += ["--rate", f"{spec.rate_per_s:.6g}", "--seed", str(spec.arrival_seed)]
            words += ["--hold", f"{HOLD_S:g}"] if spec.held else []
        if spec.secrets and self.role == key_logger(spec):
            words += ["--key-log", str(self.output / KEYS)]
        return words

    def _server(self, identity: Path) -> list[str]:
        words = ["--listen", self._address, "--certificate", str(identity / "server.pem")]
        return [*words, "--private-key", str(identity / "server.key")]

    def _client(self, identity: Path) -> list[str]:
        spec = self.spec
        limit = min(spec.timeout_s, CONNECTION_TIMEOUT) if spec.handshakes else spec.timeout_s
        words = ["--connect", self._address, "--server-name", SERVER_NAME, "--ca", str(identity / "ca.pem")]
        paged = spec.page and not spec.browser
        asked = ["--page", ",".join(map(str, spec.page))] if paged else ["--bytes", str(spec.bytes)]
        return [*words, *asked, "--timeout", f"{limit:g}"]

    def _negotiated(self) -> list[str]:
        variant = self.spec.cell.variant
        words = ["--cipher", variant.cipher, "--aead", variant.aead]
        words += ["--group", variant.group, "--signature", variant.signature]
        if variant.alpn not in (None, self.library.alpn):
            words += ["--alpn", str(variant.alpn)]
        if variant.tls_version is not None:
            words += ["--tls-version", variant.tls_version]
        if variant.visit is not None:
            words += ["--visit", variant.visit]
        controlled = congestion_control_of(self.library, self.spec.workload.congestion_control)
        words += ["--congestion-control", controlled]
        pacing = pacing_of(self.library, variant.pacing, controlled)
        words += [] if pacing is None else ["--pacing", pacing]
        return [*words, "--etf", "on"] if self.role == "server" and variant.qdisc == "etf" else words

    def _quic(self) -> list[str]:
        """What only endpoints of QUIC are asked."""
        variant, workload, supports = self.spec.cell.variant, self.spec.workload, self.library.supports
        words = ["--initial-size", str(variant.initial_size)]
        if self.role == "server":
            words += ["--retry", _switch(variant.retry)]
        words += ["--header-protection", _switch(variant.header_protection)]
        match io_of(variant, self.role):
            case None:
                gso = "paced" if variant.gso == "paced" else _switch(workload.gso and supports.gso)
                words += ["--gso", gso, "--gro", _switch(workload.gro and supports.gro)]
            case "single" | "gso" as io:
                words += ["--gso", _switch(io == "gso"), "--gro", _switch(io == "gso")]
            case io:
                words += ["--io", io]
        words += ["--udp-payload", str(self.spec.link.mtu - UDP_OVERHEAD)]
        words += ["--receive-buffer", str(workload.receive_buffer), "--send-buffer", str(workload.receive_buffer)]
        return [*words, "--window", str(workload.window)]

    # ---- what is around it ---------------------------------------------------------------------------------------

    def environment(self) -> dict[str, str] | None:
        """What its environment has besides that of its host."""
        spec = self.spec
        if self._is_browser:
            return browser.environment(self._identity, self._page, spec.cell.transport)
        if spec.external(self.role):
            # the command line does not tell which of the runner's test cases it is, which files to ask for, nor where
            # the folder is
            wanted = spec.cell.variant.aes_hardware
            return {
                "QUICBED_WORKLOAD": spec.workload.kind,
                "QUICBED_FILES": " ".join(map(str, files(spec))),
                "QUICBED_FOLDER": str(self._folder()),
            } | ({} if wanted is None else {"QUICBED_AES_HARDWARE": _switch(wanted)})
        found = {}
        traced = spec.traced and not spec.captured
        if self.role == "server" and traced and self.library.supports.release_times is True:
            found[RELEASE_TIMES] = str(self.output / RELEASES)
        if spec.counted:
            found |= callgrind.ENVIRONMENT
        off = self.library.supports.aes_hardware_off
        if spec.cell.variant.aes_hardware is False and not isinstance(off, str):
            found |= off
        return found or None

    def confined(self) -> Confined:
        """What it may use and see."""
        private = [] if self.role == "client" else [self.host.provide(self._identity)]
        return replace(
            confined(self.project, self.testbed, self.side, self.role, private),
            transfer_bytes=self.spec.bytes,
            buffer_bytes=self.spec.workload.receive_buffer,
            capabilities=BYPASSING if io_of(self.spec.cell.variant, self.role) == "af-xdp" else (),
        )


def _switch(on: object) -> str:
    return "on" if on else "off"


def confined(project: Project, testbed: Testbed, side: Endpoint, role: str, private: Sequence[Path]) -> Confined:
    """What a program of an endpoint may use and see that transfers nothing.

    *private* are directories of certificates with their keys, which a client has no business with.
    """
    limits = project.config.limits
    # the interpreter that builds in Python were made with
    own = (project.build / side.build).resolve()
    # scripts may name other builds, whose names below the directory of builds lead to the store
    stored = sorted(project.store.glob("*/builds"))
    readable = (project.build, own, *stored, Path(sys.prefix), Path(sys.base_prefix))
    described = project.libraries[side.library].external
    if described is None:
        return Confined(limits, readable=readable, private=tuple(private))
    folder = external.folder_of_build(project.build / side.build, role)
    named = [Path(value) for value in described.folder.parameters.values() if Path(value).is_absolute()]
    return Confined(
        limits,
        readable=(*readable, *external.led_to(folder), *filter(Path.exists, named)),
        private=tuple(private),
        changing=(folder,),
        names={SERVER_NAME: str(testbed.server.address)},
        privileged=described.folder.root,
    )


def files(spec: RunSpec) -> list[int]:
    """Sizes in bytes of what the client asks for on each connection."""
    described = spec.libraries["client"].external
    return [spec.bytes] if described is None else external.sizes(described.statement.requests, spec.bytes)


def key_logger(spec: RunSpec) -> Side:
    """The role that writes the TLS secrets: the client, unless it alone is external."""
    # they are the same on both sides, and not every external endpoint writes them
    return "server" if spec.external("client") and not spec.external("server") else "client"
