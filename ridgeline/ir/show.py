"""Kernels and programs as text that reads back: `parse(show(x)) == x`, with `parse` from ir/parse.py.

    kernel softmax                                  program softmax
    axis i 1000                                     ...declarations as left, and scratch
    buffer x f32 [1000, 768] [768, 1]               accumulator f0 sum(f32) state(f32) over <j> kept <i>
    space <i, j>                                    phase grid <i> work 9216000
    v0: f32 = load x[i, r1] f32                       begin f0
    v1: f32 = fold maxsumexp.0 <r1> v0                loop j from 0 for 768 tile 16 unroll 4
    store y[i, j] = v2                                  v0: f32 = load x[768*i + j] f32
                                                        step f0 v0

Every value that is not a constant has one name and stands after its operands; two axes of one name get a number. In
indices, `[v3 < 37]` is a value read from memory. Operator graphs are shown for people alone.
"""

from collections.abc import Callable, Iterable, Iterator

from ridgeline.ir.graph import Definition, Graph
from ridgeline.ir.index import Atom, Axis, Div, Index, Mod, Read, Sym, as_index
from ridgeline.ir.kernel import Buffer, Kernel, Mode
from ridgeline.ir.program import (
    Accumulator,
    Begin,
    Compute,
    Finish,
    Join,
    Loop,
    Prefetch,
    Program,
    Put,
    Save,
    Statement,
    Step,
    statements,
)
from ridgeline.ir.value import Value, nodes

# ---- printing


def show_index(index: Index, axis: Callable[[Axis], str] = repr, value: Callable[[Value], str] = repr) -> str:
    """An index expression; `axis` and `value` name what occurs in it."""

    def atom(a: Atom) -> str:
        match a:
            case Axis():
                return axis(a)
            case Div() | Mod():
                sign = "//" if isinstance(a, Div) else "%"
                return f"({show_index(a.num, axis, value)} {sign} {show_index(a.den, axis, value)})"
            case Read():
                return f"[{value(a.value)} < {show_index(a.size, axis, value)}]"
        return repr(a)

    out = ""
    for coefficient, factors in index.terms:
        parts = [atom(a) for a in factors]
        if abs(coefficient) != 1 or not parts:
            parts.insert(0, str(abs(coefficient)))
        sign = ("-" if coefficient < 0 else "") if not out else (" - " if coefficient < 0 else " + ")
        out += sign + "*".join(parts)
    return out or "0"


class _Printer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[Value, str] = {}
        self.axes: dict[Axis, str] = {}

    def axis(self, axis: Axis) -> str:
        if axis not in self.axes:
            same = sum(a.name == axis.name for a in self.axes)
            self.axes[axis] = f"{axis.name}.{same}" if same else axis.name
        return self.axes[axis]

    def value(self, v: Value) -> str:
        if v.op == "const":
            return f"{v.attr!r}:{v.dtype}"
        return self.names.setdefault(v, f"v{len(self.names)}")

    def index(self, index: Index) -> str:
        return show_index(index, self.axis, self.value)

    def indices(self, given: Iterable[Index]) -> str:
        return "[" + ", ".join(map(self.index, given)) + "]"

    def over(self, axes: Iterable[Axis]) -> str:
        return "<" + ", ".join(map(self.axis, axes)) + ">"

    def defined(self, v: Value) -> str:
        """`v0: f32 = load x[i, j]`."""
        args = [self.value(a) for a in v.args]
        match v.op:
            case "load":
                guard = f" if {args[0]}" if args else ""
                body = f"load {v.attr.buffer}{self.indices(v.attr.index)} {v.attr.stored}{guard}"
            case "iota":
                body = f"iota {self.index(v.attr)}"
            case "fold":
                body = f"fold {v.attr.combiner}.{v.attr.part} {self.over(v.attr.axes)} {' '.join(args)}"
            case _:
                body = " ".join((v.op, *args))
        return f"{self.value(v)}: {v.dtype} = {body}"

    def header(self, buffers: Iterable[Buffer], axes: Iterable[Axis], indices: Iterable[Index]) -> list[str]:
        """Declarations of symbols, axes and buffers."""
        every = [a for i in indices for a in i.atoms]
        every += [a for x in axes for a in x.size.atoms]
        symbols = {a.name: a for a in every if isinstance(a, Sym)}
        out = [f"size {s.name} from {s.low}" for _, s in sorted(symbols.items())]
        for axis in axes:
            display = self.axis(axis)
            named = "" if display == axis.name else f" named {axis.name}"
            out.append(f"axis {display} {self.index(axis.size)}{named}")
        out += [f"buffer {self.buffer(b)}" for b in buffers]
        return out

    def buffer(self, b: Buffer) -> str:
        return f"{b.name} {b.dtype} {self.indices(b.shape)} {self.indices(b.strides)}"


def _index_axes(values: Iterable[Value]) -> Iterator[Axis]:
    for v in values:
        for i in v.attr.index if v.op == "load" else (v.attr,) if v.op == "iota" else ():
            yield from (a for a in i.atoms if isinstance(a, Axis))
        if v.op == "fold":
            yield from v.attr.axes


def _sizes(buffers: Iterable[Buffer]) -> Iterator[Index]:
    for b in buffers:
        yield from (*b.shape, *b.strides)


def _in_values(values: Iterable[Value]) -> Iterator[Index]:
    for v in values:
        yield from v.attr.index if v.op == "load" else (v.attr,) if v.op == "iota" else ()


def show_kernel(kernel: Kernel) -> str:
    """The text of a kernel."""
    p = _Printer()
    values = kernel.values
    stored = [i for s in kernel.stores for i in s.index]
    axes = dict.fromkeys(
        [*kernel.axes, *_index_axes(values), *(a for i in stored for a in i.atoms if isinstance(a, Axis))]
    )
    head = p.header(kernel.buffers, axes, [*_sizes(kernel.buffers), *_in_values(values), *stored])
    lines = [f"kernel {kernel.name}", *head, f"space {p.over(kernel.axes)}"]
    lines += [p.defined(v) for v in values if v.op != "const"]
    for s in kernel.stores:
        sign = "=" if s.mode is Mode.PLAIN else "+="
        lines.append(f"store {s.buffer}{p.indices(s.index)} {sign} {p.value(s.value)}")
    return "\n".join(lines) + "\n"


def _accumulator(p: _Printer, a: Accumulator) -> str:
    text = (
        f"accumulator {a.name} {a.combiner}({', '.join(map(repr, a.dtypes))}) state({', '.join(map(repr, a.states))})"
    )
    text += f" over {p.over(a.axes)} kept {p.over(a.kept)}"
    return text + (f" in {', '.join(a.memory)}[{p.index(a.offset)}]" if a.offset is not None else "")


def _statement(p: _Printer, s: Statement, names: dict[Accumulator, str]) -> str:
    match s:
        case Compute(value):
            return p.defined(value)
        case Begin(a):
            return f"begin {names[a]}"
        case Step(a, elements):
            return " ".join((f"step {names[a]}", *map(p.value, elements)))
        case Join(a, other):
            return " ".join((f"join {names[a]}", *map(p.value, other)))
        case Finish(a, results):
            made = ", ".join(f"{p.defined(v)} part {part}" for part, v in results)
            return f"finish {names[a]} {made}"
        case Save(a, buffers, offset):
            return f"save {names[a]} in {', '.join(buffers)}[{p.index(offset)}]"
        case Put(buffer, offset, value, mode, atomic, streaming):
            sign = "=" if mode is Mode.PLAIN else "+="
            words = ("atomic",) * atomic + ("streaming",) * streaming
            return " ".join((f"put {buffer}[{p.index(offset)}] {sign} {p.value(value)}", *words))
        case Prefetch(buffer, offset):
            return f"prefetch {buffer}[{p.index(offset)}]"
    raise TypeError(type(s).__name__)


def show_program(program: Program) -> str:
    """The text of a program."""
    p = _Printer()
    every = [s for phase in program.phases for s in statements(phase.body)]
    accumulators = list(
        dict.fromkeys(s.accumulator for s in every if not isinstance(s, Compute | Loop | Put | Prefetch))
    )
    used = [v for s in every for v in _values(s)]
    indices = [i for s in every for i in _indices(s)] + [f.work for f in program.phases]
    buffers = [*program.buffers, *(s.buffer for s in program.scratch)]
    loops = [s.axis for s in every if isinstance(s, Loop)]
    axes = dict.fromkeys([a for f in program.phases for a in f.grid] + loops)
    axes |= dict.fromkeys(a for i in [*indices, *_in_values(nodes(used))] for a in i.atoms if isinstance(a, Axis))
    axes |= dict.fromkeys(x for a in accumulators for x in (*a.axes, *a.kept))
    head = p.header(program.buffers, axes, [*_sizes(buffers), *_in_values(nodes(used)), *indices])
    lines = [f"program {program.name}", *head]
    for s in program.scratch:
        lines.append(f"scratch {p.buffer(s.buffer)}{' per worker' if s.per_worker else ''}")
    lines.append(f"sizes <{', '.join(program.sizes)}>")
    names: dict[Accumulator, str] = {}
    for a in accumulators:
        same = sum(b.name == a.name for b in names)
        names[a] = f"{a.name}.{same}" if same else a.name
        lines.append(_accumulator(p, a).replace(f"accumulator {a.name} ", f"accumulator {names[a]} ", 1))

    def body(statements: Iterable[Statement], depth: int) -> None:
        for s in statements:
            if not isinstance(s, Loop):
                lines.append("  " * depth + _statement(p, s, names))
                continue
            ends = f" unroll {s.unroll}" if s.unroll > 1 else ""
            ends += f" ahead {s.ahead}" if s.ahead > 1 else ""
            bounds = f"from {p.index(s.start)} for {p.index(s.extent)}"
            lines.append("  " * depth + f"loop {p.axis(s.axis)} {bounds} tile {s.tile}{ends}")
            body(s.body, depth + 1)

    for phase in program.phases:
        threads = f" threads {phase.threads}" if phase.threads > 1 else ""
        lines.append(f"phase grid {p.over(phase.grid)} work {p.index(phase.work)}{threads}")
        body(phase.body, 1)
    return "\n".join(lines) + "\n"


def show_graph(graph: Graph) -> str:
    """The text of an operator graph: each node with its outputs, then what it computes or why torch is called."""
    lines = [f"graph {graph.name}"]
    for node in graph.nodes:
        made = ", ".join(_Printer().buffer(b) for b in node.outputs)
        where = f"  # {node.line}" if node.line else ""
        lines.append(f"{node.kind.value} {node.operator}({', '.join(node.inputs)}) -> {made or node.name}{where}")
        if node.reason:
            lines.append(f"  by torch: {node.reason}")
        for d in node.definitions:
            lines += [f"  {line}" for line in _definition(d)]
    lines.append(f"outputs {', '.join(map(str, graph.outputs))}")
    return "\n".join(lines) + "\n"


def _definition(d: Definition) -> Iterator[str]:
    if d.initial is not None:
        yield from _definition(d.initial)
    p = _Printer()
    at = p.indices(d.index) if d.index else p.indices(map(as_index, d.axes))
    yield from (p.defined(v) for v in nodes((d.value, *(v for i in d.index for v in i.reads))) if v.op != "const")
    yield f"{d.buffer.name}{at} {'=' if d.mode is Mode.PLAIN else '+='} {p.value(d.value)}"


def _values(s: Statement) -> tuple[Value, ...]:
    match s:
        case Compute(value):
            return (value,)
        case Step(_, elements) | Join(_, elements):
            return elements
        case Finish(_, results):
            return tuple(v for _, v in results)
        case Put():
            return (s.value, *s.offset.reads)
    return ()


def _indices(s: Statement) -> tuple[Index, ...]:
    match s:
        case Loop():
            return (s.start, s.extent)
        case Save() | Put() | Prefetch():
            return (s.offset,)
        case Begin(a) if a.offset is not None:
            return (a.offset,)
    return ()


def show(x: Kernel | Program) -> str:
    return show_kernel(x) if isinstance(x, Kernel) else show_program(x)
