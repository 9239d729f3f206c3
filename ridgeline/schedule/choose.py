"""Which loops: the order of the axes, the lanes, and what runs in parallel.

`chooser(machine)` gives the function that `plan.assemble` asks for a Nest. It looks only at strides, sizes and
folds, never at what is computed.
"""

from collections.abc import Sequence

from ridgeline.base.records import Machine
from ridgeline.ir.index import Axis, Index
from ridgeline.ir.kernel import Buffer
from ridgeline.ir.value import loads
from ridgeline.schedule.nest import Nest
from ridgeline.schedule.plan import Choose, hint, points, size_hint
from ridgeline.schedule.space import Fold, Task, Write, fold_name

LANE_BLOCK = 4096  # positions of the lane axis that one iteration of the grid takes
FOLD_BLOCK = 32768  # elements folded into one partial state: long enough to amortise it, short enough to stay exact
ROWS = 128  # rows folded into one partial row, at least


def accesses(tasks: Sequence[Task]) -> list[tuple[Index, int]]:
    """(offset, bytes over the whole domain) of each distinct load and store."""
    found: dict[tuple[str, Index], int] = {}
    for task in tasks:
        size = points(task)
        for v in loads(task.roots):
            if fold_name(v) is None:
                key = (v.attr.buffer, v.attr.index[0])
                found[key] = max(found.get(key, 0), size * v.attr.stored.bytes)
        if isinstance(task, Write):
            found[task.buffer, task.offset] = size * 4
        elif task.partial and task.offset is not None:
            found[task.partial[0], task.offset] = size * 4
    return [(offset, weight) for (_, offset), weight in found.items()]


def stride(offset: Index, axis: Axis) -> int:
    """Distance in elements between neighbours along an axis; a large number where it is not regular."""
    if axis not in offset.axes:
        return 0
    step = offset.coefficient(axis)
    return 1 << 40 if step is None else abs(hint(step)) if step.const is None else abs(step.const)


def lane_axis(axes: Sequence[Axis], found: Sequence[tuple[Index, int]], width: int) -> Axis | None:
    """The axis along which most bytes lie next to each other."""

    def gain(axis: Axis) -> float:
        waste = min(size_hint(axis), width) / width
        steps = [(stride(offset, axis), weight) for offset, weight in found]
        return waste * sum(w if s == 1 else 0.0 if s == 0 else -0.25 * w for s, w in steps)

    wide = [a for a in axes if a.size.const is None or a.size.const > 1]
    return max(wide, key=gain, default=None)


def loop_order(axes: Sequence[Axis], found: Sequence[tuple[Index, int]], lane: Axis | None) -> list[Axis]:
    """Outermost first: as the largest access lies in memory, lanes last."""
    far = {a: max((stride(o, a) * w for o, w in found), default=0) for a in axes}
    place = {a: k for k, a in enumerate(axes)}
    return sorted(axes, key=lambda a: (a is lane, -far[a], place[a]))


def rows_first(order: list[Axis], tasks: Sequence[Task], lane: Axis | None) -> list[Axis]:
    """Moves kept axes outside of folded ones where lanes are folded, so that the states stay in registers."""
    for task in tasks:
        if isinstance(task, Fold) and lane in task.axes and task.domain.issubset(order):
            place = min((order.index(a) for a in task.axes), default=0)
            late = [a for a in order[place:] if a in task.kept]
            early = [a for a in order if a not in late]
            order = [*early[:place], *late, *early[place:]]
    return order


def parallel(order: Sequence[Axis], tasks: Sequence[Task], lane: Axis | None, machine: Machine) -> dict[Axis, int]:
    """Axes of the grid, outermost first, until there is work for every worker."""
    folded = {a for t in tasks if isinstance(t, Fold) for a in t.axes}
    joined = {a for t in tasks if isinstance(t, Fold) and t.partial for a in t.axes}
    total = max(points(t) for t in tasks)
    grid: dict[Axis, int] = {}
    count = 1
    for axis in order:
        if count >= 2 * machine.workers or total * 4 < 2 * machine.grain_bytes:
            break
        size = size_hint(axis)
        if axis in joined:  # few, and each is long
            continue
        if axis is lane:
            block = FOLD_BLOCK if axis in folded else LANE_BLOCK
        elif axis in folded:
            inner = max(total // max(size, 1), 1)
            block = max(min(max(ROWS, FOLD_BLOCK // inner), size // (4 * machine.workers)), 1)
        else:
            block = 1
        if axis.size.const is not None and block >= axis.size.const:
            continue
        grid[axis] = block
        count *= -(-size // block)
    return grid


def chooser(machine: Machine, buffers: dict[str, Buffer]) -> Choose:
    """The choice of loops for this machine."""

    def choose(remaining: Sequence[Task], lead: Task) -> Nest:
        tasks = [t for t in remaining if t.domain <= lead.domain]
        axes = [a for a in _ordered(remaining) if a in lead.domain]
        found = accesses(tasks)
        lane = lane_axis(axes, found, machine.width)
        order = rows_first(loop_order(axes, found, lane), tasks, lane)
        tiles = {} if lane is None else {lane: machine.width}
        return Nest(tuple(order), parallel(order, tasks, lane, machine), tiles)

    return choose


def _ordered(tasks: Sequence[Task]) -> list[Axis]:
    """Axes in a stable order: as tasks name them, by name within one."""
    out: dict[Axis, None] = {}
    for task in tasks:
        named = (*task.kept, *task.axes) if isinstance(task, Fold) else sorted(task.domain, key=lambda a: a.name)
        out |= dict.fromkeys(named)
    return list(out)
