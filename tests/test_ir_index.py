"""The index algebra against plain integers: random expressions, at every point, and the identities it must find."""

import operator
import random
from itertools import product

import pytest

from ridgeline.ir.index import Axis, Index, Sym, as_index, at_least, evaluate, flatten, lower, unflatten, upper

AXES = (Axis("i", as_index(6)), Axis("j", as_index(5)), Axis("k", as_index(4)))
I, J, K = map(as_index, AXES)  # noqa: E741
OPERATIONS = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod)


def random_pair(rng: random.Random, depth: int) -> tuple[Index, object]:
    """An expression, and the same as a function of (i, j, k)."""
    if depth == 0 or rng.random() < 0.2:
        if rng.random() < 0.4:
            number = rng.randint(0, 9)
            return as_index(number), lambda *at: number
        place = rng.randrange(3)
        return as_index(AXES[place]), lambda *at: at[place]
    operation = rng.choice(OPERATIONS)
    left, left_number = random_pair(rng, depth - 1)
    if operation in (operator.floordiv, operator.mod):
        right = rng.randint(1, 12)
        return operation(left, right), lambda *at: operation(left_number(*at), right)
    if operation is operator.mul:
        factor = rng.randint(-4, 4)
        return left * factor, lambda *at: left_number(*at) * factor
    other, other_number = random_pair(rng, depth - 1)
    return operation(left, other), lambda *at: operation(left_number(*at), other_number(*at))


@pytest.mark.parametrize("seed", range(20))
def test_random_expressions(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        index, number = random_pair(rng, 5)
        low, high = lower(index).const, upper(index).const
        for at in product(range(6), range(5), range(4)):
            found = evaluate(index, dict(zip(AXES, at, strict=True)))
            assert found == number(*at), (index, at)
            assert low is not None and high is not None and low <= found <= high, (index, at)


def test_identities() -> None:
    n = as_index(Sym("n"))
    flat = flatten((I, J, K), (6, 5, 4))
    assert unflatten(flat, (6, 5, 4)) == (I, J, K)
    assert (flat // 4) * 4 + flat % 4 is flat
    assert I - 2 * (I // 2) is I % 2
    assert 3 * I * n - 6 * n * (I // 2) is 3 * n * (I % 2)
    assert (I * 5 + J) - 5 * ((I * 5 + J) // 5) is J
    assert 2 * (I // 2) + I % 2 is I
    assert (I * 8) // 4 is I * 2
    assert (I // 2) // 3 is I // 6


def test_bounds_of_remainders() -> None:
    index = I - 2 * (I // 2)
    assert at_least(index, 0) and at_least(1 - index, 0)
