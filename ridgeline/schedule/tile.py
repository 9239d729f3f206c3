"""Which blocks: the loops of one phase for machines that hold tiles of several axes in registers.

`chooser(machine, element_bytes)` gives the function that `plan.assemble` asks for a Nest, as `choose` does for lanes.
Three shapes: rows (a fold along the contiguous axis: rows whole in one tile where they fit, so that every pass shares
what was loaded, else in passes; few rows are split), columns (folds across it: a block of columns, split along the
rows), and flat blocks. It looks only at strides, sizes and folds, never at what is computed.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ridgeline.base.records import Machine
from ridgeline.ir.index import Axis
from ridgeline.ir.program import Begin, Compute, Finish, Loop, Phase, Statement
from ridgeline.ir.value import Value, loads, nodes, operands
from ridgeline.ir.words import WORDS
from ridgeline.schedule.nest import Nest
from ridgeline.schedule.plan import Choose, kept_inside
from ridgeline.schedule.strides import IRREGULAR, Access, accesses, points, size_hint, stride
from ridgeline.schedule.tasks import Fold, Task, fold_name, fold_results

# Elements of a block, as shares of the largest tile that a machine holds.
ROWS = 1 / 16  # of short rows
PASS = 1 / 8  # of a row taken in passes, and of columns
LONE = 1 / 2  # of a row, from which on one program fills a worker: it then takes rows in turn, loading ahead
# Bytes.
FLAT_BYTES = 4096  # of a block that folds nothing, at a share of 1: the largest tile of f32 is 32 times as large
COLUMN_BYTES = 256  # the width of a block of columns, and the sides of one that is contiguous along two axes
SECTOR_BYTES = 32  # the least width of a block that joins partial states, to spread them over the workers
WASTE = 1.15  # positions of ragged blocks over those that count, accepted for larger blocks
FEW = 8  # points of a phase for each partial state it leaves
# Elements of a tile that a thread holds: of one or two values of that size at once, and beside more.
ELEMENTS, ELEMENTS_BESIDE = 32, 16
THREADS = (128, 1024)
RESIDENT = 512  # threads of a worker where each program works through many rows
WORD_BYTES = 16  # the widest access of one thread
AHEAD = 3  # iterations whose loads are under way at once: two wait while one is worked on


def power(n: int) -> int:
    """The least power of two that is not smaller."""
    return 1 << max(n - 1, 0).bit_length()


def half(n: int) -> int:
    """The greatest power of two that is not larger; 1 for none."""
    return 1 << max(n.bit_length() - 1, 0)


def run_of(size: int, parts: int, tile: int) -> int:
    """How many positions each of so many parts takes: whole tiles, and the same for all parts where that is near."""
    least = -(-max(-(-size // parts), 1) // tile) * tile
    return next((run for run in range(least, least + least // 8 + 1, tile) if size % run == 0), least)


def best_tile(size: int, most: int) -> int:
    """The largest tile up to `most` that wastes few positions at the ragged end."""
    if size <= most:
        return power(size)
    tiles = [most >> k for k in range(4) if most >> k >= 1]
    waste = {t: -(-size // t) * t / size for t in tiles}
    return next((t for t in tiles if waste[t] <= WASTE), min(tiles, key=waste.__getitem__))


@dataclass
class _Shape:
    """A Nest being decided."""

    order: list[Axis]  # outermost first, by memory
    grid: dict[Axis, int] = field(default_factory=dict)
    tiles: dict[Axis, int] = field(default_factory=dict)
    whole: list[Axis] = field(default_factory=list)

    def programs(self) -> int:
        count = 1
        for axis, block in self.grid.items():
            count *= -(-size_hint(axis) // block)
        return count

    def tile(self, axis: Axis, length: int) -> None:
        """A tile along an axis of the grid: its block, unless that is longer already."""
        if length > 1:
            self.tiles[axis] = length
            self.grid[axis] = max(self.grid.get(axis, 1), length)


class _Chooser:
    def __init__(self, machine: Machine, element_bytes: Mapping[str, int]) -> None:
        self.machine, self.element_bytes = machine, dict(element_bytes)
        self.programs = 4 * machine.workers  # enough to keep every worker busy, and to even out

    def resident(self, elements: int) -> int:
        """How many programs with a tile of so many elements run at once, with registers to spare."""
        return self.machine.workers * max(RESIDENT // threads_for(elements, ELEMENTS_BESIDE), 1)

    def elements(self, share: float) -> int:
        return max(int(self.machine.max_tile * share), 1)

    def __call__(self, remaining: Sequence[Task], lead: Task) -> Nest:
        tasks = [t for t in remaining if t.domain <= lead.domain]
        found = accesses(tasks, self.element_bytes)
        axes = by_memory(lead.domain, found)
        lane = contiguous_axis(axes, found)
        folds = [t for t in tasks if isinstance(t, Fold) and not t.empty]
        base = self.base(folds, lead, lane)
        if base is None:
            shape = self.flat(axes, lane, found, is_heavy(tasks))
        elif lane in base.axes:
            shape = self.rows(axes, lane, base, folds, tasks)
        else:
            shape = self.columns(axes, lane, base, found)
        return self.nest(shape, base, folds, points(lead))

    def base(self, folds: Sequence[Fold], lead: Task, lane: Axis | None) -> Fold | None:
        """The fold that shapes the loops: one along the contiguous axis, of the fewest axes, if there is one."""
        waiting = {t.name for t in folds}
        ready = [f for f in folds if not any(v.attr.buffer[1:] in waiting for v in fold_results(f.roots))] or folds
        along = [f for f in ready if lane in f.axes]
        if along:
            return min(along, key=lambda f: len(f.axes))
        return max(ready, key=points, default=None)

    def nest(self, shape: _Shape, base: Fold | None, folds: Sequence[Fold], total: int) -> Nest:
        covered = [a for a, block in shape.grid.items() if a.size.const is not None and block >= a.size.const]
        for axis in covered:
            del shape.grid[axis]
        shape.whole = [*(a for a in covered if shape.tiles.get(a, 1) >= size_hint(a)), *shape.whole]
        # One tile covers what an iteration takes of some axes: those open outside of loops, so that states begin there.
        once = [a for a in shape.order if a not in shape.whole and shape.grid.get(a) in (1, shape.tiles.get(a, 1))]
        order = [*shape.whole, *once, *(a for a in shape.order if a not in shape.whole and a not in once)]
        nest = Nest(
            tuple(order),
            {a: shape.grid[a] for a in shape.order if a in shape.grid},
            shape.tiles,
            frozenset(shape.whole),
            unroll=1,
            direct=base is not None and all(a in shape.whole for a in base.axes),
        )
        return replace(nest, skips=frozenset(f.name for f in folds if f is not base and not suits(f, nest, total)))

    # ---- shapes

    def flat(self, axes: list[Axis], lane: Axis | None, found: Sequence[Access], heavy: bool) -> _Shape:
        shape = _Shape(axes, {a: 1 for a in axes})
        other = across(axes, found, lane)
        if lane is not None and other is not None:
            widest = max(a.element_bytes for a in found)
            side = min(COLUMN_BYTES // widest, half(math.isqrt(self.elements(LONE))))
            shape.tile(lane, best_tile(size_hint(lane), side))
            shape.tile(other, best_tile(size_hint(other), side))
            return shape
        widest = max((a.element_bytes for a in found if stride(a.offset, lane) == 1), default=4) if lane else 4
        left = half(self.elements((1 + heavy) * FLAT_BYTES / widest / 32768))
        inner_first = sorted(axes, key=lambda a: (a is not lane, -axes.index(a)))
        for axis in inner_first[:3]:
            tile = best_tile(size_hint(axis), left)
            shape.tile(axis, tile)
            left //= tile
            if left < 2:
                break
        return shape

    def rows(
        self, axes: list[Axis], lane: Axis | None, base: Fold, folds: Sequence[Fold], tasks: Sequence[Task]
    ) -> _Shape:
        along = [a for a in axes if a in base.axes]
        kept = [a for a in axes if a not in base.axes]
        shape = _Shape(axes, {a: 1 for a in kept})
        length = 1
        for axis in along:
            length *= power(size_hint(axis)) if axis.size.const is not None else IRREGULAR
        if length <= self.most(tasks, lane):
            shape.whole = along
            shape.tiles = {a: power(size_hint(a)) for a in along if size_hint(a) > 1}
            self.several(shape, kept, folds, max(length, 1))
        else:
            self.passes(shape, along)
        return shape

    def most(self, tasks: Sequence[Task], lane: Axis | None) -> int:
        """Elements of the longest row held whole: what a program keeps of it must fit the registers."""
        live = {v for t in tasks for v in loads(t.roots) if lane in v.axes and fold_name(v) is None}
        kept = [t for t in tasks if isinstance(t, Fold) and lane in t.kept]
        return half(3 * self.machine.max_tile // (2 * max(len(live) + len(kept), 1)))

    def several(self, shape: _Shape, kept: Sequence[Axis], folds: Sequence[Fold], length: int) -> None:
        """Short rows share a program; where rows are folded too, a program takes a run of them."""
        if not kept:
            return
        inner = kept[-1]
        summed = {a for f in folds for a in f.axes if a in kept}
        most = self.elements(ROWS) * (1 if summed else 2)
        together = min(most // length, shape.programs() // self.programs, size_hint(inner))
        shape.tile(inner, half(together))
        lone = {inner} if length >= self.elements(LONE) and not summed else set()
        for axis in kept:
            if axis in summed | lone:
                others = max(shape.programs() // -(-size_hint(axis) // shape.grid[axis]), 1)
                wanted = max(self.resident(length * shape.tiles.get(inner, 1)) // others, 1)
                tile = shape.tiles.get(axis, 1)
                run = max(run_of(size_hint(axis), wanted, tile), FEW)
                shape.grid[axis] = max(min(run, size_hint(axis)), shape.grid[axis])

    def passes(self, shape: _Shape, along: Sequence[Axis]) -> None:
        """A long row in loops over tiles; split among programs where there are few rows."""
        left = self.elements(PASS)
        for axis in reversed(along):
            tile = min(power(size_hint(axis)), left)
            if tile > 1:
                shape.tiles[axis] = tile
            left //= tile
        wanted = -(-self.programs // max(shape.programs(), 1))
        length = 1
        for axis in along:
            length *= size_hint(axis)
        wanted = min(wanted, length // self.machine.max_tile)
        for axis in along:
            if wanted < 2:
                break
            tile = shape.tiles.get(axis, 1)
            run = run_of(size_hint(axis), wanted, tile)
            if run < size_hint(axis):
                shape.grid[axis] = run
                wanted //= -(-size_hint(axis) // run)

    def columns(self, axes: list[Axis], lane: Axis | None, base: Fold, found: Sequence[Access]) -> _Shape:
        along = [a for a in axes if a in base.axes]
        shape = _Shape(axes, {a: 1 for a in axes if a not in base.axes})
        width = 1
        if lane is not None:
            narrowest = min((a.element_bytes for a in found if stride(a.offset, lane) == 1), default=4)
            width = best_tile(size_hint(lane), COLUMN_BYTES // narrowest)
            while base.joins and width * narrowest > SECTOR_BYTES and size_hint(lane) < width * self.machine.workers:
                width //= 2
            shape.tile(lane, width)
        left = max(self.elements(PASS) // width, 1)
        for axis in reversed(along):
            tile = min(power(size_hint(axis)), left)
            if tile > 1:
                shape.tiles[axis] = tile
            left //= tile
        if all(a.size.const is not None and a.size.const <= shape.tiles.get(a, 1) for a in along):
            shape.whole = along
            return shape
        if base.joins:
            return shape
        wanted = -(-self.programs // max(shape.programs(), 1))
        for axis in along:
            tile = shape.tiles.get(axis, 1)
            run = max(run_of(size_hint(axis), wanted, tile), 4 * tile)
            if wanted >= 2 and run < size_hint(axis):
                shape.grid[axis] = run
                wanted //= -(-size_hint(axis) // run)
        return shape


def suits(fold: Fold, nest: Nest, total: int) -> bool:
    """Whether a fold keeps its states in registers here, and leaves few partial ones beside `total` points."""
    parts = 1
    for axis in fold.domain:
        if axis in fold.kept or axis in nest.grid:
            parts *= -(-size_hint(axis) // (1 if axis in fold.kept else nest.grid[axis]))
    split = any(a in nest.grid for a in fold.axes)
    return not kept_inside(fold, nest) and (not split or FEW * parts <= total)


def by_memory(domain: frozenset[Axis], found: Sequence[Access]) -> list[Axis]:
    """Axes, the one along which accesses lie furthest apart first."""
    far = {a: max((min(stride(x.offset, a), IRREGULAR) * x.bytes for x in found), default=0) for a in domain}
    return sorted(domain, key=lambda a: (-far[a], a.name))


def contiguous_axis(axes: Sequence[Axis], found: Sequence[Access]) -> Axis | None:
    """The axis along which most bytes lie next to each other."""
    gain = {a: sum(distinct(x) for x in found if stride(x.offset, a) == 1) * min(size_hint(a), 32) for a in axes}
    return max(reversed(axes), key=gain.__getitem__, default=None)


def is_heavy(tasks: Sequence[Task]) -> bool:
    """Whether special functions of one or two inputs take more time than moving them: work side by side then pays."""
    values = nodes(r for t in tasks for r in t.roots)
    special = any(WORDS[v.op].special for v in values if v.op in WORDS and not v.op.startswith("div"))
    widest = max((len(v.axes) for v in values), default=0)
    return special and sum(v.op == "load" and len(v.axes) == widest for v in values) <= 2


def distinct(access: Access) -> int:
    """Bytes of the different elements that an access touches."""
    count = access.element_bytes
    for axis in access.offset.axes:
        count *= size_hint(axis)
    return count


def across(axes: Sequence[Axis], found: Sequence[Access], lane: Axis | None) -> Axis | None:
    """A second axis along which large accesses lie dense that are strided along the first."""
    if lane is None or size_hint(lane) < 8:
        return None
    for x in sorted(found, key=distinct, reverse=True):
        if 1 < stride(x.offset, lane) < IRREGULAR:
            for axis in axes:
                if axis is not lane and stride(x.offset, axis) == 1 and size_hint(axis) >= 8:
                    return axis
    return None


def chooser(machine: Machine, element_bytes: Mapping[str, int]) -> Choose:
    """The choice of blocks for this machine."""
    return _Chooser(machine, element_bytes)


def spread(phase: Phase, machine: Machine) -> Phase:
    """The phase with its threads, loops that load ahead, and all loads of a body under way before its first fold."""
    body = loading_ahead(loads_first(phase.body), machine.cache_bytes[:-1], {})
    return replace(phase, body=body, threads=threads_for(*largest_tile(body, {})))


def threads_for(elements: int, each: int) -> int:
    """Threads that hold a tile of so many elements."""
    least, most = THREADS
    return max(least, min(most, power(elements // each)))


def loading_ahead(
    body: Sequence[Statement], near_bytes: Sequence[int], tiles: Mapping[Axis, int]
) -> tuple[Statement, ...]:
    """Loops ask for loads ahead where what they load fits the memory that a program's threads share."""
    out: list[Statement] = []
    for s in body:
        if isinstance(s, Loop):
            opened = {**tiles, s.axis: s.tile}
            loaded = loaded_in(s.body, opened)
            ahead_bytes = (AHEAD - 1) * sum(tile_of(v.axes, opened) * v.attr.stored.bytes for v in loaded)
            fits = (
                not s.once and near_bytes and 0 < ahead_bytes <= near_bytes[0] * 3 // 4 and all(map(in_words, loaded))
            )
            s = replace(s, body=loading_ahead(s.body, near_bytes, opened), ahead=AHEAD if fits else 1)
        out.append(s)
    return tuple(out)


def in_words(v: Value) -> bool:
    """Whether a load moves whole aligned words, as loads in the background must."""
    offset, word = v.attr.index[0], WORD_BYTES // v.attr.stored.bytes
    return all(stride(offset, a) == 1 or stride(offset, a) % word == 0 for a in offset.axes)


def loaded_in(body: Sequence[Statement], tiles: Mapping[Axis, int]) -> list[Value]:
    """What a loop's own body, not that of loops inside, loads in tiles."""
    values = [s.value for s in body if isinstance(s, Compute) and s.value.op == "load"]
    return [v for v in values if tile_of(v.axes, tiles) > 1]


def tile_of(axes: Iterable[Axis], tiles: Mapping[Axis, int]) -> int:
    return math.prod(tiles.get(a, 1) for a in axes)


def loads_first(body: Sequence[Statement]) -> tuple[Statement, ...]:
    """Loads that need no fold of this body, and what they need, before everything else: kernels read before they
    write, so no order between them and stores is lost."""
    inner = [replace(s, body=loads_first(s.body)) if isinstance(s, Loop) else s for s in body]
    made = {s.value for s in inner if isinstance(s, Compute)}
    made |= {v for s in inner if isinstance(s, Finish) for _, v in s.results}
    free: set[Value] = set()
    for s in inner:
        if isinstance(s, Compute) and all(o in free or o not in made for o in operands(s.value)):
            free.add(s.value)
    early = set(nodes(v for v in free if v.op == "load")) & free
    first = [s for s in inner if isinstance(s, Compute) and s.value in early]
    return (*first, *(s for s in inner if not (isinstance(s, Compute) and s.value in early)))


def largest_tile(
    body: Sequence[Statement], tiles: Mapping[Axis, int], outside: tuple[frozenset[Axis], ...] = ()
) -> tuple[int, int]:
    """Elements of the largest block, and how many of them a thread may hold: fewer beside several others as large.

    `outside`: the axes of values that bodies around this one keep: what they loaded, and states while a loop runs.
    """
    size = math.prod(tiles.values())
    kept = (*outside, *(v.axes for v in loaded_in(body, tiles)))
    states = tuple(frozenset((*s.accumulator.axes, *s.accumulator.kept)) for s in body if isinstance(s, Begin))
    beside = sum(2 * tile_of(axes, tiles) >= size for axes in kept)
    out = (size, ELEMENTS if beside <= 2 else ELEMENTS_BESIDE)
    for s in body:
        if isinstance(s, Loop):
            inner = largest_tile(s.body, {**tiles, s.axis: s.tile}, kept if s.once else (*kept, *states))
            out = max(out, inner, key=lambda t: (t[0], -t[1]))
    return out
