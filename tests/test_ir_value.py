"""Values simplify as they are made: the same result, by the reference interpreter, from less."""

import numpy as np
import pytest

from ridgeline.ir.index import Axis, as_index
from ridgeline.ir.reference import evaluate
from ridgeline.ir.types import F32, I64
from ridgeline.ir.value import Value, const, fold, iota, load, word

ROWS, WIDTH = Axis("i", as_index(5)), Axis("r", as_index(4))
TARGETS = np.array([0, 3, -1, 4, 2])  # two of them are not on the axis


def hit(swapped: bool = False) -> Value:
    here, there = iota(as_index(WIDTH)), load("t", (ROWS,), I64)
    return word("eq", there, here) if swapped else word("eq", here, there)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_sum_over_one_hot_positions_is_the_one_it_meets(swapped: bool) -> None:
    x = load("x", (ROWS,), F32)
    summed = fold("sum", (WIDTH,), word("select", hit(swapped), x, const(0.0, F32)))
    assert summed.depth == 0  # no fold is left
    arrays = {"t": TARGETS, "x": np.arange(1, 6, dtype=np.float32)}
    np.testing.assert_array_equal(evaluate(summed, (ROWS,), arrays, {}), [1, 2, 0, 0, 5])


def test_what_varies_along_the_axis_is_summed() -> None:
    along = load("z", (ROWS, WIDTH), F32)
    assert fold("sum", (WIDTH,), word("select", hit(), along, const(0.0, F32))).op == "fold"
    assert fold("max", (WIDTH,), word("select", hit(), const(2.0, F32), const(0.0, F32))).op == "fold"
    assert fold("sum", (WIDTH,), word("select", hit(), const(2.0, F32), const(1.0, F32))).op == "fold"
