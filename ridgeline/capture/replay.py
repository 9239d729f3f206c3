"""Compiles and runs, on copies, the roots of a script that ended before any of its steps was compiled.

Remembers of each root call what its inputs looked like: integers as they were, since they may index, of other tensors
only the shape. Gives the seconds of each root on copies of the modules and optimizers, which it leaves untouched, and
on made-up inputs. Draws no number from a stream of the script's.
"""

import copy
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map

from ridgeline.capture.compiling import Streams
from ridgeline.capture.runner import Call, Runner
from ridgeline.capture.steps import RootTime

_RUNS = 3  # after the one that compiles


@dataclass(frozen=True, slots=True)
class _Look:
    """What a tensor of real numbers looked like."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    def make(self) -> torch.Tensor:
        tensor = torch.randn(self.shape, device=self.device).to(self.dtype)
        return tensor.requires_grad_(self.requires_grad)


class Replay:
    """The last call of every root, until one is compiled."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._calls: dict[int, Call] = {}

    def remember(self, call: Call) -> None:
        args, kwargs = tree_map(_look, (call.args, call.kwargs))
        self._calls[call.key] = replace(call, args=args, kwargs=kwargs)

    def run(self) -> tuple[tuple[RootTime, ...], str | None]:
        """The seconds of every root, and why there are none."""
        calls = list(self._calls.values())
        try:
            copies = copy.deepcopy([(call.target, call.args, call.kwargs) for call in calls])
        except (RuntimeError, TypeError, AttributeError) as error:
            return (), f"the script ended before a step was compiled, and cannot be replayed: {error}"
        streams = Streams()
        times = []
        for call, (target, args, kwargs) in zip(calls, copies, strict=True):
            if call.compiled is None or isinstance(target, Optimizer) or call.root.kind == "clip":
                times.append(self._time(replace(call, target=target, args=args, kwargs=kwargs, compiled=None)))
        streams.restore()
        return tuple(time for time in times if time is not None), None

    def _time(self, call: Call) -> RootTime | None:
        if isinstance(call.target, Optimizer):
            call = replace(call, compiled=partial(self._runner.update, call.target, call.target.step))
        elif not isinstance(call.target, nn.Module) and call.root.kind == "function":
            return None  # what the script compiled itself is called only through what it got for it
        seconds = 0.0
        for number in range(1 + _RUNS):
            args, kwargs = tree_map(_make, (call.args, call.kwargs))
            begin = perf_counter()
            again = replace(call, args=args, kwargs=kwargs)
            if call.root.kind == "clip":
                again = replace(again, compiled=partial(self._runner.clip, again, None))
            result = self._runner.run_copy(again)
            _run_backward(result)
            seconds += perf_counter() - begin if number else 0.0
        return RootTime(call.root.name, call.root.kind, _RUNS, seconds)


def _look(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor) or not leaf.dtype.is_floating_point:
        return leaf
    return _Look(leaf.shape, leaf.dtype, leaf.device, leaf.requires_grad)


def _make(leaf: Any) -> Any:
    return leaf.make() if isinstance(leaf, _Look) else leaf


def _run_backward(result: Any) -> None:
    results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if results:
        torch.autograd.backward(results, [torch.ones_like(leaf) for leaf in results])
