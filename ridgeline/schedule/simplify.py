"""What is decided before anything runs: comparisons of positions whose ranges tell, and what follows from them.

`word(name, *args)` is a word applied, or what it comes to; `load(...)` drops a guard that always holds. Written-out
windows and padding leave many such guards.
"""

from collections.abc import Callable, Sequence

from ridgeline.ir import value as values
from ridgeline.ir.index import Index, as_index, at_least
from ridgeline.ir.types import BOOL, DType
from ridgeline.ir.value import Value, const

# a relation holds for sure, and fails for sure, by the difference b - a
RELATIONS: dict[str, tuple[Callable[[Index], bool], Callable[[Index], bool]]] = {
    "lt": (lambda d: at_least(d, 1), lambda d: at_least(-d, 0)),
    "le": (lambda d: at_least(d, 0), lambda d: at_least(-d, 1)),
    "gt": (lambda d: at_least(-d, 1), lambda d: at_least(d, 0)),
    "ge": (lambda d: at_least(-d, 0), lambda d: at_least(d, 1)),
    "eq": (lambda d: d.const == 0, lambda d: at_least(d, 1) or at_least(-d, 1)),
    "ne": (lambda d: at_least(d, 1) or at_least(-d, 1), lambda d: d.const == 0),
}


def position(v: Value) -> Index | None:
    """A value as an index expression, if it is one."""
    if v.op == "iota":
        index: Index = v.attr
        return index
    if v.op == "const" and v.dtype.is_integer:
        return as_index(v.attr)
    return None


def truth(v: Value) -> bool | None:
    """A bool that is known."""
    return bool(v.attr) if v.op == "const" and v.dtype is BOOL else None


def word(name: str, args: Sequence[Value]) -> Value:
    """The word applied, or what it is known to be."""
    if name in RELATIONS:
        a, b = map(position, args)
        if a is not None and b is not None:
            holds, fails = RELATIONS[name]
            difference = b - a
            if holds(difference):
                return const(True, BOOL)
            if fails(difference):
                return const(False, BOOL)
    elif name == "select":
        known = truth(args[0])
        if known is not None or args[1] is args[2]:
            return args[2] if known is False else args[1]
    elif name in ("and", "or") and args[0].dtype is BOOL:
        for one, other in (args, args[::-1]):
            known = truth(one)
            if known is not None:
                return other if known == (name == "and") else one
    elif name == "not" and truth(args[0]) is not None:
        return const(not truth(args[0]), BOOL)
    return values.word(name, *args)


def load(buffer: str, index: Sequence[Index], stored: DType, guard: Value | None) -> Value:
    """The load, without a guard that always holds; nothing where it never does."""
    known = None if guard is None else truth(guard)
    if known is False:
        return const(0, stored.compute)
    return values.load(buffer, index, stored, None if known else guard)
