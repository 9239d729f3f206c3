"""Windows: the index arithmetic that pooling and im2col share. Registers no rows.

One dimension of n positions, padded, is covered by windows: window o starts at o * stride - padding and touches k
positions, `dilation` apart. Forward walks the positions of a window, backward the windows over a position; both are
axes of their own, folded over where they stand, with a guard for what falls outside.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.ir.index import Axis, Index, as_index
from ridgeline.ir.value import Value, fresh, iota, word
from ridgeline.ops.array import every, inside


@dataclass(frozen=True, slots=True)
class Window:
    """One dimension: n input positions, m windows of k."""

    n: Index
    m: Index
    k: int
    stride: int
    padding: int
    dilation: int = 1


@dataclass(frozen=True, slots=True)
class Walk:
    """A step of a walk along one dimension: where it is, under which condition, and the axis it runs over."""

    at: Index
    guard: Value | None
    axis: Axis | None
    offset: Index  # forward: position in the window; backward the same, of the window that `at` names


def forward(window: Window, o: Index) -> Walk:
    """The positions that window o touches."""
    axis = fresh(window.k) if window.k > 1 else None
    offset = as_index(0) if axis is None else as_index(axis)
    at = o * window.stride - window.padding + offset * window.dilation
    return Walk(at, inside(at, window.n), axis, offset)


def backward(window: Window, i: Index) -> Walk:
    """The windows that touch position i.

    Without dilation they are consecutive: (i + padding) // stride and the ones before, ceil(k / stride) in all.
    """
    shifted = i + window.padding
    if window.dilation == 1:
        many = -(-window.k // window.stride)
        axis = fresh(many) if many > 1 else None
        o = shifted // window.stride - (0 if axis is None else as_index(axis))
        offset = shifted - o * window.stride
        whole = inside(offset, window.k)
    else:
        axis = fresh(window.k) if window.k > 1 else None
        offset = as_index(0) if axis is None else as_index(axis)
        start = shifted - offset * window.dilation
        o = start // window.stride
        whole = None if window.stride == 1 else word("eq", iota(start % window.stride), 0)
    return Walk(o, every([whole, inside(o, window.m)]), axis, offset)


def axes_of(walks: Sequence[Walk]) -> tuple[Axis, ...]:
    """The axes to fold over."""
    return tuple(w.axis for w in walks if w.axis is not None)


def guard_of(walks: Sequence[Walk]) -> Value | None:
    """All conditions together."""
    return every(w.guard for w in walks)


def places(walks: Sequence[Walk]) -> list[Index]:
    """Where each dimension is."""
    return [w.at for w in walks]
