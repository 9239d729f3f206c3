"""Kernels on which generated Triton is held against the reference interpreter: by name, with tolerance and range.

`large` machines hold these rows whole; on `small` ones blocks are so short that a few hundred elements take loops,
split folds and their finishing phases.
"""

from collections.abc import Callable, Sequence
from functools import partial

from ridgeline.base.records import Machine
from ridgeline.codegen.triton import Triton
from ridgeline.ir.kernel import Kernel
from ridgeline.ir.types import BF16, F16, F32, F64, I8, I16, I32, I64, U8, DType
from tests import kernels as k

LARGE = Triton(lambda count: None, lambda: 0).machine(4, (1 << 20,))
SMALL = Machine("tile", 32, 256, 2, (1 << 20,))
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
    return [k.PATTERNS[name](n, m) for n, m in ((3, 333), (150, 9), (40, 65))], SMALL, 20.0, high(name, 9)


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
    folds = [k.row_fold(9, 35, dtype, c) for c in ("sum", "prod", "max", "min", "argmax", "argmin", "xor")]
    return [*(p(9, 35, dtype) for p in patterns), *folds], SMALL, 1.0, 37


def combiner(name: str, machine: Machine) -> Case:
    return [k.row_fold(5, size, F32, name) for size in (1, 3, 16, 33, 200)], machine, 20.0, 37


CASES: dict[str, Callable[[], Case]] = {
    **{f"ragged-{n}": partial(ragged, n) for n in k.PATTERNS},
    **{f"looped-{n}": partial(looped, n) for n in k.PATTERNS},
    **{f"floats-{n}": partial(floats, n) for n in k.PATTERNS},
    **{f"integers-{t}": partial(integers, t) for t in (I64, I32, I16, I8, U8)},
    **{f"combiner-{c}": partial(combiner, c, LARGE) for c in COMBINERS},
    **{f"looped-combiner-{c}": partial(combiner, c, SMALL) for c in COMBINERS},
}
