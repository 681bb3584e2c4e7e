"""config/libraries/: libraries that are built here, and external endpoints, whose folders state what they can do."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from quicbed.config import algorithms
from quicbed.config.reading import ConfigError, Model, Name, check_known, files_in, parse_model, read_yaml
from quicbed.config.testbeds import Regex
from quicbed.config.variants import Cipher, Io, Pacing

Component = Literal[
    "boringssl",
    "boringssl-pq",
    "liboqs",
    "liboqs-0.9",
    "msquic",
    "msquic-jumbo",
    "msquic-noop",
    "openssl",
    "openssl-provider",
    "picoquic",
    "picoquic-searched",
    "quictls",
]
STATEMENT = "quicbed.yaml"
"""File in the folder of an external endpoint, with what it can do (`Statement`)."""


class Patch(Model):
    """A patch to one third-party package of a flavour."""

    crate: str = Field(description="Package whose source is patched, as named in Cargo.lock.")
    file: str = Field(description="Patch file below workflow/crypto/patches/, applied with -p1.")


class Estimate(Model):
    """What a build takes on two cores; shown before it starts, decides nothing."""

    minutes: float = Field(gt=0, description="Time of the build in minutes.")
    disk_mb: float = Field(gt=0, description="Disk the build takes, its work directory included, in MB.")


OWN_CRYPTO = ("workflow/crypto/noop-aead", "workflow/crypto/pq")
"""Code of this repository that TLS libraries are compiled with: the NOOP AEAD of BoringSSL, and the way to liboqs."""
EXTERNAL = " (external)"
"""What the name of an external endpoint ends with in figures and tables."""


class Flavour(Model):
    """One build of a library."""

    patches: list[Patch] = Field(
        default_factory=list,
        description="Patches to third-party sources; a stock flavour has none.",
    )
    features: list[str] = Field(
        default_factory=list,
        description="Cargo features of the endpoint switched on in this flavour.",
    )
    endpoint: str | None = Field(
        None, description="Directory of its endpoint programs, where it has others than the library's `endpoint`."
    )
    package: str | None = Field(
        None, description="Cargo package of its endpoint, where it has another than the library's `package`."
    )
    sources: list[str] = Field(
        default_factory=list,
        description="Further files or directories of this repository that are compiled in.",
    )
    components: list[Component] = Field(
        default_factory=list,
        description="Libraries built once and shared with other builds (`workflow/quicbed/builds/components.py`).",
    )
    algorithms: Literal["listed", "all"] = Field(
        "listed",
        description="`all`: every group and signature algorithm of workflow/crypto/algorithms.csv but those under "
        "`unsupported`; `listed`: those under the library's `supports`.",
    )
    unsupported: dict[str, str] = Field(
        default_factory=dict,
        description="Groups and signature algorithms that this flavour cannot do although `algorithms` is `all`: name "
        "and reason.",
    )
    jumbo: bool = Field(
        False,
        description="Built for larger MTUs than the library as it comes: what varies the MTU is measured on it.",
    )
    elsewhere: str | None = Field(
        None,
        description="Why other libraries do not have this flavour, for those whose `no_flavour` gives no reason of "
        "their own.",
    )
    estimate: Estimate = Field(description="Time and disk of the build.")

    @model_validator(mode="after")
    def _consistent(self) -> Flavour:
        if self.unsupported and self.algorithms != "all":
            raise ValueError("unsupported: needs `algorithms: all`; without it a flavour has what `supports` lists")
        return self


class Supports(Model):
    """What the endpoints of a library can do; checked against `--describe` of the builds."""

    ciphers: list[Cipher] = Field(description="AEAD cipher suites.")
    groups: list[str] = Field(description="Key-exchange groups of flavours whose `algorithms` are `listed`.")
    signatures: list[str] = Field(
        ["rsa-2048"],
        description="Signature algorithms of certificates, of flavours whose `algorithms` are `listed`.",
    )
    retry: bool | str = Field(True, description="Retry packets: `true`, or the reason why there are none.")
    initial_size: bool | str = Field(
        True, description="Initial datagrams above 1200 bytes: `true`, or the reason why they cannot be."
    )
    congestion_controls: list[str] = Field(description="Congestion controls.")
    tls12: bool = Field(False, description="Whether endpoints over TCP have TLS 1.2 besides 1.3; QUIC has none.")
    noop: bool = Field(description="Whether flavour noop has a NOOP AEAD.")
    noenc: bool = Field(
        False,
        description="Whether 1-RTT packets can be sent without packet protection (NOENC; A Quantum of QUIC, Sec. III).",
    )
    aes_hardware_off: dict[str, str] | str = Field(
        "has no switch for the AES instructions of the processor",
        description="Environment variables with which the endpoints do without the AES instructions of the processor, "
        "or the reason why they cannot.",
    )
    udp_payload_max: int | str | None = Field(
        None,
        description="Largest UDP payload in bytes of its datagrams, where `--udp-payload` cannot raise them further, "
        "or the reason why they cannot be above those of the default MTU; null: no limit of its own.",
    )
    header_protection_off: bool = Field(description="Whether flavour noop can switch header protection off.")
    pacing: dict[Pacing, Literal[True] | str] = Field(
        default_factory=dict,
        description="Values of `--pacing`, each with `true` or the reason why it cannot be; the first that can is how "
        "the library's own programs pace. Empty: the endpoint has no option.",
    )
    paces: list[str] | None = Field(
        None, description="Congestion controls whose packets it paces, as the others give it no rate; null: all."
    )
    gso: bool | None = Field(description="UDP GSO on sending; null for TCP.")
    gso_paced: bool | str = Field(
        "sends in one batch what its pacer lets go at once",
        description="`--gso paced`, batches that end where the pacer's next release time begins: `true`, or the reason "
        "why they cannot.",
    )
    release_times: bool | str = Field(
        "keeps the release times of its pacer to itself",
        description="Whether the server can note when each packet was to leave by its pacer: `true`, or the reason why "
        "it cannot.",
    )
    gro: bool | None = Field(description="UDP GRO on receiving; null for TCP.")
    io: list[Io] = Field(
        default_factory=list,
        description="Ways in which its endpoints can be told to pass datagrams to the kernel and back (`io` of "
        "variants); empty: that is up to the library.",
    )
    pages: bool = Field(
        False,
        description="Whether its endpoints load pages, several objects over one connection as browsers do, and keep "
        "it for another load (`--visit kept`).",
    )
    http3: bool | str = Field(
        "its endpoints speak one application protocol",
        description="Downloads over HTTP/3 besides those over a bare stream (`--alpn h3`; RFC 9114): `true`, or the "
        "reason why they cannot. A library whose `alpn` is `h3` has no others.",
    )
    resumption: bool | str = Field(
        "its endpoints resume no sessions",
        description="Second visits, whose connection resumes the session of the first (`--visit resumed`): `true`, or "
        "the reason why it cannot.",
    )
    early_data: bool | str = Field(
        "its endpoints resume no sessions",
        description="Second visits that send their request before the handshake is complete (`--visit early-data`; "
        "RFC 8446, 2.3): `true`, or the reason why they cannot.",
    )
    open_loop: bool | str = Field(
        "its client makes one connection after the other",
        description="Connections of the client that begin at a rate, whatever becomes of those before (`--rate`): "
        "`true`, or the reason why they cannot.",
    )


class Notes(Model):
    """Prose for docs/libraries.md."""

    noop: str = Field(description="What the NOOP AEAD covers and how it is made.")
    initial: str = Field(description="Whether Initial packets stay standard in the noop flavour.")
    header_protection: str = Field(description="What switching header protection off does.")
    io: str = Field(description="How the endpoints do I/O, batching, buffers and windows.")
    pacing: str | None = Field(None, description="What its pacer does, and what of that the endpoints use.")
    flavours: str | None = Field(None, description="What its own flavours are, and who computes those of `pq`.")


class Example(Model):
    """The example programs that a library ships, which `make bench` holds our endpoints against.

    In words and file names `{bytes}`, `{port}`, `{root}` (a directory that holds `{bytes}`), `{content}` (that file),
    `{certificate}`, `{key}`, `{ca}` and `{ca_der}` stand for what a transfer has.
    """

    package: str = Field(description="Package whose examples these are, as among its sources.")
    server: list[str] = Field(min_length=1, description="Example that serves, and its command line.")
    client: list[str] = Field(min_length=1, description="Example that downloads, and its command line.")
    files: dict[str, str] = Field(
        default_factory=dict,
        description="Links that the programs expect in their working directory, and what they lead to.",
    )
    received: Regex | None = Field(
        None,
        description="Regular expression of what the client says on standard error about the bytes it has received, "
        "with their number as its group; null: it writes what it receives.",
    )


class External(Model):
    """A folder that keeps the contract of the bare-metal QUIC Interop Runner (docs/external-endpoints.md)."""

    path: str = Field(
        description="The folder, absolute or relative to the repository's root. It holds `quicbed.yaml`, which says "
        "what it is and can do."
    )
    client_path: str | None = Field(None, description="Folder of the client, where it has its own.")
    server_path: str | None = Field(None, description="Folder of the server, where it has its own.")
    parameters: dict[str, str] = Field(
        default_factory=dict,
        description="Further environment variables of the scripts, also in /tmp/interop-variables.json as they see it.",
    )
    root: bool = Field(
        False,
        description="Whether its scripts run as the user of who starts quicbed, in the folder itself, with all that "
        "this user may read and change: for a folder that needs root.",
    )

    @field_validator("parameters")
    @classmethod
    def _not_of_quicbed(cls, value: dict[str, str]) -> dict[str, str]:
        if own := [name for name in value if name.startswith("QUICBED_")]:
            raise ValueError(f"`{own[0]}` is a name of quicbed's own; give it another")
        return value


class ExternalFile(Model):
    """config/libraries/<name>.yaml of an external endpoint: where its folder is."""

    external: External = Field(description="The folder.")
    optional: bool = Field(
        False,
        description="Left out of experiments on `all` libraries; takes part where it is named, also by `libraries` of "
        "config.yaml.",
    )


class StatedFlavour(Model):
    """A flavour of a folder: what it has instead of what is under `supports`."""

    groups: list[str] | None = Field(None, min_length=1, description="Key-exchange groups; null: those of `supports`.")
    signatures: list[str] | None = Field(
        None, min_length=1, description="Signature algorithms; null: those of `supports`."
    )
    components: list[Literal["boringssl", "boringssl-pq", "liboqs", "openssl", "quictls"]] = Field(
        default_factory=list,
        description="Libraries that quicbed builds once and that the folder is compiled against. The scripts get "
        "their directories.",
    )


class StatedSupports(Model):
    """What the scripts of a folder can do, when they are told so in their environment or anyway."""

    ciphers: list[Cipher] = Field(min_length=1, description="AEAD cipher suites, each as the only one.")
    groups: list[str] = Field(min_length=1, description="Key-exchange groups, each as the only one.")
    signatures: list[str] = Field(
        ["rsa-2048"], min_length=1, description="Signature algorithms of the server's certificate."
    )
    congestion_controls: list[Literal["cubic", "reno", "bbr"]] = Field(
        min_length=1, description="Congestion controls; the first one where an experiment asks for none."
    )
    noop: bool = Field(False, description="Whether flavour `noop` has a NOOP AEAD.")
    noenc: bool = Field(False, description="Whether 1-RTT packets can be sent without packet protection (NOENC).")
    header_protection_off: bool = Field(False, description="Whether flavour `noop` can switch header protection off.")
    retry: bool = Field(False, description="Whether its server can send Retry packets.")
    initial_size: bool = Field(False, description="Whether Initial datagrams can be larger than 1200 bytes.")
    udp_payload_max: int = Field(1472, ge=1200, le=65507, description="Largest UDP payload in bytes of its datagrams.")
    receive_buffer: bool = Field(False, description="Whether it sets its socket buffers to the requested sizes.")
    gso: list[bool] = Field(
        default_factory=list,
        max_length=2,
        description="UDP GSO on sending: `[true, false]` as requested, `[true]` always, `[false]` never, `[]` not "
        "known.",
    )
    gso_paced: bool = Field(
        False, description="Whether its batches can end where the pacer's next release time begins."
    )
    gro: list[bool] = Field(default_factory=list, max_length=2, description="UDP GRO on receiving, as `gso`.")
    pacing: list[Pacing] = Field(
        default_factory=list,
        description="Ways to pace that it accepts, the first as its library does by itself; empty: it has no option.",
    )
    paces: list[str] | None = Field(None, description="Congestion controls whose packets it paces; null: all.")
    aes_hardware_off: bool = Field(
        False, description="Whether it can do without the AES instructions of the processor."
    )

    @field_validator("pacing", mode="before")
    @classmethod
    def _off_is_false(cls, value: Any) -> Any:
        """What YAML makes of `off`."""
        return ["off" if one is False else one for one in value] if isinstance(value, list) else value


class Statement(Model):
    """quicbed.yaml in the folder of an external endpoint: what it is and what its scripts can do."""

    statement: Literal[1] = Field(description="Version of this format.")
    title: str = Field(min_length=1, max_length=100, description="Name in figures.")
    transport: Literal["quic", "tcp"] = Field("quic", description="What runs under the application protocol.")
    alpn: Literal["hq-interop", "h3", "http/1.1"] = Field(
        "hq-interop", description="Application protocol; only endpoints with the same one are paired."
    )
    tls_library: str = Field("unknown", description="The TLS library it uses.")
    licence: str = Field("unknown", description="Licence of the library, as an SPDX expression.")
    testcases: dict[Literal["bulk", "handshake"], str] = Field(
        {"bulk": "goodput", "handshake": "handshake"},
        description="TESTCASE that the scripts are given, by workload; some folders know `transfer` instead of "
        "`goodput`.",
    )
    qlog: bool = Field(False, description="Whether the scripts are given a QLOGDIR.")
    requests: int = Field(
        1, ge=1, le=100, description="Files that its client downloads at once, which together have the size asked for."
    )
    times: bool = Field(
        False,
        description="Whether its client reports the times of every connection in its event file. Goodput and time to "
        "first byte are then those of the connection, without the start of the program.",
    )
    threads: Literal["one", "several"] = Field(
        "one", description="Whether an endpoint works on one thread, as for libraries that are built here."
    )
    max_bytes: int | None = Field(None, gt=0, description="Largest download in bytes that is asked of it; null: any.")
    flavours: dict[Name, StatedFlavour] = Field(
        default_factory=lambda: {"stock": StatedFlavour()},
        description="Its flavours: `stock`, and `noop`, `pq` or others that experiments ask for; `stock` alone if left "
        "out. The scripts get its name.",
    )
    supports: StatedSupports = Field(description="Capabilities.")

    @model_validator(mode="after")
    def _consistent(self) -> Statement:
        if missing := {"bulk", "handshake"} - set(self.testcases):
            raise ValueError(f"testcases: `{min(missing)}` is missing; name the test case of both workloads")
        if "stock" not in self.flavours:
            raise ValueError("flavours: `stock` is missing; add `stock: {}`")
        plain = self.supports.noop or self.supports.header_protection_off
        if plain and "noop" not in self.flavours:
            raise ValueError(
                "flavours: `noop` is missing, which supports.noop and supports.header_protection_off are about; add "
                "`noop: {}`"
            )
        if self.times and self.requests > 1:
            raise ValueError("times: are those of one connection with one request; leave out `requests`")
        return self


class Library(Model):
    """config/libraries/<name>.yaml: one QUIC (or TCP+TLS) implementation."""

    title: str = Field(description="Name in figures.")
    transport: Literal["quic", "tcp", "udp"] = Field(
        description="What runs under the application protocol; `udp`: datagrams alone, without a handshake and TLS."
    )
    tls_library: str = Field(description="The TLS library it uses.")
    licence: str = Field(description="Licence of the library, as an SPDX expression.")
    alpn: Literal["hq-interop", "h3", "http/1.1"] = Field(
        "hq-interop", description="Application protocol of its endpoints; only endpoints with the same one are paired."
    )
    recipe: Name = Field(
        description="How it is built: the name of a module in workflow/quicbed/builds/recipes/, as `cargo` for a "
        "crate in workflow/endpoints/."
    )
    endpoint: str = Field(description="Directory of its endpoint programs below workflow/endpoints/.")
    package: str | None = Field(None, description="Cargo package of the endpoint (recipe `cargo`).")
    crates: list[str] = Field(
        default_factory=list,
        description="Third-party packages of Cargo.lock that make up the library, the first one giving its version. A "
        "recipe that takes its sources elsewhere has a lock file in the endpoint's directory.",
    )
    version: str | None = Field(
        None, description="Version of the library, where the first package has a numbering of its own."
    )
    environment: dict[str, str] = Field(
        default_factory=dict,
        description="Environment variables of the build (recipe `cargo`); `{package}` stands for the directory of the "
        "fetched source of a package.",
    )
    flavours: dict[Name, Flavour] = Field(description="Builds: `stock` and others.")
    no_flavour: dict[Name, str] = Field(
        default_factory=dict,
        description="Flavours that other libraries have and this one has not: name and reason, where it is another one "
        "than their `elsewhere`.",
    )
    example: Example | None = Field(None, description="Example programs in the library's own sources, for comparison.")
    no_example: str | None = Field(None, description="Why `example` is missing.")
    threads: Literal["one", "several"] = Field(
        "one",
        description="Whether an endpoint works on one thread. Several wait for each other, so that waiting for a "
        "processor does not show other work on the machine (gate.max_run_delay); the processor time of others "
        "still does.",
    )
    max_bytes: int | None = Field(
        None,
        gt=0,
        description="Largest download in bytes that is asked of it, for a library so slow that a larger one would take "
        "minutes; goodput is that of the bytes transferred.",
    )
    optional: bool = Field(
        False,
        description="Left out of experiments on `all` libraries; takes part where it is named, also by `libraries` of "
        "config.yaml.",
    )
    supports: Supports = Field(description="Capabilities.")
    notes: Notes = Field(description="What the documentation says about this library.")

    @model_validator(mode="after")
    def _consistent(self) -> Library:
        if "stock" not in self.flavours:
            raise ValueError("flavours: `stock` is missing; every library has an unpatched build")
        if both := self.no_flavour.keys() & self.flavours.keys():
            raise ValueError(
                f"no_flavour: `{min(both)}` is one of `flavours`; give the reason, or describe it, not both"
            )
        stock = self.flavours["stock"]
        if stock.endpoint or stock.package:
            raise ValueError("flavours.stock: endpoint and package are those of the library; leave them out here")
        if stock.patches or stock.features:
            raise ValueError("flavours.stock: a stock build has neither patches nor features; move them to another")
        if self.recipe == "cargo" and not self.package:
            raise ValueError("package: is missing; recipe `cargo` needs the endpoint's Cargo package")
        if self.recipe == "cargo" and not self.crates:
            raise ValueError("crates: is missing; recipe `cargo` takes sources and version from packages of Cargo.lock")
        if self.example is not None and self.no_example is not None:
            raise ValueError("no_example: gives a reason for no example, but `example` has one; remove one of the two")
        return self

    @property
    def external(self) -> ExternalLibrary | None:
        """The library, if it is an external endpoint."""
        return None

    @property
    def shown_as(self) -> str:
        """Name in figures and tables, where external endpoints are marked."""
        return f"{self.title}{EXTERNAL}" if self.external else self.title

    def pairs_with(self, other: Library) -> bool:
        """Whether a client of one of the two can meet a server of the other."""
        return (self.transport, self.alpn) == (other.transport, other.alpn)


class ExternalLibrary(Library):
    """An external endpoint as a library: made of where its folder is and of what that states."""

    folder: External
    statement: Statement
    problem: str | None = None
    """Why it is not known what the folder can do."""

    @property
    def external(self) -> ExternalLibrary | None:
        """The library itself."""
        return self


_UNSTATED = "its quicbed.yaml does not say that it {}"


def external_library(root: Path, name: str, file: ExternalFile, table: algorithms.Table) -> ExternalLibrary:
    """The library *name* that a folder states; one with a `problem` where the statement cannot be used."""
    problem = None
    try:
        stated = read_statement((root / file.external.path).resolve(), table)
    except ConfigError as error:
        problem = f"config/libraries/{name}.yaml: external.path: {error}"
        nothing = StatedSupports.model_construct(ciphers=[], groups=[], signatures=[], congestion_controls=["cubic"])
        stated = Statement(statement=1, title=name, supports=nothing)
    supports = stated.supports
    return ExternalLibrary(
        title=stated.title,
        transport=stated.transport,
        tls_library=stated.tls_library,
        licence=stated.licence,
        alpn=stated.alpn,
        recipe="external",
        endpoint="external",
        flavours={flavour: _stated_flavour(one, supports, table) for flavour, one in stated.flavours.items()},
        threads=stated.threads,
        max_bytes=stated.max_bytes,
        optional=file.optional,
        supports=Supports(
            ciphers=supports.ciphers,
            groups=supports.groups,
            signatures=supports.signatures,
            retry=supports.retry or _UNSTATED.format("sends Retry packets"),
            initial_size=supports.initial_size or _UNSTATED.format("has larger Initial packets"),
            congestion_controls=[*supports.congestion_controls],
            noop=supports.noop,
            noenc=supports.noenc,
            aes_hardware_off={} if supports.aes_hardware_off else _UNSTATED.format("can do without AES instructions"),
            udp_payload_max=supports.udp_payload_max,
            header_protection_off=supports.header_protection_off,
            pacing=dict.fromkeys(supports.pacing, True),
            paces=supports.paces,
            gso=True in supports.gso if supports.gso else None,
            gso_paced=supports.gso_paced or _UNSTATED.format("sends batches by release time"),
            release_times="is an external endpoint, which is not asked for release times",
            gro=True in supports.gro if supports.gro else None,
        ),
        notes=Notes(noop="", initial="", header_protection="", io=""),
        folder=file.external,
        statement=stated,
        problem=problem,
    )


def read_statement(folder: Path, table: algorithms.Table) -> Statement:
    """What a folder states; raises ConfigError."""
    file = folder / STATEMENT
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no directory; give the folder of the endpoint")
    if not file.exists():
        raise ConfigError(f"{folder} has no {STATEMENT}; state there what it can do (docs/external-endpoints.md)")
    stated = parse_model(Statement, read_yaml(file), file)
    known = {kind: {one.name: one for one in getattr(table, kind)} for kind in ("groups", "signatures")}
    lists: list[tuple[str, StatedSupports | StatedFlavour]] = [("supports", stated.supports)]
    lists += [(f"flavours.{name}", one) for name, one in stated.flavours.items()]
    for where, one in lists:
        for kind, names in known.items():
            for name in getattr(one, kind) or ():
                check_known(f"{where}.{kind}", name, names, file)
    return stated


def _stated_flavour(stated: StatedFlavour, supports: StatedSupports, table: algorithms.Table) -> Flavour:
    """A flavour of a folder as a build of a library."""
    made = Flavour(
        components=stated.components,
        # what a folder that has components may compile too
        sources=[*OWN_CRYPTO] if stated.components else [],
        estimate=Estimate(minutes=0.1, disk_mb=1),
    )
    if stated.groups is None and stated.signatures is None:
        return made
    listed = {*(stated.groups or supports.groups), *(stated.signatures or supports.signatures)}
    missing = [one.name for one in (*table.groups, *table.signatures) if one.name not in listed]
    unsupported = {name: f"its quicbed.yaml does not list {name}" for name in missing}
    return made.model_copy(update={"algorithms": "all", "unsupported": unsupported})


def read_libraries(root: Path, directory: Path, table: algorithms.Table) -> dict[str, Library]:
    """The libraries that are built here, and those that folders state."""
    found: dict[str, Library] = {}
    for file in files_in(directory):
        data = read_yaml(file)
        if "external" not in data and data.get("recipe") != "external":
            found[file.stem] = parse_model(Library, data, file)
            continue
        own = data.get("external")
        stated = {*Statement.model_fields, *Library.model_fields} - ExternalFile.model_fields.keys()
        moved = [key for key in data if key in stated]
        moved += [f"external.{key}" for key in own if key in stated] if isinstance(own, dict) else []
        if moved:
            raise ConfigError(
                f"{file}: {moved[0]}: an external endpoint is described in {STATEMENT} in its folder "
                "(docs/external-endpoints.md); leave here `external` with its path, parameters and root, and `optional`"
            )
        found[file.stem] = external_library(root, file.stem, parse_model(ExternalFile, data, file), table)
    elsewhere = {
        flavour: one.elsewhere
        for library in found.values()
        for flavour, one in library.flavours.items()
        if one.elsewhere is not None
    }
    return {
        name: library.model_copy(
            update={
                "no_flavour": {flavour: why for flavour, why in elsewhere.items() if flavour not in library.flavours}
                | library.no_flavour
            }
        )
        for name, library in found.items()
    }
