"""Runs a module and the loss that alone consumes its output as one root.

Takes a module's call for which `joins.py` has a proof: in a compiled step it is put off, a `Deferred` stands for its
output, and the loss function's call then runs both in one graph. In eager steps, and without a proof, the two run as
they stand. Proves nothing itself.
"""

import functools
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import torch

from ridgeline.base.errors import RidgelineError
from ridgeline.capture.joins import SIZES, VIEWS, find_consumer, find_join, is_plain_loss
from ridgeline.capture.runner import Call, Runner
from ridgeline.capture.schedule import Mode, Signature

Views = tuple[tuple[str, tuple, dict[str, Any]], ...]


class Deferred:
    """Stands for the output of a module until the loss is called. Views of it are remembered, anything else ends it.

    `prediction` has no data but the shape that the same inputs gave before, if they were met before.
    """

    def __init__(self, pending: "_Pending", prediction: torch.Tensor | None, views: Views = ()) -> None:
        self._pending = pending
        self._prediction = prediction
        self._views = views

    def __getattr__(self, name: str) -> Any:
        if self._prediction is not None and name in SIZES:
            self._pending.shape_was_read = True
            return getattr(self._prediction, name)
        if name not in VIEWS:
            return getattr(self.materialize(), name)

        def view(*args: Any, **kwargs: Any) -> "Deferred":
            known = self._prediction
            prediction = None if known is None else getattr(known, name)(*args, **kwargs)
            return Deferred(self._pending, prediction, (*self._views, (name, args, kwargs)))

        return view

    def materialize(self) -> torch.Tensor:
        """The output itself, for whoever reads it although nobody should."""
        return _apply_views(self._pending.output(), self._views)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        return func(*map(_real, args), **{name: _real(value) for name, value in (kwargs or {}).items()})


class _Pending:
    """The call of a module that is put off: run by the loss, or by the first who needs the output."""

    def __init__(self, runner: Runner, call: Call, shape: torch.Size | None) -> None:
        self.call: Call | None = call
        self.shape = shape
        self.shape_was_read = False
        self._runner = runner
        self._output: torch.Tensor | None = None

    def output(self) -> torch.Tensor:
        if self._output is None:
            if self.call is None:
                raise RidgelineError("a module's output is read after its loss has consumed it, which was ruled out.")
            self._output = self._runner.run(self.call)
            self.call = None
        return self._output


@dataclass(frozen=True, slots=True)
class _Output:
    """What a module gave for inputs of one signature."""

    signature: Signature
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


class Joiner:
    """Puts module calls off and runs them with their loss. `losses` are the stand-ins of the loss functions."""

    def __init__(self, runner: Runner, losses: set[int]) -> None:
        self._runner = runner
        self._losses = losses
        self._outputs: dict[int, _Output] = {}

    def call_module(self, call: Call, frame: FrameType) -> Any:
        """Run a module's call, or put it off."""
        join = find_join(frame) if call.waits_for_optimizer and self._runner.steps.training else None
        consumer = None if join is None else find_consumer(join, frame)
        if consumer is None or not (id(consumer) in self._losses or is_plain_loss(consumer)):
            return self._runner.run(call)
        signature = call.sign()
        if self._runner.mode(call) is Mode.COMPILED:
            known = self._outputs.get(call.key)
            if known is None or known.signature != signature:
                return Deferred(_Pending(self._runner, call, None), None)
            prediction = torch.empty_strided(known.shape, known.stride, dtype=known.dtype, device="meta")
            return Deferred(_Pending(self._runner, call, known.shape), prediction)
        output = self._runner.run(call)
        if type(output) is torch.Tensor:
            self._outputs[call.key] = _Output(signature, output.shape, output.stride(), output.dtype)
        return output

    def call_loss(self, loss: Any, again: Any, name: str, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Call a loss whose first argument is deferred: both in one graph.

        `again` is the stand-in that was called, for when there is no output left to defer.
        """
        deferred: Deferred = args[0]
        rest = args[1:]
        pending, call = deferred._pending, deferred._pending.call
        if call is None or any(isinstance(value, Deferred) for value in (*rest, *kwargs.values())):
            return again(*map(_real, args), **{key: _real(value) for key, value in kwargs.items()})
        inputs = (loss, call.args, call.kwargs, deferred._views, rest, kwargs)
        joined = replace(
            call,
            root=replace(call.root, name=f"{call.root.name} + {name}"),
            args=inputs,
            kwargs={},
            template=_module_and_loss,
            eager=functools.partial(_module_and_loss, call.target, *inputs),
            joined=name,
        )
        pending.call = None
        result, shape = self._runner.run(joined)
        if pending.shape_was_read and shape != pending.shape:
            raise RidgelineError(f"{call.root.name} gave {shape} where the same inputs gave {pending.shape} before.")
        return result


def _module_and_loss(
    module: Any, loss: Any, args: tuple, kwargs: dict[str, Any], views: Views, rest: tuple, options: dict[str, Any]
) -> Any:
    output = module(*args, **kwargs)
    return loss(_apply_views(output, views), *rest, **options), output.shape


def _apply_views(output: torch.Tensor, views: Views) -> torch.Tensor:
    for name, args, kwargs in views:
        output = getattr(output, name)(*args, **kwargs)
    return output


def _real(value: Any) -> Any:
    return value.materialize() if isinstance(value, Deferred) else value
