"""Which loops: the order of the axes, the lanes, blocks, and what runs in parallel.

`chooser(strategy, machine, ...)` gives the function that `plan.assemble` asks for a Nest. It looks only at strides,
sizes and folds, never at what is computed. Strategies differ in the lane axis and where its loop lies; which is best
`rank` says, from the programs they lead to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ridgeline.base.records import Machine
from ridgeline.ir.index import Axis
from ridgeline.schedule.nest import Nest
from ridgeline.schedule.plan import Choose
from ridgeline.schedule.strides import IRREGULAR, Access, accesses, distance, may_collide, points, size_hint, stride
from ridgeline.schedule.tasks import Fold, Task

LANE_BLOCK = 16384  # positions of the lane axis that one iteration of the grid takes
FOLD_BLOCK = 32768  # elements folded into one partial state: long enough to amortise it, short enough to stay exact
ROWS = 128  # rows folded into one partial row
ACROSS, ALONG = 128, 128  # block of a transpose: along the other side's lines, along the lanes


@dataclass(frozen=True, slots=True)
class Strategy:
    """`lane`: take the n-th best axis for lanes. `outer`: its loop outermost, so that other loops run inside a tile."""

    lane: int = 0
    outer: bool = False


def lane_axes(axes: Sequence[Axis], found: Sequence[Access], width: int) -> list[Axis]:
    """Axes by the bytes that lie next to each other along them, best first."""

    def gain(axis: Axis) -> float:
        filled = min(size_hint(axis), width) / width
        steps = [(stride(a.offset, axis), a.bytes) for a in found]
        return filled * sum(w if s == 1 else 0.0 if s == 0 else -0.25 * w for s, w in steps)

    return sorted((a for a in axes if a.size.const != 1), key=gain, reverse=True)


EVERY = (Strategy(0), Strategy(1), Strategy(0, outer=True), Strategy(1, outer=True))
SHORT, NEXT = 64, 0.2  # a lane axis so short, or another so nearly as good, makes other lanes worth a look


def promising(tasks: Sequence[Task], machine: Machine, element_bytes: Mapping[str, int]) -> tuple[Strategy, ...]:
    """The strategies that may win: one where lanes have long rows and nothing lies dense along another axis."""
    found = accesses(tasks, dict(element_bytes))
    lanes = lane_axes(_ordered(tasks), found, machine.width)
    if not lanes or size_hint(lanes[0]) <= SHORT:
        return EVERY
    kept = any(isinstance(t, Fold) and lanes[0] in t.kept for t in tasks)
    dense = [sum(a.bytes for a in found if stride(a.offset, axis) == 1) for axis in lanes[:2]]
    near = len(dense) > 1 and dense[1] >= NEXT * dense[0]
    return (Strategy(0), *((Strategy(1),) if near else ()), *((Strategy(0, outer=True),) if kept else ()))


def best_lanes(tasks: Sequence[Task], machine: Machine, element_bytes: Mapping[str, int]) -> Axis | None:
    """The axis along which most lies dense."""
    found = accesses(tasks, dict(element_bytes))
    dense = {a: sum(x.bytes for x in found if stride(x.offset, a) == 1) for a in _ordered(tasks)}
    return max(dense, key=dense.__getitem__, default=None)


def loop_order(axes: Sequence[Axis], found: Sequence[Access], lane: Axis | None) -> list[Axis]:
    """Outermost first: as the largest access lies in memory, lanes last."""
    far = {a: max((distance(x.offset, a) * x.bytes for x in found), default=0.0) for a in axes}
    place = {a: k for k, a in enumerate(axes)}
    return sorted(axes, key=lambda a: (a is lane, -far[a], place[a]))


def rows_first(order: list[Axis], tasks: Sequence[Task], lane: Axis | None) -> list[Axis]:
    """Moves kept axes outside of folded ones where lanes are folded, so that the states stay in registers."""
    for task in tasks:
        if isinstance(task, Fold) and not task.empty and lane in task.axes and task.domain.issubset(order):
            place = min((order.index(a) for a in task.axes), default=0)
            late = [a for a in order[place:] if a in task.kept]
            early = [a for a in order if a not in late]
            order = [*early[:place], *late, *early[place:]]
    return order


def transposed(found: Sequence[Access], order: Sequence[Axis], lane: Axis) -> Axis | None:
    """The axis along which an access lies dense that the lanes stride across."""
    for access in sorted(found, key=lambda a: -a.bytes):
        if 1 < stride(access.offset, lane) < IRREGULAR:
            for axis in order:
                if axis is not lane and stride(access.offset, axis) == 1 and size_hint(axis) >= 8:
                    return axis
    return None


class _Chooser:
    def __init__(self, strategy: Strategy, machine: Machine, element_bytes: Mapping[str, int]) -> None:
        self.strategy, self.machine, self.element_bytes = strategy, machine, dict(element_bytes)

    def __call__(self, remaining: Sequence[Task], lead: Task) -> Nest:
        tasks = [t for t in remaining if t.domain <= lead.domain]
        axes = [a for a in _ordered(remaining) if a in lead.domain]
        found = accesses(tasks, self.element_bytes)
        lanes = lane_axes(axes, found, self.machine.width)
        lane = lanes[min(self.strategy.lane, len(lanes) - 1)] if lanes else None
        order = loop_order(axes, found, lane)
        outer = self.strategy.outer and not any(isinstance(t, Fold) and lane in t.axes for t in tasks)
        if lane is not None and outer:
            order = [lane, *(a for a in order if a is not lane)]
        else:
            order = rows_first(order, tasks, lane)
        grid = self.grid(order, tasks, lane, sum(a.bytes for a in found))
        if lane is not None and not outer:
            self.block(grid, order, tasks, found, lane)
        tiles = {} if lane is None else {lane: self.machine.width}
        caches = self.machine.cache_bytes
        return Nest(
            tuple(order), grid, tiles, stage_bytes=caches[-2] // 2, stream_bytes=caches[-1], prefetch_bytes=caches[-2]
        )

    def grid(self, order: Sequence[Axis], tasks: Sequence[Task], lane: Axis | None, moved: int) -> dict[Axis, int]:
        """Parallel axes, outermost first, until there is work for every worker."""
        folds = [t for t in tasks if isinstance(t, Fold)]
        folded = {a for t in folds for a in t.axes}
        joined = {a for t in folds if t.joins for a in t.axes}
        total = max(points(t) for t in tasks)
        grid: dict[Axis, int] = {}
        count = 1
        for axis in order:
            if count >= 2 * self.machine.workers or moved < 2 * self.machine.grain_bytes:
                break
            if axis in joined or any(may_collide(t, axis) for t in tasks):
                continue  # partial states are few; iterations that may meet at an address stay in order
            size = size_hint(axis)
            block = self.block_size(axis, size, total, axis in folded, axis is lane)
            if axis.size.const is not None and block >= axis.size.const:
                continue
            grid[axis] = block
            count *= -(-size // block)
        return grid

    def block_size(self, axis: Axis, size: int, total: int, folded: bool, lane: bool) -> int:
        share = max(size // (4 * self.machine.workers), 1)
        if lane and not folded:
            width = self.machine.width
            return min(LANE_BLOCK, max(share // width * width, 4 * width))
        if lane:
            return FOLD_BLOCK
        if folded:
            return max(min(max(ROWS, FOLD_BLOCK // max(total // size, 1)), share), 1)
        return 1

    def block(
        self, grid: dict[Axis, int], order: Sequence[Axis], tasks: Sequence[Task], found: Sequence[Access], lane: Axis
    ) -> None:
        """Where lanes stride across lines, two-axis blocks let every line be used whole while it is near."""
        across = transposed(found, order, lane)
        folded = {a for t in tasks if isinstance(t, Fold) for a in t.axes}
        if across is None or across in folded or lane in folded:
            return
        if any(may_collide(t, a) for t in tasks for a in (across, lane)):
            return
        for axis, length in ((across, ACROSS), (lane, ALONG)):
            if axis.size.const is None or axis.size.const > length:
                grid[axis] = length
            else:
                grid.pop(axis, None)


def chooser(strategy: Strategy, machine: Machine, element_bytes: Mapping[str, int]) -> Choose:
    """The choice of loops by a strategy, for this machine."""
    return _Chooser(strategy, machine, element_bytes)


def _ordered(tasks: Sequence[Task]) -> list[Axis]:
    """Axes in a stable order: as tasks name them, by name within one."""
    out: dict[Axis, None] = {}
    for task in tasks:
        named = (*task.kept, *task.axes) if isinstance(task, Fold) else sorted(task.domain, key=lambda a: a.name)
        out |= dict.fromkeys(named)
    return list(out)
