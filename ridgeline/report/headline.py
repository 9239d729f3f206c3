"""The account in one sentence: what a step costs now, what Ridgeline's graph costs, what the limit is and what binds.

Takes an Account; gives text. The terminal and the page start with `headline`, `ridgeline run` ends with `one_line`.
"""

from ridgeline.base import totals
from ridgeline.base.records import Account, StepPlan
from ridgeline.base.units import format_s
from ridgeline.report.cells import plural


def headline(account: Account) -> str:
    """One or two sentences."""
    eager, graph, limit = (_known(account.plan(name)) for name in ("eager", "graph", "limit"))
    if eager is None and graph is None:
        return "No step was captured: nothing of this program ran in a graph."
    parts = []
    if eager is not None:
        parts.append(f"a step {_takes(eager)} now")
    if graph is not None:
        parts.append(f"Ridgeline's graph {_takes(graph)}{_faster(account)}")
    if limit is not None:
        binds = totals.limit_binds(account)
        parts.append(f"the limit is {format_s(limit.seconds)}" + (f", bound by {binds}" if binds else ""))
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}.{_reached(account)}"


def one_line(account: Account) -> str:
    """The line that `ridgeline run` ends with."""
    graph = _known(account.plan("graph"))
    if graph is None:
        return "ridgeline: no step was captured."
    speedup, fraction = totals.speedup(account), totals.fraction_of_step_limit(account)
    parts = [f"ridgeline: {plural(account.steps_seen, 'step')}, {format_s(graph.seconds)} each"]
    if graph.measured is None:
        parts[0] += " by prediction"
    if speedup is not None:
        parts.append(_times(speedup) + " than eager")
    if fraction is not None:
        parts.append(f"{fraction:.0%} of the limit".replace("%", " %"))
    breaks = sum(row.count for row in account.breaks if row.kind == "graph break")
    parts.append(plural(len(account.graphs), "graph"))
    if breaks:
        parts.append(plural(breaks, "graph break"))
    parts.append(f"compiled in {format_s(sum(g.compile_s for g in account.graphs))}")
    return ", ".join(parts)


def _known(plan: StepPlan | None) -> StepPlan | None:
    return None if plan is None or plan.seconds is None else plan


def _takes(plan: StepPlan) -> str:
    verb = "is predicted to take" if plan.measured is None else "takes"
    return f"{verb} {format_s(plan.seconds)}"


def _faster(account: Account) -> str:
    speedup = totals.speedup(account)
    return "" if speedup is None else f", {_times(speedup)}"


def _times(speedup: float) -> str:
    return f"{speedup:.2f} times faster" if speedup >= 1 else f"{1 / speedup:.2f} times slower"


def _reached(account: Account) -> str:
    fraction = totals.fraction_of_step_limit(account)
    return "" if fraction is None else f" The graph reaches {100 * fraction:.0f} % of the limit."
