"""What offsets say about memory: strides, which accesses a task makes, where two iterations may meet."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ridgeline.ir.index import Axis, Div, Index, Mod, Read, Sym, as_index, within
from ridgeline.ir.kernel import Mode
from ridgeline.schedule.tasks import Task, Write, fold_name, loads

TYPICAL_SIZE = 512  # of an axis whose size is known only at run time
IRREGULAR = 1 << 40  # the stride of an offset that is no affine function of an axis


@dataclass(frozen=True, slots=True)
class Access:
    """One distinct load or store, and the bytes it moves over its whole domain."""

    buffer: str
    offset: Index
    element_bytes: int
    points: int
    store: bool = False

    @property
    def bytes(self) -> int:
        return self.element_bytes * self.points


@lru_cache(maxsize=1 << 12)
def hint(index: Index) -> int:
    """A number for a size expression, at least 1: symbols at a typical size."""
    return max(_hint(index), 1)


def _hint(index: Index) -> int:
    if index.const is not None:
        return index.const
    total = 0
    for coefficient, factors in index.terms:
        term = coefficient
        for atom in factors:
            match atom:
                case Sym():
                    term *= max(atom.low, TYPICAL_SIZE)
                case Div():
                    term *= _hint(atom.num) // hint(atom.den)
                case Mod():
                    term *= hint(atom.den) // 2
                case Axis() | Read():
                    term *= hint(atom.size) // 2
        total += term
    return total


def size_hint(axis: Axis) -> int:
    """The size of an axis, or a typical one."""
    return axis.size.const if axis.size.const is not None else hint(axis.size)


def points(task: Task) -> int:
    """How many points a task has."""
    total = 1
    for axis in task.domain:
        total *= size_hint(axis)
    return total


def accesses(tasks: Sequence[Task], element_bytes: dict[str, int]) -> list[Access]:
    """Each distinct load and store, with the most points that any task makes it at."""
    found: dict[tuple[str, Index, bool], int] = {}
    for task in tasks:
        size = points(task)
        keys = [(v.attr.buffer, v.attr.index[0], False) for v in loads(task.roots) if fold_name(v) is None]
        if isinstance(task, Write):
            keys.append((task.buffer, task.offset, True))
        for key in keys:
            found[key] = max(found.get(key, 0), size)
    return [Access(b, o, element_bytes.get(b, 4), n, s) for (b, o, s), n in found.items()]


@lru_cache(maxsize=1 << 14)
def stride(offset: Index, axis: Axis) -> int:
    """Distance in elements between neighbours along an axis; IRREGULAR where it is not the same everywhere."""
    if axis not in offset.axes:
        return 0
    step = offset.coefficient(axis)
    if step is None or step.axes:
        return IRREGULAR
    return abs(step.const) if step.const is not None else hint(step)


@lru_cache(maxsize=1 << 14)
def distance(offset: Index, axis: Axis) -> float:
    """How far apart neighbours along an axis lie on average, in elements, also where that is not regular."""
    step = stride(offset, axis)
    if step != IRREGULAR:
        return step
    size = size_hint(axis)
    ends = [_at(offset, axis, p) for p in (0, size - 1)]
    return abs(ends[1] - ends[0]) / max(size - 1, 1)


def _at(index: Index, axis: Axis, position: int) -> int:
    """The index at one position of an axis, the others at 0; what is read from memory counts as 0."""
    total = 0
    for coefficient, factors in index.terms:
        term = coefficient
        for atom in factors:
            match atom:
                case Axis():
                    term *= position if atom is axis or atom == axis else 0
                case Div():
                    term *= _at(atom.num, axis, position) // hint(atom.den)
                case Mod():
                    term *= _at(atom.num, axis, position) % hint(atom.den)
                case Read():
                    term = 0
                case _:
                    term *= hint(as_index(atom))
        total += term
    return total


def separates(offset: Index, axis: Axis) -> bool:
    """Whether two points that differ along the axis are proved to have different offsets, whatever the rest is."""
    step = offset.coefficient(axis)
    if step is None or step.const == 0 or step.axes or any(True for _ in step.reads):
        return False
    if step.const is not None and step.const < 0:
        return False
    rest = offset - step * axis
    return within(rest % (step * axis.size), step)


def may_collide(task: Task, axis: Axis) -> bool:
    """Whether iterations along the axis may write one address: order then matters."""
    if not isinstance(task, Write) or axis not in task.domain:
        return False
    irregular = task.mode is Mode.ADD or any(True for _ in task.offset.reads) or axis not in task.offset.axes
    return irregular and not separates(task.offset, axis)
