"""From tasks and a choice of loops to one phase: passes, accumulators, and where each value is computed.

`build_phase` takes the tasks of one phase and a Nest (loop order, grid, tiles) and gives the Phase. A fold becomes
three jobs - begin, step, finish - and a write one; jobs that enter the same loop at the same stage share it, and a
job waits one stage when it needs something that a whole loop makes. That rule alone yields the passes of softmax, the
column accumulators of a bias gradient and the nested folds of a norm's backward. What is best is not decided here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from ridgeline.ir.index import ZERO, Axis, Index, as_index, flatten
from ridgeline.ir.program import (
    Accumulator,
    Begin,
    Compute,
    Finish,
    Join,
    Loop,
    Phase,
    Prefetch,
    Put,
    Save,
    Statement,
    Step,
)
from ridgeline.ir.types import DType
from ridgeline.ir.value import Value, load
from ridgeline.ir.words import WORDS
from ridgeline.schedule.strides import hint, size_hint, stride
from ridgeline.schedule.tasks import Fold, Rewriter, Task, Write, fold_name, loads, nodes

UNROLL_OPS = 12  # a loop body up to this many operations gets independent accumulators
UNROLL = 4
PAGE = 4096  # bytes ahead that a single pass asks for
AddScratch = Callable[[str, DType, Sequence[Index], bool], str]


@dataclass(frozen=True, slots=True)
class Nest:
    """Loops of one phase: `order` outermost first; `grid` maps parallel axes to the positions each iteration takes.

    `whole` axes, first in the order, lie in one tile: a fold over them begins and finishes inside. `skips` names
    folds that are left to a phase of their own.
    """

    order: tuple[Axis, ...]
    grid: Mapping[Axis, int]
    tiles: Mapping[Axis, int]
    whole: frozenset[Axis] = frozenset()
    unroll: int = UNROLL
    direct: bool = True  # folds as simple ones where that is cheaper for data that is near
    stage_bytes: int = 0  # how much a worker may keep between passes
    skips: frozenset[str] = frozenset()
    prefetch_bytes: int = 1 << 62  # of buffers larger than this, the next row is fetched while one is finished
    stream_bytes: int = 1 << 62  # outputs larger than this pass by the caches


@dataclass(frozen=True, slots=True)
class Split:
    """Where the partial states of a fold go: one scratch a component, and the grid axes that number the parts."""

    buffers: tuple[str, ...]
    chunks: tuple[Axis, ...]
    offset: Index


@dataclass(frozen=True)
class Job:
    """One statement to place, with the axes it happens over and the keys of the jobs it waits for."""

    key: int
    domain: frozenset[Axis]
    make: Statement
    roots: tuple[Value, ...] = ()
    needs: tuple[int, ...] = ()
    fold: Fold | None = None  # of a step
    over: frozenset[str] = frozenset()  # buffers that a put may overwrite

    def rewritten(self, known: Mapping[Value, Value], needs: Iterable[int]) -> "Job":
        """The job with some of its values read from where others put them."""
        rewriter = Rewriter(known.get, lambda v: v)
        make = self.make
        match make:
            case Step(accumulator, elements) | Join(accumulator, elements):
                make = type(make)(accumulator, tuple(map(rewriter.value, elements)))
                roots = make.elements if isinstance(make, Step) else make.other
            case Put(_, offset, value):
                make = replace(make, offset=rewriter.index(offset), value=rewriter.value(value))
                roots = (*make.offset.reads, make.value)
            case _:
                return self
        return replace(self, make=make, roots=roots, needs=(*self.needs, *needs))


def block_axis(axis: Axis, block: int) -> Axis:
    """The grid axis that numbers blocks of an axis; the axis itself for blocks of one."""
    return axis if block == 1 else Axis(f"{axis.name}_b", (axis.size + (block - 1)) // block)


class OutOfReach(Exception):
    """A fold's result is needed in another loop than the one that makes it: it must go through scratch."""


@dataclass
class _Builder:
    nest: Nest
    splits: Mapping[str, Split]
    memory: Mapping[str, Split]
    add_scratch: AddScratch
    jobs: list[Job] = field(default_factory=list)
    finished: dict[str, Job] = field(default_factory=dict)
    written: dict[str, Job] = field(default_factory=dict)  # scratch only
    keys: Iterator[int] = field(default_factory=count)

    # ---- jobs

    def add(self, domain: frozenset[Axis], make: Statement, roots: tuple[Value, ...] = (), *needs: Job) -> Job:
        job = Job(next(self.keys), domain, make, roots, tuple(dict.fromkeys(n.key for n in needs)))
        self.jobs.append(job)
        return job

    def makers(self, roots: Iterable[Value]) -> list[Job]:
        """The jobs of this phase that make what the values read."""
        read = loads(roots)
        made = [self.finished.get(fold_name(v) or "") or self.written.get(v.attr.buffer) for v in read]
        return [j for j in made if j is not None]

    def add_task(self, task: Task) -> None:
        needs = self.makers(task.roots)
        inside = frozenset().union(*(j.domain & self.nest.whole for j in needs)) if needs else frozenset()
        if isinstance(task, Fold):
            self.add_fold(task, needs, inside)
            return
        make = Put(task.buffer, task.offset, task.value, task.mode, streaming=task.streaming)
        job = self.add(task.domain | inside, make, task.roots, *needs)
        self.jobs[-1] = job = replace(job, over=task.over)
        if task.scratch:
            self.written[task.buffer] = job

    def add_fold(self, fold: Fold, needs: list[Job], inside: frozenset[Axis]) -> None:
        split, memory = self.splits.get(fold.name), self.memory.get(fold.name)
        accumulator = Accumulator(
            fold.name,
            fold.combiner,
            tuple(e.dtype for e in fold.elements),
            fold.states,
            fold.axes,
            fold.kept,
            memory.buffers if memory else (),
            memory.offset if memory else None,
        )
        at = frozenset(fold.kept) | inside | (fold.domain & self.nest.whole)
        last = self.add(at, Begin(accumulator))
        if not fold.empty:
            step: Statement = (Join if fold.joins else Step)(accumulator, fold.elements)
            last = self.add(fold.domain | inside, step, fold.roots, last, *needs)
            self.jobs[-1] = last = replace(last, fold=fold)
        if split is None:
            made = tuple((part, fold.result(part)) for part, _ in fold.parts)
            self.finished[fold.name] = self.add(at, Finish(accumulator, made), (), last)
        elif not memory:
            self.add(at, Save(accumulator, split.buffers, split.offset), (), last)

    # ---- loops

    def loop(self, axis: Axis, body: tuple[Statement, ...], unroll: int = 1) -> Loop:
        block = self.nest.grid.get(axis)
        tile = self.nest.tiles.get(axis, 1)
        if block is None:
            return Loop(axis, ZERO, axis.size, body, tile, unroll)
        start = as_index(block_axis(axis, block)) * block
        return Loop(axis, start, as_index(block), body, tile, unroll)

    def next_axis(self, job: Job, open_axes: frozenset[Axis]) -> Axis | None:
        return next((a for a in self.nest.order if a in job.domain and a not in open_axes), None)

    def body(self, jobs: list[Job], open_axes: frozenset[Axis], scope: set[Value]) -> tuple[Statement, ...]:
        jobs = self.kept_rows(jobs, open_axes)
        entering = {j.key: self.next_axis(j, open_axes) for j in jobs}
        stages = _stages(jobs, entering)
        jobs = self.staged_rows(jobs, open_axes, entering, stages)
        jobs = self.next_lines(jobs, open_axes, entering, stages)
        out: list[Statement] = []
        for stage in range(max(stages.values(), default=-1) + 1):
            here = [j for j in jobs if stages[j.key] == stage]
            puts: list[Statement] = []  # may overwrite what other values of this stage load
            for job in here:
                if entering[job.key] is None:
                    out += self.leaf(job, scope)
                    if isinstance(job.make, Put) and job.over:
                        puts.append(out.pop())
            out += puts
            for axis in dict.fromkeys(a for j in here if (a := entering[j.key]) is not None):
                inside = [j for j in here if entering[j.key] is axis]
                out += self.hoisted(inside, open_axes, scope)
                body = self.body(inside, open_axes | {axis}, set(scope))
                out.append(self.loop(axis, body, self.unroll(axis, inside, body)))
        return tuple(out)

    def unroll(self, axis: Axis, jobs: list[Job], body: tuple[Statement, ...]) -> int:
        """Independent accumulators pay where a short body waits for its own last addition."""
        folded = any(j.fold is not None and axis in j.fold.axes and j.fold.name not in self.memory for j in jobs)
        if not folded or any(isinstance(s, Loop) for s in body):
            return 1
        return self.nest.unroll if len(body) <= UNROLL_OPS else 1

    # ---- rows kept in scratch of the worker

    def row(self, value: Value, open_axes: frozenset[Axis]) -> Job | None:
        """A job that puts the value by its place in the loops to come; None where that is too large, or where lanes
        that are open already would share the place.
        """
        if any(a in value.axes for a in self.nest.tiles if a in open_axes):
            return None
        offset, shape = as_index(0), []
        for axis in (a for a in self.nest.order if a in value.axes and a not in open_axes):
            block = self.nest.grid.get(axis)
            size = axis.size if block is None else as_index(block)
            start = 0 if block is None else as_index(block_axis(axis, block)) * block
            offset = offset * size + (as_index(axis) - start)
            shape.append(size)
        if hint(product(shape)) * value.dtype.bytes > self.nest.stage_bytes:
            return None
        make = Put(self.add_scratch("row", value.dtype, shape, True), offset, value)
        needs = tuple(dict.fromkeys(j.key for j in self.makers([value])))
        return Job(next(self.keys), value.axes, make, (value,), needs)

    def kept_rows(self, jobs: list[Job], open_axes: frozenset[Axis]) -> list[Job]:
        """What is dear and does not vary in the loop that a job enters, but in loops inside, is computed before it."""
        rows: dict[Value, Job] = {}
        out: list[Job] = []
        for job in jobs:
            axis = self.next_axis(job, open_axes)
            if axis is None or not self.nest.stage_bytes:
                out.append(job)
                continue
            free = [v for v in dear(nodes(job.roots)) if axis not in v.axes and not v.axes <= open_axes]
            for value in outermost(free):
                row = rows.get(value) or self.row(value, open_axes)
                if row is not None and value not in rows:
                    rows[value] = row
                    out.append(row)
            out.append(_reading(job, rows))
        return out

    def staged_rows(
        self,
        jobs: list[Job],
        open_axes: frozenset[Axis],
        entering: dict[int, Axis | None],
        stages: dict[int, int],
    ) -> list[Job]:
        """What one pass along an axis computes dearly and a later one needs again is kept."""
        if not self.nest.stage_bytes:
            return jobs
        for axis in dict.fromkeys(a for a in entering.values() if a is not None):
            passes = sorted({stages[j.key] for j in jobs if entering[j.key] is axis})
            for stage in passes[:-1]:
                first = [j for j in jobs if entering[j.key] is axis and stages[j.key] == stage]
                later = {j.key for j in jobs if entering[j.key] is axis and stages[j.key] > stage}
                made = [v for v in dear(nodes(r for j in first for r in j.roots)) if axis in v.axes]
                again = {v for j in jobs if j.key in later for v in nodes(j.roots)} if made else set()
                kept = outermost([v for v in made if v in again])
                rows = {v: row for v in kept if (row := self.row(v, open_axes)) is not None}
                for row in rows.values():
                    entering[row.key], stages[row.key] = axis, stage
                jobs = [*(_reading(j, rows) if j.key in later else j for j in jobs), *rows.values()]
        return jobs

    def next_lines(
        self,
        jobs: list[Job],
        open_axes: frozenset[Axis],
        entering: dict[int, Axis | None],
        stages: dict[int, int],
    ) -> list[Job]:
        """Hints where memory would wait for computing: for the first pass over the next row, in the second pass if that
        is dear, else in the last; for a single dear pass, a page ahead.
        """
        out = list(jobs)
        row = next((a for a in reversed(self.nest.order) if a in open_axes), None)
        for axis in dict.fromkeys(a for a in entering.values() if a is not None):
            passes = sorted({stages[j.key] for j in jobs if entering[j.key] is axis})
            first = [r for j in jobs if entering[j.key] is axis and stages[j.key] == passes[0] for r in j.roots]
            single = len(passes) == 1
            if single and not (axis in self.nest.tiles and dear(nodes(first))):
                continue
            second = [r for j in jobs if entering[j.key] is axis and stages[j.key] in passes[1:2] for r in j.roots]
            idle = passes[1] if not single and any(axis in v.axes for v in dear(nodes(second))) else passes[-1]
            for v in loads(first):
                if fold_name(v) is None and (single or (row is not None and row in v.axes)):
                    offset = self.ahead(v, None if single else row)
                    if offset is not None:
                        job = Job(next(self.keys), v.attr.index[0].axes - open_axes, Prefetch(v.attr.buffer, offset))
                        entering[job.key] = self.next_axis(job, open_axes)
                        stages[job.key] = passes[0] if single else idle
                        out.append(job)
        return out

    def ahead(self, v: Value, row: Axis | None) -> Index | None:
        """Where a load is in the next row, or a page ahead; None where a hint is in vain: the buffer is small, or lanes
        do not lie along its lines.
        """
        offset: Index = v.attr.index[0]
        size = v.attr.stored.bytes
        for axis in offset.axes:
            size *= size_hint(axis)
        dense = any(stride(offset, a) == 1 for a in self.nest.tiles)
        if not dense or size <= self.nest.prefetch_bytes or any(True for _ in offset.reads):
            return None
        step = as_index(PAGE // v.attr.stored.bytes) if row is None else offset.coefficient(row)
        return None if step is None else offset + step

    # ---- values

    def leaf(self, job: Job, scope: set[Value]) -> list[Statement]:
        out: list[Statement] = []
        for v in nodes(job.roots):
            if v not in scope and v.op != "const":
                name = fold_name(v)
                scope.add(v)
                out.append(Compute(v) if name is None else self.again(name))
        if isinstance(job.make, Finish):
            scope.update(v for _, v in job.make.results)
        return [*out, job.make]

    def again(self, name: str) -> Statement:
        """A result whose Finish lies in another loop: states in memory are finished again, others are out of reach."""
        if name not in self.memory:
            raise OutOfReach(name)
        return self.finished[name].make

    def hoisted(self, jobs: Iterable[Job], open_axes: frozenset[Axis], scope: set[Value]) -> list[Statement]:
        """Values that do not vary in the loop to come, computed before it."""
        out: list[Statement] = []
        for v in nodes(r for j in jobs for r in j.roots):
            if v in scope or v.op == "const" or not v.axes <= open_axes or fold_name(v) is not None:
                continue
            if all(o in scope or o.op == "const" for o in _operands(v)):
                scope.add(v)
                out.append(Compute(v))
        return out


def _earliest(jobs: Iterable[Job], entering: Mapping[int, Axis | None], least: Mapping[int, int]) -> dict[int, int]:
    """The earliest stage of each job: after what it needs, in the same loop if it can, not before `least`."""
    out: dict[int, int] = {}
    for job in jobs:
        waits = [
            out[n] + (0 if entering[n] is None or entering[n] is entering[job.key] else 1)
            for n in job.needs
            if n in out
        ]
        out[job.key] = max([*waits, least.get(job.key, 0)])
    return out


def _readers(jobs: Sequence[Job]) -> list[tuple[Job, list[Job]]]:
    """Puts that may overwrite a buffer, each with the other jobs that load it."""
    puts = [j for j in jobs if j.over]
    read = {j.key: {v.attr.buffer for v in loads(j.roots)} for j in jobs} if puts else {}
    found = [(p, [j for j in jobs if j is not p and not read[j.key].isdisjoint(p.over)]) for p in puts]
    return [(p, js) for p, js in found if js]


def _overwriting(
    jobs: Sequence[Job],
    entering: Mapping[int, Axis | None],
    given: Mapping[int, int],
    readers: Sequence[tuple[Job, list[Job]]],
) -> dict[int, int]:
    """Least stages, as given, and for puts that may overwrite a buffer: not before the last job that loads it."""
    least = dict(given)
    for _ in readers:  # each round settles one at least
        stages = _earliest(jobs, entering, least)
        before = dict(least)
        for put, others in readers:
            waits = [stages[j.key] + (entering[j.key] not in (None, entering[put.key])) for j in others]
            least[put.key] = max(least.get(put.key, 0), *waits)
        if least == before:
            break
    return least


def _stages(jobs: Sequence[Job], entering: Mapping[int, Axis | None]) -> dict[int, int]:
    """A stage for each job, such that few loops are entered: a job may wait for others that enter the same axis."""

    def loops(stages: Mapping[int, int]) -> set[tuple[Axis, int]]:
        return {(axis, stages[key]) for key, axis in entering.items() if axis is not None}

    readers = _readers(jobs)
    least = _overwriting(jobs, entering, {}, readers)
    best = _earliest(jobs, entering, least)
    tried: set[tuple[Axis, int]] = set()
    while untried := loops(best) - tried:
        axis, stage = min(untried, key=lambda x: (x[1], x[0].name))
        tried.add((axis, stage))
        later = min((s for a, s in loops(best) if a is axis and s > stage), default=None)
        if later is None:
            continue
        waiting = least | {k: later for k, a in entering.items() if a is axis and best[k] == stage}
        waiting = _overwriting(jobs, entering, waiting, readers)
        other = _earliest(jobs, entering, waiting)
        if len(loops(other)) < len(loops(best)):
            least, best = waiting, other
    for job in jobs:  # a state begins in the very loop that steps it, not in an earlier one along the same axis
        if isinstance(job.make, Begin):
            steps = [best[j.key] for j in jobs if job.key in j.needs and entering[j.key] is entering[job.key]]
            best[job.key] = max([best[job.key], *steps[:1]])
    return best


def _reading(job: Job, rows: Mapping[Value, Job]) -> Job:
    """The job with values that rows hold read from there."""
    if not rows:
        return job
    within = set(nodes(job.roots))
    used = {v: row for v, row in rows.items() if v in within}
    if not used:
        return job
    known = {}
    for value, row in used.items():
        assert isinstance(row.make, Put)
        known[value] = load(row.make.buffer, (row.make.offset,), value.dtype)
    return job.rewritten(known, [row.key for row in used.values()])


def dear(values: Iterable[Value]) -> list[Value]:
    """Those whose last word takes longer than a store and a load."""
    return [v for v in values if v.op in WORDS and WORDS[v.op].special]


def outermost(values: Sequence[Value]) -> list[Value]:
    """Those that are no part of another."""
    inner = {o for v in values for o in nodes(v.args)}
    return [v for v in values if v not in inner]


def product(sizes: Iterable[Index]) -> Index:
    out = as_index(1)
    for size in sizes:
        out = out * size
    return out


def _operands(v: Value) -> Iterable[Value]:
    index = v.attr.index if v.op == "load" else (v.attr,) if v.op == "iota" else ()
    return (*v.args, *(r for i in index for r in i.reads))


def bytes_moved(tasks: Iterable[Task], dtype_bytes: Mapping[str, int]) -> Index:
    """An estimate of what a phase moves: every task's loads and store once for each point of its domain."""
    total = as_index(0)
    for task in tasks:
        points = as_index(1)
        for axis in task.domain:
            points = points * axis.size
        total = total + points * sum(dtype_bytes[b] for b in _touched(task))
    return total


def _touched(task: Task) -> list[str]:
    loaded = [v.attr.buffer for v in nodes(task.roots) if v.op == "load" and fold_name(v) is None]
    return [*loaded, *((task.buffer,) if isinstance(task, Write) else ())]


def build_phase(
    tasks: Sequence[Task],
    nest: Nest,
    splits: Mapping[str, Split],
    memory: Mapping[str, Split],
    add_scratch: AddScratch,
    work: Index,
) -> Phase:
    """One phase that does the tasks (folds before their users). Folds in `splits` end as partial states, those in
    `memory` are kept in scratch all along. Raises OutOfReach.
    """
    builder = _Builder(nest, splits, memory, add_scratch)
    for task in tasks:
        builder.add_task(task)
    grid = tuple(block_axis(a, b) for a, b in nest.grid.items())
    open_axes = frozenset(a for a, b in nest.grid.items() if b == 1)
    return Phase(grid, builder.body(builder.jobs, open_axes, set()), work)


def flat_offset(axes: Sequence[Axis]) -> Index:
    """Row-major position over axes."""
    return flatten(axes, [a.size for a in axes])
