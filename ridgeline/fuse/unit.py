"""Units: the definitions of a graph as the walk sees them, with views and constants already read through.

A unit is one stored tensor: a definition over its own axes, what it loads, the folds in it and the axes they keep.
Views cost nothing and constants are cheaper to make than to read, so both are substituted into whoever reads them
before the walk begins. A scatter becomes two units, its start and the accumulation on top of it.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from ridgeline.cost.count import Hints, Touches, arithmetic, stored_elements, touched_bytes, touches
from ridgeline.ir.graph import Definition, Graph, Node, NodeKind
from ridgeline.ir.index import Axis, Index, as_index
from ridgeline.ir.kernel import Buffer, Mode
from ridgeline.ir.value import Value, const, load, loads, nodes, operands, substitute, substitute_index, word

START = "#start"  # suffix of the buffer a scatter begins from
SUMS = "#sums"  # suffix of the wider buffer that a scatter into a narrow type adds up in
NEW = "#new"  # suffix of the buffer that holds what an input becomes, until nothing reads the input any more


@dataclass(frozen=True, slots=True)
class FoldInfo:
    """One fold in a unit: the axes it keeps, those it binds, and whether the unit itself reads it more widely."""

    kept: frozenset[Axis]
    bound: tuple[Axis, ...]
    consumed: bool


@dataclass(frozen=True)
class Unit:
    """One definition. `storage` names the buffer whose memory it writes in place, or None."""

    name: str
    node: Node
    definition: Definition
    position: int  # of its node in the program
    storage: str | None = None
    again: tuple[Node, ...] = ()  # nodes whose values it makes again
    traits: dict[str, object] = field(default_factory=dict, compare=False, repr=False)

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return self is other

    @cached_property
    def roots(self) -> tuple[Value, ...]:
        d = self.definition
        return (*(v for i in d.index for v in i.reads), d.value)

    @cached_property
    def values(self) -> list[Value]:
        return nodes(self.roots)

    @cached_property
    def loads(self) -> tuple[Value, ...]:
        return tuple(v for v in self.values if v.op == "load")

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Buffers it needs, the start of a scatter among them."""
        extra = (self.storage,) if self.is_scatter and self.storage is not None else ()
        return tuple(dict.fromkeys((*(v.attr.buffer for v in self.loads), *extra)))

    @property
    def is_scatter(self) -> bool:
        d = self.definition  # one into a single element has no index
        return bool(d.index) or d.mode is Mode.ADD or self.storage == self.name + START

    @cached_property
    def folds(self) -> tuple[FoldInfo, ...]:
        """Its folds; one is consumed where something of more axes, or another fold, reads it.

        A value computed from a fold alone (mean = sum / n) passes the question on to its own readers.
        """
        spread: dict[Value, bool] = {self.definition.value: False}
        for v in reversed(self.values):
            for o in operands(v):
                wider = v.op == "fold" or not v.axes <= o.axes
                spread[o] = spread.get(o, False) or wider or spread.get(v, False)
        out: dict[object, FoldInfo] = {}
        whole = frozenset(self.domain)
        for v in self.values:
            if v.op == "fold":
                same = (v.attr.combiner, v.attr.axes, v.args)
                consumed = spread.get(v, False) or not whole <= v.axes or (same in out and out[same].consumed)
                out[same] = FoldInfo(v.axes, v.attr.axes, consumed)
        return tuple(out.values())

    @cached_property
    def space(self) -> frozenset[Axis]:
        """Its own axes of more than one point, and the axes its folds bind."""
        own = {a for a in self.definition.axes if a.size.const != 1}
        return frozenset(own.union(*(f.bound for f in self.folds)) if self.folds else own)

    @cached_property
    def domain(self) -> tuple[Axis, ...]:
        """Its own axes of more than one point, in the order of dimensions."""
        return tuple(a for a in self.definition.axes if a.size.const != 1)


def guarded(value: Value, guard: Value) -> Value:
    """The value where the guard holds, 0 elsewhere, touching no memory there."""
    done: dict[Value, Value] = {}

    def protect(v: Value) -> Value | None:
        if v not in done:
            mine = word("and", guard, v.args[0]) if v.args else guard
            done[v] = load(v.attr.buffer, v.attr.index, v.attr.stored, mine)
        return done[v]

    if not loads([value]):
        inner = value
    else:
        inner = substitute(value, {}, protect)
    return word("select", guard, inner, const(0, value.dtype))


def read_through(value: Value, source: Mapping[str, Definition]) -> Value:
    """The value with every load of a buffer in `source` replaced by that buffer's definition at the same index."""

    def inline(v: Value) -> Value | None:
        d = source.get(v.attr.buffer)
        if d is None:
            return None
        inner = substitute(d.value, dict(zip(d.axes, v.attr.index, strict=True)))
        return guarded(inner, v.args[0]) if v.args else inner

    return substitute(value, {}, inline) if any(v.attr.buffer in source for v in loads([value])) else value


def read_index_through(index: Index, source: Mapping[str, Definition]) -> Index:
    """The same for the values an index reads."""
    if not any(True for _ in index.reads):
        return index

    def inline(v: Value) -> Value | None:
        return None if v.attr.buffer not in source else read_through(v, source)

    return substitute_index(index, {}, inline)


def _is_constant(d: Definition) -> bool:
    return d.initial is None and not d.index and not loads([d.value]) and d.value.depth == 0


@dataclass(frozen=True)
class Units:
    """The units of a graph by name, and the buffers that only views or constants define."""

    units: Mapping[str, Unit]
    through: Mapping[str, Definition]
    buffers: Mapping[str, Buffer]


def make_units(graph: Graph) -> Units:
    """Every stored tensor of the graph as a unit."""
    through: dict[str, Definition] = {}
    units: dict[str, Unit] = {}
    buffers = dict(graph.buffers)
    for position, node in enumerate(graph.nodes):
        for d in node.definitions:
            clear = _clear(d, through)
            if node.kind is NodeKind.VIEW or _is_constant(clear):
                through[d.buffer.name] = clear
            if node.kind is NodeKind.VIEW:
                continue
            for unit in _split(node, clear, position):
                units[unit.name] = unit
                buffers[unit.name] = unit.definition.buffer
    return Units(units, through, buffers)


def alive(units: Units, need: Container[str]) -> Units:
    """Without the units that nobody needs, directly or through others."""
    kept: dict[str, Unit] = {}
    wanted: set[str] = set()
    for unit in reversed(list(units.units.values())):
        if unit.name in need or unit.name in wanted:
            kept[unit.name] = unit
            wanted.update(unit.reads)
    return replace(units, units=dict(reversed(kept.items())))


def _clear(d: Definition, through: Mapping[str, Definition]) -> Definition:
    return replace(
        d,
        value=read_through(d.value, through),
        index=tuple(read_index_through(i, through) for i in d.index),
        initial=None if d.initial is None else _clear(d.initial, through),
    )


def _split(node: Node, d: Definition, position: int) -> list[Unit]:
    if d.initial is None and node.storage is not None and _moves(d, node.storage):
        new = replace(d, buffer=replace(d.buffer, name=d.buffer.name + NEW))
        back = replace(d, value=load(new.buffer.name, _own(d), d.buffer.dtype))
        made = Unit(new.buffer.name, node, new, position)
        return [made, Unit(d.buffer.name, node, back, position, node.storage)]
    if d.initial is None:
        return [Unit(d.buffer.name, node, d, position, node.storage)]
    if node.storage is None and d.mode is Mode.ADD and d.buffer.dtype.compute is not d.buffer.dtype:
        # Many small additions to a large bf16 number would leave it as it is.
        sums = replace(d.buffer, name=d.buffer.name + SUMS, dtype=d.buffer.dtype.compute)
        value = load(sums.name, _own(d.initial), sums.dtype)
        last = replace(d.initial, buffer=d.buffer, value=value)
        wide = replace(d, buffer=sums, initial=replace(d.initial, buffer=sums))
        return [*_split(node, wide, position), Unit(d.buffer.name, node, last, position)]
    start = replace(d.initial, buffer=replace(d.buffer, name=d.buffer.name + START))
    # A scatter into a mutated input (index_put_) starts from that input's own memory.
    storage = node.storage if node.storage is not None else start.buffer.name
    first = [] if node.storage is not None else [Unit(start.buffer.name, node, start, position)]
    return [*first, Unit(d.buffer.name, node, replace(d, initial=None), position, storage)]


def _moves(d: Definition, storage: str) -> bool:
    """Whether it reads a buffer at other places than it defines."""
    return any(v.attr.buffer == storage and v.attr.index != _own(d) for v in loads([d.value]))


def _own(d: Definition) -> tuple[Index, ...]:
    return tuple(as_index(0) if a.size.const == 1 else as_index(a) for a in d.axes)


def unit_touches(unit: Unit, buffers: Mapping[str, Buffer], hints: Hints) -> Touches:
    """What it touches of each buffer by itself."""
    found = unit.traits.get("touches")
    if found is None:
        found = unit.traits["touches"] = touches(unit.values, buffers, hints)
    return found  # type: ignore[return-value]


def reads_together(
    units: Iterable[Unit], inside: Container[str], buffers: Mapping[str, Buffer], hints: Hints
) -> dict[str, int]:
    """Bytes that units read of each buffer together, but of what is made inside."""
    found: Touches = {}
    for unit in units:
        for name, shapes in unit_touches(unit, buffers, hints).items():
            if name not in inside:
                found[name] = found[name] | shapes if name in found else shapes
    return touched_bytes(found, buffers, hints)


def unit_reads(unit: Unit, buffers: Mapping[str, Buffer], hints: Hints) -> dict[str, int]:
    """Bytes it reads of each buffer by itself."""
    return touched_bytes(unit_touches(unit, buffers, hints), buffers, hints)


def unit_write(unit: Unit, hints: Hints) -> int:
    """Bytes of the tensor it stores."""
    buffer = unit.definition.buffer
    return stored_elements(buffer, hints) * buffer.dtype.bytes


def unit_arithmetic(unit: Unit, hints: Hints) -> tuple[dict[str, float], float, float]:
    """(FLOPs by format, special functions, random numbers) of the unit by itself."""
    found = unit.traits.get("arithmetic")
    if found is None:
        found = unit.traits["arithmetic"] = arithmetic(unit.values, hints)
    return found  # type: ignore[return-value]


def plain_index(unit: Unit) -> tuple[Index, ...]:
    """Where it stores, over its own axes."""
    d = unit.definition
    return d.index or _own(d)
