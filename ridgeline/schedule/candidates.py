"""The way from a kernel to loop programs, in order: `schedule(kernel, machine)` gives the best one."""

from collections.abc import Iterable

from ridgeline.base.records import Machine
from ridgeline.ir.index import Index, Sym
from ridgeline.ir.kernel import Kernel
from ridgeline.ir.program import Program
from ridgeline.schedule.choose import chooser
from ridgeline.schedule.merge import merge
from ridgeline.schedule.plan import assemble
from ridgeline.schedule.space import space


def candidates(kernel: Kernel, machine: Machine) -> list[Program]:
    """Programs that compute the kernel, best first by estimated time."""
    flat = merge(space(kernel))
    plan = assemble(flat.tasks, flat.buffers, chooser(machine, dict(flat.buffers)))
    return [Program(kernel.name, kernel.buffers, tuple(plan.scratch), size_names(kernel), tuple(plan.phases))]


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
