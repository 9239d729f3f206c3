"""The account as one HTML page that needs no network: headline, bars, roofline, tables that sort, findings.

Takes an Account; gives the page's text. Its tables hold at most `MOST_ROWS` rows and say what they leave out, so that
a page stays under 5 MB. All names are escaped. Computes nothing but layout.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ridgeline.base import totals
from ridgeline.base.records import Account, KernelAccount, MoveAccount, StepPlan
from ridgeline.base.units import format_s
from ridgeline.report import cells
from ridgeline.report.cells import UNKNOWN, Scale, count, percent, plural
from ridgeline.report.headline import headline
from ridgeline.report.notes import lines_of, marks
from ridgeline.report.roofline import roofline

Lines = Mapping[str, str]  # a line and its short form
MOST_ROWS = 1000
MOST_EAGER_ROWS = 200
MOST_HINTS = 40  # operators that a pointer shows


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: its text, a second line, the number it sorts by, a share drawn as a bar, what a pointer shows."""

    text: str
    under: str = ""
    value: float | None = None
    share: float | None = None
    hint: str = ""
    right: bool = True


@dataclass(frozen=True, slots=True)
class Grid:
    """A table: headings with their unit and rows of cells; `left_out` says what else there is."""

    headings: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Cell, ...], ...]
    last: tuple[tuple[Cell, ...], ...] = ()
    left_out: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of the eager / graph / limit comparison; shares are of the longest."""

    name: str
    seconds: str
    source: str
    share: float
    predicted_share: float | None
    figures: tuple[tuple[str, str], ...]


def to_html(account: Account) -> str:
    """The whole page."""
    environment = Environment(
        loader=PackageLoader("ridgeline", "report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["count"] = count
    environment.filters["plural"] = lambda number, noun: plural(number, noun)
    return environment.get_template("page.html").render(_context(account))


def _context(account: Account) -> dict[str, Any]:
    lines = cells.short_lines(lines_of(account))
    every = totals.kernels(account)
    found = totals.findings(account)
    return {
        "account": account,
        "headline": headline(account),
        "bars": _bars(account),
        "resources": [(name, format_s(s)) for name, s in totals.limit_resources(account).items()],
        "phases": _phases(account),
        "breaks": [(row, lines.get(row.line or "", "")) for row in account.breaks],
        "library": [(cells.short_operators(r.operators), count(r.calls), r.reason) for r in _reasons(account)],
        "outside": _outside(account, lines),
        "plot": roofline(account),
        "kernels": _kernels(every, lines, MOST_ROWS, summed=True),
        "remainder": None if account.remainder_s is None else format_s(account.remainder_s),
        "eager": _kernels(totals.eager_operators(account), lines, MOST_EAGER_ROWS, summed=False),
        "moves": _moves(totals.moves(account, accepted=True), lines, "saved"),
        "stayed": _moves(totals.moves(account, accepted=False), lines, "costs"),
        "elsewhere": _elsewhere(account),
        "findings": [(row, lines.get(row.line or "", ""), format_s(row.saved_s)) for row in found],
        "notes": [*marks(account), *account.notes],
    }


def _reasons(account: Account) -> Sequence[totals.LibraryReason]:
    return totals.library_reasons(account)[:MOST_ROWS]


def _bars(account: Account) -> list[Bar]:
    longest = max((s for plan in account.plans for s in (plan.seconds, plan.predicted_s) if s), default=1.0)
    size = cells.byte_scale(plan.bytes for plan in account.plans)
    flop = cells.flop_scale(plan.flops for plan in account.plans)
    held = cells.capacity_scale(plan.peak_bytes for plan in account.plans)
    return [
        Bar(
            plan.name,
            format_s(plan.seconds),
            _source(plan),
            (plan.seconds or 0.0) / longest,
            None if plan.measured is None or plan.predicted_s is None else plan.predicted_s / longest,
            (
                ("moved", _with_unit(size, plan.bytes)),
                ("launches", count(plan.launches)),
                ("peak memory", _with_unit(held, plan.peak_bytes)),
                ("work", _with_unit(flop, plan.flops)),
            ),
        )
        for plan in account.plans
    ]


def _source(plan: StepPlan) -> str:
    if plan.seconds is None:
        return "unknown"
    if plan.measured is None:
        return "by the model"
    predicted = "" if plan.predicted_s is None else f"; predicted {format_s(plan.predicted_s)}"
    error = "" if plan.prediction_error is None else f" ({percent(plan.prediction_error, signed=True)})"
    spread = f"median of {plan.measured.count}, spread {format_s(plan.measured.spread_s)}"
    return f"measured, {spread}{predicted}{error}"


def _with_unit(scale: Scale, value: float | None) -> str:
    return UNKNOWN if value is None else f"{scale.cell(value)} {scale.unit}"


def _left(text: str, under: str = "", hint: str = "") -> Cell:
    return Cell(text, under, hint=hint, right=False)


def _phases(account: Account) -> Grid:
    time = cells.time_scale(row.total.seconds for row in totals.phases(account))
    return Grid(
        (("phase", ""), ("graphs", ""), ("operators", ""), ("kernels", "a step"), ("library calls", "a step"),
         ("kernel time", time.unit), ("compiling", "s"), ("roots", "")),
        tuple(
            (
                _left(row.phase),
                *(Cell(f"{n:,}", value=n) for n in (row.graphs, row.operators, row.kernels, row.library_calls)),
                Cell(time.cell(row.total.seconds), value=row.total.seconds.value),
                Cell(f"{row.compile_s:.1f}", value=row.compile_s),
                _left(", ".join(row.roots)),
            )
            for row in totals.phases(account)
        ),
    )  # fmt: skip


def _outside(account: Account, lines: Lines) -> Grid:
    rows = account.outside
    seconds, moved = totals.total(row.seconds for row in rows), totals.total(row.bytes for row in rows)
    time, size = cells.time_scale([seconds]), cells.byte_scale([moved])
    calls = sum(row.calls for row in rows)
    everything = (
        _left(f"all {len(rows)}"), Cell(count(calls)), Cell(size.cell(moved)), Cell(time.cell(seconds)), _left("")
    )  # fmt: skip
    return Grid(
        (("operator", ""), ("calls", "a step"), ("moved", size.unit), ("time", time.unit), ("line", "")),
        tuple(
            (
                _left(cells.short_operator(row.operator), hint=row.operator),
                Cell(count(row.calls), value=row.calls),
                Cell(size.cell(row.bytes), value=row.bytes),
                Cell(time.cell(row.seconds), value=row.seconds),
                _left(lines.get(row.line or "", UNKNOWN), hint=row.line or ""),
            )
            for row in rows[:MOST_ROWS]
        ),
        (everything,) if rows else (),
        _left_out(len(rows), MOST_ROWS),
    )


def _left_out(rows: int, most: int) -> str:
    return f"and {rows - most:,} more" if rows > most else ""


def _kernels(rows: Sequence[KernelAccount], lines: Lines, most: int, summed: bool) -> Grid:
    every = totals.total_of(rows)
    time = cells.time_scale([*(k.per_step(k.seconds) for k in rows), every.seconds])
    size, flop = cells.byte_scale([every.bytes_read, every.bytes_written]), cells.flop_scale([every.flops])
    shown, rest = rows[:most], rows[most:]
    sums = [(f"{len(rest):,} more", totals.total_of(rest))] * bool(rest) + [(f"all {len(rows):,}", every)] * summed
    return Grid(
        (("operators", "line"), ("phase", ""), ("calls", "a step"), ("read", size.unit), ("written", size.unit),
         ("work", flop.unit), ("intensity", "FLOP per byte"), ("limit", time.unit), ("predicted", time.unit),
         ("measured", time.unit), ("of limit", "%"), ("binds", "")),
        tuple(_kernel_row(k, lines, size, flop, time) for k in shown),
        tuple(_sum_row(name, group, size, flop, time) for name, group in sums) if rows else (),
    )  # fmt: skip


def _kernel_row(k: KernelAccount, lines: Lines, size: Scale, flop: Scale, time: Scale) -> tuple[Cell, ...]:
    work, limit, predicted, measured = k.work, k.limit, k.prediction, k.measured
    fraction = k.fraction_of_limit
    interval = "" if predicted is None else _interval(k, time)
    star = "*" if predicted is not None and not predicted.calibrated else ""
    replayed = "r" if measured is not None and measured.replayed else ""
    spread = "" if measured is None else f"±{time.cell(k.per_step(measured.spread_s))}"

    def scaled(scale: Scale, of_one_call: float | None, **more: str) -> Cell:
        value = k.per_step(of_one_call)
        return Cell(scale.cell(value) + more.pop("mark", ""), value=value, **more)  # type: ignore[arg-type]

    name = cells.short_operators(k.operators) or k.name
    about = "\n".join(
        part for part in (k.name, ", ".join(k.operators[:MOST_HINTS]), k.shapes, k.line, k.reason) if part
    )
    per_byte = None if work is None else work.flop_per_byte
    return (
        _left(name, " · ".join(part for part in (lines.get(k.line or "", UNKNOWN), k.shapes) if part), hint=about),
        _left(k.phase, "library" if k.kind == "library" else ""),
        Cell(count(k.calls), value=k.calls),
        scaled(size, None if work is None else work.bytes_read),
        scaled(size, None if work is None else work.bytes_written),
        scaled(flop, None if work is None else work.total_flops),
        Cell(UNKNOWN if per_byte is None else f"{per_byte:.3g}", value=per_byte),
        scaled(time, None if limit is None else limit.seconds),
        scaled(time, None if predicted is None else predicted.seconds, mark=star, hint=interval),
        scaled(time, None if measured is None else measured.seconds, mark=replayed, under=spread),
        Cell(_share(k), value=fraction, share=fraction),
        _left(UNKNOWN if limit is None else limit.binds, hint=_resources(k)),
    )


def _interval(k: KernelAccount, time: Scale) -> str:
    assert k.prediction is not None
    low, high = k.per_step(k.prediction.low_s), k.per_step(k.prediction.high_s)
    return f"between {time.cell(low)} and {time.cell(high)} {time.unit}"


def _share(k: KernelAccount) -> str:
    fraction = k.fraction_of_limit
    if fraction is None:
        return UNKNOWN
    mark = "!" if fraction > 1 and k.measured is not None else ""
    return ("" if k.measured is not None else "~") + percent(fraction) + mark


def _resources(k: KernelAccount) -> str:
    if k.limit is None:
        return ""
    return ", ".join(f"{name} {format_s(k.per_step(s))}" for name, s in k.limit.by_resource.items())


def _sum_row(name: str, group: totals.KernelTotal, size: Scale, flop: Scale, time: Scale) -> tuple[Cell, ...]:
    return (
        _left(name), _left(""), Cell(count(group.calls)), Cell(size.cell(group.bytes_read)),
        Cell(size.cell(group.bytes_written)), Cell(flop.cell(group.flops)), Cell(""), Cell(time.cell(group.limit_s)),
        Cell(time.cell(group.predicted_s)), Cell(time.cell(group.measured_s)), Cell(""), _left(""),
    )  # fmt: skip


def _moves(rows: Sequence[MoveAccount], lines: Lines, verb: str) -> Grid:
    time, size = cells.time_scale(m.saved_s for m in rows), cells.byte_scale(m.saved_bytes for m in rows)
    most = max((abs(m.saved_s) for m in rows), default=0.0)
    return Grid(
        (("operators", "reason"), ("move", ""), (verb, time.unit), (verb, size.unit), ("times", ""), ("line", "")),
        tuple(
            (
                _left(cells.short_operators(m.what.split(", ")), cells.short_reason(m.reason), hint=m.what),
                _left(m.kind),
                Cell(time.cell(m.saved_s), value=m.saved_s, share=abs(m.saved_s) / most if most else 0.0),
                Cell(size.cell(m.saved_bytes), value=m.saved_bytes),
                Cell(f"×{m.count}", value=m.count),
                _left(lines.get(m.line or "", UNKNOWN), hint=m.line or ""),
            )
            for m in rows[:MOST_ROWS]
        ),
        left_out=_left_out(len(rows), MOST_ROWS),
    )


def _elsewhere(account: Account) -> Grid:
    here = {plan.name: plan.predicted_s for plan in account.plans}
    rows = [
        ("here", account.device_id, here.get("eager"), here.get("graph"), here.get("limit"),
         totals.limit_binds(account), True),
        *((r.device, r.note, r.eager_s, r.graph_s, r.limit_s, r.binds, r.fits) for r in account.elsewhere),
    ]  # fmt: skip
    time = cells.time_scale(s for row in rows for s in row[2:5])
    longest = max((row[3] for row in rows if row[3]), default=1.0)
    return Grid(
        (("device", ""), ("eager", time.unit), ("graph", time.unit), ("limit", time.unit), ("binds", ""), ("fits", "")),
        tuple(
            (
                _left(device, note),
                Cell(time.figures(eager), value=eager),
                Cell(time.figures(graph), value=graph, share=None if graph is None else graph / longest),
                Cell(time.figures(limit), value=limit),
                _left(binds or UNKNOWN),
                _left(UNKNOWN if fits is None else "yes" if fits else "no"),
            )
            for device, note, eager, graph, limit, binds, fits in rows
        )
        if account.elsewhere
        else (),
    )
