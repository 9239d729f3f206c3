"""From a Space to phases: which tasks run together, which folds are split, what scratch joins the phases.

`assemble` repeats one step until no task is left: take the largest task that can run, choose its loops, give the
phase every other task that fits in them, and hand what the phase leaves behind - partial states, results that later
phases need - to the rest as scratch.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ridgeline.base.errors import CheckFailed
from ridgeline.ir.index import Axis, Sym, as_index
from ridgeline.ir.kernel import Buffer
from ridgeline.ir.program import Phase, Scratch
from ridgeline.ir.types import DType
from ridgeline.ir.value import Value, load
from ridgeline.schedule.nest import Nest, Split, block_axis, build_phase, bytes_moved, flat_offset, state_types
from ridgeline.schedule.space import Fold, Rewriter, Task, Write, fold_name, fold_results

Choose = Callable[[Sequence[Task], Task], Nest]


@dataclass
class Plan:
    """Phases so far, the scratch they use, and what is still to do."""

    buffers: Mapping[str, Buffer]
    remaining: list[Task]
    phases: list[Phase] = field(default_factory=list)
    scratch: list[Scratch] = field(default_factory=list)

    def add_scratch(self, name: str, dtype: DType, axes: Sequence[Axis]) -> str:
        strides = []
        stride = as_index(1)
        for axis in reversed(axes):
            strides.append(stride)
            stride = stride * axis.size
        buffer = Buffer(name, dtype, tuple(a.size for a in axes), tuple(reversed(strides)))
        self.scratch.append(Scratch(buffer))
        return name

    def states(self, fold: Fold, chunks: tuple[Axis, ...], kept: Sequence[Axis]) -> Split:
        """Scratch for the states of a fold, one for each chunk and kept point."""
        axes = (*chunks, *kept)
        types = state_types(fold.combiner, [e.dtype for e in fold.elements])
        suffix = "_part" if chunks else "_state"
        stem = f"{fold.name}{suffix}"
        names = [self.add_scratch(f"{stem}{'abcdef'[k]}", t, axes) for k, t in enumerate(types)]
        return Split(tuple(names), chunks, flat_offset(axes))


def assemble(tasks: Sequence[Task], buffers: Mapping[str, Buffer], choose: Choose) -> Plan:
    """Phases for all tasks, in order."""
    plan = Plan(buffers, list(tasks))
    while plan.remaining:
        nest, group = _next_group(plan.remaining, choose)
        _emit(plan, nest, group)
    return plan


def points(task: Task) -> int:
    """How many points a task has, symbols at a typical size."""
    total = 1
    for axis in task.domain:
        total *= size_hint(axis)
    return total


def size_hint(axis: Axis) -> int:
    """The size of an axis, or a typical one where it is known only at run time."""
    return hint(axis.size)


def hint(index: object) -> int:
    """A number for a size expression."""
    from_const = getattr(index, "const", None)
    if isinstance(from_const, int):
        return from_const
    total = 0
    for coefficient, factors in as_index(index).terms:  # type: ignore[arg-type]
        term = coefficient
        for atom in factors:
            term *= max(atom.low, 512) if isinstance(atom, Sym) else _ratio(atom)
        total += term
    return max(total, 1)


def _ratio(atom: object) -> int:
    num, den = getattr(atom, "num", None), getattr(atom, "den", None)
    return max(hint(num) // hint(den), 1) if num is not None and den is not None else 1


def _next_group(remaining: Sequence[Task], choose: Choose) -> tuple[Nest, list[Task]]:
    """The largest task that can run now, and all that fit in its loops."""
    for lead in sorted(remaining, key=points, reverse=True):
        nest = choose(remaining, lead)
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
    return any(a in nest.grid for a in fold.axes)


def first_folded(fold: Fold, nest: Nest) -> int:
    """The place in the order of the outermost loop over a folded axis; past the end if the grid has them all."""
    loops = [k for k, a in enumerate(nest.order) if a in fold.axes and nest.grid.get(a) != 1]
    return min(loops, default=len(nest.order))


def kept_inside(fold: Fold, nest: Nest) -> list[Axis]:
    """Kept axes whose loops lie inside a loop over a folded axis: the states then live in memory."""
    first = first_folded(fold, nest)
    return [a for a in nest.order[first:] if a in fold.kept and nest.grid.get(a) != 1]


def allowed(task: Task, nest: Nest) -> bool:
    """States in memory have no lanes of their own: lanes may then not be folded."""
    if not isinstance(task, Fold) or not kept_inside(task, nest):
        return True
    return not any(a in nest.tiles for a in task.axes)


def _emit(plan: Plan, nest: Nest, group: list[Task]) -> None:
    splits: dict[str, Split] = {}
    memory: dict[str, Split] = {}
    rest = [t for t in plan.remaining if t not in group]
    for task in group:
        if not isinstance(task, Fold):
            continue
        kept = [a for a in nest.order if a in task.kept]
        if is_split(task, nest):
            chunks = tuple(block_axis(a, nest.grid[a]) for a in nest.grid if a in task.axes)
            splits[task.name] = plan.states(task, chunks, kept)
            rest.insert(0, _joined(task, splits[task.name]))
            if kept_inside(task, nest):
                memory[task.name] = splits[task.name]
        elif kept_inside(task, nest):
            memory[task.name] = plan.states(task, (), kept)
    needed = {v for t in rest for v in fold_results(t.roots)}
    spilled: dict[Value, Value] = {}
    for task in list(group):
        if isinstance(task, Fold) and task.name not in splits:
            for part, dtype in task.parts:
                value = task.result(part)
                if value in needed:
                    name = plan.add_scratch(f"{task.name}_{part}", dtype, task.kept)
                    offset = flat_offset(task.kept)
                    group.append(Write(name, offset, value))
                    spilled[value] = load(name, (offset,), dtype)
    sizes = {b.name: b.dtype.bytes for b in (*plan.buffers.values(), *(s.buffer for s in plan.scratch))}
    plan.phases.append(build_phase(group, nest, splits, memory, bytes_moved(group, sizes)))
    plan.remaining = [_reread(t, spilled) for t in rest] if spilled else rest


def _joined(fold: Fold, split: Split) -> Fold:
    """The fold over partial states that remains."""
    return replace(fold, axes=split.chunks, partial=split.buffers, offset=split.offset)


def _reread(task: Task, spilled: Mapping[Value, Value]) -> Task:
    """The task with results of earlier phases read from scratch."""
    rewriter = Rewriter(spilled.get, lambda v: v)
    if isinstance(task, Fold):
        return replace(task, elements=tuple(rewriter.value(e) for e in task.elements))
    return replace(task, offset=rewriter.index(task.offset), value=rewriter.value(task.value))


def dtypes_of(values: Iterable[Value]) -> tuple[DType, ...]:
    return tuple(v.dtype for v in values)
