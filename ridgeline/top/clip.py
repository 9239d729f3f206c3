"""Gradient clipping: one pass over all gradients for their norm, one more only when they must be scaled.

`Clips(backend)` is asked for a function that does what `clip_grad_norm_` or `clip_grad_value_` would do to a list of
gradients. Each pass is a kernel from the stages that every graph goes through, swept over all gradients at once
(runtime/optimizer.py), and an event of the backend in phase "optimizer". Where that cannot be done - several types or
devices, a target that cannot sweep, gradients that are sparse or share memory - torch does it, by one launch already
on a GPU.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import increment_version
from torch.nn import Parameter

from ridgeline.base.errors import LeftToTorch
from ridgeline.capture.optimizer import FLOATS, is_dense, trace
from ridgeline.capture.root import current_root
from ridgeline.ir.steps import KernelStep
from ridgeline.runtime.optimizer import Batch, NumberTable, UpdateKernel, kernels_of
from ridgeline.top.backend import Backend, Event
from ridgeline.top.fallback import attempt
from ridgeline.top.stages import compile_graph

MOST_BATCHES = 8
Arguments = Mapping[str, Any]


@dataclass(eq=False)
class _Pass:
    """A kernel over one tensor with what it takes beside: a number, or a place for a result per piece."""

    event: Event
    kernel: UpdateKernel
    batches: dict[tuple[int, ...], Batch] = field(default_factory=dict)

    def run(self, gradients: Sequence[torch.Tensor], beside: int | None = None) -> None:
        counts = tuple([g.numel() for g in gradients])
        batch = self.batches.get(counts)
        if batch is None:
            if len(self.batches) >= MOST_BATCHES:
                self.batches.clear()
            batch = self.batches[counts] = Batch([self.kernel], counts)
        batch.point(0, [g.data_ptr() for g in gradients])
        if beside is not None:
            batch.point(1, [beside] * len(counts))
        event = self.event
        event.calls += 1
        times = None
        if event.timings is not None:
            times = [0.0]
            event.timings.append(times)
        batch.run(times)


class Clips:
    """Clipping for one backend; passes are compiled once for a type of number."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._passes: dict[tuple[Any, ...], _Pass | None] = {}
        self._job: Callable[[], Any] = _nothing
        self._call: Callable[[], Any] = self._function()

    def _function(self) -> Callable[[], Any]:
        """A function for the caller: a new one whenever something was compiled."""

        def clip() -> Any:
            return self._job()

        return clip

    def clip(
        self, function: Callable[..., Any], gradients: Sequence[torch.Tensor], args: Sequence[Any], kwargs: Arguments
    ) -> Callable[[], Any] | None:
        """A function that does what `function(parameters, *args, **kwargs)` would to these gradients of theirs.

        Good for one call; a new one when something was compiled; None when torch has to do it.
        """
        if not gradients or not _alike(gradients):
            return None
        bound = inspect.signature(function).bind(None, *args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        if function.__name__ == "clip_grad_norm_":
            order = float(given["norm_type"])
            # A count of norms, or a greatest among none: neither is what all elements together would give.
            if order == 0 or ((math.isinf(order) or order < 0) and not all(g.numel() for g in gradients)):
                return None
            job = self._clip_norm(gradients, order, given)
        else:
            job = self._clip_value(gradients, float(given["clip_value"]))
        if job is None:
            return None
        self._job = job
        return self._call

    def _clip_norm(self, gradients: Sequence[torch.Tensor], order: float, given: Arguments) -> Callable[[], Any] | None:
        dtype = gradients[0].dtype
        wide = torch.float64 if dtype is torch.float64 else torch.float32

        def norm(x: torch.Tensor, out: torch.Tensor) -> tuple[()]:
            out.copy_(torch.linalg.vector_norm(x, order, dtype=wide))
            return ()

        def scale(x: torch.Tensor, by: torch.Tensor) -> tuple[()]:
            x.mul_(by)
            return ()

        folding = self._pass("norm", norm, dtype, wide, order, gradients)
        scaling = self._pass("scale", scale, dtype, torch.float64, None, gradients)
        if folding is None or scaling is None:
            return None
        return partial(_clip_norm, folding, scaling, gradients, order, given)

    def _clip_value(self, gradients: Sequence[torch.Tensor], limit: float) -> Callable[[], Any] | None:
        def clamp(x: torch.Tensor) -> tuple[()]:
            x.clamp_(-limit, limit)
            return ()

        clamping = self._pass("value", clamp, gradients[0].dtype, None, limit, gradients)
        return None if clamping is None else partial(_clip_value, clamping, gradients)

    def _pass(
        self,
        name: str,
        function: Callable[..., Any],
        dtype: torch.dtype,
        beside: torch.dtype | None,
        constant: float | None,
        gradients: Sequence[torch.Tensor],
    ) -> _Pass | None:
        """The compiled pass, made when first met; None when it cannot be one sweep."""
        key = (name, dtype, constant)
        if key not in self._passes:

            def work() -> _Pass | None:
                return self._compile(name, function, dtype, beside, gradients)

            self._passes[key] = attempt(work, _no_pass, self.backend.knobs.strict)
        return self._passes[key]

    def _compile(
        self,
        name: str,
        function: Callable[..., Any],
        dtype: torch.dtype,
        beside: torch.dtype | None,
        gradients: Sequence[torch.Tensor],
    ) -> _Pass | None:
        device, backend = gradients[0].device, self.backend
        shapes = [(1, dtype), *([] if beside is None else [(0, beside)])]
        module = trace(function, shapes, device, sum(g.numel() for g in gradients))
        title = f"clip_grad_{name}{len(backend.events)}"
        event = Event(title, "optimizer", current_root(), module, None, None, tensors=len(gradients))
        compiled = event.compiled = compile_graph(module, title, backend.engine, backend.knobs)
        event.run = compiled.run
        event.timings = [] if backend.timed else None
        kernels = [s.kernel for s in compiled.steps.steps if isinstance(s, KernelStep)]
        launches = backend.engine.build(kernels, device)
        into = compiled.steps.graph.inputs[1] if name == "norm" else None
        try:
            found, _ = kernels_of(compiled.steps, launches, into)
        except LeftToTorch:
            return None
        if len(found) != 1 or not hasattr(found[0].launch, "sweep"):
            return None
        backend.events.append(event)
        self._call = self._function()
        return _Pass(event, found[0])


def _nothing() -> None:
    """What a function does that was never asked for."""


def _no_pass(reason: str) -> None:
    """What a pass that could not be compiled is."""


def _alike(gradients: Sequence[torch.Tensor]) -> bool:
    """Whether they are plain dense tensors of one type and device, none sharing memory with another."""
    first = gradients[0]
    if first.dtype not in FLOATS or first.device.type != "cpu":
        return False
    for g in gradients:
        plain = type(g) in (torch.Tensor, Parameter) and g.layout is torch.strided
        if not plain or g.dtype is not first.dtype or g.device != first.device or not is_dense(g):
            return False
    starts = [g.data_ptr() for g in gradients if g.numel()]
    return len(set(starts)) == len(starts)


def _clip_norm(
    folding: _Pass, scaling: _Pass, gradients: Sequence[torch.Tensor], order: float, given: Arguments
) -> torch.Tensor:
    """`clip_grad_norm_` as in torch: the norm of the norms, and gradients scaled by at most 1."""
    dtype = gradients[0].dtype
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    with torch.no_grad():
        parts = torch.empty(folding.kernel.pieces([g.numel() for g in gradients]), dtype=wide)
        folding.run(gradients, parts.data_ptr())
        total: torch.Tensor = torch.linalg.vector_norm(parts, order).to(dtype)
        if given["error_if_nonfinite"] and not bool(total.isfinite()):
            raise RuntimeError(
                f"The total norm of order {order} for gradients from "
                "`parameters` is non-finite, so it cannot be clipped. To disable "
                "this error and scale the gradients by the non-finite norm anyway, "
                "set `error_if_nonfinite=False`"
            )
        by = torch.clamp(float(given["max_norm"]) / (total + 1e-6), max=1.0).item()
        if by != 1.0:  # times one changes nothing
            table = NumberTable(1, 1, total.device)
            table.write([[by]])
            scaling.run(gradients, table.address)
        increment_version(gradients)
    return total


def _clip_value(clamping: _Pass, gradients: Sequence[torch.Tensor]) -> None:
    """`clip_grad_value_` as in torch."""
    clamping.run(gradients)
    increment_version(gradients)
