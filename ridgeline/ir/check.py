"""Rules of kernels and programs, checked after the stage that made them: `check_kernel`, `check_program`.

A broken rule raises CheckFailed, which names the node, says why and shows the lines around it. Bounds are checked where
the index is an affine function of axes, whose range is then exact; what cannot be proved either way passes.
"""

from collections.abc import Iterable, Sequence

from ridgeline.base.errors import CheckFailed
from ridgeline.ir.combiners import COMBINERS
from ridgeline.ir.index import ZERO, Axis, Index, Sym, as_index, at_least, lower, upper
from ridgeline.ir.kernel import Buffer, Kernel
from ridgeline.ir.program import (
    RESULT,
    Accumulator,
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
from ridgeline.ir.show import show_kernel, show_program
from ridgeline.ir.types import BOOL, DType
from ridgeline.ir.value import Value
from ridgeline.ir.words import WORDS

AROUND = 3  # lines shown on either side


def _around(text: str, node: str) -> str:
    """The lines of a text near the first that holds the node."""
    lines = text.splitlines()
    place = next((k for k, line in enumerate(lines) if node and node in line), 0)
    return "\n".join(lines[max(place - AROUND, 0) : place + AROUND + 1])


def affine(index: Index) -> bool:
    """A sum of multiples of distinct axes and symbols: its bounds over the axes are exact."""
    seen: set[Axis] = set()
    for _, factors in index.terms:
        for atom in factors:
            if isinstance(atom, Axis):
                if atom in seen or len([f for f in factors if isinstance(f, Axis)]) > 1:
                    return False
                seen.add(atom)
            elif not isinstance(atom, Sym):
                return False
    return True


def outside(index: Index, size: Index) -> bool:
    """Whether some point is proved to lie outside of 0 .. size - 1."""
    if not affine(index) or any(a.size.const == 0 for a in index.axes):
        return False
    return at_least(-lower(index), 1) or at_least(upper(index) - size, 0)


def _check_value(v: Value, buffers: dict[str, Buffer], flat: bool) -> str | None:
    """What is wrong with a node, its operands apart."""
    if v.op == "load" and not v.attr.buffer.startswith(RESULT):
        buffer = buffers.get(v.attr.buffer)
        if buffer is None:
            return f"loads from {v.attr.buffer}, which is no buffer of this kernel"
        if v.attr.stored is not buffer.dtype:
            return f"loads {v.attr.stored} from a buffer of {buffer.dtype}"
        sizes = (extent(buffer),) if flat else buffer.shape
        if len(v.attr.index) != len(sizes):
            return f"{len(v.attr.index)} indices for {len(sizes)} dimensions"
        if not v.args and any(outside(i, s) for i, s in zip(v.attr.index, sizes, strict=True)):
            return "loads outside of the buffer"
        if v.args and v.args[0].dtype is not BOOL:
            return "its guard is no bool"
    elif v.op in WORDS:
        info = WORDS[v.op]
        if len(v.args) != info.arity:
            return f"takes {info.arity} values, not {len(v.args)}"
        if info.dtype(tuple(a.dtype for a in v.args)) is not v.dtype:
            return f"gives {info.dtype(tuple(a.dtype for a in v.args))}, not {v.dtype}"
        if info.float_only and not v.dtype.is_float:
            return f"is for floats, not {v.dtype}"
    elif v.op == "fold" and len(v.args) != COMBINERS[v.attr.combiner].inputs:
        return f"{v.attr.combiner} takes {COMBINERS[v.attr.combiner].inputs} values"
    elif v.op not in ("load", "const", "iota", "cast", "fold"):
        return "is no word"
    return None


def extent(buffer: Buffer) -> Index:
    """Elements from the first to one past the last."""
    if any(s.const == 0 for s in buffer.shape):
        return ZERO
    out = as_index(1)
    for size, stride in zip(buffer.shape, buffer.strides, strict=True):
        out = out + (size - 1) * stride
    return out


def check_kernel(kernel: Kernel) -> Kernel:
    """The kernel itself, if it keeps the rules. Raises CheckFailed."""

    def fail(node: object, why: str) -> None:
        raise CheckFailed(f"kernel {kernel.name}", str(node), why, _around(show_kernel(kernel), str(node)))

    names = [b.name for b in kernel.buffers]
    if len(set(names)) < len(names):
        raise CheckFailed(f"kernel {kernel.name}", ", ".join(names), "two buffers have one name")
    buffers = {b.name: b for b in kernel.buffers}
    for store in kernel.stores:
        buffer = buffers.get(store.buffer)
        if buffer is None:
            raise CheckFailed(f"kernel {kernel.name}", f"store {store.buffer}", "is no buffer of this kernel")
        if len(store.index) != len(buffer.shape):
            fail(f"store {store.buffer}", f"{len(store.index)} indices for {len(buffer.shape)} dimensions")
        if store.value.dtype is not buffer.dtype.compute:
            fail(f"store {store.buffer}", f"stores {store.value.dtype} to a buffer of {buffer.dtype}")
        stray = [a.name for a in store.domain if a not in kernel.axes]
        if stray:
            fail(f"store {store.buffer}", f"runs along {', '.join(stray)}, which the space does not have")
        if any(outside(i, s) for i, s in zip(store.index, buffer.shape, strict=True)):
            fail(f"store {store.buffer}", "stores outside of the buffer")
    for v in kernel.values:
        why = _check_value(v, buffers, flat=False)
        if why is not None:
            fail(v, why)
    return kernel


class _ProgramCheck:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.buffers = {b.name: b for b in (*program.buffers, *(s.buffer for s in program.scratch))}
        self.scratch = {s.buffer.name for s in program.scratch}
        self.rows = {s.buffer.name for s in program.scratch if s.per_worker}
        self.filled: set[str] = set()  # scratch that somebody wrote

    def fail(self, node: str, why: str) -> None:
        stage = f"program {self.program.name}"
        raise CheckFailed(stage, node, why, _around(show_program(self.program), node))

    def phase(self, phase: Phase) -> None:
        self.body(phase.body, frozenset(phase.grid), set(), set())

    def body(
        self, body: Sequence[Statement], axes: frozenset[Axis], known: set[Value], begun: set[Accumulator]
    ) -> None:
        for s in body:
            match s:
                case Loop():
                    self.bound([s.start, s.extent], axes, f"loop {s.axis.name}")
                    if s.axis in axes:
                        self.fail(f"loop {s.axis.name}", "its axis is open already")
                    self.body(s.body, axes | {s.axis}, set(known), set(begun))
                case Compute(value):
                    self.compute(value, axes, known)
                case Begin(acc):
                    self.accumulator(acc, axes)
                    begun.add(acc)
                    self.filled.update(acc.memory)
                case Step(acc, elements) | Join(acc, elements):
                    self.known(elements, known, f"step {acc.name}")
                    self.begun(acc, begun, f"step {acc.name}")
                    count = COMBINERS[acc.combiner].inputs if isinstance(s, Step) else len(acc.states)
                    wanted: tuple[DType, ...] = acc.dtypes if isinstance(s, Step) else acc.states
                    if len(elements) != count or any(e.dtype is not t for e, t in zip(elements, wanted, strict=False)):
                        self.fail(f"step {acc.name}", "elements are not what the combiner takes")
                case Finish(acc, results):
                    self.begun(acc, begun, f"finish {acc.name}")
                    known.update(v for _, v in results)
                case Save(acc, buffers, offset):
                    self.begun(acc, begun, f"save {acc.name}")
                    for name, dtype in zip(buffers, acc.states, strict=True):
                        self.place(name, offset, dtype, axes, f"save {acc.name}")
                case Put():
                    self.known([s.value, *s.offset.reads], known, f"put {s.buffer}")
                    self.place(s.buffer, s.offset, s.value.dtype, axes, f"put {s.buffer}")
                case Prefetch(buffer, offset):
                    self.bound([offset], axes, f"prefetch {buffer}")

    def bound(self, indices: Iterable[Index], axes: frozenset[Axis], node: str) -> None:
        for index in indices:
            stray = [a.name for a in index.axes if a not in axes]
            if stray:
                self.fail(node, f"depends on {', '.join(stray)}, which no loop around it has")

    def known(self, values: Iterable[Value], known: set[Value], node: str) -> None:
        for v in values:
            if v.op != "const" and v not in known:
                self.fail(node, f"{v} is not computed before it")

    def begun(self, acc: Accumulator, begun: set[Accumulator], node: str) -> None:
        if acc not in begun and not acc.memory:
            self.fail(node, "the accumulator is not begun around it")
        if acc.memory and not self.filled.issuperset(acc.memory):
            self.fail(node, "the accumulator is not begun before it")

    def accumulator(self, acc: Accumulator, axes: frozenset[Axis]) -> None:
        if acc.offset is not None:
            for name, dtype in zip(acc.memory, acc.states, strict=True):
                self.place(name, acc.offset, dtype, axes, f"begin {acc.name}")

    def place(self, name: str, offset: Index, dtype: DType, axes: frozenset[Axis], node: str) -> None:
        buffer = self.buffers.get(name)
        if buffer is None:
            raise CheckFailed(f"program {self.program.name}", node, f"{name} is no buffer of this program")
        self.bound([offset], axes, node)
        if dtype is not buffer.dtype.compute:
            self.fail(node, f"stores {dtype} to a buffer of {buffer.dtype}")
        # A row's place is relative to its block, so its axes are not independent.
        if name not in self.rows and outside(offset, extent(buffer)):
            self.fail(node, "stores outside of the buffer")
        if name in self.scratch:
            self.filled.add(name)

    def compute(self, v: Value, axes: frozenset[Axis], known: set[Value]) -> None:
        node = str(v)
        if v.op == "load" and v.attr.buffer.startswith(RESULT):
            self.fail(node, "is the result of a fold that is not finished here")
        indices = v.attr.index if v.op == "load" else (v.attr,) if v.op == "iota" else ()
        self.known([*v.args, *(r for i in indices for r in i.reads)], known, node)
        self.bound(indices, axes, node)
        why = _check_value(v, self.buffers, flat=True)
        if why is not None and not (v.op == "load" and v.attr.buffer in self.rows):
            self.fail(node, why)
        if v.op == "load" and v.attr.buffer in self.scratch and v.attr.buffer not in self.filled:
            self.fail(node, "loads scratch that nothing has written")
        known.add(v)


def check_program(program: Program) -> Program:
    """The program itself, if it keeps the rules. Raises CheckFailed."""
    check = _ProgramCheck(program)
    for phase in program.phases:
        check.phase(phase)
    return program
