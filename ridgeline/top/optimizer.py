"""Optimizer steps: all tensors of an optimizer that are updated alike go through one launch.

`Updates(backend)` is asked at every step for a function that does what `optimizer.step()` would. It asks a stand-in
what the step would do now (capture/standin.py), compiles what it has not met through the stages that every graph goes
through, and applies it to all tensors (runtime/optimizer.py). Each compiled update is an event of the backend in phase
"optimizer", made as if all its tensors were one. What is not elementwise, makes new state, or is not one of
torch.optim's steps is left to torch, with the reason kept.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.autograd.graph import increment_version
from torch.fx import Graph, GraphModule
from torch.optim import Optimizer

from ridgeline.base.errors import LeftToTorch
from ridgeline.capture.optimizer import graph_of, layout_of, same_places
from ridgeline.capture.root import current_root
from ridgeline.capture.standin import Answer, Call, Layout, Standin
from ridgeline.ir.steps import KernelStep
from ridgeline.runtime.optimizer import Batch, NumberTable, Row, UpdateKernel, kernels_of
from ridgeline.top.backend import Backend, Event
from ridgeline.top.fallback import attempt
from ridgeline.top.stages import compile_graph

MOST_WAYS = 16  # compiled updates of one optimizer: beyond this its steps have too little in common
MOST_BATCHES = 32  # sets of tensors whose pointers are kept laid out
PATIENCE = 3  # refusals for one reason before it is taken to be lasting


@dataclass
class UpdateEvent(Event):
    """A compiled update. Its graph has the length of all tensors together; `tensors` says how many there were."""

    tensors: int = 0


@dataclass(eq=False)
class _Compiled:
    """One way through a step, compiled: numbers not in `runtime` are constants of its kernels."""

    event: UpdateEvent
    kernels: tuple[UpdateKernel, ...]
    inputs: tuple[str | int, ...]
    written: frozenset[int]
    constants: Mapping[int, float]
    batches: dict[tuple[int, ...], "_Layout"] = field(default_factory=dict)

    @property
    def runtime(self) -> tuple[int, ...]:
        """The places of the numbers that kernels read."""
        return tuple(k for k in self.inputs if isinstance(k, int))


@dataclass(frozen=True, slots=True)
class _Member:
    """One tensor in a step: its row, its gradient, and what its stand-in answered."""

    row: Row
    gradient: torch.Tensor
    answer: Answer
    shared: Mapping[str, torch.Tensor]


class _Layout:
    """The pointers of one batch, and what they were laid out for."""

    def __init__(self, compiled: _Compiled, members: Sequence[_Member], device: torch.device) -> None:
        rows = [m.row for m in members]
        changing = [
            r.roles[i] for r in rows for k, i in enumerate(compiled.inputs) if k in compiled.written and i in r.roles
        ]
        places = [t.data_ptr() for t in changing if t.numel()]
        if len(set(places)) != len(places) or len({id(r.parameter) for r in rows}) != len(rows):
            raise LeftToTorch("two of its parameters or states share memory", lasting=False)
        self.rows = rows  # so that their numbers stay theirs
        self.changing = [
            *changing,
            *(t for r in rows for k, t in zip(r.keys, r.held, strict=True) if k in r.hosts_keys),
        ]
        self.batch = Batch(compiled.kernels, [r.count for r in rows])
        self.table = NumberTable(len(rows), len(compiled.runtime), device)
        self.which: list[int] = []
        for k, role in enumerate(compiled.inputs):
            if role in rows[0].roles:
                self.batch.point(k, [r.roles[str(role)].data_ptr() for r in rows])


class _Optimizer:
    """All that is kept of one optimizer between steps. Holds its parameters, never the optimizer itself."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.rows: dict[int, tuple[Row, Standin]] = {}
        self.standins: dict[Layout, Standin] = {}
        self.compiled: dict[Call, _Compiled] = {}
        self.known: dict[str, bool] = {}
        self.refused: dict[str, int] = {}
        self.given_up = False
        self.jobs: list[Callable[[], None]] = []
        self.call: Callable[[], None] = self.function()

    def function(self) -> Callable[[], None]:
        """A function for the caller: a new one whenever something was compiled."""

        def update() -> None:
            for job in self.jobs:
                job()
            self.jobs = []

        return update

    # What the step would do.

    def plan(self, optimizer: Optimizer) -> None:
        """Fills `jobs` with all that the step does. Raises LeftToTorch; touches nothing before."""
        if getattr(optimizer, "grad_scale", None) is not None or getattr(optimizer, "found_inf", None) is not None:
            raise LeftToTorch("a GradScaler hands it its scale", lasting=False)
        answers: dict[tuple[Any, ...], Answer] = {}
        work: dict[Call, list[_Member]] = {}
        changes: list[tuple[dict[str, Any], Mapping[str, Any]]] = []
        live = 0
        for place, group in enumerate(optimizer.param_groups):
            if group.get("differentiable"):
                raise LeftToTorch("it is differentiable")
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None:
                    continue
                live += 1
                row, standin = self.row(optimizer, group, parameter, gradient)
                key = (place, standin, row.hosts())
                answer = answers.get(key)
                if answer is None:
                    answer = answers[key] = standin.ask(optimizer, group, key[2])
                    changes.append((group, answer.group))
                shared = {k: group[k] for k in standin.shared} if standin.shared else {}
                work.setdefault(answer.end, []).append(_Member(row, gradient, answer, shared))
        self.jobs = [self.job(optimizer, end, members) for end, members in work.items()]
        self.jobs += [partial(group.update, new) for group, new in changes if new]
        if len(self.rows) > 2 * live:
            keep = {id(p) for group in optimizer.param_groups for p in group["params"]}
            self.rows = {k: v for k, v in self.rows.items() if k in keep}

    def row(
        self, optimizer: Optimizer, group: Mapping[str, Any], parameter: torch.Tensor, gradient: torch.Tensor
    ) -> tuple[Row, Standin]:
        """The row and the stand-in of a parameter; made anew when its tensors are no longer those they were."""
        state: dict[str, Any] | None = optimizer.state.get(parameter)
        found = self.rows.get(id(parameter))
        if (
            found is not None
            and found[0].parameter is parameter
            and found[0].stands(state)
            and gradient.dtype is found[1].layout.gradient
            and type(gradient) is torch.Tensor
            and gradient.layout is torch.strided
            and same_places(parameter, gradient)
        ):
            return found
        if group.get("fused") and parameter.device.type != "cpu":
            raise LeftToTorch("fused=True is one launch already")
        if not parameter.dim() and not self.known:
            self.learn(optimizer)
        layout = layout_of(parameter, gradient, state, group, self.known)
        standin = self.standins.get(layout)
        if standin is None:
            standin = self.standins[layout] = Standin(type(optimizer), layout)
        own: dict[str, Any] = state or {}
        roles = {"parameter": parameter} | {k: own[k] for k, _ in (*layout.full, *layout.cells)}
        made = self.rows[id(parameter)] = Row(parameter, state, roles, [k for k, _ in layout.hosts]), standin
        return made

    def learn(self, optimizer: Optimizer) -> None:
        """Which keys of a state have a parameter's shape, from parameters that have one."""
        for parameter, state in optimizer.state.items():
            if parameter.dim():
                self.known |= {k: v.dim() > 0 for k, v in state.items() if isinstance(v, torch.Tensor)}

    # How it is run.

    def job(self, optimizer: Optimizer, end: Call, members: list[_Member]) -> Callable[[], None]:
        """One compiled update over its tensors, ready to run."""
        answers = list({id(m.answer): m.answer for m in members}.values())
        compiled = self.compiled.get(end)
        if compiled is None or any(a.numbers[k] != c for a in answers for k, c in compiled.constants.items()):
            compiled = self.compiled[end] = self.compile(optimizer, end, members, answers, compiled)
        key = tuple([id(m.row) for m in members])
        layout = compiled.batches.get(key)
        if layout is None:
            if len(compiled.batches) >= MOST_BATCHES:
                compiled.batches.clear()
            layout = compiled.batches[key] = _Layout(compiled, members, members[0].row.parameter.device)
        return partial(_run, compiled, layout, members, answers)

    def compile(
        self,
        optimizer: Optimizer,
        end: Call,
        members: Sequence[_Member],
        answers: Sequence[Answer],
        before: _Compiled | None,
    ) -> _Compiled:
        """Compiles a way through the step; numbers seen to change are no constants."""
        if len(self.compiled) >= MOST_WAYS:
            raise LeftToTorch("its step takes another way every time")
        member, first = members[0], answers[0]
        standin = self.rows[id(member.row.parameter)][1]
        group = next(g for g in optimizer.param_groups if any(p is member.row.parameter for p in g["params"]))
        varying = set(standin.varying(optimizer, group, member.row.hosts(), first))
        varying |= {k for a in answers for k, v in enumerate(a.numbers) if v != first.numbers[k]}
        if before is not None:
            varying |= {*before.runtime, *(k for k, v in before.constants.items() if v != first.numbers[k])}
        inputs = [(g.ref, g.model) for g in standin.inputs]
        device = standin.layout.device
        elements = sum(m.row.count for m in members)
        update = graph_of(end, inputs, device, first.numbers, frozenset(varying), elements)
        name = f"{type(optimizer).__name__}.step{len(self.backend.events)}"
        event = UpdateEvent(name, "optimizer", current_root(), update.module, None, None, tensors=len(members))
        backend = self.backend
        compiled = event.compiled = compile_graph(update.module, name, backend.engine, backend.knobs)
        event.timings = [] if backend.timed else None
        event.run = compiled.run
        kernels = [s.kernel for s in compiled.steps.steps if isinstance(s, KernelStep)]
        found, written = kernels_of(compiled.steps, backend.engine.build(kernels, device))
        if any(update.inputs[k] not in member.row.roles for k in written):
            raise LeftToTorch("its step changes gradients or what belongs to a group")
        backend.events.append(event)
        self.call = self.function()
        constants = {k: v for k, v in enumerate(first.numbers) if k not in update.inputs}
        return _Compiled(event, found, update.inputs, written, constants)


def _run(compiled: _Compiled, layout: _Layout, members: Sequence[_Member], answers: Sequence[Answer]) -> None:
    """One update of all its tensors."""
    batch, table = layout.batch, layout.table
    runtime = compiled.runtime
    table.write([[a.numbers[k] for k in runtime] for a in answers])
    number = {id(a): k for k, a in enumerate(answers)}
    which = [number[id(m.answer)] for m in members]
    if which != layout.which:
        layout.which = which
        for column, slot in enumerate(runtime):
            batch.point(compiled.inputs.index(slot), [table.at(k, column) for k in which])
    for place, role in enumerate(compiled.inputs):
        if role == "gradient":
            batch.point(place, [m.gradient.data_ptr() for m in members])
        elif isinstance(role, str) and role in members[0].shared:
            batch.point(place, [m.shared[role].data_ptr() for m in members])
    event = compiled.event
    event.calls += 1
    times = None
    if event.timings is not None:
        times = [0.0] * len(batch.calls)
        event.timings.append(times)
    batch.run(times, table.device)
    for m in members:
        m.row.put_hosts(m.answer.hosts)
    increment_version(layout.changing)


class Updates:
    """The updates of every optimizer of a program, for one backend."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._kept: WeakKeyDictionary[Optimizer, _Optimizer] = WeakKeyDictionary()

    def optimizer_step(self, optimizer: Optimizer) -> Callable[[], None] | None:
        """A function that does what `optimizer.step()` would do now, None to leave this step to torch.

        The function is good for one call. It is a new one whenever something was compiled.
        """
        kept = self._kept.get(optimizer)
        if kept is None:
            kept = self._kept[optimizer] = _Optimizer(self.backend)
        if kept.given_up:
            return None
        left = attempt(lambda: _try(kept, optimizer), LeftToTorch, self.backend.knobs.strict)
        if left is None:
            return kept.call
        self._note(kept, optimizer, left)
        return None

    def _note(self, kept: _Optimizer, optimizer: Optimizer, left: LeftToTorch) -> None:
        """Keeps the reason why a step is left to torch: as an event, once it is known to last."""
        reason = str(left)
        kept.refused[reason] = kept.refused.get(reason, 0) + 1
        if not left.lasting and kept.refused[reason] < PATIENCE:
            return
        kept.given_up = left.lasting
        if kept.refused[reason] == (1 if left.lasting else PATIENCE):
            name = f"{type(optimizer).__name__}.step"
            empty = GraphModule(torch.nn.Module(), Graph())
            self.backend.events.append(UpdateEvent(name, "optimizer", current_root(), empty, None, reason))


def _try(kept: _Optimizer, optimizer: Optimizer) -> LeftToTorch | None:
    try:
        kept.plan(optimizer)
    except LeftToTorch as left:
        return left
    return None
