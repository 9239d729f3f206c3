"""Blocks of CPU memory that are used again once the tensor that was given out in them is gone.

The C library returns a large block to the system when it is freed and maps fresh pages for the next one; touching
those costs three times the traffic of the kernel that fills them (57 ms of kernel in 200 ms of call for 128 MiB,
2026-11-30, 2 cores). A block is free when nobody but us holds its storage, tensors, views and NumPy arrays included.
One that went outside, to other processes or to NumPy, is never used again.
"""

import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ridgeline.base.units import MIB

# Below this the C library keeps the pages itself.
LEAST_BYTES = MIB
# A free block that no take has wanted for so many takes is given back.
PATIENCE = 256


@dataclass
class _Block:
    storage: torch.UntypedStorage
    wanted: int  # the take it last served


class Blocks:
    """Blocks by size. `tensor` gives one over a block that nobody holds, or over a new one."""

    def __init__(self) -> None:
        self._blocks: dict[int, list[_Block]] = {}
        self._takes = 0
        self._lock = threading.Lock()

    def tensor(self, size: int, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
        """A tensor of arbitrary contents in a block of `size` bytes: an ordinary tensor that is no view."""
        out = torch.empty(0, dtype=dtype, device="cpu")
        with self._lock:  # until the tensor holds the block, another thread would find it free
            return out.set_(self._take(size), 0, shape, strides)

    def _take(self, size: int) -> torch.UntypedStorage:
        self._takes += 1
        if self._takes % PATIENCE == 0:
            self._trim()
        same = self._blocks[size] = [b for b in self._blocks.get(size, ()) if not _spoilt(b, size)]
        for block in same:
            if _free(block):
                block.wanted = self._takes
                return block.storage
        made = torch.empty(size, dtype=torch.uint8, device="cpu").untyped_storage()  # one that can be resized
        same.append(_Block(made, self._takes))
        return made

    def _trim(self) -> None:
        oldest = self._takes - PATIENCE
        for size, blocks in list(self._blocks.items()):
            kept = [b for b in blocks if b.wanted >= oldest or not _free(b)]
            if kept:
                self._blocks[size] = kept
            else:
                del self._blocks[size]

    def clear(self) -> None:
        """Gives every block back; those in use live as long as their tensors."""
        with self._lock:
            self._blocks.clear()

    def forget(self) -> None:
        """As if new, in a process just forked, where another thread may have held the lock."""
        self._blocks, self._lock = {}, threading.Lock()


def _free(block: _Block) -> bool:
    # One reference from `block` and one for the call: who holds the storage as an object is counted here alone.
    return sys.getrefcount(block.storage) == 2 and bool(torch._C._storage_Use_Count(block.storage._cdata) == 1)


def _spoilt(block: _Block, size: int) -> bool:
    """Whether it can serve no more: resized, or seen by others (shared between processes, exported to NumPy)."""
    storage = block.storage
    return storage.nbytes() != size or storage.is_shared() or not storage.resizable()


BLOCKS = Blocks()
os.register_at_fork(after_in_child=BLOCKS.forget)


def fresh_tensor(size: int, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """A tensor of arbitrary contents, of at least LEAST_BYTES."""
    return BLOCKS.tensor(size, dtype, shape, strides)
