"""Optimizer steps on a GPU: one pair of launches for all tensors, against torch's own steps."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from ridgeline.base.knobs import Knobs
from ridgeline.top.backend import Backend
from ridgeline.top.engine import Engine
from ridgeline.top.optimizer import Updates

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
SHAPES: Sequence[tuple[int, ...]] = ((3, 5), (512,), (), (1024, 7), (0, 4), (301, 300), (1,))
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
O = torch.optim  # noqa: E741
CASES: list[tuple[Any, dict[str, Any]]] = [
    (O.AdamW, {}),
    (O.AdamW, {"capturable": True, "amsgrad": True}),
    (O.AdamW, {"capturable": True, "lr": 0.01}),
    (O.SGD, {"momentum": 0.9}),
    (O.RAdam, {}),
    (O.RAdam, {"capturable": True}),
    (O.NAdam, {"capturable": True}),
    (O.ASGD, {"capturable": True}),
    (O.Rprop, {"capturable": True}),
    (O.Adamax, {"capturable": True}),
    (O.Adagrad, {}),
    (O.Adadelta, {"capturable": True}),
    (O.RMSprop, {"capturable": True}),
]


def make_parameters(dtype: torch.dtype, shapes: Sequence[tuple[int, ...]] = SHAPES) -> list[nn.Parameter]:
    draw = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(s, generator=draw).to("cuda", dtype)) for s in shapes]


def train(
    kind: Any, options: dict[str, Any], dtype: torch.dtype, step: Callable[[O.Optimizer], None]
) -> list[torch.Tensor]:
    """Parameters and state after a few steps with a changing learning rate."""
    parameters = make_parameters(dtype)
    optimizer = kind(parameters, **({"lr": 0.01} | options))
    draw = torch.Generator().manual_seed(1)
    for k in range(8):
        for p in parameters:
            p.grad = torch.randn(p.shape, generator=draw).to("cuda", dtype)
        optimizer.param_groups[0]["lr"] *= 0.5 if k % 2 else 1.0
        step(optimizer)
    return [t.detach() for p in parameters for t in (p, *optimizer.state.get(p, {}).values())]


def error(found: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> float:
    """The largest difference, relative to what is larger than 1."""
    pairs = [(a.double(), b.double()) for a, b in zip(found, exact, strict=True) if a.numel()]
    return max(float(((a - b).abs() / b.abs().clamp_min(1.0)).max()) for a, b in pairs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind, options", CASES)
def test_every_optimizer(kind: Any, options: dict[str, Any], dtype: torch.dtype) -> None:
    backend = Backend(Engine(Knobs()), Knobs())
    updates, taken = Updates(backend), []

    def ours(optimizer: O.Optimizer) -> None:
        update = updates.optimizer_step(optimizer)
        taken.append(update is not None)
        update() if update is not None else optimizer.step()

    def eagerly(optimizer: O.Optimizer) -> None:
        optimizer.step()

    plain = {**options, "foreach": False}
    eager, exact = train(kind, plain, dtype, eagerly), train(kind, plain, torch.float64, eagerly)
    mine = train(kind, options, dtype, ours)
    assert taken.count(False) <= 1, [e.reason for e in backend.events]
    assert error(mine, exact) <= 3 * error(eager, exact) + ROUNDING[dtype]


def test_tensors_at_odd_addresses() -> None:
    flat = torch.randn(5000, device="cuda")
    odd = [nn.Parameter(flat[1:1200]), nn.Parameter(flat[1203:4999])]
    twins = [nn.Parameter(p.detach().clone()) for p in odd]
    backend = Backend(Engine(Knobs()), Knobs())
    optimizer, other = O.SGD(odd, lr=0.1), O.SGD(twins, lr=0.1)
    for p, t in zip(odd, twins, strict=True):
        p.grad, t.grad = torch.ones_like(p), torch.ones_like(t)
    update = Updates(backend).optimizer_step(optimizer)
    assert update is not None
    update(), other.step()
    assert all(torch.equal(p, t) for p, t in zip(odd, twins, strict=True))


def test_fused_steps_are_left_alone() -> None:
    parameters = make_parameters(torch.float32)
    backend = Backend(Engine(Knobs()), Knobs())
    for p in parameters:
        p.grad = torch.ones_like(p)
    assert Updates(backend).optimizer_step(O.AdamW(parameters, fused=True)) is None
    assert [e.reason for e in backend.events] == ["fused=True is one launch already"]
