"""Buffers, stores and kernels: what is computed and where it goes, before any decision how.

    kernel = stores over one space
    store  = (buffer, index per dimension, value, mode)

The domain of a store is the set of free axes of its index and value: it happens once for every point of it. The
bound axes of a fold are its own (r1, r2, ...); `schedule` may let one run along an axis of the space of the same size
that is not free in the fold, which changes no result. Loops, tiles, passes and lanes are `schedule`'s.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from ridgeline.ir.index import Axis, Index, as_index
from ridgeline.ir.types import BOOL, DType
from ridgeline.ir.value import Value, const, iota, nodes


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor in memory: element (i, j, ...) lies at i*strides[0] + j*strides[1] + ... elements from its pointer."""

    name: str
    dtype: DType
    shape: tuple[Index, ...]
    strides: tuple[Index, ...]

    @property
    def numel(self) -> Index:
        out = as_index(1)
        for size in self.shape:
            out = out * size
        return out

    def offset(self, index: Iterable[Index]) -> Index:
        """Elements from the buffer's pointer to an element."""
        out = as_index(0)
        for i, stride in zip(index, self.strides, strict=True):
            out = out + i * stride
        return out


class Mode(Enum):
    """How a store writes: PLAIN once per element, ADD accumulates (duplicates add up, atomically if need be)."""

    PLAIN = "plain"
    ADD = "add"


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[index] = value (or += with Mode.ADD), for every point of the domain."""

    buffer: str
    index: tuple[Index, ...]
    value: Value
    mode: Mode = Mode.PLAIN

    @property
    def domain(self) -> frozenset[Axis]:
        """The axes this store runs over."""
        return self.value.axes.union(*(i.axes for i in self.index))

    def over(self, axes: Iterable[Axis]) -> "Store":
        """The same store run over these axes: an addition that they do not change is made as often at once."""
        idle = [a for a in axes if a not in self.domain]
        if self.mode is not Mode.ADD or not idle or self.value.dtype is BOOL:
            return self
        times = as_index(1)
        for axis in idle:
            times = times * axis.size
        dtype = self.value.dtype
        return replace(self, value=const(0, dtype) if times.const == 0 else self.value * iota(times, dtype))


@dataclass(frozen=True, slots=True)
class Kernel:
    """Stores that run together. `axes` is the space, outermost first; `buffers` all that is loaded or stored."""

    name: str
    axes: tuple[Axis, ...]
    stores: tuple[Store, ...]
    buffers: tuple[Buffer, ...]

    def buffer(self, name: str) -> Buffer:
        return next(b for b in self.buffers if b.name == name)

    @property
    def values(self) -> list[Value]:
        """Every value, operands first, those inside store indices included."""
        inside = [v for s in self.stores for i in s.index for v in i.reads]
        return nodes([*inside, *(s.value for s in self.stores)])

    @property
    def written(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(s.buffer for s in self.stores))

    @property
    def read(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(v.attr.buffer for v in self.values if v.op == "load"))
