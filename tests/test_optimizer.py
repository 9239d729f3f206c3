"""Optimizer steps in one launch: every optimizer of torch.optim against torch's own steps, and all that may change
between two steps of a training script."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules

from ridgeline.base.knobs import Knobs
from ridgeline.top.backend import Backend
from ridgeline.top.engine import Engine
from ridgeline.top.optimizer import Updates
from ridgeline.top.price import price

ENGINE = Engine(Knobs())
# Ragged, of no dimensions, empty, longer than one piece and not a multiple of anything, a single element.
SHAPES: Sequence[tuple[int, ...]] = ((3, 5), (7,), (), (2, 3, 4, 5), (0, 4), (301, 300), (1,))
# Eager mode rounds to the stored type after every operator; ours only at the end.
ROUNDING = {torch.float64: 1e-14, torch.float32: 5e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}
O = torch.optim  # noqa: E741
CASES: list[tuple[Any, dict[str, Any]]] = [
    (O.AdamW, {}),
    (O.AdamW, {"amsgrad": True, "maximize": True}),
    (O.AdamW, {"fused": True}),
    (O.AdamW, {"foreach": True}),
    (O.Adam, {"weight_decay": 0.1}),
    (O.Adam, {"lr": torch.tensor(0.01)}),
    (O.SGD, {}),
    (O.SGD, {"momentum": 0.9, "nesterov": True}),
    (O.SGD, {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1, "maximize": True}),
    (O.Rprop, {}),
    (O.RAdam, {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    (O.ASGD, {"t0": 3}),
    (O.NAdam, {}),
    (O.Adamax, {}),
    (O.Adagrad, {"lr_decay": 0.1}),
    (O.Adadelta, {}),
    (O.RMSprop, {"centered": True, "momentum": 0.9}),
    (O.RMSprop, {}),
]


class Ours:
    """Steps an optimizer by its compiled update where there is one; counts both kinds."""

    def __init__(self) -> None:
        self.backend = Backend(ENGINE, ENGINE.knobs)
        self.updates = Updates(self.backend)
        self.compiled, self.eager = 0, 0

    def step(self, optimizer: O.Optimizer) -> None:
        update = self.updates.optimizer_step(optimizer)
        self.compiled += update is not None
        self.eager += update is None
        update() if update is not None else optimizer.step()

    @property
    def reasons(self) -> list[str]:
        return [e.reason for e in self.backend.events if e.reason]


def eagerly(optimizer: O.Optimizer) -> None:
    optimizer.step()


def make_parameters(dtype: torch.dtype, shapes: Sequence[tuple[int, ...]] = SHAPES) -> list[nn.Parameter]:
    draw = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(s, generator=draw, dtype=torch.float64).to(dtype)) for s in shapes]


def set_gradients(parameters: Sequence[nn.Parameter], seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for p in parameters:
        p.grad = torch.randn(p.shape, generator=draw, dtype=torch.float64).to(p.dtype)


def train(
    make: Callable[[list[nn.Parameter]], O.Optimizer],
    dtype: torch.dtype,
    step: Callable[[O.Optimizer], None],
    steps: int = 8,
) -> tuple[list[nn.Parameter], O.Optimizer]:
    """A few steps with a learning rate that is another one every second step."""
    parameters = make_parameters(dtype)
    optimizer = make(parameters)
    # Not a scheduler: for one our function would look like a step that was forgotten.
    for k in range(steps):
        set_gradients(parameters, k)
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * (0.5 if k % 2 else 1.0)
        step(optimizer)
    return parameters, optimizer


def state_of(parameters: Sequence[nn.Parameter], optimizer: O.Optimizer) -> list[torch.Tensor]:
    """Parameters and all their state, in order."""
    return [t.detach() for p in parameters for t in (p, *optimizer.state.get(p, {}).values())]


def error(found: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> float:
    """The largest difference, relative to what is larger than 1."""
    pairs = [(a.double(), b.double()) for a, b in zip(found, exact, strict=True) if a.numel()]
    return max(float(((a - b).abs() / b.abs().clamp_min(1.0)).max()) for a, b in pairs)


def close(ours: Any, eager: Any, dtype: torch.dtype) -> None:
    assert error(state_of(*ours), state_of(*eager)) <= ROUNDING[dtype]


# Other types of number with one choice of options for each optimizer.
ONE_EACH = [next((c for c in reversed(CASES) if c[0] is kind), CASES[0]) for kind in dict.fromkeys(c[0] for c in CASES)]
TYPED = [(*c, torch.float32) for c in CASES] + [(*c, t) for c in ONE_EACH for t in (torch.float64, torch.bfloat16)]


def shown(value: Any) -> str:
    """A readable name for a case."""
    return value.__name__ if isinstance(value, type) else "-".join(value) if isinstance(value, dict) else str(value)[6:]


@pytest.mark.parametrize("kind, options, dtype", TYPED, ids=shown)
def test_every_optimizer(kind: Any, options: dict[str, Any], dtype: torch.dtype) -> None:
    def make(parameters: list[nn.Parameter]) -> O.Optimizer:
        optimizer: O.Optimizer = kind(parameters, **({"lr": 0.01} | options))
        return optimizer

    ours = Ours()
    eager, mine = train(make, dtype, eagerly), train(make, dtype, ours.step)
    exact = train(make, torch.float64, eagerly)
    assert ours.eager <= 1 and ours.compiled >= 7, ours.reasons  # the first step makes the state
    allowed = 3 * error(state_of(*eager), state_of(*exact)) + ROUNDING[dtype]
    assert error(state_of(*mine), state_of(*exact)) <= allowed
    if dtype is not torch.bfloat16:
        close(mine, eager, dtype)
    for a, b in zip(eager[0], mine[0], strict=True):
        states = eager[1].state.get(a, {}), mine[1].state.get(b, {})
        assert list(states[0]) == list(states[1])
        assert [v.dtype for v in states[0].values()] == [v.dtype for v in states[1].values()]
        assert states[0].get("step") == states[1].get("step")
    assert {e.phase for e in ours.backend.events} == {"optimizer"}


def test_a_schedule_never_compiles_again() -> None:
    parameters = make_parameters(torch.float32)
    optimizer, ours = O.AdamW(parameters, lr=0.01), Ours()
    optimizer.step()
    functions = set()
    for k in range(10):
        set_gradients(parameters, k)
        optimizer.param_groups[0]["lr"] = 0.01 / (k + 1)
        ours.step(optimizer)
        functions.add(ours.updates.optimizer_step(optimizer))
    assert len(ours.backend.events) == 1 and len(functions) == 1 and ours.backend.events[0].calls == 9


def test_numbers_found_to_change_become_arguments_once() -> None:
    def run(step: Callable[[O.Optimizer], None]) -> Any:
        parameters = make_parameters(torch.float32)
        optimizer = O.SGD(parameters, lr=0.1, momentum=0.9)
        for k in range(8):
            set_gradients(parameters, k)
            optimizer.param_groups[0]["momentum"] = 0.9 - 0.05 * k  # as OneCycleLR does
            step(optimizer)
        return parameters, optimizer

    ours = Ours()
    close(run(ours.step), run(eagerly), torch.float32)
    assert len(ours.backend.events) == 2 and ours.compiled == 7


def test_schedulers_of_torch_see_their_steps() -> None:
    def run(step: Callable[[O.Optimizer], None]) -> Any:
        parameters = make_parameters(torch.float32)
        optimizer = O.Adam(parameters, lr=0.1)
        schedule = schedules.OneCycleLR(optimizer, 0.1, total_steps=9)
        optimizer._opt_called = True  # type: ignore[attr-defined]  # what a call of optimizer.step() itself leaves
        for k in range(8):
            set_gradients(parameters, k)
            step(optimizer)
            schedule.step()
        return parameters, optimizer

    ours = Ours()
    close(run(ours.step), run(eagerly), torch.float32)
    assert ours.compiled == 7 and len(ours.backend.events) <= 2


def test_groups_with_other_numbers_share_a_launch_and_groups_may_come_later() -> None:
    def run(step: Callable[[O.Optimizer], None]) -> Any:
        parameters = make_parameters(torch.float32)
        groups = [{"params": parameters[:2], "lr": 0.1}, {"params": parameters[2:4], "weight_decay": 0.3, "eps": 1e-4}]
        optimizer = O.AdamW(groups, lr=0.01)
        for k in range(9):
            if k == 4:
                optimizer.add_param_group({"params": parameters[4:], "lr": 0.2})
            set_gradients(parameters, k)
            step(optimizer)
        return parameters, optimizer

    ours = Ours()
    close(run(ours.step), run(eagerly), torch.float32)
    assert ours.eager == 2  # two steps make state
    used = [e for e in ours.backend.events if e.calls]
    assert len(used) == 1 and used[0].calls == 7 and used[0].tensors == 4


def test_parameters_without_gradients_are_left_out_and_keep_their_own_step_count() -> None:
    def run(step: Callable[[O.Optimizer], None]) -> Any:
        parameters = make_parameters(torch.float32)
        optimizer = O.RAdam(parameters, lr=0.01)
        for k in range(12):
            set_gradients(parameters, k)
            for place, p in enumerate(parameters):
                if k and place % 3 == k % 3:
                    p.grad = None
            step(optimizer)
        return parameters, optimizer

    ours = Ours()
    mine, eager = run(ours.step), run(eagerly)
    close(mine, eager, torch.float32)
    steps = [[float(o.state[p]["step"]) for p in ps] for ps, o in (mine, eager)]
    assert steps[0] == steps[1] and len(set(steps[0])) > 1
    assert ours.compiled == 11 and len(ours.backend.events) == 2  # before and after RAdam's rectification begins


def test_no_gradients_at_all() -> None:
    parameters = make_parameters(torch.float32)
    optimizer, ours = O.AdamW(parameters), Ours()
    ours.step(optimizer)
    assert not optimizer.state
    assert all(torch.equal(a, b) for a, b in zip(parameters, make_parameters(torch.float32), strict=True))


def test_state_can_be_loaded_and_saved_at_any_time() -> None:
    def run(step: Callable[[O.Optimizer], None]) -> Any:
        parameters = make_parameters(torch.float32)
        optimizer: O.Optimizer = O.AdamW(parameters, lr=0.1, betas=(0.8, 0.9))
        saved: Any = None
        for k in range(10):
            set_gradients(parameters, k)
            step(optimizer)
            if k == 3:
                saved = copy.deepcopy(optimizer.state_dict())
            if k == 6:
                optimizer.load_state_dict(saved)
        other = O.AdamW(parameters, lr=0.3)
        other.load_state_dict(optimizer.state_dict())
        set_gradients(parameters, 99)
        step(other)
        return parameters, other

    ours = Ours()
    close(run(ours.step), run(eagerly), torch.float32)
    assert ours.eager == 1 and ours.compiled == 10


def test_memory_that_is_swapped_is_followed() -> None:
    def run(step: Callable[[O.Optimizer], None]) -> Any:
        parameters = make_parameters(torch.float32, ((5, 4), (9,)))
        optimizer = O.SGD(parameters, lr=0.1, momentum=0.5)
        kept = []  # so that no address is used twice
        for k in range(6):
            set_gradients(parameters, k)
            if k == 3:
                kept.append(parameters[0].data)
                parameters[0].data = parameters[0].data.clone()
                optimizer.state[parameters[1]]["momentum_buffer"] = torch.ones(9)
            step(optimizer)
        return parameters, optimizer

    ours = Ours()
    close(run(ours.step), run(eagerly), torch.float32)
    assert ours.compiled == 5


def test_a_model_cast_to_another_type_is_another_update() -> None:
    def run(step: Callable[[O.Optimizer], None]) -> Any:
        model = nn.Linear(5, 3)
        with torch.no_grad():
            model.weight.copy_(torch.arange(15.0).view(3, 5) / 7), model.bias.fill_(0.25)
        parameters = list(model.parameters())
        optimizer = O.SGD(parameters, lr=0.5)
        for k in range(4):
            if k == 2:
                model.double()
            for p in parameters:
                p.grad = None
            set_gradients(parameters, k)
            step(optimizer)
        return parameters, optimizer

    ours = Ours()
    close(run(ours.step), run(eagerly), torch.float32)
    assert [e.calls for e in ours.backend.events] == [2, 2]


@pytest.mark.parametrize("kind", [O.AdamW, O.SGD])
def test_other_orders_of_dimensions(kind: Any) -> None:
    def run(step: Callable[[O.Optimizer], None]) -> Any:
        draw = torch.Generator().manual_seed(1)
        parameters = [
            nn.Parameter(torch.randn(4, 3, 5, 5, generator=draw).to(memory_format=torch.channels_last)),
            nn.Parameter(torch.randn(6, 7, generator=draw).t()),
        ]
        optimizer = kind(parameters, lr=0.1)
        for k in range(6):
            for p in parameters:
                p.grad = torch.randn(p.shape, generator=draw)
                if k != 3:  # once in another order than the parameter: that step is torch's
                    p.grad = torch.empty_like(p).copy_(p.grad)
            step(optimizer)
        return parameters, optimizer

    ours = Ours()
    close(run(ours.step), run(eagerly), torch.float32)
    assert ours.compiled == (4 if kind is O.AdamW else 5) and not ours.reasons


def test_what_is_no_plain_memory_is_left_to_torch() -> None:
    base = torch.randn(4, 6)
    gapped, twice = nn.Parameter(base[:, ::2]), torch.randn(8)
    cases = [
        [gapped],
        [nn.Parameter(twice), nn.Parameter(twice.view(2, 4))],
        [nn.Parameter(torch.randn(3, dtype=torch.complex64))],
    ]
    for parameters in cases:
        optimizer, ours = O.SGD(parameters, lr=0.1), Ours()
        before = [p.detach().clone() for p in parameters]
        for p in parameters:
            p.grad = torch.ones_like(p)
        for _ in range(4):
            assert ours.updates.optimizer_step(optimizer) is None
        assert all(torch.equal(a, b) for a, b in zip(parameters, before, strict=True)) and len(ours.reasons) == 1
    shared = nn.Parameter(torch.randn(5))
    shared.grad = shared.data
    assert Ours().updates.optimizer_step(O.SGD([shared], lr=0.1)) is None


class Lucky(O.SGD):
    """A step of the user's own, which may do anything."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(p.grad.sign(), alpha=-group["lr"])


REFUSED: list[tuple[Callable[[Any], O.Optimizer], str]] = [
    (lambda p: O.LBFGS(p), "its step calls the model again"),
    (lambda p: O.Adafactor(p), ""),
    (lambda p: O.Muon(p), ""),
    (lambda p: O.SparseAdam(p), ""),
    (lambda p: O.Adam(p, differentiable=True), "it is differentiable"),
    (lambda p: Lucky(p, lr=0.1), "Lucky has a step of its own, which may keep what we do not see"),
]


@pytest.mark.parametrize("make, reason", REFUSED)
def test_what_is_not_elementwise_is_left_to_torch_with_the_reason(make: Any, reason: str) -> None:
    parameter = nn.Parameter(torch.randn(4, 6))
    optimizer, ours = make([parameter]), Ours()
    parameter.grad = torch.randn(4, 6)
    if not isinstance(optimizer, O.LBFGS | O.SparseAdam) and not optimizer.defaults.get("differentiable"):
        optimizer.step()
    before = parameter.detach().clone()
    for _ in range(4):
        assert ours.updates.optimizer_step(optimizer) is None
    assert torch.equal(parameter, before)
    assert len(ours.reasons) == 1 and ours.reasons[0] and (not reason or ours.reasons[0] == reason)


def test_sparse_gradients_are_left_to_torch() -> None:
    table = nn.Embedding(10, 3, sparse=True)
    optimizer, ours = O.SGD(table.parameters(), lr=0.1), Ours()
    table(torch.tensor([1, 2])).sum().backward()
    before = table.weight.detach().clone()
    ours.step(optimizer)
    assert ours.eager == 1 and torch.equal(table.weight[1], before[1] - 0.1)


def test_a_scaler_that_hands_over_its_scale_is_left_to_torch() -> None:
    parameter = nn.Parameter(torch.randn(4))
    optimizer, ours = O.AdamW([parameter], fused=True), Ours()
    parameter.grad = torch.randn(4)
    ours.step(optimizer)
    optimizer.grad_scale = torch.tensor(2.0)  # type: ignore[attr-defined]
    assert ours.updates.optimizer_step(optimizer) is None
    del optimizer.grad_scale  # type: ignore[attr-defined]
    assert ours.updates.optimizer_step(optimizer) is not None


def test_autograd_knows_that_parameters_have_changed() -> None:
    weight = nn.Parameter(torch.randn(4))
    optimizer, ours = O.SGD([weight], lr=0.1, momentum=0.9), Ours()
    weight.grad = torch.ones(4)
    optimizer.step()
    loss = (weight * weight).sum()
    ours.step(optimizer)
    assert ours.compiled == 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_asking_touches_nothing() -> None:
    parameters = make_parameters(torch.float32)
    optimizer, ours = O.NAdam(parameters, lr=0.1), Ours()
    set_gradients(parameters, 0)
    optimizer.step()
    before = [t.clone() for t in state_of(parameters, optimizer)]
    keys = sorted(optimizer.__dict__)
    group = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
    assert ours.updates.optimizer_step(optimizer) is not None
    assert all(torch.equal(a, b) for a, b in zip(before, state_of(parameters, optimizer), strict=True))
    assert sorted(optimizer.__dict__) == keys
    assert {k: v for k, v in optimizer.param_groups[0].items() if k != "params"} == group


def test_the_account_of_an_update() -> None:
    parameters = make_parameters(torch.float32, ((1000, 1000), (500,)))
    optimizer, ours = O.AdamW(parameters, lr=0.1), Ours()
    for k in range(3):
        set_gradients(parameters, k)
        ours.step(optimizer)
    (event,) = ours.backend.events
    assert event.compiled is not None and event.tensors == 2 and event.calls == 2
    priced = price(event.compiled.steps, ENGINE.device(torch.device("cpu")), event.phase, 1.0, event.tensors)
    (kernel,) = priced.kernels
    assert kernel.work is not None and kernel.phase == "optimizer"
    # Reads of parameter, gradient and two moments, writes of parameter and two moments: 7 x 4 bytes, and 3 numbers.
    assert kernel.work.bytes == 28 * 1_000_500 + 3 * 8
    eager = [k.work for k in priced.eager]
    # mul_ 8, lerp_ 12, mul_ 8, addcmul_ 12, sqrt 8, div 8, add_ 8, addcdiv_ 16 bytes an element; three numbers.
    assert sum(w.bytes for w in eager if w) == 80 * 1_000_500 + 3 * 8
    assert sum(w.launches for w in eager if w) == 8 * 2
