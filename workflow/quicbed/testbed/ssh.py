"""Connections over SSH that are kept open, and the agent (:mod:`.agent`) at work behind each.

asyncssh works in an event loop in a thread of its own. A connection carries one channel: the standard input and output
of the agent. Nothing but constants ever stands on a command line of the host's shell: which agent, where, and every
program to be run go through the channel.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import itertools
import json
import math
import os
import shlex
import socket
import threading
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import asyncssh

from quicbed.base import untrusted
from quicbed.base.untrusted import one_line
from quicbed.config.model import SshAddress, SshMachine

from .agent import LENGTHS, MAX_BLOB, MAX_HEADER
from .base import HostLostError, TestbedError, understood

T = TypeVar("T")


class UnreachableError(TestbedError):
    """A host that does not answer, as while it boots."""


CONNECT_TIMEOUT_S = 20.0
START_TIMEOUT_S = 30.0
REQUEST_TIMEOUT_S = 30.0
PING_S = 5.0
PING_TIMEOUT_S = 15.0
_AGENT = Path(__file__).with_name("agent.py")

_KNOWN_HOSTS = {
    "UserKnownHostsFile": ("~/.ssh/known_hosts", "~/.ssh/known_hosts2"),
    "GlobalKnownHostsFile": ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"),
}
"""Where host keys are looked for unless the OpenSSH configuration names other files by these keys (ssh_config(5))."""

# Reads which agent is wanted, receives it if it is not there with this content, and becomes it. It reads no byte more:
# what follows is for the agent.
_BOOTSTRAP = """
import hashlib, json, os, stat, sys
def say(**message):
    os.write(1, json.dumps(message).encode() + b"\\n")
try:
    source = os.fdopen(os.dup(0), "rb", 0)
    wanted = json.loads(source.readline())
    if sys.version_info < (3, 9):
        raise ValueError("python3 is " + sys.version.split()[0] + ", Python 3.9 or newer is needed")
    directory = os.path.join(wanted["directory"], "agent")
    os.makedirs(directory, 0o755, True)
    for place in (wanted["directory"], directory):
        found = os.lstat(place)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise ValueError(place + ": is not a directory that belongs to its user and that nobody else may write to;"
                " name another as `directory`, or: chown, chmod go-w")
    path = os.path.join(directory, wanted["sha256"] + ".py")
    content = b""
    if os.path.exists(path):
        with open(path, "rb") as file:
            content = file.read()
    if hashlib.sha256(content).hexdigest() != wanted["sha256"]:
        say(need=True)
        content = b""
        while len(content) < wanted["size"]:
            part = source.read(wanted["size"] - len(content))
            if not part:
                sys.exit(1)
            content += part
        if hashlib.sha256(content).hexdigest() != wanted["sha256"]:
            raise ValueError("the agent arrived damaged")
        with open(path + "." + str(os.getpid()), "wb") as file:
            file.write(content)
        os.replace(file.name, path)
    say(ready=True)
except Exception as error:
    say(error=str(error))
    sys.exit(1)
os.execv(sys.executable, [sys.executable, "-I", path, "serve", wanted["directory"]])
"""


class Loop:
    """An event loop in a thread; calls into it block the caller."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Result of a coroutine."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def together(self, coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
        """Results of coroutines that run at the same time; raises the first error after all have ended."""

        async def gather() -> list[T | BaseException]:
            return await asyncio.gather(*coroutines, return_exceptions=True)

        results: list[T] = []
        for result in self.call(gather()):
            if isinstance(result, BaseException):
                raise result
            results.append(result)
        return results

    def close(self) -> None:
        """End the loop and its thread."""

        async def rest() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.call(rest())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Client(asyncssh.SSHClient):
    """Keeps the fingerprint of a host key that is not trusted, for the message."""

    fingerprint = ""

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        del host, addr, port
        self.fingerprint = key.get_fingerprint()
        return False


def _fingerprint(host_key: str) -> str:
    digest = hashlib.sha256(base64.b64decode(host_key.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


async def _chosen(
    where: str, host: str, options: Mapping[str, Any], *, remedy: str
) -> asyncssh.SSHClientConnectionOptions:
    """What is chosen for a host, OpenSSH configuration included.

    TestbedError if that names no known_hosts file, where asyncssh would take any key.
    """
    chosen: asyncssh.SSHClientConnectionOptions
    chosen = await asyncssh.SSHClientConnectionOptions.construct(host=host, **options)
    if chosen.known_hosts is None:
        raise TestbedError(
            f"{where}: `UserKnownHostsFile none` of the OpenSSH configuration would let every host key of {host} pass; "
            f"name a file there, or {remedy}"
        )
    return chosen


def _hops(chosen: asyncssh.SSHClientConnectionOptions) -> list[str]:
    """Hosts of `ProxyJump` ([user@]host[:port], ssh_config(5)), which asyncssh connects to itself."""
    if not isinstance(chosen.tunnel, str):
        return []
    found = []
    for hop in chosen.tunnel.split(","):
        host = hop.rpartition("@")[2]
        found.append(host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0])
    return found


async def _trusted(where: str, address: SshAddress, options: Mapping[str, Any]) -> Any:
    """Host keys that are trusted, as asyncssh takes them: the one that is pinned, or those of files that there are.

    TestbedError if any key would do, on the way to the host too.
    """
    known: Any = ([], [], [])
    if address.host_key is not None:
        known = ([asyncssh.import_public_key(address.host_key)], [], [])
    pinned = {} if address.host_key is None else {"known_hosts": known}
    chosen = await _chosen(where, address.address, {**options, **pinned}, remedy="pin the key with `host_key`")
    waiting = _hops(chosen)
    seen: set[str] = set()
    while waiting:
        hop = waiting.pop()
        if hop not in seen:
            seen.add(hop)
            own = {key: value for key, value in options.items() if key == "config"}
            remedy = "name that host with its `host_key` as `jump`"
            waiting += _hops(await _chosen(where, hop, own, remedy=remedy))
    if pinned:
        return known
    files: list[str] = []
    for key, usual in _KNOWN_HOSTS.items():
        named = chosen.config.get(key)
        files += named if isinstance(named, list) else usual
    paths = [str(Path(file).expanduser()) for file in files]
    return [path for path in paths if Path(path).is_file() and os.access(path, os.R_OK)] or known


async def connect(
    where: str,
    address: SshAddress,
    config: Sequence[str] | None,
    tunnel: asyncssh.SSHClientConnection | None = None,
) -> asyncssh.SSHClientConnection:
    """A connection to a host; raises TestbedError naming the host and the remedy.

    Only keys serve to log in. *config* are OpenSSH configuration files, by default the user's own.
    """
    options: dict[str, Any] = {
        "preferred_auth": ["publickey"],
        # whatever the OpenSSH configuration says: nobody there is to log in with the user's keys
        "agent_forwarding": False,
        "connect_timeout": CONNECT_TIMEOUT_S,
        "login_timeout": CONNECT_TIMEOUT_S,
        "keepalive_interval": PING_S,
        "keepalive_count_max": 3,
    }
    if config is not None:
        options["config"] = [str(Path(file).expanduser()) for file in config]
    if tunnel is not None:
        options["tunnel"] = tunnel
    if address.user is not None:
        options["username"] = address.user
    if address.port is not None:
        options["port"] = address.port
    place = address.address if address.port is None else f"{address.address}:{address.port}"
    clients: list[_Client] = []

    def client() -> _Client:
        clients.append(_Client())
        return clients[-1]

    try:
        if address.key is not None:
            options["client_keys"] = [str(Path(address.key).expanduser())]
        options["known_hosts"] = await _trusted(where, address, options)
        connection, _ = await asyncssh.create_connection(client, address.address, **options)
    except asyncssh.HostKeyNotVerifiable:
        shown = clients[-1].fingerprint if clients else ""
        expected = f" ({_fingerprint(address.host_key)} is pinned)" if address.host_key else ""
        raise TestbedError(
            f"{where}: the host key {shown} of {place} is not trusted{expected}. If the host is new or was installed "
            f"again, compare the key with the one on its console, then put it into known_hosts (remove an older one "
            f"with: ssh-keygen -R {address.address}) or into `host_key`"
        ) from None
    except asyncssh.KeyExchangeFailed as error:
        raise TestbedError(
            f"{where}: no host key of {place} is of a trusted kind ({error.reason}); compare its keys with known_hosts "
            "or `host_key`"
        ) from None
    except asyncssh.PermissionDenied:
        raise TestbedError(
            f"{where}: {place} accepts no key of {address.user or 'this user'}; add the public key to authorized_keys "
            "there, and name the key in `key` or load it into the SSH agent"
        ) from None
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        raise TestbedError(
            f"{where}: {address.key or 'a key'} cannot be used: {error}; a key with a passphrase has to be in the SSH "
            "agent (ssh-add), with `key` left out"
        ) from None
    except asyncssh.ConfigParseError as error:
        raise TestbedError(f"{where}: OpenSSH configuration: {error}") from None
    except (asyncssh.Error, socket.gaierror, TimeoutError, OSError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        if isinstance(error, FileNotFoundError) and error.filename:
            raise TestbedError(f"{where}: {error.filename} is missing; check `key` and `ssh_config`") from None
        raise UnreachableError(
            f"{where}: {place} cannot be reached: {reason or f'no answer in {CONNECT_TIMEOUT_S:g} s'}; check `address` "
            "and `port`, and that its SSH server runs"
        ) from None
    return connection


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _of_64_bits(text: str) -> int:
    value = int(text)
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError("a number beyond 64 bits")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number without an end")
    return value


class Connection:
    """A connection to a host with an agent that answers requests."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.failure: str | None = None
        """Why no further request can be made."""
        self._connections: list[asyncssh.SSHClientConnection] = []
        self._process: asyncssh.SSHClientProcess[bytes] | None = None
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._tasks: list[asyncio.Task[None]] = []
        self._said: deque[str] = deque(maxlen=20)

    @classmethod
    async def open(cls, where: str, host: SshMachine, config: Sequence[str] | None) -> Connection:
        """Connect, and start the agent; raises TestbedError naming the host and the remedy."""
        self = cls(where)
        try:
            tunnel = None
            if host.jump is not None:
                tunnel = await connect(f"{where}: jump host", host.jump, config)
                self._connections.append(tunnel)
            self._connections.append(await connect(where, host, config, tunnel))
            async with asyncio.timeout(START_TIMEOUT_S):
                with understood(where):
                    await self._start(host)
        except TimeoutError:
            await self.close()
            raise TestbedError(f"{where}: the agent does not start within {START_TIMEOUT_S:g} s") from None
        except (asyncssh.Error, OSError) as error:
            await self.close()
            raise TestbedError(f"{where}: the connection was lost: {one_line(error)}") from None
        except BaseException:
            await self.close()
            raise
        return self

    async def _start(self, host: SshMachine) -> None:
        argv = [*(("sudo", "-n", "--") if host.sudo else ()), "python3", "-I", "-c", _BOOTSTRAP]
        self._process = await self._connections[-1].create_process(shlex.join(argv), encoding=None)
        self._tasks.append(asyncio.ensure_future(self._listen_to_errors()))
        agent = _AGENT.read_bytes()
        wanted = {"directory": host.directory, "sha256": hashlib.sha256(agent).hexdigest(), "size": len(agent)}
        self._process.stdin.write(json.dumps(wanted).encode() + b"\n")
        said = await self._said_at_start()
        if "need" in said:
            self._process.stdin.write(agent)
            said = await self._said_at_start()
        if "ready" not in said:
            remedy = self._remedy(host, said)
            raise TestbedError(f"{self.where}: the agent cannot start: {one_line(said.get('error'))}{remedy}")
        self._tasks.append(asyncio.ensure_future(self._listen()))
        self._tasks.append(asyncio.ensure_future(self._ping()))

    @staticmethod
    def _remedy(host: SshMachine, said: dict[str, Any]) -> str:
        text = str(said.get("error"))
        if "sudo" in text and host.sudo:
            return "; `sudo: true` needs sudo without a password for this user"
        if "Permission denied" in text or "Errno 13" in text:
            return f"; log in as root, set `sudo: true`, or name a directory to write to instead of {host.directory}"
        return ""

    async def _said_at_start(self) -> dict[str, Any]:
        """What the bootstrap says; lines before it come from the shell's start-up files."""
        assert self._process is not None  # noqa: S101 (started before)
        while line := await self._process.stdout.readline():
            with contextlib.suppress(ValueError):
                said = untrusted.parse(line)
                if isinstance(said, dict):
                    return said
        await self._process.wait_closed()
        await asyncio.wait(self._tasks, timeout=1)
        status = self._process.exit_status
        return {"error": self._said[-1] if self._said else f"python3 ended with status {status}"}

    async def _listen_to_errors(self) -> None:
        assert self._process is not None  # noqa: S101 (started before)
        with contextlib.suppress(asyncssh.Error, OSError):
            while line := await self._process.stderr.readline():
                self._said.append(one_line(line.decode(errors="replace")))

    async def _listen(self) -> None:
        assert self._process is not None  # noqa: S101 (started before)
        stdout = self._process.stdout
        try:
            while True:
                header, size = LENGTHS.unpack(await stdout.readexactly(LENGTHS.size))
                if header > MAX_HEADER or size > MAX_BLOB:
                    raise ValueError("message too long")
                content = await stdout.readexactly(header)
                answer = json.loads(content, parse_constant=_refuse, parse_float=_finite, parse_int=_of_64_bits)
                blob = await stdout.readexactly(size)
                future = self._pending.pop(answer["id"], None)
                if future is None or future.done():
                    continue
                if "error" in answer:
                    future.set_exception(TestbedError(f"{self.where}: {one_line(answer['error'])}"))
                else:
                    future.set_result(blob if answer.get("bytes") else answer.get("result"))
        except (
            *(asyncssh.Error, OSError, asyncio.IncompleteReadError),
            *(ValueError, LookupError, TypeError, AttributeError, RecursionError),  # what it sends is no answer
        ) as error:
            said = f": {self._said[-1]}" if self._said else ""
            reason = getattr(error, "reason", "") or "the agent has ended"
            self._lose(f"the connection was lost: {reason}{said}")

    async def _ping(self) -> None:
        with contextlib.suppress(TestbedError):
            while True:
                await asyncio.sleep(PING_S)
                await self.request("ping", time_limit=PING_TIMEOUT_S)

    def _lose(self, reason: str) -> None:
        if self.failure is None:
            self.failure = reason
        for future in self._pending.values():
            if not future.done():
                future.set_exception(HostLostError(f"{self.where}: {self.failure}"))
        self._pending.clear()

    async def request(self, op: str, *, time_limit: float = REQUEST_TIMEOUT_S, blob: bytes = b"", **more: Any) -> Any:
        """Answer of the agent: a JSON value, or bytes.

        Raises TestbedError if it cannot be done, HostLostError if no answer comes within *time_limit* seconds.
        """
        if self.failure is not None or self._process is None:
            raise HostLostError(f"{self.where}: {self.failure or 'is not connected'}")
        number = next(self._numbers)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[number] = future
        header = json.dumps({"id": number, "op": op, **more}).encode()
        try:
            async with asyncio.timeout(time_limit):
                self._process.stdin.write(LENGTHS.pack(len(header), len(blob)) + header + blob)
                await self._process.stdin.drain()
                return await future
        except TimeoutError:
            self._lose(f"no answer to `{op}` in {time_limit:g} s")
            self._abort()
            raise HostLostError(f"{self.where}: {self.failure}") from None
        except (asyncssh.Error, BrokenPipeError, ConnectionError) as error:
            self._lose(f"the connection was lost: {getattr(error, 'reason', error)}")
            raise HostLostError(f"{self.where}: {self.failure}") from None
        finally:
            self._pending.pop(number, None)
            if future.done() and not future.cancelled():
                future.exception()  # looked at: it is raised above, or replaced

    def _abort(self) -> None:
        for connection in reversed(self._connections):
            connection.abort()

    async def discard(self) -> None:
        """Drop a connection that is lost."""
        self._lose("is not connected")
        self._abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        """Let the agent end, which leaves the host as it was, and end the connection."""
        if self.failure is not None:
            await self.discard()
            return
        self._lose("is not connected")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(asyncssh.Error, OSError, TimeoutError):
            if self._process is not None:
                self._process.stdin.write_eof()
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    await self._process.wait_closed()
        for connection in reversed(self._connections):
            connection.close()
            with contextlib.suppress(asyncssh.Error, OSError, TimeoutError):
                async with asyncio.timeout(PING_S):
                    await connection.wait_closed()
