"""User-mode Linux starts on processors whose state it cannot keep."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from quicbed.testbed import uml

# Prints the error numbers of two ptrace requests for a stopped child: its general registers, its extended state.
ASKING = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 2 + [ctypes.c_void_p] * 2
child = os.fork()
if not child:
    libc.ptrace(0, 0, None, None)  # PTRACE_TRACEME
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(0)
os.waitpid(child, 0)
buffer = ctypes.create_string_buffer(1 << 16)
for regset in (1, 0x202):  # NT_PRSTATUS, NT_X86_XSTATE
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), len(buffer))
    done = libc.ptrace(0x4204, child, regset, ctypes.addressof(vector))  # PTRACE_GETREGSET
    print(0 if done == 0 else ctypes.get_errno())
os.kill(child, signal.SIGKILL)
"""


@pytest.mark.parametrize(("flags", "amx"), [("fpu sse2 avx512f", False), ("fpu amx_tile sse2", True)])
def test_guests_are_started_as_the_processor_asks(tmp_path: Path, flags: str, amx: bool) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nmodel name\t: one with amx_tile?\nflags\t\t: {flags}\n")
    argv = ["linux.uml", "mem=1M"]
    if not amx:
        assert uml.command(argv, cpuinfo) == argv
        return
    found = uml.command(argv, cpuinfo)
    assert found[0] == sys.executable
    assert found[3:] == [*argv, *uml.WITHOUT_AVX]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter is for x86-64")
def test_what_is_started_gets_no_extended_state() -> None:
    ask = [sys.executable, "-c", ASKING]
    plain = subprocess.run(ask, capture_output=True, text=True, check=True)
    assert plain.stdout.split() == ["0", "0"]
    within = [sys.executable, "-IS", str(Path(uml.__file__)), *ask]
    assert subprocess.run(within, capture_output=True, text=True, check=True).stdout.split() == ["0", "5"]
