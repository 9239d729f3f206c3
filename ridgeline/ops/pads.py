"""Reflection and replication padding, both ways. Constant padding is in ops/indexing.py, circular padding is slices.

Forward, the position in the input is a computed number (mirrored or clamped). Backward, each element gathers: from its
own place, and from the padded places that copied it.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import product

from ridgeline.base.errors import CannotConvert
from ridgeline.ir.index import Index, Read, as_index
from ridgeline.ir.value import Value, fold, fresh, iota, word
from ridgeline.ops.array import Array, every, guarded, inside, make_axes, positions
from ridgeline.ops.table import Context, composite, index_row

Pads = list[tuple[int, int]]  # (before, after) of each padded dimension, first dimension first


def pads_of(padding: Sequence[int], n: int, least: int = 0) -> Pads:
    """The pads of the last n dimensions; PyTorch lists the last dimension first."""
    if any(not isinstance(p, int) or p < least for p in padding):
        raise CannotConvert(f"padding {tuple(padding)}")
    return [(padding[2 * k], padding[2 * k + 1]) for k in reversed(range(n))]


def mirrored(position: Index, n: Index) -> Value:
    """(n - 1) - |(n - 1) - |p||: mirrored at both ends, the ends not repeated."""
    last = iota(n - 1)
    return last - word("abs", last - word("abs", iota(position)))


def clamped(position: Index, n: Index) -> Value:
    """The nearest position inside."""
    return word("min", word("max", iota(position), iota(0)), iota(n - 1))


def padded(x: Array, pads: Pads, shape: Sequence[Index], place: Callable[[Index, Index], Value]) -> Array:
    """x read at place(position - before, size) in the padded dimensions."""
    axes = make_axes(shape)
    i = list(positions(axes))
    lead = x.ndim - len(pads)
    for d, (before, after) in enumerate(pads, lead):
        if before or after:
            i[d] = as_index(Read(place(as_index(axes[d]) - before, x.shape[d]), x.shape[d]))
    return Array(axes, x.at(*i))


Source = tuple[Index, Value | None]  # a place in the padded tensor and the condition under which it copied from here


def mirror_sources(i: Index, n: Index, before: int, after: int) -> list[Source]:
    """The places that mirror position i: itself, the one before the start, the one behind the end."""
    sources: list[Source] = [(i + before, None)]
    if before:
        sources.append((before - i, every([inside(i - 1, before)])))
    if after:
        sources.append((before + (n - 1) * 2 - i, every([inside(i - (n - 1 - after), after)])))
    return sources


def _pads(n: int) -> None:
    @index_row(f"aten.reflection_pad{n}d.default")
    def reflection_pad(x: Array, padding: Sequence[int], context: Context) -> Array:
        """y[o] = x[mirror(o - before)]."""
        return padded(x, pads_of(padding, n), context.out[0].shape, mirrored)

    @index_row(f"aten.replication_pad{n}d.default")
    def replication_pad(x: Array, padding: Sequence[int], context: Context) -> Array:
        """y[o] = x[clamp(o - before)]."""
        return padded(x, pads_of(padding, n, -(2**62)), context.out[0].shape, clamped)

    @composite(f"aten.reflection_pad{n}d_backward.default")
    def reflection_pad_backward(grad: Array, x: Array, padding: Sequence[int]) -> Array:
        """dx[i] = grad at its own place and at its mirror images."""
        i = positions(x.axes)
        pads = pads_of(padding, n)
        choices = [mirror_sources(i[x.ndim - n + k], x.shape[x.ndim - n + k], *pads[k]) for k in range(n)]
        terms = []
        for choice in product(*choices):
            at = [*i[: x.ndim - n], *(place for place, _ in choice)]
            terms.append(guarded(grad, at, every(condition for _, condition in choice)))
        return Array(x.axes, reduce(lambda a, b: a + b, terms))

    @composite(f"aten.replication_pad{n}d_backward.default")
    def replication_pad_backward(grad: Array, x: Array, padding: Sequence[int]) -> Array:
        """dx[i] = grad at its own place; the first and the last also sum the places before and behind."""
        at = list(positions(x.axes))
        guards: list[Value | None] = []
        bound = []
        for d, (before, after) in enumerate(pads_of(padding, n, -(2**62)), x.ndim - n):
            if not before and not after:
                continue
            back, ahead = max(before, 0), max(after, 0)
            step = fresh(back + ahead + 1)
            shift = iota(as_index(step) - back)
            first, last = word("eq", iota(at[d]), 0), word("eq", iota(at[d] - x.shape[d]), -1)
            guards.append(word("eq", shift, 0) | ((shift < 0) & first) | ((shift > 0) & last))
            at[d] = at[d] + before - back + as_index(step)
            guards.append(inside(at[d], grad.shape[d]) if min(before, after) < 0 else None)
            bound.append(step)
        value = guarded(grad, at, every(guards))
        return Array(x.axes, fold("sum", bound, value) if bound else value)


for _n in (1, 2, 3):
    _pads(_n)
