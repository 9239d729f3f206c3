"""The words: every scalar operation a value can be built from, with its arity, result type and cost.

A primitive word must be spelled by every target. A derived word has a body in other words (`ir/derived.py` holds
none with control flow); a target may still spell it itself. Cost is counted from here: `flops` in the operand's
format, `special` on the special-function unit.
"""

from dataclasses import dataclass

from ridgeline.ir.types import BOOL, DType


@dataclass(frozen=True, slots=True)
class WordInfo:
    """What is known of one word. `result` is "same" as the first value argument, or "bool"."""

    name: str
    arity: int
    result: str = "same"
    flops: int = 1
    special: int = 0
    commutes: bool = False
    float_only: bool = False

    def dtype(self, args: tuple[DType, ...]) -> DType:
        if self.result == "bool":
            return BOOL
        return args[1] if self.name == "select" else args[0]


def _words() -> dict[str, WordInfo]:
    rows = [
        # arithmetic
        WordInfo("add", 2, commutes=True),
        WordInfo("sub", 2),
        WordInfo("mul", 2, commutes=True),
        WordInfo("fma", 3, flops=2),
        WordInfo("neg", 1),
        WordInfo("abs", 1),
        WordInfo("div", 2, special=1, float_only=True),
        WordInfo("div_trunc", 2, special=1),
        WordInfo("div_floor", 2, special=1),
        WordInfo("mod", 2, special=1),  # sign of the divisor, as Python
        WordInfo("fmod", 2, special=1),  # sign of the dividend, as C
        WordInfo("min", 2, commutes=True),  # NaN propagates
        WordInfo("max", 2, commutes=True),
        # comparison and logic
        *(WordInfo(n, 2, "bool", commutes=n in ("eq", "ne")) for n in ("eq", "ne", "lt", "le", "gt", "ge")),
        *(WordInfo(n, 2, commutes=True) for n in ("and", "or", "xor")),
        WordInfo("not", 1),
        WordInfo("shl", 2),
        WordInfo("shr", 2),
        WordInfo("select", 3),  # select(condition, a, b)
        WordInfo("isnan", 1, "bool"),
        WordInfo("isinf", 1, "bool"),
        WordInfo("signbit", 1, "bool"),
        # rounding
        *(WordInfo(n, 1, float_only=True) for n in ("floor", "ceil", "trunc", "round")),
        WordInfo("round_bf16", 1, float_only=True),  # to that format and back
        WordInfo("round_f16", 1, float_only=True),
        # transcendental
        *(
            WordInfo(n, 1, flops=0, special=1, float_only=True)
            for n in (
                *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "recip"),
                *(
                    "sin",
                    "cos",
                    "tan",
                    "asin",
                    "acos",
                    "atan",
                    "sinh",
                    "cosh",
                    "tanh",
                    "asinh",
                    "acosh",
                    "atanh",
                ),
                *("erf", "erfc", "erfinv", "lgamma", "digamma", "sigmoid"),
            )
        ),
        *(WordInfo(n, 2, flops=0, special=1, float_only=True) for n in ("pow", "atan2", "hypot")),
        WordInfo("copysign", 2, float_only=True),
        WordInfo("nextafter", 2, float_only=True),
        # random: philox(seed, counter) gives 32 random bits as i64 in 0 .. 2^32 - 1
        WordInfo("philox", 2, flops=0),
    ]
    return {w.name: w for w in rows}


WORDS = _words()
