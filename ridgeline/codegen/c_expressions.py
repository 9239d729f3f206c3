"""The C target's expressions: indices as scalars and as vectors of lanes, values, loads and stores.

A value is a vector of W lanes, the same number in each lane where it does not vary along the open tiled axis; only
offsets are scalars.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ridgeline.base.errors import BuildFailed
from ridgeline.codegen.c_words import TAKEN, identifier, literal, pointer_name, size_name, suffix, word
from ridgeline.ir.index import Atom, Axis, Div, Index, Mod, Read, Sym, as_index, at_least
from ridgeline.ir.program import Program
from ridgeline.ir.types import I64, DType
from ridgeline.ir.value import Value


@dataclass(frozen=True, slots=True)
class Lane:
    """The open tiled axis, and how many of its lanes count ("" for all)."""

    axis: Axis | None = None
    count: str = ""
    copy: int = 0  # which copy of the accumulators an unrolled body uses

    @property
    def n(self) -> str:
        return self.count or "W"


@dataclass
class Expressions:
    """Spells the expressions of one program, and keeps the names of what it has spelled."""

    program: Program
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    names: dict[Value, str] = field(default_factory=dict)
    counter: int = 0
    axis_names: dict[Axis, str] = field(default_factory=dict)

    # ---- text

    def put(self, line: str) -> None:
        self.lines.append("    " * self.depth + line if line[0] != "#" else line)

    def open(self, line: str = "") -> None:
        self.put(f"{line} {{" if line else "{")
        self.depth += 1

    def close(self) -> None:
        self.depth -= 1
        self.put("}")

    def fresh(self) -> str:
        self.counter += 1
        return f"v{self.counter - 1}"

    def pointer(self, buffer: str, offset: str) -> str:
        name = pointer_name(buffer)
        return name if offset == "0" else f"{name} + {offset}"

    # ---- index expressions

    def axis_name(self, axis: Axis) -> str:
        if axis not in self.axis_names:
            name = identifier(axis.name)
            while TAKEN.match(name) or name in self.axis_names.values():
                name += "_"
            self.axis_names[axis] = name
        return self.axis_names[axis]

    def scalar(self, index: Index) -> str:
        """An int64 expression; along the open tiled axis, that of the first lane."""
        if index.const is not None:
            return str(index.const)
        out = ""
        for coefficient, factors in index.terms:
            parts = [self.atom(f) for f in factors]
            if abs(coefficient) != 1 or not parts:
                parts.insert(0, str(abs(coefficient)))
            text = " * ".join(parts)
            out += (" - " if out else "-") + text if coefficient < 0 else (" + " if out else "") + text
        return out if len(index.terms) == 1 and index.terms[0] == (1, index.terms[0][1][:1]) else f"({out})"

    def atom(self, atom: Atom) -> str:
        match atom:
            case Axis():
                return self.axis_name(atom)
            case Sym():
                return size_name(atom.name)
            case Div() | Mod():
                num, den = self.scalar(atom.num), self.scalar(atom.den)
                if at_least(atom.num, 0):
                    return f"({num} {'/' if isinstance(atom, Div) else '%'} {den})"
                return f"{'x_floor_i64' if isinstance(atom, Div) else 'x_mod_i64'}({num}, {den})"
            case Read():
                return f"(int64_t){self.first(atom.value)}"
        raise BuildFailed("c", f"index {atom!r} is not spelled")

    def first(self, value: Value) -> str:
        """Lane 0 of a value."""
        half = ".lo" if value.dtype.bytes == 8 else ""
        return f"{self.value(value)}{half}[0]"

    def vector(self, index: Index, lane: Lane) -> str:
        """An index as a vector of int64."""
        axis = lane.axis
        if axis is None or axis not in index.axes:
            return f"splat_i64({self.scalar(index)})"
        step = index.coefficient(axis)
        if step is not None and axis not in step.axes:
            return f"iota_i64({self.scalar(index)}, {self.scalar(step)})"
        out = ""
        for coefficient, factors in index.terms:
            varying = [f for f in factors if axis in as_index(f).axes]
            rest = as_index(coefficient)
            for f in factors:
                rest = rest * f if f not in varying else rest
            text = self.vector_atom(varying[0], lane) if varying else f"splat_i64({self.scalar(rest)})"
            for f in varying[1:]:
                text = f"w_mul_i64({text}, {self.vector_atom(f, lane)})"
            if varying and rest.const != 1:
                text = f"w_mul_i64({text}, splat_i64({self.scalar(rest)}))"
            out = f"w_add_i64({out}, {text})" if out else text
        return out

    def vector_atom(self, atom: Atom, lane: Lane) -> str:
        match atom:
            case Axis():
                return f"iota_i64({self.axis_name(atom)}, 1)"
            case Div() | Mod():
                return self.quotient(atom, lane)
            case Read():
                return self.cast(self.value(atom.value), atom.value.dtype, I64)
        raise BuildFailed("c", f"index {atom!r} is not spelled")

    def quotient(self, atom: Div | Mod, lane: Lane) -> str:
        """floor(num / den), or what remains: by a shift, or in f64, where integers below 2^53 divide exactly."""
        num, den, division = self.vector(atom.num, lane), atom.den.const, isinstance(atom, Div)
        if den is not None and den & (den - 1) == 0:
            shift = f"splat_i64({den.bit_length() - 1 if division else den - 1})"
            return f"w_{'shr' if division else 'and'}_i64({num}, {shift})"
        if lane.axis is not None and lane.axis in atom.den.axes:
            return f"w_{'div_floor' if division else 'mod'}_i64({num}, {self.vector(atom.den, lane)})"
        return f"x_{'floor' if division else 'mod'}_by({num}, {self.scalar(atom.den)})"

    # ---- values

    def word(self, name: str, args: Sequence[str], dtypes: Sequence[DType]) -> str:
        return word(name, args, dtypes)

    def number(self, number: bool | int | float, dtype: DType) -> str:
        return f"splat_{suffix(dtype)}({literal(number, dtype)})"

    def named(self, text: str, dtype: DType) -> str:
        name = self.fresh()
        self.put(f"const v_{suffix(dtype)} {name} = {text};")
        return name

    def value(self, v: Value) -> str:
        if v.op == "const":
            return self.number(v.attr, v.dtype)
        return self.names[v]

    def cast(self, text: str, source: DType, target: DType) -> str:
        return text if source is target else f"cast_{suffix(source)}_{suffix(target)}({text})"

    def expression(self, v: Value, lane: Lane) -> str:
        if v.op == "iota":
            return self.vector(v.attr, lane)
        if v.op == "load":
            return self.load(v.attr.buffer, v.attr.stored, v.attr.index[0], lane, v.args[0] if v.args else None)
        args = [self.value(a) for a in v.args]
        if v.op == "cast":
            return self.cast(args[0], v.args[0].dtype, v.dtype)
        return word(v.op, args, [a.dtype for a in v.args])

    def load(self, buffer: str, stored: DType, offset: Index, lane: Lane, guard: Value | None = None) -> str:
        t, at = suffix(stored), self.pointer(buffer, self.scalar(offset))
        text = self.plain_load(buffer, t, at, offset, lane)
        if guard is None:
            return text
        zero, mask = f"splat_{suffix(stored.compute)}(0)", self.value(guard)
        if lane.axis is None or lane.axis not in guard.axes:
            return f"{self.first(guard)} ? {text} : {zero}"
        some = f"gather_m_{t}({pointer_name(buffer)}, {self.vector(offset, lane)}, {mask}, {lane.n})"
        return f"hall_b({mask}) ? {text} : hany_b({mask}) ? {some} : {zero}"

    def plain_load(self, buffer: str, t: str, at: str, offset: Index, lane: Lane) -> str:
        step = self.distance(offset, lane)
        if step is None:
            return f"gather_{t}({pointer_name(buffer)}, {self.vector(offset, lane)}, {lane.n})"
        if step.const == 0:
            return f"splat_load_{t}({at})"
        if step.const == 1:
            return f"load_n_{t}({at}, {lane.count})" if lane.count else f"load_{t}({at})"
        return f"load_s_{t}({at}, {self.scalar(step)}, {lane.n})"

    def distance(self, offset: Index, lane: Lane) -> Index | None:
        """Distance between lanes; None where it is not the same for all."""
        if lane.axis is None or lane.axis not in offset.axes:
            return as_index(0)
        step = offset.coefficient(lane.axis)
        return None if step is None or lane.axis in step.axes else step

    def store(self, buffer: str, stored: DType, offset: Index, text: str, lane: Lane) -> str:
        t, step, at = suffix(stored), self.distance(offset, lane), self.pointer(buffer, self.scalar(offset))
        if step is None:
            return f"scatter_{t}({pointer_name(buffer)}, {self.vector(offset, lane)}, {text}, {lane.n});"
        if step.const == 0:
            return f"store_n_{t}({at}, {text}, 1);"
        if step.const == 1:
            return f"store_n_{t}({at}, {text}, {lane.count});" if lane.count else f"store_{t}({at}, {text});"
        return f"store_s_{t}({at}, {self.scalar(step)}, {text}, {lane.n});"
