"""Positions read from memory: gathers, and scatters onto an array.

A position is clamped into its dimension (`array.read`); PyTorch raises for one outside, which is the caller's to
check. Where two points of a plain scatter share a position any may win, as PyTorch says; with `add` they add up.
Boolean masks have a size known only at run time and are refused.
"""

from collections.abc import Sequence

from ridgeline.base.errors import CannotConvert
from ridgeline.ir.index import Index, IndexLike, as_index, flatten, unflatten
from ridgeline.ir.types import BOOL, I64, U8
from ridgeline.ir.value import Like, Number, Value, cast, const, word
from ridgeline.ops.array import (
    Array,
    aligned,
    broadcast_shape,
    full,
    make_axes,
    pointwise,
    positions,
    read,
)
from ridgeline.ops.scalar import scaled, value_of
from ridgeline.ops.table import Context, Scatter, fold_row, index_row, scatter_row

FEW = 64  # elements that a search may walk through one by one


@index_row("aten.gather.default")
def gather(x: Array, dim: int, index: Array, sparse_grad: bool = False) -> Array:
    """y[..., i, ...] = x[..., index[..., i, ...], ...]."""
    if not x.ndim or index.numel.const == 0:
        return full(index.shape, 0, x.dtype) if x.ndim else x.expand(index.shape)
    if not index.ndim:
        return Array((), x.at(read(index.value, x.shape[0])))
    d = x.dim(dim)
    i = list(positions(index.axes))
    i[d] = read(index.value, x.shape[d])
    return Array(index.axes, x.at(*i))


@index_row("aten.index_select.default")
def index_select(x: Array, dim: int, index: Array, context: Context) -> Array:
    """y[..., i, ...] = x[..., index[i], ...]."""
    if not x.ndim:
        return x.expand(context.out[0].shape)
    d = x.dim(dim)
    axes = make_axes(context.out[0].shape)
    i = list(positions(axes))
    i[d] = read(index.at(*([i[d]] if index.ndim else [])), x.shape[d])
    return Array(axes, x.at(*i))


@index_row("aten.embedding.default")
def embedding(
    weight: Array, indices: Array, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Array:
    """y[..., j] = weight[indices[...], j]."""
    axes = (*indices.axes, *make_axes(weight.shape[1:]))
    row = read(indices.value, weight.shape[0])
    return Array(axes, weight.at(row, *positions(axes[indices.ndim :])))


@index_row("aten.take.default")
def take(x: Array, index: Array) -> Array:
    """y[i...] = x at the flat position index[i...], negative ones from the end."""
    flat = read(index.value, x.numel, wrap=True)
    return Array(index.axes, x.at(*unflatten(flat, x.shape)))


class Advanced:
    """x[i0, :, i2, ...] with arrays of positions: the shape it has and where each point of it lies in x."""

    def __init__(self, x: Array, indices: Sequence[Array | None]) -> None:
        if any(i is not None and i.dtype in (BOOL, U8) for i in indices):
            raise CannotConvert("a boolean mask as an index")
        self.x = x
        self.given = {d: i for d, i in enumerate(indices) if i is not None}
        common = broadcast_shape(i.shape for i in self.given.values())
        rest = [d for d in range(x.ndim) if d not in self.given]
        first, last = min(self.given), max(self.given)
        # Positions next to each other keep their place, others move to the front.
        self.lead = first if last - first + 1 == len(self.given) else 0
        self.rest, self.width = rest, len(common)
        sizes = [x.shape[d] for d in rest]
        self.axes = make_axes([*sizes[: self.lead], *common, *sizes[self.lead :]])

    @property
    def index(self) -> list[Index]:
        """The index into x, one position per dimension, over `axes`."""
        at = positions(self.axes)
        common = at[self.lead : self.lead + self.width]
        rest = dict(zip(self.rest, [*at[: self.lead], *at[self.lead + self.width :]], strict=True))
        out = []
        for d, size in enumerate(self.x.shape):
            chosen = self.given.get(d)
            out.append(rest[d] if chosen is None else read(chosen.at(*aligned(chosen, common)), size, wrap=True))
        return out


@index_row("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index_tensor(x: Array, indices: Sequence[Array | None]) -> Array:
    """y = x[i0, :, i2, ...] with arrays of positions."""
    where = Advanced(x, indices)
    return Array(where.axes, x.at(*where.index))


def at_axes(x: Array, axes: Sequence[Index]) -> Value:
    """x, broadcast, at a position."""
    return x.at(*aligned(x, axes))


@index_row("aten._unsafe_masked_index.default")
def masked_index(x: Array, mask: Array, indices: Sequence[Array | None], fill: Number) -> Array:
    """y = x[i0, :, i2, ...] where the mask holds, else fill."""
    where = Advanced(x, indices)
    value = x.at(*where.index)
    holds = at_axes(mask, positions(where.axes))
    return Array(where.axes, word("select", holds, value, const(fill, value.dtype)))


def no_bools(x: Array, add: bool) -> None:
    """Adding up bools is `or`, which a scatter does not do."""
    if add and x.dtype is BOOL:
        raise CannotConvert("a scatter that adds up bools")


@scatter_row("aten.index_put.default", "aten._unsafe_index_put.default", "aten._index_put_impl.default")
def index_put(
    x: Array, indices: Sequence[Array | None], values: Array, accumulate: bool = False, unsafe: bool = False
) -> Scatter | Array:
    """y = x; y[i0, :, i2, ...] = or += values. One number put where a mask holds is a choice, not a scatter."""
    no_bools(x, accumulate)
    mask = indices[0] if len(indices) == 1 else None
    if mask is not None and mask.dtype is BOOL and values.numel.const == 1:
        wide = mask.reindex([*mask.shape, *x.shape[mask.ndim :]], lambda *i: i[: mask.ndim])
        number = first_of(values, x)
        return pointwise(lambda m, v: word("select", m, v + number if accumulate else number, v), wide, x)
    where = Advanced(x, indices)
    value = cast(at_axes(values, positions(where.axes)), x.dtype)
    return Scatter(x, where.axes, tuple(where.index), value, accumulate)


@scatter_row("aten._unsafe_masked_index_put_accumulate.default")
def masked_index_put(x: Array, mask: Array, indices: Sequence[Array | None], values: Array) -> Scatter:
    """y = x; y[i0, :, i2, ...] += values where the mask holds."""
    where = Advanced(x, indices)
    at = positions(where.axes)
    value = cast(at_axes(values, at), x.dtype)
    kept = word("select", at_axes(mask, at), value, const(0, x.dtype))
    return Scatter(x, where.axes, tuple(where.index), kept, True)


def first_of(value: Like | Array, x: Array) -> Value:
    """The only element of a value, in the type of x."""
    if isinstance(value, Array):
        value = value.at(*(as_index(0) for _ in value.axes))
    return cast(value_of(value, x.dtype), x.dtype)


def onto_number(x: Array, index: Array, value: Like | Array, add: bool) -> Scatter:
    """A scatter onto a tensor of no dimensions, by one point."""
    if index.numel.const != 1:
        raise CannotConvert("several points scattered onto a tensor of no dimensions")
    return Scatter(x, (), (), first_of(value, x), add)


def along(x: Array, dim: int, index: Array, value: Like | Array, add: bool) -> Scatter | Array:
    """y = x; y[..., index[..., i, ...], ...] = or += value[..., i, ...], over the shape of the index."""
    no_bools(x, add)
    if index.numel.const == 0:
        return x
    if not x.ndim:
        return onto_number(x, index, value, add)
    i = list(positions(index.axes))
    source = value.at(*i) if isinstance(value, Array) and value.ndim else first_of(value, x)
    at = i if index.ndim else [as_index(0)] * x.ndim
    d = x.dim(dim)
    at[d] = read(index.value, x.shape[d])
    return Scatter(x, index.axes, tuple(at), cast(source, x.dtype), add)


@scatter_row("aten.scatter.src", "aten.scatter.value")
def scatter(x: Array, dim: int, index: Array, value: Number | Array) -> Scatter | Array:
    """y = x; y[..., index[..., i, ...], ...] = value."""
    return along(x, dim, index, value, False)


@scatter_row("aten.scatter_add.default")
def scatter_add(x: Array, dim: int, index: Array, source: Array) -> Scatter | Array:
    """y = x; y[..., index[..., i, ...], ...] += source."""
    return along(x, dim, index, source, True)


@scatter_row("aten.scatter.reduce", "aten.scatter.value_reduce")
def scatter_with(x: Array, dim: int, index: Array, value: Number | Array, reduce: str) -> Scatter | Array:
    """scatter_add by another name; products are refused."""
    if reduce != "add":
        raise CannotConvert(f"scatter with '{reduce}'")
    return along(x, dim, index, value, True)


@scatter_row("aten.scatter_reduce.two")
def scatter_reduce(
    x: Array, dim: int, index: Array, source: Array, reduce: str, include_self: bool = True
) -> Scatter | Array:
    """y = x; y[..., index[..., i, ...], ...] += source; other reductions are refused."""
    if reduce != "sum" or not include_self:
        raise CannotConvert(f"scatter_reduce with '{reduce}'" + ("" if include_self else " without self"))
    return along(x, dim, index, source, True)


def slabs(x: Array, dim: int, index: Array, value: Array | Like, add: bool) -> Scatter:
    """y = x; y[..., index[i], ...] = or += value[..., i, ...]: whole slabs of a dimension."""
    no_bools(x, add)
    if not x.ndim:
        return onto_number(x, index, value, add)
    d = x.dim(dim)
    many = index.shape[0] if index.ndim else as_index(1)
    axes = make_axes([many if k == d else s for k, s in enumerate(x.shape)])
    at = list(positions(axes))
    source = at_axes(value, at) if isinstance(value, Array) else value_of(value, x.dtype)
    at[d] = read(index.at(*([at[d]] if index.ndim else [])), x.shape[d])
    return Scatter(x, axes, tuple(at), cast(source, x.dtype), add)


@scatter_row("aten.index_add.default")
def index_add(x: Array, dim: int, index: Array, source: Array, alpha: Number = 1) -> Scatter:
    """y = x; y[..., index[i], ...] += alpha * source[..., i, ...]."""
    return slabs(x, dim, index, pointwise(lambda v: value_of(scaled(v, alpha), v.dtype), source), True)


@scatter_row("aten.index_copy.default")
def index_copy(x: Array, dim: int, index: Array, source: Array) -> Scatter:
    """y = x; y[..., index[i], ...] = source[..., i, ...]."""
    return slabs(x, dim, index, source, False)


@scatter_row("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def index_fill(x: Array, dim: int, index: Array, value: Number | Array) -> Scatter:
    """y = x; y[..., index[i], ...] = value."""
    return slabs(x, dim, index, value, False)


@scatter_row("aten.put.default")
def put(x: Array, index: Array, source: Array, accumulate: bool = False) -> Scatter:
    """y = x; y at the flat positions index[i...] = or += source, taken in flat order."""
    no_bools(x, accumulate)
    if not x.ndim:
        return onto_number(x, index, source, accumulate)
    flat = flatten(positions(index.axes), index.shape)
    value = source.at(*unflatten(flat, source.shape))
    where = unflatten(read(index.value, x.numel, wrap=True), x.shape)
    return Scatter(x, index.axes, where, cast(value, x.dtype), accumulate)


@scatter_row("aten.embedding_dense_backward.default")
def embedding_backward(
    grad: Array, indices: Array, num_weights: IndexLike, padding_idx: int, scale_grad_by_freq: bool
) -> Scatter:
    """dweight = 0; dweight[indices[...], j] += grad[..., j], but for the padding's row."""
    if scale_grad_by_freq:
        raise CannotConvert("embedding gradient scaled by frequency")
    initial = full((num_weights, grad.shape[-1]), 0, grad.dtype)
    at = positions(grad.axes)
    row = indices.at(*at[:-1])
    value = (
        grad.value
        if padding_idx == -1
        else word("select", word("eq", row, padding_idx), const(0, grad.dtype), grad.value)
    )
    return Scatter(initial, grad.axes, (read(row, num_weights), at[-1]), value, True)


def before(boundaries: Array, x: Array, right: bool) -> Array:
    """How many boundaries lie before x (with `right`, or are equal to it): boundaries (..., n), x (..., m)."""
    size = boundaries.shape[-1].const
    if size is None or size > FEW:
        raise CannotConvert(f"a search among {boundaries.shape[-1]} elements")
    own = [*x.shape, as_index(1)]
    wide = x.reindex(own, lambda *i: i[:-1])
    lead = x.ndim + 1 - boundaries.ndim
    if boundaries.ndim > 1:  # one list for each row of x: (..., n) -> (..., 1, n)
        rows = [*boundaries.shape[:-1], as_index(1), boundaries.shape[-1]]
        boundaries, lead = boundaries.reindex(rows, lambda *i: [*i[:-2], i[-1]]), 0
    assert lead >= 0
    less = pointwise(lambda b, v: ~(b > v if right else b >= v), boundaries, wide)
    return less.cast(I64).reduce("sum", -1, keepdim=False)


def same_type(context: Context, *arrays: Array) -> list[Array]:
    """Arrays in the type PyTorch compares in."""
    return [a.cast(context.promoted) for a in arrays]


@fold_row("aten.bucketize.Tensor")
def bucketize(x: Array, boundaries: Array, out_int32: bool = False, right: bool = False, *, context: Context) -> Array:
    """y = how many boundaries are smaller than x (with `right`, at most x); NaN comes after all."""
    values, edges = same_type(context, x, boundaries)
    return before(edges, values, right)


@fold_row("aten.searchsorted.Tensor")
def searchsorted(
    boundaries: Array,
    x: Array,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Array | None = None,
    *,
    context: Context,
) -> Array:
    """y = how many of a sorted list are smaller than x (side "right": at most x)."""
    if sorter is not None:
        raise CannotConvert("searchsorted by a sorter")
    edges, values = same_type(context, boundaries, x)
    return before(edges, values, right or side == "right")


@fold_row("aten.isin.Tensor_Tensor")
def isin(x: Array, tests: Array, assume_unique: bool = False, invert: bool = False, *, context: Context) -> Array:
    """y = x is one of the test elements."""
    size = tests.numel.const
    if size is None or size > FEW:
        raise CannotConvert(f"a search among {tests.numel} elements")
    values, known = same_type(context, x, tests)
    flat = known.reindex([known.numel], lambda i: unflatten(i, known.shape))
    wide = values.reindex([*values.shape, as_index(1)], lambda *i: i[:-1])
    found = pointwise(lambda a, b: word("eq", a, b), wide, flat).reduce("any", -1, keepdim=False)
    return pointwise(lambda f: ~f, found) if invert else found


@index_row("aten.isin.Tensor_Scalar")
def isin_scalar(x: Array, test: Number, assume_unique: bool = False, invert: bool = False) -> Array:
    """y = x is the test element."""
    return pointwise(lambda v: word("ne" if invert else "eq", v, test), x)
