"""Reductions: dimensions folded away by a combiner. 16-bit floats accumulate in fp32, integers as PyTorch declares.

(n...) -> the kept dimensions, or size 1 where `keepdim`. `dim` None or () means all.
"""

import math
from collections.abc import Sequence

from ridgeline.ir.index import flatten
from ridgeline.ir.types import BOOL, I64, U8, DType
from ridgeline.ir.value import Number, Value, const, word
from ridgeline.ops.array import Array, apply, count, from_index, pointwise, product, reduce_many
from ridgeline.ops.logic import holds
from ridgeline.ops.scalar import power
from ridgeline.ops.table import Context, fold_row

Dims = int | Sequence[int] | None


def truth(x: Array) -> Array:
    """Whether each element is not 0."""
    return pointwise(holds, x)


@fold_row("aten.sum.default")
def sum_all(x: Array, dtype: DType | None = None, *, context: Context) -> Array:
    """y = sum of all elements."""
    return x.cast(context.out[0].dtype).reduce("sum", None, False)


@fold_row("aten.sum.dim_IntList")
def sum_dims(x: Array, dim: Dims, keepdim: bool = False, dtype: DType | None = None, *, context: Context) -> Array:
    """y = sum along dimensions."""
    return x.cast(context.out[0].dtype).reduce("sum", dim, keepdim)


@fold_row("aten.nansum.default")
def nansum(x: Array, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None, *, context: Context) -> Array:
    """y = sum along dimensions with NaN as 0."""
    if x.dtype.is_float:
        x = pointwise(lambda v: word("select", word("isnan", v), const(0.0, v.dtype), v), x)
    return x.cast(context.out[0].dtype).reduce("sum", dim, keepdim)


def mean_of(x: Array, dim: Dims, keepdim: bool) -> Array:
    """Sum over count; NaN for no elements."""
    return x.reduce("sum", dim, keepdim) / count(x, x.dims(dim))


@fold_row("aten.mean.default")
def mean_all(x: Array, dtype: DType | None = None, *, context: Context) -> Array:
    """y = sum / count of all elements."""
    return mean_of(x.cast(context.out[0].dtype), None, False)


@fold_row("aten.mean.dim")
def mean_dims(x: Array, dim: Dims, keepdim: bool = False, dtype: DType | None = None, *, context: Context) -> Array:
    """y = sum / count along dimensions."""
    return mean_of(x.cast(context.out[0].dtype), dim, keepdim)


@fold_row("aten.prod.default")
def prod_all(x: Array, dtype: DType | None = None, *, context: Context) -> Array:
    """y = product of all elements."""
    return x.cast(context.out[0].dtype).reduce("prod", None, False)


@fold_row("aten.prod.dim_int")
def prod_dim(x: Array, dim: int, keepdim: bool = False, dtype: DType | None = None, *, context: Context) -> Array:
    """y = product along one dimension."""
    return x.cast(context.out[0].dtype).reduce("prod", dim, keepdim)


def extreme(x: Array, name: str, dim: Dims, keepdim: bool) -> Array:
    """The greatest or smallest along dimensions; NaN wins."""
    if x.dtype is BOOL:
        return x.reduce("any" if name == "max" else "all", dim, keepdim)
    return x.reduce(name, dim, keepdim)


@fold_row("aten.max.default")
def max_all(x: Array) -> Array:
    """y = the greatest element, NaN if there is one."""
    return extreme(x, "max", None, False)


@fold_row("aten.min.default")
def min_all(x: Array) -> Array:
    """y = the smallest element, NaN if there is one."""
    return extreme(x, "min", None, False)


@fold_row("aten.amax.default")
def amax(x: Array, dim: Dims = (), keepdim: bool = False) -> Array:
    """y = the greatest along dimensions."""
    return extreme(x, "max", dim, keepdim)


@fold_row("aten.amin.default")
def amin(x: Array, dim: Dims = (), keepdim: bool = False) -> Array:
    """y = the smallest along dimensions."""
    return extreme(x, "min", dim, keepdim)


@fold_row("aten.aminmax.default", "aten._aminmax.dim")
def aminmax(x: Array, dim: int | None = None, keepdim: bool = False) -> tuple[Array, Array]:
    """The smallest and the greatest along a dimension, or of all."""
    return extreme(x, "min", dim, keepdim), extreme(x, "max", dim, keepdim)


@fold_row("aten._aminmax.default")
def aminmax_all(x: Array) -> tuple[Array, Array]:
    """The smallest and the greatest of all."""
    return extreme(x, "min", None, False), extreme(x, "max", None, False)


def extreme_and_place(x: Array, name: str, dim: Dims, keepdim: bool) -> tuple[Array, Array]:
    """The greatest or smallest and its first position (in row-major order over several dimensions)."""
    dims = x.dims(dim)
    place = from_index(x.shape, lambda *i: flatten([i[d] for d in dims], [x.shape[d] for d in dims]), I64)
    ordered = x.cast(U8) if x.dtype is BOOL else x
    best, at = (reduce_many(name, (ordered, place), dims, keepdim, part) for part in (0, 1))
    return best, at


@fold_row("aten.max.dim")
def max_dim(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    """The greatest along a dimension and where it is first; NaN wins."""
    return extreme_and_place(x, "argmax", dim, keepdim)


@fold_row("aten.min.dim")
def min_dim(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    """The smallest along a dimension and where it is first; NaN wins."""
    return extreme_and_place(x, "argmin", dim, keepdim)


@fold_row("aten.argmax.default")
def argmax(x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    """The first position of the greatest along a dimension, or in the flat order of all."""
    return extreme_and_place(x, "argmax", dim, keepdim)[1]


@fold_row("aten.argmin.default")
def argmin(x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    """The first position of the smallest along a dimension, or in the flat order of all."""
    return extreme_and_place(x, "argmin", dim, keepdim)[1]


@fold_row("aten.any.default", "aten.any.dim", "aten.any.dims", "aten._is_any_true.default")
def any_(x: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    """Whether any element along dimensions is not 0."""
    return truth(x).reduce("any", dim, keepdim)


@fold_row("aten.all.default", "aten.all.dim", "aten.all.dims", "aten._is_all_true.default")
def all_(x: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    """Whether all elements along dimensions are not 0."""
    return truth(x).reduce("all", dim, keepdim)


@fold_row("aten.count_nonzero.default", "aten.count_nonzero.dim_IntList")
def count_nonzero(x: Array, dim: Dims = None) -> Array:
    """How many elements along dimensions are not 0."""
    return truth(x).cast(I64).reduce("sum", dim, False)


def moments(x: Array, dim: Dims, correction: Number | None, keepdim: bool) -> tuple[Array, Array]:
    """Variance (divided by count - correction, at least 0) and mean, in one pass (Welford)."""
    dims = x.dims(dim)
    less = 1 if correction is None else correction
    size = product(x.shape[d] for d in dims).const
    squares = x.reduce("welford", dims, keepdim, part=1)
    if size is None:
        divisor = pointwise(lambda n: word("max", n - less, 0), count(x, dims))
        return squares / divisor, x.reduce("welford", dims, keepdim)
    mean = x.reduce("welford", dims, keepdim) if size else squares * math.nan
    return squares / max(float(size - less), 0.0), mean


def root(x: Array) -> Array:
    """Square root."""
    return apply("sqrt", x)


@fold_row("aten.var.correction")
def var(x: Array, dim: Dims = None, correction: Number | None = None, keepdim: bool = False) -> Array:
    """y = sum (x - mean)^2 / max(count - correction, 0)."""
    return moments(x, dim, correction, keepdim)[0]


@fold_row("aten.std.correction")
def std(x: Array, dim: Dims = None, correction: Number | None = None, keepdim: bool = False) -> Array:
    """y = sqrt(var)."""
    return root(var(x, dim, correction, keepdim))


@fold_row("aten.var_mean.correction")
def var_mean(
    x: Array, dim: Dims = None, correction: Number | None = None, keepdim: bool = False
) -> tuple[Array, Array]:
    """The variance and the mean."""
    return moments(x, dim, correction, keepdim)


@fold_row("aten.std_mean.correction")
def std_mean(
    x: Array, dim: Dims = None, correction: Number | None = None, keepdim: bool = False
) -> tuple[Array, Array]:
    """The standard deviation and the mean."""
    variance, mean = moments(x, dim, correction, keepdim)
    return root(variance), mean


def norm_of(x: Array, order: Number, dim: Dims, keepdim: bool) -> Array:
    """(sum |x|^order)^(1/order); the greatest or smallest |x| for an infinite order, the nonzero count for 0."""
    size = apply("abs", x)
    if math.isinf(order):
        return size.reduce("max" if order > 0 else "min", dim, keepdim)
    if order == 0:
        return truth(x).cast(x.dtype).reduce("sum", dim, keepdim)
    if order == 1:
        return size.reduce("sum", dim, keepdim)
    if order == 2:
        return root((x * x).reduce("sum", dim, keepdim))
    powers = pointwise(lambda v: power(v, order), size).reduce("sum", dim, keepdim)
    return pointwise(lambda v: power(v, 1 / order), powers)


@fold_row("aten.linalg_vector_norm.default")
def vector_norm(
    x: Array, ord: Number = 2, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None, *, context: Context
) -> Array:
    """y = (sum |x|^ord)^(1/ord) along dimensions."""
    return norm_of(x.cast(context.out[0].dtype), ord, dim, keepdim)


@fold_row("aten.norm.Scalar", "aten.norm.ScalarOpt_dim", "aten.norm.ScalarOpt_dtype", "aten.norm.ScalarOpt_dim_dtype")
def norm(
    x: Array,
    p: Number | None = 2,
    dim: Dims = None,
    keepdim: bool = False,
    dtype: DType | None = None,
    *,
    context: Context,
) -> Array:
    """y = (sum |x|^p)^(1/p) along dimensions."""
    return norm_of(x.cast(context.out[0].dtype), 2 if p is None else p, dim, keepdim)


@fold_row("aten.dist.default")
def dist(a: Array, b: Array, p: Number = 2) -> Array:
    """y = the p-norm of a - b."""
    return norm_of(a - b, p, None, False)


@fold_row("aten.logsumexp.default")
def logsumexp(x: Array, dim: Dims, keepdim: bool = False, *, context: Context) -> Array:
    """y = max + log(sum exp(x - max)) in one pass; an infinite maximum is the answer."""
    x = x.cast(context.out[0].dtype)
    top, total = (x.reduce("maxsumexp", dim, keepdim, part) for part in (0, 1))

    def join(t: Value, s: Value) -> Value:
        return word("select", word("isinf", t), t, t + word("log", s))

    return pointwise(join, top, total)


@fold_row("aten.trace.default")
def trace(x: Array, context: Context) -> Array:
    """y = the sum of the diagonal of a matrix."""
    rows, columns = x.shape
    size = rows if rows is columns else min((rows, columns), key=lambda s: s.const or 0)
    diagonal = x.reindex([size], lambda i: [i, i])
    return diagonal.cast(context.out[0].dtype).reduce("sum", None, False)
