"""Who other people's programs are on this machine, and what they see of its files.

**User.** Each role of a testbed has a user of its own, with no other right than to its own files: two endpoints can
neither read nor signal each other. It is a number that no account has. Debian's `nobody` is shared with services, and
whoever has the same number as an endpoint could be signalled and read by it; accounts would have to be made and removed
again on machines of others. systemd's table of numbers (UIDS-GIDS) leaves those from FIRST to LAST to nobody.

**Files.** A program has a mount namespace of its own, in which everything is read-only but its place in the run's
directory and its directory for temporary files, which stands where others have theirs. What it needs below a directory
that others may not enter, as a clone below /root, is seen there under its own path, and nothing else of that directory.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import grp
import os
import pwd
import stat
import struct
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from quicbed.base.untrusted import one_line
from quicbed.config.model import Limits

FIRST, LAST = 1_879_048_192, 2_147_352_575
_NOBODY = 65534
_TRIES = 1000

# linux/sched.h, linux/mount.h, linux/fcntl.h
_CLONE_NEWNS = 0x00020000
_MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 32, 4096, 1 << 14, 1 << 18
_MNT_DETACH = 2
_MOUNT_SETATTR = 442
_MOUNT_ATTR = struct.Struct("=4Q")
_MOUNT_ATTR_RDONLY = 1
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_HOSTS = Path("/etc/hosts")
_MEMORY = Path("/dev/shm")  # noqa: S108 (a mount of its own)
_PRIVATE_BYTES = 1 << 20
_libc = ctypes.CDLL(None, use_errno=True)


# ---- users -----------------------------------------------------------------------------------------------------------


def _mapped(file: str) -> list[range]:
    """Numbers that this user namespace has (user_namespaces(7), /proc/PID/uid_map)."""
    rows = [list(map(int, line.split())) for line in Path(file).read_text(encoding="ascii").splitlines()]
    return [range(first, first + count) for first, _, count in rows]


def _is_unused(number: int) -> bool:
    for look_up in (pwd.getpwuid, grp.getgrgid):
        with contextlib.suppress(KeyError):
            look_up(number)
            return False
    return True


def _of_processes() -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit():
                found.add(entry.stat().st_uid)
    return found


def unused_users(
    testbed: str, count: int, *, taken: set[int] | None = None, mapped: Sequence[Sequence[range]] | None = None
) -> list[int]:
    """Numbers, as user and as group, that no account and no process has; none where this user namespace lacks them.

    A testbed is given the same ones each time, as long as they are unused. Numbers of processes and of the namespace
    may be given; else they are those of this machine.
    """
    taken = _of_processes() if taken is None else taken
    mapped = mapped or [_mapped("/proc/self/uid_map"), _mapped("/proc/self/gid_map")]
    chosen = FIRST + zlib.crc32(testbed.encode()) % (LAST + 1 - FIRST - _TRIES - count)
    # a container without the large numbers has those below `nobody`
    for begin, step in ((chosen, 1), (_NOBODY - 1, -1)):
        found: list[int] = []
        for number in range(begin, begin + step * _TRIES, step):
            if not all(any(number in part for part in parts) for parts in mapped):
                break
            if number not in taken and _is_unused(number):
                found.append(number)
                if len(found) == count:
                    return found
    return []


# ---- files -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class View:
    """A user, and what its programs see of the machine's files."""

    user: int
    temporary: Path
    """Its directory for temporary files, which its programs find as /tmp and as TMPDIR."""
    memory_bytes: int
    """Size of its /dev/shm."""
    writable: Sequence[Path] = ()
    readable: Sequence[Path] = ()
    """What its programs need, wherever it is."""
    copies: Mapping[Path, Path] = field(default_factory=dict)
    """What stands in the place of a directory, to be written to."""
    private: Sequence[Path] = ()
    """Directories with files that its programs may read though others may not."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Addresses by name of host."""
    capabilities: Sequence[str] = ()
    """What its programs keep of root's capabilities (capabilities(7))."""


def _check(result: int, what: object) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(what))


def _mount(source: str, target: Path, kind: str | None, flags: int, data: str = "") -> None:
    arguments = [None if text is None else os.fsencode(text) for text in (source, str(target), kind)]
    _check(_libc.mount(*arguments, ctypes.c_ulong(flags), os.fsencode(data)), target)


def _make_read_only() -> None:
    """Let nothing mounted be written to (mount_setattr(2)); before Linux 5.12 the rights of files have to do."""
    attributes = ctypes.create_string_buffer(_MOUNT_ATTR.pack(_MOUNT_ATTR_RDONLY, 0, 0, 0), _MOUNT_ATTR.size)
    result = _libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, b"/", _AT_RECURSIVE, attributes, _MOUNT_ATTR.size)
    if result != 0 and ctypes.get_errno() != errno.ENOSYS:
        _check(result, "/")


@contextlib.contextmanager
def seen(view: View) -> Iterator[None]:
    """While the context lasts, what the calling thread starts has this view.

    OSError where the kernel does not let this process make it. The thread has a working directory of its own from then
    on.
    """
    with contextlib.ExitStack() as stack:
        here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, here)
        root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, root)
        own = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, own)
        _check(_libc.unshare(_CLONE_NEWNS), "a mount namespace")
        try:
            # of this thread alone since it has a namespace of its own: programs have to enter what is made for them
            usual = os.umask(0o022)
            try:
                _arrange(view)
            finally:
                os.umask(usual)
            yield
        finally:
            _check(_libc.setns(own, _CLONE_NEWNS), "the mount namespace")
            # whose root directory is not that of a process in a chroot(2)
            if not os.path.samestat(Path("/").stat(), os.fstat(root)):
                os.fchdir(root)
                os.chroot(".")
            os.fchdir(here)


def _arrange(view: View) -> None:
    """Mount all of a view in the mount namespace of the calling thread."""
    if not _is_mounted_root():
        raise OSError("a process whose root directory was changed by chroot makes no views of files")
    _mount("none", Path("/"), None, _MS_REC | _MS_PRIVATE)
    if view.names:
        _name_hosts(view)
    contents = {directory: _contents(directory) for directory in view.private}
    usual = {Path("/tmp"), Path("/var/tmp"), Path(tempfile.gettempdir())}  # noqa: S108 (they are covered)
    sources = {directory: view.temporary for directory in usual if directory.is_dir()}
    for path in (*view.readable, *view.writable, *view.copies):
        for name in (path.absolute(), path.resolve()):
            sources[name] = view.copies.get(path, path)
    # what is below directories for temporary files is made anew in there
    covered = {
        cover for path in sources if (cover := _not_entered(path)) is not None and not usual & {cover, *cover.parents}
    }
    writable = {view.temporary, *view.writable, *view.copies.values()}
    with contextlib.ExitStack() as stack:
        opened: dict[Path, int] = {}
        for source in {*sources.values()}:
            opened[source] = os.open(source, os.O_PATH | os.O_CLOEXEC)
            stack.callback(os.close, opened[source])
        _make_read_only()
        if _MEMORY.is_dir():
            _empty(_MEMORY, view.memory_bytes, mode=0o1777)
        for path in sorted({*covered, *sources}, key=lambda path: len(path.parts)):
            if path in covered:
                _empty(path, _PRIVATE_BYTES)
            else:
                _bind(path, opened[sources[path]], writable=sources[path] in writable)
    for directory, files in contents.items():
        _empty(directory, _PRIVATE_BYTES)
        for file, content in files.items():
            (directory / file).write_bytes(content)
            os.chown(directory / file, view.user, view.user)
            (directory / file).chmod(0o400)


def _is_mounted_root() -> bool:
    """Whether the root directory is a mount (proc_pid_mountinfo(5)), which that of a chroot(2) often is not."""
    lines = Path("/proc/thread-self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    return any(line.split()[4] == "/" for line in lines)


def _not_entered(path: Path) -> Path | None:
    """The first of the directories above a path that other users may not enter."""
    for parent in reversed(path.parents):
        try:
            mode = parent.stat().st_mode
        except OSError:
            return None
        if not mode & stat.S_IXOTH:
            return parent
    return None


def _empty(target: Path, size: int, *, mode: int = 0o755) -> None:
    _mount("tmpfs", target, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={size},mode={mode:o}")


def _bind(target: Path, source: int, *, writable: bool) -> None:
    wanted = os.fstat(source)
    if not target.exists():
        if any(parent.is_symlink() for parent in target.parents):
            return  # it leads to where the same is mounted by its own name
        if stat.S_ISDIR(wanted.st_mode):
            target.mkdir(parents=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
    elif not writable and os.path.samestat(target.stat(), wanted):
        return
    _mount(f"/proc/self/fd/{source}", target, None, _MS_BIND)
    if writable:
        _mount("none", target, None, _MS_BIND | _MS_REMOUNT | _MS_NOSUID | _MS_NODEV)


def _contents(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir() if file.is_file()}


def _name_hosts(view: View) -> None:
    """Put names of hosts before those of the machine's hosts(5): the first entry of a name counts."""
    lines = "".join(f"{address} {name}\n" for name, address in view.names.items())
    known = _HOSTS.read_text(encoding="utf-8", errors="replace")
    _empty(view.temporary, _PRIVATE_BYTES)
    made = view.temporary / "hosts"
    made.write_text(lines + known, encoding="utf-8")
    _mount(str(made), _HOSTS, None, _MS_BIND)
    _check(_libc.umount2(os.fsencode(view.temporary), _MNT_DETACH), view.temporary)


# ---- what programs leave ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Used:
    """Files in directories, those directories not counted."""

    entries: Sequence[os.DirEntry[str]]
    """Those that were looked at: fewer than there are where there is a problem."""
    problem: str | None
    """Which limit they exceed."""


def used(directories: Iterable[Path], limits: Limits, more_bytes: int = 0) -> Used:
    """What is in directories, as far as the limits go, *more_bytes* besides `limits.total_mib`. Nothing is followed."""
    entries: list[os.DirEntry[str]] = []
    size, most = 0, (limits.total_mib << 20) + more_bytes
    for top in directories:
        waiting: list[str] = [str(top)]
        while waiting:
            with contextlib.suppress(OSError), os.scandir(waiting.pop()) as found:
                for entry in found:
                    entries.append(entry)
                    if len(entries) > limits.files:
                        return Used(entries, f"left more than {limits.files} files (limits.files)")
                    if len(os.fsencode(entry.path)) - len(os.fsencode(str(top))) > limits.path_bytes:
                        return Used(entries, f"left a name of more than {limits.path_bytes} bytes (limits.path_bytes)")
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        with contextlib.suppress(FileNotFoundError):
                            size += entry.stat(follow_symlinks=False).st_blocks * 512
                        if size > most:
                            return Used(entries, f"left more than {most >> 20} MiB of files (limits.total_mib)")
    return Used(entries, None)


def take(place: Path, target: Path, entries: Iterable[os.DirEntry[str]], user: int) -> list[str]:
    """Move what a user's programs have left in *place* to a directory of this process's user, as that user's own.

    *entries* are all that is there, in any depth. Returns names that were left behind, because *target* has them
    already or because they are not that user's: a second name of somebody else's file. Nothing is followed.
    """
    mine, group, refused = os.geteuid(), os.getegid(), []
    foreign = set()
    for entry in entries:
        status = entry.stat(follow_symlinks=False)
        if status.st_uid != user and not stat.S_ISDIR(status.st_mode) and status.st_nlink > 1:
            foreign.add(Path(entry.path).relative_to(place).parts[0])
            continue
        os.lchown(entry.path, mine, group)
        if stat.S_ISDIR(status.st_mode):
            Path(entry.path).chmod(0o755)
        elif stat.S_ISREG(status.st_mode):
            Path(entry.path).chmod(status.st_mode & 0o111 | 0o644)
    for path in sorted(place.iterdir()):
        if path.name in foreign or os.path.lexists(target / path.name):
            refused.append(one_line(path.name, 200))
        else:
            path.rename(target / path.name)
    return refused
