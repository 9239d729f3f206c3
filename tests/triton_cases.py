"""Kernels on which generated Triton is held against the reference interpreter: by name, with tolerance and range.

`large` machines hold these rows whole; on `small` ones blocks are so short that a few hundred elements take loops,
split folds and their finishing phases.
"""

from collections.abc import Callable, Sequence
from functools import partial

from ridgeline.base.records import Machine
from ridgeline.codegen.triton import Triton
from ridgeline.ir.index import Axis, as_index
from ridgeline.ir.kernel import Kernel
from ridgeline.ir.types import BF16, F16, F32, F64, I8, I16, I32, I64, U8, DType
from ridgeline.ir.value import Value, const, fold, iota, load, word
from tests import kernels as k

LARGE = Triton(lambda count: None, lambda: 0).machine(4, (227 << 10, 1 << 20))
SMALL = Machine("tile", 32, 256, 2, (1 << 16, 1 << 20))
Case = tuple[Sequence[Kernel], Machine, float, int]  # kernels, machine, tolerance, bound of integers
# 1: no fold. 2, 7: within a tile. 33: a ragged tile. 129: more than one.
SIZES = (1, 2, 7, 33, 129)
COMBINERS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "welford", "maxsumexp")


def high(name: str, size: int) -> int:
    """Integers index something as long as the rows, or a table of 37."""
    return size if name == "cross_entropy" else 37


def ragged(name: str) -> Case:
    return [k.PATTERNS[name](5, size) for size in SIZES], LARGE, 4.0, high(name, 1)


def looped(name: str) -> Case:
    """Long for the small machine along rows, columns and both."""
    return [k.PATTERNS[name](n, m) for n, m in ((3, 150), (70, 9), (17, 33))], SMALL, 20.0, high(name, 9)


def floats(name: str) -> Case:
    left_out = {
        "layer_norm_backward": F64,  # f32 statistics are part of the pattern
        "cross_entropy": F64,
        "scatter_add_rows": BF16,  # the interpreter has no atomic addition of it
    }
    types = [t for t in (F32, F64, BF16, F16) if t is not left_out.get(name)]
    return [k.PATTERNS[name](7, 37, t) for t in types], LARGE, 8.0, 37


def integers(dtype: DType) -> Case:
    patterns = [k.bias_relu, k.transpose_add, k.gather_rows, k.cat, k.column_sum, k.whole_fold]
    if dtype.bytes >= 4:
        patterns.append(k.scatter_add_rows)
    folds = [k.row_fold(5, 35, dtype, c) for c in ("sum", "prod", "max", "min", "argmax", "argmin", "xor")]
    return [*(p(5, 35, dtype) for p in patterns), *folds], SMALL, 1.0, 37


def combiner(name: str, machine: Machine) -> Case:
    return [k.row_fold(5, size, F32, name) for size in (1, 3, 33, 100)], machine, 20.0, 37


CASES: dict[str, Callable[[], Case]] = {
    **{f"ragged-{n}": partial(ragged, n) for n in k.PATTERNS},
    **{f"looped-{n}": partial(looped, n) for n in k.PATTERNS},
    **{f"floats-{n}": partial(floats, n) for n in k.PATTERNS},
    **{f"integers-{t}": partial(integers, t) for t in (I64, I32, I16, I8, U8)},
    **{f"combiner-{c}": partial(combiner, c, LARGE) for c in COMBINERS},
    **{f"looped-combiner-{c}": partial(combiner, c, SMALL) for c in COMBINERS},
}


def cross_entropy_backward(n: int, m: int, dtype: DType) -> Kernel:
    """dx = (exp(x - lse) - [j = target]) * dloss / n, from the row statistic that the forward kept."""
    i, j = k.axis("i", n), k.axis("j", m)
    share = load("dloss", (), F32) / float(n)
    hit = word("eq", iota(as_index(j)), load("t", (i,), I64))
    p = word("exp", load("x", (i, j), dtype) - load("lse", (i,), F32))
    dx = (p - word("select", hit, const(1.0), const(0.0))) * share
    ins = (k.buffer("x", (n, m), dtype), k.buffer("t", (n,), I64), k.buffer("lse", (n,)), k.buffer("dloss", ()))
    return Kernel("cross_entropy_backward", (i, j), (k.store("dx", (i, j), dx),), (*ins, k.buffer("dx", (n, m), dtype)))


def rms_norm(n: int, m: int, dtype: DType) -> Kernel:
    """y = x * rstd * w; rstd is kept for backward."""
    i, j, r = k.axis("i", n), k.axis("j", m), k.axis("r", m)
    along = load("x", (i, r), dtype)
    rstd = word("rsqrt", fold("sum", (r,), along * along) / float(m) + 1e-6)
    y = load("x", (i, j), dtype) * rstd * load("w", (j,), dtype)
    buffers = (
        *(k.buffer("x", (n, m), dtype), k.buffer("w", (m,), dtype)),
        *(k.buffer("y", (n, m), dtype), k.buffer("rstd", (n,))),
    )
    return Kernel("rms_norm", (i, j), (k.store("y", (i, j), y), k.store("rstd", (i,), rstd)), buffers)


def rms_norm_backward(n: int, m: int, dtype: DType) -> Kernel:
    """dx by one row sum and dw by a column sum, from x, dy, w and rstd."""
    i, j, r, s = k.axis("i", n), k.axis("j", m), k.axis("r", m), k.axis("s", n)

    def xhat(row: Axis, col: Axis) -> Value:
        return load("x", (row, col), dtype) * load("rstd", (row,), F32)

    def g(row: Axis, col: Axis) -> Value:
        return load("dy", (row, col), dtype) * load("w", (col,), dtype)

    c = fold("sum", (r,), g(i, r) * xhat(i, r)) / float(m)
    dx = (g(i, j) - xhat(i, j) * c) * load("rstd", (i,), F32)
    dw = fold("sum", (s,), load("dy", (s, j), dtype) * xhat(s, j))
    ins = (
        k.buffer("x", (n, m), dtype),
        k.buffer("dy", (n, m), dtype),
        k.buffer("w", (m,), dtype),
        k.buffer("rstd", (n,)),
    )
    buffers = (*ins, k.buffer("dx", (n, m), dtype), k.buffer("dw", (m,)))
    return Kernel("rms_norm_backward", (i, j), (k.store("dx", (i, j), dx), k.store("dw", (j,), dw)), buffers)


def adamw(n: int, dtype: DType) -> Kernel:
    """One step on n weights: both moments and the weights, in place; rate and bias corrections are arguments."""
    i = k.axis("i", n)
    p, g, m, v = (load(name, (i,), t) for name, t in (("p", dtype), ("g", dtype), ("m", F32), ("v", F32)))
    rate, first, second = (load(name, (), F32) for name in ("rate", "first", "second"))
    m = m + (g - m) * 0.1
    v = v * 0.95 + g * g * 0.05
    step = (m / first) / (word("sqrt", v / second) + 1e-8)
    p = p * (1.0 - rate * 0.1) - rate * step
    stores = (k.store("p", (i,), p), k.store("m", (i,), m), k.store("v", (i,), v))
    tensors = [k.buffer("p", (n,), dtype), k.buffer("g", (n,), dtype), k.buffer("m", (n,)), k.buffer("v", (n,))]
    return Kernel("adamw", (i,), stores, (*tensors, *(k.buffer(name, ()) for name in ("rate", "first", "second"))))


def pad(n: int, m: int, dtype: DType) -> Kernel:
    """Two columns of zeros before each row, three after."""
    i, j = k.axis("i", n), k.axis("j", m + 5)
    at = as_index(j) - 2
    inside = word("and", word("ge", iota(at), 0), word("lt", iota(at), m))
    y = load("x", (i, at), dtype, inside)
    return Kernel(
        "pad", (i, j), (k.store("y", (i, j), y),), (k.buffer("x", (n, m), dtype), k.buffer("y", (n, m + 5), dtype))
    )


# As large as models have them; compiled for every device, run on none.
COMPILED: dict[str, Kernel] = {
    "gelu": k.gelu(16384, 8192, BF16),
    "bias_relu": k.bias_relu(16384, 8192, BF16),
    "softmax": k.softmax(16384, 8192, BF16),
    "softmax_32768": k.softmax(4096, 32768, BF16),
    "softmax_131072": k.softmax(2048, 131072, BF16),
    "softmax_128": k.softmax(1 << 20, 128, BF16),
    "add_layer_norm": k.add_layer_norm(16384, 8192, BF16),
    "layer_norm_backward": k.layer_norm_backward(16384, 8192, BF16),
    "layer_norm_backward_768": k.layer_norm_backward(175360, 768, BF16),
    "rms_norm": rms_norm(16384, 8192, BF16),
    "rms_norm_backward": rms_norm_backward(16384, 8192, BF16),
    "batch_norm_last": k.batch_norm(64, 256, 3136, BF16, last=True),
    "cross_entropy": k.cross_entropy(8192, 128256, BF16),
    "cross_entropy_backward": cross_entropy_backward(8192, 128256, BF16),
    "column_sum": k.column_sum(16384, 8192, BF16),
    "whole_fold": k.whole_fold(16384, 8192, BF16),
    "normalise_by_all": k.normalise_by_all(16384, 8192, BF16),
    "transpose_add": k.transpose_add(16384, 8192, BF16),
    "cat": k.cat(16384, 4096, BF16),
    "pad": pad(16384, 4096, BF16),
    "gather_rows": k.gather_rows(16384, 4096, BF16, table=128256),
    "scatter_add_rows": k.scatter_add_rows(16384, 4096, F32, table=128256),
    "argmax_gather": k.argmax_gather(4096, 32000, BF16),
    "adamw": adamw(1 << 24, F32),
}
