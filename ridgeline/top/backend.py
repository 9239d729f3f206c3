"""The torch.compile backend: `torch.compile(model, backend="ridgeline", options={...})`.

TorchDynamo hands over an FX graph; AOTAutograd traces its joint forward and backward without decompositions; our
partitioner cuts it, and each side becomes one function. What the engine cannot do runs by torch, with the reason kept
in the event that is recorded for every graph.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

from ridgeline.base.knobs import Knobs, knobs_from
from ridgeline.base.records import MoveAccount
from ridgeline.capture.partition import partition
from ridgeline.capture.root import Root, current_root
from ridgeline.top.engine import Engine
from ridgeline.top.fallback import attempt
from ridgeline.top.look import prepare
from ridgeline.top.stages import Compiled, compile_graph


@dataclass
class Event:
    """One graph that the backend was asked to compile, and what came of it."""

    name: str
    phase: str  # "forward" | "backward" | "inference"
    root: Root | None
    module: GraphModule
    compiled: Compiled | None
    reason: str | None  # why it runs by torch
    moves: Sequence[MoveAccount] = ()  # of the partitioner
    calls: int = 0
    tensors: int = 1  # that one launch covers, and eager mode takes one by one
    timings: list[list[float]] | None = None  # seconds of each step, one list a call, when it is to be timed
    run: Callable[[list[Any]], Any] = field(default=lambda args: args)

    def boxed(self) -> Callable[[list[Any]], Any]:
        """The function AOTAutograd gets: it takes a list and empties it, so inputs can be freed early."""

        def call(args: list[Any]) -> Any:
            self.calls += 1
            if self.timings is None or self.compiled is None:
                return self.run(args)
            times = [0.0] * len(self.compiled.steps.steps)
            self.timings.append(times)
            return self.compiled.run.timed(args, times)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call


class Backend:
    """A backend with an engine and knobs of its own. `events` lists every graph it compiled, in order."""

    def __init__(self, engine: Engine, knobs: Knobs, timed: bool = False) -> None:
        prepare(knobs)
        self.engine, self.knobs, self.timed = engine, knobs, timed
        self.events: list[Event] = []
        self.names = count()

    def __call__(self, module: GraphModule, example_inputs: Sequence[Any]) -> Any:
        root = current_root()
        name = f"graph{next(self.names)}"
        moves: list[MoveAccount] = []

        def compiler(phase: str, inner: GraphModule, _: Sequence[Any]) -> Any:
            return self.compile(inner, name, phase, root, moves)

        def partitioner(joint: GraphModule, _: Sequence[Any], *, num_fwd_outputs: int, **__: Any) -> Any:
            return partition(joint, num_fwd_outputs, moves.extend)

        through_aot = aot_autograd(
            fw_compiler=partial(compiler, "forward"),
            bw_compiler=partial(compiler, "backward"),
            inference_compiler=partial(compiler, "inference"),
            partition_fn=partitioner,
            decompositions={},
            keep_inference_input_mutations=True,
        )
        with _uncollected():
            return through_aot(module, example_inputs)

    def compile(
        self, module: GraphModule, name: str, phase: str, root: Root | None, moves: Sequence[MoveAccount]
    ) -> Callable[[list[Any]], Any]:
        """One side of a graph as a function."""
        event = Event(f"{name}_{phase}", phase, root, module, None, None, moves)
        event.timings = [] if self.timed else None

        def work() -> Callable[[list[Any]], Any]:
            event.compiled = compile_graph(module, event.name, self.engine, self.knobs, backward=phase == "backward")
            return event.compiled.run

        def eager(reason: str) -> Callable[[list[Any]], Any]:
            event.compiled, event.reason = None, reason
            run: Callable[[list[Any]], Any] = make_boxed_func(module.forward)
            return run

        with _uncollected():
            event.run = attempt(work, eager, self.knobs.strict)
        self.events.append(event)
        return event.boxed()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keeps the garbage collector from going over every live object again and again while a graph is compiled.

    A tenth of the compile time of a 12-layer transformer, and more in a process of many objects (2026-12-01).
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def ridgeline(module: GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
    """Entry point for `backend="ridgeline"`. `options` are the knobs by name; `mode` is accepted and ignored."""
    kwargs.pop("mode", None)
    knobs = knobs_from(kwargs.pop("options", None) or {})
    return Backend(Engine(knobs), knobs)(module, example_inputs)
