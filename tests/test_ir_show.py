"""Kernels and programs as text: what is shown reads back as the same thing, and bad text says where it is bad."""

import pytest

from ridgeline.base.errors import BadText
from ridgeline.base.records import Machine
from ridgeline.ir.index import Axis, Read, Sym, as_index
from ridgeline.ir.kernel import Kernel
from ridgeline.ir.parse import parse
from ridgeline.ir.show import show, show_index
from ridgeline.ir.types import F32, F64, I64
from ridgeline.ir.value import const, load
from ridgeline.schedule import candidates
from tests import kernels as k

MACHINE = Machine("vector", 16, 16, 2, (48 << 10, 2 << 20, 32 << 20))


@pytest.mark.parametrize("name", sorted(k.PATTERNS))
@pytest.mark.parametrize("shape", ((300, 200), (5000, 10), (5, 7), (3, 0)), ids=str)
def test_reads_back(name: str, shape: tuple[int, int]) -> None:
    kernel = k.PATTERNS[name](*shape)
    for x in (kernel, *candidates(kernel, MACHINE, every=True)):
        assert parse(show(x)) == x


@pytest.mark.parametrize("name", sorted(set(k.PATTERNS) - {"cat", "max_pool"}))
def test_symbolic_reads_back(name: str) -> None:
    kernel = k.PATTERNS[name](Sym("n", 3), Sym("m"))
    for x in (kernel, *candidates(kernel, MACHINE, every=True)):
        assert parse(show(x)) == x


@pytest.mark.parametrize("number", (0.0, -0.0, 1.5, 1e-30, float("inf"), float("-inf"), 3, -7, True))
def test_numbers_read_back(number: float) -> None:
    """Signed zero, infinities and exponents survive; equal text means the same hash-consed constant."""
    dtype = F64 if isinstance(number, float) else I64
    i = k.axis("i", 4)
    kernel = Kernel("numbers", (i,), (k.store("y", (i,), const(number, dtype)),), (k.buffer("y", (4,), dtype),))
    assert parse(show(kernel)) == kernel


def test_same_names_are_told_apart() -> None:
    """Bound axes are all called r1; of two with different sizes the second shows a number."""
    i = k.axis("i", 3)
    r, s = k.axis("r", 5), k.axis("s", 6)
    y = k.fold("sum", (r,), load("x", (i, r), F32)) + k.fold("sum", (s,), load("z", (i, s), F32))
    buffers = (k.buffer("x", (3, 5)), k.buffer("z", (3, 6)), k.buffer("y", (3,)))
    kernel = Kernel("two", (i,), (k.store("y", (i,), y),), buffers)
    text = show(kernel)
    assert "axis r1.1 5 named r1" in text
    assert parse(text) == kernel


def test_index_shows_its_structure() -> None:
    i, n = Axis("i", as_index(12)), as_index(Sym("n"))
    row = Read(load("t", (i,), I64), n)
    assert show_index((as_index(i) // 5) * n + as_index(i) % 5 - 2) == "(i // 5)*n + (i % 5) - 2"
    assert show_index(as_index(row) * 3, value=lambda v: "v7") == "3*[v7 < n]"


@pytest.mark.parametrize(
    ("line", "bad", "why"),
    (
        (3, "axis j", "expected more, found the end"),
        (7, "v0: f32 = loud x[i, j] f32", "nothing is called 'loud'"),
        (8, "v1: f32 = exp v9", "nothing is called 'v9'"),
        (8, "v1: f32 = exp v0 v0", "takes 1 values, not 2"),
        (9, "store y[i, j] v1", "expected = or"),
    ),
)
def test_bad_text_names_the_line(line: int, bad: str, why: str) -> None:
    lines = show(k.pointwise(3, 4)).splitlines()
    lines[line - 1] = bad
    with pytest.raises(BadText, match=f"line {line}: .*{why}"):
        parse("\n".join(lines))
