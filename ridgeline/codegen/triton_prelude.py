# mypy: ignore-errors
"""What generated Triton code is written in: words that need more than one operator, and folds of one tile.

Imported by generated modules, as `prelude.h` is by generated C; nothing else imports it. `w_` functions are words of
`ir/words.py` over values in the type they are computed in (f32, f64, integers, bool); `r_` join two states of a simple
combiner; `tile_` fold a whole tile of states at once, cheaper than joining them pairwise. The functions are in Triton's
language, whose types are its own: mypy does not read them.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

# ---- arithmetic


@triton.jit
def w_neg(a):
    return 0 - a if a.dtype.is_int() else a * -1.0  # Triton's own minus takes from 0, which loses the sign of 0


@triton.jit
def w_max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def w_min(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def w_trunc(a):
    return tl.where(a < 0, tl.ceil(a), tl.floor(a))


@triton.jit
def w_round(a):
    """To nearest, ties to even: adding and taking away 2^23 (2^52) drops the fraction."""
    big: tl.constexpr = 4503599627370496.0 if a.dtype == tl.float64 else 8388608.0
    size = tl.abs(a)
    rounded = w_copysign((size + big) - big, a)
    return tl.where(size < big, rounded, a)


@triton.jit
def w_div_trunc(a, b):
    if a.dtype.is_floating():
        return w_trunc(a / b)
    else:
        return a // b


@triton.jit
def w_div_floor(a, b):
    if a.dtype.is_floating():
        # As ATen: from the remainder, so that a quotient just under a whole number is not rounded up to it.
        rest = libdevice.fmod(a, b)
        quotient = (a - rest) / b
        quotient = tl.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1.0, quotient)
        whole = tl.floor(quotient)
        whole = tl.where(quotient - whole > 0.5, whole + 1.0, whole)
        return tl.where(b == 0, a / b, tl.where(quotient == 0, w_copysign(a * 0, a / b), whole))
    else:
        quotient = a // b
        ragged = quotient * b != a
        return tl.where(ragged & ((a < 0) != (b < 0)), quotient - 1, quotient)


@triton.jit
def w_fmod(a, b):
    if a.dtype.is_floating():
        return libdevice.fmod(a, b)
    else:
        return a % b


@triton.jit
def w_mod(a, b):
    rest = w_fmod(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def w_shl(a, b):
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    inside = (b >= 0) & (b < bits)
    return tl.where(inside, a << (b & (bits - 1)), 0).to(a.dtype)


@triton.jit
def w_shr(a, b):
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    inside = (b >= 0) & (b < bits)
    return tl.where(inside, a >> (b & (bits - 1)), a >> (bits - 1) >> (1 if a.dtype.is_int_unsigned() else 0))


# ---- bits


@triton.jit
def integer_bits(a):
    return a.to(tl.int64, bitcast=True) if a.dtype == tl.float64 else a.to(tl.int32, bitcast=True)


@triton.jit
def w_isnan(a):
    return a != a


@triton.jit
def w_isinf(a):
    return tl.abs(a) == float("inf")


@triton.jit
def w_signbit(a):
    if a.dtype.is_floating():
        return integer_bits(a) < 0
    else:
        return a < 0


@triton.jit
def w_copysign(a, b):
    size = tl.abs(a)
    return tl.where(w_signbit(b), size * -1.0, size)


@triton.jit
def w_round_bf16(a):
    return a.to(tl.bfloat16).to(a.dtype)


@triton.jit
def w_round_f16(a):
    return a.to(tl.float16).to(a.dtype)


# ---- transcendental


@triton.jit
def w_exp(a):
    """In f32: 2^t of t = a log2(e), mended by what the product t lost. One special instruction, 2 ulp."""
    if a.dtype == tl.float64:
        return tl.exp(a)
    else:
        x = w_max(w_min(a, 89.0), -104.0)
        t = x * 1.44269502162933349609375
        lost = tl.fma(x, 1.44269502162933349609375, -t) + x * 1.92596299e-8
        whole = tl.exp2(t)
        return tl.fma(whole, lost * 0.693147182464599609375, whole)


@triton.jit
def w_sigmoid(a):
    return 1.0 / (1.0 + w_exp(w_neg(a)))


@triton.jit
def w_erf(a):
    """In f32: a polynomial near 0, else 1 - e^-q; the polynomials are those of prelude.h."""
    if a.dtype == tl.float64:
        return tl.erf(a)
    else:
        x = w_min(tl.abs(a), 3.95)
        s = x * x
        p = s * -0.0006348518654704094 + 0.005057699978351593
        p = p * s - 0.026807287707924843
        p = p * s + 0.11282864958047867
        p = p * s - 0.37612590193748474
        p = p * s + 0.12837916612625122
        p = p * x + x
        q = x * 7.735103281447664e-06 - 0.00028849669615738094
        q = q * x + 0.0035059137735515833
        q = q * x - 0.02347981557250023
        q = q * x + 0.10591713339090347
        q = q * x + 0.6353396773338318
        q = q * x + 0.12860336899757385
        q = q * x + x
        far = 1.0 - tl.exp2(q * -1.4426950408889634)
        return w_copysign(tl.where(x > 0.85, far, p), a)


@triton.jit
def w_sqrt(a):
    if a.dtype == tl.float64:
        return tl.sqrt(a)
    else:
        return tl.sqrt_rn(a)


@triton.jit
def w_recip(a):
    return 1.0 / a


@triton.jit
def w_digamma(a):
    """Recurrence up to 10, then the asymptotic series; reflection below 0. Poles are NaN, +-0 gives -+infinity."""
    pi: tl.constexpr = 3.141592653589793
    below = a < 0
    whole = w_trunc(a)
    x = tl.where(below, 1.0 - a, a)
    shift = tl.where(x == x, 0.0, x)
    for _ in tl.static_range(10):
        small = x < 10.0
        shift = tl.where(small, shift - 1.0 / x, shift)
        x = tl.where(small, x + 1.0, x)
    y = 1.0 / (x * x)
    series = y * (
        0.08333333333333333 - y * (0.008333333333333333 - y * (0.003968253968253968 - y * 0.004166666666666667))
    )
    value = shift + tl.log(x) - 0.5 / x - series
    reflected = value - pi / libdevice.tan(pi * (a - whole))
    pole = tl.where(below & (a == whole), float("nan"), tl.where(below, reflected, value))
    return tl.where(a == 0, w_copysign(x * 0 + float("inf"), w_neg(a)), pole)


# ---- random numbers


@triton.jit
def w_philox(seed, counter):
    """Number counter % 4 of the four that Philox-4x32-10 gives for (counter / 4, 0) with the seed as its key."""
    low = (counter >> 2).to(tl.uint32)
    high = (counter >> 34).to(tl.uint32)
    zero = low * 0
    a, b, c, d = tl.philox(seed, low, high, zero, zero)
    which = counter & 3
    drawn = tl.where(which < 2, tl.where(which == 0, a, b), tl.where(which == 2, c, d))
    return drawn.to(tl.uint32).to(tl.int64)


# ---- indices


@triton.jit
def floor_div(a, b):
    return w_div_floor(a, b)


@triton.jit
def floor_mod(a, b):
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def clip_i32(a, least, most):
    return tl.cast(tl.minimum(tl.maximum(a, least), most), tl.int32)


# ---- folds of a tile


@triton.jit
def r_mul(a, b):
    return a * b


@triton.jit
def r_or(a, b):
    return a | b


@triton.jit
def r_and(a, b):
    return a & b


@triton.jit
def r_xor(a, b):
    return a ^ b


@triton.jit
def finite(top):
    """The maximum, or 0 where it is infinite: it can then be taken away from itself."""
    return tl.where(tl.abs(top) == float("inf"), 0.0, top)


@triton.jit
def kept(state, dim: tl.constexpr, keep: tl.constexpr):
    return tl.expand_dims(state, dim) if keep else state


@triton.jit
def tile_maxsumexp(top, total, dim: tl.constexpr, keep: tl.constexpr):
    """Joins states along one dimension: one maximum first, then one exponential each."""
    highest = tl.reduce(top, dim, w_max)
    scaled = total * tl.exp(top - tl.expand_dims(finite(highest), dim))
    return kept(highest, dim, keep), kept(tl.sum(scaled, dim), dim, keep)


@triton.jit
def tile_welford(count, mean, m2, dim: tl.constexpr, keep: tl.constexpr):
    """Joins states along one dimension: the mean first, then squares of what is away from it."""
    n = tl.sum(count, dim)
    middle = tl.sum(count * mean, dim) / tl.maximum(n, 1.0)
    away = mean - tl.expand_dims(middle, dim)
    squares = tl.sum(m2 + count * away * away, dim)
    return kept(n, dim, keep), kept(middle, dim, keep), kept(squares, dim, keep)


@triton.jit
def tile_moments(x, inside, count, dim: tl.constexpr, keep: tl.constexpr):
    """Mean, and squares of the distance from it, of `count` elements along one dimension; the rest are not inside."""
    middle = tl.sum(tl.where(inside, x, 0.0), dim) / count
    away = tl.where(inside, x - tl.expand_dims(middle, dim), 0.0)
    return kept(middle, dim, keep), kept(tl.sum(away * away, dim), dim, keep)
