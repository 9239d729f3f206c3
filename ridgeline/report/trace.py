"""One step as a Chrome trace, to open in Perfetto or chrome://tracing.

Takes an Account; gives JSON text. Two processes, eager and graph, each with a predicted and a measured track; graph has
a third with the kernel limits. A slice is one kernel, as long as all its calls in a step together, in the order of the
graphs; slices of a graph lie inside a slice of the graph. Arrows lead from the kernels of a forward to those of the
backward that stem from the same line. A counter shows the peak memory of each graph. The number of events is bounded:
past the budget the smallest kernels of a graph become one slice.

Timestamps and durations are in µs, as the format demands; arguments are in base units with the unit in their name.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ridgeline.base import totals
from ridgeline.base.records import Account, GraphAccount, KernelAccount
from ridgeline.base.units import MEGA
from ridgeline.report.cells import short_operators

MOST_EVENTS = 20_000  # about 10 MB of text, which every viewer opens
EAGER, GRAPH = 1, 2
PREDICTED, MEASURED, LIMIT = 1, 2, 3
TRACKS = {PREDICTED: "predicted", MEASURED: "measured", LIMIT: "kernel limit"}
Event = dict[str, Any]
Seconds = Callable[[KernelAccount], float | None]


def _predicted(k: KernelAccount) -> float | None:
    return None if k.prediction is None else k.per_step(k.prediction.seconds)


def _measured(k: KernelAccount) -> float | None:
    return None if k.measured is None else k.per_step(k.measured.seconds)


def _limit(k: KernelAccount) -> float | None:
    return None if k.limit is None else k.per_step(k.limit.seconds)


SECONDS: dict[int, Seconds] = {PREDICTED: _predicted, MEASURED: _measured, LIMIT: _limit}


def to_trace(account: Account) -> str:
    """The trace as one JSON document."""
    events: list[Event] = [*_names(account)]
    budget = max(1, MOST_EVENTS // (5 * max(1, len(account.graphs))))  # kernels a graph, on each of 5 tracks
    for process, tracks in ((EAGER, (PREDICTED, MEASURED)), (GRAPH, (PREDICTED, MEASURED, LIMIT))):
        for track in tracks:
            events += _track(account, process, track, budget)
    document = {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "distributedInfo": {"rank": 0, "world_size": 1},
        "metadata": {
            "script": account.script,
            "device": account.device_name,
            "versions": dict(account.versions),
            "flop_per_step": totals.total_of(totals.kernels(account)).flops.known,
            "unknown_cost": list(totals.unknown_cost(account)),
        },
        "traceEvents": events,
    }
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False) + "\n"


def _names(account: Account) -> Iterator[Event]:
    for process, name, tracks in ((EAGER, "eager", 2), (GRAPH, "graph", 3)):
        yield _meta("process_name", process, 0, name=f"{name}: one step of {account.script}")
        yield _meta("process_sort_index", process, 0, sort_index=process)
        for track in list(TRACKS)[:tracks]:
            yield _meta("thread_name", process, track, name=TRACKS[track])
            yield _meta("thread_sort_index", process, track, sort_index=track)


def _meta(kind: str, process: int, track: int, **args: Any) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": track, "ts": 0, "args": args}


@dataclass(slots=True)
class _Layout:
    """One track while it is laid out: the time reached, and where an arrow may start."""

    process: int
    track: int
    now_us: float = 0.0
    events: list[Event] = field(default_factory=list)
    forward: dict[str, float] = field(default_factory=dict)  # line -> middle of its first forward slice
    arrows: int = 0

    def event(self, kind: str, name: str, at_us: float, **more: Any) -> Event:
        made = {"ph": kind, "name": name, "pid": self.process, "tid": self.track, "ts": at_us, **more}
        self.events.append(made)
        return made


def _track(account: Account, process: int, track: int, budget: int) -> list[Event]:
    layout = _Layout(process, track)
    for graph in account.graphs:
        _graph(layout, graph, budget)
    if (process, track) == (GRAPH, MEASURED) and account.remainder_s is not None and account.remainder_s > 0:
        layout.event("X", "in no kernel", layout.now_us, dur=account.remainder_s * MEGA, cat="remainder")
    return layout.events


def _graph(layout: _Layout, graph: GraphAccount, budget: int) -> None:
    kernels = graph.eager if layout.process == EAGER else graph.kernels
    shown, rest = _within(kernels, budget)
    begin = layout.now_us
    args = {"root": graph.root, "line": graph.line, "operators": graph.operators, "calls": graph.calls}
    whole = layout.event("X", f"{graph.phase}: {graph.root}", begin, dur=0.0, cat=graph.phase, args=args)
    for k in shown:
        seconds = SECONDS[layout.track](k)
        if seconds is not None:
            _kernel(layout, k, seconds * MEGA)
    others = totals.total([SECONDS[layout.track](k) for k in rest]).known * MEGA
    if rest:
        more = {"kernels": len(rest), "flop": totals.total_of(rest).flops.known}
        layout.event("X", f"{len(rest)} smaller ones", layout.now_us, dur=others, cat="other", args=more)
        layout.now_us += others
    whole["dur"] = layout.now_us - begin
    peak = graph.peak_bytes_eager if layout.process == EAGER else graph.peak_bytes_graph
    if layout.track == PREDICTED and peak is not None:
        layout.event("C", "peak memory", begin, args={"bytes": peak})
        layout.event("C", "peak memory", layout.now_us, args={"bytes": 0})


def _within(kernels: Sequence[KernelAccount], budget: int) -> tuple[list[KernelAccount], list[KernelAccount]]:
    """The largest kernels in their own order, and the rest."""
    if len(kernels) <= budget:
        return list(kernels), []
    largest = sorted(range(len(kernels)), key=lambda n: -(kernels[n].per_step(kernels[n].seconds) or 0.0))
    kept = set(largest[:budget])
    return (
        [k for number, k in enumerate(kernels) if number in kept],
        [k for number, k in enumerate(kernels) if number not in kept],
    )


def _kernel(layout: _Layout, k: KernelAccount, duration_us: float) -> None:
    begin = layout.now_us
    name = short_operators(k.operators) or k.name
    layout.event("X", name, begin, dur=duration_us, cat=k.kind, args=_arguments(k))
    layout.now_us += duration_us
    middle = begin + duration_us / 2
    if k.line is None:
        return
    if k.phase == "forward":
        layout.forward.setdefault(k.line, middle)
    elif k.phase == "backward" and k.line in layout.forward:
        layout.arrows += 1
        number = (layout.process * 10 + layout.track) * MOST_EVENTS + layout.arrows
        layout.event("s", "forward to backward", layout.forward[k.line], cat="fwdbwd", id=number)
        layout.event("f", "forward to backward", middle, cat="fwdbwd", id=number, bp="e")


def _arguments(k: KernelAccount) -> dict[str, Any]:
    """What a viewer shows of a slice, per step; unknown is left out."""
    work, limit = k.work, k.limit
    known = {
        "kernel": k.name,
        "operators": ", ".join(k.operators),
        "line": k.line,
        "shapes": k.shapes,
        "calls": k.calls,
        "flop": None if work is None else k.per_step(work.total_flops),
        "bytes_read": None if work is None else k.per_step(work.bytes_read),
        "bytes_written": None if work is None else k.per_step(work.bytes_written),
        "flop_per_byte": None if work is None else work.flop_per_byte,
        "bound": None if limit is None else limit.binds,
        "limit_s": _limit(k),
        "predicted_s": _predicted(k),
        "measured_s": _measured(k),
        "calibrated": None if k.prediction is None else k.prediction.calibrated,
        "fraction_of_limit": k.fraction_of_limit,
        "reason": k.reason,
    }
    if work is None or work.flops is None:
        known["cost"] = "unknown"
    return {name: value for name, value in known.items() if value is not None}
