"""Arrays: a value over its own axes, the notation rows are written in.

An `Array` is what an operator makes, said once for every element: axes, and the value at them. Arithmetic
broadcasts as PyTorch does; nothing is computed and nothing is stored. Sizes are index expressions, so rows are the
same for static and symbolic shapes.
"""

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Union

from ridgeline.base.errors import CannotConvert
from ridgeline.ir.index import ZERO, Axis, Index, IndexLike, Read, as_index, flatten, unflatten, within
from ridgeline.ir.kernel import Buffer
from ridgeline.ir.types import BF16, BOOL, F16, F32, I64, DType
from ridgeline.ir.value import Number, Value, cast, const, fold, fresh, iota, load, substitute, word

Operand = Union["Array", Number]
Shape = tuple[Index, ...]


class Array:
    """value over axes; axis k has the size of dimension k. A dimension of size 1 never appears in the value."""

    __slots__ = ("axes", "value")

    def __init__(self, axes: tuple[Axis, ...], value: Value) -> None:
        self.axes = axes
        self.value = value

    @property
    def shape(self) -> Shape:
        return tuple(a.size for a in self.axes)

    @property
    def dtype(self) -> DType:
        return self.value.dtype

    @property
    def ndim(self) -> int:
        return len(self.axes)

    @property
    def numel(self) -> Index:
        return product(self.shape)

    def at(self, *index: IndexLike) -> Value:
        """The value at one index per dimension."""
        if len(index) != len(self.axes):
            raise CannotConvert(f"{len(index)} indices for {len(self.axes)} dimensions")
        return substitute(self.value, {a: as_index(i) for a, i in zip(self.axes, index, strict=True)})

    def dim(self, dim: int) -> int:
        """A dimension counted from either end, as 0 .. ndim - 1."""
        return dim % self.ndim if self.ndim else 0

    def dims(self, dims: int | Sequence[int] | None) -> tuple[int, ...]:
        """Dimensions of a reduction: None and () mean all."""
        if dims is None or (not isinstance(dims, int) and len(dims) == 0):
            return tuple(range(self.ndim))
        if isinstance(dims, int):
            dims = (dims,)
        return tuple(sorted({self.dim(d) for d in dims})) if self.ndim else ()

    def cast(self, dtype: DType) -> "Array":
        return Array(self.axes, cast(self.value, dtype))

    def rounded(self, dtype: DType) -> "Array":
        """Values as they would come back from memory of a 16-bit float type."""
        return Array(self.axes, rounded(self.value, dtype))

    def reindex(self, shape: Iterable[IndexLike], source: Callable[..., Sequence[IndexLike]]) -> "Array":
        """Element (i, j, ...) of the result is element source(i, j, ...) of this array."""
        axes = make_axes(shape)
        return Array(axes, self.at(*source(*positions(axes))))

    def reduce(
        self, combiner: str, dims: int | Sequence[int] | None = None, keepdim: bool = True, part: int = 0
    ) -> "Array":
        """Folds dimensions away; `keepdim` leaves a size of 1."""
        return reduce_many(combiner, (self,), self.dims(dims), keepdim, part)

    def expand(self, shape: Iterable[IndexLike]) -> "Array":
        """Broadcast to a shape (leading dimensions may be new)."""
        shape = tuple(map(as_index, shape))
        if shape == self.shape:
            return self
        axes = make_axes(shape)
        return Array(axes, self.at(*aligned(self, positions(axes))))

    def keep(self, dims: Sequence[int]) -> "Array":
        """Drops the dimensions of size 1 that are not listed."""
        return self.reindex(
            [self.shape[d] for d in dims],
            lambda *i: [i[dims.index(d)] if d in dims else ZERO for d in range(self.ndim)],
        )

    def __add__(self, other: Operand) -> "Array":
        return apply("add", self, other)

    def __radd__(self, other: Operand) -> "Array":
        return apply("add", other, self)

    def __sub__(self, other: Operand) -> "Array":
        return apply("sub", self, other)

    def __rsub__(self, other: Operand) -> "Array":
        return apply("sub", other, self)

    def __mul__(self, other: Operand) -> "Array":
        return apply("mul", self, other)

    def __rmul__(self, other: Operand) -> "Array":
        return apply("mul", other, self)

    def __truediv__(self, other: Operand) -> "Array":
        return apply("div", self, other)

    def __rtruediv__(self, other: Operand) -> "Array":
        return apply("div", other, self)

    def __neg__(self) -> "Array":
        return apply("neg", self)


def rounded(value: Value, dtype: DType) -> Value:
    """The value rounded to a 16-bit float type and back; other types hold what they compute."""
    name = {BF16: "round_bf16", F16: "round_f16"}.get(dtype)
    if name is None:
        return cast(value, dtype)
    return word(name, cast(value, F32))


def convert_number(number: Number, dtype: DType) -> Number:
    """A Python number as a tensor of that type would hold it: integers wrap, floats round."""
    if dtype is BOOL:
        return bool(number)
    if dtype.is_integer:
        bits = 8 * dtype.bytes
        low = int(number) & ((1 << bits) - 1)
        return low - (1 << bits) if dtype.kind == "i" and low >> (bits - 1) else low
    if dtype.bytes == 8 or not math.isfinite(number):
        return float(number)
    try:
        (single,) = struct.unpack("f", struct.pack("f", number))
        if dtype is F16:
            return float(struct.unpack("e", struct.pack("e", single))[0])
    except OverflowError:
        return math.copysign(math.inf, number)
    if dtype is BF16:
        (bits,) = struct.unpack("I", struct.pack("f", single))
        return float(struct.unpack("f", struct.pack("I", (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000))[0])
    return float(single)


def stored(array: Array) -> DType:
    """The type the elements have in memory, for an array that is a buffer; else the type they are computed in."""
    kept: DType = array.value.attr.stored if array.value.op == "load" else array.dtype
    return kept


def product(sizes: Iterable[IndexLike]) -> Index:
    """The number of elements of a shape."""
    out = as_index(1)
    for size in sizes:
        out = out * size
    return out


def make_axes(shape: Iterable[IndexLike]) -> tuple[Axis, ...]:
    """A fresh axis for each dimension."""
    return tuple(fresh(s) for s in shape)


def positions(axes: Iterable[Axis]) -> tuple[Index, ...]:
    """The index along each axis; 0 along an axis of size 1."""
    return tuple(ZERO if a.size.const == 1 else as_index(a) for a in axes)


def loaded(buffer: Buffer) -> Array:
    """A buffer as an array."""
    axes = make_axes(buffer.shape)
    return Array(axes, load(buffer.name, positions(axes), buffer.dtype))


def full(shape: Iterable[IndexLike], number: Number, dtype: DType) -> Array:
    """The same number everywhere."""
    return Array(make_axes(shape), const(number, dtype))


def from_index(shape: Iterable[IndexLike], index: Callable[..., IndexLike], dtype: DType) -> Array:
    """An array of integers computed from the position alone."""
    axes = make_axes(shape)
    return Array(axes, iota(index(*positions(axes)), dtype))


def count(array: Array, dims: Iterable[int]) -> Array:
    """How many elements the given dimensions hold, as a number of the array's type."""
    return Array((), cast(iota(product(array.shape[d] for d in dims)), array.dtype))


def aligned(array: Array, index: Sequence[Index]) -> list[Index]:
    """The index into `array` for a position in a shape it broadcasts to."""
    tail = index[len(index) - array.ndim :] if array.ndim else ()
    return [ZERO if size.const == 1 else i for size, i in zip(array.shape, tail, strict=True)]


def broadcast_shape(shapes: Iterable[Shape]) -> Shape:
    """The common shape; sizes are equal or 1, and what cannot be proved equal is refused."""
    out: list[Index] = []
    for shape in shapes:
        out = [as_index(1)] * (len(shape) - len(out)) + out
        for k in range(len(shape)):
            size, known = shape[-1 - k], out[-1 - k]
            if known.const == 1:
                out[-1 - k] = size
            elif size.const != 1 and size is not known:
                raise CannotConvert(f"sizes {known} and {size} cannot be proved equal")
    return tuple(out)


def pointwise(body: Callable[..., Value], *operands: Operand) -> Array:
    """body(value or number, ...) at each point of the broadcast shape."""
    arrays = [o for o in operands if isinstance(o, Array)]
    shape = broadcast_shape(a.shape for a in arrays)
    first = next((a for a in arrays if a.shape == shape), None)
    axes = first.axes if first is not None else make_axes(shape)
    index = positions(axes)
    values = [o if not isinstance(o, Array) else o.value if o is first else o.at(*aligned(o, index)) for o in operands]
    return Array(axes, body(*values))


def apply(name: str, *operands: Operand) -> Array:
    """A word at each point of the broadcast shape."""
    return pointwise(lambda *values: word(name, *values), *operands)


def where(condition: Array, a: Operand, b: Operand) -> Array:
    """a where the condition holds, else b."""
    return apply("select", condition if condition.dtype is BOOL else apply("ne", condition, 0), a, b)


def reduce_many(
    combiner: str, arrays: Sequence[Array], dims: Sequence[int], keepdim: bool = True, part: int = 0
) -> Array:
    """Folds the same dimensions of arrays of one shape, for combiners of several inputs."""
    first = arrays[0]
    # A dimension of size 1 is not in the value, so a fold needs no axis for it - but a fold over nothing
    # must still lift and finish, which a fold over no axes does.
    bound = tuple(fresh(first.shape[d]) for d in dims if first.shape[d].const != 1)
    bound_at = dict(zip((d for d in dims if first.shape[d].const != 1), bound, strict=True))
    kept = [d for d in range(first.ndim) if d not in dims]
    axes = {d: fresh(first.shape[d]) for d in kept}
    position = [
        as_index(bound_at[d]) if d in bound_at else positions([axes[d]])[0] if d in axes else ZERO
        for d in range(first.ndim)
    ]
    value = fold(combiner, bound, *(a.at(*position) for a in arrays), part=part)
    out = [axes[d] if d in axes else fresh(1) for d in range(first.ndim) if d in axes or keepdim]
    return Array(tuple(out), value)


def reshape(array: Array, shape: Sequence[IndexLike]) -> Array:
    """The same elements in row-major order under another shape of equal size."""
    if tuple(map(as_index, shape)) == array.shape:
        return array
    return array.reindex(shape, lambda *i: unflatten(flatten(i, shape), array.shape))


def inside(index: IndexLike, size: IndexLike) -> Value | None:
    """Whether 0 <= index < size, as a condition; None where that is proved."""
    index, size = as_index(index), as_index(size)
    if within(index, size):
        return None
    position = iota(index)
    return (position >= 0) & (position < iota(size))


def every(conditions: Iterable[Value | None]) -> Value | None:
    """All conditions together; None when there is none."""
    out: Value | None = None
    for condition in conditions:
        if condition is not None:
            out = condition if out is None else out & condition
    return out


def guarded(array: Array, index: Sequence[IndexLike], guard: Value | None, fill: Number = 0) -> Value:
    """The array at an index where the guard holds, else `fill`; where it does not hold no memory is touched."""
    if guard is None:
        return array.at(*index)

    def shield(found: Value) -> Value:
        kept = guard if not found.args else found.args[0] & guard
        return load(found.attr.buffer, found.attr.index, found.attr.stored, kept)

    value = substitute(array.value, {a: as_index(i) for a, i in zip(array.axes, index, strict=True)}, shield)
    if value.op == "load" and fill == 0:
        return value
    return word("select", guard, value, const(fill, value.dtype))


def read(value: Value, size: IndexLike, wrap: bool = False) -> Index:
    """A position read from memory. `wrap`: negative ones count from the end.

    What lies outside 0 .. size - 1 is clamped, so that no kernel touches memory it must not. PyTorch raises there:
    the assertion belongs to the caller of the graph, who finds every such position as a `Read` in a definition.
    """
    position = cast(value, I64)
    if wrap:
        position = word("select", position < 0, position + iota(size), position)
    position = word("min", word("max", position, 0), iota(as_index(size) - 1))
    return as_index(Read(position, as_index(size)))
