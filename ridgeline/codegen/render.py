"""Combiners' expressions in a target's words: `ir/combiners.py` is data, this walks it.

A target gives a Spelling - how it writes a word, a number, and how it names an intermediate; equal sub-expressions are
named once.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from ridgeline.ir.combiners import COMBINERS
from ridgeline.ir.program import Accumulator
from ridgeline.ir.types import BOOL, DType
from ridgeline.ir.words import WORDS

Named = tuple[str, DType]
Environment = Mapping[str, Named]


class Spelling(Protocol):
    """How a target writes things down."""

    def word(self, name: str, args: Sequence[str], dtypes: Sequence[DType]) -> str:
        """A word applied."""

    def number(self, number: bool | int | float, dtype: DType) -> str:
        """A constant."""

    def named(self, text: str, dtype: DType) -> str:
        """A name for an intermediate."""


def extreme(dtype: DType, lowest: bool) -> bool | int | float:
    """The least or greatest number of a type, infinities included."""
    if dtype.is_float:
        return -math.inf if lowest else math.inf
    if dtype is BOOL:
        return not lowest
    bits = 8 * dtype.bytes
    low, high = (0, 2**bits - 1) if dtype.kind == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return low if lowest else high


def _type(expr: object, env: Environment) -> DType | None:
    """The type of an expression; None for a bare number."""
    if isinstance(expr, tuple):
        inner = [_type(e, env) for e in (expr[2:] if expr[0] == "select" else expr[1:])]
        known = next((t for t in inner if t is not None), None)
        return BOOL if WORDS[expr[0]].result == "bool" else known
    return env[expr][1] if isinstance(expr, str) and expr in env else None


class _Renderer:
    def __init__(self, spell: Spelling, env: Environment) -> None:
        self.spell, self.env = spell, env
        self.done: dict[object, Named] = {}

    def __call__(self, expr: object, want: DType, top: bool = False) -> Named:
        """Text and type; numbers take the type wanted around them."""
        if isinstance(expr, tuple):
            if expr not in self.done:
                text, dtype = self.apply(expr, want)
                self.done[expr] = (text if top else self.spell.named(text, dtype), dtype)
            return self.done[expr]
        if isinstance(expr, str):
            if expr in self.env:
                return self.env[expr]
            expr = extreme(want, expr == "lowest")
        assert isinstance(expr, bool | int | float)
        return self.spell.number(expr, want), want

    def apply(self, expr: tuple[object, ...], want: DType) -> Named:
        name, *rest = expr
        assert isinstance(name, str)
        typed = [_type(e, self.env) for e in (rest[1:] if name == "select" else rest)]
        inner = next((t for t in typed if t is not None), want)
        wants = [BOOL, inner, inner] if name == "select" else [inner] * len(rest)
        args = [self(e, w) for e, w in zip(rest, wants, strict=True)]
        dtypes = tuple(t for _, t in args)
        return self.spell.word(name, [a for a, _ in args], dtypes), WORDS[name].dtype(dtypes)


def _environment(letter: str, names: Sequence[str], dtypes: Sequence[DType]) -> dict[str, Named]:
    return {f"{letter}{k}": (n, t) for k, (n, t) in enumerate(zip(names, dtypes, strict=True))}


def identity(spell: Spelling, acc: Accumulator) -> list[str]:
    """The state of no element."""
    return _components(spell, COMBINERS[acc.combiner].identity, {}, acc)


def lift(spell: Spelling, acc: Accumulator, elements: Sequence[str]) -> list[str]:
    """The state of one element."""
    return _components(spell, COMBINERS[acc.combiner].lift, _environment("x", elements, acc.dtypes), acc)


def combine(spell: Spelling, acc: Accumulator, left: Sequence[str], right: Sequence[str]) -> list[str]:
    """The state of two parts."""
    env = _environment("a", left, acc.states) | _environment("b", right, acc.states)
    return _components(spell, COMBINERS[acc.combiner].combine, env, acc)


def _components(spell: Spelling, exprs: Sequence[object], env: Environment, acc: Accumulator) -> list[str]:
    render = _Renderer(spell, env)
    return [render(e, t, len(exprs) == 1)[0] for e, t in zip(exprs, acc.states, strict=True)]


def finish(spell: Spelling, acc: Accumulator, states: Sequence[str], part: int, want: DType) -> Named:
    """A component of the result, and its type."""
    return _Renderer(spell, _environment("a", states, acc.states))(COMBINERS[acc.combiner].finish[part], want, True)
