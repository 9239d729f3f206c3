"""Gradient clipping in one pass over all gradients, against torch's own."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from ridgeline.base.knobs import Knobs
from ridgeline.top.backend import Backend
from ridgeline.top.clip import Clips
from ridgeline.top.engine import Engine

ENGINE = Engine(Knobs())
# Ragged, of no dimensions, empty, longer than several pieces of a fold, a single element.
SHAPES: Sequence[tuple[int, ...]] = ((3, 5), (), (0, 4), (301, 300), (1,), (200_003,))
# A sum of 300,000 terms in fp32 may be off by that much in either way of adding up.
TOLERANCE = {torch.float64: 1e-13, torch.float32: 3e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def make_parameters(dtype: torch.dtype, shapes: Sequence[tuple[int, ...]] = SHAPES) -> list[nn.Parameter]:
    draw = torch.Generator().manual_seed(0)
    out = [nn.Parameter(torch.zeros(s, dtype=dtype)) for s in shapes]
    for p in out:
        p.grad = torch.randn(p.shape, generator=draw, dtype=torch.float64).to(dtype)
    return out


def clip(
    clips: Clips, function: Callable[..., Any], parameters: Sequence[nn.Parameter], *args: Any, **kwargs: Any
) -> Any:
    """What our function returns; fails when there is none."""
    work = clips.clip(function, [p.grad for p in parameters if p.grad is not None], args, kwargs)
    assert work is not None
    return work()


@pytest.fixture
def clips() -> Clips:
    return Clips(Backend(ENGINE, ENGINE.knobs))


def same_gradients(a: Sequence[nn.Parameter], b: Sequence[nn.Parameter], tolerance: float) -> None:
    for x, y in zip(a, b, strict=True):
        assert x.grad is not None and y.grad is not None
        torch.testing.assert_close(x.grad, y.grad, rtol=tolerance, atol=0.0, equal_nan=True)


@pytest.mark.parametrize(
    "dtype, order",
    [(torch.float32, 2.0), (torch.float32, 1), (torch.float32, 3.0), (torch.float64, 2.0), (torch.bfloat16, 2.0)],
)
@pytest.mark.parametrize("most", [1.0, 1e9])
def test_norms(clips: Clips, dtype: torch.dtype, order: float, most: float) -> None:
    eager, mine = make_parameters(dtype), make_parameters(dtype)
    expected, found = clip_grad_norm_(eager, most, order), clip(clips, clip_grad_norm_, mine, most, order)
    exact = float(clip_grad_norm_(make_parameters(torch.float64), most, order))
    assert found.dtype is dtype and found.dim() == 0 and not found.requires_grad
    own = abs(float(expected) - exact) / exact
    assert abs(float(found) - exact) / exact <= 3 * own + TOLERANCE[dtype]
    same_gradients(mine, eager, 2 * own + TOLERANCE[dtype])
    # Only read when nothing has to be scaled.
    assert [e.calls for e in clips.backend.events] == ([1, 1] if most == 1.0 else [1, 0])


@pytest.mark.parametrize("order", [math.inf, "inf", -math.inf])
def test_greatest_and_least_are_exact(clips: Clips, order: Any) -> None:
    shapes = [s for s in SHAPES if 0 not in s]
    eager, mine = make_parameters(torch.float32, shapes), make_parameters(torch.float32, shapes)
    expected, found = clip_grad_norm_(eager, 0.5, order), clip(clips, clip_grad_norm_, mine, 0.5, norm_type=order)
    assert torch.equal(found, expected)
    same_gradients(mine, eager, 0.0)


def test_norms_that_all_elements_together_do_not_have_are_left_to_torch(clips: Clips) -> None:
    gradients = [p.grad for p in make_parameters(torch.float32)]
    assert clips.clip(clip_grad_norm_, gradients, (1.0, 0), {}) is None  # counts the tensors that are not zero
    assert clips.clip(clip_grad_norm_, gradients, (1.0, math.inf), {}) is None  # no greatest among no elements


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_not_finite(clips: Clips, wrong: float) -> None:
    eager, mine = make_parameters(torch.float32), make_parameters(torch.float32)
    for parameters in (eager, mine):
        parameters[0].grad[1, 2] = wrong  # type: ignore[index]
    with pytest.raises(RuntimeError) as ours:
        clip(clips, clip_grad_norm_, mine, 1.0, error_if_nonfinite=True)
    with pytest.raises(RuntimeError) as theirs:
        clip_grad_norm_(eager, 1.0, error_if_nonfinite=True)
    assert str(ours.value) == str(theirs.value)
    same_gradients(mine, eager, 0.0)
    torch.testing.assert_close(clip(clips, clip_grad_norm_, mine, 1.0), clip_grad_norm_(eager, 1.0), equal_nan=True)
    same_gradients(mine, eager, 0.0)


def test_values_are_exact_and_nan_stays(clips: Clips) -> None:
    eager, mine = make_parameters(torch.float32), make_parameters(torch.float32)
    for parameters in (eager, mine):
        parameters[0].grad[1, 2] = math.nan  # type: ignore[index]
    clip_grad_value_(eager, 0.3)
    assert clip(clips, clip_grad_value_, mine, 0.3) is None
    same_gradients(mine, eager, 0.0)


def test_other_orders_of_dimensions_are_one_memory_all_the_same(clips: Clips) -> None:
    made = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)
    eager, mine = nn.Parameter(torch.zeros(4, 3, 5, 5)), nn.Parameter(torch.zeros(4, 3, 5, 5))
    eager.grad, mine.grad = made.clone(), made.clone()
    torch.testing.assert_close(clip(clips, clip_grad_norm_, [mine], 0.1), clip_grad_norm_([eager], 0.1))
    same_gradients([mine], [eager], 1e-6)


def test_gradients_that_torch_must_clip(clips: Clips) -> None:
    plain = torch.randn(6)
    for gradients in (
        [plain, plain],  # scaled twice
        [plain, torch.randn(3, dtype=torch.float64)],
        [torch.randn(6, 4)[:, ::2]],
        [torch.randn(4, dtype=torch.complex64)],
        [torch.eye(3).to_sparse()],
        [],
    ):
        assert clips.clip(clip_grad_norm_, gradients, (1.0,), {}) is None
    assert not clips.backend.events


def test_a_function_is_new_only_when_something_was_compiled(clips: Clips) -> None:
    functions = []
    for most in (1.0, 2.0, 1e9):
        gradients = [p.grad for p in make_parameters(torch.float32)]
        functions.append(clips.clip(clip_grad_norm_, gradients, (most,), {}))
    assert len(set(functions)) == 1
    gradients = [p.grad for p in make_parameters(torch.float64)]
    assert clips.clip(clip_grad_norm_, gradients, (1.0,), {}) not in functions


def test_autograd_knows_that_gradients_have_changed(clips: Clips) -> None:
    parameters = make_parameters(torch.float32, ((4,),))
    gradient = parameters[0].grad
    assert gradient is not None
    before = gradient._version
    clip(clips, clip_grad_norm_, parameters, 0.1)
    assert gradient._version > before
