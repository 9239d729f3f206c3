"""Losses and their backwards. `reduction`: 0 none, 1 mean, 2 sum; means divide by the count, nll by the total weight.

Backwards gather: each element of the gradient is computed where it lies, nothing is scattered.
"""

from collections.abc import Callable, Sequence

from ridgeline.ir.index import Index, as_index
from ridgeline.ir.value import Value, cast, const, iota, word
from ridgeline.ops.activations import pick
from ridgeline.ops.array import Array, Operand, count, full, pointwise, positions, read
from ridgeline.ops.table import composite

NONE, MEAN, SUM = 0, 1, 2


def reduced(loss: Array, reduction: int) -> Array:
    """The loss of each element, their mean or their sum."""
    if reduction == NONE:
        return loss
    total = loss.reduce("sum", None, keepdim=False)
    return total / count(loss, range(loss.ndim)) if reduction == MEAN else total


def share(x: Array, reduction: int) -> Operand:
    """What the gradient of one element counts: 1 / count for a mean."""
    if reduction != MEAN:
        return 1.0
    size = x.numel.const
    return 1 / count(x, range(x.ndim)) if size is None else 1 / size if size else 1.0


def backward(body: Callable[..., Value], grad: Array, x: Array, *rest: Array, reduction: int) -> Array:
    """body(x, rest...) * grad * share at each element."""
    slope = pointwise(body, x, *rest)
    return slope * (grad * share(slope, reduction))


@composite("aten.mse_loss.default")
def mse_loss(x: Array, y: Array, reduction: int = MEAN) -> Array:
    """(x - y)^2."""
    return reduced(pointwise(lambda a, b: (a - b) * (a - b), x, y), reduction)


@composite("aten.mse_loss_backward.default")
def mse_loss_backward(grad: Array, x: Array, y: Array, reduction: int) -> Array:
    """dx = 2 (x - y) * grad."""
    return backward(lambda a, b: (a - b) * 2, grad, x, y, reduction=reduction)


@composite("aten.smooth_l1_loss.default")
def smooth_l1_loss(x: Array, y: Array, reduction: int = MEAN, beta: float = 1.0) -> Array:
    """z^2 / (2 beta) for z = |x - y| under beta, else z - beta / 2."""

    def body(a: Value, b: Value) -> Value:
        z = word("abs", a - b)
        return pick(z < beta, z * z * (0.5 / beta), z - 0.5 * beta) if beta else z

    return reduced(pointwise(body, x, y), reduction)


@composite("aten.smooth_l1_loss_backward.default")
def smooth_l1_loss_backward(grad: Array, x: Array, y: Array, reduction: int, beta: float) -> Array:
    """dx = grad * (x - y) / beta, kept in -1 .. 1."""

    def body(a: Value, b: Value) -> Value:
        d = a - b
        inner = d / beta if beta else d
        return pick(d <= -beta, -1, pick(d >= beta, 1, inner))

    return backward(body, grad, x, y, reduction=reduction)


@composite("aten.huber_loss.default")
def huber_loss(x: Array, y: Array, reduction: int = MEAN, delta: float = 1.0) -> Array:
    """z^2 / 2 for z = |x - y| up to delta, else delta * (z - delta / 2)."""

    def body(a: Value, b: Value) -> Value:
        z = word("abs", a - b)
        return pick(z <= delta, z * z * 0.5, (z - 0.5 * delta) * delta)

    return reduced(pointwise(body, x, y), reduction)


@composite("aten.huber_loss_backward.default")
def huber_loss_backward(grad: Array, x: Array, y: Array, reduction: int, delta: float) -> Array:
    """dx = grad * (x - y), kept in -delta .. delta."""

    def body(a: Value, b: Value) -> Value:
        d = a - b
        return pick(d < -delta, -delta, pick(d > delta, delta, d))

    return backward(body, grad, x, y, reduction=reduction)


@composite("aten.soft_margin_loss.default")
def soft_margin_loss(x: Array, y: Array, reduction: int = MEAN) -> Array:
    """log(1 + e^(-x y))."""
    return reduced(pointwise(lambda a, b: word("log1p", word("exp", -a * b)), x, y.cast(x.dtype)), reduction)


@composite("aten.soft_margin_loss_backward.default")
def soft_margin_loss_backward(grad: Array, x: Array, y: Array, reduction: int) -> Array:
    """dx = -y * sigmoid(-x y) * grad."""

    def body(a: Value, b: Value) -> Value:
        return -b * word("sigmoid", -a * b)

    return backward(body, grad, x, y.cast(x.dtype), reduction=reduction)


def weighted(x: Array, weight: Array | None) -> Array:
    """x * weight, if there is one."""
    return x if weight is None else x * weight


@composite("aten.binary_cross_entropy.default")
def binary_cross_entropy(x: Array, y: Array, weight: Array | None = None, reduction: int = MEAN) -> Array:
    """-(y log x + (1 - y) log(1 - x)), each logarithm at least -100."""

    def body(p: Value, t: Value) -> Value:
        return (t - 1) * word("max", word("log1p", -p), -100) - t * word("max", word("log", p), -100)

    return reduced(weighted(pointwise(body, x, y), weight), reduction)


@composite("aten.binary_cross_entropy_backward.default")
def binary_cross_entropy_backward(
    grad: Array, x: Array, y: Array, weight: Array | None = None, reduction: int = MEAN
) -> Array:
    """dx = (x - y) / max(x (1 - x), 1e-12) * grad."""
    out = backward(lambda p, t: (p - t) / word("max", (1 - p) * p, 1e-12), grad, x, y, reduction=reduction)
    return weighted(out, weight)


@composite("aten.binary_cross_entropy_with_logits.default")
def binary_cross_entropy_with_logits(
    x: Array, y: Array, weight: Array | None = None, pos_weight: Array | None = None, reduction: int = MEAN
) -> Array:
    """(1 - y) x + (1 + (pos_weight - 1) y) * (log(1 + e^-|x|) + max(-x, 0))."""
    tail = pointwise(lambda a: word("log1p", word("exp", -word("abs", a))) + word("max", -a, 0), x)
    if pos_weight is not None:
        tail = tail * ((pos_weight - 1.0) * y + 1.0)
    return reduced(weighted((1.0 - y) * x + tail, weight), reduction)


class Target:
    """The classes of nll_loss: x is (C), (N, C) or (N, C, H, W), the target the same without C."""

    def __init__(self, x: Array, target: Array, weight: Array | None, ignore_index: int) -> None:
        self.x, self.target, self.weight = x, target, weight
        self.ignore = ignore_index
        self.dim = 0 if x.ndim == 1 else 1
        self.classes = x.shape[self.dim]

    def kept(self, target: Value) -> Value:
        """Whether a target counts."""
        return word("ne", target, self.ignore)

    def position(self, target: Value) -> Index:
        """The class of a target, 0 for one that does not count."""
        return read(word("select", self.kept(target), target, const(0, target.dtype)), self.classes)

    def weights(self) -> Array:
        """The weight of each target: 0 for one that does not count."""
        dtype = self.x.dtype

        def body(t: Value) -> Value:
            one = const(1, dtype) if self.weight is None else self.weight.at(self.position(t))
            return word("select", self.kept(t), one, const(0, dtype))

        return pointwise(body, self.target)

    def picked(self) -> Array:
        """x at the class of each target."""
        axes, t = self.target.axes, self.target.value
        i = positions(axes)
        value = self.x.at(*i[: self.dim], self.position(t), *i[self.dim :])
        return Array(axes, word("select", self.kept(t), value, const(0, value.dtype)))


@composite("aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default")
def nll_loss(x: Array, target: Array, weight: Array | None, reduction: int, ignore_index: int) -> tuple[Array, Array]:
    """-w[t] x[..., t, ...], 0 where t is ignored; the mean divides by the total weight, the second output."""
    classes = Target(x, target, weight, ignore_index)
    weights = classes.weights()
    loss = -classes.picked() if weight is None else -(classes.picked() * weights)
    if reduction == NONE:
        return loss, full((), 0, x.dtype)
    total = weights.reduce("sum", None, keepdim=False)
    out = loss.reduce("sum", None, keepdim=False)
    return (out / total if reduction == MEAN else out), total


@composite("aten.nll_loss_backward.default", "aten.nll_loss2d_backward.default")
def nll_loss_backward(
    grad: Array,
    x: Array,
    target: Array,
    weight: Array | None,
    reduction: int,
    ignore_index: int,
    total_weight: Array,
) -> Array:
    """dx[..., c, ...] = -w[t] grad where c is the target and counts, else 0; a mean divides by the total weight."""
    classes = Target(x, target, weight, ignore_index)
    slope = -classes.weights()
    slope = slope * (grad / total_weight if reduction == MEAN else grad)
    index = positions(x.axes)
    others: Sequence[Index] = [i for d, i in enumerate(index) if d != classes.dim]
    if x.ndim == 1:
        others = []
    c = cast(iota(index[classes.dim]), target.dtype)
    hit = word("eq", c, target.at(*others[: target.ndim]))
    value = slope.at(*others[: slope.ndim])
    return Array(x.axes, word("select", hit, value, const(0, value.dtype)))


def margin_terms(x: Array, target: Array, p: float, margin: float, weight: Array | None) -> tuple[Array, Array, Array]:
    """For (N, C): the distances z = margin - x[t] + x[c], whether c is the target, and the weight of each row."""
    wide = x if x.ndim == 2 else x.reindex([as_index(1), x.numel], lambda n, c: [c][: x.ndim])
    t = target if target.ndim == 1 else target.reindex([as_index(1)], lambda n: [])
    classes = Target(wide, t, weight, -(2**62))
    axes = wide.axes
    row, column = positions(axes)
    own = classes.picked().at(row)
    distance = Array(axes, wide.value - own + margin)
    return distance, Array(axes, word("eq", iota(column), cast(t.at(row), iota(column).dtype))), classes.weights()


@composite("aten.multi_margin_loss.default")
def multi_margin_loss(
    x: Array, target: Array, p: float = 1, margin: float = 1, weight: Array | None = None, reduction: int = MEAN
) -> Array:
    """sum over c != t of w[t] max(0, margin - x[t] + x[c])^p / C."""
    distance, own, weights = margin_terms(x, target, p, margin, weight)
    size = count(distance, (1,))
    hinge = pointwise(lambda z, o: pick((z > 0) & ~o, z if p == 1 else z * z, 0), distance, own)
    loss = hinge.reduce("sum", 1, keepdim=False) * weights / size
    if reduction == NONE and target.ndim == 0:
        return loss.reduce("sum", None, keepdim=False)
    return reduced(loss, reduction)


@composite("aten.multi_margin_loss_backward.default")
def multi_margin_loss_backward(
    grad: Array,
    x: Array,
    target: Array,
    p: float,
    margin: float,
    weight: Array | None = None,
    reduction: int = MEAN,
) -> Array:
    """dx[c] = w[t] p max(0, z)^(p-1) / C for c != t, and minus their sum at the target."""
    distance, own, weights = margin_terms(x, target, p, margin, weight)
    size = count(distance, (1,))
    slope = pointwise(lambda z, o: pick((z > 0) & ~o, const(1, z.dtype) if p == 1 else z * 2, 0), distance, own)
    total = slope.reduce("sum", 1)
    rows = weights.reindex([weights.shape[0], as_index(1)], lambda n, c: [n])
    scale = rows * (1.0 / size) * share(weights, reduction)
    out = pointwise(lambda s, o, sum_: word("select", o, -sum_, s), slope, own, total) * scale
    rate = grad if grad.ndim == 0 else grad.reindex([grad.shape[0], as_index(1)], lambda n, c: [n])
    out = out * rate
    return out if x.ndim == 2 else out.reindex(x.shape, lambda *i: [0, *(i or (0,))])
