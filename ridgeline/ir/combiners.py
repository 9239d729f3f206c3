"""Combiners: how a fold joins elements, as data - identity, combine and finish in words.

A combiner has a state of one or more components; `lift` makes the state of one element, `combine` joins two states,
`finish` gives the results. Bodies are tuples of small expressions over named components, written once here and
rendered by every target and by the reference interpreter.

An expression is a name ("a0": component 0 of the left state, "b0" of the right, "x0": element 0), a number, the
strings "lowest" / "highest" (the ends of the type), or a tuple (word, expression, ...).
"""

from dataclasses import dataclass
from typing import Any

from ridgeline.ir.types import BOOL, I64, DType

Expr = Any  # str | float | int | tuple[str, Expr, ...]


@dataclass(frozen=True, slots=True)
class Combiner:
    """One way to fold. Tuples have one entry per component; `inputs` is how many values an element has."""

    name: str
    inputs: int
    identity: tuple[Expr, ...]
    lift: tuple[Expr, ...]
    combine: tuple[Expr, ...]
    finish: tuple[Expr, ...]
    types: tuple[str, ...]  # of the results: "same" (as input 0), "second" (as input 1), "bool", "i64"
    ordered: bool = False  # ties are broken by position, so states carry it
    flops: int = 1  # of lift and combine together, per element
    special: int = 0

    def result(self, part: int, args: tuple[DType, ...]) -> DType:
        kind = self.types[part]
        return {"bool": BOOL, "i64": I64}.get(kind) or (args[1] if kind == "second" else args[0])


def _simple(name: str, identity: Expr, word: str, types: str = "same") -> Combiner:
    return Combiner(name, 1, (identity,), ("x0",), ((word, "a0", "b0"),), ("a0",), (types,))


def _arg(name: str, identity: Expr, better: str) -> Combiner:
    # NaN wins, as in ATen; among equals (and among NaNs) the smallest position wins.
    left_nan, right_nan = ("isnan", "a0"), ("isnan", "b0")
    tie = ("or", ("eq", "a0", "b0"), ("and", left_nan, right_nan))
    wins = (
        "or",
        ("and", ("or", (better, "a0", "b0"), left_nan), ("not", right_nan)),
        ("and", tie, ("le", "a1", "b1")),
    )
    pick = tuple(("select", wins, f"a{k}", f"b{k}") for k in (0, 1))
    return Combiner(
        name,
        2,
        (identity, 2**62),
        ("x0", "x1"),
        pick,
        ("a0", "a1"),
        ("same", "second"),
        ordered=True,
        flops=3,
    )


def _welford() -> Combiner:
    # State: count, mean, sum of squared distances. Chan, Golub, LeVeque 1979.
    n = ("add", "a0", "b0")
    safe = ("max", n, 1.0)
    delta = ("sub", "b1", "a1")
    share = ("div", "b0", safe)
    mean = ("add", "a1", ("mul", delta, share))
    m2 = ("add", ("add", "a2", "b2"), ("mul", ("mul", delta, delta), ("mul", "a0", share)))
    return Combiner(
        "welford",
        1,
        (0.0, 0.0, 0.0),
        (1.0, "x0", 0.0),
        (n, mean, m2),
        ("a1", "a2"),
        ("same", "same"),
        flops=8,
    )


def _maxsumexp() -> Combiner:
    # State: maximum, sum of exp(x - maximum). Milakov and Gimelshein 2018 (arXiv 1805.02867).
    # An infinite maximum is kept out of the subtraction so that -inf - -inf does not make NaN.
    top = ("max", "a0", "b0")
    base = ("select", ("isinf", top), 0.0, top)
    left = ("mul", "a1", ("exp", ("sub", "a0", base)))
    right = ("mul", "b1", ("exp", ("sub", "b0", base)))
    return Combiner(
        *("maxsumexp", 1, ("lowest", 0.0), ("x0", 1.0), (top, ("add", left, right)), ("a0", "a1")),
        types=("same", "same"),
        flops=4,
        special=1,
    )


COMBINERS: dict[str, Combiner] = {
    c.name: c
    for c in (
        _simple("sum", 0, "add"),
        _simple("prod", 1, "mul"),
        _simple("max", "lowest", "max"),
        _simple("min", "highest", "min"),
        _simple("any", False, "or", "bool"),
        _simple("all", True, "and", "bool"),
        _simple("xor", 0, "xor"),
        _arg("argmax", "lowest", "gt"),
        _arg("argmin", "highest", "lt"),
        _welford(),
        _maxsumexp(),
    )
}
