"""Normalisations and softmax, both ways: kept whole at capture, each an expression over rows.

Statistics are computed in fp32 (fp64 for fp64). Variances are of Welford's kind, softmax of the online kind (one
pass for maximum and sum). Backwards share their folds: sum(dy w) and sum(dy w xhat) for each row, sum(dy) and
sum(dy xhat) for each weight.
"""

from collections.abc import Sequence

from ridgeline.base.errors import CannotConvert
from ridgeline.ir.index import Index, IndexLike, as_index
from ridgeline.ir.types import F64, U8, DType
from ridgeline.ir.value import Value, const, word
from ridgeline.ops.array import Array, apply, count, full, pointwise
from ridgeline.ops.folds import norm_of
from ridgeline.ops.table import Context, composite, fold_row

Triple = tuple[Array | None, ...]


def top_and_sum(x: Array, dim: int) -> tuple[Array, Array]:
    """max and sum(exp(x - max)) along a dimension, in one pass; the sum is NaN where the maximum is infinite, as in
    ATen (top - top is 0 for every other)."""
    top, total = (x.reduce("maxsumexp", dim, part=k) for k in (0, 1))
    return top, total + (top - top)


@composite("aten._softmax.default")
def softmax(x: Array, dim: int, half_to_float: bool) -> Array:
    """y = exp(x - max) / sum(exp(x - max)) along `dim`; one online pass, one store pass."""
    top, total = top_and_sum(x, dim)
    return apply("exp", x - top) / total


@composite("aten._safe_softmax.default")
def safe_softmax(x: Array, dim: int, dtype: DType | None = None, *, context: Context) -> Array:
    """Softmax with 0 for a row that is -inf everywhere."""
    x = x.cast(context.out[0].dtype)
    top, total = top_and_sum(x, dim)
    none = pointwise(lambda t: word("isinf", t) & (t < 0), top)
    return pointwise(lambda n, v: word("select", n, const(0, v.dtype), v), none, apply("exp", x - top) / total)


@composite("aten._log_softmax.default")
def log_softmax(x: Array, dim: int, half_to_float: bool) -> Array:
    """y = x - max - log(sum(exp(x - max))) along `dim`."""
    top, total = top_and_sum(x, dim)
    return x - top - apply("log", total)


@fold_row("ridgeline.log_softmax_rows.default")
def log_softmax_rows(x: Array, dim: int) -> tuple[Array, Array]:
    """What a log-softmax needs of each row: its maximum, and log(sum(exp(x - max))). Both keep `dim` as size 1."""
    top, total = top_and_sum(x, dim)
    return top, apply("log", total)


@composite("aten._softmax_backward_data.default")
def softmax_backward(dy: Array, y: Array, dim: int, input_dtype: DType) -> Array:
    """dx = y * (dy - sum(y * dy))."""
    return y * (dy - (y * dy).reduce("sum", dim))


@composite("aten._log_softmax_backward_data.default")
def log_softmax_backward(dy: Array, y: Array, dim: int, input_dtype: DType) -> Array:
    """dx = dy - exp(y) * sum(dy)."""
    return dy - apply("exp", y) * dy.reduce("sum", dim)


def trailing(x: Array, count: int) -> tuple[int, ...]:
    """The last `count` dimensions."""
    return tuple(range(x.ndim - count, x.ndim))


def affine(x: Array, weight: Array | None, bias: Array | None) -> Array:
    """x * weight + bias, where there are any."""
    if weight is not None:
        x = x * weight
    return x if bias is None else x + bias


def inverse_root(variance: Array, eps: float) -> Array:
    """1 / sqrt(variance + eps)."""
    return apply("rsqrt", variance + eps)


def statistics(x: Array, dims: Sequence[int]) -> tuple[Array, Array]:
    """Mean and variance (over the count) along dimensions, which stay as size 1."""
    return x.reduce("welford", dims), x.reduce("welford", dims, part=1) / count(x, dims)


@composite("aten.native_layer_norm.default")
def layer_norm(
    x: Array, normalized_shape: tuple[int, ...], weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array]:
    """y = (x - mean) * rstd * weight + bias over the trailing dimensions; also mean and rstd."""
    mean, variance = statistics(x, trailing(x, len(normalized_shape)))
    rstd = inverse_root(variance, eps)
    return affine((x - mean) * rstd, weight, bias), mean, rstd


def row_gradient(dy: Array, xhat: Array, rstd: Array, dims: Sequence[int]) -> Array:
    """dx = rstd * (dy - mean(dy) - xhat * mean(dy * xhat)), dy already times the weight."""
    n = count(xhat, dims)
    return rstd * (dy - dy.reduce("sum", dims) / n - xhat * ((dy * xhat).reduce("sum", dims) / n))


@composite("aten.native_layer_norm_backward.default")
def layer_norm_backward(
    dy: Array,
    x: Array,
    normalized_shape: tuple[int, ...],
    mean: Array,
    rstd: Array,
    weight: Array | None,
    bias: Array | None,
    output_mask: Sequence[bool],
) -> Triple:
    """dx as for rows; dweight = sum over rows of dy * xhat; dbias = sum over rows of dy."""
    dims = trailing(x, len(normalized_shape))
    rows = range(x.ndim - len(dims))
    xhat = (x - mean) * rstd
    dx = row_gradient(dy if weight is None else dy * weight, xhat, rstd, dims) if output_mask[0] else None
    dweight = over_rows(dy * xhat, rows) if output_mask[1] else None
    return dx, dweight, over_rows(dy, rows) if output_mask[2] else None


def over_rows(x: Array, rows: Sequence[int]) -> Array:
    """The sum over the leading dimensions, if there are any."""
    return x.reduce("sum", rows, keepdim=False) if rows else x


@composite("aten._fused_rms_norm.default")
def rms_norm(
    x: Array, normalized_shape: tuple[int, ...], weight: Array | None, eps: float | None
) -> tuple[Array, Array]:
    """y = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + eps) over the trailing dimensions; also rstd."""
    dims = trailing(x, len(normalized_shape))
    least = 2.220446049250313e-16 if x.dtype is F64 else 1.1920928955078125e-07
    rstd = inverse_root((x * x).reduce("sum", dims) / count(x, dims), least if eps is None else eps)
    return affine(x * rstd, weight, None), rstd


@composite("aten._fused_rms_norm_backward.default")
def rms_norm_backward(
    dy: Array,
    x: Array,
    normalized_shape: tuple[int, ...],
    rstd: Array,
    weight: Array | None,
    output_mask: Sequence[bool],
) -> Triple:
    """dx = rstd * (dy w - xhat * mean(dy w xhat)); dweight = sum over rows of dy * xhat."""
    dims = trailing(x, len(normalized_shape))
    rows = range(x.ndim - len(dims))
    xhat = x * rstd
    scaled = dy if weight is None else dy * weight
    dx = rstd * (scaled - xhat * ((scaled * xhat).reduce("sum", dims) / count(x, dims)))
    dweight = over_rows(dy * xhat, rows) if weight is not None and output_mask[1] else None
    return dx if output_mask[0] else None, dweight


class Groups:
    """(N, C, ...) seen as (N, G, C / G, ...), channels of a group next to each other."""

    def __init__(self, x: Array, groups: int) -> None:
        self.x, self.groups = x, groups
        self.width = x.shape[1] // groups
        self.dims = tuple(range(2, x.ndim + 1))

    def split(self, x: Array) -> Array:
        """(N, C, ...) -> (N, G, C / G, ...)."""
        n, _, *rest = x.shape
        shape = [n, as_index(self.groups), self.width, *rest]
        return x.reindex(shape, lambda i, g, c, *s: [i, g * self.width + c, *s])

    def merge(self, x: Array) -> Array:
        """(N, G, C / G, ...) -> (N, C, ...)."""
        return x.reindex(self.x.shape, lambda i, c, *s: [i, c // self.width, c % self.width, *s])

    def spread(self, x: Array) -> Array:
        """(N, G) or (N, G, 1, ...) -> (N, C, 1, ...)."""
        ones = [0] * (x.ndim - 2)
        n, c, *rest = self.x.shape
        return x.reindex([n, c, *(as_index(1) for _ in rest)], lambda i, k, *s: [i, k // self.width, *ones])


def per_channel(weight: Array, x: Array) -> Array:
    """(C) -> (1, C, 1, ...) to go with (N, C, ...)."""
    shape: list[IndexLike] = [1, weight.shape[0], *(1 for _ in range(x.ndim - 2))]
    return weight.reindex(shape, lambda n, c, *s: [c])


def channels(weight: Array | None, x: Array) -> Array | None:
    """per_channel of a weight that may be missing."""
    return None if weight is None else per_channel(weight, x)


@composite("aten.native_group_norm.default")
def group_norm(
    x: Array, weight: Array | None, bias: Array | None, n: Index, c: Index, hxw: Index, group: int, eps: float
) -> tuple[Array, Array, Array]:
    """y = (x - mean) * rstd * weight + bias; mean and rstd (N, G) over the channels of a group and all positions."""
    g = Groups(x, group)
    mean, variance = statistics(g.split(x), g.dims)
    rstd = inverse_root(variance, eps)
    y = affine((x - g.spread(mean)) * g.spread(rstd), channels(weight, x), channels(bias, x))
    return y, mean.keep((0, 1)), rstd.keep((0, 1))


@composite("aten.native_group_norm_backward.default")
def group_norm_backward(
    dy: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    weight: Array | None,
    n: Index,
    c: Index,
    hxw: Index,
    group: int,
    output_mask: Sequence[bool],
) -> Triple:
    """dx as for rows, a row being a group; dweight (C) = sum of dy * xhat, dbias (C) = sum of dy."""
    g = Groups(x, group)
    scale = g.spread(rstd)
    xhat = (x - g.spread(mean)) * scale
    dx = None
    if output_mask[0]:
        scaled = dy if weight is None else dy * per_channel(weight, x)
        parts, hat = g.split(scaled), g.split(xhat)
        total = count(parts, g.dims)
        first, second = parts.reduce("sum", g.dims) / total, (parts * hat).reduce("sum", g.dims) / total
        dx = scale * (scaled - g.spread(first) - xhat * g.spread(second))
    others = [d for d in range(x.ndim) if d != 1]
    dweight = (dy * xhat).reduce("sum", others, keepdim=False) if output_mask[1] else None
    return dx, dweight, dy.reduce("sum", others, keepdim=False) if output_mask[2] else None


def batch_dims(x: Array) -> tuple[int, ...]:
    """All dimensions but the channel's."""
    return tuple(d for d in range(x.ndim) if d != 1)


def nothing(dtype: DType) -> Array:
    """An empty output."""
    return full((0,), 0, dtype)


def normalised(x: Array, weight: Array | None, bias: Array | None, mean: Array, rstd: Array) -> Array:
    """(x - mean) * rstd * weight + bias, all by channel."""
    return affine((x - per_channel(mean, x)) * per_channel(rstd, x), channels(weight, x), channels(bias, x))


def batch_statistics(x: Array, eps: float) -> tuple[Array, Array, Array]:
    """Mean, squared distance and 1 / sqrt(variance + eps) of each channel."""
    dims = batch_dims(x)
    mean, squares = (x.reduce("welford", dims, keepdim=False, part=k) for k in (0, 1))
    return mean, squares, inverse_root(squares / count(x, dims), eps)


@composite("aten._native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    x: Array, weight: Array | None, bias: Array | None, training: bool, momentum: float, eps: float
) -> tuple[Array, Array, Array]:
    """y = (x - mean) * rstd * weight + bias with the statistics of the batch; also mean and rstd."""
    mean, _, rstd = batch_statistics(x, eps)
    return normalised(x, weight, bias, mean, rstd), mean, rstd


@composite("aten.native_batch_norm.default")
def batch_norm(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    training: bool,
    momentum: float,
    eps: float,
    context: Context,
) -> tuple[Array, Array, Array]:
    """y by batch statistics in training (refused if it would also write running ones), else by the running ones."""
    if running_mean is None or running_var is None:
        return batch_norm_no_stats(x, weight, bias, training, momentum, eps)
    if training:
        raise CannotConvert("native_batch_norm writes its running statistics in place")
    return batch_norm_inference(x, weight, bias, running_mean, running_var, momentum, eps, context)


@composite("aten._native_batch_norm_legit_no_training.default")
def batch_norm_inference(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: float,
    eps: float,
    context: Context,
) -> tuple[Array, Array, Array]:
    """y = (x - running mean) / sqrt(running var + eps) * weight + bias; the saved statistics are empty."""
    y = normalised(x, weight, bias, running_mean, inverse_root(running_var, eps))
    return y, nothing(context.out[1].dtype), nothing(context.out[2].dtype)


def updated(running: Array, new: Array, momentum: float) -> Array:
    """running * (1 - momentum) + new * momentum."""
    return running * (1 - momentum) + new * momentum


def batch_norm_training(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: float,
    eps: float,
) -> tuple[Array, ...]:
    """y, mean, rstd, and the running statistics after; the running variance takes the unbiased one."""
    mean, squares, rstd = batch_statistics(x, eps)
    unbiased = squares / (count(x, batch_dims(x)) - 1.0)
    means, variances = updated(running_mean, mean, momentum), updated(running_var, unbiased, momentum)
    return normalised(x, weight, bias, mean, rstd), mean, rstd, means, variances


@composite("aten._native_batch_norm_legit_functional.default")
def batch_norm_functional(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    training: bool,
    momentum: float,
    eps: float,
    context: Context,
) -> tuple[Array, ...]:
    """y, mean, rstd and the running statistics as outputs."""
    if training:
        return batch_norm_training(x, weight, bias, running_mean, running_var, momentum, eps)
    y, mean, rstd = batch_norm_inference(x, weight, bias, running_mean, running_var, momentum, eps, context)
    return y, mean, rstd, running_mean, running_var


@composite("aten._batch_norm_with_update_functional.default")
def batch_norm_update(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: float,
    eps: float,
) -> tuple[Array, ...]:
    """The same in training, with an empty reserve as fourth output."""
    y, mean, rstd, means, variances = batch_norm_training(x, weight, bias, running_mean, running_var, momentum, eps)
    return y, mean, rstd, nothing(U8), means, variances


@composite("aten._batch_norm_no_update.default")
def batch_norm_no_update(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    momentum: float,
    eps: float,
    context: Context,
) -> tuple[Array, ...]:
    """Inference, with an empty reserve as fourth output."""
    y, mean, rstd = batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps, context)
    return y, mean, rstd, nothing(U8)


@composite("aten.native_batch_norm_backward.default")
def batch_norm_backward(
    dy: Array,
    x: Array,
    weight: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    save_mean: Array | None,
    save_invstd: Array | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> Triple:
    """dbias = sum(dy), dweight = sum(dy xhat) by channel; dx = w rstd (dy - (dbias + xhat dweight) / n).

    In inference the statistics are constants, so dx = w rstd dy.
    """
    if train:
        mean, rstd = save_mean, save_invstd
    else:
        mean, rstd = running_mean, None if running_var is None else inverse_root(running_var, eps)
    if mean is None or rstd is None:
        raise CannotConvert("batch norm backward without statistics")
    dims = batch_dims(x)
    scale = per_channel(rstd, x)
    xhat = (x - per_channel(mean, x)) * scale
    dbias, dweight = dy.reduce("sum", dims, keepdim=False), (dy * xhat).reduce("sum", dims, keepdim=False)
    if weight is not None:
        scale = scale * per_channel(weight, x)
    if train:
        n = count(x, dims)
        dx = scale * (dy - per_channel(dbias / n, x) - xhat * per_channel(dweight / n, x))
    else:
        dx = scale * dy
    return tuple(v if wanted else None for v, wanted in zip((dx, dweight, dbias), output_mask, strict=True))


@composite("aten.batch_norm_backward.default")
def batch_norm_backward_reserve(
    dy: Array,
    x: Array,
    weight: Array,
    running_mean: Array | None,
    running_var: Array | None,
    save_mean: Array | None,
    save_var: Array | None,
    update: bool,
    eps: float,
    output_mask: Sequence[bool],
    reserve: Array,
) -> Triple:
    """The same, with the reserve that the forward gave."""
    return batch_norm_backward(
        *(dy, x, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask)
    )


def other_dims(x: Array, dim: int) -> tuple[int, ...]:
    """All dimensions but one."""
    return tuple(d for d in range(x.ndim) if d != x.dim(dim))


@composite("aten._weight_norm_interface.default")
def weight_norm(v: Array, g: Array, dim: int = 0) -> tuple[Array, Array]:
    """w = v * g / |v|, the 2-norm over all dimensions but `dim`; also the norms."""
    norms = apply("sqrt", (v * v).reduce("sum", other_dims(v, dim)))
    return v * (g / norms), norms


@composite("aten._weight_norm_interface_backward.default")
def weight_norm_backward(dw: Array, v: Array, g: Array, norms: Array, dim: int) -> tuple[Array, Array]:
    """dg = sum(dw v) / |v|; dv = g / |v| * (dw - v * sum(dw v) / |v|^2)."""
    along = (dw * v).reduce("sum", other_dims(v, dim))
    return (g / norms) * (dw - v * (along / (norms * norms))), along / norms


@composite("aten.renorm.default")
def renorm(x: Array, p: float, dim: int, maxnorm: float) -> Array:
    """Each slice of `dim` scaled so that its p-norm is at most maxnorm."""
    size = norm_of(x, p, other_dims(x, dim), True)

    def factor(norm: Value) -> Value:
        return word("select", norm > maxnorm, maxnorm / (norm + 1e-7), const(1, norm.dtype))

    return x * pointwise(factor, size)
