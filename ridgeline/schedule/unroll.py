"""A short axis written out: every task once for each position, folds along it as words.

For rows of a few elements under lanes that run across the rows: what a row holds then lives in registers, and no pass
loads it again. `unrolled(space, axis)` gives the space without the axis.
"""

from collections.abc import Sequence
from dataclasses import replace

from ridgeline.ir.index import Axis, Index, as_index
from ridgeline.ir.value import Value, substitute, substitute_index
from ridgeline.schedule.plan import reread
from ridgeline.schedule.rewrite import combined, direct, finished, lifted
from ridgeline.schedule.tasks import Fold, Rewriter, Space, Task, Write, fold_name, nodes, result

SHORT = 16  # positions
TASKS, VALUES = 64, 600  # that may come of it


def is_short(axis: Axis, space: Space) -> bool:
    """Whether writing the axis out pays: a short row inside of something long, with little to do."""
    n = axis.size.const
    if n is None or not 1 < n <= SHORT or any(t.domain == {axis} for t in space.tasks):
        return False
    count = len(nodes(r for t in space.tasks for r in t.roots))
    return n * sum(axis in t.domain for t in space.tasks) <= TASKS and n * count <= VALUES


def unrolled(space: Space, axis: Axis) -> Space:
    """The space with the axis gone."""
    size = axis.size.const
    assert size is not None
    known: dict[Value, Value] = {}  # results of folds, in terms of what they are now
    tasks: list[Task] = []
    for task in space.tasks:
        if axis not in task.domain:
            tasks.append(reread(task, known))
        elif isinstance(task, Write):
            tasks += [_written_at(task, axis, k, known) for k in range(size)]
        elif axis in task.axes:
            tasks += _folded(task, axis, size, known)
        else:
            tasks += [_kept_at(task, axis, k, known) for k in range(size)]
    return Space(tuple(a for a in space.axes if a is not axis), tuple(tasks), space.buffers)


def _at(value: Value, axis: Axis, position: int, known: dict[Value, Value]) -> Value:
    """A value at one position, reading results as they are now."""
    at = substitute(value, {axis: as_index(position)}, lambda v: _named(v, known))
    return Rewriter(lambda v: None, lambda v: v).value(at)


def _named(v: Value, known: dict[Value, Value]) -> Value | None:
    return known.get(v) if fold_name(v) is not None else None


def _written_at(task: Write, axis: Axis, position: int, known: dict[Value, Value]) -> Write:
    images: dict[Axis, Index] = {axis: as_index(position)}
    offset = substitute_index(task.offset, images, lambda v: _named(v, known))
    return replace(task, offset=offset, value=_at(task.value, axis, position, known))


def _kept_at(task: Fold, axis: Axis, position: int, known: dict[Value, Value]) -> Fold:
    kept = tuple(a for a in task.kept if a is not axis)
    elements = tuple(_at(e, axis, position, known) for e in task.elements)
    out = replace(task, name=f"{task.name}_{position}", kept=kept, elements=elements)
    for part, dtype in task.parts:
        # The result at this position, as substitution spells it.
        index = tuple(as_index(position) if a is axis else as_index(a) for a in task.kept)
        before = result(task.name, part, index, dtype)
        known[before] = out.result(part)
    return out


def _folded(task: Fold, axis: Axis, size: int, known: dict[Value, Value]) -> Sequence[Task]:
    """The fold as words; where other axes are folded too, a fold of what the words give at each point."""
    form = direct(task, axis.size) if task.axes == (axis,) else None
    if form is not None:
        for simple in form.folds:
            _folded(simple, axis, size, known)
        rewriter = Rewriter(known.get, lambda v: v)
        for part, _ in task.parts:
            known[task.result(part)] = rewriter.value(form.results[part])
        return []
    states = []
    for k in range(size):
        elements = tuple(_at(e, axis, k, known) for e in task.elements)
        states.append(elements if task.joins else lifted(task.combiner, elements, task.states))
    state = combined(task.combiner, states)
    rest = tuple(a for a in task.axes if a is not axis)
    if rest:
        return [replace(task, axes=rest, elements=state, joins=True)]
    for part, dtype in task.parts:
        known[task.result(part)] = finished(task.combiner, state, part, dtype)
    return []
