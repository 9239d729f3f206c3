"""Tensors made from nothing but their shape: constants, ranges, triangles, identity. What is uninitialised is 0."""

from typing import Any

from ridgeline.base.errors import CannotConvert
from ridgeline.ir.index import Index, IndexLike, as_index
from ridgeline.ir.types import F64, I64
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


def ramp(start: Value, end: Value, steps: int, position: Value) -> Value:
    """start + i * step counted from the nearer end, as ATen does, so that both ends are exact."""
    if steps <= 1:
        return start
    step = (end - start) / float(steps - 1)
    up, down = start + position * step, end - (steps - 1 - position) * step
    return word("select", position < float(steps // 2), up, down)


def line(start: Number | Array, end: Number | Array, steps: Any, context: Context) -> Array:
    """Evenly spaced numbers in the type of the output; integers are computed in fp64 and cut off."""
    out = context.out[0]
    if not isinstance(steps, int):
        raise CannotConvert("a symbolic number of steps")
    if out.dtype.bytes == 2 and out.dtype.is_float:  # ATen rounds every step of the computation there
        raise CannotConvert(f"evenly spaced numbers in {out.dtype}")
    compute = out.dtype.compute if out.dtype.is_float else F64

    def typed(x: Number | Array) -> Array:
        given = x if isinstance(x, Array) else full((), x, F64)
        return given.cast(out.dtype).cast(compute)

    position = from_index(out.shape, lambda i: i, I64).cast(compute)
    return pointwise(lambda p, s, e: ramp(s, e, steps, p), position, typed(start), typed(end))


@index_row(*(f"aten.linspace.{o}" for o in ("default", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")))
def linspace(start: Number | Array, end: Number | Array, steps: int, context: Context, **options: Any) -> Array:
    """y[i] = start + i * (end - start) / (steps - 1)."""
    return line(start, end, steps, context)


@index_row(*(f"aten.logspace.{o}" for o in ("default", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")))
def logspace(
    start: Number | Array, end: Number | Array, steps: int, base: float = 10.0, *, context: Context, **options: Any
) -> Array:
    """y[i] = base ^ (start + i * (end - start) / (steps - 1)); integers are refused, a rounding would cut them off."""
    if not context.out[0].dtype.is_float:
        raise CannotConvert("logspace of integers")
    exponents = line(start, end, steps, context)
    return pointwise(lambda e: word("pow", const(base, e.dtype), e), exponents)
