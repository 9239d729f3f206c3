"""Arithmetic, one element at a time: sums, products, quotients, powers, roundings, transcendental functions.

Every body works in the type of the output (16-bit floats in fp32) and takes values or plain numbers. Integers wrap;
bools add by `or` and multiply by `and`, as in ATen.
"""

import math
from collections.abc import Callable

from ridgeline.base.errors import CannotConvert
from ridgeline.ir.types import BOOL, F32, DType
from ridgeline.ir.value import Like, Value, cast, const, word
from ridgeline.ops.array import Array, apply, pointwise
from ridgeline.ops.table import Context, composite, scalar

Result = Value

# ATen functions that are one word.
UNARY = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
    *("erf", "erfc", "erfinv", "lgamma", "digamma", "sigmoid", "neg"),
)
BINARY = ("atan2", "hypot")


def _unary(name: str) -> None:
    def body(x: Value) -> Result:
        return word(name, x)

    body.__name__ = name
    body.__doc__ = f"y = {name}(x); integers become floats first where the output is one."
    scalar(f"aten.{name}.default")(body)


def _binary(name: str) -> None:
    def body(a: Value, b: Value) -> Result:
        return word(name, a, b)

    body.__name__ = name
    body.__doc__ = f"y = {name}(a, b)."
    scalar(f"aten.{name}.default")(body)


for _name in UNARY:
    _unary(_name)
for _name in BINARY:
    _binary(_name)


def dtype_of(*operands: Like) -> DType:
    """The type of the first operand that has one."""
    return next(o.dtype for o in operands if isinstance(o, Value))


def value_of(operand: Like, dtype: DType) -> Value:
    """An operand as a value."""
    return operand if isinstance(operand, Value) else const(operand, dtype)


def scaled(x: Like, by: Like) -> Like:
    """x * by, with nothing to do for 1."""
    if not isinstance(by, Value):
        if by == 1:
            return x
        if not isinstance(x, Value):
            return x * by
    return word("and" if dtype_of(x, by) is BOOL else "mul", x, by)


def sum_of(a: Like, b: Like) -> Value:
    """a + b."""
    return word("or" if dtype_of(a, b) is BOOL else "add", a, b)


@scalar("aten.add.Tensor", "aten.add.Scalar")
def add(a: Like, b: Like, alpha: Like = 1) -> Result:
    """y = a + alpha * b."""
    return sum_of(a, scaled(b, alpha))


@scalar("aten.sub.Tensor", "aten.sub.Scalar")
def sub(a: Like, b: Like, alpha: Like = 1) -> Result:
    """y = a - alpha * b."""
    return word("sub", a, scaled(b, alpha))


@scalar("aten.rsub.Tensor", "aten.rsub.Scalar")
def rsub(a: Like, b: Like, alpha: Like = 1) -> Result:
    """y = b - alpha * a."""
    return word("sub", b, scaled(a, alpha))


@scalar("aten._add_relu.Tensor", "aten._add_relu.Scalar")
def add_relu(a: Like, b: Like, alpha: Like = 1) -> Result:
    """y = max(a + alpha * b, 0)."""
    return word("max", sum_of(a, scaled(b, alpha)), 0)


@scalar("aten.mul.Tensor", "aten.mul.Scalar")
def mul(a: Like, b: Like) -> Result:
    """y = a * b."""
    return word("and" if dtype_of(a, b) is BOOL else "mul", a, b)


def quotient(a: Like, b: Like) -> Value:
    """a / b; by a power of two it is a product, which is exact and cheaper."""
    if isinstance(b, int | float) and isinstance(a, Value) and math.isfinite(b) and b:
        fraction, exponent = math.frexp(b)
        if abs(fraction) == 0.5 and abs(exponent) < 100:
            return word("mul", a, 1 / b)
    return word("div", a, b)


def floor_quotient(a: Like, b: Like) -> Value:
    """floor(a / b), exact as in Python: through the remainder, with the sign of zero kept."""
    dtype = dtype_of(a, b)
    if not dtype.is_float:
        return word("div_floor", a, b)
    x, y = value_of(a, dtype), value_of(b, dtype)
    rest = word("fmod", x, y)
    whole = (x - rest) / y
    whole = word("select", word("ne", rest, 0) & word("ne", y < 0, rest < 0), whole - 1, whole)
    down = word("floor", whole)
    near = word("select", (whole - down) > 0.5, down + 1, down)
    out = word("select", word("ne", whole, 0), near, word("copysign", const(0, dtype), x / y))
    return word("select", word("eq", y, 0), x / y, out)


@scalar("aten.div.Tensor", "aten.div.Scalar", "aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div(a: Like, b: Like, rounding_mode: str | None = None) -> Result:
    """y = a / b, or that rounded towards zero ("trunc") or down ("floor")."""
    if rounding_mode is None:
        return quotient(a, b)
    if rounding_mode == "floor":
        return floor_quotient(a, b)
    return word("trunc", word("div", a, b)) if dtype_of(a, b).is_float else word("div_trunc", a, b)


@scalar("aten.floor_divide.default", "aten.floor_divide.Scalar")
def floor_divide(a: Like, b: Like) -> Result:
    """y = floor(a / b)."""
    return floor_quotient(a, b)


@scalar("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor")
def remainder(a: Like, b: Like) -> Result:
    """y = a - b * floor(a / b), with the sign of b."""
    return word("mod", a, b)


@scalar("aten.fmod.Tensor", "aten.fmod.Scalar")
def fmod(a: Like, b: Like) -> Result:
    """y = a - b * trunc(a / b), with the sign of a."""
    return word("fmod", a, b)


@scalar("aten.reciprocal.default")
def reciprocal(x: Value) -> Result:
    """y = 1 / x."""
    return word("recip", x)


@scalar("aten.abs.default")
def absolute(x: Value) -> Result:
    """y = |x|."""
    return x if x.dtype is BOOL or x.dtype.kind == "u" else word("abs", x)


@scalar("aten.square.default")
def square(x: Value) -> Result:
    """y = x * x."""
    return x * x


@scalar("aten.sign.default", "aten.sgn.default")
def sign(x: Value) -> Result:
    """y = (x > 0) - (x < 0); 0 for NaN."""
    if x.dtype is BOOL:
        return x
    above = word("select", x > 0, const(1, x.dtype), const(0, x.dtype))
    return above if x.dtype.kind == "u" else word("select", x < 0, const(-1, x.dtype), above)


def _rounding(name: str) -> None:
    def body(x: Value) -> Result:
        return word(name, x) if x.dtype.is_float else x

    body.__name__ = name
    body.__doc__ = f"y = {name}(x), to a whole number (halves to even for round); integers are left alone."
    scalar(f"aten.{name}.default")(body)


for _name in ("floor", "ceil", "trunc", "round"):
    _rounding(_name)


@scalar("aten.round.decimals")
def round_decimals(x: Value, decimals: int = 0) -> Result:
    """y = round(x * 10^decimals) / 10^decimals."""
    if decimals == 0 or not x.dtype.is_float:
        return word("round", x) if x.dtype.is_float else x
    ten = float(10 ** abs(decimals))
    return word("round", x * ten) / ten if decimals > 0 else word("round", x / ten) * ten


@scalar("aten.frac.default")
def frac(x: Value) -> Result:
    """y = x - trunc(x)."""
    return x - word("trunc", x)


def power_of_int(x: Value, exponent: int) -> Value:
    """x ** exponent for a known exponent of at least 0, by squaring; integers wrap."""
    out: Value | None = None
    while exponent:
        if exponent & 1:
            out = x if out is None else out * x
        exponent >>= 1
        if exponent:
            x = x * x
    return const(1, x.dtype) if out is None else out


def integer_power(x: Value, y: Value) -> Value:
    """x ** y on integers by squaring, one step for each bit of y; a negative y gives 0 unless x is 1 or -1."""
    one = const(1, x.dtype)
    out, base = one, x
    for bit in range(8 * x.dtype.bytes - (x.dtype.kind == "i")):
        odd = word("ne", word("and", word("shr", y, bit), 1), 0)
        out = word("select", odd, out * base, out)
        base = base * base
    if x.dtype.kind == "u":
        return out
    odd = word("ne", word("and", y, 1), 0)
    minus = word("select", odd, const(-1, x.dtype), one)
    below = word("select", word("eq", x, 1), one, word("select", word("eq", x, -1), minus, const(0, x.dtype)))
    return word("select", y < 0, below, out)


def power(x: Like, y: Like) -> Value:
    """x ** y, with the exponents that ATen knows by themselves."""
    dtype = dtype_of(x, y)
    if not isinstance(y, Value) and isinstance(x, Value):
        if not dtype.is_float:
            return power_of_int(x, int(y))
        easy: dict[float, Callable[[], Value]] = {
            **{0: lambda: const(1, dtype), 1: lambda: x, 2: lambda: x * x, 3: lambda: x * x * x},
            **{0.5: lambda: word("sqrt", x), -0.5: lambda: word("rsqrt", x)},
            **{-1: lambda: word("recip", x), -2: lambda: word("recip", x * x)},
        }
        return easy[y]() if y in easy else word("pow", x, y)
    if not isinstance(x, Value) and isinstance(y, Value) and dtype.is_float:
        return const(1, dtype) if x == 1 else word("exp2", y) if x == 2 else word("pow", x, y)
    if dtype.is_float:
        return word("pow", x, y)
    if dtype is BOOL:
        raise CannotConvert("power of bools")
    return integer_power(value_of(x, dtype), value_of(y, dtype))


@scalar("aten.pow.Tensor_Tensor", "aten.pow.Tensor_Scalar", "aten.pow.Scalar")
def pow_(x: Like, y: Like) -> Result:
    """z = x ** y; on integers by squaring, wrapping."""
    return power(x, y)


@scalar("aten.addcmul.default")
def addcmul(x: Value, a: Value, b: Value, value: Like = 1) -> Result:
    """y = x + value * a * b."""
    return x + word("mul", scaled(a, value), b)


@scalar("aten.addcdiv.default")
def addcdiv(x: Value, a: Value, b: Value, value: Like = 1) -> Result:
    """y = x + value * a / b."""
    return x + word("div", scaled(a, value), b)


@scalar("aten.lerp.Tensor", "aten.lerp.Scalar")
def lerp(a: Value, b: Value, weight: Like) -> Result:
    """y = a + weight * (b - a), from the nearer end so that both ends are exact."""
    if not isinstance(weight, Value):
        return a + (b - a) * weight if abs(weight) < 0.5 else b - (b - a) * (1 - weight)
    near = word("abs", weight) < 0.5
    return word("select", near, a + weight * (b - a), b - (b - a) * (1 - weight))


@scalar("aten.copysign.Tensor", "aten.copysign.Scalar")
def copysign(a: Like, b: Like) -> Result:
    """The size of a with the sign of b."""
    return word("copysign", a, b)


@scalar("aten.nextafter.default")
def nextafter(a: Value, b: Value, context: Context) -> Result:
    """The next number after a towards b."""
    if context.out[0].dtype.bytes < 4:
        raise CannotConvert("nextafter of a 16-bit type")
    return word("nextafter", a, b)


@scalar("aten.ldexp.Tensor")
def ldexp(a: Value, b: Value) -> Result:
    """y = a * 2^b."""
    return a * word("exp2", b)


def log_sum(a: Value, b: Value, exponential: str, logarithm: str) -> Value:
    """log(e^a + e^b) = max + log(1 + e^-|a - b|), in base e or 2; equal infinities stay."""
    top = word("max", a, b)
    small = word(exponential, word("neg", word("abs", a - b)))
    rest = word("log1p", small) if logarithm == "log" else word("log1p", small) * (1 / math.log(2))
    return word("select", word("isinf", a) & word("eq", a, b), a, top + rest)


@scalar("aten.logaddexp.default")
def logaddexp(a: Value, b: Value) -> Result:
    """y = log(e^a + e^b)."""
    return log_sum(a, b, "exp", "log")


@scalar("aten.logaddexp2.default")
def logaddexp2(a: Value, b: Value) -> Result:
    """y = log2(2^a + 2^b)."""
    return log_sum(a, b, "exp2", "log2")


@scalar("aten.deg2rad.default")
def deg2rad(x: Value) -> Result:
    """y = x * pi / 180."""
    return x * (math.pi / 180)


@scalar("aten.rad2deg.default")
def rad2deg(x: Value) -> Result:
    """y = x * 180 / pi."""
    return x * (180 / math.pi)


@scalar("aten.angle.default")
def angle(x: Value) -> Result:
    """y = pi for negative x, 0 for others, NaN for NaN."""
    flat = word("select", x < 0, const(math.pi, x.dtype), const(0, x.dtype))
    return word("select", word("isnan", x), x, flat)


@scalar("aten.clamp.default", "aten.clamp.Tensor")
def clamp(x: Value, low: Like | None = None, high: Like | None = None) -> Result:
    """y = min(max(x, low), high); NaN stays, and high wins over low."""
    if low is not None:
        x = word("max", x, low)
    return x if high is None else word("min", x, high)


@scalar("aten.clamp_min.default", "aten.clamp_min.Tensor", "aten.maximum.default")
def maximum(a: Value, b: Like) -> Result:
    """y = max(a, b), NaN if either is."""
    return word("or" if a.dtype is BOOL else "max", a, b)


@scalar("aten.clamp_max.default", "aten.clamp_max.Tensor", "aten.minimum.default")
def minimum(a: Value, b: Like) -> Result:
    """y = min(a, b), NaN if either is."""
    return word("and" if a.dtype is BOOL else "min", a, b)


def number_first(name: str, a: Value, b: Value) -> Value:
    """The greater or smaller of two, NaN only if both are."""
    if not a.dtype.is_float:
        return word({"max": "or", "min": "and"}[name] if a.dtype is BOOL else name, a, b)
    return word("select", word("isnan", a), b, word("select", word("isnan", b), a, word(name, a, b)))


@scalar("aten.fmax.default")
def fmax(a: Value, b: Value) -> Result:
    """y = max(a, b), a number where there is one."""
    return number_first("max", a, b)


@scalar("aten.fmin.default")
def fmin(a: Value, b: Value) -> Result:
    """y = min(a, b), a number where there is one."""
    return number_first("min", a, b)


@scalar("aten.nan_to_num.default")
def nan_to_num(
    x: Value, nan: float | None = None, posinf: float | None = None, neginf: float | None = None, *, context: Context
) -> Result:
    """NaN becomes 0, infinities the ends of the type, unless told otherwise."""
    if not x.dtype.is_float:
        return x
    ends = {"f64": 1.7976931348623157e308, "f32": 3.4028234663852886e38, "bf16": 3.3895313892515355e38, "f16": 65504.0}
    end = ends[context.out[0].dtype.name]
    high = word("select", word("eq", x, math.inf), const(end if posinf is None else posinf, x.dtype), x)
    low = word("select", word("eq", x, -math.inf), const(-end if neginf is None else neginf, x.dtype), high)
    return word("select", word("isnan", x), const(0.0 if nan is None else nan, x.dtype), low)


@scalar("aten.masked_fill.Scalar", "aten.masked_fill.Tensor", cast="none")
def masked_fill(x: Value, mask: Value, value: Like) -> Result:
    """y = value where the mask holds, else x."""
    return word("select", mask, cast(value_of(value, x.dtype), x.dtype), x)


@scalar("aten.where.self", cast="none")
def where_(condition: Value, a: Value, b: Value, context: Context) -> Result:
    """y = a where the condition holds, else b."""
    dtype = context.out[0].dtype
    holds = condition if condition.dtype is BOOL else word("ne", condition, 0)
    return word("select", holds, cast(a, dtype), cast(b, dtype))


@scalar("aten.heaviside.default")
def heaviside(x: Value, values: Value) -> Result:
    """y = 0 below 0, `values` at 0, 1 above; 0 for NaN."""
    above = word("select", x > 0, const(1, x.dtype), const(0, x.dtype))
    return word("select", word("eq", x, 0), values, above)


@scalar("aten.fill.Scalar", "aten.fill.Tensor", cast="none")
def fill(x: Value, value: Like) -> Result:
    """y = value everywhere."""
    return cast(value_of(value, x.dtype), x.dtype)


@scalar("aten.zero.default")
def zero(x: Value) -> Result:
    """y = 0 everywhere."""
    return const(0, x.dtype)


@composite("aten.frexp.Tensor")
def frexp(x: Array) -> tuple[Array, Array]:
    """x = mantissa * 2^exponent with 0.5 <= |mantissa| < 1, exact, denormal numbers too."""
    # Multiplying by 2^50 makes denormal numbers normal; log2 is off by at most one, which one step mends.
    tiny = apply("lt", apply("abs", x), 2.0**-100 if x.dtype is F32 else 2.0**-960)
    normal = pointwise(lambda t, v: word("select", t, v * 2.0**50, v), tiny, x)
    regular = pointwise(lambda v: word("ne", v, 0) & ~(word("isinf", v) | word("isnan", v)), x)
    guess = pointwise(
        lambda r, v: word("select", r, word("floor", word("log2", word("abs", v))), const(-1, v.dtype)), regular, normal
    )

    def half(v: Value, g: Value) -> Value:  # two exact products: 2^-g itself may overflow
        part = word("floor", g * 0.5)
        return v * word("exp2", word("neg", part)) * word("exp2", word("neg", g - part))

    first = pointwise(half, normal, guess)  # in (0.5, 4)
    shift = pointwise(
        lambda v: word(
            "select",
            word("abs", v) >= 2,
            const(2.0, v.dtype),
            word("select", word("abs", v) >= 1, const(1.0, v.dtype), const(0.0, v.dtype)),
        ),
        first,
    )
    scale = pointwise(
        lambda s: word(
            "select", s > 1, const(0.25, s.dtype), word("select", s > 0, const(0.5, s.dtype), const(1.0, s.dtype))
        ),
        shift,
    )
    mantissa = pointwise(lambda r, v, m: word("select", r, m, v), regular, x, first * scale)
    exponent = pointwise(
        lambda r, t, e: word(
            "select", r, e - word("select", t, const(50.0, e.dtype), const(0.0, e.dtype)), const(0.0, e.dtype)
        ),
        *(regular, tiny, guess + shift),
    )
    return mantissa, exponent


@composite("aten.addr.default")
def addr(x: Array, a: Array, b: Array, beta: Like = 1, alpha: Like = 1) -> Array:
    """y[i, j] = beta * x[i, j] + alpha * a[i] * b[j]; with beta = 0 x is not read."""
    column = a.reindex([a.shape[0], 1], lambda i, j: [i])
    outer = pointwise(lambda u, v: word("and" if u.dtype is BOOL else "mul", scaled(u, alpha), v), column, b)
    if not isinstance(beta, Value) and beta == 0:
        return outer
    return pointwise(lambda o, v: sum_of(scaled(v, beta), o), outer, x)
