"""Special functions, one element at a time: Bessel functions, entropies, normal quantiles, in straight-line words.

Approximations are those of Cephes (ops/cephes.py), as in ATen; every branch is computed and one chosen. What needs a
loop of unknown length (zeta, incomplete gamma, orthogonal polynomials of a tensor's degree) stays with ATen.
"""

import math
from collections.abc import Callable, Sequence

from ridgeline.base.errors import CannotConvert
from ridgeline.ir.types import F64
from ridgeline.ir.value import Like, Value, const, word
from ridgeline.ops import cephes
from ridgeline.ops.activations import pick
from ridgeline.ops.scalar import dtype_of, value_of
from ridgeline.ops.table import scalar

TWO_OVER_PI = 2 / math.pi


def chebyshev(y: Value, coefficients: Sequence[float]) -> Value:
    """The Chebyshev sum by Clenshaw's rule; in fp32 without the terms that it cannot see."""
    kept = coefficients if y.dtype is F64 else [c for c in coefficients if abs(c) > 1e-9 * abs(coefficients[-1])]
    b0, b1, b2 = const(kept[0], y.dtype), const(0, y.dtype), const(0, y.dtype)
    for c in kept[1:]:
        b0, b1, b2 = y * b0 - b1 + c, b0, b1
    return 0.5 * (b0 - b2)


def polynomial(x: Value, coefficients: Sequence[float]) -> Value:
    """The polynomial with these coefficients, highest power first."""
    out = const(coefficients[0], x.dtype)
    for c in coefficients[1:]:
        out = out * x + c
    return out


def ratio(x: Value, over: Sequence[float], under: Sequence[float]) -> Value:
    """One polynomial over another."""
    return polynomial(x, over) / polynomial(x, under)


def log_product(x: Like, y: Like, shift: bool) -> Value:
    """x * log(y), or x * log(1 + y): 0 where x is 0, NaN where y is."""
    dtype = dtype_of(x, y)
    a, b = value_of(x, dtype), value_of(y, dtype)
    return pick(word("isnan", b), b, pick(word("eq", a, 0), 0, a * word("log1p" if shift else "log", b)))


@scalar("aten.xlogy.Tensor", "aten.xlogy.Scalar_Self", "aten.xlogy.Scalar_Other")
def xlogy(x: Like, y: Like) -> Value:
    """x * log(y), 0 where x is 0."""
    return log_product(x, y, False)


@scalar(*(f"aten.special_xlog1py.{o}" for o in ("default", "self_scalar", "other_scalar")))
def xlog1py(x: Like, y: Like) -> Value:
    """x * log(1 + y), 0 where x is 0."""
    return log_product(x, y, True)


@scalar("aten.special_entr.default")
def entr(x: Value) -> Value:
    """-x log(x) above 0, 0 at 0, -inf below."""
    inner = pick(x > 0, -x * word("log", x), pick(word("eq", x, 0), 0, const(-math.inf, x.dtype)))
    return pick(word("isnan", x), x, inner)


@scalar("aten.sinc.default")
def sinc(x: Value) -> Value:
    """sin(pi x) / (pi x), 1 at 0."""
    p = x * math.pi
    return pick(word("eq", x, 0), 1, word("sin", p) / p)


@scalar("aten.special_spherical_bessel_j0.default")
def spherical_j0(x: Value) -> Value:
    """sin(x) / x, by its series near 0."""
    series = polynomial(x * x, [(-1) ** k / math.factorial(2 * k + 1) for k in range(6, -1, -1)])
    return pick(word("isinf", x), 0, pick(word("abs", x) < 0.5, series, word("sin", x) / x))


def scaled_i(x: Value, near: Sequence[float], far: Sequence[float]) -> tuple[Value, Value]:
    """|x| and the Chebyshev form of exp(-|x|) I(|x|), for up to 8 and beyond (without a factor x for order 1)."""
    a = word("abs", x)
    beyond = chebyshev(32 / a - 2, far) / word("sqrt", a)
    return a, pick(a <= 8, chebyshev(a * 0.5 - 2, near), beyond)


def i0e(x: Value) -> Value:
    """exp(-|x|) I0(x)."""
    return scaled_i(x, cephes.I0E_NEAR, cephes.I0E_FAR)[1]


def i1e(x: Value) -> Value:
    """exp(-|x|) I1(x), odd in x."""
    a, value = scaled_i(x, cephes.I1E_NEAR, cephes.I1E_FAR)
    out = pick(a <= 8, value * a, value)
    return pick(x < 0, -out, out)


@scalar("aten.special_i0e.default")
def special_i0e(x: Value) -> Value:
    """exp(-|x|) I0(x)."""
    return i0e(x)


@scalar("aten.special_i1e.default")
def special_i1e(x: Value) -> Value:
    """exp(-|x|) I1(x)."""
    return i1e(x)


@scalar("aten.i0.default", "aten.special_modified_bessel_i0.default")
def i0(x: Value) -> Value:
    """The modified Bessel function of the first kind, order 0."""
    return word("exp", word("abs", x)) * i0e(x)


@scalar("aten.special_i1.default", "aten.special_modified_bessel_i1.default")
def i1(x: Value) -> Value:
    """The modified Bessel function of the first kind, order 1."""
    return word("exp", word("abs", x)) * i1e(x)


def domain(x: Value, value: Value, at_zero: float) -> Value:
    """A function of x > 0: its limit at 0, NaN below."""
    return pick(word("eq", x, 0), at_zero, pick(x < 0, math.nan, value))


def scaled_k(x: Value, order: int) -> Value:
    """exp(x) K(x): near 0 through I, beyond 2 a Chebyshev form."""
    near, far = (cephes.K0_NEAR, cephes.K0_FAR) if order == 0 else (cephes.K1_NEAR, cephes.K1_FAR)
    low, log = chebyshev(x * x - 2, near), word("log", x * 0.5)
    inner = low - log * i0(x) if order == 0 else log * i1(x) + low / x
    return pick(x <= 2, inner * word("exp", x), chebyshev(8 / x - 2, far) / word("sqrt", x))


def _second_kind(order: int) -> None:
    @scalar(f"aten.special_scaled_modified_bessel_k{order}.default")
    def scaled(x: Value) -> Value:
        """exp(x) K(x), the modified Bessel function of the second kind; inf at 0, NaN below."""
        return domain(x, scaled_k(x, order), math.inf)

    @scalar(f"aten.special_modified_bessel_k{order}.default")
    def plain(x: Value) -> Value:
        """K(x), the modified Bessel function of the second kind; inf at 0, NaN below."""
        return domain(x, word("exp", -x) * scaled_k(x, order), math.inf)


for _order in (0, 1):
    _second_kind(_order)


def far_waves(x: Value, order: int, phase: float, swapped: bool) -> Value:
    """The form of Bessel functions beyond 5: two ratios in 25 / x^2 times cosine and sine of x - phase."""
    pp, pq, qp, qq = (
        (cephes.J0_PP, cephes.J0_PQ, cephes.J0_QP, cephes.J0_QQ)
        if order == 0
        else (cephes.J1_PP, cephes.J1_PQ, cephes.J1_QP, cephes.J1_QQ)
    )
    y = 5 / x
    first, second = ratio(y * y, pp, pq), y * ratio(y * y, qp, qq)
    c, s = word("cos", x - phase), word("sin", x - phase)
    wave = first * s + second * c if swapped else first * c - second * s
    return wave * math.sqrt(TWO_OVER_PI) / word("sqrt", x)


def j0(x: Value) -> Value:
    """The Bessel function of the first kind, order 0."""
    a = word("abs", x)
    y = a * a
    near = (y - 5.78318596294678452118) * (y - 30.4712623436620863991) * ratio(y, cephes.J0_RP, cephes.J0_RQ)
    return pick(a < 1e-5, 1 - y * 0.25, pick(a <= 5, near, far_waves(a, 0, math.pi / 4, False)))


def j1(x: Value) -> Value:
    """The Bessel function of the first kind, order 1."""
    a = word("abs", x)
    y = a * a
    near = ratio(y, cephes.J1_RP, cephes.J1_RQ) * a * (y - 14.6819706421238932572) * (y - 49.2184563216946036703)
    out = pick(a <= 5, near, far_waves(a, 1, 3 * math.pi / 4, False))
    return pick(x < 0, -out, out)


def y0(x: Value) -> Value:
    """The Bessel function of the second kind, order 0."""
    near = ratio(x * x, cephes.Y0_YP, cephes.Y0_YQ) + TWO_OVER_PI * word("log", x) * j0(x)
    return domain(x, pick(x <= 5, near, far_waves(x, 0, math.pi / 4, True)), -math.inf)


def y1(x: Value) -> Value:
    """The Bessel function of the second kind, order 1."""
    near = x * ratio(x * x, cephes.Y1_YP, cephes.Y1_YQ) + TWO_OVER_PI * (j1(x) * word("log", x) - 1 / x)
    return domain(x, pick(x <= 5, near, far_waves(x, 1, 3 * math.pi / 4, True)), -math.inf)


Function = Callable[[Value], Value]
for _name, _function in (("j0", j0), ("j1", j1), ("y0", y0), ("y1", y1)):
    scalar(f"aten.special_bessel_{_name}.default")(_function)


@scalar("aten.special_ndtri.default")
def ndtri(p: Value) -> Value:
    """The x below which a standard normal number lies with probability p."""
    low = math.exp(-2)
    upper = p > 1 - low
    y = pick(upper, 1 - p, p)
    middle = y - 0.5
    square = middle * middle
    centre = (middle + middle * (square * ratio(square, cephes.NDTRI_P0, cephes.NDTRI_Q0))) * math.sqrt(2 * math.pi)
    x = word("sqrt", word("log", y) * -2)
    z = 1 / x
    near, far = ratio(z, cephes.NDTRI_P1, cephes.NDTRI_Q1), ratio(z, cephes.NDTRI_P2, cephes.NDTRI_Q2)
    tail = x - word("log", x) / x - z * pick(x < 8, near, far)
    inside = pick(y > low, centre, pick(upper, tail, -tail))
    ends = pick(word("eq", p, 0), -math.inf, pick(word("eq", p, 1), math.inf, inside))
    return pick((p < 0) | (p > 1), math.nan, ends)


def trigamma(x: Value) -> Value:
    """The second derivative of log gamma: six steps up, then the asymptotic series; reflected below 1/2."""
    low = x < 0.5
    a = pick(low, 1 - x, x)
    total = const(0, x.dtype)
    for _ in range(6):
        total, a = total + 1 / (a * a), a + 1
    z = 1 / (a * a)
    total = total + (1 + 0.5 / a + z * (1 / 6 - z * (1 / 30 - z * (1 / 42)))) / a
    sine = word("sin", x * math.pi)
    return pick(low, (math.pi * math.pi) / (sine * sine) - total, total)


@scalar("aten.polygamma.default")
def polygamma(n: int, x: Value) -> Value:
    """The n-th derivative of digamma; beyond the first it needs zeta and is refused."""
    if n > 1:
        raise CannotConvert(f"polygamma of order {n}")
    return word("digamma", x) if n == 0 else trigamma(x)


@scalar("aten.mvlgamma.default")
def mvlgamma(x: Value, p: int) -> Value:
    """The logarithm of the multivariate gamma function: a sum of p log gammas."""
    total = const(p * (p - 1) / 4 * math.log(math.pi), x.dtype)
    for k in range(p):
        total = total + word("lgamma", x - 0.5 * k)
    return total
