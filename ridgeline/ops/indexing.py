"""Moves: each element of the output is an element of an input, or a constant. Cat, pads, shifts, triangles, shuffles.

Positions are index expressions, so nothing here reads an index from memory (ops/scatter.py does). Where a position
may lie outside its input the load is guarded, and memory outside is never touched.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ridgeline.ir.index import Index, IndexLike, as_index, flatten, unflatten
from ridgeline.ir.types import BOOL, DType
from ridgeline.ir.value import Number, Value, cast, const, iota, word
from ridgeline.ops.array import (
    Array,
    every,
    full,
    guarded,
    inside,
    make_axes,
    positions,
)
from ridgeline.ops.logic import converted
from ridgeline.ops.table import Context, index_row
from ridgeline.ops.views import counted, permuted, slice_start

Place = tuple[list[Index], Value | None]  # where in an input, and under which condition


@index_row("aten.clone.default", "aten.contiguous.default")
def clone(x: Array, *rest: Any) -> Array:
    """y = x, in memory of its own."""
    return x


@index_row("aten.copy.default", "aten.copy_.default")
def copy(x: Array, source: Array, context: Context) -> Array:
    """y = source in the shape and type of x; copy_ stores it in x."""
    return converted(source, context.out[0].dtype).expand(x.shape)


def replaced(i: Sequence[Index], dim: int, position: IndexLike) -> list[Index]:
    """An index with one position changed."""
    return [as_index(position) if k == dim else p for k, p in enumerate(i)]


def joined(pieces: Sequence[Array], dim: int, shape: Sequence[Index], dtype: DType) -> Array:
    """Pieces one after the other along a dimension: the first whose end lies beyond the position."""
    axes = make_axes(shape)
    i = positions(axes)
    start: Index = as_index(0)
    parts: list[tuple[Value, Value]] = []  # (position < end, value)
    for k, piece in enumerate(pieces):
        end = start + piece.shape[dim]
        below = iota(i[dim]) < iota(end) if k + 1 < len(pieces) else None
        above = iota(i[dim]) >= iota(start) if k else None
        value = cast(guarded(piece, replaced(i, dim, i[dim] - start), every([above, below])), dtype)
        parts.append((const(True, BOOL) if below is None else below, value))
        start = end
    out = parts[-1][1]
    for below, value in reversed(parts[:-1]):
        out = word("select", below, value, out)
    return Array(axes, out)


@index_row("aten.cat.default", "aten.concat.default")
def cat(tensors: Sequence[Array], dim: int = 0, *, context: Context) -> Array:
    """The tensors one after the other along a dimension; those of shape (0) are skipped, as ATen does."""
    shape = context.out[0].shape
    d = dim % len(shape)
    pieces = [t for t in tensors if t.ndim == len(shape) and t.shape[d].const != 0]
    if not pieces:
        return full(shape, 0, context.out[0].dtype)
    return joined(pieces, d, shape, context.out[0].dtype)


@index_row("aten.stack.default", "aten._stack.default")
def stack(tensors: Sequence[Array], dim: int = 0, *, context: Context) -> Array:
    """The tensors one after the other along a new dimension."""
    d = dim % (tensors[0].ndim + 1)
    one = as_index(1)
    pieces = [t.reindex([*t.shape[:d], one, *t.shape[d:]], lambda *i: [*i[:d], *i[d + 1 :]]) for t in tensors]
    return joined(pieces, d, context.out[0].shape, context.out[0].dtype)


@index_row("aten.block_diag.default")
def block_diag(tensors: Sequence[Array], context: Context) -> Array:
    """Matrices along the diagonal, 0 elsewhere."""
    out = context.out[0]
    axes = make_axes(out.shape)
    i, j = positions(axes)
    value: Value = const(0, out.dtype)
    row, column = as_index(0), as_index(0)
    for t in tensors:
        shape = [as_index(1)] * (2 - t.ndim) + list(t.shape)
        at = [i - row, j - column]
        guard = every(inside(p, s) for p, s in zip(at, shape, strict=True))
        inner = cast(guarded(t, at[2 - t.ndim :], guard), out.dtype)
        value = inner if guard is None else word("select", guard, inner, value)
        row, column = row + shape[0], column + shape[1]
    return Array(axes, value)


@index_row("aten.constant_pad_nd.default")
def constant_pad(x: Array, pad: Sequence[IndexLike], value: Number = 0, *, context: Context) -> Array:
    """y[i] = x[i - left], `value` outside; pads come last dimension first and may be negative."""
    axes = make_axes(context.out[0].shape)
    i = list(positions(axes))
    for k in range(len(pad) // 2):
        d = x.ndim - 1 - k
        i[d] = as_index(axes[d]) - pad[2 * k]
    guard = every(inside(p, s) for p, s in zip(i, x.shape, strict=True))
    return Array(axes, guarded(x, i, guard, value))


@index_row("aten.repeat.default")
def repeat(x: Array, repeats: Any, context: Context) -> Array:
    """y[i] = x[i % n], with new dimensions in front."""
    shape = context.out[0].shape
    lead = len(shape) - x.ndim
    return x.reindex(shape, lambda *i: [p % s for p, s in zip(i[lead:], x.shape, strict=True)])


@index_row("aten.roll.default")
def roll(x: Array, shifts: Sequence[IndexLike], dims: Sequence[int] = ()) -> Array:
    """y[i] = x[(i - shift) % n]; without dims on the flat order."""
    if not dims:
        size = x.numel
        return x.reindex(x.shape, lambda *i: unflatten((flatten(i, x.shape) - shifts[0]) % size, x.shape))
    moved: dict[int, Index] = {}
    for d, s in zip(dims, shifts, strict=True):
        moved[x.dim(d)] = moved.get(x.dim(d), as_index(0)) + s
    return x.reindex(x.shape, lambda *i: [(p - moved[k]) % x.shape[k] if k in moved else p for k, p in enumerate(i)])


@index_row("aten.flip.default")
def flip(x: Array, dims: Sequence[int]) -> Array:
    """y[i] = x[n - 1 - i] along the given dimensions."""
    turned = {x.dim(d) for d in dims}
    return x.reindex(x.shape, lambda *i: [x.shape[k] - 1 - p if k in turned else p for k, p in enumerate(i)])


@index_row("aten.rot90.default")
def rot90(x: Array, k: int = 1, dims: Sequence[int] = (0, 1)) -> Array:
    """x turned k times from the first of two dimensions towards the second."""
    a, b = x.dim(dims[0]), x.dim(dims[1])
    if k % 4 == 0:
        return x
    if k % 4 == 2:
        return flip(x, (a, b))
    order = list(range(x.ndim))
    order[a], order[b] = b, a
    return permuted(flip(x, (b,)), order) if k % 4 == 1 else flip(permuted(x, order), (b,))


def triangle(x: Array, keeps: Callable[[Index, Index], Value]) -> Array:
    """x where keeps(row, column), else 0."""
    row, column = positions(x.axes)[-2:]
    return Array(x.axes, word("select", keeps(row, column), x.value, const(0, x.dtype)))


@index_row("aten.tril.default")
def tril(x: Array, diagonal: IndexLike = 0) -> Array:
    """The lower triangle: x[i, j] where j - i <= diagonal, else 0."""
    return triangle(x, lambda i, j: iota(j - i) <= iota(diagonal))


@index_row("aten.triu.default")
def triu(x: Array, diagonal: IndexLike = 0) -> Array:
    """The upper triangle: x[i, j] where j - i >= diagonal, else 0."""
    return triangle(x, lambda i, j: iota(j - i) >= iota(diagonal))


def overlaid(base: Array | None, source: Array, shape: Sequence[Index], place: Callable[..., Place]) -> Array:
    """source where its place lies, else base (0 without one). `place` gives the index into source and the guard."""
    axes = make_axes(shape)
    i = positions(axes)
    at, guard = place(*i)
    if base is None:
        return Array(axes, guarded(source, at, guard))
    value = cast(guarded(source, at, guard), base.dtype)
    return Array(axes, value if guard is None else word("select", guard, value, base.at(*i)))


def at_slice(source: Array, dim: int, start: Index, step: IndexLike) -> Callable[..., Place]:
    """Position p lies at (p - start) / step of the source where that is whole and in range."""
    by = as_index(step)

    def place(*i: Index) -> Place:
        offset = i[dim] - start
        position = offset // by
        whole = None if by.const == 1 else word("eq", iota(offset % by), 0)
        return replaced(i, dim, position), every([whole, inside(position, source.shape[dim])])

    return place


@index_row("aten.slice_backward.default")
def slice_backward(
    grad: Array, input_sizes: Any, dim: int, start: IndexLike, end: IndexLike, step: IndexLike, context: Context
) -> Array:
    """The gradient at the positions of the slice, 0 elsewhere."""
    shape = context.out[0].shape
    d = dim % len(shape)
    return overlaid(None, grad, shape, at_slice(grad, d, slice_start(start, shape[d]), step))


@index_row("aten.slice_scatter.default")
def slice_scatter(
    x: Array,
    source: Array,
    dim: int = 0,
    start: IndexLike | None = None,
    end: IndexLike | None = None,
    step: IndexLike = 1,
) -> Array:
    """x with the positions of a slice replaced."""
    d = x.dim(dim)
    return overlaid(x, source, x.shape, at_slice(source, d, slice_start(start, x.shape[d]), step))


def at_position(dim: int, position: Index) -> Callable[..., Place]:
    """Where one dimension is at a position; that dimension is not in the source."""

    def place(*i: Index) -> Place:
        rest = [p for k, p in enumerate(i) if k != dim]
        same = None if i[dim] is position else word("eq", iota(i[dim]), iota(position))
        return rest, same

    return place


@index_row("aten.select_backward.default")
def select_backward(grad: Array, input_sizes: Any, dim: int, index: IndexLike, context: Context) -> Array:
    """The gradient at one position of a dimension, 0 elsewhere."""
    shape = context.out[0].shape
    d = dim % len(shape)
    return overlaid(None, grad, shape, at_position(d, counted(index, shape[d])))


@index_row("aten.select_scatter.default")
def select_scatter(x: Array, source: Array, dim: int, index: IndexLike) -> Array:
    """x with one position of a dimension replaced."""
    d = x.dim(dim)
    return overlaid(x, source, x.shape, at_position(d, counted(index, x.shape[d])))


def at_diagonal(ndim: int, offset: int, dim1: int, dim2: int) -> Callable[..., Place]:
    """Where dim2 - dim1 = offset; the source has the other dimensions, then the diagonal's."""
    a, b = dim1 % ndim, dim2 % ndim

    def place(*i: Index) -> Place:
        rest = [p for k, p in enumerate(i) if k not in (a, b)]
        distance = i[b] - i[a] - offset
        same = None if distance.const == 0 else word("eq", iota(distance), 0)
        return [*rest, i[a] + min(offset, 0)], same

    return place


def on_diagonal(base: Array | None, source: Array, offset: int, dim1: int, dim2: int, shape: Sequence[Index]) -> Array:
    """source on a diagonal, else base."""
    return overlaid(base, source, shape, at_diagonal(len(shape), offset, dim1, dim2))


@index_row("aten.diagonal_backward.default")
def diagonal_backward(grad: Array, input_sizes: Any, offset: int, dim1: int, dim2: int, context: Context) -> Array:
    """The gradient on the diagonal, 0 elsewhere."""
    return on_diagonal(None, grad, offset, dim1, dim2, context.out[0].shape)


@index_row("aten.diagonal_scatter.default")
def diagonal_scatter(x: Array, source: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    """x with a diagonal replaced."""
    return on_diagonal(x, source, offset, dim1, dim2, x.shape)


@index_row("aten.diag_embed.default")
def diag_embed(x: Array, offset: int = 0, dim1: int = -2, dim2: int = -1, *, context: Context) -> Array:
    """The last dimension laid on the diagonal of a matrix of zeros."""
    return on_diagonal(None, x, offset, dim1, dim2, context.out[0].shape)


@index_row("aten.pixel_shuffle.default")
def pixel_shuffle(x: Array, factor: int, context: Context) -> Array:
    """(..., c r r, h, w) -> (..., c, h r, w r)."""

    def source(*i: Index) -> list[Index]:
        *lead, c, h, w = i
        return [*lead, (c * factor + h % factor) * factor + w % factor, h // factor, w // factor]

    return x.reindex(context.out[0].shape, source)


@index_row("aten.pixel_unshuffle.default")
def pixel_unshuffle(x: Array, factor: int, context: Context) -> Array:
    """(..., c, h r, w r) -> (..., c r r, h, w)."""

    def source(*i: Index) -> list[Index]:
        *lead, c, h, w = i
        inner = c % (factor * factor)
        return [*lead, c // (factor * factor), h * factor + inner // factor, w * factor + inner % factor]

    return x.reindex(context.out[0].shape, source)


@index_row("aten.channel_shuffle.default", "aten.native_channel_shuffle.default")
def channel_shuffle(x: Array, groups: int) -> Array:
    """(n, g k, ...) read as (n, k, g, ...)."""
    width = x.shape[1] // groups
    return x.reindex(x.shape, lambda n, c, *s: [n, (c % groups) * width + c // groups, *s])


@index_row("aten.narrow_copy.default")
def narrow_copy(x: Array, dim: int, start: IndexLike, length: IndexLike, context: Context) -> Array:
    """y[i] = x[start + i] along a dimension."""
    d = x.dim(dim)
    first = counted(start, x.shape[d])
    return x.reindex(context.out[0].shape, lambda *i: replaced(i, d, i[d] + first))


@index_row("aten.linalg_cross.default")
def cross(a: Array, b: Array, dim: int = -1, *, context: Context) -> Array:
    """y[i] = a[i + 1] b[i + 2] - a[i + 2] b[i + 1], positions modulo 3 along a dimension."""
    shape = context.out[0].shape
    d = dim % len(shape)
    x, y = a.expand(shape), b.expand(shape)

    def turned(v: Array, by: int) -> Array:
        return v.reindex(shape, lambda *i: replaced(i, d, (i[d] + by) % 3))

    return turned(x, 1) * turned(y, 2) - turned(x, 2) * turned(y, 1)
