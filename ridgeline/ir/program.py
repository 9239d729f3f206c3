"""Loop programs: a kernel with every decision made - loops, tiles, passes, where each value is computed.

What `schedule` gives and every target spells. Statements refer to `Value`s: a value named by `Compute` is available
from there to the end of the enclosing body, and a target keeps its own name for it. An axis with a tile stands for
that many consecutive positions at once (lanes of a vector, a block of a tensor); a value varies over the tiled axes
among its free axes and is one number otherwise.

    program   = phases, one after the other; each waits for all of the one before
    phase     = parallel loops (the grid) around a body
    statement = Compute | Loop | Begin | Step | Finish | Put
"""

from dataclasses import dataclass
from typing import Union

from ridgeline.ir.index import Axis, Index
from ridgeline.ir.kernel import Buffer, Mode
from ridgeline.ir.types import DType
from ridgeline.ir.value import Value


@dataclass(frozen=True, slots=True)
class Compute:
    """The value exists from here on. Its operands do already."""

    value: Value


@dataclass(frozen=True, slots=True)
class Loop:
    """axis runs from start to min(stop, bound) in steps of `tile`; the last tile may be ragged."""

    axis: Axis
    start: Index
    stop: Index
    tile: int
    body: tuple["Statement", ...]
    bound: Index | None = None


@dataclass(frozen=True, slots=True)
class Accumulator:
    """The running state of a fold: one state per point of `over`, the axes it is kept along (tiled or not).

    With no `over` the state still has one part per lane of the tiled axes it folds, joined by Finish.
    """

    name: str
    combiner: str
    dtypes: tuple[DType, ...]  # of the elements
    over: tuple[Axis, ...] = ()


@dataclass(frozen=True, slots=True)
class Begin:
    """The accumulator starts at its combiner's identity."""

    accumulator: Accumulator


@dataclass(frozen=True, slots=True)
class Step:
    """Joins one element (or a tile of elements) to the accumulator."""

    accumulator: Accumulator
    elements: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """Joins the lanes, applies `finish`; `results` pairs a component with the fold value that it now defines."""

    accumulator: Accumulator
    results: tuple[tuple[int, Value], ...]


@dataclass(frozen=True, slots=True)
class Put:
    """buffer[offset] = value at each point of the tiled axes (masked where the tile is ragged or guard is false)."""

    buffer: str
    offset: Index  # in elements from the buffer's pointer
    value: Value
    mode: Mode = Mode.PLAIN
    streaming: bool = False


Statement = Union[Compute, Loop, Begin, Step, Finish, Put]


@dataclass(frozen=True, slots=True)
class Phase:
    """Parallel loops, outermost first, around one body. No iteration may see what another wrote in this phase."""

    grid: tuple[Loop, ...]  # their `body` is empty
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory that the runtime gives for one launch: partial results between phases."""

    buffer: Buffer


@dataclass(frozen=True, slots=True)
class Program:
    """One launch. `buffers` are its pointers in call order (scratch last), `sizes` its integer arguments."""

    name: str
    buffers: tuple[Buffer, ...]
    scratch: tuple[Scratch, ...]
    sizes: tuple[str, ...]
    phases: tuple[Phase, ...]
