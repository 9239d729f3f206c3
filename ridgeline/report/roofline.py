"""The roofline plot: FLOP per byte against FLOP/s, the device's ceilings and one point a kernel.

Takes an Account; gives positions in the plot's own units, which the page's template draws. `ceilings` reads the roofs
that an Account holds off a device. Kernels without FLOP, bytes or seconds have no place on logarithmic axes and are
counted instead.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import atan, degrees, floor, log10, sqrt

from ridgeline.base import totals
from ridgeline.base.records import Account, Ceiling, KernelAccount
from ridgeline.base.units import format_s, format_si
from ridgeline.hw.device import FORMAT_BITS, Device
from ridgeline.report.cells import percent, short_operators

WIDTH, HEIGHT = 920.0, 430.0
LEFT, RIGHT, TOP, BOTTOM = 88.0, 14.0, 20.0, 46.0
SMALLEST, LARGEST = 4.0, 17.0  # radius of a point
ROOM_X, ROOM_Y, CLEAR = 0.9, 0.35, 0.05  # decades beyond the largest value, and below the least
MOST_POINTS, MOST_LABELS = 400, 6
LETTER, LINE, LONGEST = 6.4, 15.0, 26  # room of a label


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Roof:
    """One ceiling as a line, its label, and the label's slope in degrees."""

    x1: float
    y1: float
    x2: float
    y2: float
    label: str
    label_x: float
    label_y: float
    angle: float


@dataclass(frozen=True, slots=True)
class Point:
    """One kernel. `hint` is the text that a pointer shows."""

    x: float
    y: float
    radius: float
    kind: str
    label: str
    label_right: bool
    hint: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Roofline:
    """The whole plot. `left_out` kernels have no place in it."""

    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    roofs: tuple[Roof, ...]
    points: tuple[Point, ...]
    left_out: int
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = WIDTH - RIGHT
    top: float = TOP
    bottom: float = HEIGHT - BOTTOM


def ceilings(device: Device) -> tuple[Ceiling, ...]:
    """A device's roofs under the names that limits use: memory levels, then formats on vector and on matrix units."""
    levels = [(level.name, level.bytes_per_s) for level in device.levels[:-1]]
    rates = [("memory", device.copy_bytes_per_s), *reversed(levels)]
    out = [Ceiling(name, bytes_per_s=rate) for name, rate in rates if rate is not None]
    for number_format in FORMAT_BITS:
        for name, matrix in ((number_format, False), (f"{number_format} matmul", True)):
            peak = device.peak_flops_per_s(number_format, matrix)
            if peak is not None:
                out.append(Ceiling(name, flops_per_s=peak))
    return tuple(out)


@dataclass(frozen=True, slots=True)
class _Axis:
    """Ten to the power of `low` up to that of `high`, over `begin` to `end` in the plot."""

    low: int
    high: float
    begin: float
    end: float

    def place(self, value: float) -> float:
        return self.begin + (log10(value) - self.low) / (self.high - self.low) * (self.end - self.begin)


def roofline(account: Account) -> Roofline | None:
    """The plot, or None when no kernel has a place in it."""
    every = totals.kernels(account)
    rows = [(k, place) for k in every if (place := _place(k)) is not None]
    if not rows:
        return None
    roofs = _worth_drawing(account.ceilings, every)
    peaks = [roof.flops_per_s for roof in roofs if roof.flops_per_s]
    slopes = [roof.bytes_per_s for roof in roofs if roof.bytes_per_s]
    ridges = [max(peaks) / min(slopes)] if peaks and slopes else []
    x = _axis([place[0] for _, place in rows] + ridges, ROOM_X, LEFT, WIDTH - RIGHT)
    y = _axis([place[1] for _, place in rows] + peaks, ROOM_Y, HEIGHT - BOTTOM, TOP)
    return Roofline(
        tuple(Tick(x.place(10.0**n), _power(n)) for n in range(x.low, floor(x.high) + 1)),
        tuple(Tick(y.place(10.0**n), format_si(10.0**n, "FLOP/s")) for n in range(y.low, floor(y.high) + 1)),
        tuple(_draw(roofs, x, y)),
        tuple(_points(rows[:MOST_POINTS], x, y)),
        len(every) - len(rows[:MOST_POINTS]),
    )


def _place(k: KernelAccount) -> tuple[float, float] | None:
    per_byte = None if k.work is None else k.work.flop_per_byte
    return (per_byte, k.flops_per_s) if per_byte and k.flops_per_s else None


def _worth_drawing(roofs: Iterable[Ceiling], ks: Iterable[KernelAccount]) -> list[Ceiling]:
    """Memory levels, and the arithmetic that some kernel does."""
    used = {name for k in ks if k.limit is not None for name in k.limit.by_resource}
    return [roof for roof in roofs if roof.bytes_per_s or (roof.flops_per_s and roof.name in used)]


def _axis(values: Sequence[float], room: float, begin: float, end: float) -> _Axis:
    low, high = floor(log10(min(values)) - CLEAR), log10(max(values)) + room
    return _Axis(low, max(high, low + 1), begin, end)


def _power(n: int) -> str:
    return f"{10.0**n:g}" if -3 <= n < 5 else f"1e{n}"


def _draw(roofs: Sequence[Ceiling], x: _Axis, y: _Axis) -> Iterable[Roof]:
    """Slopes up to the highest peak, and peaks from the steepest slope on, all cut at the edges."""
    peaks = [roof.flops_per_s for roof in roofs if roof.flops_per_s]
    slopes = [roof.bytes_per_s for roof in roofs if roof.bytes_per_s]
    top = max(peaks, default=10.0**y.high)
    unit_x, unit_y = x.place(10.0) - x.place(1.0), y.place(10.0) - y.place(1.0)
    for roof in roofs:
        if roof.bytes_per_s:
            low = max(10.0**x.low, 10.0**y.low / roof.bytes_per_s)
            high = min(10.0**x.high, top / roof.bytes_per_s)
            if low >= high:
                continue
            label = f"{roof.name} {format_si(roof.bytes_per_s, 'B/s')}"
            ends = x.place(low), y.place(low * roof.bytes_per_s), x.place(high), y.place(high * roof.bytes_per_s)
            angle = degrees(atan(unit_y / unit_x))
            yield Roof(*ends, label, ends[0] + 10, ends[1] + 10 * unit_y / unit_x - 6, angle)
        elif roof.flops_per_s:
            low = max(10.0**x.low, roof.flops_per_s / max(slopes, default=roof.flops_per_s / 10.0**x.low))
            label = f"{roof.name} {format_si(roof.flops_per_s, 'FLOP/s')}"
            level = y.place(roof.flops_per_s)
            yield Roof(x.place(low), level, x.end, level, label, x.end - 4, level - 5, 0.0)


Box = tuple[float, float, float, float]  # left, top, right, bottom


def _points(rows: Sequence[tuple[KernelAccount, tuple[float, float]]], x: _Axis, y: _Axis) -> Iterable[Point]:
    longest = max((k.per_step(k.seconds) or 0.0 for k, _ in rows), default=0.0)
    circles = []
    for k, (per_byte, rate) in rows:
        share = (k.per_step(k.seconds) or 0.0) / longest if longest else 0.0
        circles.append((x.place(per_byte), y.place(rate), max(SMALLEST, LARGEST * sqrt(share))))
    taken: list[Box] = [(at_x - r, at_y - r, at_x + r, at_y + r) for at_x, at_y, r in circles]
    labels = 0
    for (k, (per_byte, rate)), circle in zip(rows, circles, strict=True):
        name = short_operators(k.operators) or k.name
        label, right = _label(name, circle, taken) if labels < MOST_LABELS else ("", True)
        labels += bool(label)
        hint = (
            name,
            f"{k.line or 'no line'}, {k.phase}",
            f"{format_s(k.per_step(k.seconds))} a step, {percent(k.fraction_of_limit)} of its limit",
            f"{per_byte:.3g} FLOP per byte, {format_si(rate, 'FLOP/s')}" + ("" if k.measured else " by prediction"),
        )
        yield Point(*circle, k.kind, label, right, hint)


def _label(name: str, circle: tuple[float, float, float], taken: list[Box]) -> tuple[str, bool]:
    """A short name beside a point, on the side with room; empty where it would lie over something."""
    text = name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"
    at_x, at_y, radius = circle
    length = LETTER * len(text) + 8
    for right in (True, False):
        begin = at_x + radius + 1 if right else at_x - radius - 1 - length
        box = (begin, at_y - LINE / 2, begin + length, at_y + LINE / 2)
        clear = all(box[2] < o[0] or o[2] < box[0] or box[3] < o[1] or o[3] < box[1] for o in taken)
        if clear and begin > LEFT and begin + length < WIDTH - RIGHT:
            taken.append(box)
            return text, right
    return "", True
