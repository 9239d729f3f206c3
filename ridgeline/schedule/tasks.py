"""What there is to do, over loop axes: folds and writes, with values by flat offset; and how values are rebuilt.

A fold's result stands in other values as the load of a pseudo-buffer, `%f0[i]` (see ir/program.py).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from ridgeline.ir import value as values
from ridgeline.ir.combiners import COMBINERS
from ridgeline.ir.index import Axis, Div, Index, IndexLike, Mod, Read, as_index
from ridgeline.ir.kernel import Buffer, Mode
from ridgeline.ir.program import RESULT
from ridgeline.ir.types import DType
from ridgeline.ir.value import Value, cast, fold, iota, load
from ridgeline.schedule import simplify


@dataclass(frozen=True, slots=True)
class Fold:
    """A fold over loop axes. `parts` are the components that somebody uses, with their types; `states` those of the
    state. With `joins`, the elements are states that were made before.
    """

    name: str
    combiner: str
    axes: tuple[Axis, ...]
    kept: tuple[Axis, ...]
    elements: tuple[Value, ...]
    parts: tuple[tuple[int, DType], ...]
    states: tuple[DType, ...]
    joins: bool = False

    @property
    def empty(self) -> bool:
        """Whether there is nothing to fold: the result is what the combiner makes of its identity."""
        return any(a.size.const == 0 for a in self.axes)

    @property
    def domain(self) -> frozenset[Axis]:
        return frozenset(self.kept if self.empty else (*self.axes, *self.kept))

    @property
    def roots(self) -> tuple[Value, ...]:
        return () if self.empty else self.elements

    def result(self, part: int) -> Value:
        """The value that stands for a component."""
        return result(self.name, part, self.kept, dict(self.parts)[part])


@dataclass(frozen=True, slots=True)
class Write:
    """A store by flat offset. `over` are loaded buffers whose memory it may be: in its phase, it waits until they have
    been read. (Nothing reads them later: `fuse` sees to that.)
    """

    buffer: str
    offset: Index
    value: Value
    mode: Mode = Mode.PLAIN
    streaming: bool = False
    scratch: bool = False
    over: frozenset[str] = frozenset()

    @property
    def domain(self) -> frozenset[Axis]:
        return self.value.axes | self.offset.axes

    @property
    def roots(self) -> tuple[Value, ...]:
        return (*self.offset.reads, self.value)


Task = Fold | Write


@dataclass(frozen=True, slots=True)
class Space:
    """Axes in the kernel's order, and what to do over them; folds before what uses them."""

    axes: tuple[Axis, ...]
    tasks: tuple[Task, ...]
    buffers: Mapping[str, Buffer]


@lru_cache(maxsize=1 << 12)
def _below(root: Value) -> tuple[Value, ...]:
    return tuple(values.nodes([root]))


@lru_cache(maxsize=1 << 12)
def _loads_below(root: Value) -> tuple[Value, ...]:
    return tuple(v for v in _below(root) if v.op == "load")


def nodes(roots: Iterable[Value]) -> list[Value]:
    """Every value reachable from the roots, operands first, each once; what is below a root is walked once."""
    return list(dict.fromkeys(chain.from_iterable(map(_below, roots))))


def loads(roots: Iterable[Value]) -> list[Value]:
    """Every load reachable from the roots, operands first."""
    return list(dict.fromkeys(chain.from_iterable(map(_loads_below, roots))))


def result(name: str, part: int, kept: Iterable[IndexLike], dtype: DType) -> Value:
    """The pseudo-load that names a component of a fold."""
    return load(f"{RESULT}{name}" + (f".{part}" if part else ""), kept, dtype)


def fold_name(value: Value) -> str | None:
    """The fold whose result a value is, if it is one."""
    if value.op != "load" or not value.attr.buffer.startswith(RESULT):
        return None
    name: str = value.attr.buffer[1:].partition(".")[0]
    return name


def fold_results(roots: Iterable[Value]) -> list[Value]:
    """The results of folds reachable from the roots."""
    return [v for v in loads(roots) if v.attr.buffer.startswith(RESULT)]


def state_types(fold: Value) -> tuple[DType, ...]:
    """The types of the state components of a fold."""
    elements = [a.dtype for a in fold.args]
    lifts = COMBINERS[fold.attr.combiner].lift
    return tuple(elements[int(x[1:])] if isinstance(x, str) else elements[0] for x in lifts)


class Rewriter:
    """Rebuilds values bottom-up, each once, and simpler where it can. `before` may replace a value whole, `after` a
    rebuilt load.
    """

    def __init__(self, before: Callable[[Value], Value | None], after: Callable[[Value], Value]) -> None:
        self.before, self.after = before, after
        self.done: dict[Value, Value] = {}

    def value(self, v: Value) -> Value:
        out = self.done.get(v)
        if out is None:
            out = self.before(v)
            out = self.done[v] = self._rebuild(v) if out is None else out
        return out

    def _rebuild(self, v: Value) -> Value:
        if v.op == "const":
            return v
        args = tuple(self.value(a) for a in v.args)
        if v.op == "load":
            index = [self.index(i) for i in v.attr.index]
            out = simplify.load(v.attr.buffer, index, v.attr.stored, *(args or (None,)))
            return self.after(out) if out.op == "load" else out
        if v.op == "iota":
            return iota(self.index(v.attr))
        if v.op == "cast":
            return cast(args[0], v.dtype)
        if v.op == "fold":
            return fold(v.attr.combiner, v.attr.axes, *args, part=v.attr.part)
        return simplify.word(v.op, args)

    def index(self, index: Index) -> Index:
        if not any(True for _ in index.reads):
            return index
        out = as_index(0)
        for coefficient, factors in index.terms:
            term = as_index(coefficient)
            for atom in factors:
                match atom:
                    case Read():
                        term = term * Read(self.value(atom.value), self.index(atom.size))
                    case Div():
                        term = term * (self.index(atom.num) // self.index(atom.den))
                    case Mod():
                        term = term * (self.index(atom.num) % self.index(atom.den))
                    case _:
                        term = term * atom
            out = out + term
        return out
