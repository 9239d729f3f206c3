"""Kernels for tests of schedule and targets: one constructor a pattern, and a runner with canaries.

`run_against_reference(kernel, entry, ...)` lays each buffer out in memory of its own with guard elements around and
between, runs the compiled kernel and the reference interpreter, and compares every element, guards included.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ridgeline.ir.index import Axis, Index, IndexLike, Read, Sym, as_index, evaluate
from ridgeline.ir.kernel import Buffer, Kernel, Mode, Store
from ridgeline.ir.reference import NUMPY, round_to, run_kernel
from ridgeline.ir.types import BF16, BOOL, F16, F32, F64, I64, DType
from ridgeline.ir.value import Value, cast, const, fold, iota, load, word

Size = int | Sym
STORED = {**NUMPY, "bf16": np.uint16, "f16": np.float16, "bool": np.uint8}
MARGIN = 64  # guard elements before and after
# One rounding of a stored result, and the order of additions in f32.
TOLERANCE = {"f64": 1e-12, "f32": 3e-6, "bf16": 1.6e-2, "f16": 2e-3}


def buffer(
    name: str, shape: Sequence[Size], dtype: DType = F32, order: Sequence[int] | None = None, pad: int = 0
) -> Buffer:
    """A buffer dense in `order` (outermost dimension first), rows of the innermost dimension padded by `pad`."""
    sizes = [as_index(n) for n in shape]
    strides: list[Index] = [as_index(0)] * len(sizes)
    stride = as_index(1)
    for k, dim in enumerate(reversed(order if order is not None else range(len(sizes)))):
        strides[dim] = stride
        stride = stride * sizes[dim] + (pad if k == 0 else 0)
    return Buffer(name, dtype, tuple(sizes), tuple(strides))


def axis(name: str, size: Size) -> Axis:
    return Axis(name, as_index(size))


def indices(*given: IndexLike) -> tuple[Index, ...]:
    return tuple(map(as_index, given))


def store(name: str, at: Sequence[IndexLike], value: Value, mode: Mode = Mode.PLAIN) -> Store:
    return Store(name, indices(*at), value, mode)


def wide(value: Value) -> Value:
    """In f32, as rows compute floats and means."""
    return value if value.dtype.is_float else cast(value, F32)


def pointwise(n: Size, m: Size, dtype: DType = F32, word_name: str = "exp") -> Kernel:
    i, j = axis("i", n), axis("j", m)
    value = word(word_name, load("x", (i, j), dtype))
    return Kernel(
        word_name + "_k", (i, j), (store("y", (i, j), value),), (buffer("x", (n, m), dtype), buffer("y", (n, m), dtype))
    )


def bias_relu(n: Size, m: Size, dtype: DType = F32) -> Kernel:
    i, j = axis("i", n), axis("j", m)
    total = load("x", (i, j), dtype) + load("b", (j,), dtype)
    y = word("max", total, 0)
    buffers = (buffer("x", (n, m), dtype), buffer("b", (m,), dtype), buffer("y", (n, m), dtype))
    return Kernel("bias_relu", (i, j), (store("y", (i, j), y),), buffers)


def copy(n: Size, dtype: DType = F32) -> Kernel:
    i = axis("i", n)
    return Kernel(
        "copy", (i,), (store("y", (i,), load("x", (i,), dtype)),), (buffer("x", (n,), dtype), buffer("y", (n,), dtype))
    )


def gelu(n: Size, m: Size, dtype: DType = F32) -> Kernel:
    i, j = axis("i", n), axis("j", m)
    x = load("x", (i, j), dtype)
    y = x * 0.5 * (word("erf", x * 0.7071067811865476) + 1.0)
    return Kernel("gelu", (i, j), (store("y", (i, j), y),), (buffer("x", (n, m), dtype), buffer("y", (n, m), dtype)))


def sigmoid_chain(n: Size, m: Size, dtype: DType = F32) -> Kernel:
    i, j = axis("i", n), axis("j", m)
    x = load("x", (i, j), dtype)
    y = x * word("sigmoid", x * 1.702) + 1.0
    return Kernel(
        "sigmoid_chain", (i, j), (store("y", (i, j), y),), (buffer("x", (n, m), dtype), buffer("y", (n, m), dtype))
    )


def softmax(n: Size, m: Size, dtype: DType = F32) -> Kernel:
    i, j, r = axis("i", n), axis("j", m), axis("r", m)
    x, along = load("x", (i, j), dtype), load("x", (i, r), dtype)
    top, total = (fold("maxsumexp", (r,), along, part=k) for k in (0, 1))
    y = word("exp", x - top) / total
    return Kernel("softmax", (i, j), (store("y", (i, j), y),), (buffer("x", (n, m), dtype), buffer("y", (n, m), dtype)))


def add_layer_norm(n: Size, m: Size, dtype: DType = F32) -> Kernel:
    """y = (s - mean) * rstd * w + b with s = x + z; s, mean and rstd are stored too."""
    i, j, r = axis("i", n), axis("j", m), axis("r", m)

    def s(at: Axis) -> Value:
        return load("x", (i, at), dtype) + load("z", (i, at), dtype)

    mean, m2 = (fold("welford", (r,), s(r), part=k) for k in (0, 1))
    count = cast(iota(as_index(m)), mean.dtype)
    rstd = word("rsqrt", m2 / count + 1e-5)
    y = (s(j) - mean) * rstd * load("w", (j,), dtype) + load("b", (j,), dtype)
    stores = (store("s", (i, j), s(j)), store("y", (i, j), y), store("mean", (i,), mean), store("rstd", (i,), rstd))
    rows = [buffer(k, (n, m), dtype) for k in ("x", "z")] + [buffer(k, (m,), dtype) for k in ("w", "b")]
    outs = [buffer(k, (n, m), dtype) for k in ("s", "y")] + [
        buffer(k, (n,), F32 if dtype is not F64 else F64) for k in ("mean", "rstd")
    ]
    return Kernel("add_layer_norm", (i, j), stores, (*rows, *outs))


def layer_norm_backward(n: Size, m: Size, dtype: DType = F32) -> Kernel:
    """dx by two row sums, dw and db by column sums, from saved mean and rstd."""
    i, j, r = axis("i", n), axis("j", m), axis("r", m)
    s = axis("s", n)

    def xhat(row: Axis, col: Axis) -> Value:
        return (load("x", (row, col), dtype) - load("mean", (row,), F32)) * load("rstd", (row,), F32)

    def g(row: Axis, col: Axis) -> Value:
        return load("dy", (row, col), dtype) * load("w", (col,), dtype)

    count = cast(iota(as_index(m)), F32)
    c1 = fold("sum", (r,), g(i, r)) / count
    c2 = fold("sum", (r,), g(i, r) * xhat(i, r)) / count
    dx = (g(i, j) - c1 - xhat(i, j) * c2) * load("rstd", (i,), F32)
    dw = fold("sum", (s,), load("dy", (s, j), dtype) * xhat(s, j))
    db = fold("sum", (s,), load("dy", (s, j), dtype))
    stores = (store("dx", (i, j), dx), store("dw", (j,), dw), store("db", (j,), db))
    ins = (buffer("x", (n, m), dtype), buffer("dy", (n, m), dtype), buffer("w", (m,), dtype))
    stats = (buffer("mean", (n,)), buffer("rstd", (n,)))
    return Kernel(
        "layer_norm_backward",
        (i, j),
        stores,
        (*ins, *stats, buffer("dx", (n, m), dtype), buffer("dw", (m,)), buffer("db", (m,))),
    )


def column_sum(n: Size, m: Size, dtype: DType = F32, combiner: str = "sum") -> Kernel:
    j, r = axis("j", m), axis("r", n)
    value = fold(combiner, (r,), load("x", (r, j), dtype))
    return Kernel(
        "column_" + combiner, (j,), (store("y", (j,), value),), (buffer("x", (n, m), dtype), buffer("y", (m,), dtype))
    )


def row_fold(n: Size, m: Size, dtype: DType = F32, combiner: str = "sum") -> Kernel:
    i, r = axis("i", n), axis("r", m)
    x = load("x", (i, r), dtype)
    if combiner in ("any", "all"):
        x = word("gt", x, 1)
    args = (x, iota(as_index(r), I64)) if combiner.startswith("arg") else (x,)
    parts = 2 if combiner in ("argmax", "argmin", "welford", "maxsumexp") else 1
    values = [fold(combiner, (r,), *args, part=k) for k in range(parts)]
    stores = tuple(store(f"y{k}", (i,), v) for k, v in enumerate(values))
    outs = [buffer(f"y{k}", (n,), v.dtype if v.dtype is not dtype.compute else dtype) for k, v in enumerate(values)]
    return Kernel("row_" + combiner, (i,), stores, (buffer("x", (n, m), dtype), *outs))


def whole_fold(n: Size, m: Size, dtype: DType = F32, combiner: str = "sum") -> Kernel:
    r, s = axis("r", n), axis("s", m)
    value = fold(combiner, (r, s), load("x", (r, s), dtype))
    return Kernel(
        "whole_" + combiner, (), (store("y", (), value),), (buffer("x", (n, m), dtype), buffer("y", (), dtype))
    )


def normalise_by_all(n: Size, m: Size, dtype: DType = F32) -> Kernel:
    """y = x / max of all |x|: every element waits for a fold over everything."""
    i, j, r, s = axis("i", n), axis("j", m), axis("r", n), axis("s", m)
    top = fold("max", (r, s), word("abs", load("x", (r, s), dtype)))
    y = load("x", (i, j), dtype) / top
    return Kernel(
        "normalise", (i, j), (store("y", (i, j), y),), (buffer("x", (n, m), dtype), buffer("y", (n, m), dtype))
    )


def transpose_add(n: Size, m: Size, dtype: DType = F32) -> Kernel:
    i, j = axis("i", n), axis("j", m)
    y = load("a", (i, j), dtype) + load("b", (j, i), dtype)
    buffers = (buffer("a", (n, m), dtype), buffer("b", (m, n), dtype), buffer("y", (n, m), dtype))
    return Kernel("transpose_add", (i, j), (store("y", (i, j), y),), buffers)


def gather_rows(n: Size, m: Size, dtype: DType = F32, table: int = 37) -> Kernel:
    i, j = axis("i", n), axis("j", m)
    row = Read(load("index", (i,), I64), as_index(table))
    y = load("table", (row, j), dtype)
    buffers = (buffer("index", (n,), I64), buffer("table", (table, m), dtype), buffer("y", (n, m), dtype))
    return Kernel("gather_rows", (i, j), (store("y", (i, j), y),), buffers)


def scatter_add_rows(n: Size, m: Size, dtype: DType = F32, table: int = 37) -> Kernel:
    i, j = axis("i", n), axis("j", m)
    row = Read(load("index", (i,), I64), as_index(table))
    added = store("table", (row, j), load("x", (i, j), dtype), Mode.ADD)
    buffers = (buffer("index", (n,), I64), buffer("x", (n, m), dtype), buffer("table", (table, m), dtype))
    return Kernel("scatter_add_rows", (i, j), (added,), buffers)


def cat(n: Size, m: int, dtype: DType = F32) -> Kernel:
    """y = cat([a, b], dim=1), a of m columns, b of m + 3."""
    i, j = axis("i", n), axis("j", 2 * m + 3)
    left = word("lt", iota(as_index(j)), m)
    a = load("a", (i, j), dtype, left)
    b = load("b", (i, as_index(j) - m), dtype, ~left)
    y = word("select", left, a, b)
    buffers = (buffer("a", (n, m), dtype), buffer("b", (n, m + 3), dtype), buffer("y", (n, 2 * m + 3), dtype))
    return Kernel("cat", (i, j), (store("y", (i, j), y),), buffers)


def max_pool(n: Size, m: int, dtype: DType = F32) -> Kernel:
    """Window 3, stride 2, padding 1 along rows of 2 * m elements."""
    i, j, r = axis("i", n), axis("j", m), axis("r", 3)
    at = as_index(j) * 2 + r - 1
    inside = word("and", word("ge", iota(at), 0), word("lt", iota(at), 2 * m))
    lowest = const(float("-inf"), dtype) if dtype.is_float else const(-(2**31), dtype)
    value = word("select", inside, load("x", (i, at), dtype, inside), lowest)
    y = fold("max", (r,), value)
    return Kernel(
        "max_pool", (i, j), (store("y", (i, j), y),), (buffer("x", (n, 2 * m), dtype), buffer("y", (n, m), dtype))
    )


def cross_entropy(n: Size, m: Size, dtype: DType = F32) -> Kernel:
    """loss = mean over rows of log-sum-exp minus the target's logit; the row statistic is stored for backward."""
    i, r, s = axis("i", n), axis("r", m), axis("s", n)

    def lse(row: Axis) -> Value:
        along = load("x", (row, r), dtype)
        return fold("maxsumexp", (r,), along) + word("log", fold("maxsumexp", (r,), along, part=1))

    target = Read(load("t", (s,), I64), as_index(m))
    loss = fold("sum", (s,), lse(s) - load("x", (s, target), dtype)) / cast(iota(as_index(n)), F32)
    stores = (store("lse", (i,), lse(i)), store("loss", (), loss))
    buffers = (buffer("x", (n, m), dtype), buffer("t", (n,), I64), buffer("lse", (n,)), buffer("loss", ()))
    return Kernel("cross_entropy", (i,), stores, buffers)


def batch_norm(n: Size, c: Size, h: Size, dtype: DType = F32, last: bool = False) -> Kernel:
    """Training batch norm over (n, h) of (n, c, h); channels last in memory if asked."""
    i, k, j = axis("i", n), axis("c", c), axis("j", h)
    r, s = axis("r", n), axis("s", h)
    x, along = load("x", (i, k, j), dtype), load("x", (r, k, s), dtype)
    mean, m2 = (fold("welford", (r, s), along, part=p) for p in (0, 1))
    rstd = word("rsqrt", m2 / cast(iota(as_index(n) * h), F32) + 1e-5)
    y = (x - mean) * rstd * load("w", (k,), F32)
    stores = (store("y", (i, k, j), y), store("mean", (k,), mean), store("rstd", (k,), rstd))
    order = (0, 2, 1) if last else None
    buffers = (
        buffer("x", (n, c, h), dtype, order),
        buffer("w", (c,)),
        buffer("y", (n, c, h), dtype, order),
        buffer("mean", (c,)),
        buffer("rstd", (c,)),
    )
    return Kernel("batch_norm", (i, k, j), stores, buffers)


def argmax_gather(n: Size, m: int, dtype: DType = F32) -> Kernel:
    """y[i] = z[i, argmax of x[i]]: an index that depends on a fold."""
    i, r = axis("i", n), axis("r", m)
    best = fold("argmax", (r,), load("x", (i, r), dtype), iota(as_index(r)), part=1)
    y = load("z", (i, Read(best, as_index(m))), dtype)
    buffers = (buffer("x", (n, m), dtype), buffer("z", (n, m), dtype), buffer("y", (n,), dtype))
    return Kernel("argmax_gather", (i,), (store("y", (i,), y),), buffers)


PATTERNS: dict[str, Callable[..., Kernel]] = {
    f.__name__: f
    for f in (
        *(pointwise, bias_relu, softmax, add_layer_norm, layer_norm_backward, column_sum, row_fold, whole_fold),
        *(normalise_by_all, transpose_add, gather_rows, scatter_add_rows, cat, max_pool, cross_entropy, argmax_gather),
    )
}


def renamed(kernel: Kernel, name: str) -> Kernel:
    return replace(kernel, name=name)


class Memory:
    """One buffer's memory: raw elements with guards, and the view that is the tensor."""

    def __init__(self, buffer: Buffer, sizes: Mapping[str, int], rng: np.random.Generator, high: int) -> None:
        at = {Sym(k): v for k, v in sizes.items()}
        shape = [evaluate(s, at) for s in buffer.shape]
        strides = [evaluate(s, at) for s in buffer.strides]
        dtype = np.dtype(STORED[buffer.dtype.name])
        extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
        room = np.zeros(extent + 2 * MARGIN + 64 // dtype.itemsize, dtype)
        skip = -room.ctypes.data % 64 // dtype.itemsize
        self.raw = room[skip : skip + extent + 2 * MARGIN]
        self.raw.view(np.uint8)[:] = 0x5A
        if buffer.dtype is BOOL:
            self.raw[:] = 1
        self.pointer = self.raw.ctypes.data + MARGIN * dtype.itemsize
        self.buffer, self.shape, self.strides = buffer, shape, strides
        self.values = self._values(rng, high)
        self.view(self.raw)[...] = self.encoded(self.values)

    def _values(self, rng: np.random.Generator, high: int) -> Any:
        dtype = self.buffer.dtype
        if dtype.is_float:
            return round_to(
                np.asarray(rng.standard_normal(self.shape), np.float64 if dtype is F64 else np.float32), dtype
            )
        if dtype is BOOL:
            return np.asarray(rng.integers(0, 2, self.shape), np.bool_)
        return np.asarray(rng.integers(0, min(high, 100), self.shape), NUMPY[dtype.name])

    def view(self, raw: Any) -> Any:
        """The tensor inside raw memory."""
        return np.lib.stride_tricks.as_strided(
            raw[MARGIN:], self.shape, [s * raw.itemsize for s in self.strides], writeable=True
        )

    def encoded(self, values: Any) -> Any:
        if self.buffer.dtype is BF16:
            return (
                (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16)
                .astype(np.uint16)
                .reshape(np.shape(values))
            )
        return np.asarray(values).astype(STORED[self.buffer.dtype.name])

    def decoded(self, stored: Any) -> Any:
        if self.buffer.dtype is BF16:
            return (np.ascontiguousarray(stored).astype(np.uint32) << 16).view(np.float32).reshape(np.shape(stored))
        if self.buffer.dtype is F16:
            return np.asarray(stored, np.float32)
        return np.asarray(stored).astype(NUMPY[self.buffer.dtype.name])

    def check(self, expected: Any, scale: float) -> None:
        """Elements close to what is expected, everything around untouched."""
        outside = self.raw.copy()
        self.view(outside)[...] = self.encoded(np.zeros(self.shape, NUMPY[self.buffer.dtype.name]))
        clean = np.full_like(self.raw, 1) if self.buffer.dtype is BOOL else self.raw.copy()
        if self.buffer.dtype is not BOOL:
            clean.view(np.uint8)[:] = 0x5A
        self.view(clean)[...] = self.encoded(np.zeros(self.shape, NUMPY[self.buffer.dtype.name]))
        assert np.array_equal(outside.view(np.uint8), clean.view(np.uint8)), f"{self.buffer.name}: written outside"
        found = self.decoded(self.view(self.raw))
        name = self.buffer.dtype.name
        if name in TOLERANCE:
            size = np.max(np.abs(expected[np.isfinite(expected)]), initial=1.0)
            np.testing.assert_allclose(
                found, expected, rtol=TOLERANCE[name] * scale, atol=TOLERANCE[name] * scale * size
            )
        else:
            np.testing.assert_array_equal(found, expected)


def run_against_reference(
    kernel: Kernel,
    entry: Callable[[Sequence[int], Sequence[int]], None],
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    high: int = 37,
    scale: float = 1.0,
) -> None:
    """Runs both on the same random contents and compares all memory. `high` bounds the integers."""
    rng = np.random.default_rng(seed)
    sizes = sizes or {}
    memories = {b.name: Memory(b, sizes, rng, high) for b in kernel.buffers}
    expected = {name: m.values.copy() for name, m in memories.items()}
    run_kernel(kernel, expected, sizes)
    entry([m.pointer for m in memories.values()], [sizes[k] for k in sorted(sizes)])
    for name, memory in memories.items():
        memory.check(expected[name], scale)
