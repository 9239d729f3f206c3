"""The stages in order: an FX graph becomes a function. This page is the contents of the engine.

convert    FX graph of ATen operators   -> operator graph
walk       operator graph x device      -> plan, with every move
steps      plan                         -> kernels and calls in order
schedule   kernel x machine             -> loop program
build      loop programs                -> machine code
executable steps + machine code         -> a function
"""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.fx import GraphModule

from ridgeline.base.errors import KernelsFailed, NoCompiler
from ridgeline.base.knobs import Knobs
from ridgeline.capture.convert import convert
from ridgeline.fuse.build import steps
from ridgeline.fuse.walk import Plan, walk
from ridgeline.ir.steps import KernelStep, Steps
from ridgeline.runtime.execute import Executable, executable
from ridgeline.top.engine import Engine
from ridgeline.top.fallback import warn_once
from ridgeline.top.look import Look

# Frames for a chain of as many values as a kernel may hold, each several calls deep.
DEPTH = 10_000


@dataclass(frozen=True)
class Compiled:
    """All that compiling one graph produced."""

    plan: Plan
    steps: Steps
    run: Executable
    seconds: Mapping[str, float]  # by stage


def device_of(module: GraphModule) -> torch.device:
    """Where a graph runs: the device of its first tensor, accelerators before the CPU."""
    fakes = [n.meta.get("val") for n in module.graph.nodes]
    devices = [t.device for t in fakes if isinstance(t, torch.Tensor)]
    return next((d for d in devices if d.type != "cpu"), devices[0] if devices else torch.device("cpu"))


def compile_graph(module: GraphModule, name: str, engine: Engine, knobs: Knobs, backward: bool = False) -> Compiled:
    """Runs every stage; what a target refuses is left to torch and the rest compiled again.

    Raises what a stage raises; `top.fallback` decides what then.
    """
    refused: dict[str, str] = {}
    while True:
        try:
            with _deep():
                return _stages(module, name, engine, knobs, backward, refused)
        except _RefusedError as error:
            if knobs.strict:
                raise KernelsFailed(error.reasons) from error
            refused |= error.reasons
        except NoCompiler as missing:
            if knobs.strict:
                raise
            warn_once(str(missing))
            refused |= {n.name: str(missing) for n in module.graph.nodes if n.op == "call_function"}


class _RefusedError(Exception):
    """Operators, by node name, whose kernels failed."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__(str(reasons))
        self.reasons = reasons


def _stages(
    module: GraphModule, name: str, engine: Engine, knobs: Knobs, backward: bool, refused: Mapping[str, str]
) -> Compiled:
    clock = _Clock()
    where = device_of(module)
    look = Look(name, knobs)
    look.captured(module)
    graph = convert(module, name, backward, knobs.strict, refused)
    look.operators(graph)
    clock.mark("convert")
    plan = walk(graph, engine.device(where), knobs.fuel)
    look.moves(plan.moves)
    clock.mark("walk")
    ordered = steps(plan)
    look.kernels(ordered, engine, where)
    clock.mark("steps")
    kernels = {s.kernel.name: s.kernel for s in ordered.steps if isinstance(s, KernelStep)}
    try:
        launches = engine.build(list(kernels.values()), where)
    except KernelsFailed as error:
        failed = {
            node.name: error.reasons[step.kernel.name]
            for step in ordered.steps
            if isinstance(step, KernelStep) and step.kernel.name in error.reasons
            for node in step.nodes
        }
        raise _RefusedError(failed) from error
    clock.mark("build")
    run = executable(ordered, launches, where)
    clock.mark("executable")
    return Compiled(plan, ordered, run, clock.seconds)


@contextmanager
def _deep() -> Iterator[None]:
    """Lets values be as deep as a kernel may hold: they are walked by functions that call themselves."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, DEPTH))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.last = time.perf_counter()

    def mark(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = now - self.last
        self.last = now
