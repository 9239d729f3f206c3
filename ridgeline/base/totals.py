"""Sums, rankings and groups over an Account, worked out once so that every view shows the same numbers.

Takes the records; gives more records. Values are per step: those of one call times the calls. A sum counts the terms
that nobody knows, so that unknown never becomes zero. Formats nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from ridgeline.base.records import Account, Finding, KernelAccount, MoveAccount


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum over the known terms. `missing` counts the unknown ones: with any, the true sum is larger."""

    known: float
    missing: int
    terms: int

    @property
    def value(self) -> float | None:
        """None when there were terms and none is known."""
        return None if self.missing and self.missing == self.terms else self.known


def total(values: Iterable[float | None]) -> Sum:
    """Adds up what is known and counts what is not."""
    terms = list(values)
    known = [value for value in terms if value is not None]
    return Sum(sum(known), len(terms) - len(known), len(terms))


@dataclass(frozen=True, slots=True)
class KernelTotal:
    """Several kernels together, per step."""

    kernels: int
    calls: float
    bytes_read: Sum
    bytes_written: Sum
    flops: Sum
    limit_s: Sum
    predicted_s: Sum
    measured_s: Sum
    seconds: Sum


def total_of(kernels: Iterable[KernelAccount]) -> KernelTotal:
    """What some kernels do in a step."""
    ks = list(kernels)
    return KernelTotal(
        kernels=len(ks),
        calls=sum(k.calls for k in ks),
        bytes_read=total(k.per_step(None if k.work is None else k.work.bytes_read) for k in ks),
        bytes_written=total(k.per_step(None if k.work is None else k.work.bytes_written) for k in ks),
        flops=total(k.per_step(None if k.work is None else k.work.total_flops) for k in ks),
        limit_s=total(k.per_step(None if k.limit is None else k.limit.seconds) for k in ks),
        predicted_s=total(k.per_step(None if k.prediction is None else k.prediction.seconds) for k in ks),
        measured_s=total(k.per_step(None if k.measured is None else k.measured.seconds) for k in ks),
        seconds=total(k.per_step(k.seconds) for k in ks),
    )


def kernels(account: Account) -> tuple[KernelAccount, ...]:
    """Every kernel and library call of the graphs, the one that takes most of a step first."""
    return _largest_first(k for graph in account.graphs for k in graph.kernels)


def eager_operators(account: Account) -> tuple[KernelAccount, ...]:
    """Every operator of the eager plans, the one that takes most of a step first."""
    return _largest_first(k for graph in account.graphs for k in graph.eager)


def _largest_first(ks: Iterable[KernelAccount]) -> tuple[KernelAccount, ...]:
    return tuple(sorted(ks, key=lambda k: -(k.per_step(k.seconds) or (k.limit.seconds * k.calls if k.limit else 0.0))))


@dataclass(frozen=True, slots=True)
class PhaseTotal:
    """The graphs of one phase of the step."""

    phase: str
    roots: tuple[str, ...]
    graphs: int
    operators: int
    kernels: int
    library_calls: int
    compile_s: float
    total: KernelTotal


def phases(account: Account) -> tuple[PhaseTotal, ...]:
    """One row a phase, in the order of the graphs. Kernels and library calls are launches per step."""
    out = []
    for phase in dict.fromkeys(graph.phase for graph in account.graphs):
        graphs = [graph for graph in account.graphs if graph.phase == phase]
        launched = [k for graph in graphs for k in graph.kernels]
        out.append(
            PhaseTotal(
                phase=phase,
                roots=tuple(dict.fromkeys(graph.root for graph in graphs)),
                graphs=len(graphs),
                operators=sum(graph.operators for graph in graphs),
                kernels=round(sum(k.calls for k in launched if k.kind != "library")),
                library_calls=round(sum(k.calls for k in launched if k.kind == "library")),
                compile_s=sum(graph.compile_s for graph in graphs),
                total=total_of(launched),
            )
        )
    return tuple(out)


@dataclass(frozen=True, slots=True)
class LibraryReason:
    """Operators that run as library calls for one and the same reason."""

    reason: str
    operators: tuple[str, ...]
    calls: float
    lines: tuple[str, ...]


def library_reasons(account: Account) -> tuple[LibraryReason, ...]:
    """Library calls that have a reason, the reason with most calls first."""
    by_reason: dict[str, list[KernelAccount]] = {}
    for k in kernels(account):
        if k.kind == "library" and k.reason:
            by_reason.setdefault(k.reason, []).append(k)
    rows = (
        LibraryReason(
            reason,
            tuple(dict.fromkeys(operator for k in ks for operator in k.operators)),
            sum(k.calls for k in ks),
            tuple(dict.fromkeys(k.line for k in ks if k.line)),
        )
        for reason, ks in by_reason.items()
    )
    return tuple(sorted(rows, key=lambda row: -row.calls))


def moves(account: Account, accepted: bool) -> tuple[MoveAccount, ...]:
    """Moves made, or stores that stayed, per step; equal ones as one with their count; the most seconds first."""
    groups: dict[tuple[object, ...], MoveAccount] = {}
    for graph in account.graphs:
        for move in graph.moves:
            if move.accepted != accepted:
                continue
            key = (move.kind, move.what, move.line, move.reason)
            first = groups.get(key)
            groups[key] = replace(
                move,
                count=move.count + (first.count if first else 0),
                saved_bytes=move.saved_bytes * graph.calls + (first.saved_bytes if first else 0.0),
                saved_s=move.saved_s * graph.calls + (first.saved_s if first else 0.0),
            )
    return tuple(sorted(groups.values(), key=lambda move: (-move.saved_s, -move.saved_bytes)))


def findings(account: Account) -> tuple[Finding, ...]:
    """What saves most first; what nobody can tell the saving of last."""
    return tuple(sorted(account.findings, key=lambda f: -1.0 if f.saved_s is None else f.saved_s, reverse=True))


def unknown_cost(account: Account) -> tuple[str, ...]:
    """Operators in or outside the graphs whose bytes or FLOP nobody can tell."""
    return tuple(dict.fromkeys(_unknown(account)))


def _unknown(account: Account) -> Iterator[str]:
    for graph in account.graphs:
        for k in (*graph.kernels, *graph.eager):
            if k.work is None or k.work.flops is None:
                yield from k.operators or (k.name,)
    yield from (row.operator for row in account.outside if row.bytes is None)


def limit_resources(account: Account) -> Mapping[str, float]:
    """Seconds a step that each resource alone would take at the step limit, over all graphs; the most first."""
    seconds: dict[str, float] = {}
    for graph in account.graphs:
        if graph.limit is None:
            continue
        for name, value in (graph.limit.by_resource or {graph.limit.binds: graph.limit.seconds}).items():
            seconds[name] = seconds.get(name, 0.0) + value * graph.calls
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def limit_binds(account: Account) -> str | None:
    """The resource that the step limit waits for."""
    return next(iter(limit_resources(account)), None)


def speedup(account: Account) -> float | None:
    """Eager over graph: both measured, or both predicted."""
    return _ratio(account, "eager", "graph")


def fraction_of_step_limit(account: Account) -> float | None:
    """The step limit over the graph's seconds."""
    limit, graph = account.plan("limit"), account.plan("graph")
    if limit is None or limit.seconds is None or graph is None or not graph.seconds:
        return None
    return limit.seconds / graph.seconds


def _ratio(account: Account, upper: str, lower: str) -> float | None:
    above, below = account.plan(upper), account.plan(lower)
    if above is None or below is None:
        return None
    if above.measured is not None and below.measured is not None and below.measured.seconds:
        return above.measured.seconds / below.measured.seconds
    if above.predicted_s is not None and below.predicted_s:
        return above.predicted_s / below.predicted_s
    return None
