"""Comparison, logic, bits and casts, one element at a time.

Comparisons work in the type that PyTorch promotes to, 16-bit floats and numbers rounded to it first. Logic takes any
type and asks whether it is not 0.
"""

import math

from ridgeline.base.errors import CannotConvert
from ridgeline.ir.types import BF16, BOOL, F16, DType
from ridgeline.ir.value import Like, Value, const, word
from ridgeline.ops.array import Array, stored
from ridgeline.ops.scalar import value_of
from ridgeline.ops.table import Context, composite, scalar


def _comparison(name: str) -> None:
    def body(a: Like, b: Like) -> Value:
        return word(name, a, b)

    body.__name__ = name
    body.__doc__ = f"y = a {name} b, in the promoted type."
    scalar(f"aten.{name}.Tensor", f"aten.{name}.Scalar", cast="promoted")(body)


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _comparison(_name)


def holds(x: Value) -> Value:
    """Whether a value is not 0 (NaN is not)."""
    return x if x.dtype is BOOL else word("ne", x, 0)


@scalar("aten.logical_not.default", cast="none")
def logical_not(x: Value) -> Value:
    """y = x is 0."""
    return ~x if x.dtype is BOOL else word("eq", x, 0)


def _logic(name: str) -> None:
    def body(a: Value, b: Value) -> Value:
        return word(name, holds(a), holds(b))

    body.__name__ = f"logical_{name}"
    body.__doc__ = f"y = (a is not 0) {name} (b is not 0)."
    scalar(f"aten.logical_{name}.default", cast="none")(body)


for _name in ("and", "or", "xor"):
    _logic(_name)


def _bitwise(name: str) -> None:
    def body(a: Like, b: Like) -> Value:
        return word(name, a, b)

    body.__name__ = f"bitwise_{name}"
    body.__doc__ = f"y = a {name} b, bit by bit."
    scalar(*(f"aten.bitwise_{name}.{o}" for o in ("Tensor", "Scalar", "Scalar_Tensor")))(body)


for _name in ("and", "or", "xor"):
    _bitwise(_name)


@scalar("aten.bitwise_not.default")
def bitwise_not(x: Value) -> Value:
    """y = all bits of x turned."""
    return ~x


def in_width(y: Value) -> Value:
    """Whether a shift count lies in 0 .. bits - 1."""
    below = y < 8 * y.dtype.bytes
    return below if y.dtype.kind == "u" else below & (y >= 0)


@scalar(
    *(f"aten.bitwise_left_shift.{o}" for o in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")),
    *(f"aten.__lshift__.{o}" for o in ("Tensor", "Scalar")),
)
def left_shift(a: Like, b: Like, context: Context) -> Value:
    """y = a * 2^b, wrapping; 0 for a count outside the type's width."""
    dtype = context.out[0].dtype
    x, y = value_of(a, dtype), value_of(b, dtype)
    if dtype.is_float:
        return x * word("exp2", y)
    if not isinstance(b, Value):
        return word("shl", x, y) if 0 <= b < 8 * dtype.bytes else const(0, dtype)
    return word("select", in_width(y), word("shl", x, word("select", in_width(y), y, const(0, dtype))), const(0, dtype))


@scalar(
    *(f"aten.bitwise_right_shift.{o}" for o in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")),
    *(f"aten.__rshift__.{o}" for o in ("Tensor", "Scalar")),
)
def right_shift(a: Like, b: Like, context: Context) -> Value:
    """y = floor(a / 2^b); a count outside the type's width shifts out all but the sign."""
    dtype = context.out[0].dtype
    x, y = value_of(a, dtype), value_of(b, dtype)
    if dtype.is_float:
        return x / word("exp2", y)
    kept = word("select", in_width(y), y, const(0 if dtype.kind == "u" else 8 * dtype.bytes - 1, dtype))
    shifted = word("shr", x, kept)
    return word("select", in_width(y), shifted, const(0, dtype)) if dtype.kind == "u" else shifted


@scalar("aten.isnan.default", cast="none")
def isnan(x: Value) -> Value:
    """y = x is NaN."""
    return word("isnan", x) if x.dtype.is_float else const(False, BOOL)


@scalar("aten.isinf.default", cast="none")
def isinf(x: Value) -> Value:
    """y = x is an infinity."""
    return word("isinf", x) if x.dtype.is_float else const(False, BOOL)


@scalar("aten.isposinf.default", cast="none")
def isposinf(x: Value) -> Value:
    """y = x is +inf."""
    return word("eq", x, math.inf) if x.dtype.is_float else const(False, BOOL)


@scalar("aten.isneginf.default", cast="none")
def isneginf(x: Value) -> Value:
    """y = x is -inf."""
    return word("eq", x, -math.inf) if x.dtype.is_float else const(False, BOOL)


@scalar("aten.signbit.default", cast="none")
def signbit(x: Value) -> Value:
    """y = the sign bit is set (so also for -0.0)."""
    if x.dtype.is_float:
        return word("signbit", x)
    return x < 0 if x.dtype.kind == "i" else const(False, BOOL)


def converted(x: Array, dtype: DType) -> Array:
    """x as that type, rounded as a store would: an explicit cast is not undone when the store goes."""
    if dtype.is_float and dtype.bytes == 1:
        raise CannotConvert(f"cast to {dtype}")
    return x.rounded(dtype) if dtype in (BF16, F16) and stored(x) is not dtype else x.cast(dtype)


@composite("aten._to_copy.default", "prims.convert_element_type.default")
def to_copy(x: Array, dtype: DType | None = None, context: Context | None = None) -> Array:
    """y = x in another type, one rounding to nearest even."""
    assert context is not None
    return converted(x, context.out[0].dtype)
