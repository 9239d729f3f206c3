"""Which memory level serves each byte of a step, and how much memory a plan holds at most.

A byte is charged to the nearest level that can still hold it: the reuse distance of a buffer is the number of
distinct bytes touched since its last touch, in the order the kernels run. Takes the buffers each kernel reads and
writes with their bytes; gives, for each kernel, the bytes that a cache serves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ridgeline.hw.device import Device

# Share of a cache that a stream of kernels can count on; the rest is lost to conflicts and other cores' data.
USABLE = 0.8


@dataclass(frozen=True, slots=True)
class Touch:
    """The buffers one kernel touches, with the bytes it moves of each."""

    reads: Mapping[str, int]
    writes: Mapping[str, int]


def near_bytes(touches: Sequence[Touch], device: Device, repeats: bool = True) -> list[dict[str, int]]:
    """For each kernel, the bytes served by each level nearer than device memory.

    `repeats`: the same kernels run again and again (a training loop), so the first touch of a step may find what the
    step before left behind. A level whose rate nobody tells is taken for device memory, and not for free.
    """
    known = (level for level in device.levels[:-1] if level.capacity_bytes and level.bytes_per_s)
    caches = [(level.name, level.capacity_bytes or 0.0) for level in known]
    if not caches:
        return [{} for _ in touches]
    name, capacity = caches[-1][0], caches[-1][1] * USABLE
    clock = 0.0
    last: dict[str, float] = {}
    out: list[dict[str, int]] = [{} for _ in touches]
    for warm in (False, True) if repeats else (True,):
        for k, touch in enumerate(touches):
            moved = sum(touch.reads.values()) + sum(touch.writes.values())
            served = 0
            for buffer, count in (*touch.reads.items(), *touch.writes.items()):
                if buffer in last and clock - last[buffer] + moved <= capacity:
                    served += count
            clock += moved
            for buffer in (*touch.reads, *touch.writes):
                last[buffer] = clock
            if warm and served:
                out[k] = {name: served}
    return out


def peak_bytes(touches: Sequence[Touch], sizes: Mapping[str, int], kept: frozenset[str]) -> int:
    """Most bytes alive at once: a buffer lives from its first touch to its last, `kept` ones for the whole plan."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for k, touch in enumerate(touches):
        for buffer in (*touch.reads, *touch.writes):
            first.setdefault(buffer, k)
            last[buffer] = k
    change = [0] * (len(touches) + 1)
    base = sum(sizes.get(b, 0) for b in kept)
    for buffer, start in first.items():
        if buffer not in kept:
            change[start] += sizes.get(buffer, 0)
            change[last[buffer] + 1] -= sizes.get(buffer, 0)
    alive = peak = 0
    for delta in change:
        alive += delta
        peak = max(peak, alive)
    return base + peak
