"""Tensors made from nothing but their shape: constants, ranges, triangles, identity. What is uninitialised is 0."""

import math
from typing import Any

from ridgeline.base.errors import CannotConvert
from ridgeline.ir.index import Index, IndexLike, as_index
from ridgeline.ir.types import I64
from ridgeline.ir.value import Number, Value, cast, const, iota, word
from ridgeline.ops.array import Array, from_index, full, make_axes, pointwise, positions
from ridgeline.ops.table import Context, index_row


def constant(number: Any, context: Context) -> Array:
    """A number (or size) everywhere in the declared output."""
    out = context.out[0]
    if isinstance(number, Index):
        return Array(make_axes(out.shape), iota(number, out.dtype))
    return full(out.shape, number, out.dtype)


@index_row("aten.full.default", "aten.new_full.default", "aten.full_like.default")
def full_(*args: Any, context: Context, **options: Any) -> Array:
    """y = the last argument, everywhere."""
    return constant(args[-1], context)


@index_row("aten.scalar_tensor.default")
def scalar_tensor(number: Any, context: Context, **options: Any) -> Array:
    """A number as a tensor of no dimensions."""
    return constant(number, context)


@index_row(
    "aten._efficientzerotensor.default",
    *("aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default"),
    *("aten.empty.memory_format", "aten.empty_like.default", "aten.empty_strided.default"),
    *("aten.empty_permuted.default", "aten.new_empty.default", "aten.new_empty_strided.default"),
)
def zeros(*args: Any, context: Context, **options: Any) -> Array:
    """y = 0 everywhere; PyTorch leaves the `empty` ones undefined."""
    return constant(0, context)


@index_row("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def ones(*args: Any, context: Context, **options: Any) -> Array:
    """y = 1 everywhere."""
    return constant(1, context)


@index_row("aten.eye.default", "aten.eye.m")
def eye(*args: Any, context: Context, **options: Any) -> Array:
    """y[i, j] = 1 where i = j."""
    out = context.out[0]
    axes = make_axes(out.shape)
    i, j = positions(axes)
    hit = word("eq", iota(i), iota(j))
    return Array(axes, word("select", hit, const(1, out.dtype), const(0, out.dtype)))


def progression(start: Any, step: Any, context: Context) -> Array:
    """y[i] = start + i * step; integers stay integers, floats are computed in fp64 as ATen does."""
    out = context.out[0]
    whole = all(isinstance(v, int | Index) for v in (start, step))
    if whole:
        return from_index(out.shape, lambda i: as_index(start) + i * as_index(step), I64).cast(out.dtype)
    if any(isinstance(v, Index) for v in (start, step)):
        raise CannotConvert("a range with a fractional step and a symbolic end")
    compute = out.dtype.compute
    position = from_index(out.shape, lambda i: i, I64)
    return pointwise(lambda p: cast(p, compute) * float(step) + float(start), position)


@index_row("aten.arange.default")
def arange(end: Number, context: Context, **options: Any) -> Array:
    """y[i] = i."""
    return progression(0, 1, context)


@index_row("aten.arange.start")
def arange_start(start: Number, end: Number, context: Context, **options: Any) -> Array:
    """y[i] = start + i."""
    return progression(start, 1, context)


@index_row("aten.arange.start_step", "aten.range.step", "aten.range.default")
def arange_step(start: Number, end: Number, step: Number = 1, *, context: Context, **options: Any) -> Array:
    """y[i] = start + i * step."""
    return progression(start, step, context)


@index_row("prims.iota.default")
def iota_(length: IndexLike, start: Any, step: Any, context: Context, **options: Any) -> Array:
    """y[i] = start + i * step."""
    return progression(start, step, context)


def ramp(start: Number, end: Number, steps: int, position: Value) -> Value:
    """start + i * step counted from the nearer end, as ATen does, so that both ends are exact."""
    if steps == 1:
        return const(start, position.dtype)
    step = (end - start) / (steps - 1)
    up = position * step + start
    down = word("sub", end, (steps - 1 - position) * step)
    return word("select", position < steps // 2, up, down)


@index_row("aten.linspace.default")
def linspace(start: Number, end: Number, steps: int, context: Context, **options: Any) -> Array:
    """y[i] = start + i * (end - start) / (steps - 1)."""
    out = context.out[0]
    if not isinstance(steps, int) or out.dtype.is_integer:
        raise CannotConvert("linspace of a symbolic length or of integers")
    position = from_index(out.shape, lambda i: i, I64).cast(out.dtype.compute)
    return pointwise(lambda p: ramp(float(start), float(end), steps, p), position)


@index_row("aten.logspace.default")
def logspace(start: Number, end: Number, steps: int, base: float = 10.0, *, context: Context, **options: Any) -> Array:
    """y[i] = base ^ (start + i * (end - start) / (steps - 1))."""
    exponents = linspace(start, end, steps, context=context)
    return pointwise(lambda e: word("exp2", e * math.log2(base)), exponents)
