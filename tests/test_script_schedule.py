"""Where steps end and how they run: pure decisions, no torch."""

import random

import pytest

from ridgeline.capture.schedule import Boundary, Cycle, Mode, Policy, Schedule, Shapes, Signature

MARKS = {Boundary.NONE: ".", Boundary.STEP: "|", Boundary.RESET: "x"}


def boundaries(events: str) -> str:
    cycle = Cycle()
    return "".join(MARKS[cycle.event(event)] for event in events)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ("AAAA", "||||"),  # one optimizer: every step
        ("DGDGDGDG", "|x.x.|.|"),  # two that alternate: the second, once the pair was seen twice
        ("DDGDDGDDG", "||x..x..|"),  # two of one, one of the other
        ("DGDDDGDDDGDDDG", "|x.......x...|"),  # the first round is another than the rest
        ("ABACABACABAC", "|x.....x...|"),  # one key twice in a round
    ],
)
def test_a_step_ends_where_the_cycle_closes(events: str, expected: str) -> None:
    assert boundaries(events)[: len(expected)] == expected


def test_a_key_that_never_comes_back_is_forgotten() -> None:
    marks = boundaries("A" * 10 + "B" * 80)
    assert marks.startswith("||||||||||x")
    assert marks.endswith("||||||||||")


def test_a_pattern_must_hold_every_key_of_the_recent_past() -> None:
    """`A A B A A` ends in A twice, which is not the cycle."""
    assert boundaries("AABAABAAB") == "||x..x..|"


def token(length: int) -> Signature:
    return Signature("Llama.forward", (((1, 1), "int64"), ((1, length), "int64")), "eval")


def test_a_size_that_keeps_changing_becomes_a_star() -> None:
    shapes = Shapes()
    names = [shapes.observe(token(length)) for length in (65, 66, 67, 68, 69)]
    assert names[0] == "Llama.forward(1x1 int64, 1x65 int64, eval)"
    assert names[3] == names[4] == "Llama.forward(1x1 int64, 1x* int64, eval)"


def test_a_short_last_batch_stays_a_class_of_its_own() -> None:
    shapes = Shapes()
    full, short = (Signature("Net.forward", (((size, 3), "float32"),)) for size in (32, 5))
    names = [shapes.observe(signature) for signature in (full, full, short, full, full, short)]
    assert names[0] == names[4] == "Net.forward(32x3 float32)"
    assert names[2] == names[5] == "Net.forward(5x3 float32)"


def test_a_scalar_is_named() -> None:
    assert Shapes().observe(Signature("loss", (((), "float32"),))) == "loss(scalar float32)"


def play(schedule: Schedule, classes: list[str], compiles_at: set[int] = frozenset()) -> list[tuple[Mode, bool]]:
    played = []
    for number, shape_class in enumerate(classes):
        mode = schedule.mode(shape_class)
        first = mode is Mode.COMPILED and not any(m is Mode.COMPILED for m, _ in played)
        played.append((mode, schedule.close(shape_class, mode, first or number in compiles_at)))
    return played


def test_measuring_runs_two_eager_one_compiling_and_ten_pairs() -> None:
    played = play(Schedule(Policy.MEASURE, seed=3), ["c"] * 30)
    assert [mode for mode, _ in played[:3]] == [Mode.EAGER, Mode.RECORD, Mode.COMPILED]
    assert not any(timed for _, timed in played[:3])
    pairs = played[3:23]
    assert all(timed for _, timed in pairs)
    assert all({mode for mode, _ in pairs[i : i + 2]} == {Mode.EAGER, Mode.COMPILED} for i in range(0, 20, 2))
    assert played[23:] == [(Mode.COMPILED, False)] * 7


def test_the_order_within_pairs_is_random_and_repeats_with_its_seed() -> None:
    orders = [tuple(mode for mode, _ in play(Schedule(Policy.MEASURE, seed), ["c"] * 23)) for seed in (1, 1, 2, 3)]
    assert orders[0] == orders[1]
    assert len(set(orders)) > 1


def test_the_schedule_leaves_the_global_random_numbers_alone() -> None:
    before = random.getstate()
    play(Schedule(Policy.MEASURE), ["c"] * 23)
    assert random.getstate() == before


def test_every_shape_class_has_its_own_compiling_step_and_pairs() -> None:
    played = play(Schedule(Policy.MEASURE, pairs=2), ["a"] * 6 + ["b"] * 5)
    b = played[6:]
    assert b[0] == (Mode.COMPILED, False)
    assert sorted(mode.value for mode, timed in b[1:] if timed) == ["compiled", "compiled", "eager", "eager"]


def test_a_step_in_which_something_compiled_is_not_timed_but_repeated() -> None:
    clean = play(Schedule(Policy.MEASURE, pairs=1), ["c"] * 6)
    place = next(i for i, (mode, timed) in enumerate(clean) if timed and mode is Mode.COMPILED)
    disturbed = play(Schedule(Policy.MEASURE, pairs=1), ["c"] * 7, compiles_at={place})
    assert disturbed[place] == (Mode.COMPILED, False)
    assert sum(timed for mode, timed in disturbed if mode is Mode.COMPILED) == 1


def test_a_step_that_always_recompiles_is_given_up() -> None:
    played = play(Schedule(Policy.MEASURE, pairs=2), ["c"] * 20, compiles_at=set(range(20)))
    assert not any(timed for _, timed in played)
    assert played[-1][0] is Mode.COMPILED


def test_counting_and_running_time_nothing() -> None:
    counted = play(Schedule(Policy.COUNT), ["c"] * 5)
    assert [mode for mode, _ in counted] == [Mode.EAGER, Mode.RECORD] + [Mode.COMPILED] * 3
    assert play(Schedule(Policy.RUN), ["c"] * 3) == [(Mode.COMPILED, False)] * 3


def test_two_steps_in_all_record_one_and_compile_one() -> None:
    played = play(Schedule(Policy.MEASURE, limit=2), ["c"] * 2)
    assert [mode for mode, _ in played] == [Mode.RECORD, Mode.COMPILED]


def test_restart_counts_from_one_until_something_is_timed() -> None:
    schedule = Schedule(Policy.MEASURE)
    play(schedule, ["c"] * 2)
    schedule.restart()
    assert schedule.mode("c") is Mode.EAGER
    play(schedule, ["c"] * 4)
    schedule.restart()
    assert schedule.mode("new") is Mode.COMPILED
