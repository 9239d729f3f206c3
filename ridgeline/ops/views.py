"""Views: index maps that PyTorch carries out without moving a byte, and their copying twins.

Each row says which element of the input an element of the output is. Shapes come from the outputs that PyTorch
declares, so -1 and "all the rest" need no rule here.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ridgeline.base.errors import CannotConvert
from ridgeline.ir.index import Index, IndexLike, as_index, at_least, unflatten, within
from ridgeline.ops.array import Array, reshape
from ridgeline.ops.table import Context, index_row, view_row

Body = TypeVar("Body", bound=Callable[..., Any])


def shape_of(context: Context, k: int = 0) -> tuple[Index, ...]:
    """The declared shape of an output."""
    return context.out[k].shape


def same(x: Array) -> Array:
    """Every element where it is."""
    return x


def view_and_copy(views: Sequence[str], copies: Sequence[str]) -> Callable[[Body], Body]:
    """Registers one body as view rows and, for the twins that copy, as index rows."""

    def register(body: Body) -> Body:
        view_row(*views)(body)
        index_row(*copies)(body)
        return body

    return register


@view_and_copy(
    [
        "aten.alias.default",
        "aten.detach.default",
        "aten.lift_fresh.default",
        "aten.lift.default",
        "aten._conj_physical.default",
        "aten._lazy_clone.default",
    ],
    ["aten.alias_copy.default", "aten.detach_copy.default", "aten.lift_fresh_copy.default"],
)
def alias(x: Array) -> Array:
    """y[i...] = x[i...]."""
    return x


@view_and_copy(
    ["aten.view.default", "aten._unsafe_view.default", "aten._reshape_alias.default", "aten.reshape.default"],
    ["aten.view_copy.default", "aten._reshape_copy.default", "aten._reshape_alias_copy.default"],
)
def view(x: Array, size: Any, stride: Any = None, context: Context | None = None) -> Array:
    """The same elements in row-major order under another shape."""
    assert context is not None
    return reshape(x, shape_of(context))


@view_and_copy(["aten.expand.default"], ["aten.expand_copy.default"])
def expand(x: Array, size: Any, implicit: bool = False, context: Context | None = None) -> Array:
    """Dimensions of size 1 repeated, new ones in front."""
    assert context is not None
    return x.expand(shape_of(context))


def permuted(x: Array, order: Sequence[int]) -> Array:
    """Dimension k of the result is dimension order[k] of x."""
    return Array(tuple(x.axes[d] for d in order), x.value)


@view_and_copy(["aten.permute.default"], ["aten.permute_copy.default"])
def permute(x: Array, dims: tuple[int, ...]) -> Array:
    """y's dimension k is x's dimension dims[k]."""
    return permuted(x, [x.dim(d) for d in dims])


@view_and_copy(["aten.transpose.int"], ["aten.transpose_copy.int"])
def transpose(x: Array, dim0: int, dim1: int) -> Array:
    """Two dimensions change places."""
    order = list(range(x.ndim))
    if x.ndim:
        a, b = x.dim(dim0), x.dim(dim1)
        order[a], order[b] = order[b], order[a]
    return permuted(x, order)


@view_and_copy(["aten.t.default"], ["aten.t_copy.default"])
def t(x: Array) -> Array:
    """A matrix turned over; vectors and numbers are left."""
    return permuted(x, [1, 0]) if x.ndim == 2 else x


def dropped(x: Array, dims: set[int]) -> Array:
    """Without those of the given dimensions whose size is 1."""
    return x.keep([d for d in range(x.ndim) if d not in dims or x.shape[d].const != 1])


@view_and_copy(
    [f"aten.squeeze.{o}" for o in ("default", "dim", "dims")],
    [f"aten.squeeze_copy.{o}" for o in ("default", "dim", "dims")],
)
def squeeze(x: Array, dim: int | tuple[int, ...] | None = None) -> Array:
    """Without dimensions of size 1 (all, or those given)."""
    dims = range(x.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    return dropped(x, {x.dim(d) for d in dims})


@view_and_copy(["aten.unsqueeze.default"], ["aten.unsqueeze_copy.default"])
def unsqueeze(x: Array, dim: int, context: Context) -> Array:
    """A new dimension of size 1."""
    d = dim % (x.ndim + 1)
    return x.reindex(shape_of(context), lambda *i: [*i[:d], *i[d + 1 :]])


def counted(index: IndexLike, size: Index) -> Index:
    """A position counted from either end as one from the start."""
    given = as_index(index)
    if at_least(given, 0):
        return given
    if at_least(-given, 1):
        return given + size
    raise CannotConvert(f"the sign of position {given} is not known")


@view_and_copy(["aten.select.int"], ["aten.select_copy.int"])
def select(x: Array, dim: int, index: IndexLike) -> Array:
    """One position of a dimension, which goes."""
    d = x.dim(dim)
    at = counted(index, x.shape[d])
    shape = [s for k, s in enumerate(x.shape) if k != d]
    return x.reindex(shape, lambda *i: [*i[:d], at, *i[d:]])


def slice_start(start: IndexLike | None, size: Index) -> Index:
    """The first position of a slice, kept in 0 .. size."""
    if start is None:
        return as_index(0)
    at = counted(start, size)
    if at_least(at, 0):
        return at
    if at.const is not None:
        return as_index(0)
    raise CannotConvert(f"slice start {start} of a dimension of {size}")


@view_and_copy(["aten.slice.Tensor"], ["aten.slice_copy.Tensor"])
def slice_(
    x: Array,
    dim: int = 0,
    start: IndexLike | None = None,
    end: IndexLike | None = None,
    step: IndexLike = 1,
    context: Context | None = None,
) -> Array:
    """Positions start, start + step, ... of a dimension."""
    assert context is not None
    d = x.dim(dim)
    first = slice_start(start, x.shape[d])
    return x.reindex(shape_of(context), lambda *i: [p * step + first if k == d else p for k, p in enumerate(i)])


def pieces(x: Array, dim: int, context: Context) -> tuple[Array, ...]:
    """The outputs cut one after the other from a dimension."""
    d, start, out = x.dim(dim), as_index(0), []
    for k in range(len(context.out)):
        shape, first = shape_of(context, k), start
        out.append(x.reindex(shape, lambda *i, f=first: [p + f if j == d else p for j, p in enumerate(i)]))
        start = start + shape[d]
    return tuple(out)


@view_and_copy(
    ["aten.split.Tensor", "aten.split_with_sizes.default"],
    ["aten.split_copy.Tensor", "aten.split_with_sizes_copy.default"],
)
def split(x: Array, sizes: Any, dim: int = 0, *, context: Context) -> tuple[Array, ...]:
    """Pieces of a dimension, of equal or given sizes."""
    return pieces(x, dim, context)


view_row(
    "aten.unsafe_split.Tensor",
    "aten.unsafe_split_with_sizes.default",
    "aten.chunk.default",
    "aten.unsafe_chunk.default",
)(split)


@view_and_copy(["aten.unbind.int"], ["aten.unbind_copy.int"])
def unbind(x: Array, dim: int = 0) -> tuple[Array, ...]:
    """Every position of a dimension as an output of its own."""
    size = x.shape[x.dim(dim)].const
    if size is None:
        raise CannotConvert("unbind along a dimension of symbolic size")
    return tuple(select(x, dim, k) for k in range(size))


@view_and_copy(["aten.diagonal.default"], ["aten.diagonal_copy.default"])
def diagonal(x: Array, offset: int = 0, dim1: int = 0, dim2: int = 1, *, context: Context) -> Array:
    """y[..., k] = x[..., k - min(offset, 0), ..., k + max(offset, 0), ...]."""
    a, b = x.dim(dim1), x.dim(dim2)
    rest = [d for d in range(x.ndim) if d not in (a, b)]

    def source(*i: Index) -> list[Index]:
        at = {a: i[-1] - min(offset, 0), b: i[-1] + max(offset, 0)}
        at |= dict(zip(rest, i, strict=False))
        return [at[d] for d in range(x.ndim)]

    return x.reindex(shape_of(context), source)


@view_and_copy(["aten.unfold.default"], ["aten.unfold_copy.default"])
def unfold(x: Array, dimension: int, size: int, step: int, context: Context) -> Array:
    """Windows of a dimension: y[..., w, ..., j] = x[..., w * step + j, ...]."""
    if not x.ndim:
        return x.reindex(shape_of(context), lambda *i: [])
    d = x.dim(dimension)
    return x.reindex(shape_of(context), lambda *i: [p * step + i[-1] if k == d else p for k, p in enumerate(i[:-1])])


@view_and_copy(["aten.as_strided.default"], ["aten.as_strided_copy.default"])
def as_strided(
    x: Array, size: Any, stride: tuple[IndexLike, ...], storage_offset: IndexLike | None = None, *, context: Context
) -> Array:
    """y[i...] = the element at offset + sum(i * stride) of a contiguous x; refused for any other x."""
    if not context.dense:
        raise CannotConvert("as_strided of a tensor that is not contiguous from the head of its storage")
    shape = shape_of(context)

    def position(*i: Index) -> Index:
        out = as_index(storage_offset or 0)
        for p, s in zip(i, stride, strict=True):
            out = out + p * s
        return out

    def source(*i: Index) -> tuple[Index, ...]:
        return unflatten(position(*i), x.shape)

    probe = Array(x.axes, x.value).reindex(shape, source)
    if not within(position(*map(as_index, probe.axes)), x.numel) and all(s.const != 0 for s in shape):
        raise CannotConvert("as_strided that leaves its input")
    return probe
