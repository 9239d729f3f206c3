"""From a Space to phases: which tasks run together, which folds are split, what scratch joins the phases.

`assemble` repeats one step until no task is left: take the largest task that can run, choose its loops, give the
phase every other task that fits in them, and hand what the phase leaves behind - partial states, results that later
phases need - to the rest as scratch.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ridgeline.base.errors import CheckFailed
from ridgeline.ir.index import ZERO, Axis, Index, as_index
from ridgeline.ir.kernel import Buffer, Mode
from ridgeline.ir.program import Phase, Scratch
from ridgeline.ir.types import DType
from ridgeline.ir.value import Value, load
from ridgeline.schedule.nest import (
    Nest,
    OutOfReach,
    Split,
    block_axis,
    build_phase,
    bytes_moved,
    dear,
    flat_offset,
    outermost,
)
from ridgeline.schedule.rewrite import direct
from ridgeline.schedule.strides import points, stride
from ridgeline.schedule.tasks import Fold, Rewriter, Task, Write, fold_name, fold_results, nodes

Choose = Callable[[Sequence[Task], Task], Nest]


@dataclass
class Plan:
    """Phases so far, the scratch they use, and what is still to do."""

    buffers: Mapping[str, Buffer]
    remaining: list[Task]
    phases: list[Phase] = field(default_factory=list)
    scratch: list[Scratch] = field(default_factory=list)

    def add_scratch(self, name: str, dtype: DType, shape: Sequence[Index], per_worker: bool = False) -> str:
        taken = {s.buffer.name for s in self.scratch} | set(self.buffers)
        name = next(n for n in (name, *(f"{name}_{k}" for k in range(len(taken) + 1))) if n not in taken)
        strides = [as_index(1)]
        for size in reversed(shape[1:]):
            strides.append(strides[-1] * size)
        buffer = Buffer(name, dtype, tuple(shape), tuple(reversed(strides))[-len(shape) :] if shape else ())
        self.scratch.append(Scratch(buffer, per_worker))
        return name

    def states(self, fold: Fold, chunks: tuple[Axis, ...], nest: Nest) -> Split:
        """Scratch for the states of a fold, one for each chunk and kept point."""
        axes = (*chunks, *(a for a in nest.order if a in fold.kept))
        stem = f"{fold.name}{'_part' if chunks else '_state'}"
        shape = [a.size for a in axes]
        names = [self.add_scratch(f"{stem}{'abcdef'[k]}", t, shape) for k, t in enumerate(fold.states)]
        return Split(tuple(names), chunks, flat_offset(axes))


def assemble(tasks: Sequence[Task], buffers: Mapping[str, Buffer], choose: Choose) -> Plan:
    """Phases for all tasks, in order."""
    plan = Plan(buffers, list(tasks))
    while plan.remaining:
        nest, group = _next_group(plan.remaining, choose)
        _emit(plan, nest, group)
    return plan


def _next_group(remaining: Sequence[Task], choose: Choose) -> tuple[Nest, list[Task]]:
    """The largest task that can run now, in loops that suit the others too or else itself, and all that fit in them."""
    for suited in (False, True):
        for lead in sorted(remaining, key=points, reverse=True):
            nest = choose([lead] if suited else remaining, lead)
            group = _fitting(remaining, nest)
            if lead in group:
                return nest, group
    raise CheckFailed("schedule", str(remaining[0]), "no task can run: folds need each other")


def _fitting(remaining: Sequence[Task], nest: Nest) -> list[Task]:
    """Tasks inside the grid whose folds are done, or are done in this phase without being split."""
    waiting = {t.name: t for t in remaining if isinstance(t, Fold)}
    ready: set[str] = set()
    group: list[Task] = []
    for task in remaining:
        needs = [n for v in fold_results(task.roots) if (n := fold_name(v)) in waiting]
        inside = task.domain.issuperset(nest.grid) and task.domain.issubset(nest.order)
        if inside and allowed(task, nest) and all(n in ready for n in needs):
            group.append(task)
            if isinstance(task, Fold) and not is_split(task, nest):
                ready.add(task.name)
    return group


def is_split(fold: Fold, nest: Nest) -> bool:
    """Whether iterations of the grid hold only parts of the fold."""
    return not fold.empty and any(a in nest.grid for a in fold.axes)


def kept_inside(fold: Fold, nest: Nest) -> list[Axis]:
    """Kept axes whose loops lie inside a loop over a folded axis: the states then live in memory."""
    loops = [a for a in nest.order if nest.grid.get(a) != 1 and a not in nest.whole]
    first = min((k for k, a in enumerate(loops) if a in fold.axes and not fold.empty), default=len(loops))
    return [a for a in loops[first:] if a in fold.kept]


def allowed(task: Task, nest: Nest) -> bool:
    """States in memory have no lanes of their own: lanes may then not be folded."""
    if not isinstance(task, Fold):
        return True
    if task.name in nest.skips:
        return False
    return not kept_inside(task, nest) or not any(a in nest.tiles for a in task.axes)


def _emit(plan: Plan, nest: Nest, group: Sequence[Task]) -> None:
    """One phase for the group; what remains reads what the phase leaves behind."""
    rest = [t for t in plan.remaining if t not in group]
    splits: dict[str, Split] = {}
    memory: dict[str, Split] = {}
    known: dict[Value, Value] = {}
    work: list[Task] = []
    for task in group:
        task = reread(task, known)
        if not isinstance(task, Fold):
            work.append(task)
            continue
        chunks = tuple(block_axis(a, nest.grid[a]) for a in nest.grid if a in task.axes and not task.empty)
        partial = plan.states(task, chunks, nest) if chunks else None
        if partial is not None:
            rest.insert(0, _joined(task, partial))
        form = direct(task, _count(task, nest)) if nest.direct else None
        for fold in form.folds if form is not None else (task,):
            work.append(fold)
            if fold is task and partial is not None:
                splits[fold.name] = partial
            if kept_inside(fold, nest):
                memory[fold.name] = partial if fold is task and partial else plan.states(fold, chunks, nest)
        if form is not None and partial is not None:
            work += [
                Write(b, partial.offset, v, scratch=True) for b, v in zip(partial.buffers, form.state, strict=True)
            ]
        elif form is not None:
            known |= {task.result(part): form.results[part] for part, _ in task.parts}
    rest = [reread(t, known) for t in rest]
    rest = _spill(plan, work, rest, splits)
    work = [_streamed(t, plan, nest) for t in work]
    plan.remaining = rest
    while True:
        sizes = element_bytes([*plan.buffers.values(), *(s.buffer for s in plan.scratch)])
        try:
            moved = bytes_moved(work, sizes)
            plan.phases.append(build_phase(work, nest, splits, memory, plan.add_scratch, moved))
            return
        except OutOfReach as missing:
            work = _through_scratch(plan, work, missing.args[0])


def _through_scratch(plan: Plan, work: Sequence[Task], name: str) -> list[Task]:
    """Users of a fold's results read them from scratch of the worker, in whatever loop they are."""
    place = next(k for k, t in enumerate(work) if isinstance(t, Fold) and t.name == name)
    fold = work[place]
    assert isinstance(fold, Fold)
    writes: list[Task] = []
    known: dict[Value, Value] = {}
    for part, dtype in fold.parts:
        buffer = plan.add_scratch(f"{name}_{part}", dtype, [a.size for a in fold.kept], True)
        writes.append(Write(buffer, flat_offset(fold.kept), fold.result(part), scratch=True))
        known[fold.result(part)] = load(buffer, (flat_offset(fold.kept),), dtype)
    return [*work[: place + 1], *writes, *(reread(t, known) for t in work[place + 1 :])]


def _count(fold: Fold, nest: Nest) -> Index | None:
    """How many elements one iteration of the grid folds; None where the last block is shorter."""
    count = as_index(1)
    for axis in fold.axes:
        block = nest.grid.get(axis)
        if block is None:
            count = count * axis.size
        elif axis.size.const is not None and axis.size.const % block == 0:
            count = count * block
        else:
            return None
    return count


def _spill(plan: Plan, work: list[Task], rest: Sequence[Task], splits: Mapping[str, Split]) -> list[Task]:
    """Results of this phase that the rest needs go to scratch, dear values of nothing else along with them; gives the
    rest, reading them there.
    """
    done = {t.name: t for t in work if isinstance(t, Fold) and t.name not in splits}
    known: dict[Value, Value] = {}
    while True:
        needed = [v for t in rest for v in fold_results(t.roots) if fold_name(v) in done]
        if not needed:
            return list(rest)
        ready = [v for v in nodes(r for t in rest for r in t.roots) if _follows(v, done)]
        kept = outermost(dear(ready)) or needed[:1]
        for value in kept:
            name = fold_name(value) or "row"
            axes = list(dict.fromkeys(a for t in done.values() for a in t.kept if a in value.axes))
            buffer = plan.add_scratch(f"{name}_all", value.dtype, [a.size for a in axes])
            work.append(Write(buffer, flat_offset(axes), value, scratch=True))
            known[value] = load(buffer, (flat_offset(axes),), value.dtype)
        rest = [reread(t, known) for t in rest]


def _follows(value: Value, done: Mapping[str, Fold]) -> bool:
    """Whether a value depends on results of these folds, varies along axes they keep, and on nothing still to come."""
    names = [fold_name(v) or "" for v in fold_results([value])]
    kept = {a for n in names if n in done for a in done[n].kept}
    return bool(names) and all(n in done for n in names) and value.axes <= kept


def _joined(fold: Fold, split: Split) -> Fold:
    """The fold over partial states that remains."""
    states = tuple(load(b, (split.offset,), t) for b, t in zip(split.buffers, fold.states, strict=True))
    return replace(fold, axes=split.chunks, elements=states, joins=True)


def reread(task: Task, known: Mapping[Value, Value]) -> Task:
    """The task with some values replaced by others."""
    if not known:
        return task
    rewriter = Rewriter(known.get, lambda v: v)
    if isinstance(task, Fold):
        return replace(task, elements=tuple(rewriter.value(e) for e in task.elements))
    return replace(task, offset=rewriter.index(task.offset), value=rewriter.value(task.value))


def _streamed(task: Task, plan: Plan, nest: Nest) -> Task:
    """Stores past the caches where the buffer outgrows them and every tile is whole lines."""
    if not isinstance(task, Write) or task.mode is not Mode.PLAIN or task.buffer not in plan.buffers:
        return task
    buffer = plan.buffers[task.buffer]
    size = buffer.numel.const
    if size is None or size * buffer.dtype.bytes <= nest.stream_bytes or len(nest.tiles) != 1:
        return task
    ((lane, width),) = nest.tiles.items()
    whole = stride(task.offset, lane) == 1 and (task.offset - lane) % width is ZERO
    return replace(task, streaming=True) if whole else task


def element_bytes(buffers: Iterable[Buffer]) -> dict[str, int]:
    return {b.name: b.dtype.bytes for b in buffers}
