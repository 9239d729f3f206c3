"""The walk: what becomes one kernel, what must not, and that no plan of a small graph is much better."""

import itertools
import time
from collections.abc import Iterator

import plans
import pytest
import torch
import torch.nn.functional as F
from rows import capture

from ridgeline.fuse.group import Group, rows_of, single
from ridgeline.fuse.unit import alive, make_units
from ridgeline.fuse.walk import Plan, walk
from ridgeline.fuse.walk import _Walk as Walk
from ridgeline.ir.steps import KernelStep

aten = torch.ops.aten


def x(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def softmax_by_hand(a: torch.Tensor) -> torch.Tensor:
    e = (a - a.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def norm_both_ways(a: torch.Tensor, dy: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    centred = a - a.mean(-1, keepdim=True)
    normal = centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1e-5)
    return normal * w, (dy * normal).sum(0), dy.sum(0)


@pytest.mark.parametrize(
    ("function", "inputs", "kernels"),
    [
        (lambda a: a.exp() * 2 + 1, (x(4, 6),), 1),
        (lambda a, b, w, c: F.layer_norm(a + b, (6,), w, c), (x(4, 6), x(4, 6), x(6), x(6)), 1),
        (softmax_by_hand, (x(4, 6),), 1),
        (norm_both_ways, (x(4, 6), x(4, 6), x(6)), 1),
        (lambda a, b: torch.cat((a * 2, b + 1), -1), (x(4, 6), x(4, 3)), 1),
        (lambda a: (a.relu().view(24) + 1).sum(), (x(4, 6),), 1),
        (lambda a, b: (a.t() + b, a * 2), (x(4, 6), x(6, 4)), 1),
        # The statistic of everything must be whole before anything can use it along both axes.
        (lambda a: (a - a.mean(0), a - a.mean(1, keepdim=True)), (x(4, 6),), 2),
    ],
)
def test_kernels_of_a_plan(function, inputs, kernels) -> None:
    plans.check_plan(function, *inputs, most_kernels=kernels)


def test_sum_along_rows_of_equal_sizes_is_not_mistaken() -> None:
    plans.check_plan(norm_both_ways, x(6, 6), x(6, 6), x(6), most_kernels=1)


def test_an_input_read_elsewhere_is_not_overwritten() -> None:
    def update(state: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = y + state  # every element of y reads the one element of state
        aten.copy_(state, state + 1)
        return out

    plan = plans.plan_of(update, x(1), x(4096))
    for step in plans.kernels(plan):
        if step.storage:
            reads_widely = [v for v in step.kernel.values if v.op == "load" and step.kernel.axes]
            assert not (reads_widely and len(step.kernel.stores) > 1)


def test_equal_layers_are_equal_kernels() -> None:
    def layers(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            a = (torch.mm(a, w).relu() * 2 + 1).tanh()
        return a

    plan = plans.plan_of(layers, x(8, 8), x(8, 8))
    names = [s.kernel.name for s in plans.kernels(plan)]
    assert len(names) == 6
    assert len(set(names)) == 1


def every_grouping(units: list) -> Iterator[list[list]]:
    """All ways to split a list of units into groups."""
    if not units:
        yield []
        return
    head, rest = units[0], units[1:]
    for k in range(len(rest) + 1):
        for others in itertools.combinations(rest, k):
            left = [u for u in rest if u not in others]
            for tail in every_grouping(left):
                yield [[head, *others], *tail]


def seconds_of(plan: Plan, state: Walk, grouping: list[list]) -> float | None:
    """The model's time of a grouping; None when it is no legal plan."""
    groups: list[Group] = []
    for units in grouping:
        joined = single(units[0])
        waiting = list(units[1:])
        while waiting:
            for u in waiting:
                tried = state.try_join(joined, single(u))
                if not isinstance(tried, str) or "whole space" in tried:
                    if isinstance(tried, str):
                        continue
                    joined = tried[0]
                    waiting.remove(u)
                    break
            else:
                return None
        if isinstance(rows_of(joined, lambda u, g=joined: state.stored(g, u)), str):
            return None
        groups.append(joined)
    home = {u.name: k for k, g in enumerate(groups) for u in g.units}
    after = {k: {home[r] for u in g.units for r in u.reads if r in home} - {k} for k, g in enumerate(groups)}
    order: list[int] = []
    while len(order) < len(groups):
        ready = [k for k in after if k not in order and after[k] <= set(order)]
        if not ready:
            return None
        order.append(ready[0])
    return sum(state.cost(g).seconds for g in groups)


SMALL = [
    lambda a, b: ((a + b).relu() * a, (a + b).sum(-1)),
    lambda a, b: softmax_by_hand(a) * b,
    lambda a, b: (a.sum(0), b.sum(0), (a * b).sum(0)),
    lambda a, b: (a.exp() + b.exp()).log() - a.amax(-1, keepdim=True),
    lambda a, b: (a * 2, a.mean(), (b - b.mean(1, keepdim=True)) * a),
]


@pytest.mark.parametrize("function", SMALL)
def test_no_other_plan_is_two_percent_better(function) -> None:
    graph = capture(function, x(512, 256), x(512, 256))
    plan = walk(graph, plans.DEVICE)
    units = list(plan.units.units.values())
    assert len(units) <= 8
    need = {u.name: "kept" for u in units if u.name in graph.kept or not _readers(plan).get(u.name)}
    state = Walk(plan.units, need, _readers(plan), plan.units.buffers, graph.hints, plan.price, None)
    found = sum(state.cost(g).seconds for g in plan.groups)
    times = [s for g in every_grouping(units) if (s := seconds_of(plan, state, g)) is not None]
    assert times
    assert found <= 1.02 * min(times)


def _readers(plan: Plan) -> dict[str, frozenset[str]]:
    readers: dict[str, set[str]] = {}
    for unit in plan.units.units.values():
        for name in unit.reads:
            readers.setdefault(name, set()).add(unit.name)
    return {n: frozenset(r) for n, r in readers.items()}


def layered(count: int):
    """About `count` operators: layers of a matmul and ten elementwise or norm operators."""

    def function(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(count // 12):
            h = torch.mm(a, w)
            h = (h + a) * 0.5
            h = F.layer_norm(h, (16,))
            h = torch.sigmoid(h) * h - a
            a = (h.tanh() + 1).relu() * 0.25
        return a

    return function


@pytest.mark.parametrize("count", [1000, 3000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_the_walk_is_near_linear(count: int) -> None:
    graph = capture(layered(count), x(16, 16), x(16, 16))
    times = []
    for _ in range(3):
        start = time.process_time()
        walk(graph, plans.DEVICE)
        times.append(time.process_time() - start)
    assert min(times) / len(graph.nodes) < 0.3e-3


def test_dead_units_go() -> None:
    graph = capture(lambda a: (a + 1, a * 2)[0], x(4, 4))
    units = make_units(graph)
    assert [u for u in alive(units, {graph.outputs[0]: "kept"}).units] == [graph.outputs[0]]


def test_moves_are_told_with_bytes_and_reason() -> None:
    plan = plans.plan_of(lambda a: (a + 1).exp(), x(64, 64))
    made = [m for m in plan.moves if m.accepted]
    assert [m.kind for m in made] == ["drop store"]
    assert made[0].saved_bytes == 2 * 64 * 64 * 4  # one store and one load
    stayed = [m for m in plan.moves if not m.accepted]
    assert [m.reason for m in stayed] == ["it is an output of the graph"]


def test_fuel_bounds_the_moves() -> None:
    graph = capture(lambda a: (a + 1).exp() * 2 - 1, x(8, 8))
    assert len(walk(graph, plans.DEVICE, fuel=0).groups) == 4
    assert len(walk(graph, plans.DEVICE, fuel=2).groups) == 2
    assert isinstance(plans.kernels(walk(graph, plans.DEVICE))[0], KernelStep)


def test_label_smoothing_gradient_is_one_kernel_that_compiles() -> None:
    """A column sum beside row statistics of short rows: its state began in the wrong loop once."""
    head = torch.nn.Linear(8, 10)
    labels = torch.arange(25) % 10

    def loss(a: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(head(a), labels, label_smoothing=0.05)

    a = x(25, 8).requires_grad_()
    expected = torch.autograd.grad(loss(a), [a, *head.parameters()])
    compiled = torch.compile(loss, backend="ridgeline", options={"strict": True})
    for got, want in zip(torch.autograd.grad(compiled(a), [a, *head.parameters()]), expected, strict=True):
        torch.testing.assert_close(got, want)
