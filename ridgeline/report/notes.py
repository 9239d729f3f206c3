"""What the views say under their tables: the marks they use, and the operators of unknown cost.

Takes an Account; gives sentences, those that apply and no others.
"""

from collections.abc import Iterator

from ridgeline.base import totals
from ridgeline.base.records import Account
from ridgeline.report.cells import plural

MOST_NAMES = 12


def marks(account: Account) -> Iterator[str]:
    """A sentence for each mark that this account needs."""
    rows = totals.kernels(account)
    unknown = totals.unknown_cost(account)
    if unknown:
        more = f" and {len(unknown) - MOST_NAMES} more" if len(unknown) > MOST_NAMES else ""
        yield (
            "- is unknown, and sums ending in + are at least that. "
            f"{plural(len(unknown), 'operator')} of unknown cost: {', '.join(unknown[:MOST_NAMES])}{more}."
        )
    if any(k.prediction is not None and not k.prediction.calibrated for k in rows):
        yield "* is uncalibrated: no measurement of this device stands behind the prediction."
    if any(k.measured is not None and k.measured.replayed for k in rows):
        yield "r was replayed on copies after the script ended."
    if any(k.measured is None and k.fraction_of_limit is not None for k in rows):
        yield "~ is by prediction, not measured."
    if any(k.measured is not None and (k.fraction_of_limit or 0) > 1 for k in rows):
        yield "! is above the limit: the model or the timer is wrong there."


def lines_of(account: Account) -> Iterator[str | None]:
    """Every line of the user's that the account names."""
    for graph in account.graphs:
        yield graph.line
        yield from (k.line for k in (*graph.kernels, *graph.eager))
        yield from (move.line for move in graph.moves)
    yield from (row.line for row in account.breaks)
    yield from (row.line for row in account.outside)
    yield from (finding.line for finding in account.findings)
