"""The way from a kernel to loop programs, in order: `schedule(kernel, machine)` gives the best one."""

from collections.abc import Iterable, Iterator, Mapping

from ridgeline.base.records import Machine
from ridgeline.ir.index import Index, Sym
from ridgeline.ir.kernel import Kernel
from ridgeline.ir.program import Phase, Program
from ridgeline.schedule import tile
from ridgeline.schedule.choose import EVERY, Strategy, best_lanes, chooser, promising
from ridgeline.schedule.merge import merge
from ridgeline.schedule.plan import assemble, element_bytes
from ridgeline.schedule.rank import cycles
from ridgeline.schedule.space import space
from ridgeline.schedule.tasks import Space
from ridgeline.schedule.unroll import is_short, unrolled


def candidates(kernel: Kernel, machine: Machine, every: bool = False) -> list[Program]:
    """Programs that compute the kernel, best first by estimated time; those worth a look, or every one."""
    flat = merge(space(kernel))
    sizes, stored = size_names(kernel), element_bytes(kernel.buffers)
    if machine.style == "tile":
        plan = assemble(flat.tasks, flat.buffers, tile.chooser(machine, stored))
        phases = tuple(tile.spread(p, machine) for p in plan.phases)
        return [Program(kernel.name, kernel.buffers, tuple(plan.scratch), sizes, phases)]
    made: dict[tuple[Phase, ...], Program] = {}
    for tasks, strategies in _ways(flat, machine, stored, every):
        for strategy in strategies:
            plan = assemble(tasks.tasks, flat.buffers, chooser(strategy, machine, stored))
            program = Program(kernel.name, kernel.buffers, tuple(plan.scratch), sizes, tuple(plan.phases))
            made.setdefault(program.phases, program)
    if len(made) == 1:
        return list(made.values())
    return sorted(made.values(), key=lambda p: cycles(p, machine))


def _ways(
    flat: Space, machine: Machine, stored: Mapping[str, int], every: bool
) -> Iterator[tuple[Space, tuple[Strategy, ...]]]:
    """The space as it is, and with a short axis written out where lanes would else lie along it."""
    strategies = EVERY if every else promising(flat.tasks, machine, stored)
    yield flat, strategies if len(flat.axes) > 1 else EVERY[:1]
    row = best_lanes(flat.tasks, machine, stored)
    if row is not None and is_short(row, flat):
        yield merge(unrolled(flat, row)), EVERY if every else EVERY[:1]


def schedule(kernel: Kernel, machine: Machine) -> Program:
    """The best program."""
    return candidates(kernel, machine)[0]


def size_names(kernel: Kernel) -> tuple[str, ...]:
    """The size symbols that the kernel depends on, sorted."""
    found: set[str] = set()
    for index in _indices(kernel):
        found |= {a.name for a in index.atoms if isinstance(a, Sym)}
        for axis in index.axes:
            found |= {a.name for a in axis.size.atoms if isinstance(a, Sym)}
    return tuple(sorted(found))


def _indices(kernel: Kernel) -> Iterable[Index]:
    for axis in kernel.axes:
        yield axis.size
    for buffer in kernel.buffers:
        yield from (*buffer.shape, *buffer.strides)
    for store in kernel.stores:
        yield from store.index
    for v in kernel.values:
        if v.op == "load":
            yield from v.attr.index
        elif v.op == "iota":
            yield v.attr
        elif v.op == "fold":
            yield from (a.size for a in v.attr.axes)
