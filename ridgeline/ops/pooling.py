"""Pooling and im2col, both ways. A window is a fold over small axes of its own; backwards gather over the windows
that touch an element, so nothing is scattered.

Inputs are (..., spatial) with one or two leading dimensions (channels, batch). Averages accumulate in fp32 (fp64).
Rows are made for 2 and 3 spatial dimensions; PyTorch turns the others into these.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ridgeline.base.errors import CannotConvert
from ridgeline.ir.index import Index, IndexLike, as_index, flatten, unflatten
from ridgeline.ir.types import DType
from ridgeline.ir.value import Value, cast, const, fold, fresh, iota, word
from ridgeline.ops.array import Array, full, guarded, inside, make_axes, positions, read
from ridgeline.ops.table import Context, Scatter, composite, scatter_row
from ridgeline.ops.windows import Walk, Window, axes_of, backward, forward, guard_of, places

Numbers = Sequence[int] | int
Divisor = Callable[..., Value | float]
Walker = Callable[[int, Index], Walk]


def spread(given: Numbers, count: int, default: Sequence[int] = ()) -> list[int]:
    """One number per dimension: one for all, or the default where nothing is given."""
    numbers = [given] if isinstance(given, int) else list(given)
    numbers = numbers or list(default)
    return numbers * count if len(numbers) == 1 else numbers


def windows_of(
    x: Sequence[Index], out: Sequence[Index], kernel: Numbers, stride: Numbers, padding: Numbers, dilation: Numbers = 1
) -> list[Window]:
    """The window of each spatial dimension, for the sizes of the input and of the output."""
    n = len(x)
    k = spread(kernel, n)
    parts = zip(x, out, k, spread(stride, n, k), spread(padding, n), spread(dilation, n), strict=True)
    return [Window(*part) for part in parts]


def lowest(dtype: DType) -> float | int:
    """The least number of a type."""
    if dtype.is_float:
        return float("-inf")
    return 0 if dtype.kind == "u" else -(1 << (8 * dtype.bytes - 1))


def length(w: Window, o: Index, include_pad: bool) -> Value | int:
    """How many positions window o counts: what hangs over the padded end (ceil_mode) never counts."""
    hangs_over = ((w.m - 1) * w.stride - w.padding + w.k - w.n - w.padding).const
    if hangs_over is not None and hangs_over <= 0 and (include_pad or not w.padding):
        return w.k
    start = o * w.stride - w.padding
    end = word("min", iota(start + w.k), iota(w.n + w.padding))
    if include_pad:
        return end - iota(start)
    return word("min", end, iota(w.n)) - word("max", iota(start), iota(0))


def average_divisor(windows: Sequence[Window], include_pad: bool, override: int | None) -> Divisor:
    """What the sum of window (o...) is divided by: the positions it counts, or a given number."""

    def divisor(*o: Index) -> Value | float:
        return product_of([length(w, p, include_pad) for w, p in zip(windows, o, strict=True)])

    return (lambda *o: float(override)) if override else divisor


def product_of(parts: Sequence[Value | int]) -> Value | float:
    """The product of sizes, some of them known."""
    number, value = 1, None
    for part in parts:
        if isinstance(part, Value):
            value = part if value is None else value * part
        else:
            number *= part
    return float(number) if value is None else value if number == 1 else value * number


def divided(value: Value, by: Value | float) -> Value:
    """value / by."""
    return value / cast(by, value.dtype) if isinstance(by, Value) else value * (1 / by)


def folded(combiner: str, walks: Sequence[Walk], *values: Value, part: int = 0) -> Value:
    """A fold over the axes of walks; the element itself where they have none."""
    axes = axes_of(walks)
    return fold(combiner, axes, *values, part=part) if axes else values[part]


def average(x: Array, out: Sequence[Index], walk: Walker, divisor: Divisor, n: int) -> Array:
    """The sum over a walk in each of the last n dimensions, divided."""
    if not x.dtype.is_float:
        raise CannotConvert("an average of integers")
    axes = make_axes(out)
    i = positions(axes)
    walks = [walk(d, p) for d, p in enumerate(i[-n:])]
    inner = guarded(x, [*i[:-n], *places(walks)], guard_of(walks))
    return Array(axes, divided(folded("sum", walks, inner), divisor(*i[-n:])))


def average_backward(grad: Array, shape: Sequence[Index], walk: Walker, divisor: Divisor, n: int) -> Array:
    """The sum of grad / divisor over the windows that touch each element."""
    axes = make_axes(shape)
    i = positions(axes)
    walks = [walk(d, p) for d, p in enumerate(i[-n:])]
    guard = guard_of(walks)
    by = divisor(*places(walks))
    inner = guarded(grad, [*i[:-n], *places(walks)], guard)
    if not isinstance(by, Value):
        return Array(axes, divided(folded("sum", walks, inner), by))
    part = divided(inner, by)
    part = part if guard is None else word("select", guard, part, const(0, part.dtype))
    return Array(axes, folded("sum", walks, part))


def greatest(x: Array, out: Sequence[Index], walk: Walker, n: int) -> tuple[Array, Array]:
    """The greatest over a walk, and where it first is in the flat order of the last n dimensions."""
    axes = make_axes(out)
    i = positions(axes)
    walks = [walk(d, p) for d, p in enumerate(i[-n:])]
    guard = guard_of(walks)
    inner = guarded(x, [*i[:-n], *places(walks)], guard, lowest(x.dtype))
    place = iota(flatten(places(walks), x.shape[-n:]))
    if guard is not None:  # what lies outside comes last among equals
        place = word("select", guard, place, const(2**62, place.dtype))
    return Array(axes, folded("max", walks, inner)), Array(axes, folded("argmax", walks, inner, place, part=1))


def greatest_backward(grad: Array, indices: Array, shape: Sequence[Index], walk: Walker, n: int) -> Array:
    """The sum of grad over the windows whose greatest element is this one."""
    axes = make_axes(shape)
    i = positions(axes)
    walks = [walk(d, p) for d, p in enumerate(i[-n:])]
    guard = guard_of(walks)
    at = [*i[:-n], *places(walks)]
    here = word("eq", guarded(indices, at, guard), cast(iota(flatten(i[-n:], shape[-n:])), indices.dtype))
    inner = guarded(grad, at, guard)
    return Array(axes, folded("sum", walks, word("select", here, inner, const(0, inner.dtype))))


def adaptive_length(n: IndexLike, m: IndexLike, o: IndexLike) -> tuple[Index, Index]:
    """Start and length of window o of m windows over n positions: floor(o n / m) .. ceil((o + 1) n / m)."""
    start = (as_index(o) * n) // m
    return start, ((as_index(o) + 1) * n + (as_index(m) - 1)) // m - start


def known(*sizes: Index) -> list[int]:
    """Sizes as numbers; adaptive windows of symbolic sizes are refused."""
    numbers = [s.const for s in sizes]
    if None in numbers:
        raise CannotConvert("adaptive pooling of a symbolic size")
    return [int(k) for k in numbers if k is not None]


def adaptive_forward(n: Index, m: Index, o: Index) -> Walk:
    """The positions of window o."""
    size, count = known(n, m)
    start, own = adaptive_length(n, m, o)
    longest = max((-(-(k + 1) * size // count) - k * size // count for k in range(count)), default=1)
    axis = fresh(longest) if longest > 1 else None
    offset = as_index(0) if axis is None else as_index(axis)
    guard = None if size % count == 0 or axis is None else iota(offset) < iota(own)
    return Walk(start + offset, guard, axis, offset)


def adaptive_backward(n: Index, m: Index, i: Index) -> Walk:
    """The windows that hold position i: floor(i m / n) .. ceil((i + 1) m / n)."""
    size, count = known(n, m)
    most = max((-(-(k + 1) * count // size) - k * count // size for k in range(size)), default=1)
    if size % count == 0:
        return Walk(i // (size // count), None, None, as_index(0))
    axis = fresh(most) if most > 1 else None
    o = (i * m) // n + (0 if axis is None else as_index(axis))
    start, own = adaptive_length(n, m, o)
    return Walk(o, inside(i - start, own) if axis is not None else None, axis, i - start)


def adaptive_divisor(x: Sequence[Index], out: Sequence[Index]) -> Divisor:
    """The number of positions of window (o...)."""

    def size(n: Index, m: Index, o: Index) -> Value | int:
        own = adaptive_length(n, m, o)[1]
        exact = known(n, m)
        return exact[0] // exact[1] if exact[0] % exact[1] == 0 else iota(own)

    return lambda *o: product_of([size(n, m, p) for n, m, p in zip(x, out, o, strict=True)])


def _pools(n: int) -> None:
    @composite(f"aten.avg_pool{n}d.default")
    def avg_pool(
        x: Array,
        kernel: Numbers,
        stride: Numbers = (),
        padding: Numbers = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
        *,
        context: Context,
    ) -> Array:
        """y[o] = sum of x over window o / its size."""
        out = context.out[0].shape
        windows = windows_of(x.shape[-n:], out[-n:], kernel, stride, padding)
        divisor = average_divisor(windows, count_include_pad, divisor_override)
        return average(x, out, lambda d, p: forward(windows[d], p), divisor, n)

    @composite(f"aten.avg_pool{n}d_backward.default")
    def avg_pool_backward(
        grad: Array,
        x: Array,
        kernel: Numbers,
        stride: Numbers,
        padding: Numbers,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Array:
        """dx[i] = sum of grad[o] / size(o) over the windows o that touch i."""
        windows = windows_of(x.shape[-n:], grad.shape[-n:], kernel, stride, padding)
        divisor = average_divisor(windows, count_include_pad, divisor_override)
        return average_backward(grad, x.shape, lambda d, p: backward(windows[d], p), divisor, n)

    @composite(f"aten.max_pool{n}d_with_indices.default")
    def max_pool(
        x: Array,
        kernel: Numbers,
        stride: Numbers = (),
        padding: Numbers = 0,
        dilation: Numbers = 1,
        ceil_mode: bool = False,
        *,
        context: Context,
    ) -> tuple[Array, Array]:
        """y[o] = the greatest x of window o, and its flat position among the spatial dimensions."""
        out = context.out[0].shape
        windows = windows_of(x.shape[-n:], out[-n:], kernel, stride, padding, dilation)
        return greatest(x, out, lambda d, p: forward(windows[d], p), n)

    @composite(f"aten.max_pool{n}d_with_indices_backward.default")
    def max_pool_backward(
        grad: Array,
        x: Array,
        kernel: Numbers,
        stride: Numbers,
        padding: Numbers,
        dilation: Numbers,
        ceil_mode: bool,
        indices: Array,
    ) -> Array:
        """dx[i] = sum of grad[o] over the windows o whose greatest element is i."""
        windows = windows_of(x.shape[-n:], grad.shape[-n:], kernel, stride, padding, dilation)
        return greatest_backward(grad, indices, x.shape, lambda d, p: backward(windows[d], p), n)


def _adaptive_pools(n: int) -> None:
    @composite(f"aten._adaptive_avg_pool{n}d.default")
    def adaptive_avg_pool(x: Array, output_size: Any, context: Context) -> Array:
        """y[o] = the mean of x over floor(o n / m) .. ceil((o + 1) n / m)."""
        out = context.out[0].shape
        sizes = list(zip(x.shape[-n:], out[-n:], strict=True))
        divisor = adaptive_divisor(x.shape[-n:], out[-n:])
        return average(x, out, lambda d, p: adaptive_forward(*sizes[d], p), divisor, n)

    @composite(f"aten._adaptive_avg_pool{n}d_backward.default")
    def adaptive_avg_pool_backward(grad: Array, x: Array) -> Array:
        """dx[i] = sum of grad[o] / size(o) over the windows o that hold i."""
        sizes = list(zip(x.shape[-n:], grad.shape[-n:], strict=True))
        divisor = adaptive_divisor(x.shape[-n:], grad.shape[-n:])
        return average_backward(grad, x.shape, lambda d, p: adaptive_backward(*sizes[d], p), divisor, n)

    @composite(f"aten.adaptive_max_pool{n}d.default")
    def adaptive_max_pool(x: Array, output_size: Any, context: Context) -> tuple[Array, Array]:
        """y[o] = the greatest x of adaptive window o, and its flat position."""
        out = context.out[0].shape
        sizes = list(zip(x.shape[-n:], out[-n:], strict=True))
        return greatest(x, out, lambda d, p: adaptive_forward(*sizes[d], p), n)

    @composite(f"aten.adaptive_max_pool{n}d_backward.default")
    def adaptive_max_pool_backward(grad: Array, x: Array, indices: Array) -> Array:
        """dx[i] = sum of grad[o] over the adaptive windows o whose greatest element is i."""
        sizes = list(zip(x.shape[-n:], grad.shape[-n:], strict=True))
        return greatest_backward(grad, indices, x.shape, lambda d, p: adaptive_backward(*sizes[d], p), n)

    @scatter_row(f"aten.max_unpool{n}d.default")
    def max_unpool(x: Array, indices: Array, output_size: Any, *rest: Any, context: Context) -> Scatter:
        """y = 0; y at the flat positions that pooling gave = x."""
        out = context.out[0].shape
        at = positions(x.axes)
        flat = read(indices.at(*at), flatten_size(out[-n:]))
        return Scatter(full(out, 0, x.dtype), x.axes, (*at[:-n], *unflatten(flat, out[-n:])), x.value, False)


def flatten_size(sizes: Sequence[Index]) -> Index:
    """The number of positions of some dimensions."""
    out = as_index(1)
    for size in sizes:
        out = out * size
    return out


for _n in (2, 3):
    _pools(_n)
    _adaptive_pools(_n)


def columns(
    size: Sequence[Index], kernel: Numbers, dilation: Numbers, padding: Numbers, stride: Numbers
) -> list[Window]:
    """The windows of im2col over an image of that size."""
    k, d, p, s = (spread(v, 2) for v in (kernel, dilation, padding, stride))
    many = [(n + (2 * p[a] - d[a] * (k[a] - 1) - 1)) // s[a] + 1 for a, n in enumerate(size)]
    return windows_of(size, many, k, s, p, d)


@composite("aten.im2col.default")
def im2col(x: Array, kernel: Numbers, dilation: Numbers, padding: Numbers, stride: Numbers, context: Context) -> Array:
    """(n, c, h, w) -> (n, c kh kw, oh ow): every window as a column, 0 outside."""
    windows = columns(x.shape[-2:], kernel, dilation, padding, stride)
    axes = make_axes(context.out[0].shape)
    *lead, row, column = positions(axes)
    c, *offsets = unflatten(row, [x.shape[-3], *(w.k for w in windows)])
    o = unflatten(column, [w.m for w in windows])
    at = [p * w.stride - w.padding + f * w.dilation for w, p, f in zip(windows, o, offsets, strict=True)]
    guards = [Walk(p, inside(p, w.n), None, p) for w, p in zip(windows, at, strict=True)]
    return Array(axes, guarded(x, [*lead, c, *at], guard_of(guards)))


@composite("aten.col2im.default")
def col2im(
    x: Array,
    output_size: Any,
    kernel: Numbers,
    dilation: Numbers,
    padding: Numbers,
    stride: Numbers,
    context: Context,
) -> Array:
    """(n, c kh kw, oh ow) -> (n, c, h, w): the sum of what im2col would have copied from each element."""
    out = context.out[0].shape
    windows = columns(out[-2:], kernel, dilation, padding, stride)
    axes = make_axes(out)
    *lead, c, h, w = positions(axes)
    walks = [backward(window, p) for window, p in zip(windows, (h, w), strict=True)]
    row = flatten([c, *(walk.offset for walk in walks)], [out[-3], *(window.k for window in windows)])
    column = flatten(places(walks), [window.m for window in windows])
    return Array(axes, folded("sum", walks, guarded(x, [*lead, row, column], guard_of(walks))))


@composite("aten.unfold_backward.default")
def unfold_backward(grad: Array, input_sizes: Any, dim: int, size: int, step: int, context: Context) -> Array:
    """dx[i] = sum of grad over the windows that hold i."""
    out = context.out[0].shape
    if not out:
        return grad.reindex((), lambda: [0])
    d = dim % len(out)
    axes = make_axes(out)
    i = list(positions(axes))
    walk = backward(Window(out[d], grad.shape[d], size, step, 0), i[d])
    i[d] = walk.at
    return Array(axes, folded("sum", [walk], guarded(grad, [*i, walk.offset], walk.guard)))
