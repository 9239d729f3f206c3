"""Number types, numbers and words as Triton spells them. Data and small functions; no state."""

import math
from collections.abc import Sequence

from ridgeline.base.errors import BuildFailed
from ridgeline.ir.types import BOOL, F32, DType
from ridgeline.ir.words import WORDS

TYPES = {
    **{"f64": "float64", "f32": "float32", "bf16": "bfloat16", "f16": "float16"},
    **{"f8e4m3": "float8e4nv", "f8e5m2": "float8e5", "bool": "int1"},
    **{f"{k}{n}": f"{'u' if k == 'u' else ''}int{n}" for k in "iu" for n in (8, 16, 32, 64)},
}
POINTEES = {
    **{
        "f64": "fp64",
        "f32": "fp32",
        "bf16": "bf16",
        "f16": "fp16",
        "f8e4m3": "fp8e4nv",
        "f8e5m2": "fp8e5",
        "bool": "i1",
    },
    **{f"{k}{n}": f"{k}{n}" for k in "iu" for n in (8, 16, 32, 64)},
}

INFIX = {
    **{"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^"},
    **{"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="},
}
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
LANGUAGE = {
    **{n: f"tl.{n}" for n in ("abs", "fma", "floor", "ceil", "exp2", "log", "log2", "rsqrt", "sin", "cos")},
    "select": "tl.where",
}
LIBRARY = frozenset(
    (
        *("expm1", "log10", "log1p", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
        *("erfc", "erfinv", "lgamma", "pow", "atan2", "hypot", "nextafter"),
    )
)
PRELUDE = frozenset(
    (
        *("neg", "max", "min", "trunc", "round", "div_trunc", "div_floor", "fmod", "mod", "shl", "shr", "isnan"),
        *(
            "isinf",
            "signbit",
            "copysign",
            "round_bf16",
            "round_f16",
            "exp",
            "erf",
            "sigmoid",
            "sqrt",
            "recip",
            "digamma",
        ),
        "philox",
    )
)
CALLED = LIBRARY | PRELUDE  # words that ask their arguments for a type
SPELLED = frozenset((*INFIX, *LANGUAGE, *LIBRARY, *PRELUDE, "not")) & WORDS.keys()
# The fold of a tile by one function of two states; others join several numbers at once.
SIMPLE_FOLDS = {"prod": "r_mul", "max": "w_max", "min": "w_min", "any": "r_or", "all": "r_and", "xor": "r_xor"}


def type_name(dtype: DType) -> str:
    """A number type in Triton's language."""
    return f"tl.{TYPES[dtype.name]}"


def literal(value: bool | int | float, dtype: DType) -> str:
    """A number as Python reads it inside a kernel."""
    number = float(value) if dtype.is_float else bool(value) if dtype is BOOL else int(value)
    return repr(number) if math.isfinite(number) else f'float("{number}")'


def number(value: bool | int | float, dtype: DType) -> str:
    """A constant that takes part with values of its type: a bare number only where that is an f32."""
    return literal(value, dtype) if dtype is F32 else typed(value, dtype)


def typed(value: bool | int | float, dtype: DType) -> str:
    """A constant that carries its type, for functions that ask for it."""
    return f"tl.full([], {literal(value, dtype)}, {type_name(dtype)})"


def word(name: str, args: Sequence[str]) -> str:
    """A word applied. Raises BuildFailed for one that is not spelled."""
    if name in INFIX:
        return f"{args[0]} {INFIX[name]} {args[1]}"
    if name == "not":
        return f"~{args[0]}"
    for names, prefix in ((LIBRARY, "libdevice."), (PRELUDE, "w_")):
        if name in names:
            return f"{prefix}{name}({', '.join(args)})"
    if name in LANGUAGE:
        return f"{LANGUAGE[name]}({', '.join(args)})"
    raise BuildFailed("triton", f"word {name} is not spelled")


def cast(text: str, source: DType, target: DType) -> str:
    """A value in another compute type."""
    if source is target:
        return text
    return f"{text} != 0" if target is BOOL else f"{text}.to({type_name(target)})"


def sum_of(text: str, dim: int, keep: bool, dtype: DType) -> str:
    """A block added up along a dimension, in its own type."""
    total = f"tl.sum({text}, {dim}{', keep_dims=True' if keep else ''})"
    return total if dtype.bytes >= 4 else f"{total}.to({type_name(dtype)})"
