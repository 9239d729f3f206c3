"""Optimizer steps: all tensors of an optimizer that are updated alike go through one launch.

`Updates(backend)` is asked at every step for a function that does what `optimizer.step()` would. It asks a stand-in
what the step would do now (capture/standin.py), compiles what it has not met through the stages that every graph goes
through, and applies it to all tensors (runtime/optimizer.py). Each compiled update is an event of the backend in phase
"optimizer"; its graph has the length of all its tensors together. What is not elementwise, makes new state, or is not
one of torch.optim's steps is left to torch, with the reason kept.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.autograd.graph import increment_version
from torch.fx import Graph, GraphModule
from torch.optim import Optimizer

from ridgeline.base.errors import LeftToTorch
from ridgeline.capture.optimizer import graph_of, layout_of
from ridgeline.capture.root import current_root
from ridgeline.capture.standin import Answer, Call, Layout, Standin
from ridgeline.ir.steps import KernelStep
from ridgeline.runtime.live import Row, View, addresses_of, gradients_of
from ridgeline.runtime.optimizer import Batch, NumberTable, UpdateKernel, kernels_of
from ridgeline.top.backend import Backend, Event
from ridgeline.top.fallback import attempt
from ridgeline.top.stages import compile_graph

MOST_WAYS = 16  # compiled updates of one optimizer: beyond this its steps have too little in common
MOST_VIEWS = 16  # patterns of gradients whose pointers are kept laid out
PATIENCE = 3  # refusals for one reason before it is shown


@dataclass(frozen=True, slots=True)
class _Question:
    """What a stand-in is asked for all parameters that have this in common."""

    place: int  # of the group
    standin: Standin
    hosts: tuple[float | int, ...]


@dataclass(eq=False)
class _Compiled:
    """One way through a step, compiled. `constants` are the numbers that its kernels hold, by place."""

    event: Event
    kernels: tuple[UpdateKernel, ...]
    inputs: tuple[str | int, ...]
    written: frozenset[int]
    constants: Mapping[int, float]

    def __post_init__(self) -> None:
        self.runtime = tuple(k for k in self.inputs if isinstance(k, int))

    def fits(self, numbers: Sequence[float]) -> bool:
        """Whether numbers differ from its own only where it reads them."""
        return all(numbers[k] == v for k, v in self.constants.items())


class _Part:
    """The rows of a view that one compiled update applies to, with their pointers laid out."""

    def __init__(self, compiled: _Compiled, view: View, members: Sequence[int], which: Sequence[int]) -> None:
        self.compiled, self.members, self.whole = compiled, members, len(members) == len(view.rows)
        rows = [view.rows[m] for m in members]
        changing = [r.roles[i] for r in rows for k, i in enumerate(compiled.inputs) if k in compiled.written]
        starts = [t.data_ptr() for t in changing if t.numel()]
        if len(set(starts)) != len(starts) or len({id(r.parameter) for r in rows}) != len(rows):
            raise LeftToTorch("two of its parameters or states share memory", lasting=False)
        hosts = [r.state[k] for r in rows if r.state for k in r.hosts]
        self.starts = frozenset(starts)
        self.rows, self.changing = rows, [*changing, *(t for t in hosts if isinstance(t, torch.Tensor))]
        self.questions = list(dict.fromkeys(which))
        self.which = [self.questions.index(q) for q in which]
        self.device = rows[0].parameter.device
        self.cells = None if view.cells is None else [cell for r in rows for cell in r.cells]
        self.batch = Batch(compiled.kernels, [r.count for r in rows])
        self.table = NumberTable(len(self.questions), len(compiled.runtime), self.device)
        for k, role in enumerate(compiled.inputs):
            if isinstance(role, int):
                column = compiled.runtime.index(role)
                self.batch.point(k, [self.table.at(w, column) for w in self.which])
            elif role in rows[0].roles:
                self.batch.point(k, [r.roles[role].data_ptr() for r in rows])

    def aim(self, gradients: Sequence[torch.Tensor]) -> list[int]:
        """Where the gradients of its rows are."""
        own = gradients if self.whole else [gradients[m] for m in self.members]
        addresses = addresses_of(own)
        if not self.starts.isdisjoint(addresses):
            raise LeftToTorch("a gradient shares memory with a parameter", lasting=False)
        return addresses

    def run(
        self, gradients: Sequence[int], answers: Sequence[Answer], shared: Sequence[Mapping[str, torch.Tensor]]
    ) -> None:
        """One step of its tensors. Answers and what belongs to groups come by question, gradients as addresses."""
        compiled, batch = self.compiled, self.batch
        mine = [answers[q] for q in self.questions]
        self.table.write([[a.numbers[k] for k in compiled.runtime] for a in mine])
        for place, role in enumerate(compiled.inputs):
            if role == "gradient":
                batch.point(place, gradients)
            elif isinstance(role, str) and role in shared[self.questions[0]]:
                batch.point(place, [shared[self.questions[w]][role].data_ptr() for w in self.which])
        event = compiled.event
        event.calls += 1
        times = None
        if event.timings is not None:
            times = [0.0] * len(batch.calls)
            event.timings.append(times)
        batch.run(times, self.device)
        if self.cells is None:
            for row, w in zip(self.rows, self.which, strict=True):
                row.write_hosts(mine[w].hosts)
        else:
            for cell, value in zip(self.cells, [v for w in self.which for v in mine[w].hosts], strict=True):
                cell.value = value
        increment_version(self.changing)


@dataclass(eq=False)
class _Look:
    """A view with the questions of its last step and the parts for the ways they were answered."""

    view: View
    questions: list[_Question]
    which: list[int]
    expected: list[Any]
    parts: dict[tuple[Call, ...], list[_Part]]


class _Optimizer:
    """All that is kept of one optimizer between steps. Holds its parameters, never the optimizer itself."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.standins: dict[Layout, Standin] = {}
        self.compiled: dict[Call, _Compiled] = {}
        self.looks: dict[tuple[bool, ...], _Look] = {}
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

    def plan(self, optimizer: Optimizer) -> None:
        """Fills `jobs` with all that the step does. Raises LeftToTorch; touches nothing before."""
        if getattr(optimizer, "grad_scale", None) is not None or getattr(optimizer, "found_inf", None) is not None:
            raise LeftToTorch("a GradScaler hands it its scale", lasting=False)
        pattern, gradients = gradients_of(optimizer)
        look = self.look(optimizer, pattern)
        if not look.view.takes(gradients):  # they lie otherwise than before
            self.looks.clear()
            look = self.look(optimizer, pattern)
            if not look.view.takes(gradients):
                raise LeftToTorch("gradients lie in memory in another order than their parameters", lasting=False)
        groups = optimizer.param_groups
        answers = [q.standin.ask(optimizer, groups[q.place], q.hosts) for q in look.questions]
        ends = tuple([a.end for a in answers])
        parts = look.parts.get(ends)
        if parts is None or not all(part.compiled.fits(answers[q].numbers) for part in parts for q in part.questions):
            parts = look.parts[ends] = self.parts(optimizer, look, answers)
        shared = [{k: groups[q.place][k] for k in q.standin.shared} for q in look.questions]
        self.jobs = [partial(part.run, part.aim(gradients), answers, shared) for part in parts]
        self.jobs += [
            partial(groups[q.place].update, a.group) for q, a in zip(look.questions, answers, strict=True) if a.group
        ]
        look.questions = [_Question(q.place, q.standin, a.hosts) for q, a in zip(look.questions, answers, strict=True)]
        look.expected = [value for w in look.which for value in answers[w].hosts]

    # What there is.

    def look(self, optimizer: Optimizer, pattern: tuple[bool, ...]) -> _Look:
        """The view of the optimizer as it stands, with the questions for this step."""
        look = self.looks.get(pattern)
        if look is None or not look.view.stands(optimizer):
            if look is not None or len(self.looks) >= MOST_VIEWS:
                self.looks.clear()  # what one no longer sees right, others may keep alive
            view = self.view(optimizer)
            look = self.looks[pattern] = _Look(view, [], [], [], {})
            if not view.rows:
                return look
        view = look.view
        if look.questions and view.cells is not None and [c.value for c in view.cells] == look.expected:
            return look
        pairs = zip(view.places, view.kinds, view.rows, strict=True)
        every = [_Question(place, standin, row.read_hosts()) for place, standin, row in pairs]
        number = {q: k for k, q in enumerate(dict.fromkeys(every))}
        which = [number[q] for q in every]
        if which != look.which:
            look.parts.clear()
        look.questions, look.which = list(number), which
        return look

    def view(self, optimizer: Optimizer) -> View:
        """Every parameter with a gradient, with the stand-in of its layout."""
        rows: list[Row] = []
        places: list[int] = []
        standins: list[Standin] = []
        for place, group in enumerate(optimizer.param_groups):
            if group.get("differentiable"):
                raise LeftToTorch("it is differentiable")
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None:
                    continue
                if group.get("fused") and parameter.device.type != "cpu":
                    raise LeftToTorch("fused=True is one launch already")
                if not parameter.dim() and not self.known:
                    self.learn(optimizer)
                state: dict[str, Any] | None = optimizer.state.get(parameter)
                layout = layout_of(parameter, gradient, state, group, self.known)
                if layout not in self.standins:
                    self.standins[layout] = Standin(type(optimizer), layout)
                rows.append(Row(parameter, gradient, state, [k for k, _ in (*layout.full, *layout.cells)]))
                places.append(place)
                standins.append(self.standins[layout])
        return View(optimizer, rows, places, standins)

    def learn(self, optimizer: Optimizer) -> None:
        """Which keys of a state have a parameter's shape, from parameters that have one."""
        for parameter, state in optimizer.state.items():
            if parameter.dim():
                self.known |= {k: v.dim() > 0 for k, v in state.items() if isinstance(v, torch.Tensor)}

    # How it is run.

    def parts(self, optimizer: Optimizer, look: _Look, answers: Sequence[Answer]) -> list[_Part]:
        """The rows by the way they go, each way compiled."""
        by_end: dict[Call, list[int]] = {}
        for member, w in enumerate(look.which):
            by_end.setdefault(answers[w].end, []).append(member)
        out = []
        for end, members in by_end.items():
            which = [look.which[m] for m in members]
            own = list(dict.fromkeys(which))
            compiled = self.compiled.get(end)
            if compiled is None or not all(compiled.fits(answers[q].numbers) for q in own):
                elements = sum(look.view.rows[m].count for m in members)
                questions = [(look.questions[q], answers[q]) for q in own]
                compiled = self.compile(optimizer, questions, elements, len(members), compiled)
                self.compiled[end] = compiled
            out.append(_Part(compiled, look.view, members, which))
        return out

    def compile(
        self,
        optimizer: Optimizer,
        answered: Sequence[tuple[_Question, Answer]],
        elements: int,
        tensors: int,
        before: _Compiled | None,
    ) -> _Compiled:
        """Compiles a way through the step; numbers seen to change are no constants."""
        if len(self.compiled) >= MOST_WAYS:
            raise LeftToTorch("its step takes another way every time")
        question, first = answered[0]
        standin, device = question.standin, question.standin.layout.device
        varying = set(standin.varying(optimizer, optimizer.param_groups[question.place], question.hosts, first))
        varying |= {k for _, a in answered for k, v in enumerate(a.numbers) if v != first.numbers[k]}
        if before is not None:
            varying |= {*before.runtime, *(k for k, v in before.constants.items() if v != first.numbers[k])}
        inputs = [(g.ref, g.model) for g in standin.inputs]
        update = graph_of(first.end, inputs, device, first.numbers, frozenset(varying), elements)
        backend = self.backend
        name = f"{type(optimizer).__name__}.step{len(backend.events)}"
        event = Event(name, "optimizer", current_root(), update.module, None, None, tensors=tensors)
        compiled = event.compiled = compile_graph(update.module, name, backend.engine, backend.knobs)
        event.timings = [] if backend.timed else None
        event.run = compiled.run
        kernels = [s.kernel for s in compiled.steps.steps if isinstance(s, KernelStep)]
        found, written = kernels_of(compiled.steps, backend.engine.build(kernels, device))
        changed = {update.inputs[k] for k in written}
        if changed - {"parameter", *standin.tensors}:
            raise LeftToTorch("its step changes gradients or what belongs to a group")
        backend.events.append(event)
        self.call = self.function()
        constants = {k: v for k, v in enumerate(first.numbers) if k not in update.inputs}
        return _Compiled(event, found, update.inputs, written, constants)


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

        def failed(reason: str) -> LeftToTorch:
            return LeftToTorch(reason, lasting=kept.refused.get(reason, 0) + 1 >= PATIENCE)

        left = attempt(lambda: _try(kept, optimizer), failed, self.backend.knobs.strict)
        if left is None:
            return kept.call
        self._note(kept, optimizer, left)
        return None

    def _note(self, kept: _Optimizer, optimizer: Optimizer, left: LeftToTorch) -> None:
        """Keeps the reason why a step is left to torch: as an event, once it is known to last."""
        reason, kept.given_up = str(left), left.lasting
        kept.refused[reason] = kept.refused.get(reason, 0) + 1
        if left.lasting or kept.refused[reason] == PATIENCE:
            name = f"{type(optimizer).__name__}.step"
            empty = GraphModule(torch.nn.Module(), Graph())
            self.backend.events.append(Event(name, "optimizer", current_root(), empty, None, reason))


def _try(kept: _Optimizer, optimizer: Optimizer) -> LeftToTorch | None:
    try:
        kept.plan(optimizer)
    except LeftToTorch as left:
        return left
    return None
