"""Random programs, compiled against eager: a bounded part each time, thousands behind `slow`."""

import pytest
import torch
from fuzz import Program, check, program, run, shrunk

QUICK = range(30)  # programs of each part
LONG = range(1000, 5000)


def told(p: Program) -> str | None:
    """What is wrong with a program, with the smallest one that is still wrong."""
    verdict = check(p)
    if verdict.wrong is None:
        return None
    small = shrunk(p, lambda q: check(q).wrong)
    return f"{verdict.wrong}\n{small.show()}\n{check(small).wrong}"


@pytest.mark.parametrize("seed", QUICK)
def test_programs(seed: int) -> None:
    wrong = told(program(seed))
    assert wrong is None, wrong


@pytest.mark.parametrize("seed", range(5))
def test_programs_at_sizes_that_change(seed: int) -> None:
    wrong = told(program(seed, dynamic=True))
    assert wrong is None, wrong


@pytest.mark.slow
@pytest.mark.parametrize("seed", LONG)
def test_many_programs(seed: int) -> None:
    wrong = told(program(seed))
    assert wrong is None, wrong


def test_the_same_seed_gives_the_same_program() -> None:
    assert program(7).show() == program(7).show()
    assert len({program(s).source() for s in range(8)}) == 8


@pytest.mark.parametrize("line, changed", [("x0 * 2", "x0 * 2.0001"), ("x0.sum(0)", "x0[1:].sum(0)")])
def test_a_wrong_result_is_seen(line: str, changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison itself: a backend that is slightly wrong is told from a right one."""
    from fuzz import Input, Line, _compare  # noqa: PLC0415

    inputs = (Input("x0", (9, 17), "f32", "permuted", "normal", 3),)
    p = Program(0, inputs, (Line("v0", f"v0 = {line}"),), ("v0",))
    other = Program(0, inputs, (Line("v0", f"v0 = {changed}"),), ("v0",))
    want = run(p, p.function())
    assert _compare(p, p.function(), want, 0) is None
    assert _compare(p, other.function(), want, 0) is not None
    torch._dynamo.reset()
