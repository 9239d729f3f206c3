"""The C target's spelling: loop programs -> one C source, over the vectors of `prelude.h`.

Every value is a vector of W lanes, the same number in each lane where it does not vary along the open tiled axis; only
offsets are scalars. One function a program, `int name(void **buffers, const int64_t *sizes)`, 0 when done, 1 when out
of memory. Scratch is taken from malloc inside. Nothing here names an operator or chooses a loop.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ridgeline.base.errors import BuildFailed
from ridgeline.base.records import Machine
from ridgeline.codegen import cc, render
from ridgeline.codegen.target import Entry
from ridgeline.ir.index import Atom, Axis, Div, Index, Mod, Read, Sym, as_index, at_least
from ridgeline.ir.kernel import Mode
from ridgeline.ir.program import (
    Accumulator,
    Begin,
    Compute,
    Finish,
    Join,
    Loop,
    Phase,
    Prefetch,
    Program,
    Put,
    Save,
    Statement,
    Step,
    statements,
)
from ridgeline.ir.types import BOOL, F8E4M3, F8E5M2, I64, DType
from ridgeline.ir.value import Value
from ridgeline.ir.words import WORDS

WORDS_SPELLED = frozenset(WORDS) - {"philox"}
SERIAL_BYTES = 1 << 17  # a phase that moves less than this runs in one thread
# Names that C, the prelude or this file uses; axes keep clear of them.
TAKEN = re.compile(
    r"(auto|break|case|char|const|continue|default|do|double|else|enum|extern|float|for|goto|if|int|long|register|return"
    r"|short|signed|sizeof|static|struct|switch|typedef|union|void|while|unsigned|volatile|inline|restrict|asm|typeof"
    r"|scratch|base|workers|buffers|sizes|half|v\d+)$|[A-Z]|[pnkvwexh]_|f\d+[a-f]"
)
LANE_FOLDS = {"sum": "hsum", "prod": "hprod", "max": "hmax", "min": "hmin", "any": "hany", "all": "hall"}
SUPPORT = """\
#include <stdlib.h>
#ifdef _OPENMP
int omp_get_max_threads(void);
int omp_get_thread_num(void);
#else
#define omp_get_max_threads() 1
#define omp_get_thread_num() 0
#endif
FN v_b first_lanes(int n) { return w_lt_i32((v_i32){LANES}, splat_i32(n)); }
FN v_i64 x_floor_by(v_i64 a, int64_t d) {
    return cast_f64_i64(w_floor_f64(w_div_f64(cast_i64_f64(a), splat_f64((double)d))));
}
FN v_i64 x_mod_by(v_i64 a, int64_t d) { return w_sub_i64(a, w_mul_i64(x_floor_by(a, d), splat_i64(d))); }
FN int64_t x_min(int64_t a, int64_t b) { return a < b ? a : b; }
int ridgeline_run(int64_t n, int (**functions)(void **, const int64_t *), void ***buffers, const int64_t **sizes) {
    int failed = 0;
    for (int64_t i = 0; i < n && !failed; i++) failed = functions[i](buffers[i], sizes[i]);
    return failed;
}
"""


def suffix(dtype: DType) -> str:
    """The prelude's name of a number type."""
    if dtype in (F8E4M3, F8E5M2):
        raise BuildFailed("c", f"number type {dtype} is not spelled")
    return "b" if dtype is BOOL else dtype.name


def identifier(name: str) -> str:
    """A C name for a name of ours, to stand after a prefix."""
    return re.sub(r"\W", "_", name)


def pointer_name(buffer: str) -> str:
    return "p_" + identifier(buffer)


def size_name(symbol: str) -> str:
    return "n_" + identifier(symbol)


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
class _Function:
    """Emits one program."""

    program: Program
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    names: dict[Value, str] = field(default_factory=dict)
    counter: int = 0
    copies: dict[Accumulator, int] = field(default_factory=dict)
    laned: set[Accumulator] = field(default_factory=set)
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

    # ---- whole function

    def emit(self) -> list[str]:
        program = self.program
        everything = [s for p in program.phases for s in statements(p.body)]
        self.lines.append(f"int k_{identifier(program.name)}(void **buffers, const int64_t *sizes) {{")
        for k, buffer in enumerate(program.buffers):
            self.put(f"e_{suffix(buffer.dtype)} *const {pointer_name(buffer.name)} = buffers[{k}];")
        for k, name in enumerate(program.sizes):
            self.put(f"const int64_t {size_name(name)} = sizes[{k}];")
        self.put("(void)buffers, (void)sizes;")
        self.scratch()
        streamed = {s.buffer for s in everything if isinstance(s, Put) and s.streaming}
        for name in sorted(streamed):
            self.put(f"const int {pointer_name(name)}_aligned = (uintptr_t){pointer_name(name)} % 64 == 0;")
        for phase in program.phases:
            self.phase(phase)
        if program.scratch:
            self.put("free(scratch);")
        self.put("return 0;")
        self.lines.append("}")
        return self.lines

    def survey(self, body: Iterable[Statement], outside: tuple[Loop, ...]) -> None:
        """Which accumulators have lanes to join, and how many copies the loops that step them ask for."""
        for s in body:
            if isinstance(s, Loop):
                self.survey(s.body, (*outside, s))
            elif isinstance(s, Step | Join) and not s.accumulator.memory:
                if any(loop.tile > 1 and loop.axis in s.accumulator.axes for loop in outside):
                    self.laned.add(s.accumulator)
                if outside and outside[-1].unroll > 1:
                    self.copies[s.accumulator] = outside[-1].unroll

    def scratch(self) -> None:
        """One allocation for all scratch, each buffer on its own cache lines."""
        if not self.program.scratch:
            return
        if any(s.per_worker for s in self.program.scratch):
            self.put("const int64_t workers = omp_get_max_threads();")
        total = "0"
        for s in self.program.scratch:
            name, size = pointer_name(s.buffer.name), self.scalar(s.buffer.numel)
            self.put(f"const int64_t {name}_at = {total};")
            self.put(f"const int64_t {name}_bytes = ({size} * {s.buffer.dtype.bytes} + 127) / 64 * 64;")
            total = f"{name}_at + {name}_bytes" + (" * workers" if s.per_worker else "")
        self.put(f"char *const scratch = malloc({total} + 64);")
        self.put("if (!scratch) return 1;")
        self.put("char *const base = (char *)(((uintptr_t)scratch + 63) / 64 * 64);")
        for s in self.program.scratch:
            if not s.per_worker:
                name = pointer_name(s.buffer.name)
                self.put(f"e_{suffix(s.buffer.dtype)} *const {name} = (void *)(base + {name}_at);")

    def phase(self, phase: Phase) -> None:
        self.laned, self.copies = set(), {}
        self.survey(phase.body, ())
        streams = any(isinstance(s, Put) and s.streaming for s in statements(phase.body))
        serial = phase.work.const is not None and phase.work.const < SERIAL_BYTES
        own = [s.buffer for s in self.program.scratch if s.per_worker]
        region = bool(phase.grid) and not serial
        if region:
            condition = "" if phase.work.const is not None else f" if ({self.scalar(phase.work)} >= {SERIAL_BYTES})"
            self.put(f"#pragma omp parallel{condition}")
        self.open()
        for b in own:
            name = pointer_name(b.name)
            self.put(
                f"e_{suffix(b.dtype)} *const {name} = (void *)(base + {name}_at + omp_get_thread_num() * {name}_bytes);"
            )
        if region:
            collapse = f" collapse({len(phase.grid)})" if len(phase.grid) > 1 else ""
            self.put(f"#pragma omp for schedule(static) nowait{collapse}")
        for axis in phase.grid:
            name = self.axis_name(axis)
            self.open(f"for (int64_t {name} = 0; {name} < {self.scalar(axis.size)}; {name}++)")
        self.body(phase.body, Lane())
        for _ in phase.grid:
            self.close()
        if streams:
            self.put("stream_fence();")
        self.close()

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

    # ---- statements

    def body(self, body: Iterable[Statement], lane: Lane) -> None:
        for statement in body:
            match statement:
                case Compute(value):
                    self.names[value] = self.named(self.expression(value, lane), value.dtype)
                case Loop():
                    self.loop(statement, lane)
                case Begin(acc):
                    self.begin(acc, lane)
                case Step(acc, elements):
                    self.step(acc, render.lift(self, acc, [self.value(e) for e in elements]), lane)
                case Join(acc, other):
                    self.step(acc, [self.value(v) for v in other], lane)
                case Finish():
                    self.finish(statement, lane)
                case Save(acc, buffers, offset):
                    self.save(acc, buffers, self.joined(acc), offset, lane)
                case Put():
                    self.put_value(statement, lane)
                case Prefetch(buffer, offset):
                    self.put(f"__builtin_prefetch({self.pointer(buffer, self.scalar(offset))}, 0, 2);")

    def put_value(self, p: Put, lane: Lane) -> None:
        stored = self.program.buffer(p.buffer).dtype
        text, t = self.value(p.value), suffix(stored)
        varies = lane.axis is not None and lane.axis in p.value.axes
        step = self.distance(p.offset, lane)
        if p.mode is Mode.ADD:
            collides = step is None or (step.const == 0 and varies)
            if collides:
                idx = self.vector(p.offset, lane)
                self.put(f"scatter_add_{t}({pointer_name(p.buffer)}, {idx}, {text}, {lane.n});")
                return
            old = self.load(p.buffer, stored, p.offset, lane)
            text = word("add", [old, text], [stored.compute] * 2)
        line = self.store(p.buffer, stored, p.offset, text, lane)
        if p.streaming and not lane.count and step is not None and step.const == 1:
            at = self.pointer(p.buffer, self.scalar(p.offset))
            name = pointer_name(p.buffer)
            self.put(f"if ({name}_aligned) stream_{t}({at}, {text});")
            self.put(f"else {line}")
            return
        self.put(line)

    def loop(self, loop: Loop, lane: Lane) -> None:
        """Whole tiles, unrolled ones first, then the ragged rest."""
        name, tile, extent, size = self.axis_name(loop.axis), loop.tile, loop.extent, loop.axis.size
        start = self.scalar(loop.start)
        whole = extent is size and loop.start.const == 0
        divides = whole or (extent.const is not None and size.const is not None and size.const % extent.const == 0)
        stop = self.scalar(size if whole else loop.start + extent)
        end = stop if divides else f"x_min({stop}, {self.scalar(size)})"
        ragged = not (divides and extent.const is not None and extent.const % tile == 0)
        inner = lane if tile == 1 else Lane(loop.axis)
        most = extent.const if extent.const is not None else 1 << 62
        unroll = max(1, min(loop.unroll, most // tile))
        if unroll == 1 and (tile == 1 or not ragged):
            self.open(f"for (int64_t {name} = {start}; {name} < {end}; {name} += {tile})")
            self.body(loop.body, inner)
            self.close()
            return
        self.open()
        self.put(f"const int64_t {name}_end = {end};")
        self.put(f"int64_t {name} = {start};")
        if unroll > 1:
            self.tiles(loop, name, inner, unroll)
        if (unroll == 1 and most >= tile) or ragged or most % (unroll * tile):
            self.tiles(loop, name, inner, 1)
        if tile > 1 and ragged:
            self.open(f"if ({name} < {name}_end)")
            self.put(f"const int {name}_n = (int)({name}_end - {name});")
            self.body(loop.body, replace(inner, count=f"{name}_n"))
            self.close()
        self.close()

    def tiles(self, loop: Loop, name: str, lane: Lane, copies: int) -> None:
        """A loop over whole tiles, `copies` of them at a time."""
        stride = copies * loop.tile
        self.open(f"for (; {name} + {stride} <= {name}_end; {name} += {stride})")
        for k in range(copies):
            if copies > 1:
                self.open()
            if k:
                self.axis_names[loop.axis] = f"{name}_{k}"
                self.put(f"const int64_t {name}_{k} = {name} + {k * loop.tile};")
            self.body(loop.body, replace(lane, copy=k) if copies > 1 else lane)
            if copies > 1:
                self.close()
        self.axis_names[loop.axis] = name
        self.close()

    # ---- accumulators

    def word(self, name: str, args: Sequence[str], dtypes: Sequence[DType]) -> str:
        return word(name, args, dtypes)

    def number(self, number: bool | int | float, dtype: DType) -> str:
        return f"splat_{suffix(dtype)}({literal(number, dtype)})"

    def named(self, text: str, dtype: DType) -> str:
        name = self.fresh()
        self.put(f"const v_{suffix(dtype)} {name} = {text};")
        return name

    def states(self, acc: Accumulator, copy: int = 0) -> list[str]:
        tail = f"_{copy}" if copy else ""
        return [f"{acc.name}{'abcdef'[k]}{tail}" for k in range(len(acc.states))]

    def begin(self, acc: Accumulator, lane: Lane) -> None:
        starts = render.identity(self, acc)
        if acc.memory:
            assert acc.offset is not None
            self.save(acc, acc.memory, starts, acc.offset, lane)
            return
        for copy in range(self.copies.get(acc, 1)):
            for name, dtype, text in zip(self.states(acc, copy), acc.states, starts, strict=True):
                self.put(f"v_{suffix(dtype)} {name} = {text};")

    def save(self, acc: Accumulator, buffers: Sequence[str], states: Sequence[str], at: Index, lane: Lane) -> None:
        for name, dtype, text in zip(buffers, acc.states, states, strict=True):
            self.put(self.store(name, dtype, at, text, lane))

    def loaded(self, buffers: Sequence[str], acc: Accumulator, offset: Index, lane: Lane) -> list[str]:
        """States read from memory, each in a name."""
        return [self.named(self.load(b, t, offset, lane), t) for b, t in zip(buffers, acc.states, strict=True)]

    def step(self, acc: Accumulator, other: Sequence[str], lane: Lane) -> None:
        """Joins a state to the accumulator; lanes beyond a ragged end keep what they have."""
        if acc.memory:
            assert acc.offset is not None
            old = self.loaded(acc.memory, acc, acc.offset, lane)
            self.save(acc, acc.memory, render.combine(self, acc, old, other), acc.offset, lane)
            return
        old = self.states(acc, lane.copy)
        new = render.combine(self, acc, old, other)
        for name, dtype, text in zip(old, acc.states, new, strict=True):
            if lane.count and lane.axis in acc.axes:
                text = f"select_{suffix(dtype)}(first_lanes({lane.count}), {text}, {name})"
            self.put(f"{name} = {text};")

    def joined(self, acc: Accumulator) -> list[str]:
        """The states with copies and lanes joined."""
        names = self.states(acc)
        for copy in range(1, self.copies.get(acc, 1)):
            self.step(acc, self.states(acc, copy), Lane())
        if acc in self.laned:
            t = suffix(acc.states[0])
            short = LANE_FOLDS.get(acc.combiner)
            if short is None or (t == "b") != (short in ("hany", "hall")):
                self.join_lanes(acc, names)
            else:
                self.put(f"{names[0]} = splat_{t}({short}_{t}({names[0]}));")
        return names

    def join_lanes(self, acc: Accumulator, names: Sequence[str]) -> None:
        """A tree over halves, through memory: any combiner."""
        self.open()
        typed = [(n, suffix(t)) for n, t in zip(names, acc.states, strict=True)]
        for name, t in typed:
            self.put(f"e_{t} {name}_m[2 * W] = {{0}};")
            self.put(f"store_{t}({name}_m, {name});")
        self.open("for (int half = W / 2; half; half /= 2)")
        other = [self.named(f"load_{t}({n}_m + half)", dt) for (n, t), dt in zip(typed, acc.states, strict=True)]
        self.step(acc, other, Lane())
        for name, t in typed:
            self.put(f"store_{t}({name}_m, {name});")
        self.close()
        for name, t in typed:
            self.put(f"{name} = splat_load_{t}({name}_m);")
        self.close()

    def finish(self, f: Finish, lane: Lane) -> None:
        acc = f.accumulator
        states = self.joined(acc) if not acc.memory else self.loaded(acc.memory, acc, acc.offset or as_index(0), lane)
        for part, value in f.results:
            text, dtype = render.finish(self, acc, states, part, value.dtype)
            self.names[value] = self.named(self.cast(text, dtype, value.dtype), value.dtype)


def word(name: str, args: Sequence[str], dtypes: Sequence[DType]) -> str:
    """A word applied to vectors."""
    if name not in WORDS_SPELLED:
        raise BuildFailed("c", f"word {name} is not spelled")
    t = suffix(dtypes[1] if name == "select" else dtypes[0])
    if name.startswith("round_"):  # these are of f32, through which f64 is rounded as ATen does
        return f"{name}({args[0]})" if t == "f32" else f"cast_f32_{t}({name}(cast_{t}_f32({args[0]})))"
    return f"{'select' if name == 'select' else 'w_' + name}_{t}({', '.join(args)})"


def literal(number: bool | int | float, dtype: DType) -> str:
    """A number in C."""
    if dtype is BOOL:
        return str(int(number))
    if not dtype.is_float:
        bits = int(number)
        if dtype.kind == "u":
            return f"{bits % 2 ** (8 * dtype.bytes)}u" if dtype.bytes < 8 else f"UINT64_C({bits % 2**64})"
        if bits == -(2**63):
            return "INT64_MIN"
        return f"INT64_C({bits})" if dtype.bytes == 8 else str(bits)
    if math.isnan(number):
        return "NAN"
    if math.isinf(number):
        return "INFINITY" if number > 0 else "-INFINITY"
    return repr(float(number)) + ("f" if dtype.bytes == 4 else "")


def emit(programs: Sequence[Program]) -> str:
    """One translation unit with a function for each program."""
    out = ['#include "prelude.h"', *SUPPORT.splitlines()]
    for program in programs:
        out += ["", *_Function(program).emit()]
    return "\n".join(out) + "\n"


class C:
    """The C target; `compiler` is the command. Members as in codegen/target.py."""

    name = "c"
    words = WORDS_SPELLED

    def __init__(self, compiler: str = "cc") -> None:
        self.compiler = compiler

    @property
    def version(self) -> str:
        return cc.version(self.compiler)

    def machine(self, workers: int, cache_bytes: tuple[int, ...]) -> Machine:
        return Machine("vector", cc.lanes(), cc.lanes(), workers, cache_bytes)

    def emit(self, programs: Sequence[Program]) -> str:
        return emit(programs)

    def compile(self, source: str, folder: Path) -> Mapping[str, Entry]:
        names = re.findall(r"^int k_(\w+)\(void \*\*buffers", source, re.MULTILINE)
        return cc.Functions(cc.compile_source(self.compiler, source, folder), names)
