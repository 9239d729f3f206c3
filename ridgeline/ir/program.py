"""Loop programs: a kernel with every decision made - loops, tiles, passes, where each value is computed.

What `schedule` gives and every target spells. One form for a target with one axis of vector lanes (C) and one with
blocks over several axes (Triton).

    program   = phases, one after the other; each sees all that the one before wrote
    phase     = grid axes (parallel, in any order) around a body
    statement = Compute | Loop | Begin | Step | Join | Finish | Save | Put

*Memory is flat.* Every load in a program has one index: the offset in elements from the buffer's pointer. So has Put.

*Tiles.* Inside `Loop(axis, tile=T)` the axis stands for T consecutive positions at once (T lanes, a block of length
T). A value varies over the open tiled axes among its free axes and is one number along every other; a statement
happens once for each point of the open axes that its value, offset or accumulator varies over. A ragged tile is
masked: positions at or beyond the end are neither loaded, folded nor stored. A grid axis, and a loop axis with tile
1, is one number. `axis` is a plain integer in index expressions; grid axes that stand for blocks occur in the
`start` of loops.

*Results.* A fold's result is a load from a buffer whose name starts with "%": `%f0[i]` is no memory, it is what
Finish defines, one number per point of the axes listed. Results that outlive a phase go through scratch.

*Scratch.* Buffers that a program needs only while it runs. `per_worker` means that each worker (a thread) uses its
own copy, which holds rows between the passes of one body; otherwise it holds partial states between phases.
A target decides where scratch comes from.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ridgeline.ir.index import Axis, Index
from ridgeline.ir.kernel import Buffer, Mode
from ridgeline.ir.types import DType
from ridgeline.ir.value import Value

RESULT = "%"  # first character of the pseudo-buffers that name results of folds


@dataclass(frozen=True, slots=True)
class Compute:
    """The value exists from here to the end of the enclosing body. Its operands do already; constants always do."""

    value: Value


@dataclass(frozen=True, slots=True)
class Loop:
    """axis runs over start <= axis < min(start + extent, axis.size), `tile` positions at a time.

    `unroll` asks for that many tiles side by side, each with its own copy of the accumulators begun outside (joined
    where they finish); `ahead` lets what so many iterations load be under way at once. A target may ignore both.
    """

    axis: Axis
    start: Index
    extent: Index
    body: tuple["Statement", ...]
    tile: int = 1
    unroll: int = 1
    ahead: int = 1

    @property
    def once(self) -> bool:
        """Whether one tile covers the whole range: the axis is then open like a grid axis, in a block."""
        return self.extent.const is not None and self.extent.const <= self.tile


@dataclass(frozen=True, slots=True)
class Accumulator:
    """The running state of a fold over `axes`: one state per point of `kept`.

    The statements below act on the states at the current point of `kept` (all states of the tile, where a kept axis
    is open with a tile). Along open tiled axes that are folded, a target may hold one state per lane or block
    position; Finish and Save join them. With `memory`, the states live in scratch, component k at
    memory[k][offset], because loops over kept axes lie inside the loops over folded axes.
    """

    name: str
    combiner: str
    dtypes: tuple[DType, ...]  # of the elements
    states: tuple[DType, ...]  # of the components
    axes: tuple[Axis, ...]
    kept: tuple[Axis, ...]
    memory: tuple[str, ...] = ()
    offset: Index | None = None


@dataclass(frozen=True, slots=True)
class Begin:
    """The states are the combiner's identity."""

    accumulator: Accumulator


@dataclass(frozen=True, slots=True)
class Step:
    """state = combine(state, lift(elements)), for every position of the open tiles."""

    accumulator: Accumulator
    elements: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Join:
    """state = combine(state, other): a state that was saved, or made otherwise, one value a component."""

    accumulator: Accumulator
    other: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """Joins what the lanes hold, applies the combiner's `finish`; each pair is a component and the `%` value it is."""

    accumulator: Accumulator
    results: tuple[tuple[int, Value], ...]


@dataclass(frozen=True, slots=True)
class Save:
    """Joins what the lanes hold and stores the state unfinished, component k to buffers[k][offset]."""

    accumulator: Accumulator
    buffers: tuple[str, ...]
    offset: Index


@dataclass(frozen=True, slots=True)
class Put:
    """buffer[offset] = value, or += with Mode.ADD, once per point of the open axes that value or offset varies over.

    ADD: points of one body happen in order; two iterations of the grid never meet at an address, unless `atomic`.
    `streaming` is a hint: the line will not be read again soon.
    """

    buffer: str
    offset: Index
    value: Value
    mode: Mode = Mode.PLAIN
    atomic: bool = False
    streaming: bool = False


@dataclass(frozen=True, slots=True)
class Prefetch:
    """A hint: the line at buffer[offset] is soon read. The offset may lie outside of the buffer; nothing is loaded."""

    buffer: str
    offset: Index


Statement = Compute | Loop | Begin | Step | Join | Finish | Save | Put | Prefetch


@dataclass(frozen=True, slots=True)
class Phase:
    """One parallel loop nest. Iterations of the grid are independent; `work` estimates their sum, in bytes moved.

    `threads`: how many hold the tiles of one iteration, where a target spreads one over several.
    """

    grid: tuple[Axis, ...]
    body: tuple[Statement, ...]
    work: Index
    threads: int = 1


@dataclass(frozen=True, slots=True)
class Scratch:
    """A buffer that lives while the program runs; with `per_worker`, one for each worker."""

    buffer: Buffer
    per_worker: bool = False


@dataclass(frozen=True, slots=True)
class Program:
    """One launch. `buffers` are its pointers in call order, `sizes` its integer arguments (names of size symbols)."""

    name: str
    buffers: tuple[Buffer, ...]
    scratch: tuple[Scratch, ...]
    sizes: tuple[str, ...]
    phases: tuple[Phase, ...]

    def buffer(self, name: str) -> Buffer:
        """A buffer or scratch by name."""
        return next(b for b in (*self.buffers, *(s.buffer for s in self.scratch)) if b.name == name)


def statements(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """Every statement of a body, those inside loops included, in order."""
    for statement in body:
        yield statement
        if isinstance(statement, Loop):
            yield from statements(statement.body)
