"""Resampling: nearest, linear and cubic, both ways, in one to three dimensions.

One dimension of n positions becomes m. Output o reads a few positions (taps) with weights that depend on o alone:
one for nearest, two for linear, four for cubic. Backward, input i gathers from the outputs that may tap it; which
ones is found at conversion from the sizes, so those must be known. Arithmetic is fp32 (fp64 for fp64), as in ATen.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.base.errors import CannotConvert
from ridgeline.ir.index import Axis, Index, as_index
from ridgeline.ir.types import F32, I64, DType
from ridgeline.ir.value import Value, cast, const, fold, fresh, iota, word
from ridgeline.ops.array import Array, convert_number, every, guarded, inside, make_axes, positions, read
from ridgeline.ops.table import Context, composite

CUBIC = -0.75  # the free coefficient of the cubic kernel, as in ATen (UpSample.h)

Tap = tuple[Index | Value, Value | None]  # a position (an index, or a number to read at) and its weight (None: 1)


@dataclass(frozen=True, slots=True)
class Line:
    """One dimension: n positions become m, by a scale (input steps per output step)."""

    n: int
    m: int
    kind: str  # "nearest" | "nearest-exact" | "linear" | "cubic"
    align: bool
    scale: float
    dtype: DType

    def source(self, o: int) -> float:
        """Where output o lies in the input, in the arithmetic of the kernel."""
        scale = convert_number(self.scale, self.dtype)
        if self.kind == "nearest" or self.align:
            return float(convert_number(o * scale, self.dtype))
        shifted = float(convert_number((o + 0.5) * scale, self.dtype))
        return shifted if self.kind == "nearest-exact" else shifted - 0.5

    def place(self, o: Index) -> Index | None:
        """The position of nearest as an index expression; None where no formula gives what ATen computes."""
        ratio = o * self.n // self.m if self.kind == "nearest" else (o * 2 + 1) * self.n // (2 * self.m)
        exact = [
            (k * self.n // self.m) if self.kind == "nearest" else (2 * k + 1) * self.n // (2 * self.m)
            for k in range(self.m)
        ]
        return ratio if exact == [min(math.floor(self.source(k)), self.n - 1) for k in range(self.m)] else None

    def taps(self, o: Index) -> list[Tap]:
        """The positions that output o reads, and their weights."""
        if self.n == self.m and (self.kind in ("nearest", "nearest-exact", "linear")):
            return [(o, None)]
        if self.kind.startswith("nearest"):
            place = self.place(o)
            return [(place if place is not None else word("floor", self.position(o)), None)]
        where = self.position(o)
        below = word("min", word("floor", where), self.n - 1)
        t = word("min", word("max", where - below, 0), 1)
        if self.kind == "linear":
            return [(below, 1 - t), (below + 1, t)]
        return [(below + k, w) for k, w in zip((-1, 0, 1, 2), cubic_weights(t), strict=True)]

    def position(self, o: Index) -> Value:
        """`source` as a value."""
        at = cast(iota(o), self.dtype)
        if self.kind == "nearest" or self.align:
            return at * self.scale
        shifted = (at + 0.5) * self.scale
        if self.kind == "nearest-exact":
            return shifted
        return word("max", shifted - 0.5, 0) if self.kind == "linear" else shifted - 0.5

    def reach(self) -> tuple[int, int]:
        """(back, many): input i is tapped only by outputs from i m // n - back on, `many` of them."""
        slack = 1e-3  # the kernel's rounding may move a position across a whole number
        low, high = [self.m] * self.n, [-1] * self.n
        for o in range(self.m):
            where = self.source(o)
            first, last = math.floor(where - slack), math.floor(where + slack)
            extra = {"linear": (0, 1), "cubic": (-1, 2)}.get(self.kind, (0, 0))
            for i in range(first + extra[0], last + extra[1] + 1):
                i = min(max(i, 0), self.n - 1)
                low[i], high[i] = min(low[i], o), max(high[i], o)
        start = [i * self.m // self.n for i in range(self.n)]
        back = max((start[i] - low[i] for i in range(self.n) if high[i] >= 0), default=0)
        many = max((high[i] - (start[i] - back) + 1 for i in range(self.n) if high[i] >= 0), default=1)
        return back, max(many, 1)


def cubic_weights(t: Value) -> list[Value]:
    """Weights of the four positions around t in 0 .. 1."""

    def near(x: Value) -> Value:  # |x| <= 1
        return ((CUBIC + 2) * x - (CUBIC + 3)) * x * x + 1

    def far(x: Value) -> Value:  # 1 < |x| < 2
        return ((CUBIC * x - 5 * CUBIC) * x + 8 * CUBIC) * x - 4 * CUBIC

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def line(n: Index, m: Index, kind: str, align: bool, scale: float | None, dtype: DType) -> Line:
    """A dimension of known sizes."""
    if n.const is None or m.const is None:
        raise CannotConvert("resampling of a symbolic size")
    if align:
        step = (n.const - 1) / (m.const - 1) if m.const > 1 else 0.0
    else:
        step = 1 / scale if scale is not None and scale > 0 else n.const / m.const
    return Line(n.const, m.const, kind, align, step, dtype if dtype.is_float else F32)


def weighed(value: Value, weight: Value | None) -> Value:
    """value * weight."""
    return value if weight is None else value * weight


def sampled(x: Array, lines: Sequence[Line], out: Sequence[Index]) -> Array:
    """Sums over the taps of each dimension, the last one innermost."""
    axes = make_axes(out)
    o = positions(axes)
    lead = len(out) - len(lines)

    def along(d: int, at: list[Index]) -> Value:
        if d == len(lines):
            return x.at(*at)
        size = x.shape[lead + d]
        total: Value | None = None
        for place, weight in lines[d].taps(o[lead + d]):
            index = place if isinstance(place, Index) else read(cast(place, I64), size)
            term = weighed(along(d + 1, [*at, index]), weight)
            total = term if total is None else total + term
        assert total is not None
        return total

    return Array(axes, along(0, list(o[:lead])))


def weight_of(source: Line, o: Index, i: Index) -> Value | None:
    """How much output o takes of input i; None where it is all of it, always."""
    total: Value | None = None
    dtype = source.dtype
    for place, weight in source.taps(o):
        if isinstance(place, Index):
            if place is i:
                return weight
            hit = word("eq", iota(place), iota(i))
        else:
            inner = word("min", word("max", place, 0), source.n - 1)
            hit = word("eq", inner, cast(iota(i), dtype))
        part = word("select", hit, const(1, dtype) if weight is None else weight, const(0, dtype))
        total = part if total is None else total + part
    return total


def gathered(grad: Array, lines: Sequence[Line], shape: Sequence[Index]) -> Array:
    """dx[i] = sum of grad[o] * weight(o, i) over the outputs that may tap i."""
    axes = make_axes(shape)
    i = positions(axes)
    lead = len(shape) - len(lines)
    at, guards, bound = list(i[:lead]), [], []
    weights: list[Value | None] = []
    for d, source in enumerate(lines):
        back, many = source.reach()
        step: Axis | None = fresh(many) if many > 1 else None
        o = i[lead + d] * source.m // source.n - back + (0 if step is None else as_index(step))
        at.append(o)
        guards.append(inside(o, source.m))
        weights.append(weight_of(source, o, i[lead + d]))
        if step is not None:
            bound.append(step)
    value = guarded(grad, at, every(guards))
    for weight in weights:
        value = weighed(value, weight)
    return Array(axes, fold("sum", bound, value) if bound else value)


def scales_of(scales: Sequence[Any], n: int) -> list[float | None]:
    """A scale, or None, for each dimension."""
    return [*scales, *[None] * n][:n]


Maker = Callable[[Sequence[Index], Sequence[Index], bool, Sequence[Any], DType], list[Line]]


def maker(kind: str, n: int) -> Maker:
    """The lines of n dimensions."""

    def make(x: Sequence[Index], out: Sequence[Index], align: bool, scales: Sequence[Any], dtype: DType) -> list[Line]:
        parts = zip(x[-n:], out[-n:], scales_of(scales, n), strict=True)
        return [line(a, b, kind, align, s, dtype) for a, b, s in parts]

    return make


def floats(x: Array) -> None:
    """Weighted sums of integers round in ATen's own way."""
    if not x.dtype.is_float:
        raise CannotConvert("interpolation of integers")


def _nearest(name: str, kind: str, n: int) -> None:
    make = maker(kind, n)

    @composite(f"aten.{name}{n}d.default")
    def upsample_nearest(x: Array, output_size: Any, *scales: float | None, context: Context) -> Array:
        """y[o] = x[floor(o n / m)], or of (o + 1/2) n / m for nearest-exact."""
        out = context.out[0].shape
        return sampled(x, make(x.shape, out, False, scales, x.dtype), out)

    @composite(f"aten.{name}{n}d_backward.default")
    def upsample_nearest_backward(
        grad: Array, output_size: Any, input_size: Any, *scales: float | None, context: Context
    ) -> Array:
        """dx[i] = sum of grad[o] over the outputs o that copied i."""
        shape = context.out[0].shape
        return gathered(grad, make(shape, grad.shape, False, scales, grad.dtype), shape)


def _smooth(name: str, kind: str, n: int) -> None:
    make = maker(kind, n)

    @composite(f"aten.{name}.default")
    def upsample(x: Array, output_size: Any, align_corners: bool, *scales: float | None, context: Context) -> Array:
        """y[o] = sum of x[taps of o] * weights, each dimension by itself."""
        floats(x)
        out = context.out[0].shape
        return sampled(x, make(x.shape, out, align_corners, scales, x.dtype), out)

    @composite(f"aten.{name}_backward.default")
    def upsample_backward(
        grad: Array, output_size: Any, input_size: Any, align_corners: bool, *scales: float | None, context: Context
    ) -> Array:
        """dx[i] = sum of grad[o] * weight(o, i)."""
        shape = context.out[0].shape
        return gathered(grad, make(shape, grad.shape, align_corners, scales, grad.dtype), shape)


for _n in (1, 2, 3):
    _nearest("upsample_nearest", "nearest", _n)
    _nearest("_upsample_nearest_exact", "nearest-exact", _n)
for _name, _kind, _n in (("linear1d", "linear", 1), ("bilinear2d", "linear", 2), ("trilinear3d", "linear", 3)):
    _smooth(f"upsample_{_name}", _kind, _n)
_smooth("upsample_bicubic2d", "cubic", 2)
