"""Blocks: index expressions, masks, values and memory accesses of one Triton kernel, as text.

An open tiled axis is one dimension of every block of the kernel; a value is a block over the tiled axes it varies
over, with length 1 along the others, or a scalar, so that all broadcasts are Triton's own. Statements and folds are
`triton.py`'s.
"""

import keyword
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ridgeline.base.errors import BuildFailed
from ridgeline.codegen import triton_words as spell
from ridgeline.ir.index import Atom, Axis, Div, Index, Mod, Read, Sym, as_index, at_least, lower, upper
from ridgeline.ir.program import Program
from ridgeline.ir.types import I64, DType
from ridgeline.ir.value import Value

TAKEN = re.compile(r"(tl|triton|libdevice|pid|range|float|kept|finite|v\d+)$|[pnwrc]_|f\d+[a-f]|tile_|floor_|[A-Z]")
NARROW = 2**31 - 2**17  # offsets up to here, and what masked lanes reach beyond, fit 32 bits
Dims = frozenset[Axis]
NONE: Dims = frozenset()


def identifier(name: str) -> str:
    """A Python name for a name of ours, to stand after a prefix."""
    return re.sub(r"\W", "_", name)


def spell_index(index: Index, name: Callable[[Atom], str]) -> str:
    """An index expression as Python text, atoms named by `name`; what is not one atom in parentheses."""
    if index.const is not None:
        return str(index.const)
    out = ""
    for coefficient, factors in index.terms:
        parts = [*([str(abs(coefficient))] if abs(coefficient) != 1 or not factors else []), *map(name, factors)]
        text = " * ".join(parts)
        out += (" - " if out else "-") + text if coefficient < 0 else (" + " if out else "") + text
    return out if len(index.terms) == 1 and index.terms[0] == (1, index.terms[0][1][:1]) else f"({out})"


def bare(text: str) -> str:
    """Text without parentheses around the whole."""
    depth = 0
    for k, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if not depth and k < len(text) - 1:
            return text
    return text[1:-1] if text[:1] == "(" else text


def host(index: Index) -> str:
    """A size expression for the launch table, in names of size symbols."""

    def name(atom: Atom) -> str:
        match atom:
            case Sym():
                return identifier(atom.name)
            case Div() | Mod():
                return f"({host(atom.num)} {'//' if isinstance(atom, Div) else '%'} {host(atom.den)})"
        raise BuildFailed("triton", f"a size depends on {atom!r}")

    return spell_index(index, name)


def is_wide(program: Program) -> bool:
    """Whether an offset may need 64 bits; one whose size is known only at run time always may."""
    for buffer in (*program.buffers, *(s.buffer for s in program.scratch)):
        last = as_index(0)
        for size, stride in zip(buffer.shape, buffer.strides, strict=True):
            last = last + (upper(size) - 1) * stride
        if last.const is None or last.const >= NARROW:
            return True
    return any(axis.size.const is None for phase in program.phases for axis in phase.grid)


@dataclass
class Blocks:
    """The text of one kernel so far, and what is open in it."""

    program: Program
    wide: bool
    order: tuple[Axis, ...] = ()  # tiled axes, one dimension each
    tiles: dict[Axis, int] = field(default_factory=dict)
    opened: set[Axis] = field(default_factory=set)
    masks: dict[Axis, str] = field(default_factory=dict)  # of open ragged axes
    counts: dict[Axis, str] = field(default_factory=dict)  # positions of an open tile that count
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    counter: int = 0
    names: dict[Value, str] = field(default_factory=dict)
    axis_names: dict[Axis, str] = field(default_factory=dict)
    pointers: set[str] = field(default_factory=set)
    sizes: set[str] = field(default_factory=set)

    # ---- text

    def put(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def fresh(self, text: str, count: int = 1) -> list[str]:
        """Names for what an expression gives."""
        names = [f"v{self.counter + k}" for k in range(count)]
        self.counter += count
        self.put(f"{', '.join(names)} = {text}")
        return names

    def named(self, text: str, dtype: DType) -> str:
        return self.fresh(text)[0]

    def word(self, name: str, args: Sequence[str], dtypes: Sequence[DType]) -> str:
        return spell.word(name, args)

    def number(self, number: bool | int | float, dtype: DType) -> str:
        return spell.number(number, dtype)

    # ---- index expressions

    def axis_name(self, axis: Axis) -> str:
        if axis not in self.axis_names:
            name = identifier(axis.name)
            if TAKEN.match(name) or keyword.iskeyword(name):
                name = f"at_{name}"
            while name in self.axis_names.values():
                name += "_"
            self.axis_names[axis] = name
        return self.axis_names[axis]

    def index(self, index: Index) -> str:
        return spell_index(index, self.atom)

    def atom(self, atom: Atom) -> str:
        match atom:
            case Axis():
                return self.axis_name(atom)
            case Sym():
                self.sizes.add(atom.name)
                return f"n_{identifier(atom.name)}"
            case Div() | Mod():
                num, den = self.index(atom.num), self.index(atom.den)
                division = isinstance(atom, Div)
                if at_least(atom.num, 0):
                    return f"({num} {'//' if division else '%'} {den})"
                return f"{'floor_div' if division else 'floor_mod'}({num}, {den})"
            case Read():
                return self.value(atom.value)
        raise BuildFailed("triton", f"index {atom!r} is not spelled")

    def is_narrow(self, index: Index) -> bool:
        """Whether an index is computed in 32 bits here."""
        return not self.wide and not any(True for _ in index.reads) and abs(index.const or 0) < NARROW

    # ---- blocks

    def dims(self, axes: Iterable[Axis]) -> Dims:
        """The open tiled axes among some axes."""
        return frozenset(self.opened.intersection(axes))

    def shape(self, dims: Dims) -> str:
        return f"[{', '.join(str(self.tiles[a]) if a in dims else '1' for a in self.order) if dims else ''}]"

    def spread(self, text: str, have: Dims, want: Dims) -> str:
        """A value as a block over more axes."""
        return text if have == want else f"tl.broadcast_to({text}, {self.shape(want)})"

    def mask(self, dims: Iterable[Axis], *more: str) -> str:
        """The conditions under which positions count; empty where all do."""
        given = set(dims)
        return " & ".join([*more, *(self.masks[a] for a in self.order if a in given and a in self.masks)])

    # ---- values

    def value(self, v: Value, typed: bool = False) -> str:
        if v.op == "const":
            return spell.typed(v.attr, v.dtype) if typed else spell.number(v.attr, v.dtype)
        return self.names[v]

    def expression(self, v: Value) -> str:
        if v.op == "iota":
            return f"tl.cast({self.index(v.attr)}, tl.int64)"
        if v.op == "load":
            return self.load(v.attr.buffer, v.attr.stored, v.attr.index[0], self.dims(v.axes), v.args)
        narrow = [self.narrow(a, v) for a in v.args] if v.op in spell.COMPARISONS else []
        if narrow and all(narrow):
            return spell.word(v.op, [text or "" for text in narrow])
        typed = v.op == "cast" or v.op in spell.CALLED or all(a.op == "const" for a in v.args)
        args = [self.value(a, typed) for a in v.args]
        return spell.cast(args[0], v.args[0].dtype, v.dtype) if v.op == "cast" else spell.word(v.op, args)

    def narrow(self, value: Value, comparison: Value) -> str | None:
        """A side of a comparison of indices in 32 bits, where that gives the same answer.

        A number compared with positions 0 .. n - 1 may be brought to -1 .. n first: worth it for one that is the same
        for the whole tile.
        """
        if value.dtype is not I64:
            return None
        if value.op in ("iota", "const"):
            index = value.attr if value.op == "iota" else as_index(value.attr)
            return self.index(index) if self.is_narrow(index) else None
        other = next((a for a in comparison.args if a is not value), value)
        if other.op != "iota" or self.dims(value.axes) or not self.dims(other.axes) or not self.is_narrow(other.attr):
            return None
        least, most = lower(other.attr).const, upper(other.attr).const
        if least is None or most is None or least <= -NARROW or most >= NARROW:
            return None
        return f"clip_i32({self.value(value)}, {least - 1}, {most + 1})"

    # ---- memory

    def address(self, buffer: str, offset: Index, dims: Dims) -> str:
        self.pointers.add(buffer)
        have, at = self.dims(offset.axes), self.index(offset)
        if at == "0" and not dims:
            return f"p_{identifier(buffer)}"
        if have != dims:
            constant = offset.const is not None
            at = f"tl.full({self.shape(dims)}, {at}, tl.int32)" if constant else self.spread(at, have, dims)
        return f"p_{identifier(buffer)} + {at}"

    def load(self, buffer: str, stored: DType, offset: Index, dims: Dims, guard: Sequence[Value] = ()) -> str:
        mask = self.mask(dims, *map(self.value, guard))
        masked = f", mask={mask}, other={0.0 if stored.is_float else 0}" if mask else ""
        widened = "" if stored.compute is stored else f".to({spell.type_name(stored.compute)})"
        return f"tl.load({self.address(buffer, offset, dims)}{masked}){widened}"

    def store(self, buffer: str, offset: Index, text: str, dims: Dims, call: str = "tl.store", more: str = "") -> None:
        mask = self.mask(dims)
        masked = f", mask={mask}" if mask else ""
        self.put(f"{call}({self.address(buffer, offset, dims)}, {text}{masked}{more})")
