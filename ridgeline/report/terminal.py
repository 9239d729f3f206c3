"""The account as text: a headline and six sections, for a terminal or a pipe.

Takes an Account and a rich console; prints. Made for 100 columns, uses more for names where there are more, and keeps
every line whole. A stream that cannot encode the signs gets plain ones. Computes nothing but layout.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ridgeline.base import totals
from ridgeline.base.records import Account, KernelAccount, MoveAccount, Outside, StepPlan
from ridgeline.base.units import format_s
from ridgeline.report import cells
from ridgeline.report.cells import UNKNOWN, Scale, count, percent, plural
from ridgeline.report.headline import headline
from ridgeline.report.notes import lines_of, marks
from ridgeline.report.tables import paragraph, plain_table

BAR_WIDTH = 18
WIDE = 98  # columns from which on there is room for bars
FULL, GOOD = 0.5, 0.8  # shares of the limit from which on a kernel is fair, and good
DIM = "dim"
_BINDS: Mapping[str, str] = {"special functions": "special", "random numbers": "random"}
_PLAIN = str.maketrans({"µ": "u", "×": "x", "█": "#", "─": "-", "·": "-", "±": "~", "…": "~"})


@dataclass(frozen=True, slots=True)
class _View:
    """What every section needs: where to print, how many rows, and the short form of each line."""

    account: Account
    top: int
    console: Console
    lines: Mapping[str, str]

    def line(self, line: str | None) -> str:
        return UNKNOWN if line is None else self.lines[line]

    def say(self, text: str, indent: str = "   ", style: str = "") -> None:
        paragraph(self.console, text, indent, style=style)

    def section(self, number: int, title: str, facts: str = "") -> None:
        self.console.print()
        heading = Text.assemble((f"{number}  {title}", "bold"), (f"   {facts}" if facts else "", DIM))
        self.console.print(heading, soft_wrap=True)

    def table(self, table: Table) -> None:
        self.console.print(Padding(table, (0, 0, 0, 3), expand=False))


def render(account: Account, top: int, console: Console) -> None:
    """Print everything; at most `top` rows of each long table."""
    encoding = console.encoding
    if console.is_terminal and encoding.startswith("utf"):
        _print(account, top, console)
        return
    text = StringIO()
    _print(account, top, Console(file=text, width=console.width, highlight=False, color_system=None))
    for line in text.getvalue().splitlines():
        kept = line.rstrip() if encoding.startswith("utf") else line.rstrip().translate(_PLAIN)
        console.file.write(kept.encode(encoding, "replace").decode(encoding) + "\n")


def _print(account: Account, top: int, console: Console) -> None:
    view = _View(account, max(top, 1), console, cells.short_lines(lines_of(account)))
    console.print(Text.assemble((account.script, "bold"), f" on {account.device_name} ({account.device_id})"))
    paragraph(console, headline(account), "", "", "bold")
    _capture(view)
    _step(view)
    _kernels(view)
    _moves(view)
    _elsewhere(view)
    _findings(view)
    _footnotes(view)


# 1. Capture.


def _capture(view: _View) -> None:
    account = view.account
    seen = f"{plural(account.steps_seen, 'step')} seen, {account.steps_timed} timed"
    view.section(1, "Capture", seen)
    rows = totals.phases(account)
    if rows:
        table = plain_table(
            "phase", "graphs", "operators", "kernels\na step", "library\na step", "compiling\ns", ("roots", "left"),
            gap=1,
        )  # fmt: skip
        for row in rows:
            figures = (row.graphs, row.operators, row.kernels, row.library_calls)
            roots = Text(", ".join(row.roots))
            table.add_row(row.phase, *(f"{figure:,}" for figure in figures), f"{row.compile_s:.1f}", roots)
        view.table(table)
    else:
        view.say("No graph was captured.")
    _breaks(view)
    _library(view)
    _outside(view)


def _breaks(view: _View) -> None:
    if not view.account.breaks:
        view.say("No graph breaks and no recompiles.")
    for kind in dict.fromkeys(row.kind for row in view.account.breaks):
        rows = [row for row in view.account.breaks if row.kind == kind]
        view.say(f"{plural(sum(row.count for row in rows), kind)}:")
        for row in rows[: view.top]:
            place = f"{view.line(row.line)}  " if row.line else ""
            view.say(f"×{row.count}  {place}{row.reason}", "     ")
        _more(view, len(rows))


def _library(view: _View) -> None:
    rows = totals.library_reasons(view.account)
    if rows:
        view.say("Library calls, and why:")
    for row in rows[: view.top]:
        names = cells.short_operators(row.operators)
        view.say(f"{names}, {count(row.calls)} a step: {row.reason}", "     ")
    _more(view, len(rows))


def _outside(view: _View) -> None:
    rows = view.account.outside
    if not rows:
        view.say("Nothing ran outside the graphs.")
        return
    seconds, moved = totals.total(row.seconds for row in rows), totals.total(row.bytes for row in rows)
    time, size = cells.time_scale([seconds]), cells.byte_scale([moved])
    view.say("Outside the graphs:")
    table = plain_table(
        "operator", "calls\na step", f"moved\n{size.unit}", f"time\n{time.unit}", ("line", "left"), gap=1
    )
    for row in rows[: view.top]:
        table.add_row(*_outside_cells(row, size, time), view.line(row.line))
    everything = (count(sum(row.calls for row in rows)), size.cell(moved), time.cell(seconds), "")
    table.add_row(f"all {len(rows)}", *everything, style="bold")
    view.table(table)


def _outside_cells(row: Outside, size: Scale, time: Scale) -> tuple[str, ...]:
    return cells.short_operator(row.operator), count(row.calls), size.cell(row.bytes), time.cell(row.seconds)


# 2. Eager, graph, limit.


def _step(view: _View) -> None:
    plans = view.account.plans
    view.section(2, "Eager, graph, limit", "per step")
    if not plans:
        view.say("Nothing to compare.")
        return
    time = cells.time_scale([*(p.seconds for p in plans), *(p.predicted_s for p in plans)])
    size, flop = cells.byte_scale(p.bytes for p in plans), cells.flop_scale(p.flops for p in plans)
    held = cells.capacity_scale(p.peak_bytes for p in plans)
    headings = [
        "", f"measured\n{time.unit}", f"spread\n{time.unit}", f"predicted\n{time.unit}", "predicted\noff by",
        f"moved\n{size.unit}", "launches\n", f"peak\n{held.unit}", f"work\n{flop.unit}",
    ]  # fmt: skip
    bars = view.console.width >= WIDE
    table = plain_table(*headings, *[("", "left")] * bars, gap=1)
    longest = max((plan.seconds or 0.0 for plan in plans), default=0.0)
    for plan in plans:
        measured = plan.measured
        row: list[str | Text] = [
            plan.name,
            time.cell(None if measured is None else measured.seconds),
            time.cell(None if measured is None else measured.spread_s),
            time.cell(plan.predicted_s),
            percent(plan.prediction_error, signed=True),
            size.cell(plan.bytes),
            count(plan.launches),
            held.cell(plan.peak_bytes),
            flop.cell(plan.flops),
        ]
        table.add_row(*row, *[_bar(plan, longest)] * bars)
    view.table(table)
    resources = totals.limit_resources(view.account)
    if resources:
        alone = ", ".join(f"{name} {format_s(seconds)}" for name, seconds in resources.items())
        view.say(f"What the limit needs of each resource: {alone}.")


def _bar(plan: StepPlan, longest: float) -> Text:
    if not plan.seconds or not longest:
        return Text(UNKNOWN)
    style = {"graph": "green", "limit": "cyan"}.get(plan.name, "")
    return Text("█" * max(1, round(BAR_WIDTH * plan.seconds / longest)), style=style)


# 3. Kernels.


def _kernels(view: _View) -> None:
    rows = totals.kernels(view.account)
    shown, rest = rows[: view.top], rows[view.top :]
    view.section(3, "Kernels, largest first", f"{len(shown)} of {len(rows)}; per step, all calls together")
    if not rows:
        view.say("No kernel was launched.")
        return
    every = totals.total_of(rows)
    time = cells.time_scale([*(k.per_step(k.seconds) for k in rows), every.seconds])
    size = cells.byte_scale([every.bytes_read, every.bytes_written])
    flop = cells.flop_scale([every.flops])
    table = plain_table(
        "operators fused\nuser's line", f"read\n{size.unit}", f"written\n{size.unit}", f"work\n{flop.unit}",
        f"limit\n{time.unit}", f"predicted\n{time.unit}", f"measured\n{time.unit}", "of limit\nbinds", gap=1,
    )  # fmt: skip
    table.columns[0].no_wrap = False
    for k in shown:
        table.add_row(*_kernel_cells(view, k, size, flop, time))
    for name, group in ((f"{len(rest)} more", totals.total_of(rest)), (f"all {len(rows)}", every)):
        if group.kernels:
            table.add_row(*_total_cells(f"{name}, ×{count(group.calls)}", group, size, flop, time), style="bold")
    view.table(table)
    remainder = view.account.remainder_s
    if remainder is not None:
        view.say(f"The rest of the measured step, in no kernel: {format_s(remainder)}.")


def _kernel_cells(view: _View, k: KernelAccount, size: Scale, flop: Scale, time: Scale) -> list[str | Text]:
    name = cells.short_operators(k.operators) or k.name
    place = [view.line(k.line), cells.PHASES.get(k.phase, k.phase), "lib" * (k.kind == "library"), f"×{count(k.calls)}"]
    what = _two_lines(name, " ".join(part for part in place if part))
    work, predicted, measured = k.work, k.prediction, k.measured
    star = "*" if predicted is not None and not predicted.calibrated else ""
    replayed = "r" if measured is not None and measured.replayed else ""
    return [
        what,
        size.cell(None if work is None else k.per_step(work.bytes_read)),
        size.cell(None if work is None else k.per_step(work.bytes_written)),
        flop.cell(None if work is None else k.per_step(work.total_flops)),
        time.cell(None if k.limit is None else k.per_step(k.limit.seconds)),
        time.cell(None if predicted is None else k.per_step(predicted.seconds)) + star,
        time.cell(None if measured is None else k.per_step(measured.seconds)) + replayed,
        Text.assemble(_share(k), "\n", ("" if k.limit is None else _BINDS.get(k.limit.binds, k.limit.binds), DIM)),
    ]


def _share(k: KernelAccount) -> Text:
    fraction = k.fraction_of_limit
    if fraction is None:
        return Text(UNKNOWN)
    style = "green" if fraction >= GOOD else "yellow" if fraction >= FULL else "red"
    mark = "!" if fraction > 1 and k.measured is not None else ""
    return Text(("" if k.measured is not None else "~") + percent(fraction) + mark, style=style)


def _total_cells(name: str, group: totals.KernelTotal, size: Scale, flop: Scale, time: Scale) -> list[str]:
    return [
        name,
        size.cell(group.bytes_read),
        size.cell(group.bytes_written),
        flop.cell(group.flops),
        time.cell(group.limit_s),
        time.cell(group.predicted_s),
        time.cell(group.measured_s),
        "",
    ]


def _two_lines(first: str, second: str) -> Text:
    """A cell that loses the end of a line rather than fold it."""
    return Text.assemble(first, "\n", (second, DIM), no_wrap=True, overflow="ellipsis")


# 4. Moves.


def _moves(view: _View) -> None:
    made, stayed = totals.moves(view.account, accepted=True), totals.moves(view.account, accepted=False)
    view.section(4, "Moves from eager to graph", "saved per step")
    if not made and not stayed:
        view.say("No move was tried.")
        return
    _move_table(view, made, "saved", "Nothing paid.")
    view.console.print()
    view.say("Largest stores that stayed:" if stayed else "No store stayed that could have gone.")
    if stayed:
        _move_table(view, stayed, "costs", "")


def _move_table(view: _View, rows: Sequence[MoveAccount], verb: str, none: str) -> None:
    if not rows:
        view.say(none)
        return
    time, size = cells.time_scale(m.saved_s for m in rows), cells.byte_scale(m.saved_bytes for m in rows)
    table = plain_table(
        f"{verb}\n{time.unit}", f"{verb}\n{size.unit}", "times\n", ("move\n", "left"), ("operators\nreason", "left"),
        ("line\n", "left"), gap=1,
    )  # fmt: skip
    table.columns[0].justify = "right"
    table.columns[4].no_wrap = False
    for m in rows[: view.top]:
        operators = Text(cells.short_operators(m.what.split(", ")), no_wrap=True, overflow="ellipsis")
        what = Group(operators, Text(cells.short_reason(m.reason), style=DIM))
        table.add_row(time.cell(m.saved_s), size.cell(m.saved_bytes), f"×{m.count}", m.kind, what, view.line(m.line))
    view.table(table)
    _more(view, len(rows))


# 5. Elsewhere.


def _elsewhere(view: _View) -> None:
    account = view.account
    rows = account.elsewhere
    view.section(5, "Elsewhere", "predicted, per step")
    if not rows:
        view.say("Name other accelerators with --on to see this step there.")
        return
    seconds_here = (plan.predicted_s for plan in account.plans)
    time = cells.time_scale([*seconds_here, *(s for row in rows for s in (row.eager_s, row.graph_s, row.limit_s))])
    table = plain_table(
        "device", f"eager\n{time.unit}", f"graph\n{time.unit}", f"limit\n{time.unit}", ("binds", "left"),
        ("fits", "left"), ("", "left"), gap=1,
    )  # fmt: skip
    here = [account.plan(name) for name in ("eager", "graph", "limit")]
    predicted = (time.figures(None if plan is None else plan.predicted_s) for plan in here)
    table.add_row("here", *predicted, totals.limit_binds(account) or UNKNOWN, "yes", account.device_id)
    for row in rows:
        fits = UNKNOWN if row.fits is None else "yes" if row.fits else "no"
        seconds = (time.figures(row.eager_s), time.figures(row.graph_s), time.figures(row.limit_s))
        table.add_row(row.device, *seconds, row.binds or UNKNOWN, fits, row.note)
    view.table(table)


# 6. Findings.


def _findings(view: _View) -> None:
    rows = totals.findings(view.account)
    view.section(6, "Findings", "by seconds saved per step")
    if not rows:
        view.say("Nothing to change was found.")
    width = len(str(min(len(rows), view.top)))
    for number, row in enumerate(rows[: view.top], 1):
        saved = "saves an unknown time" if row.saved_s is None else f"saves {format_s(row.saved_s)}"
        place = f"  {view.line(row.line)}" if row.line else ""
        title = Text.assemble(f"   {number:>{width}}. ", (row.title, "bold"), f", {saved}", (place, DIM))
        view.console.print(title, soft_wrap=True)
        paragraph(view.console, row.advice, " " * (width + 5), "")
    _more(view, len(rows))


def _footnotes(view: _View) -> None:
    account = view.account
    view.console.print()
    for note in (*marks(account), *account.notes):
        paragraph(view.console, note, "", style=DIM)
    versions = ", ".join(f"{name} {version}" for name, version in account.versions.items())
    paragraph(view.console, versions, "", style=DIM)


def _more(view: _View, rows: int) -> None:
    if rows > view.top:
        view.say(f"and {rows - view.top:,} more", "     ", DIM)
