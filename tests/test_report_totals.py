"""Sums, rankings and groups over an Account, with values worked out by hand."""

from dataclasses import replace

import pytest
from accounts import EMPTY, FORWARD, GPT, GRAPHS

from ridgeline.base import totals
from ridgeline.base.records import Finding, KernelAccount, Limit, Measured, MoveAccount, Prediction, StepPlan, Work

WORK = Work(bytes_read=600, bytes_written=400, flops={"fp32": 2000.0, "fp64": 500.0})
KERNEL = KernelAccount(
    "k", "kernel", "forward", ("aten.add.Tensor",), "a.py:1", 3, WORK, Limit(2.0, "memory"),
    Prediction(2.5, 2.0, 3.0, True), Measured(4.0, 0.1, 10),
)  # fmt: skip


def test_kernel_figures() -> None:
    assert WORK.flop_per_byte == 2.5  # 2500 FLOP over 1000 bytes
    assert KERNEL.fraction_of_limit == 0.5  # 2 s allowed, 4 s measured
    assert KERNEL.flops_per_s == 625  # 2500 FLOP in 4 s
    assert KERNEL.per_step(WORK.bytes_read) == 1800  # three calls
    unmeasured = replace(KERNEL, measured=None)
    assert (unmeasured.seconds, unmeasured.fraction_of_limit) == (2.5, 0.8)


def test_unknown_is_none_and_never_zero() -> None:
    unknown = replace(KERNEL, work=Work(600, 400, None), limit=None, prediction=None, measured=None)
    assert unknown.work is not None and unknown.work.flop_per_byte is None
    assert (unknown.seconds, unknown.fraction_of_limit, unknown.flops_per_s) == (None, None, None)
    assert unknown.per_step(None) is None
    assert replace(unknown, work=None).flops_per_s is None
    assert Work(0, 0, {"fp32": 5.0}).flop_per_byte is None  # no bytes: no intensity, not an infinite one


def test_sum_counts_what_is_missing() -> None:
    assert totals.total([1.0, None, 2.0]) == totals.Sum(3.0, missing=1, terms=3)
    assert totals.total([1.0, None]).value == 1.0
    assert totals.total([None, None]).value is None
    assert totals.total([]).value == 0.0
    group = totals.total_of([KERNEL, replace(KERNEL, calls=0.5, work=None)])
    assert (group.kernels, group.calls) == (2, 3.5)
    assert (group.bytes_read.known, group.bytes_read.missing) == (1800, 1)
    assert group.measured_s.known == 14  # 3.5 calls of 4 s


def test_kernels_rank_by_their_seconds_in_a_step() -> None:
    ranked = totals.kernels(GPT)
    assert [k.name for k in ranked][:3] == ["mm_backward_2048", "mm_backward_1152", "mm_forward_1024"]
    assert len(ranked) == 16
    often = replace(FORWARD[0], name="often", calls=10_000)  # short, but called most
    more = replace(GPT, graphs=(*GRAPHS, replace(GRAPHS[0], kernels=(often,))))
    assert totals.kernels(more)[0].name == "often"


def test_phases() -> None:
    forward, backward, optimizer = totals.phases(GPT)
    assert (forward.kernels, forward.library_calls) == (23, 13)  # 1+9+4+8+1 of ours; 4+4+4+1 of the library
    assert (backward.phase, backward.operators, optimizer.kernels) == ("backward", 240, 2)  # 2.5 rounds to even
    assert forward.roots == ("GPT.forward, cross_entropy",)
    twice = totals.phases(replace(GPT, graphs=(*GRAPHS, GRAPHS[0])))
    assert (twice[0].graphs, twice[0].operators, twice[0].compile_s) == (2, 720, 22.5)


def test_equal_moves_become_one_with_their_count() -> None:
    made = totals.moves(GPT, accepted=True)
    assert [(m.count, m.kind) for m in made] == [(8, "drop store"), (1, "drop store"), (1, "share read")]
    assert made[0].saved_s == pytest.approx(2.48e-3)  # 8 times 0.31 ms
    stayed = totals.moves(GPT, accepted=False)
    assert [m.reason.split(",")[0] for m in stayed] == ["its readers run after a library call", "backward needs it"]
    move = MoveAccount("drop store", True, "add", None, 100.0, 1e-3, "r", count=2)
    (one,) = totals.moves(replace(GPT, graphs=(replace(GRAPHS[0], moves=(move, move), calls=3),)), accepted=True)
    assert (one.count, one.saved_bytes, one.saved_s) == (4, 600.0, pytest.approx(6e-3))  # graph runs 3 times a step


def test_findings_rank_by_seconds_and_unknown_comes_last() -> None:
    assert [f.saved_s for f in totals.findings(GPT)] == [0.041, 0.0009, None]
    zero = replace(GPT, findings=(Finding("unknown", None, ""), Finding("nothing", 0.0, "")))
    assert [f.title for f in totals.findings(zero)] == ["nothing", "unknown"]


def test_unknown_cost_names_operators_inside_and_outside() -> None:
    assert totals.unknown_cost(GPT) == ("mylib.scan.default", "aten.<script>alert(1)</script>.default")
    assert totals.unknown_cost(EMPTY) == ()


def test_library_reasons() -> None:
    (row,) = totals.library_reasons(GPT)  # matmuls have no reason: the library is their target
    assert (row.operators, row.calls, row.reason) == (("mylib.scan.default",), 1, "no row in the table")


def test_what_the_step_limit_waits_for() -> None:
    a = replace(GRAPHS[0], limit=Limit(3.0, "memory", {"memory": 3.0, "fp32": 1.0}), calls=1)
    b = replace(GRAPHS[1], limit=Limit(2.0, "fp32", {"memory": 0.5, "fp32": 2.0}), calls=4)
    both = replace(GPT, graphs=(a, b))
    assert totals.limit_resources(both) == {"fp32": 9.0, "memory": 5.0}  # 1 + 4 x 2; 3 + 4 x 0.5
    assert totals.limit_binds(both) == "fp32"
    assert totals.limit_binds(EMPTY) is None


def plans(eager: StepPlan, graph: StepPlan) -> float | None:
    return totals.speedup(replace(GPT, plans=(eager, graph)))


def test_speedup_compares_like_with_like() -> None:
    measured = StepPlan("eager", 9.0, Measured(8.0, 0, 10), None, None, None)
    graph = StepPlan("graph", 3.0, Measured(2.0, 0, 10), None, None, None)
    assert plans(measured, graph) == 4.0  # measured over measured
    assert plans(measured, replace(graph, measured=None)) == 3.0  # predicted over predicted, not 8 / 3
    assert plans(replace(measured, predicted_s=None), replace(graph, measured=None)) is None
    assert totals.speedup(EMPTY) is None
    assert measured.prediction_error == 0.125  # 9 predicted where 8 were measured: too long
    assert graph.prediction_error == 0.5
    assert replace(graph, measured=None).prediction_error is None
