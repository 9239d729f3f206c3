"""What a cell of a view says: numbers in their column's one unit, short names of operators and lines.

Takes numbers in base units (seconds, bytes, FLOP) and the names of an Account; gives text. "-" is unknown; a sum that
lacks unknown terms ends in "+".
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10

from ridgeline.base.totals import Sum
from ridgeline.base.units import GIB, GIGA, KIB, KILO, MEGA, MIB, TERA

UNKNOWN = "-"
PHASES: Mapping[str, str] = {"forward": "fwd", "backward": "bwd", "optimizer": "opt", "inference": "inf"}
_TIMES = ((1.0, "s"), (1 / KILO, "ms"), (1 / MEGA, "µs"))
_DECIMAL = ((TERA, "T"), (GIGA, "G"), (MEGA, "M"), (KILO, "k"), (1.0, ""))
_BINARY = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"), (1.0, "B"))
MOST_NAMES = 10  # of operators in a cell
_FIGURES = 4  # significant ones of the largest number of a column


@dataclass(frozen=True, slots=True)
class Scale:
    """The unit of one column and its digits after the point."""

    factor: float
    unit: str
    digits: int

    def cell(self, value: float | Sum | None) -> str:
        """The number alone; the unit stands in the heading."""
        if isinstance(value, Sum):
            return self.cell(value.value) + ("+" if value.missing and value.value is not None else "")
        if value is None:
            return UNKNOWN
        scaled = value / self.factor
        least = 10.0**-self.digits
        if 0 < abs(scaled) < least / 2:
            return f"<{least:.{self.digits}f}"
        return "0" if not scaled else f"{scaled:,.{self.digits}f}"

    def figures(self, value: float | None) -> str:
        """The number with three significant figures, for columns whose rows are far apart."""
        if not value:
            return self.cell(value)
        scaled = value / self.factor
        return f"{scaled:,.{max(0, 2 - floor(log10(abs(scaled))))}f}"


def _scale(values: Iterable[float | Sum | None], units: Sequence[tuple[float, str]]) -> Scale:
    numbers = (value.value if isinstance(value, Sum) else value for value in values)
    largest = max((abs(value) for value in numbers if value), default=0.0)
    factor, unit = next((row for row in units if largest >= row[0]), units[-1])
    whole = floor(log10(largest / factor)) + 1 if largest else 1
    return Scale(factor, unit, 0 if factor == 1 and not unit.endswith("s") else min(3, max(0, _FIGURES - whole)))


def time_scale(values: Iterable[float | Sum | None]) -> Scale:
    """ms, or µs where all are shorter than that."""
    return _scale(values, _TIMES[1:])


def byte_scale(values: Iterable[float | Sum | None]) -> Scale:
    """Traffic: GB is 10^9 bytes."""
    return _scale(values, tuple((factor, prefix + "B") for factor, prefix in _DECIMAL))


def flop_scale(values: Iterable[float | Sum | None]) -> Scale:
    """Operations: one multiply-add is two."""
    return _scale(values, tuple((factor, prefix + "FLOP") for factor, prefix in _DECIMAL))


def capacity_scale(values: Iterable[float | None]) -> Scale:
    """Memory held: GiB is 2^30 bytes."""
    return _scale(values, _BINARY)


def percent(value: float | None, signed: bool = False) -> str:
    """A share as `69%`, or a difference as `+3%`."""
    if value is None:
        return UNKNOWN
    return f"{value:+.0%}" if signed else f"{value:.0%}"


def count(value: float | None) -> str:
    """Calls per step: whole, or with the fraction that an average has."""
    if value is None:
        return UNKNOWN
    return f"{value:,.2f}".rstrip("0").rstrip(".")


def plural(number: int, noun: str, nouns: str = "") -> str:
    """`1 graph`, `2 graphs`."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def short_operator(name: str) -> str:
    """`aten.add.Tensor` -> `add`, `mylib.scan.default` -> `mylib.scan`."""
    parts = name.replace("::", ".").split(".")
    if parts[0] == "aten" and len(parts) > 1:
        return parts[1]
    return ".".join(parts[:2])


def short_reason(reason: str) -> str:
    """A reason with its operators as `short_operator` has them."""
    return re.sub(r"\baten\.\w+(\.\w+)?", lambda found: short_operator(found[0]), reason)


def short_operators(names: Iterable[str]) -> str:
    """Operators of a kernel in their order, equal ones counted: `rms_norm, mul ×2`."""
    counts = Counter(map(short_operator, names))
    shown = [name if number == 1 else f"{name} ×{number}" for name, number in counts.items()]
    more = [f"{len(shown) - MOST_NAMES} more"] if len(shown) > MOST_NAMES else []
    return ", ".join(shown[:MOST_NAMES] + more)


def short_lines(lines: Iterable[str | None]) -> Mapping[str, str]:
    """`/home/me/model/gpt.py:62` -> `gpt.py:62`, with as many folders as tell equal file names apart."""
    known = dict.fromkeys(line for line in lines if line)
    paths = dict.fromkeys(line.rpartition(":")[0] or line for line in known)
    short: dict[str, str] = {}
    for path in paths:
        parts = re.split(r"[/\\]", path)
        others = [re.split(r"[/\\]", other) for other in paths if other != path]
        kept = 1
        while kept < len(parts) and any(other[-kept:] == parts[-kept:] for other in others):
            kept += 1
        short[path] = "/".join(parts[-kept:])
    return {line: _with_number(line, short) for line in known}


def _with_number(line: str, short: Mapping[str, str]) -> str:
    path, colon, number = line.rpartition(":")
    return f"{short[path]}{colon}{number}" if path else short[line]
