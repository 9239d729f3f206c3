"""The C target's spelling: loop programs -> one C source, over the vectors of `prelude.h`.

One function a program, `int k_name(void **buffers, const int64_t *sizes)`: 0 when done, 1 when out of memory. Scratch
is taken from malloc inside. Nothing here names an operator or chooses a loop.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ridgeline.base.records import Machine
from ridgeline.codegen import cc, render
from ridgeline.codegen.c_expressions import Expressions, Lane
from ridgeline.codegen.c_words import (
    LANE_FOLDS,
    SUPPORT,
    WORDS_SPELLED,
    identifier,
    pointer_name,
    size_name,
    suffix,
    word,
)
from ridgeline.codegen.target import Entry
from ridgeline.ir.index import Index, as_index
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

TYPICAL_CACHES = (32 << 10, 512 << 10, 8 << 20)  # where the system does not tell
SERIAL_BYTES = 1 << 17  # a phase that moves less than this runs in one thread


@dataclass
class _Function(Expressions):
    """Emits one program."""

    copies: dict[Accumulator, int] = field(default_factory=dict)
    laned: set[Accumulator] = field(default_factory=set)

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
                if outside and unrolled(outside[-1]) > 1:
                    self.copies[s.accumulator] = unrolled(outside[-1])

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
        unroll = unrolled(loop)
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
        elif most >= tile:
            self.tiles(loop, name, inner, 1)
        if tile > 1 and ragged:  # what is left: one short tile, or after an unrolled loop a few, the last one short
            self.open(f"if ({name} < {name}_end)" if unroll == 1 else f"for (; {name} < {name}_end; {name} += {tile})")
            left = f"{name}_end - {name}"
            self.put(f"const int {name}_n = (int)({left if unroll == 1 else f'x_min({left}, {tile})'});")
            self.body(loop.body, replace(inner, count=f"{name}_n"))
            self.close()
        elif unroll > 1 and (ragged or most % (unroll * tile)):
            self.tiles(loop, name, inner, 1)
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


def unrolled(loop: Loop) -> int:
    """How many tiles stand side by side: no more than there are."""
    most = loop.extent.const
    return loop.unroll if most is None else max(1, min(loop.unroll, most // loop.tile))


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
        known = cache_bytes if len(cache_bytes) > 1 else TYPICAL_CACHES
        return Machine("vector", cc.lanes(), cc.lanes(), workers, known)

    def emit(self, programs: Sequence[Program]) -> str:
        return emit(programs)

    def compile(self, source: str, folder: Path) -> Mapping[str, Entry]:
        names = re.findall(r"^int k_(\w+)\(void \*\*buffers", source, re.MULTILINE)
        return cc.Functions(cc.compile_source(self.compiler, source, folder), names)
