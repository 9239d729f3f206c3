"""From tasks and a choice of loops to one phase: passes, accumulators, and where each value is computed.

`build_phase` takes the tasks of one phase and a Nest (loop order, grid, tiles) and gives the Phase. A fold becomes
three jobs - begin, step, finish - and a write one; jobs that enter the same loop at the same stage share it, and a
job waits one stage when it needs something that a whole loop makes. That rule alone yields the passes of softmax, the
column accumulators of a bias gradient and the nested folds of a norm's backward. What is best is not decided here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ridgeline.ir.index import ZERO, Axis, Index, as_index, flatten
from ridgeline.ir.program import (
    Accumulator,
    Begin,
    Compute,
    Finish,
    Join,
    Loop,
    Phase,
    Put,
    Save,
    Statement,
    Step,
)
from ridgeline.ir.value import Value, loads, nodes
from ridgeline.schedule.tasks import Fold, Task, Write, fold_name

UNROLL_OPS = 12  # a loop body up to this many operations gets independent accumulators
UNROLL = 4


@dataclass(frozen=True, slots=True)
class Nest:
    """Loops of one phase: `order` outermost first; `grid` maps parallel axes to the positions each iteration takes.

    `whole` axes, first in the order, lie in one tile: a fold over them begins and finishes inside.
    """

    order: tuple[Axis, ...]
    grid: Mapping[Axis, int]
    tiles: Mapping[Axis, int]
    whole: frozenset[Axis] = frozenset()
    unroll: int = UNROLL
    direct: bool = True  # folds as simple ones where that is cheaper for data that is near
    stage_bytes: int = 0  # how much a worker may keep between passes
    stream_bytes: int = 1 << 62  # outputs larger than this pass by the caches


@dataclass(frozen=True, slots=True)
class Split:
    """Where the partial states of a fold go: one scratch a component, and the grid axes that number the parts."""

    buffers: tuple[str, ...]
    chunks: tuple[Axis, ...]
    offset: Index


@dataclass(frozen=True, eq=False)
class Job:
    """One statement to place, with the axes it happens over and the jobs it waits for."""

    domain: frozenset[Axis]
    make: Statement
    roots: tuple[Value, ...] = ()
    needs: tuple["Job", ...] = ()
    fold: Fold | None = None  # of a step


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
    jobs: list[Job] = field(default_factory=list)
    finished: dict[str, Job] = field(default_factory=dict)
    written: dict[str, Job] = field(default_factory=dict)

    # ---- jobs

    def add_task(self, task: Task) -> None:
        read = loads(task.roots)
        needs = [self.finished[n] for v in read if (n := fold_name(v)) in self.finished]
        needs += [self.written[b] for b in dict.fromkeys(v.attr.buffer for v in read) if b in self.written]
        inside = frozenset().union(*(j.domain & self.nest.whole for j in needs)) if needs else frozenset()
        if isinstance(task, Write):
            make = Put(task.buffer, task.offset, task.value, task.mode, streaming=task.streaming)
            self.jobs.append(Job(task.domain | inside, make, task.roots, tuple(needs)))
            self.written[task.buffer] = self.jobs[-1]
            return
        self.add_fold(task, needs, inside)

    def add_fold(self, fold: Fold, needs: list[Job], inside: frozenset[Axis]) -> None:
        split, memory = self.splits.get(fold.name), self.memory.get(fold.name)
        dtypes = tuple(e.dtype for e in fold.elements)
        place = memory or split
        accumulator = Accumulator(
            fold.name,
            fold.combiner,
            dtypes,
            fold.states,
            fold.axes,
            fold.kept,
            place.buffers if memory and place else (),
            place.offset if memory and place else None,
        )
        at = frozenset(fold.kept) | inside | (fold.domain & self.nest.whole)
        begin = Job(at, Begin(accumulator))
        step: Statement = (Join if fold.joins else Step)(accumulator, fold.elements)
        self.jobs.append(begin)
        last = begin
        if not fold.empty:
            last = Job(fold.domain | inside, step, fold.roots, (begin, *needs), fold)
            self.jobs.append(last)
        if split is None:
            made = tuple((part, fold.result(part)) for part, _ in fold.parts)
            done = Job(at, Finish(accumulator, made), needs=(last,))
            self.finished[fold.name] = done
            self.jobs.append(done)
        elif not memory:
            self.jobs.append(Job(at, Save(accumulator, split.buffers, split.offset), needs=(last,)))

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

    def stages(self, jobs: list[Job], entering: Mapping[Job, Axis | None]) -> dict[Job, int]:
        """The earliest stage of each job: after what it needs, in the same loop where it can."""
        out: dict[Job, int] = {}
        for job in jobs:
            waits = [
                out[n] + (0 if entering[n] is None or entering[n] is entering[job] else 1)
                for n in job.needs
                if n in out
            ]
            out[job] = max(waits, default=0)
        return out

    def body(self, jobs: list[Job], open_axes: frozenset[Axis], scope: set[Value]) -> tuple[Statement, ...]:
        entering = {j: self.next_axis(j, open_axes) for j in jobs}
        stages = self.stages(jobs, entering)
        out: list[Statement] = []
        for stage in range(max(stages.values(), default=-1) + 1):
            here = [j for j in jobs if stages[j] == stage]
            for job in here:
                if entering[job] is None:
                    out += self.leaf(job, scope)
            for axis in dict.fromkeys(a for j in here if (a := entering[j]) is not None):
                inside = [j for j in here if entering[j] is axis]
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
    tasks: Sequence[Task], nest: Nest, splits: Mapping[str, Split], memory: Mapping[str, Split], work: Index
) -> Phase:
    """One phase that does the tasks (folds before their users). Folds in `splits` end as partial states, those in
    `memory` are kept in scratch all along."""
    builder = _Builder(nest, splits, memory)
    for task in tasks:
        builder.add_task(task)
    grid = tuple(block_axis(a, b) for a, b in nest.grid.items())
    open_axes = frozenset(a for a, b in nest.grid.items() if b == 1)
    return Phase(grid, builder.body(builder.jobs, open_axes, set()), work)


def flat_offset(axes: Sequence[Axis]) -> Index:
    """Row-major position over axes."""
    return flatten(axes, [a.size for a in axes])
