"""User-mode Linux on processors with AMX; a program of the standard library: `python uml.py linux.uml <arguments>`.

User-mode Linux of Debian 12 (6.1) keeps the extended processor state of a guest's programs by ptrace(2), in a buffer
that is too small for that of processors with AMX. The kernel refuses to set a part of it, and every program dies with
SIGSEGV. User-mode Linux asks when it starts whether there is such a state, and does with x87 and SSE registers where it
is told no. A filter for system calls (seccomp(2)) says no.

A page fault then clears the upper halves of AVX registers, so programs of the guest must not use them. The C
library and OpenSSL are told by variables, which the guest's first program gets in its environment.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

# <asm/unistd_64.h>, <linux/ptrace.h>, <linux/elf.h>, <linux/audit.h>
_PTRACE, _GETREGSET, _XSTATE, _X86_64 = 101, 0x4204, 0x202, 0xC000003E
# <linux/prctl.h>, <linux/seccomp.h>
_SET_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
# <linux/filter.h>: load a word, jump if equal, return
_LOAD, _JUMP, _RETURN = 0x20, 0x15, 0x06
# Offsets in struct seccomp_data: its number, its architecture, low halves of the first and the third argument.
_NUMBER, _ARCHITECTURE, _FIRST, _THIRD = 0, 4, 16, 32

CPUINFO = Path("/proc/cpuinfo")

WITHOUT_AVX = (
    "GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX,-AVX2,-AVX512F,-AVX512VL,-AVX512BW,-AVX_Fast_Unaligned_Load",
    "OPENSSL_ia32cap=~0x1000000000000000:0x0",
)
"""Variables of the environment in which the C library and OpenSSL do without AVX (OPENSSL_ia32cap(3))."""


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def has_amx(cpuinfo: Path = CPUINFO) -> bool:
    """Whether this machine's processors have AMX, and its kernel knows it."""
    lines = cpuinfo.read_text(encoding="ascii", errors="replace").splitlines()
    return any(line.startswith("flags") and "amx_tile" in line.split() for line in lines)


def command(argv: Sequence[str], cpuinfo: Path = CPUINFO) -> list[str]:
    """The command line that starts user-mode Linux on this machine; the process becomes that of *argv*."""
    if not has_amx(cpuinfo):
        return list(argv)
    return [sys.executable, "-IS", str(Path(__file__).resolve()), *argv, *WITHOUT_AVX]


def deny_extended_state() -> None:
    """Let ptrace(2) of this process and those it becomes or starts have no extended state. Raises OSError."""
    wanted = ((_ARCHITECTURE, _X86_64), (_NUMBER, _PTRACE), (_FIRST, _GETREGSET), (_THIRD, _XSTATE))
    code = b""
    for index, (offset, value) in enumerate(wanted):
        # past what is left of the comparisons, and the answer to them
        otherwise = 2 * (len(wanted) - index - 1) + 1
        code += struct.pack("<HBBI", _LOAD, 0, 0, offset) + struct.pack("<HBBI", _JUMP, 0, otherwise, value)
    code += struct.pack("<HBBI", _RETURN, 0, 0, _ERRNO | errno.EIO) + struct.pack("<HBBI", _RETURN, 0, 0, _ALLOW)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_SET_SECCOMP, _FILTER, ctypes.byref(program))):
        if libc.prctl(*arguments) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"user-mode-linux: no filter for system calls: {os.strerror(number)}")


if __name__ == "__main__":
    deny_extended_state()
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 (the command line this was started with)
