"""A rough time for a loop program, to order candidates that compute the same kernel. Never shown to anybody.

Counts instructions statement by statement with the trips of the loops around, and bytes from memory by the lines that
each access touches before its neighbours come by. Cycles of one worker; what runs in parallel is shared out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ridgeline.base.records import Machine
from ridgeline.ir.combiners import COMBINERS
from ridgeline.ir.index import Axis, Index
from ridgeline.ir.program import (
    RESULT,
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
)
from ridgeline.ir.value import Value
from ridgeline.ir.words import WORDS
from ridgeline.schedule.strides import IRREGULAR, hint, size_hint, stride

SPECIAL, DIVISION = 20.0, 8.0  # instructions of exp and of a division
PER_CYCLE = 2.0  # instructions, of code that is mostly vectors
CYCLES_PER_BYTE = 0.25  # one worker's share of memory
LANE_JOIN, GENERIC_JOIN = 40.0, 200.0  # joining the lanes of a sum, of a state of several components
STORE_TO_LOAD = 10.0  # cycles until a state kept in memory can be read again
PAGE, HOPS = 4096, 1.5  # an inner loop from page to page runs ahead of the prefetcher
LOOP, START = 2.0, 3000.0  # entering a loop; starting a parallel phase


@dataclass(frozen=True, slots=True)
class _Place:
    """Loops around a statement, outermost first, with trips; `lane` is the tiled one."""

    loops: tuple[tuple[Axis, float], ...] = ()
    lane: Axis | None = None

    @property
    def trips(self) -> float:
        total = 1.0
        for _, trips in self.loops:
            total *= trips
        return total

    def inside(self, axis: Axis, trips: float, lane: bool) -> "_Place":
        return _Place((*self.loops, (axis, trips)), axis if lane else self.lane)


class _Ranker:
    def __init__(self, machine: Machine, element_bytes: Mapping[str, int]) -> None:
        self.machine, self.element_bytes = machine, element_bytes
        self.instructions = 0.0
        self.waits = 0.0
        self.lines: dict[tuple[str, Index], float] = {}

    def phase(self, phase: Phase) -> float:
        self.instructions, self.waits, self.lines = 0.0, 0.0, {}
        place, iterations = _Place(), 1.0
        for axis in phase.grid:
            place = place.inside(axis, size_hint(axis), False)
            iterations *= size_hint(axis)
        self.body(phase.body, place)
        cycles = max(self.instructions / PER_CYCLE, self.waits) + sum(self.lines.values()) * CYCLES_PER_BYTE
        return cycles / max(min(iterations, self.machine.workers), 1) + START

    def body(self, body: Sequence[Statement], place: _Place) -> None:
        for s in body:
            trips = place.trips
            match s:
                case Loop():
                    trips_here = self.loop_trips(s)
                    self.instructions += LOOP * trips
                    self.body(s.body, place.inside(s.axis, trips_here, s.tile > 1))
                case Compute(value):
                    self.instructions += trips * self.value(value, place)
                case Put(buffer, offset, _, mode):
                    self.instructions += trips * self.access(buffer, offset, place, mode.value == "add")
                case Prefetch():
                    self.instructions += trips
                case Begin(acc):
                    self.instructions += trips * len(acc.states)
                case Step(acc) | Join(acc):
                    self.instructions += trips * self.step(acc.combiner)
                    if acc.memory:
                        self.instructions += 2 * trips * len(acc.states)
                        near = place.loops[-1][1] if place.loops[-1][0] in acc.kept else 1
                        self.waits += trips * STORE_TO_LOAD / max(near, 1)
                case Finish(acc) | Save(acc):
                    folded = any(a in acc.axes for a in self.tiled)
                    join = LANE_JOIN if len(acc.states) == 1 else GENERIC_JOIN
                    self.instructions += trips * (join if folded and not acc.memory else len(acc.states))

    def loop_trips(self, loop: Loop) -> float:
        extent = min(hint(loop.extent), size_hint(loop.axis))
        if loop.tile > 1:
            self.tiled.add(loop.axis)
        return float(-(-extent // loop.tile))

    tiled: set[Axis]

    def step(self, combiner: str) -> float:
        info = COMBINERS[combiner]
        return info.flops + 2 * SPECIAL * info.special + (DIVISION if combiner == "welford" else 0)

    def value(self, v: Value, place: _Place) -> float:
        wide = 2.0 if v.dtype.bytes == 8 else 1.0
        if v.op == "load":
            return wide * self.access(v.attr.buffer, v.attr.index[0], place, bool(v.args))
        if v.op in ("iota", "cast"):
            return 2 * wide
        info = WORDS[v.op]
        cost = DIVISION if v.op.startswith("div") or v.op in ("mod", "fmod") else SPECIAL * info.special
        return wide * max(cost, 1.0)

    def access(self, buffer: str, offset: Index, place: _Place, masked: bool) -> float:
        if buffer.startswith(RESULT):
            return 0.0
        step = 0 if place.lane is None else stride(offset, place.lane)
        size = self.element_bytes.get(buffer, 4)
        self.lines[buffer, offset] = max(self.lines.get((buffer, offset), 0.0), self.bytes(offset, place, size))
        if step in (0, 1):
            return 1.0 + masked
        return self.machine.gather_cost * (3.0 if step == IRREGULAR else 1.0)

    def bytes(self, offset: Index, place: _Place, size: int) -> float:
        """Bytes of the lines that are fetched: whole lines where neighbours come too late."""
        loops = [(a, n * (self.machine.width if a is place.lane else 1)) for a, n in place.loops if a in offset.axes]
        elements = 1.0
        for axis in offset.axes:
            elements *= size_hint(axis)
        line = self.machine.line_bytes // size
        footprint = 1.0  # lines touched between two neighbours
        for axis, n in reversed(loops):
            step = stride(offset, axis)
            if step < line:
                near = footprint * self.machine.line_bytes <= self.machine.cache_bytes[0] / 2
                hops = footprint > 1 and stride(offset, loops[-1][0]) * size >= PAGE
                return elements * size * (line / max(step, 1) if not near else HOPS if hops else 1.0)
            footprint *= n
        return elements * self.machine.line_bytes


def cycles(program: Program, machine: Machine) -> float:
    """Estimated cycles of one run."""
    element_bytes = {b.name: b.dtype.bytes for b in program.buffers}
    element_bytes |= {s.buffer.name: s.buffer.dtype.bytes for s in program.scratch}
    ranker = _Ranker(machine, element_bytes)
    total = 0.0
    for phase in program.phases:
        ranker.tiled = set()
        total += ranker.phase(phase)
    return total
