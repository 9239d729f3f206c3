"""Compiled against eager: `check(fn, *args)` holds outputs, arguments, gradients, strides and flags together."""

from collections.abc import Callable
from typing import Any

import torch

from ridgeline.base.knobs import Knobs
from ridgeline.top.backend import Backend
from ridgeline.top.engine import Engine

ENGINE = Engine(Knobs(strict=True))
LOOSE = Engine(Knobs())


def compiled(fn: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    """Strict: what the engine cannot do raises, so that no test passes by falling back to eager."""
    return torch.compile(fn, backend=Backend(ENGINE, ENGINE.knobs), **how)


def loosely(fn: Callable[..., Any], **how: Any) -> tuple[Callable[..., Any], Backend]:
    """For programs with operators that have no row: torch runs those, and no graph as a whole."""
    backend = Backend(LOOSE, LOOSE.knobs)
    return torch.compile(fn, backend=backend, **how), backend


def same(got: Any, want: Any, tolerance: float | None = None) -> None:
    """Equal structure, types, values, strides, flags."""
    assert type(got) is type(want)
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)
        assert got.requires_grad == want.requires_grad
        assert got.is_inference() == want.is_inference()
        assert strides(got) == strides(want)
    elif isinstance(want, dict):
        assert list(got) == list(want)
        for key in want:
            same(got[key], want[key], tolerance)
    elif isinstance(want, list | tuple):
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            same(g, w, tolerance)
    else:
        assert got == want


def strides(t: torch.Tensor) -> list[int]:
    """Those that say where an element lies."""
    return [s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1] if t.numel() else []


def copied(value: Any) -> Any:
    """A copy of arguments with the same strides, sharing what they share."""
    if isinstance(value, torch.Tensor):
        out = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype) if value.numel() else value.clone()
        extent = value.untyped_storage().nbytes() // value.itemsize
        if value.numel():
            flat = torch.empty(0, dtype=value.dtype).set_(value.detach().untyped_storage(), 0, (extent,), (1,)).clone()
            out = torch.empty(0, dtype=value.dtype).set_(
                flat.untyped_storage(), value.storage_offset(), value.shape, value.stride()
            )
        return out.requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return {k: copied(v) for k, v in value.items()}
    return type(value)(map(copied, value)) if isinstance(value, list | tuple) else value


def check(fn: Callable[..., Any], *args: Any, tolerance: float | None = None, **how: Any) -> Any:
    """The compiled function gives what eager gives and leaves its arguments as eager does; gradients likewise."""
    run = compiled(fn, **how)
    for _ in range(2):
        ours, theirs = copied(args), copied(args)
        got, want = run(*ours), fn(*theirs)
        same(got, want, tolerance)
        same(ours, theirs, tolerance)
        gradients(got, want, ours, theirs, tolerance)
    return run


def gradients(got: Any, want: Any, ours: Any, theirs: Any, tolerance: float | None) -> None:
    tops = [[t for t in flat(o) if t.requires_grad] for o in (got, want)]
    leaves = [[t for t in flat(a) if t.requires_grad and t.is_leaf] for a in (ours, theirs)]
    if not tops[1] or not leaves[1]:
        return
    made = [
        torch.autograd.grad([(o * torch.linspace(-1, 1, o.numel()).view(o.shape).to(o)).sum() for o in top], leaf)
        for top, leaf in zip(tops, leaves, strict=True)
    ]
    for g, w in zip(*made, strict=True):
        torch.testing.assert_close(g, w, rtol=tolerance, atol=tolerance)


def flat(value: Any) -> list[torch.Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]
