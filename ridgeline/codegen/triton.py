"""The Triton target: loop programs -> one Python module, a kernel for each phase.

Emits each kernel's statements and folds over the blocks of `triton_blocks.py`. What launches need to know (kernels,
grids, arguments, scratch) is a literal at the module's end, `PROGRAMS`. Emitting needs neither Triton nor a device;
`triton_build.py` compiles and launches. Nothing here names an operator or chooses a loop.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ridgeline.base.errors import BuildFailed
from ridgeline.base.records import Machine
from ridgeline.codegen import render
from ridgeline.codegen import triton_words as spell
from ridgeline.codegen.target import Entry
from ridgeline.codegen.triton_blocks import NONE, Blocks, Dims, bare, host, identifier, is_wide
from ridgeline.ir.combiners import COMBINERS
from ridgeline.ir.index import Axis, Index, as_index
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
ROWWISE = ("maxsumexp",)  # combiners whose tile is folded at once each time, not lane by lane
JOINED_AT_ONCE = ("maxsumexp", "welford")  # combiners with a function of the prelude that folds a tile of states


@dataclass
class _Held:
    """How one accumulator is held. `tiles`: the folded tiled axes open where it is stepped."""

    steps: int = 0
    looped: bool = False
    joins: bool = False
    ragged: frozenset[Axis] = frozenset()  # of the tiles
    tiles: tuple[Axis, ...] = ()

    @property
    def once(self) -> bool:
        """One tile makes the whole state."""
        return self.steps == 1 and not self.looped


def even(size: Index, by: Index) -> bool:
    """Whether blocks cover a size exactly."""
    return size is by or (size.const is not None and by.const is not None and size.const % by.const == 0)


def is_ragged(loop: Loop) -> bool:
    """Whether some tile has positions that do not count."""
    return not (even(loop.axis.size, loop.extent) and even(loop.extent, as_index(loop.tile)))


@dataclass
class _Kernel(Blocks):
    """Emits one phase."""

    held: dict[Accumulator, _Held] = field(default_factory=dict)
    made: dict[Accumulator, list[str]] = field(default_factory=dict)  # states that one tile made
    combines: dict[str, Accumulator] = field(default_factory=dict)

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

    def survey(self, body: Iterable[Statement], loops: tuple[Loop, ...], begun: dict[Accumulator, int]) -> None:
        """How each accumulator is stepped, relative to the loops around its Begin."""
        for s in body:
            match s:
                case Loop():
                    self.survey(s.body, (*loops, s), begun)
                case Begin(acc):
                    if acc.memory:
                        raise BuildFailed("triton", f"accumulator {acc.name} is kept in memory")
                    begun[acc], self.held[acc] = len(loops), _Held()
                case Step(acc, _) | Join(acc, _):
                    held = self.held[acc]
                    held.steps += 1
                    held.joins |= isinstance(s, Join)
                    held.looped |= any(not loop.once for loop in loops[begun[acc] :])
                    tiled = {loop.axis: loop for loop in loops if loop.tile > 1}
                    held.tiles = tuple(a for a in self.order if a in tiled and a in acc.axes)
                    held.ragged = frozenset(a for a in held.tiles if is_ragged(tiled[a]))

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

    # ---- folds

    def states(self, acc: Accumulator) -> list[str]:
        return self.made.get(acc) or [f"{acc.name}{'abcdef'[k]}" for k in range(len(acc.states))]

    def lanes(self, acc: Accumulator) -> tuple[Axis, ...]:
        """The folded axes along which each position has a state of its own until they are joined."""
        held = self.held[acc]
        return () if held.once or acc.combiner in ROWWISE else held.tiles

    def begin(self, acc: Accumulator) -> None:
        if self.held[acc].once:
            return
        kept = self.dims(acc.kept)
        for k, (name, dtype, number) in enumerate(zip(self.states(acc), acc.states, self.identity(acc), strict=True)):
            shape = self.shape(self.held[acc].ragged if self.counts_alone(acc) and not k else kept | {*self.lanes(acc)})
            self.put(f"{name} = tl.full({shape}, {spell.literal(number, dtype)}, {spell.type_name(dtype)})")

    def counts_alone(self, acc: Accumulator) -> bool:
        """Whether the first component is a count of steps, the same wherever no position is left out."""
        return acc.combiner == "welford" and bool(self.lanes(acc)) and not self.held[acc].joins

    def identity(self, acc: Accumulator) -> list[bool | int | float]:
        exprs = zip(COMBINERS[acc.combiner].identity, acc.states, strict=True)
        return [render.extreme(t, e == "lowest") if isinstance(e, str) else e for e, t in exprs]

    def step_elements(self, s: Step) -> None:
        """Elements as states, folded in the way that is cheapest for the combiner."""
        acc, over = s.accumulator, self.held[s.accumulator].tiles
        elements = [(self.value(e, True), self.dims(e.axes)) for e in s.elements]
        want = self.dims(acc.kept) | frozenset(over)
        if self.counts_alone(acc):
            self.step_moments(acc, elements[0], over)
        elif acc.combiner == "welford" and over and (len(over) == 1 or want == frozenset(over)):
            self.take(acc, self.moments(acc, elements[0], over))
        elif acc.combiner == "maxsumexp" and over:
            top = self.counted(elements[0], over, spell.number(float("-inf"), acc.states[0]), want)
            self.take(acc, self.fold_tile(acc, [top, "1.0"], over))
        else:
            parts = COMBINERS[acc.combiner].lift
            lifted = [
                elements[int(x[1:])] if isinstance(x, str) else (spell.typed(x, t), NONE)
                for x, t in zip(parts, acc.states, strict=True)
            ]
            self.step(acc, lifted)

    def step(self, acc: Accumulator, other: Sequence[tuple[str, Dims]]) -> None:
        """Takes a tile of states."""
        over = self.held[acc].tiles
        want = self.dims(acc.kept) | frozenset(over)
        starts = [spell.number(n, t) for n, t in zip(self.identity(acc), acc.states, strict=True)]
        states = [self.counted(o, over, start, want) for o, start in zip(other, starts, strict=True)]
        self.take(acc, states if self.lanes(acc) else self.fold_tile(acc, states, over))

    def take(self, acc: Accumulator, states: Sequence[str]) -> None:
        """Joins states to the accumulator's."""
        if self.held[acc].once:
            self.made[acc] = list(states)
            return
        names = self.states(acc)
        new = render.combine(self, acc, names, states)
        for name, text in zip(names, new, strict=True):
            self.put(f"{name} = {text}")

    def counted(self, given: tuple[str, Dims], over: Iterable[Axis], start: str, want: Dims) -> str:
        """A value over the whole tile, the identity where positions do not count."""
        text, have = given
        mask = self.mask(over)
        if mask:
            text = self.fresh(f"tl.where({mask}, {text}, {start})")[0]
            have = have | {a for a in over if a in self.masks}
        return self.spread(text, have, want)

    def step_moments(self, acc: Accumulator, given: tuple[str, Dims], over: tuple[Axis, ...]) -> None:
        """Welford's step of each lane. All share the count, and with it the division, but for those left out."""
        count, mean, m2 = self.states(acc)
        x, inside = self.spread(*given, self.dims(acc.kept) | frozenset(over)), self.mask(over)
        one = self.fresh(f"tl.where({inside}, 1.0, 0.0)")[0] if inside else "1.0"
        self.put(f"{count} = {count} + {one}")
        share = self.fresh(f"{one} / tl.maximum({count}, 1.0)" if inside else f"1.0 / {count}")[0]
        away = self.fresh(f"tl.where({inside}, {x} - {mean}, 0.0)" if inside else f"{x} - {mean}")[0]
        self.put(f"{mean} = {mean} + {away} * {share}")
        square = f"{away} * ({x} - {mean})"
        self.put(f"{m2} = {m2} + {f'tl.where({inside}, {square}, 0.0)' if inside else square}")

    def moments(self, acc: Accumulator, given: tuple[str, Dims], over: tuple[Axis, ...]) -> list[str]:
        """Welford's state of a tile of elements: its mean, then the squares of what is away from it."""
        t, want = spell.type_name(acc.states[0]), self.dims(acc.kept) | frozenset(over)
        x = self.spread(*given, want)
        count = self.fresh(f"tl.cast({' * '.join(self.counts[a] for a in over)}, {t})")[0]
        inside = self.mask(over) or "True"
        if len(over) > 1:
            inside = inside if inside == "True" else f"tl.broadcast_to({inside}, {self.shape(want)})"
            x, inside = self.flat(x, over), inside if inside == "True" else self.flat(inside, over)
        dim, keep = self.dimension(over[0], want - set(over))
        mean, m2 = self.fresh(f"tile_moments({x}, {inside}, {count}, {dim}, {keep})", 2)
        return [count, mean, m2]

    def flat(self, text: str, over: Iterable[Axis]) -> str:
        """A block over just these axes as one dimension."""
        size = 1
        for axis in over:
            size *= self.tiles[axis]
        return text if len(self.order) == 1 else f"tl.reshape({text}, [{size}])"

    def dimension(self, axis: Axis, left: Dims) -> tuple[int, bool]:
        """Which dimension an axis is, and whether it stays with length 1; the last one of all leaves a scalar."""
        return (self.order.index(axis), True) if left else (0, False)

    def fold_tile(self, acc: Accumulator, states: Sequence[str], over: tuple[Axis, ...]) -> list[str]:
        """States with the tiled axes `over` folded away: all at once if nothing is left, else one after the other."""
        texts, left = list(states), self.dims(acc.kept)
        if not left and over:
            texts = [t if t == "1.0" else self.flat(t, over) for t in texts]
            return self.fold_dim(acc, texts, 0, False)
        for axis in reversed(over):
            texts = self.fold_dim(acc, texts, self.order.index(axis), True)
        return texts

    def fold_dim(self, acc: Accumulator, states: list[str], dim: int, keep: bool) -> list[str]:
        tail = ", keep_dims=True" if keep else ""
        if acc.combiner == "sum":
            return self.fresh(spell.sum_of(states[0], dim, keep, acc.states[0]))
        if acc.combiner in spell.SIMPLE_FOLDS:
            return self.fresh(f"tl.reduce({states[0]}, {dim}, {spell.SIMPLE_FOLDS[acc.combiner]}{tail})")
        if acc.combiner in JOINED_AT_ONCE:
            return self.fresh(f"tile_{acc.combiner}({', '.join(states)}, {dim}, {keep})", len(states))
        self.combines[f"c_{acc.combiner}"] = acc
        return self.fresh(f"tl.reduce(({', '.join(states)}), {dim}, c_{acc.combiner}{tail})", len(states))

    def joined(self, acc: Accumulator) -> list[str]:
        """The states with lanes joined."""
        lanes, states = self.lanes(acc), self.states(acc)
        if self.counts_alone(acc):
            whole = self.dims(acc.kept) | frozenset(lanes)
            states = [self.fresh(self.spread(states[0], self.held[acc].ragged, whole))[0], *states[1:]]
        return self.fold_tile(acc, states, lanes) if lanes else states


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
