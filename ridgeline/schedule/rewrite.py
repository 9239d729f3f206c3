"""Folds written otherwise: as plain words where they are short, as simpler folds where the data is near.

`expanded(fold)` spells out a fold over a few elements. `direct(fold)` replaces the online form of a combiner - whose
every step costs what a second look at the data would - by simple folds one after the other: the maximum, then the sum
of exponentials; the mean, then the squared distances. Both give what the combiner gives, element order aside.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from ridgeline.ir.combiners import COMBINERS
from ridgeline.ir.index import Index, as_index
from ridgeline.ir.types import BOOL, DType
from ridgeline.ir.value import Value, cast, const, iota, substitute, word
from ridgeline.ir.words import WORDS
from ridgeline.schedule.tasks import Fold

EXPAND = 16  # folds of up to so many elements are spelled out

Environment = Mapping[str, Value]


def _type(expr: Any, env: Environment) -> DType | None:
    if isinstance(expr, tuple):
        if WORDS[expr[0]].result == "bool":
            return BOOL
        inner = [_type(e, env) for e in (expr[2:] if expr[0] == "select" else expr[1:])]
        return next((t for t in inner if t is not None), None)
    return env[expr].dtype if isinstance(expr, str) and expr in env else None


def _value(expr: Any, env: Environment, want: DType) -> Value:
    """A combiner's expression as a value; numbers take the type around them."""
    if isinstance(expr, tuple):
        name, *rest = expr
        typed = [_type(e, env) for e in (rest[1:] if name == "select" else rest)]
        inner = next((t for t in typed if t is not None), want)
        wants = [BOOL, inner, inner] if name == "select" else [inner] * len(rest)
        return word(name, *(_value(e, env, w) for e, w in zip(rest, wants, strict=True)))
    return env[expr] if isinstance(expr, str) else const(expr, want)


def lifted(combiner: str, elements: Sequence[Value], states: Sequence[DType]) -> tuple[Value, ...]:
    """The state of one element."""
    env = {f"x{k}": e for k, e in enumerate(elements)}
    return tuple(_value(e, env, t) for e, t in zip(COMBINERS[combiner].lift, states, strict=True))


def combined(combiner: str, states: Sequence[tuple[Value, ...]]) -> tuple[Value, ...]:
    """States joined as a tree, neighbours first."""
    while len(states) > 1:
        pairs = [_pair(combiner, a, b) for a, b in zip(states[::2], states[1::2], strict=False)]
        states = [*pairs, *states[len(pairs) * 2 :]]
    return states[0]


def _pair(combiner: str, left: tuple[Value, ...], right: tuple[Value, ...]) -> tuple[Value, ...]:
    env = {f"a{k}": v for k, v in enumerate(left)} | {f"b{k}": v for k, v in enumerate(right)}
    return tuple(_value(e, env, a.dtype) for e, a in zip(COMBINERS[combiner].combine, left, strict=True))


def finished(combiner: str, state: tuple[Value, ...], part: int, dtype: DType) -> Value:
    """A component of the result."""
    env = {f"a{k}": v for k, v in enumerate(state)}
    return cast(_value(COMBINERS[combiner].finish[part], env, dtype), dtype)


def elements_count(fold: Value) -> int | None:
    """How many elements a fold value has, where that is known."""
    total = 1
    for axis in fold.attr.axes:
        if axis.size.const is None:
            return None
        total *= axis.size.const
    return total


def expanded(fold: Value, states: Sequence[DType]) -> Value:
    """A fold over known, few elements as words."""
    attr = fold.attr
    parts = []
    for point in product(*(range(a.size.const) for a in attr.axes)):
        images = {a: as_index(p) for a, p in zip(attr.axes, point, strict=True)}
        parts.append(lifted(attr.combiner, [substitute(a, images) for a in fold.args], states))
    return finished(attr.combiner, combined(attr.combiner, parts), attr.part, fold.dtype)


@dataclass(frozen=True, slots=True)
class Direct:
    """Simple folds in order; what each component of the original is, and its state, in terms of them."""

    folds: tuple[Fold, ...]
    results: tuple[Value, ...]
    state: tuple[Value, ...]


def _simple(fold: Fold, letter: str, combiner: str, element: Value) -> Fold:
    t = element.dtype
    return Fold(fold.name + letter, combiner, fold.axes, fold.kept, (element,), ((0, t),), (t,))


def _maxsumexp(fold: Fold, count: Index | None) -> Direct:
    (x,) = fold.elements
    top = _simple(fold, "m", "max", x)
    t = top.result(0)
    total = _simple(fold, "s", "sum", word("exp", x - t))
    # With an infinite maximum the differences are NaN: the sum is then 0 (nothing but -inf) or infinite.
    infinite = word("select", word("gt", t, 0.0), const(float("inf"), t.dtype), 0.0)
    s = word("select", word("isinf", t), infinite, total.result(0))
    return Direct((top, total), (t, s), (t, s))


def _welford(fold: Fold, count: Index | None) -> Direct:
    (x,) = fold.elements
    total = _simple(fold, "s", "sum", x)
    counted: tuple[Fold, ...] = ()
    if count is None:
        counted = (_simple(fold, "n", "sum", const(1.0, x.dtype)),)
        n = counted[0].result(0)
    else:
        n = cast(iota(count), x.dtype)
    mean = total.result(0) / n
    away = x - mean
    squares = _simple(fold, "q", "sum", away * away)
    return Direct((total, *counted, squares), (mean, squares.result(0)), (n, mean, squares.result(0)))


_DIRECT = {"maxsumexp": _maxsumexp, "welford": _welford}


def direct(fold: Fold, count: Index | None) -> Direct | None:
    """The fold as simple ones, or None where it is one. `count`: how many elements, None where a block is ragged."""
    form = _DIRECT.get(fold.combiner)
    return None if form is None or fold.joins or fold.empty else form(fold, count)
