"""The memory plan: where tensors that live only inside one call of a graph lie in one slab.

Takes the steps of a plan; gives an offset for each such buffer so that two alive at once never overlap. Slabs are
kept between calls and shared by all graphs of a device: fresh pages cost more than the traffic they carry.
"""

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch

ALIGNMENT = 64  # bytes: one cache line, one AVX-512 register, and what streaming stores ask for


@dataclass(frozen=True, slots=True)
class Life:
    """One buffer: bytes, and the first and last step that touch it."""

    name: str
    bytes: int
    first: int
    last: int


def place(lives: Sequence[Life]) -> tuple[dict[str, int], int]:
    """(offset of each buffer, bytes of the slab): largest first, each at the lowest place free for its whole life."""
    placed: list[tuple[int, int, Life]] = []
    offsets: dict[str, int] = {}
    total = 0
    for life in sorted(lives, key=lambda b: (-b.bytes, b.first, b.name)):
        size = -(-max(life.bytes, 1) // ALIGNMENT) * ALIGNMENT
        at = 0
        for start, end, _ in sorted(
            (p for p in placed if p[2].first <= life.last and life.first <= p[2].last), key=lambda p: p[0]
        ):
            if start - at >= size:
                break
            at = max(at, end)
        placed.append((at, at + size, life))
        offsets[life.name] = at
        total = max(total, at + size)
    return offsets, total


class Slab:
    """One block of memory and the tensors that a graph has laid over it."""

    __slots__ = ("block", "pointer", "views")

    def __init__(self, size: int, device: torch.device) -> None:
        with torch.inference_mode(False):  # it outlives the mode it was first needed in
            self.block = torch.empty(size + ALIGNMENT, dtype=torch.uint8, device=device)
        self.pointer = -(-self.block.data_ptr() // ALIGNMENT) * ALIGNMENT
        self.views: WeakKeyDictionary[object, tuple[torch.Tensor, ...]] = WeakKeyDictionary()

    @property
    def size(self) -> int:
        return self.block.numel() - ALIGNMENT

    def lay(self, offset: int, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
        """A tensor over a part of the slab."""
        start = (self.pointer - self.block.data_ptr() + offset) // dtype.itemsize
        with torch.inference_mode(False):
            whole = self.block[: self.block.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
            return whole.as_strided(shape, strides, start)


class Slabs:
    """The free slabs of each device. A call takes one and gives it back; a call inside a call gets another."""

    def __init__(self) -> None:
        self.free: dict[torch.device, list[Slab]] = {}
        self.lock = threading.Lock()

    def take(self, size: int, device: torch.device) -> Slab:
        with self.lock:
            free = self.free.setdefault(device, [])
            while free:
                slab = free.pop()
                if slab.size >= size:
                    return slab
                # Too small: let it go, so that one slab of the largest size is kept, not one of every size.
        return Slab(size, device)

    def give(self, slab: Slab) -> None:
        with self.lock:
            self.free[slab.block.device].append(slab)

    def clear(self) -> None:
        with self.lock:
            self.free.clear()

    def forget(self) -> None:
        """As if new, in a process just forked, where another thread may have held the lock."""
        self.free, self.lock = {}, threading.Lock()


SLABS = Slabs()
os.register_at_fork(after_in_child=SLABS.forget)


def lives_of(touched: Mapping[str, Sequence[int]], sizes: Mapping[str, int]) -> list[Life]:
    """Lives from the steps that touch each buffer."""
    return [Life(n, sizes[n], min(steps), max(steps)) for n, steps in touched.items() if n in sizes and steps]
