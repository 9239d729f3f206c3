"""One run, both times: follows the steps of a live program, decides each one's mode and keeps what was measured.

Takes the events that `roots.py` reports (a root begins, a root ends, an optimizer stepped) and a `Schedule`; gives a
mode for every root call and, at the end, the frozen `Run`. Patches nothing and compiles nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from torch._C._autograd import _get_sequence_nr as sequence_number
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ridgeline.base.records import Break, Outside
from ridgeline.capture.gauge import Gauge, Mark
from ridgeline.capture.outside import Operator, Recorder
from ridgeline.capture.root import Root
from ridgeline.capture.schedule import Boundary, Cycle, Mode, Policy, Schedule, Shapes, Signature

_KEPT_STEPS = 1000  # of a long run, the first ones; its timed steps come long before


@dataclass(frozen=True, slots=True)
class RootTime:
    """All calls of one root in one step."""

    root: str
    kind: str
    calls: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the program as it ran, from where the last one ended."""

    number: int
    mode: Mode
    timed: bool  # False for warm-up, recording, compilation and steps after all is known
    shape_class: str
    wall_s: float
    roots: tuple[RootTime, ...]
    peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class RootCalls:
    """One root over the whole run; `failed` says why it runs eager for good, `joined` which loss runs in its graph."""

    root: Root
    calls: int
    failed: str | None
    joined: str | None


@dataclass(frozen=True, slots=True)
class Run:
    """All that running a script showed."""

    target: str
    arguments: tuple[str, ...]
    exit_code: int
    interrupted: bool
    steps_seen: int
    steps: tuple[Step, ...]
    roots: tuple[RootCalls, ...]
    operators: tuple[Operator, ...]  # the recorded eager step, inside roots
    outside: tuple[Outside, ...]  # the recorded eager step, outside of them
    breaks: tuple[Break, ...]
    replayed: tuple[RootTime, ...]  # seconds on copies, when the script ended before a step was compiled
    compilations: int
    compile_s: float
    notes: tuple[str, ...]

    @property
    def main_class(self) -> str | None:
        """The shape class that took most of the timed seconds; of all steps when none was timed."""
        seconds: dict[str, float] = {}
        for step in [step for step in self.steps if step.timed] or self.steps:
            seconds[step.shape_class] = seconds.get(step.shape_class, 0.0) + step.wall_s
        return max(seconds, key=lambda name: seconds[name]) if seconds else None

    def timed(self, mode: Mode) -> tuple[Step, ...]:
        """The timed steps of the main class in one mode."""
        main = self.main_class
        return tuple(step for step in self.steps if step.timed and step.mode is mode and step.shape_class == main)

    def median_s(self, mode: Mode) -> float | None:
        steps = self.timed(mode)
        return median(step.wall_s for step in steps) if steps else None


@dataclass(slots=True)
class _Open:
    """The step that is running."""

    begin: Mark
    mode: Mode | None = None
    shape_class: str = ""
    disturbed: bool = False
    spans: list[tuple[Root, Mark, Mark]] = field(default_factory=list)


class Steps:
    """The step that runs now and those that have ended. `limit` ends the program at the boundary after so many.

    `on_step` is told of every step that has ended.
    """

    def __init__(
        self,
        policy: Policy,
        seed: int,
        pairs: int,
        limit: int | None,
        on_step: Callable[[Step], None] = lambda step: None,
    ) -> None:
        self.compilations = 0
        self.compile_s = 0.0
        self.steps_seen = 0
        self._policy = policy
        self._limit = limit
        self._on_step = on_step
        self._fresh_schedule: Callable[[], Schedule] = lambda: Schedule(policy, seed, pairs, limit)
        self._schedule = self._fresh_schedule()
        self._gauge = Gauge()
        self._shapes = Shapes()
        self._cycle = Cycle()
        self._due = Boundary.NONE
        self._optimizers_exist = False
        self._optimizer_stepped = False
        self._counted = 0
        self._kept: list[Step] = []
        self._recorder: Recorder | None = None
        self._recorded: Recorder | None = None
        self._leaving: Recorder | None = None
        self._open = _Open(self._gauge.mark())

    # What roots.py reports.

    def enter(self, root: Root, sign: Callable[[], Signature]) -> Mode:
        """A root call begins: how must it run? Ends the program when its steps are used up."""
        self._end_due()
        step = self._open
        if step.mode is None:
            if self._limit is not None and self._counted >= self._limit:
                raise SystemExit(0)
            step.shape_class = self._shapes.observe(sign())
            step.mode = self._schedule.mode(step.shape_class)
            if step.mode is Mode.RECORD:
                self._start_recording()
        return step.mode

    def begin(self) -> tuple[Mark, int]:
        return self._gauge.mark(), sequence_number()

    def leave(self, root: Root, began: tuple[Mark, int], key: int, waits_for_optimizer: bool) -> None:
        """A root call ended well. `waits_for_optimizer`: it is part of a training step."""
        mark, first_node = began
        if self._open.mode is not None and self._watching:
            self._open.spans.append((root, mark, self._gauge.mark()))
        if self._recorder is not None:
            self._recorder.called(root, first_node, sequence_number())
        if self._optimizer_stepped or (waits_for_optimizer and self._optimizers_exist):
            return
        # Without an optimizer the step goes on to the next root: the backward pass and the update by hand are in it.
        self._due = self._cycle.event(key)

    def backward_ended(self, root: Root, began: tuple[Mark, int]) -> None:
        """A backward pass ended: no root, but its seconds belong to the step."""
        if self._open.mode is not None and self._watching:
            self._open.spans.append((root, began[0], self._gauge.mark()))

    def optimizer_made(self) -> None:
        self._optimizers_exist = True

    def optimizer_stepped(self, key: int) -> None:
        """An optimizer has stepped; the last one of the round closes the step."""
        if not self._optimizer_stepped:
            self._end_due()
            self._optimizer_stepped = True
            self._cycle = Cycle()
            if self.steps_seen:  # what ran before training began was another program
                self._cycle.event(key)
                self._forget()
                return
        self._end(self._cycle.event(key))

    def disturb(self) -> None:
        """Something in this step makes its time worthless: compilation, or an error."""
        self._open.disturbed = True

    def compiled(self, seconds: float) -> None:
        self.compilations += 1
        self.compile_s += seconds
        self.disturb()

    @property
    def training(self) -> bool:
        return self._optimizer_stepped or self._optimizers_exist

    # Boundaries.

    @property
    def _watching(self) -> bool:
        return self._policy is Policy.MEASURE and len(self._kept) < _KEPT_STEPS

    def _end_due(self) -> None:
        due, self._due = self._due, Boundary.NONE
        self._end(due)

    def _end(self, boundary: Boundary) -> None:
        if boundary is Boundary.STEP:
            self._close()
        elif boundary is Boundary.RESET:
            if not self._schedule.timed_any:
                self._schedule.restart()
                self._counted = 0
                self._recorded = None
            self._begin()

    def _forget(self) -> None:
        self._schedule = self._fresh_schedule()
        self._counted = 0
        self._kept, self._recorded = [], None
        self._begin()

    def _close(self) -> None:
        step = self._open
        if step.mode is None:  # an optimizer stepped and no root was called
            self._begin()
            return
        if self._watching:
            self._gauge.synchronize()
        end = self._gauge.mark()
        timed = self._schedule.close(step.shape_class, step.mode, step.disturbed)
        self.steps_seen += 1
        self._counted += 1
        wall_s = end.host_s - step.begin.host_s
        peak_bytes = self._gauge.peak_bytes() if self._watching else None
        ended = Step(self._counted, step.mode, timed, step.shape_class, wall_s, self._root_times(), peak_bytes)
        self._on_step(ended)
        if len(self._kept) < _KEPT_STEPS:
            self._kept.append(ended)
        if self._recorder is not None:
            self._recorded = self._recorder
        self._begin()

    def _begin(self) -> None:
        self._stop_recording()
        if self._watching:
            self._gauge.reset_peak()
        self._open = _Open(self._gauge.mark())
        if self._counted and self._schedule.records_next:
            self._start_recording()

    def _root_times(self) -> tuple[RootTime, ...]:
        sums: dict[tuple[str, str], tuple[int, float]] = {}
        for root, begin, end in self._open.spans:
            calls, seconds = sums.get((root.name, root.kind), (0, 0.0))
            sums[root.name, root.kind] = calls + 1, seconds + self._gauge.seconds(begin, end)
        return tuple(RootTime(name, kind, *total) for (name, kind), total in sums.items())

    # The recorded step.

    def _start_recording(self) -> None:
        if self._recorder is None:
            self._recorder = Recorder(self._gauge.synchronize)
            self._recorder.__enter__()  # type: ignore[no-untyped-call]

    def _stop_recording(self) -> None:
        if self._recorder is not None:
            self._recorder.active = False
            self._leaving, self._recorder = self._recorder, None
        # The user may have entered a mode of their own on top; ours stays below it, inert, until that one leaves.
        if self._leaving is not None and _get_current_dispatch_mode() is self._leaving:
            self._leaving.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._leaving = None

    def stop(self) -> None:
        """The program has ended; a step cut short in its recording is better than none."""
        self._end_due()
        if self._recorded is None:
            self._recorded = self._recorder
        self._stop_recording()

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(self._kept)

    @property
    def operators(self) -> tuple[Operator, ...]:
        return self._recorded.operators if self._recorded else ()

    @property
    def outside(self) -> tuple[Outside, ...]:
        return self._recorded.outside if self._recorded else ()
