"""A plain update as a program over an axis of unknown length, for the tests that sweep it over many tensors."""

from ridgeline.codegen.triton import Triton
from ridgeline.ir.index import Axis, Sym, as_index
from ridgeline.ir.kernel import Buffer, Kernel, Store
from ridgeline.ir.program import Program
from ridgeline.ir.types import F32, F64
from ridgeline.ir.value import cast, load
from ridgeline.schedule import schedule

TARGET = Triton(lambda count: None, lambda: 0)


def swept_update() -> tuple[Program, tuple[int, ...]]:
    """weight -= rate * gradient, and the bytes an element of each of its buffers."""
    length, one = as_index(Sym("s0", 2)), as_index(1)
    axis = Axis("i", length)
    at = (as_index(axis),)
    rate = cast(load("rate", (), F64), F32)
    value = load("weight", at, F32) - rate * load("gradient", at, F32)
    buffers = (
        Buffer("rate", F64, (), ()),
        Buffer("gradient", F32, (length,), (one,)),
        Buffer("weight", F32, (length,), (one,)),
    )
    kernel = Kernel("update", (axis,), (Store("weight", at, value),), buffers)
    return schedule(kernel, TARGET.machine(132, (60 << 20,))), (0, 4, 4)
