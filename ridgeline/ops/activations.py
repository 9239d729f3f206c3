"""Activations and their backwards, one element at a time, in fp32 (fp64 for fp64).

Argument names: `grad` is the gradient that comes in, `x` the input of the forward, `y` its output.
"""

import math

from ridgeline.ir.types import BOOL, I64
from ridgeline.ir.value import Like, Value, cast, const, iota, word
from ridgeline.ops.array import Array, from_index, pointwise
from ridgeline.ops.table import Context, composite, scalar


def pick(condition: Value, a: Like, b: Like) -> Value:
    """a where the condition holds, else b; one of them may be a number."""
    typed = a if isinstance(a, Value) else b
    assert isinstance(typed, Value)
    return word("select", condition, *(v if isinstance(v, Value) else const(v, typed.dtype) for v in (a, b)))


@scalar("aten.relu.default")
def relu(x: Value) -> Value:
    """y = max(x, 0)."""
    return word("max", x, 0)


@scalar("aten.threshold.default")
def threshold(x: Value, threshold: float, value: float) -> Value:
    """y = x above the threshold, else value."""
    return pick(x <= threshold, value, x)


@scalar("aten.threshold_backward.default")
def threshold_backward(grad: Value, x: Value, threshold: float) -> Value:
    """dx = grad above the threshold, else 0."""
    return pick(x <= threshold, 0, grad)


@scalar("aten.sigmoid_backward.default")
def sigmoid_backward(grad: Value, y: Value) -> Value:
    """dx = grad * (1 - y) * y."""
    return grad * (1 - y) * y


@scalar("aten.tanh_backward.default")
def tanh_backward(grad: Value, y: Value) -> Value:
    """dx = grad * (1 - y^2)."""
    return grad * (1 - y * y)


@scalar("aten.gelu.default")
def gelu(x: Value, approximate: str = "none") -> Value:
    """y = x * P(normal <= x): by erf, or by tanh(sqrt(2/pi) (x + 0.044715 x^3))."""
    if approximate == "tanh":
        inner = (x + x * x * x * 0.044715) * (math.sqrt(2) * (2 / math.sqrt(math.pi)) * 0.5)
        return x * 0.5 * (1 + word("tanh", inner))
    return x * 0.5 * (1 + word("erf", x * math.sqrt(0.5)))


@scalar("aten.gelu_backward.default")
def gelu_backward(grad: Value, x: Value, approximate: str = "none") -> Value:
    """dx = grad * (P(normal <= x) + x * density(x)), or the derivative of the tanh form."""
    if approximate == "tanh":
        scale, cubic = math.sqrt(2) * (2 / math.sqrt(math.pi)) * 0.5, 0.044715
        t = word("tanh", (x + x * x * x * cubic) * scale)
        inner = (x * x * (3 * cubic) + 1) * scale
        return grad * (0.5 * (1 + t) + x * 0.5 * (1 - t * t) * inner)
    below = 0.5 * (1 + word("erf", x * math.sqrt(0.5)))
    density = word("exp", x * x * -0.5) * (0.5 * (2 / math.sqrt(math.pi)) * math.sqrt(0.5))
    return grad * (below + x * density)


@scalar("aten.silu.default")
def silu(x: Value) -> Value:
    """y = x * sigmoid(x)."""
    return x * word("sigmoid", x)


@scalar("aten.silu_backward.default")
def silu_backward(grad: Value, x: Value) -> Value:
    """dx = grad * s * (1 + x * (1 - s)), s = sigmoid(x)."""
    s = word("sigmoid", x)
    return grad * s * (1 + x * (1 - s))


def tanh_softplus(x: Value) -> Value:
    """tanh(log(1 + e^x)) = n / (n + 2) with n = e^x (e^x + 2): one exp; 1 above 20, where fp64 sees no difference."""
    e = word("exp", x)
    n = e * (e + 2)
    return pick(x > 20, 1, n / (n + 2))


@scalar("aten.mish.default")
def mish(x: Value) -> Value:
    """y = x * tanh(softplus(x))."""
    return x * tanh_softplus(x)


@scalar("aten.mish_backward.default")
def mish_backward(grad: Value, x: Value) -> Value:
    """dx = grad * (t + x * sigmoid(x) * (1 - t^2)), t = tanh(softplus(x))."""
    t = tanh_softplus(x)
    return grad * (t + x * word("sigmoid", x) * (1 - t * t))


@scalar("aten.softplus.default")
def softplus(x: Value, beta: float = 1, threshold: float = 20) -> Value:
    """y = log(1 + e^(beta x)) / beta, x itself above the threshold."""
    return pick(x * beta > threshold, x, word("log1p", word("exp", x * beta)) / beta)


@scalar("aten.softplus_backward.default")
def softplus_backward(grad: Value, x: Value, beta: float, threshold: float) -> Value:
    """dx = grad * sigmoid(beta x), grad itself above the threshold."""
    return pick(x * beta > threshold, grad, grad * word("sigmoid", x * beta))


@composite("aten.log_sigmoid_forward.default")
def log_sigmoid(x: Array) -> tuple[Array, Array]:
    """y = min(x, 0) - log(1 + e^-|x|), and e^-|x| for the backward (which does not read it)."""
    small = pointwise(lambda v: word("exp", word("neg", word("abs", v))), x)
    return pointwise(lambda v, s: word("min", v, 0) - word("log1p", s), x, small), small


@scalar("aten.log_sigmoid_backward.default")
def log_sigmoid_backward(grad: Value, x: Value, buffer: Value) -> Value:
    """dx = grad * sigmoid(-x); computed again rather than read from `buffer`."""
    return grad * word("sigmoid", word("neg", x))


@scalar("aten.elu.default")
def elu(x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Value:
    """y = scale * x above 0, else scale * alpha * (e^(input_scale x) - 1)."""
    return pick(x > 0, x * scale, word("expm1", x * input_scale) * (alpha * scale))


@scalar("aten.elu_backward.default")
def elu_backward(grad: Value, alpha: float, scale: float, input_scale: float, is_result: bool, x: Value) -> Value:
    """dx = grad * scale above 0, else grad * input_scale * scale * alpha * e^(input_scale x)."""
    slope = alpha * scale
    below = (
        grad * input_scale * (x + slope) if is_result else grad * (input_scale * slope) * word("exp", x * input_scale)
    )
    return pick(x <= 0, below, grad * scale)


@scalar("aten.celu.default")
def celu(x: Value, alpha: float = 1) -> Value:
    """y = x above 0, else alpha * (e^(x / alpha) - 1)."""
    return pick(x > 0, x, word("expm1", x / alpha) * alpha)


@scalar("aten.hardtanh.default")
def hardtanh(x: Value, min_val: float = -1, max_val: float = 1) -> Value:
    """y = min(max(x, min_val), max_val)."""
    return word("min", word("max", x, min_val), max_val)


@scalar("aten.hardtanh_backward.default")
def hardtanh_backward(grad: Value, x: Value, min_val: float, max_val: float) -> Value:
    """dx = grad strictly between the ends, else 0."""
    return pick((x <= min_val) | (x >= max_val), 0, grad)


def ramp(x: Value) -> Value:
    """min(max(x + 3, 0), 6)."""
    return word("min", word("max", x + 3, 0), 6)


@scalar("aten.hardsigmoid.default")
def hardsigmoid(x: Value) -> Value:
    """y = min(max(x + 3, 0), 6) / 6."""
    return ramp(x) * (1 / 6)


@scalar("aten.hardsigmoid_backward.default")
def hardsigmoid_backward(grad: Value, x: Value) -> Value:
    """dx = grad / 6 strictly between -3 and 3, else 0."""
    return pick((x > -3) & (x < 3), grad * (1 / 6), 0)


@scalar("aten.hardswish.default")
def hardswish(x: Value) -> Value:
    """y = x * min(max(x + 3, 0), 6) / 6."""
    return x * ramp(x) * (1 / 6)


@scalar("aten.hardswish_backward.default")
def hardswish_backward(grad: Value, x: Value) -> Value:
    """dx = 0 up to -3, grad from 3, grad * (x / 3 + 1/2) between."""
    return pick(x <= -3, 0, pick(x < 3, grad * (x * (1 / 3) + 0.5), grad))


@scalar("aten.leaky_relu.default")
def leaky_relu(x: Value, negative_slope: float = 0.01) -> Value:
    """y = x above 0, else x * negative_slope."""
    return pick(x > 0, x, x * negative_slope)


@scalar("aten.leaky_relu_backward.default")
def leaky_relu_backward(grad: Value, x: Value, negative_slope: float, self_is_result: bool) -> Value:
    """dx = grad above 0, else grad * negative_slope."""
    return pick(x > 0, grad, grad * negative_slope)


@scalar("aten.rrelu_with_noise_backward.default")
def rrelu_backward(
    grad: Value, x: Value, noise: Value, lower: float, upper: float, training: bool, self_is_result: bool
) -> Value:
    """dx = grad * noise in training (where lower and upper differ), else leaky_relu's with their mean."""
    if training and upper - lower > 1e-6:
        return grad * noise
    return pick(x > 0, grad, grad * ((lower + upper) / 2))


@scalar("aten._prelu_kernel.default")
def prelu(x: Value, weight: Value) -> Value:
    """y = x above 0, else x * weight."""
    return pick(x > 0, x, weight * x)


@composite("aten._prelu_kernel_backward.default")
def prelu_backward(grad: Array, x: Array, weight: Array) -> tuple[Array, Array]:
    """dx = grad above 0, else grad * weight; dweight (not yet summed) = 0 above 0, else grad * x."""
    dx = pointwise(lambda g, v, w: pick(v > 0, g, w * g), grad, x, weight)
    return dx, pointwise(lambda g, v: pick(v > 0, 0, v * g), grad, x)


@scalar("aten.hardshrink.default")
def hardshrink(x: Value, lambd: float = 0.5) -> Value:
    """y = 0 in [-lambd, lambd], else x."""
    return pick((x >= -lambd) & (x <= lambd), 0, x)


@scalar("aten.hardshrink_backward.default")
def hardshrink_backward(grad: Value, x: Value, lambd: float) -> Value:
    """dx = 0 in [-lambd, lambd], else grad."""
    return pick((x >= -lambd) & (x <= lambd), 0, grad)


@scalar("aten.softshrink.default")
def softshrink(x: Value, lambd: float = 0.5) -> Value:
    """y = x - lambd above lambd, x + lambd below -lambd, else 0 (NaN stays)."""
    return pick(x > lambd, x - lambd, pick(x < -lambd, x + lambd, x * 0))


@scalar("aten.softshrink_backward.default")
def softshrink_backward(grad: Value, x: Value, lambd: float) -> Value:
    """dx = 0 in [-lambd, lambd], else grad."""
    return pick((x >= -lambd) & (x <= lambd), 0, grad)


@scalar("aten.logit.default")
def logit(x: Value, eps: float | None = None) -> Value:
    """y = log(x / (1 - x)), x kept in [eps, 1 - eps]."""
    if eps is not None:
        x = pick(x < eps, eps, pick(x > 1 - eps, 1 - eps, x))
    return word("log", x / (1 - x))


@scalar("aten.logit_backward.default")
def logit_backward(grad: Value, x: Value, eps: float | None = None) -> Value:
    """dx = grad / (x (1 - x)) inside [eps, 1 - eps] (without eps NaN outside [0, 1]), else 0."""
    low, high, outside = (0, 1, math.nan) if eps is None else (eps, 1 - eps, 0)
    return pick((x < low) | (x > high), outside, grad / (x * (1 - x)))


@scalar("aten.native_dropout_backward.default", "aten._masked_scale.default", cast="none")
def dropout_backward(grad: Value, mask: Value, scale: float, context: Context) -> Value:
    """dx = grad * mask * scale."""
    dtype = context.out[0].dtype.compute
    grad = cast(grad, dtype)
    if mask.dtype is BOOL:
        return pick(mask, grad * scale, grad * 0)
    return grad * cast(mask, dtype) * scale


def halves(x: Array, dim: int) -> tuple[Array, Array]:
    """The two halves of a dimension of even size."""
    d = x.dim(dim)
    half = x.shape[d] // 2
    shape = [half if k == d else s for k, s in enumerate(x.shape)]
    first = x.reindex(shape, lambda *i: i)
    return first, x.reindex(shape, lambda *i: [p + half if k == d else p for k, p in enumerate(i)])


@composite("aten.glu.default")
def glu(x: Array, dim: int = -1) -> Array:
    """y = a * sigmoid(b) for the halves a, b of a dimension."""
    return pointwise(lambda a, b: a * word("sigmoid", b), *halves(x, dim))


@composite("aten.glu_backward.default")
def glu_backward(grad: Array, x: Array, dim: int) -> Array:
    """Halves of dx: grad * s and grad * a * s (1 - s), s = sigmoid(b)."""
    d = x.dim(dim)
    half = x.shape[d] // 2

    def fold_back(array: Array) -> Array:  # position p of x -> position p % half of a half
        return array.reindex(x.shape, lambda *i: [p % half if k == d else p for k, p in enumerate(i)])

    def body(position: Value, g: Value, a: Value, b: Value) -> Value:
        s = word("sigmoid", b)
        return pick(position < iota(half), g * s, g * s * (1 - s) * a)

    position = from_index(x.shape, lambda *i: i[d], I64)
    return pointwise(body, position, fold_back(grad), *map(fold_back, halves(x, dim)))
