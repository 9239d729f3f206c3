"""Coverage: how each operator overload is run. Takes names ("aten.add.Tensor"), knows nothing of torch.

native   a row with a body: Ridgeline compiles it
view     a row that PyTorch carries out without moving a byte
library  ATen runs it, and its work is known or known to be unknown
none     no row: ATen runs it and the report says so
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from ridgeline.ops import families
from ridgeline.ops.table import Kind, find

assert families.LOADED

NATIVE, VIEW, LIBRARY, NONE = "native", "view", "library", "none"


def how(overload: str) -> str:
    """How one overload is run."""
    row = find(overload)
    if row is None:
        return NONE
    return {Kind.VIEW: VIEW, Kind.LIBRARY: LIBRARY}.get(row.kind, NATIVE)


def coverage(overloads: Iterable[str]) -> dict[str, str]:
    """How each overload is run, in the order given."""
    return {name: how(name) for name in overloads}


def totals(covered: Mapping[str, str]) -> dict[str, int]:
    """How many overloads are run each way."""
    counts = Counter(covered.values())
    return {kind: counts[kind] for kind in (NATIVE, VIEW, LIBRARY, NONE)}
