"""What machines for tests lack: rings of an interface, frequency governors, interrupts of a network card. For tests.

Folders in place of `/sys/devices/system/cpu` and `/proc/irq`, and programs in place of ethtool(8), which knows sizes of
rings besides what the machine's own does, and of ls(1), which knows the card's interrupts.
"""

from __future__ import annotations

import shutil
from pathlib import Path

CPUS = ("cpu0", "cpu2")
"""What has a governor; the processor between them is offline."""
INTERRUPTS = ("30", "31")
LARGEST, SMALLEST, STEP = 4096, 64, 32
"""Sizes of a ring; others between these become multiples, as with Intel's drivers."""
BEFORE = {
    "ring rx": "256",
    "ring tx": "512",
    **{f"governor {cpu}": "powersave" for cpu in CPUS},
    **{f"irq {number}": "7" for number in INTERRUPTS},
}

# As the kernel and ethtool 6 have it; who is killed has set a ring or not.
ETHTOOL = f"""#!/bin/sh
case "$1 $2" in
"-g INTERFACE")
    cd RINGS || exit 1
    printf 'Ring parameters for %s:\\n' "$2"
    rings='RX:\\t\\t\\t%s\\nRX Mini:\\t\\tn/a\\nRX Jumbo:\\t\\tn/a\\nTX:\\t\\t\\t%s\\n'
    printf "Pre-set maximums:\\n$rings"'TX push buff len:\\tn/a\\n' {LARGEST} {LARGEST}
    printf "Current hardware settings:\\n$rings"'RX Buf Len:\\t\\tn/a\\nTX Push:\\t\\toff\\n' "$(cat rx)" "$(cat tx)" ;;
"-G INTERFACE")
    cd RINGS || exit 1
    if [ "$4" -gt {LARGEST} ]; then
        echo "netlink error: requested ring size exceeds maximum (offset 36)" >&2
        echo "netlink error: Invalid argument" >&2
        exit 1
    fi
    if [ "$4" -lt {SMALLEST} ]; then
        echo "netlink error: Invalid argument" >&2
        exit 1
    fi
    echo $((($4 + {STEP - 1}) / {STEP} * {STEP})) > "$3.new" && mv "$3.new" "$3" ;;
*) exec MACHINE/ethtool "$@" ;;
esac
"""
LS = f"""#!/bin/sh
case "$*" in
*/INTERFACE/device/msi_irqs) echo '{" ".join(INTERRUPTS)}' | tr ' ' '\\n' ;;
*) exec MACHINE/ls "$@" ;;
esac
"""
# Mounts pairs of paths until `--`, and becomes the program after it.
MOUNT = 'while [ "$1" != -- ]; do mount --bind "$1" "$2" || exit 1; shift 2; done; shift; exec "$@"'


class Hardware:
    """The hardware of one machine, as it was made until something changes it."""

    def __init__(self, directory: Path, interface: str = "link0") -> None:
        self.cpu, self.irq = directory / "cpu", directory / "irq"
        self.rings = directory / "rings"
        self.programs = directory / "programs"
        machine = directory / "machine"
        for made in (self.rings, self.programs, machine):
            made.mkdir(parents=True)
        for name, text in (("ethtool", ETHTOOL), ("ls", LS)):
            words = {"INTERFACE": interface, "RINGS": str(self.rings), "MACHINE": str(machine)}
            for word, value in words.items():
                text = text.replace(word, value)
            (self.programs / name).write_text(text, encoding="utf-8")
            (self.programs / name).chmod(0o755)
            if (own := shutil.which(name)) is not None:
                shutil.copy(own, machine / name)
        for name, value in BEFORE.items():
            self._file(name).parent.mkdir(parents=True, exist_ok=True)
            self._file(name).write_text(f"{value}\n", encoding="utf-8")
        (self.cpu / "online").write_text("0,2\n", encoding="utf-8")

    def governor(self, cpu: str) -> Path:
        """The file with the governor of a processor."""
        return self.cpu / cpu / "cpufreq" / "scaling_governor"

    def affinity(self, number: str) -> Path:
        """The file with the processors that take an interrupt."""
        return self.irq / number / "smp_affinity_list"

    def _file(self, setting: str) -> Path:
        kind, _, name = setting.partition(" ")
        return {"ring": lambda ring: self.rings / ring, "governor": self.governor, "irq": self.affinity}[kind](name)

    def state(self) -> dict[str, str]:
        """Every setting, by kind and name."""
        return {name: self._file(name).read_text(encoding="utf-8").strip() for name in BEFORE}

    def entering(self) -> list[str]:
        """What begins the command line of a program, in a mount namespace of its own, that takes all this for real."""
        places = {self.cpu: "/sys/devices/system/cpu", self.irq: "/proc/irq"}
        places |= {self.programs / name: shutil.which(name) or name for name in ("ethtool", "ls")}
        return ["sh", "-c", MOUNT, "sh", *(str(path) for pair in places.items() for path in pair), "--"]
