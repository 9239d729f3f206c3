"""Values: the hash-consed expressions that kernels store. A body is a value, never a closure.

    value = const(number)
          | iota(index)                         an index as a number
          | load(buffer, index..., [guard])     0 where the guard is false; nothing is touched there
          | word(value, ...)                    ridgeline.ir.words
          | cast(value)
          | fold(combiner, axes, value, ...)    one component of a combiner over bound axes

Equal values are the same object. `axes` are the free axes. Substitution renames bound axes where they would capture.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Union
from weakref import WeakValueDictionary

from ridgeline.base.errors import CheckFailed
from ridgeline.ir.combiners import COMBINERS
from ridgeline.ir.index import Atom, Axis, Div, Index, IndexLike, Mod, Read, as_index
from ridgeline.ir.types import BOOL, F32, I64, DType
from ridgeline.ir.words import WORDS

Number = bool | int | float
Like = Union["Value", Number]


@dataclass(frozen=True, slots=True)
class FoldAttr:
    """Which combiner, over which bound axes, and which component of its result."""

    combiner: str
    axes: tuple[Axis, ...]
    part: int


@dataclass(frozen=True, slots=True)
class LoadAttr:
    """Which buffer, at which index of each dimension, and how its elements are stored."""

    buffer: str
    index: tuple[Index, ...]
    stored: DType


class Value:
    """One node. `op` is "const", "iota", "load", "cast", "fold" or a word; `dtype` the type it is computed in."""

    __slots__ = ("__weakref__", "args", "attr", "axes", "depth", "dtype", "hash", "op")
    op: str
    args: tuple["Value", ...]
    attr: Any
    dtype: DType
    axes: frozenset[Axis]
    depth: int  # how many folds deep it is
    hash: int

    def __hash__(self) -> int:
        return self.hash

    def __repr__(self) -> str:
        inner = ", ".join(map(repr, self.args))
        match self.op:
            case "const":
                return f"{self.attr}:{self.dtype}"
            case "iota":
                return f"iota({self.attr})"
            case "load":
                at = ", ".join(map(repr, self.attr.index))
                return f"{self.attr.buffer}[{at}]" + (f" if {inner}" if inner else "")
            case "cast":
                return f"{self.dtype}({inner})"
            case "fold":
                over = ", ".join(a.name for a in self.attr.axes)
                part = f".{self.attr.part}" if self.attr.part else ""
                return f"{self.attr.combiner}{part}<{over}>({inner})"
        return f"{self.op}({inner})"

    def __add__(self, other: Like) -> "Value":
        return word("add", self, other)

    def __radd__(self, other: Like) -> "Value":
        return word("add", other, self)

    def __sub__(self, other: Like) -> "Value":
        return word("sub", self, other)

    def __rsub__(self, other: Like) -> "Value":
        return word("sub", other, self)

    def __mul__(self, other: Like) -> "Value":
        return word("mul", self, other)

    def __rmul__(self, other: Like) -> "Value":
        return word("mul", other, self)

    def __truediv__(self, other: Like) -> "Value":
        return word("div", self, other)

    def __rtruediv__(self, other: Like) -> "Value":
        return word("div", other, self)

    def __neg__(self) -> "Value":
        return word("neg", self)

    def __lt__(self, other: Like) -> "Value":
        return word("lt", self, other)

    def __le__(self, other: Like) -> "Value":
        return word("le", self, other)

    def __gt__(self, other: Like) -> "Value":
        return word("gt", self, other)

    def __ge__(self, other: Like) -> "Value":
        return word("ge", self, other)

    def __and__(self, other: Like) -> "Value":
        return word("and", self, other)

    def __or__(self, other: Like) -> "Value":
        return word("or", self, other)

    def __invert__(self) -> "Value":
        return word("not", self)


_table: "WeakValueDictionary[tuple[Any, ...], Value]" = WeakValueDictionary()


def _make(op: str, args: tuple[Value, ...], attr: Any, dtype: DType) -> Value:
    # repr distinguishes 0.0 from -0.0 and True from 1, and makes NaN equal to itself.
    key = (op, args, repr(attr) if op == "const" else attr, dtype)
    found = _table.get(key)
    if found is not None:
        return found
    value = Value()
    value.op, value.args, value.attr, value.dtype, value.hash = op, args, attr, dtype, hash(key)
    axes: frozenset[Axis] = frozenset().union(*(a.axes for a in args)) if args else frozenset()
    if op == "load":
        axes = axes.union(*(i.axes for i in attr.index)) if attr.index else axes
    elif op == "iota":
        axes = attr.axes
    elif op == "fold":
        axes = axes.difference(attr.axes)
    value.axes = axes
    inside = args if op not in ("load", "iota") else (*args, *_reads(op, attr))
    value.depth = max((a.depth for a in inside), default=0) + (op == "fold")
    _table[key] = value
    return value


def _reads(op: str, attr: Any) -> Iterator[Value]:
    if op == "load":
        for index in attr.index:
            if index.has_reads:
                yield from index.reads
    elif op == "iota":
        yield from attr.reads


def const(number: Number, dtype: DType = F32) -> Value:
    """A number in a compute type."""
    dtype = dtype.compute
    number = bool(number) if dtype is BOOL else float(number) if dtype.is_float else int(number)
    return _make("const", (), number, dtype)


def iota(index: IndexLike, dtype: DType = I64) -> Value:
    """An index expression as an integer value."""
    index = as_index(index)
    number = index.const
    return const(number, dtype) if number is not None else cast(_make("iota", (), index, I64), dtype)


def load(buffer: str, index: Iterable[IndexLike], stored: DType, guard: Value | None = None) -> Value:
    """An element of a buffer; 0 where the guard is false."""
    attr = LoadAttr(buffer, tuple(as_index(i) for i in index), stored)
    return _make("load", () if guard is None else (guard,), attr, stored.compute)


def cast(value: Value, dtype: DType) -> Value:
    """The value in another compute type (storage-only types: the type they compute in)."""
    dtype = dtype.compute
    if value.dtype is dtype:
        return value
    if value.op == "const":
        finite = not isinstance(value.attr, float) or abs(value.attr) < float("inf")
        if finite and not (isinstance(value.attr, float) and dtype.kind == "u" and value.attr < 0):
            return const(value.attr, dtype)
    return _make("cast", (value,), None, dtype)


def word(name: str, *args: Like) -> Value:
    """A word applied; plain numbers take the type of the first value among the arguments."""
    info = WORDS[name]
    first = next((a for a in (args[1:] if name == "select" else args) if isinstance(a, Value)), None)
    if first is None:
        raise CheckFailed("value", name, "no argument has a type")
    given = [a if isinstance(a, Value) else const(a, first.dtype) for a in args]
    if len(given) != info.arity:
        raise CheckFailed("value", name, f"takes {info.arity} values, not {len(given)}")
    same = given[1:] if name == "select" else given
    if any(a.dtype is not same[0].dtype for a in same):
        raise CheckFailed("value", f"{name}({', '.join(map(repr, given))})", "its arguments differ in type")
    return _make(name, tuple(given), None, info.dtype(tuple(a.dtype for a in given)))


def fold(combiner: str, axes: Iterable[Axis], *args: Value, part: int = 0) -> Value:
    """One component of a combiner over bound axes. Over no axes it is the finished single element.

    Bound axes are renamed by depth (r1, r2, ... outwards), so folds equal but for their names are one object.
    """
    info = COMBINERS[combiner]
    given = tuple(axes)
    level = 1 + max((a.depth for a in args), default=0)
    bound = tuple(Axis(f"r{level}" if k == 0 else f"r{level}_{k}", a.size) for k, a in enumerate(given))
    if given != bound:
        images = {a: as_index(b) for a, b in zip(given, bound, strict=True)}
        args = tuple(substitute(a, images) for a in args)
    single = _single(args[0], bound[0]) if combiner == "sum" and len(bound) == 1 else None
    if single is not None:
        return single
    attr = FoldAttr(combiner, bound, part)
    return _make("fold", args, attr, info.result(part, tuple(a.dtype for a in args)))


def _single(summed: Value, axis: Axis) -> Value | None:
    """The sum over an axis of `select(r == t, x, 0)`, which is x where t lies on the axis: one-hot targets."""
    if summed.op != "select" or summed.args[0].op != "eq":
        return None
    hit, x, other = summed.args
    if other.op != "const" or other.attr != 0 or axis in x.axes:
        return None
    for here, there in (hit.args, hit.args[::-1]):
        if here.op == "iota" and here.attr is as_index(axis) and axis not in there.axes:
            on_it = word("and", word("ge", there, 0), word("lt", there, iota(axis.size, there.dtype)))
            return word("select", on_it, x, other)
    return None


_fresh = count()


def fresh(size: IndexLike, name: str = "t") -> Axis:
    """A new axis that equals no other."""
    return Axis(f"{name}{next(_fresh)}", as_index(size))


def operands(value: Value) -> Iterator[Value]:
    """Direct children, values inside index expressions included."""
    yield from value.args
    if value.op in ("load", "iota"):
        yield from _reads(value.op, value.attr)


def nodes(roots: Iterable[Value]) -> list[Value]:
    """Every value reachable from the roots, operands first, each once."""
    order: dict[Value, None] = {}
    stack: list[tuple[Value, bool]] = [(r, False) for r in reversed(list(roots))]
    while stack:
        value, done = stack.pop()
        if done:
            order[value] = None
        elif value not in order:
            stack.append((value, True))
            stack.extend((o, False) for o in operands(value) if o not in order)
    return list(order)


def loads(roots: Iterable[Value]) -> list[Value]:
    """Every load reachable from the roots, operands first."""
    return [v for v in nodes(roots) if v.op == "load"]


Inline = Callable[[Value], Value | None]
Images = Mapping[Axis, Index]


class _Substitution:
    """One pass of substitution: images for axes, and an optional replacement for loads."""

    def __init__(self, images: Images, inline: Inline | None) -> None:
        self.images = {a: i for a, i in images.items() if as_index(a) is not i}
        self.inline = inline
        self.done: dict[Value, Value] = {}
        self.indices: dict[Index, Index] = {}

    def value(self, v: Value) -> Value:
        out = self.done.get(v)
        if out is None:
            untouched = self.inline is None and v.axes.isdisjoint(self.images)
            out = self.done[v] = v if untouched else self._rebuild(v)
        return out

    def index(self, i: Index) -> Index:
        out = self.indices.get(i)
        if out is None:
            out = self.indices[i] = self._index(i)
        return out

    def _index(self, index: Index) -> Index:
        if not index.has_reads and index.axes.isdisjoint(self.images):
            return index
        if len(index.terms) == 1 and index.terms[0][0] == 1 and len(index.terms[0][1]) == 1:
            return self._atom(index.terms[0][1][0])
        out = as_index(0)
        for coefficient, factors in index.terms:
            term = as_index(coefficient)
            for atom in factors:
                term = term * self._atom(atom)
            out = out + term
        return out

    def _atom(self, atom: Atom) -> Index:
        match atom:
            case Axis():
                return self.images.get(atom, as_index(atom))
            case Div():
                return self.index(atom.num) // self.index(atom.den)
            case Mod():
                return self.index(atom.num) % self.index(atom.den)
            case Read():
                return as_index(Read(self.value(atom.value), self.index(atom.size)))
        return as_index(atom)

    def _rebuild(self, v: Value) -> Value:
        if v.op == "fold":
            return self._fold(v)
        args = tuple(self.value(a) for a in v.args)
        if v.op == "load":
            out = load(v.attr.buffer, [self.index(i) for i in v.attr.index], v.attr.stored, *args)
            replaced = self.inline(out) if self.inline is not None else None
            return out if replaced is None else replaced
        if v.op == "iota":
            return iota(self.index(v.attr), v.dtype)
        return v if args == v.args else _make(v.op, args, v.attr, v.dtype)

    def _fold(self, v: Value) -> Value:
        # Bound axes get fresh names first, so that no image can be captured; `fold` names them again.
        attr: FoldAttr = v.attr
        bound = tuple(fresh(a.size) for a in attr.axes)
        images = {a: i for a, i in self.images.items() if a not in attr.axes and a in v.axes}
        images |= {a: as_index(b) for a, b in zip(attr.axes, bound, strict=True)}
        inner = _Substitution(images, self.inline)
        args = tuple(inner.value(a) for a in v.args)
        return fold(attr.combiner, bound, *args, part=attr.part)


def substitute(value: Value, images: Images, inline: Inline | None = None) -> Value:
    """The value with axes replaced by index expressions, and loads (after replacement) by what `inline` gives."""
    return _Substitution(images, inline).value(value)


def substitute_index(index: Index, images: Images, inline: Inline | None = None) -> Index:
    """The same for an index expression, values read from memory included."""
    return _Substitution(images, inline).index(index)
