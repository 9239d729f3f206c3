"""Normalisations and softmax, both ways: kept whole at capture, each an expression over rows.

Statistics are computed in fp32 (fp64 for fp64).
"""

from ridgeline.ir.types import DType
from ridgeline.ops.array import Array, apply, count
from ridgeline.ops.table import composite


@composite("aten._softmax.default")
def softmax(x: Array, dim: int, half_to_float: bool) -> Array:
    """y = exp(x - max) / sum(exp(x - max)) along `dim`; one online pass, one store pass."""
    if not x.ndim:
        return x * 0.0 + 1.0
    top = x.reduce("maxsumexp", dim)
    total = x.reduce("maxsumexp", dim, part=1)
    return apply("exp", x - top) / total


@composite("aten._log_softmax.default")
def log_softmax(x: Array, dim: int, half_to_float: bool) -> Array:
    """y = x - max - log(sum(exp(x - max))) along `dim`."""
    if not x.ndim:
        return x * 0.0
    top = x.reduce("maxsumexp", dim)
    total = x.reduce("maxsumexp", dim, part=1)
    return x - top - apply("log", total)


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


@composite("aten.native_layer_norm.default")
def layer_norm(
    x: Array, normalized_shape: tuple[int, ...], weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array]:
    """y = (x - mean) * rstd * weight + bias over the trailing dimensions; also mean and rstd."""
    dims = trailing(x, len(normalized_shape))
    mean = x.reduce("welford", dims)
    variance = x.reduce("welford", dims, part=1) / count(x, dims)
    rstd = apply("rsqrt", variance + eps)
    y = (x - mean) * rstd
    if weight is not None:
        y = y * weight
    if bias is not None:
        y = y + bias
    return y, mean, rstd
