"""Values kept between passes: what one pass computed dearly and another needs again goes through scratch of the worker.

`stage` takes the tasks of one phase and gives them with writes of such values added, and later tasks reading them. A
loaded row is never staged: it is read again from the cache.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from ridgeline.ir.index import Axis, Index, as_index
from ridgeline.ir.types import DType
from ridgeline.ir.value import Value, load, nodes
from ridgeline.ir.words import WORDS
from ridgeline.schedule.nest import Nest, block_axis
from ridgeline.schedule.strides import hint
from ridgeline.schedule.tasks import Fold, Rewriter, Task, Write, fold_name, fold_results

AddScratch = Callable[[str, DType, Sequence[Index], bool], str]
DEAR = 12.0  # instructions that cost more than a store and a load


def passes(tasks: Sequence[Task]) -> dict[int, int]:
    """The pass of each task (by its place): one more than that of the folds it needs."""
    level: dict[str, int] = {}
    out: dict[int, int] = {}
    for k, task in enumerate(tasks):
        names = [n for v in fold_results(task.roots) if (n := fold_name(v)) in level]
        out[k] = max((level[n] + 1 for n in names if n is not None), default=0)
        if isinstance(task, Fold):
            level[task.name] = out[k]
    return out


def dear(value: Value, lane: Axis) -> float:
    """Instructions that one more computation takes along the lanes."""
    total = 0.0
    for v in nodes([value]):
        if lane in v.axes and v.op in WORDS:
            total += 20 * WORDS[v.op].special + 1
    return total


def _shared(first: Sequence[Task], later: Sequence[Task], lane: Axis) -> list[Value]:
    """Dear values of earlier tasks that later ones need: only the outermost of each expression."""
    seen = set(nodes(r for t in first for r in t.roots))
    both = [v for v in nodes(r for t in later for r in t.roots) if v in seen and v.op in WORDS and lane in v.axes]
    costly = [v for v in both if dear(v, lane) >= DEAR]
    inner = {o for v in costly for o in nodes(v.args)}
    return [v for v in costly if v not in inner]


def stage(tasks: Sequence[Task], nest: Nest, add_scratch: AddScratch) -> list[Task]:
    """The tasks of a phase, with dear values of one pass kept for the next ones."""
    if nest.stage_bytes == 0 or len(nest.tiles) != 1:
        return list(tasks)
    (lane,) = nest.tiles
    out = list(tasks)
    for level in range(max(passes(out).values(), default=0)):
        order = passes(out)
        first = [t for k, t in enumerate(out) if order[k] <= level]
        later = [t for k, t in enumerate(out) if order[k] > level]
        known: dict[Value, Value] = {}
        writes: list[Task] = []
        for value in _shared(first, later, lane):
            kept = _keep(value, nest, add_scratch)
            if kept is not None:
                writes.append(kept)
                known[value] = load(kept.buffer, (kept.offset,), value.dtype)
        if known:
            rewriter = Rewriter(known.get, lambda v: v)
            out = [*first, *writes, *(_reread(t, rewriter) for t in later)]
    return out


def _reread(task: Task, rewriter: Rewriter) -> Task:
    if isinstance(task, Fold):
        return replace(task, elements=tuple(rewriter.value(e) for e in task.elements))
    return replace(task, value=rewriter.value(task.value))


def _keep(value: Value, nest: Nest, add_scratch: AddScratch) -> Write | None:
    """A write of the value to scratch, by its place inside one iteration of the grid; None where that is too large."""
    axes = [a for a in nest.order if a in value.axes and nest.grid.get(a) != 1]
    offset, shape = as_index(0), []
    for axis in axes:
        block = nest.grid.get(axis)
        size = axis.size if block is None else as_index(block)
        start = 0 if block is None else as_index(block_axis(axis, block)) * block
        offset = offset * size + (as_index(axis) - start)
        shape.append(size)
    total = as_index(1)
    for size in shape:
        total = total * size
    if hint(total) * value.dtype.bytes > nest.stage_bytes:
        return None
    name = add_scratch("row", value.dtype, shape, True)
    return Write(name, offset, value)
