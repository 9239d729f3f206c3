"""What the operating system tells of this machine: its caches, its memory, its processor's name.

Reads files of /sys and /proc, and gives empty or generic answers where there are none. Measures nothing.
"""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from ridgeline.base.units import KIB


@dataclass(frozen=True, slots=True)
class Cache:
    """One cache level as the system reports it: bytes of one instance, and how many instances we run on."""

    name: str
    bytes: int
    instances: int

    @property
    def total_bytes(self) -> int:
        return self.bytes * self.instances


def caches(root: Path = Path("/sys/devices/system/cpu")) -> tuple[Cache, ...]:
    """Data caches of the processors that we may run on, nearest first; empty where the system does not tell."""
    found: dict[int, dict[str, int]] = {}
    available = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    for cpu in sorted(available):
        for index in sorted((root / f"cpu{cpu}" / "cache").glob("index*")):
            try:
                level = int((index / "level").read_text())
                kind = (index / "type").read_text().strip()
                size = (index / "size").read_text().strip()
                shared = (index / "shared_cpu_list").read_text().strip()
            except (OSError, ValueError):
                continue
            if kind != "Instruction" and size.endswith("K"):
                found.setdefault(level, {})[shared] = int(size[:-1]) * KIB
    return tuple(
        Cache(f"L{level}", min(instances.values()), len(instances)) for level, instances in sorted(found.items())
    )


def memory_bytes() -> int:
    """Memory that this process may use: the machine's, or its control group's where that is less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(machine, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no control group, or "max"
        return machine


def processor_name(path: Path = Path("/proc/cpuinfo")) -> str:
    """The processor as the system names it."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
