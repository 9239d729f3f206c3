"""The clock and the memory gauge of the machine a script runs on: CPU, or the GPU once the script has used it.

Gives marks to measure between without stopping the GPU's queue, and the peak memory since the last reset. Decides
nothing and keeps nothing.
"""

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch

from ridgeline.base.units import KIB

_CLEAR_REFS = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
_RESET_PEAK = "5"  # proc(5): resets the peak resident set size


@dataclass(frozen=True, slots=True)
class Mark:
    """A point in time, on the host and in the GPU's queue when there is one."""

    host_s: float
    event: torch.cuda.Event | None


def cuda_in_use() -> bool:
    """Whether the program has touched a GPU; asking does not."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


class Gauge:
    """Time and peak memory of this process."""

    def mark(self) -> Mark:
        if not cuda_in_use():
            return Mark(perf_counter(), None)
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return Mark(perf_counter(), event)

    def seconds(self, begin: Mark, end: Mark) -> float:
        """Seconds between two marks; waits for the GPU to reach the second."""
        if begin.event is None or end.event is None:
            return end.host_s - begin.host_s
        end.event.synchronize()
        return float(begin.event.elapsed_time(end.event)) / 1000  # torch gives milliseconds

    def synchronize(self) -> None:
        if cuda_in_use():
            torch.cuda.synchronize()

    def reset_peak(self) -> None:
        if cuda_in_use():
            torch.cuda.reset_peak_memory_stats()
            return
        if _CLEAR_REFS.exists():
            try:
                _CLEAR_REFS.write_text(_RESET_PEAK)
            except OSError:  # not permitted in some containers: the peak is then of the whole run
                return

    def peak_bytes(self) -> int | None:
        """Most memory in use since the reset: allocated on the GPU, resident on the CPU; None where unknown."""
        if cuda_in_use():
            return int(torch.cuda.max_memory_allocated())
        if not _STATUS.exists():
            return None
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * KIB
        return None
