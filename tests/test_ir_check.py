"""The checkers: each rule is broken once, and the message names the node; what schedule makes keeps all rules."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from ridgeline.base.errors import CheckFailed
from ridgeline.base.records import Machine
from ridgeline.ir.check import affine, check_kernel, check_program, outside
from ridgeline.ir.index import Axis, Sym, as_index
from ridgeline.ir.kernel import Kernel
from ridgeline.ir.parse import parse
from ridgeline.ir.program import Program
from ridgeline.ir.show import show
from ridgeline.ir.types import F32, F64
from ridgeline.ir.value import cast, const, load
from ridgeline.schedule import candidates, schedule
from tests import kernels as k

MACHINE = Machine("vector", 16, 16, 2, (48 << 10, 2 << 20, 32 << 20))
KERNEL = k.softmax(30, 200)


@pytest.mark.parametrize("shape", ((300, 200), (5000, 10), (5, 7), (3, 0), (0, 3), (2000, 1)), ids=str)
@pytest.mark.parametrize("name", sorted(k.PATTERNS))
def test_schedule_keeps_the_rules(name: str, shape: tuple[int, int]) -> None:
    for program in candidates(check_kernel(k.PATTERNS[name](*shape)), MACHINE, every=True):
        check_program(program)


@pytest.mark.parametrize("name", sorted(set(k.PATTERNS) - {"cat", "max_pool"}))
def test_schedule_keeps_the_rules_for_symbols(name: str) -> None:
    for program in candidates(check_kernel(k.PATTERNS[name](Sym("n"), Sym("m"))), MACHINE, every=True):
        check_program(program)


def _store(**changes: object) -> Callable[[Kernel], Kernel]:
    return lambda kernel: replace(kernel, stores=(replace(kernel.stores[0], **changes),))


ROW, COLUMN = Axis("i", as_index(30)), Axis("j", as_index(200))


@pytest.mark.parametrize(
    ("change", "why"),
    (
        (_store(buffer="z"), "store z: is no buffer of this kernel"),
        (_store(value=const(1.0, F64)), "store y: stores f64 to a buffer of f32"),
        (_store(index=(as_index(ROW),)), "store y: 1 indices for 2 dimensions"),
        (_store(index=(as_index(ROW), as_index(COLUMN) + 1)), "store y: stores outside of the buffer"),
        (_store(value=load("x", (ROW, as_index(COLUMN) - 1), F32)), "x.* loads outside of the buffer"),
        (_store(value=cast(load("x", (ROW, COLUMN), F64), F32)), "loads f64 from a buffer of f32"),
        (_store(value=load("w", (ROW, COLUMN), F32)), "loads from w, which is no buffer"),
        (lambda kernel: replace(kernel, axes=(ROW,)), "runs along j, which the space does not have"),
        (lambda kernel: replace(kernel, buffers=(kernel.buffers[0],) * 2), "two buffers have one name"),
    ),
)
def test_broken_kernels(change: Callable[[Kernel], Kernel], why: str) -> None:
    with pytest.raises(CheckFailed, match=why):
        check_kernel(change(KERNEL))


@pytest.mark.parametrize(
    ("line", "instead", "why"),
    (
        ("begin f0s", "", "step f0s: the accumulator is not begun around it"),
        ("put y[200*i + j] = v10", "put y[200*i + j] = v3", "put y: exp.* is not computed before it"),
        ("put row[j] = v3", "", "loads scratch that nothing has written"),
        ("loop i from 0 for 30 tile 1", "loop j from 0 for 200 tile 1", "its axis is open already"),
        ("put y[200*i + j] = v10", "put y[200*i + j + 1] = v10", "put y: stores outside of the buffer"),
        ("put y[200*i + j] = v10", "put y[200*i + j] = v5", "put y: stores bool to a buffer of f32"),
        ("step f0s v3", "step f0s v3 v3", "elements are not what the combiner takes"),
    ),
)
def test_broken_programs(line: str, instead: str, why: str) -> None:
    text = show(schedule(KERNEL, MACHINE))
    assert line in text
    program = parse(_without(text, line, instead))
    assert isinstance(program, Program)
    with pytest.raises(CheckFailed, match=why):
        check_program(program)


def _without(text: str, line: str, instead: str) -> str:
    out = []
    for each in text.splitlines():
        if each.strip() == line:
            indent = each[: len(each) - len(each.lstrip())]
            out += [indent + instead] if instead else []
        else:
            out.append(each)
    return "\n".join(out)


def test_message_shows_the_neighbours() -> None:
    text = show(schedule(KERNEL, MACHINE)).replace("put y[200*i + j] = v10", "put y[200*i + j + 1] = v10")
    program = parse(text)
    assert isinstance(program, Program)
    with pytest.raises(CheckFailed, match="v10: f32 = div"):
        check_program(program)


def test_bounds_are_exact_only_where_axes_are_independent() -> None:
    i, n = as_index(Axis("i", as_index(8))), as_index(Sym("n"))
    assert outside(i + 1, as_index(8)) and outside(i - 1, as_index(8))
    assert not outside(i, as_index(8)) and not outside(i, n)
    assert not affine(i * i) and not affine(i // 3)
