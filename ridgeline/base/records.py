"""The frozen records that cross stages: what must be done, what the limit allows, what was predicted and measured.

`cost` fills Work, Limit and Prediction; `runtime` fills Measured; `top` gathers them in one Account; `report`
prints an Account and computes nothing. Unknown is None, never zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

NONE: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Work:
    """What a kernel must do whatever the device.

    Each distinct byte of an input is read once and each output byte is written once. `flops` maps a number format
    ("fp32", "bf16", "int8", ...) to operations (one multiply-add = 2); None where nobody can tell.
    """

    bytes_read: int = 0
    bytes_written: int = 0
    flops: Mapping[str, float] | None = field(default_factory=lambda: NONE)
    special_ops: float = 0  # exp, log, tanh, erf, sin, cos, pow, sqrt, division
    random_numbers: float = 0
    launches: int = 1
    collective_bytes: int = 0
    matmul_flops: float = 0  # the part of flops done by matrix units (linear, convolution, attention)

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written

    @property
    def total_flops(self) -> float | None:
        return None if self.flops is None else sum(self.flops.values())

    @property
    def flop_per_byte(self) -> float | None:
        """Arithmetic intensity, to hold against a device's ridge point."""
        return None if self.total_flops is None or not self.bytes else self.total_flops / self.bytes

    def __add__(self, other: "Work") -> "Work":
        flops: dict[str, float] | None = None
        if self.flops is not None and other.flops is not None:
            flops = dict(self.flops)
            for number_format, count in other.flops.items():
                flops[number_format] = flops.get(number_format, 0) + count
        return Work(
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
            flops,
            self.special_ops + other.special_ops,
            self.random_numbers + other.random_numbers,
            self.launches + other.launches,
            self.collective_bytes + other.collective_bytes,
            self.matmul_flops + other.matmul_flops,
        )


NO_WORK = Work(launches=0)


@dataclass(frozen=True, slots=True)
class Limit:
    """The least time a device allows for some Work: the largest over its resources, and which one that is."""

    seconds: float
    binds: str  # "memory", "L3", "fp32", "bf16 matmul", "special", "random", "launch", ...
    by_resource: Mapping[str, float] = field(default_factory=lambda: NONE)  # seconds each resource alone would take


@dataclass(frozen=True, slots=True)
class Prediction:
    """Expected seconds with an interval; never under the kernel limit. `calibrated` is False without measurements."""

    seconds: float
    low_s: float
    high_s: float
    calibrated: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """Median of `count` timings and their spread (distance between the quartiles)."""

    seconds: float
    spread_s: float
    count: int
    replayed: bool = False  # timed on copies after the script ended, not in the script's own steps


@dataclass(frozen=True, slots=True)
class KernelAccount:
    """One kernel, library call or eager operator. Work, limit and times are those of one call."""

    name: str
    kind: str  # "kernel" | "library" | "eager"
    phase: str  # "forward" | "backward" | "optimizer" | "inference"
    operators: tuple[str, ...]
    line: str | None  # the user's "file:line"
    calls: float  # per step
    work: Work | None  # of one call
    limit: Limit | None
    prediction: Prediction | None
    measured: Measured | None = None
    reason: str | None = None  # why it is a library call, or why a store stayed
    shapes: str | None = None  # "fp32 (4096, 192) @ (192, 576)", in the user's words

    @property
    def seconds(self) -> float | None:
        """One call: measured where it was, predicted otherwise."""
        if self.measured is not None:
            return self.measured.seconds
        return None if self.prediction is None else self.prediction.seconds

    @property
    def fraction_of_limit(self) -> float | None:
        """1 is at the limit; above 1 the model or the timer is wrong."""
        return self.limit.seconds / self.seconds if self.limit is not None and self.seconds else None

    @property
    def flops_per_s(self) -> float | None:
        """The rate reached."""
        flops = None if self.work is None else self.work.total_flops
        return None if flops is None or not self.seconds else flops / self.seconds

    def per_step(self, of_one_call: float | None) -> float | None:
        """A figure of one call -> of all calls in a step."""
        return None if of_one_call is None else of_one_call * self.calls


@dataclass(frozen=True, slots=True)
class MoveAccount:
    """One decision of the walk, accepted or refused, with the resource that decided."""

    kind: str  # "drop store" | "share read" | "recompute" | "split fold" | "layout" | "save" ...
    accepted: bool
    what: str  # operators concerned, in the user's words
    line: str | None
    saved_bytes: float
    saved_s: float
    reason: str
    count: int = 1  # equal decisions taken together, as in equal layers


@dataclass(frozen=True, slots=True)
class GraphAccount:
    """One captured graph: its kernels after the walk, its eager plan, and the moves between them."""

    name: str
    root: str  # "GPT.forward", "AdamW.step", ...
    phase: str
    line: str | None
    operators: int
    calls: float  # per step; the limit and the moves are those of one call
    compile_s: float
    kernels: tuple[KernelAccount, ...]
    eager: tuple[KernelAccount, ...]
    moves: tuple[MoveAccount, ...]
    limit: Limit | None  # step limit of this graph, independent of the plan
    limit_work: Work | None
    peak_bytes_eager: int | None = None
    peak_bytes_graph: int | None = None


@dataclass(frozen=True, slots=True)
class Break:
    """A graph break or a recompile, with the user's line."""

    kind: str  # "graph break" | "recompile"
    reason: str
    line: str | None
    count: int = 1


@dataclass(frozen=True, slots=True)
class Outside:
    """Work that reached the dispatcher during a step but in no graph."""

    operator: str
    line: str | None
    calls: float
    bytes: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One row of the eager / graph / limit table, per step."""

    name: str  # "eager" | "graph" | "limit"
    predicted_s: float | None
    measured: Measured | None
    bytes: int | None
    launches: int | None
    peak_bytes: int | None
    flops: float | None = None

    @property
    def seconds(self) -> float | None:
        """Measured where it was, predicted otherwise."""
        return self.predicted_s if self.measured is None else self.measured.seconds

    @property
    def prediction_error(self) -> float | None:
        """Signed: +0.1 is a prediction 10 % too long. None without both."""
        if self.measured is None or self.predicted_s is None or not self.measured.seconds:
            return None
        return self.predicted_s / self.measured.seconds - 1


@dataclass(frozen=True, slots=True)
class Ceiling:
    """One roof of the device, named as in `Limit.binds`: a memory level's rate or an arithmetic rate, not both."""

    name: str  # "memory", "L3", "fp32", "bf16 matmul"
    bytes_per_s: float | None = None
    flops_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The same step on another device, by the model alone."""

    device: str
    eager_s: float | None
    graph_s: float | None
    limit_s: float | None
    binds: str | None
    fits: bool | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something the user can change, ranked by seconds saved per step."""

    title: str
    saved_s: float | None
    advice: str
    line: str | None = None


@dataclass(frozen=True, slots=True)
class Account:
    """All that one run of `explain` knows. Every view prints this and computes nothing."""

    schema_version: int
    script: str
    device_id: str
    device_name: str
    versions: Mapping[str, str]
    steps_seen: int
    steps_timed: int
    graphs: tuple[GraphAccount, ...]
    breaks: tuple[Break, ...]
    outside: tuple[Outside, ...]
    plans: tuple[StepPlan, ...]
    remainder_s: float | None  # measured graph step minus the sum of its kernels
    elsewhere: tuple[Elsewhere, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    ceilings: tuple[Ceiling, ...] = ()

    def plan(self, name: str) -> StepPlan | None:
        """The row "eager", "graph" or "limit"."""
        return next((plan for plan in self.plans if plan.name == name), None)


@dataclass(frozen=True, slots=True)
class Machine:
    """What a target can do on a device, as far as loop programs depend on it. `schedule` knows no more than this.

    `style` "vector": one axis at a time in `width` lanes, rows are read again from cache. "tile": blocks whose sides
    are powers of two, at most `max_tile` elements together, held in registers.
    """

    style: str  # "vector" | "tile"
    width: int  # lanes of a vector, or the least useful length of a tile
    max_tile: int  # elements of one tile; for "vector" the lanes themselves
    workers: int  # threads, or multiprocessors
    cache_bytes: tuple[int, ...]  # nearest first, the last is shared by all workers
    line_bytes: int = 64
    grain_bytes: int = 1 << 16  # work below this is not worth a second worker
    gather_cost: float = 32.0  # instructions for one vector of strided or gathered elements
