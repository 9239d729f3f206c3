"""The Triton target: loop programs -> one Python module, a kernel for each phase.

Emits each kernel's statements; blocks are `triton_blocks.py`'s, folds `triton_folds.py`'s. What launches need to know
(kernels, grids, arguments, scratch) is a literal at the module's end, `PROGRAMS`. Emitting needs neither Triton nor a
device; `triton_build.py` compiles and launches. Nothing here names an operator or chooses a loop.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ridgeline.base.errors import BuildFailed
from ridgeline.base.records import Machine
from ridgeline.codegen import render
from ridgeline.codegen import triton_words as spell
from ridgeline.codegen.target import Entry
from ridgeline.codegen.triton_blocks import Blocks, bare, host, identifier, is_wide
from ridgeline.codegen.triton_folds import Folds, even, is_ragged
from ridgeline.ir.index import Axis, as_index
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

HEADER = """\
import triton
import triton.language as tl
from triton.language.extra import libdevice

from ridgeline.codegen.triton_prelude import *
"""
TABLE = """\
# program: (how many buffers, sizes, bytes of each scratch, launches in order); a launch: (kernel, grid, threads,
# arguments: the place of a buffer, scratch after the others, or the name of a size, each with its type)"""
TILE_ELEMENTS = 1 << 15  # of one value in the registers of one program: 32 a thread in the largest block of threads


class _Kernel(Folds):
    """Emits one phase."""

    def emit(self, phase: Phase) -> list[str]:
        self.dimensions(list(statements(phase.body)))
        self.survey(phase.body, (), {})
        self.grid(phase.grid)
        self.body(phase.body)
        return self.lines

    def dimensions(self, everything: Sequence[Statement]) -> None:
        """Tiled axes, one dimension each: the axis along which most accesses are contiguous last."""
        self.tiles = {s.axis: s.tile for s in everything if isinstance(s, Loop) and s.tile > 1}
        offsets = [s.offset for s in everything if isinstance(s, Put)]
        loads = (s.value for s in everything if isinstance(s, Compute) and s.value.op == "load")
        offsets += [v.attr.index[0] for v in loads]
        contiguous = {a: sum((t := o.coefficient(a)) is not None and t.const == 1 for o in offsets) for a in self.tiles}
        self.order = tuple(sorted(self.tiles, key=contiguous.__getitem__))

    def grid(self, axes: Sequence[Axis]) -> None:
        """One number counts all iterations, the last axis fastest."""
        number = "tl.program_id(0)" + (".to(tl.int64)" if self.wide else "")
        if len(axes) == 1:
            self.put(f"{self.axis_name(axes[0])} = {number}")
        elif axes:
            self.put(f"pid = {number}")
            inner = as_index(1)
            lines = []
            for k, axis in reversed(list(enumerate(axes))):
                if axis.size.const == 1:
                    lines.append(f"{self.axis_name(axis)} = 0")
                    continue
                text = "pid" if inner.const == 1 else f"pid // {self.index(inner)}"
                lines.append(f"{self.axis_name(axis)} = {text}" + (f" % {self.index(axis.size)}" if k else ""))
                inner = inner * axis.size
            for line in reversed(lines):
                self.put(line)

    # ---- statements

    def body(self, body: Iterable[Statement]) -> None:
        for statement in body:
            match statement:
                case Compute(value):
                    self.names[value] = self.named(self.expression(value), value.dtype)
                case Loop():
                    self.loop(statement)
                case Begin(acc):
                    self.begin(acc)
                case Step():
                    self.step_elements(statement)
                case Join(acc, other):
                    self.step(acc, [(self.value(v, True), self.dims(v.axes)) for v in other])
                case Finish(acc, results):
                    states = self.joined(acc)
                    for part, value in results:
                        text, dtype = render.finish(self, acc, states, part, value.dtype)
                        dtype = self.types(acc)[part] if text in states else dtype
                        text = spell.cast(text, dtype, value.dtype)
                        self.names[value] = text if text.isidentifier() else self.named(text, value.dtype)
                case Save(acc, buffers, offset):
                    for buffer, text in zip(buffers, self.joined(acc), strict=True):
                        self.store(buffer, offset, text, self.dims(acc.kept))
                case Put():
                    self.put_value(statement)
                case Prefetch():
                    pass  # a hint that loops which load ahead have no use for

    def put_value(self, p: Put) -> None:
        text, have = self.value(p.value), self.dims(p.value.axes)
        dims = have | self.dims(p.offset.axes)
        if p.mode is not Mode.ADD:
            self.store(p.buffer, p.offset, text, dims)
            return
        stored = self.program.buffer(p.buffer).dtype
        if stored.bytes < 2 or (not stored.is_float and stored.bytes < 4):
            raise BuildFailed("triton", f"atomic addition to {stored} is not spelled")
        text = self.value(p.value, True) + ("" if stored.compute is stored else f".to({spell.type_name(stored)})")
        self.store(p.buffer, p.offset, self.spread(text, have, dims), dims, "tl.atomic_add", ', sem="relaxed"')

    def loop(self, loop: Loop) -> None:
        name, start, size = self.axis_name(loop.axis), self.index(loop.start), self.index(loop.axis.size)
        whole, divides = self.index(loop.start + loop.extent), even(loop.axis.size, loop.extent)
        stop = whole if divides else f"tl.minimum({bare(whole)}, {bare(size)})"
        if loop.once:
            stop = size if loop.extent.const == loop.tile else stop
            if loop.tile == 1:
                self.put(f"{name} = {start}")
        else:
            if not divides:
                self.put(f"{name}_end = {stop}")
                stop = f"{name}_end"
            variable = name if loop.tile == 1 else f"{name}_0"
            step = f", {loop.tile}" if loop.tile > 1 else ""
            ahead = f", num_stages={loop.ahead}" if loop.ahead > 1 else ""
            self.put(f"for {variable} in {'tl.' if ahead else ''}range({bare(start)}, {bare(stop)}{step}{ahead}):")
            self.depth += 1
            start = variable
        if loop.tile > 1:
            self.open_tile(loop.axis, start, stop if is_ragged(loop) else "")
        self.body(loop.body)
        for opened in (self.masks, self.counts):
            opened.pop(loop.axis, None)
        self.opened.discard(loop.axis)
        self.depth -= not loop.once

    def open_tile(self, axis: Axis, start: str, stop: str) -> None:
        """The block of positions from `start`; with `stop`, those from there on do not count."""
        name, tile = self.axis_name(axis), self.tiles[axis]
        place = ", ".join(":" if a is axis else "None" for a in self.order)
        lanes = f"tl.arange(0, {tile})" + (f"[{place}]" if len(self.order) > 1 else "")
        lanes += ".to(tl.int64)" if self.wide else ""
        self.put(f"{name} = {lanes}" if start == "0" else f"{name} = {start} + {lanes}")
        self.counts[axis] = str(tile)
        if stop:
            self.put(f"{name}_m = {name} < {stop}")
            self.masks[axis] = f"{name}_m"
            self.counts[axis] = stop if start == "0" and stop.isdigit() else f"tl.minimum({stop} - {start}, {tile})"
        self.opened.add(axis)


def combine_function(name: str, acc: Accumulator) -> list[str]:
    """The function of two states that folds tiles of a combiner with several components."""
    inner = Blocks(Program("", (), (), (), ()), False)
    left, right = ([f"{side}{k}" for k in range(len(acc.states))] for side in "ab")
    new = render.combine(inner, acc, left, right)
    head = f"def {name}({', '.join((*left, *right))}):"
    return ["", "", "@triton.jit", head, *inner.lines, f"    return {', '.join(new)}"]


def emit(programs: Sequence[Program]) -> str:
    """One module with the kernels of all programs and the table of their launches."""
    kernels: list[str] = []
    combines: dict[str, list[str]] = {}
    table: list[str] = []
    for program in programs:
        scratch = [s.buffer for s in program.scratch]
        if any(s.per_worker for s in program.scratch):
            raise BuildFailed("triton", f"{program.name}: scratch for each worker is not spelled")
        launches = []
        for k, phase in enumerate(program.phases):
            kernel, name = _Kernel(program, is_wide(program)), f"k_{identifier(program.name)}_{k}"
            lines = kernel.emit(phase)
            combines |= {n: combine_function(n, acc) for n, acc in kernel.combines.items() if n not in combines}
            used = [(i, b) for i, b in enumerate((*program.buffers, *scratch)) if b.name in kernel.pointers]
            sizes = [s for s in program.sizes if s in kernel.sizes]
            names = [*(f"p_{identifier(b.name)}" for _, b in used), *(f"n_{identifier(s)}" for s in sizes)]
            kernels += ["", "", "@triton.jit", f"def {name}({', '.join(names)}):", *lines]
            count = as_index(1)
            for axis in phase.grid:
                count = count * axis.size
            arguments = [*((i, f"*{spell.POINTEES[b.dtype.name]}") for i, b in used), *((s, "i64") for s in sizes)]
            launches.append(f"        ({name!r}, {host(count)!r}, {phase.threads}, {arguments}),")
        bytes_of = [host(b.numel * b.dtype.bytes) for b in scratch]
        head = f"{len(program.buffers)}, {program.sizes}, {bytes_of}"
        table += [f"    {program.name!r}: ({head}, [", *launches, "    ]),"]
    parts = [*HEADER.splitlines(), *(line for lines in combines.values() for line in lines), *kernels]
    return "\n".join([*parts, "", "", TABLE, "PROGRAMS = {", *table, "}"]) + "\n"


class Triton:
    """The Triton target. Members as in codegen/target.py.

    `allocate` gives device memory of so many bytes as an object with `data_ptr()`; `stream` the handle of the stream
    to launch on. Both are asked at each launch.
    """

    name = "triton"
    words = spell.SPELLED

    def __init__(self, allocate: Callable[[int], Any], stream: Callable[[], int]) -> None:
        self.allocate, self.stream = allocate, stream

    @property
    def version(self) -> str:
        version: str = self._build().version()
        return version

    @staticmethod
    def _build() -> Any:
        """Compiling needs Triton, emitting does not."""
        return importlib.import_module("ridgeline.codegen.triton_build")

    def machine(self, workers: int, cache_bytes: tuple[int, ...]) -> Machine:
        """`cache_bytes`: the memory that threads of one program share first."""
        return Machine("tile", 32, TILE_ELEMENTS, workers, cache_bytes, line_bytes=128)

    def emit(self, programs: Sequence[Program]) -> str:
        return emit(programs)

    def compile(self, source: str, folder: Path) -> Mapping[str, Entry]:
        entries: Mapping[str, Entry] = self._build().load(source, folder, self.allocate, self.stream)
        return entries
