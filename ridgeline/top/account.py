"""Run + compiled graphs + device -> the Account.

Joins what the script runner saw, what the backend compiled, what the model says of it and what was measured. Every
figure of the account is worked out here or below; the views compute nothing.
"""

import platform
from collections.abc import Sequence
from dataclasses import replace
from statistics import median, quantiles

import torch

from ridgeline.base.records import (
    Account,
    Elsewhere,
    GraphAccount,
    KernelAccount,
    Measured,
    MoveAccount,
    StepPlan,
)
from ridgeline.capture.schedule import Mode
from ridgeline.capture.steps import Run
from ridgeline.fuse.build import steps as plan_steps
from ridgeline.fuse.walk import walk
from ridgeline.hw.device import Device
from ridgeline.ir.steps import Steps
from ridgeline.report.roofline import ceilings
from ridgeline.top.backend import Event
from ridgeline.top.findings import findings
from ridgeline.top.price import Priced, price

SCHEMA_VERSION = 1


def measured(seconds: Sequence[float], replayed: bool = False) -> Measured | None:
    """Median and quartile distance; None without timings."""
    if not seconds:
        return None
    spread = 0.0
    if len(seconds) > 1:
        low, _, high = quantiles(seconds, n=4)
        spread = high - low
    return Measured(median(seconds), spread, len(seconds), replayed)


def account_of(run: Run, events: Sequence[Event], device: Device, elsewhere: Sequence[Device]) -> Account:
    """Everything that one run of a script showed."""
    compiled_steps = max(sum(s.mode is Mode.COMPILED for s in run.steps), 1)
    used = [e for e in events if e.compiled is not None and e.calls]
    calls = [_calls(e, run, compiled_steps) for e in used]
    priced = [_price(e, e.compiled.steps, device, n) for e, n in zip(used, calls, strict=True) if e.compiled]
    graphs = tuple(_graph(e, p, n) for e, p, n in zip(used, priced, calls, strict=True))
    plans = _plans(run, graphs, priced)
    graph_step = plans[1].measured
    kernel_s = sum((k.seconds or 0.0) * k.calls for g in graphs for k in g.kernels)
    there = tuple(_elsewhere(used, calls, other) for other in elsewhere) if used else ()
    base = Account(
        SCHEMA_VERSION,
        run.target,
        device.id,
        device.name,
        {"torch": str(torch.__version__), "python": platform.python_version()},
        run.steps_seen,
        len(run.timed(Mode.COMPILED)),
        graphs,
        run.breaks,
        run.outside,
        plans,
        graph_step.seconds - kernel_s if graph_step is not None else None,
        there,
        (),
        (*run.notes, *_notes(run, events, device)),
        ceilings(device),
    )
    return replace(base, findings=findings(base, run, device))


def _calls(event: Event, run: Run, compiled_steps: int) -> float:
    """Calls of a graph a step. Those on copies after the script's end are none of them."""
    root = event.root.name if event.root is not None else None
    real = event.calls - sum(1 + time.calls for time in run.replayed if time.root == root)
    if real > 0:
        return real / compiled_steps
    last = next((s for s in reversed(run.steps) if s.mode is Mode.EAGER), None)
    return sum(time.calls for time in last.roots if time.root == root) or 1 if last is not None else 1


def _price(event: Event, steps: Steps, device: Device, calls: float) -> Priced:
    return price(steps, device, event.phase, calls, event.tensors)


def _graph(event: Event, priced: Priced, calls: float) -> GraphAccount:
    assert event.compiled is not None
    plan = event.compiled.plan
    # The first call of a graph warms caches and threads; it is timed but not counted where there are others.
    timings = (event.timings or [])[1:] or (event.timings or [])
    line = event.root.line if event.root is not None else None
    kernels = _together(priced, timings, line)
    root = event.root
    return GraphAccount(
        event.name,
        root.name if root is not None else "",
        event.phase,
        line,
        len(priced.eager),
        calls,
        sum(event.compiled.seconds.values()),
        kernels,
        tuple(replace(k, line=k.line or line) for k in priced.eager),
        tuple(replace(m, line=m.line or line) for m in (*plan.moves, *_partition_moves(event))),
        priced.limit,
        priced.limit_work,
        priced.peak_eager,
        priced.peak_graph,
    )


def _together(priced: Priced, timings: Sequence[Sequence[float]], line: str | None) -> tuple[KernelAccount, ...]:
    """Equal kernels as one record: their calls add up, their timings are one sample."""
    places: dict[object, list[int]] = {}
    first: dict[object, KernelAccount] = {}
    for k, place in zip(priced.kernels, priced.places, strict=True):
        key = k.name if k.kind == "kernel" else (k.operators, k.shapes, k.reason)
        first.setdefault(key, k)
        places.setdefault(key, []).append(place)
    return tuple(
        replace(
            k,
            calls=k.calls * len(places[key]),
            measured=measured([t[p] for t in timings for p in places[key]]),
            line=k.line or line,
        )
        for key, k in first.items()
    )


def _partition_moves(event: Event) -> Sequence[MoveAccount]:
    """The partitioner's moves, told once: with the forward graph."""
    return event.moves if event.phase == "forward" else ()


def _sum(kernels: Sequence[KernelAccount]) -> tuple[float, int, int, float]:
    """(predicted seconds, bytes, launches, FLOPs) of a step."""
    seconds = sum(k.prediction.seconds * k.calls for k in kernels if k.prediction)
    moved = sum(k.work.bytes * k.calls for k in kernels if k.work)
    launches = sum(k.work.launches * k.calls for k in kernels if k.work)
    flops = sum((k.work.total_flops or 0.0) * k.calls for k in kernels if k.work)
    return seconds, round(moved), round(launches), flops


def _plans(run: Run, graphs: Sequence[GraphAccount], priced: Sequence[Priced]) -> tuple[StepPlan, ...]:
    """The rows eager, graph and limit. Work outside the graphs is in both measured steps and in neither prediction."""
    eager = _sum([k for g in graphs for k in g.eager])
    graph = _sum([k for g in graphs for k in g.kernels])
    limit_s = sum(p.limit.seconds * g.calls for p, g in zip(priced, graphs, strict=True))
    limit_bytes = sum(p.limit_work.bytes * g.calls for p, g in zip(priced, graphs, strict=True))
    limit_flops = sum((p.limit_work.total_flops or 0.0) * g.calls for p, g in zip(priced, graphs, strict=True))
    launches = round(sum(p.limit_work.launches * g.calls for p, g in zip(priced, graphs, strict=True)))

    def peak(mode: Mode) -> int | None:
        seen = [s.peak_bytes for s in run.timed(mode) if s.peak_bytes is not None]
        return max(seen) if seen else None

    times = {m: measured([s.wall_s for s in run.timed(m)]) for m in (Mode.EAGER, Mode.COMPILED)}
    if not graphs:  # nothing is known, and nothing is not 0 s
        return (
            StepPlan("eager", None, times[Mode.EAGER], None, None, peak(Mode.EAGER), None),
            StepPlan("graph", None, times[Mode.COMPILED], None, None, peak(Mode.COMPILED), None),
            StepPlan("limit", None, None, None, None, None, None),
        )
    return (
        StepPlan("eager", eager[0], times[Mode.EAGER], eager[1], eager[2], peak(Mode.EAGER), eager[3]),
        StepPlan("graph", graph[0], times[Mode.COMPILED], graph[1], graph[2], peak(Mode.COMPILED), graph[3]),
        StepPlan("limit", limit_s, None, round(limit_bytes), launches, None, limit_flops),
    )


def _elsewhere(events: Sequence[Event], calls_a_step: Sequence[float], device: Device) -> Elsewhere:
    """The walk repeated with another device's numbers."""
    eager_s = graph_s = limit_s = 0.0
    peak = 0
    resources: dict[str, float] = {}
    for event, calls in zip(events, calls_a_step, strict=True):
        assert event.compiled is not None
        there = _price(event, plan_steps(walk(event.compiled.plan.graph, device)), device, calls)
        eager_s += _sum(there.eager)[0]
        graph_s += _sum(there.kernels)[0]
        limit_s += there.limit.seconds * calls
        peak = max(peak, there.peak_graph)
        for name, seconds in there.limit.by_resource.items():
            resources[name] = resources.get(name, 0.0) + seconds * calls
    binds = max(resources, key=lambda n: resources[n]) if resources else None
    fits = None if device.memory_bytes is None else peak <= device.memory_bytes
    note = "" if device.efficiency else "uncalibrated"
    return Elsewhere(device.id, eager_s, graph_s, limit_s, binds, fits, note)


def _notes(run: Run, events: Sequence[Event], device: Device) -> list[str]:
    notes = [f"{e.name} runs eager: {e.reason}" for e in events if e.reason]
    notes += [f"{r.root.name} runs eager: {r.failed}" for r in run.roots if r.failed]
    if not device.is_measured:
        notes.append("this machine was not measured; `ridgeline hardware measure` makes limits and predictions right")
    if not run.timed(Mode.COMPILED):
        notes.append("no step was timed: the script ended too early, or --no-measure was given")
    return notes
