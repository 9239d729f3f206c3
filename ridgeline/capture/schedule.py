"""When a step runs eager and when compiled, and where a step ends: pure decisions, no torch and no clock.

Takes a stream of events (which optimizer stepped, which root was called) and the shapes of each step's inputs;
gives step boundaries, shape classes and a mode for every step. It measures nothing and touches no random stream but
its own.
"""

import random
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum


class Mode(Enum):
    """How the roots of one step run."""

    EAGER = "eager"
    RECORD = "record"  # eager, with everything that reaches the dispatcher written down
    COMPILED = "compiled"


class Policy(Enum):
    """What the whole run is for."""

    MEASURE = "measure"  # eager and compiled alternate until both are timed
    COUNT = "count"  # compile and count, time nothing
    RUN = "run"  # compiled from the first call on


class Boundary(Enum):
    """What an event means for the step it belongs to."""

    NONE = "none"
    STEP = "step"  # a step ends here
    RESET = "reset"  # the cycle was misjudged: what ran since the last boundary is no step, a new one begins here


class Cycle:
    """Finds where a step ends in a stream of events: the shortest sequence of keys that keeps repeating.

    One optimizer: every step of it. Two that alternate, or five of one and one of the other: the last of the round.
    A pattern must have been seen twice in a row and hold every key of the recent past before it is believed, only
    the very first event is believed at once. A round ends with the event that is rarest in it.
    """

    def __init__(self, window: int = 32) -> None:
        self.pattern: tuple[Hashable, ...] | None = None
        self._position = 0
        self._partial = False  # the round that runs was believed in only after it had begun
        self._window = window
        self._history: deque[Hashable] = deque(maxlen=4096)

    def event(self, key: Hashable) -> Boundary:
        first = not self._history
        self._history.append(key)
        if first:
            self.pattern = (key,)
            return Boundary.STEP
        if self.pattern is None:
            return self._believe(self._repeating())
        if self.pattern[self._position] == key:
            self._position = (self._position + 1) % len(self.pattern)
            return self._close() if self._position == 0 else Boundary.NONE
        self.pattern, self._position = None, 0
        self._window = min(2 * self._window, 2048)
        return Boundary.RESET

    def _close(self) -> Boundary:
        partial, self._partial = self._partial, False
        return Boundary.RESET if partial else Boundary.STEP

    def _believe(self, found: tuple[Hashable, ...] | None) -> Boundary:
        if found is None:
            return Boundary.NONE
        end = min(range(len(found)), key=lambda place: (found.count(found[place]), -place)) + 1
        self.pattern = found[end:] + found[:end]
        self._position = len(found) - end
        self._partial = self._position != 0
        return Boundary.NONE if self._partial else Boundary.RESET

    def _repeating(self) -> tuple[Hashable, ...] | None:
        """The shortest suffix that stands twice at the end of the history and holds all keys of the window."""
        recent = list(self._history)[-self._window :]
        keys = set(recent)
        for length in range(len(keys), len(recent) // 2 + 1):
            last = recent[-length:]
            if last == recent[-2 * length : -length] and keys <= set(last):
                return tuple(last)
        return None


@dataclass(frozen=True, slots=True)
class Signature:
    """What one root call looked like: its name, the sizes and types of its tensors, and its state."""

    root: str
    tensors: tuple[tuple[tuple[int, ...], str], ...]
    state: str = ""  # "train", "eval", "no_grad", ...


class Shapes:
    """Gives root calls a shape class; a size that keeps changing becomes `*`.

    A token loop grows one size at every call, so a class by exact sizes would never be met twice. A size is called
    changing after `changes` different values, 0 and 1 not counted (they stay themselves, as TorchDynamo has it); the
    short last batch of an epoch is therefore a class of its own.
    """

    def __init__(self, changes: int = 4) -> None:
        self._changes = changes
        self._seen: dict[tuple[str, int, int, int], set[int]] = {}

    def observe(self, signature: Signature) -> str:
        for place, size in self._places(signature):
            values = self._seen.setdefault(place, set())
            if size > 1 and len(values) < self._changes:
                values.add(size)
        return self.name(signature)

    def name(self, signature: Signature) -> str:
        """The class as text: `GPT(8x128 int64, train)`."""
        parts = []
        sizes = iter(self._places(signature))
        for shape, dtype in signature.tensors:
            shown = [self._show(*next(sizes)) for _ in shape]
            parts.append(f"{'x'.join(shown) or 'scalar'} {dtype}")
        return f"{signature.root}({', '.join([*parts, signature.state] if signature.state else parts)})"

    def _show(self, place: tuple[str, int, int, int], size: int) -> str:
        changing = size > 1 and len(self._seen.get(place, ())) >= self._changes
        return "*" if changing else str(size)

    @staticmethod
    def _places(signature: Signature) -> list[tuple[tuple[str, int, int, int], int]]:
        return [
            ((signature.root, position, len(shape), axis), size)
            for position, (shape, _) in enumerate(signature.tensors)
            for axis, size in enumerate(shape)
        ]


@dataclass(slots=True)
class _Class:
    """What has been done for one shape class."""

    compiled: bool = False
    timed: dict[Mode, int] = field(default_factory=lambda: {Mode.EAGER: 0, Mode.COMPILED: 0})
    ahead: list[Mode] = field(default_factory=list)
    retries: int = 0


class Schedule:
    """Decides the mode of each step and whether its time counts.

    MEASURE: two steps eager (the second recorded), one that compiles, then pairs of one eager and one compiled step
    in random order until `pairs` of each shape class are timed, then compiled for good. COUNT leaves the pairs out,
    RUN the eager steps too. A run limited to two steps records the first and compiles the second.
    """

    def __init__(self, policy: Policy, seed: int = 0, pairs: int = 10, limit: int | None = None) -> None:
        self.policy = policy
        self._random = random.Random(seed)
        self._pairs = pairs
        self._warm_ups = 2 if limit is None or limit > 2 else 1
        self._number = 0
        self._classes: dict[str, _Class] = {}

    @property
    def timed_any(self) -> bool:
        return any(sum(state.timed.values()) for state in self._classes.values())

    @property
    def records_next(self) -> bool:
        """Whether the step that begins now is the recorded one, whatever its inputs."""
        return self.policy is not Policy.RUN and self._number == self._warm_ups - 1

    def restart(self) -> None:
        """Count steps from the start again; refused once something was timed."""
        if not self.timed_any:
            self._number = 0

    def mode(self, shape_class: str) -> Mode:
        """How the step that begins now, with inputs of this class, must run."""
        if self.policy is Policy.RUN:
            return Mode.COMPILED
        if self._number < self._warm_ups:
            return Mode.RECORD if self.records_next else Mode.EAGER
        state = self._classes.setdefault(shape_class, _Class())
        if not state.compiled or self.policy is Policy.COUNT:
            return Mode.COMPILED
        if not state.ahead and min(state.timed.values()) < self._pairs:
            state.ahead = [mode for mode in (Mode.EAGER, Mode.COMPILED) if state.timed[mode] < self._pairs]
            self._random.shuffle(state.ahead)
        return state.ahead[0] if state.ahead else Mode.COMPILED

    def close(self, shape_class: str, mode: Mode, disturbed: bool) -> bool:
        """The step ended; says whether its time counts. `disturbed`: something was compiled or went wrong in it."""
        self._number += 1
        state = self._classes.get(shape_class)
        if state is None or mode is Mode.RECORD:
            return False
        first = not state.compiled
        state.compiled |= mode is Mode.COMPILED
        if first or not state.ahead or state.ahead[0] is not mode:
            return False
        if disturbed and state.retries < self._pairs:
            state.retries += 1
            return False
        state.ahead.pop(0)
        state.timed[mode] += 1
        return not disturbed
