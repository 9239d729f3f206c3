"""Sampling an image at points given by a grid (grid_sampler_2d), bilinear or nearest, both ways.

x (n, c, h, w), grid (n, ho, wo, 2) with x before y, in -1 .. 1. A point may lie outside: what it reads is 0 (zeros),
the nearest edge (border) or the mirror image (reflection). Bicubic stays with ATen.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.base.errors import CannotConvert
from ridgeline.ir.index import Axis, Index, as_index
from ridgeline.ir.types import I64
from ridgeline.ir.value import Value, cast, const, fold, fresh, iota, word
from ridgeline.ops.activations import pick
from ridgeline.ops.array import Array, full, make_axes, positions, read
from ridgeline.ops.table import Context, Scatter, composite

BILINEAR, NEAREST = 0, 1
ZEROS, BORDER, REFLECTION = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Point:
    """A coordinate in the image and how it moves with the grid's."""

    at: Value
    slope: Value


def mirrored(x: Value, slope: Value, low: float, high: Value) -> tuple[Value, Value]:
    """x reflected at low and high until it lies between; the slope turns with it."""
    span = high - low
    away = word("abs", x - low)
    slope = pick(x < low, -slope, slope)
    extra, flips = word("fmod", away, span), word("floor", away / span)
    even = word("eq", word("fmod", flips, const(2, x.dtype)), 0)
    return pick(even, extra + low, span - extra + low), pick(even, slope, -slope)


def clipped(x: Value, slope: Value, size: Value) -> tuple[Value, Value]:
    """x kept in 0 .. size - 1; the slope is 0 where it was not inside."""
    last = size - 1
    out = word("min", word("max", x, 0), last)
    return out, pick((x <= 0) | (x >= last), 0, slope)


def point(grid: Value, size: Index, padding: int, align: bool) -> Point:
    """A grid coordinate in -1 .. 1 as one of an image of that size."""
    n = cast(iota(size), grid.dtype)
    scale = (n - 1) * 0.5 if align else n * 0.5
    x = (grid + 1) * scale if align else ((grid + 1) * n - 1) * 0.5
    if padding == BORDER:
        return Point(*clipped(x, scale, n))
    if padding == REFLECTION:
        x, slope = mirrored(x, scale, 0.0 if align else -0.5, n - 1 if align else n - 0.5)
        return Point(*clipped(x, slope, n))
    return Point(x, scale)


@dataclass(frozen=True, slots=True)
class Corner:
    """One of the positions that a coordinate reads: where, whether it is inside, its weight, its slope."""

    place: Index
    inside: Value
    weight: Value
    slope: Value


def corner(at: Value, step: Index, size: Index, weight: Value, slope: Value) -> Corner:
    """The position `step` after a whole number."""
    where = at + cast(iota(step), at.dtype)
    inside = (where >= 0) & (where <= cast(iota(size), at.dtype) - 1)
    return Corner(read(cast(pick(inside, where, 0), I64), size), inside, weight, slope)


def corners(p: Point, size: Index, mode: int) -> list[Corner]:
    """The positions that a coordinate reads."""
    if mode == NEAREST:
        return [corner(word("round", p.at), as_index(0), size, const(1, p.at.dtype), const(0, p.at.dtype))]
    low = word("floor", p.at)
    t = p.at - low
    return [corner(low, as_index(0), size, 1 - t, -p.slope), corner(low, as_index(1), size, t, p.slope)]


def corner_on(axis: Axis, p: Point, size: Index, mode: int) -> Corner:
    """The position that an axis over the corners stands at."""
    if mode == NEAREST:
        return corners(p, size, mode)[0]
    low = word("floor", p.at)
    t = p.at - low
    return corner(low, as_index(axis), size, pick(word("eq", iota(axis), 0), 1 - t, t), p.slope)


def coordinates(
    grid: Array, n: Index, y: Index, x: Index, sizes: Sequence[Index], padding: int, align: bool
) -> list[Point]:
    """The coordinates (down, across) of one point of the grid."""
    return [point(grid.at(n, y, x, k), size, padding, align) for k, size in zip((1, 0), sizes, strict=True)]


def known_mode(mode: int) -> None:
    """Bilinear and nearest are known."""
    if mode not in (BILINEAR, NEAREST):
        raise CannotConvert("bicubic sampling of a grid")


@composite("aten.grid_sampler_2d.default")
def grid_sampler(x: Array, grid: Array, mode: int, padding: int, align: bool, context: Context) -> Array:
    """y[n, c, i, j] = sum of weights * x[n, c, corners of grid[n, i, j]]."""
    known_mode(mode)
    axes = make_axes(context.out[0].shape)
    n, c, i, j = positions(axes)
    sizes = x.shape[2:]
    down, across = (
        corners(p, size, mode) for p, size in zip(coordinates(grid, n, i, j, sizes, padding, align), sizes, strict=True)
    )
    total: Value = const(0, x.dtype)
    for a in down:
        for b in across:
            value = x.at(n, c, a.place, b.place)
            total = total + pick(a.inside & b.inside, value * (a.weight * b.weight), 0)
    return Array(axes, total)


def image_gradient(grad: Array, x: Array, grid: Array, mode: int, padding: int, align: bool) -> Scatter:
    """dx = 0; dx[n, c, corners] += weights * grad[n, c, i, j]."""
    axes = grad.axes
    n, c, i, j = positions(axes)
    sizes = x.shape[2:]
    steps = [] if mode == NEAREST else [fresh(2), fresh(2)]
    points = coordinates(grid, n, i, j, sizes, padding, align)
    a, b = (
        corner_on(steps[k], p, size, mode) if steps else corners(p, size, mode)[0]
        for k, (p, size) in enumerate(zip(points, sizes, strict=True))
    )
    value = pick(a.inside & b.inside, grad.value * (a.weight * b.weight), 0)
    return Scatter(full(x.shape, 0, x.dtype), (*axes, *steps), (n, c, a.place, b.place), value, True)


def grid_gradient(grad: Array, x: Array, grid: Array, mode: int, padding: int, align: bool) -> Array:
    """dgrid[n, i, j, k] = sum over channels of grad * (what a step of coordinate k changes)."""
    if mode == NEAREST:
        return full(grid.shape, 0, grid.dtype)
    axes = make_axes(grid.shape)
    n, i, j, k = positions(axes)
    channel = fresh(x.shape[1]) if x.shape[1].const != 1 else None
    c = as_index(0) if channel is None else as_index(channel)
    sizes = x.shape[2:]
    points = coordinates(grid, n, i, j, sizes, padding, align)
    down, across = (corners(p, size, mode) for p, size in zip(points, sizes, strict=True))
    total: Value = const(0, x.dtype)
    for a in down:
        for b in across:
            factor = pick(word("eq", iota(k), 0), a.weight * b.slope, a.slope * b.weight)
            total = total + pick(a.inside & b.inside, x.at(n, c, a.place, b.place) * factor, 0)
    return Array(axes, fold("sum", [channel] if channel else [], total * grad.at(n, c, i, j)))


@composite("aten.grid_sampler_2d_backward.default")
def grid_sampler_backward(
    grad: Array, x: Array, grid: Array, mode: int, padding: int, align: bool, output_mask: Sequence[bool]
) -> tuple[Scatter | None, Array]:
    """dx scatters over the corners of each point, dgrid folds over the channels."""
    known_mode(mode)
    dx = image_gradient(grad, x, grid, mode, padding, align) if output_mask[0] else None
    return dx, grid_gradient(grad, x, grid, mode, padding, align)
