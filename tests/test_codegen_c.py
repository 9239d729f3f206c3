"""Generated C against the reference interpreter: every pattern, type, layout and ragged size, guards around outputs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ridgeline.base.records import Machine
from ridgeline.codegen import cc
from ridgeline.codegen.c import C
from ridgeline.ir.index import Sym
from ridgeline.ir.kernel import Kernel
from ridgeline.ir.parse import parse
from ridgeline.ir.program import Program
from ridgeline.ir.reference import run_kernel
from ridgeline.ir.show import show
from ridgeline.ir.types import BF16, F16, F32, F64, I8, I16, I32, I64, U8, DType
from ridgeline.runtime.build import build
from ridgeline.runtime.cache import Cache
from ridgeline.schedule import candidates, schedule
from tests import kernels as k
from tests.fuzz_kernels import random_kernel

TARGET = C()
MACHINE = TARGET.machine(2, (48 << 10, 2 << 20, 32 << 20))
# 0 and 1: nothing, one lane; around 8, 16, 32, 64 and 128: the lanes, unrolled tiles and their ragged ends.
SIZES = (0, 1, 2, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129)
STATIC_SIZES = (0, 1, 7, 16, 33, 64, 129)
READERS = ("gather_rows", "scatter_add_rows", "cross_entropy", "argmax_gather")  # of what an index points to
FLOATS: tuple[DType, ...] = (F64, BF16, F16)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("cache"))


def check(
    made: Sequence[Kernel],
    cache: Cache,
    scale: float = 4.0,
    high: int = 37,
    every: bool = False,
    machine: Machine = MACHINE,
) -> None:
    made = [k.renamed(kernel, f"{kernel.name}_{n}") for n, kernel in enumerate(made)]
    tried = [(kernel, program) for kernel in made for program in (all_of if every else best)(kernel, machine)]
    programs = [replace(program, name=f"{program.name}_{n}") for n, (_, program) in enumerate(tried)]
    entries = build(programs, TARGET, cache)
    for (kernel, program), entry in zip(tried, entries, strict=True):
        try:
            k.run_against_reference(kernel, entry, scale=scale, high=high)
        except AssertionError as error:
            shapes = {b.name: b.shape for b in kernel.buffers}
            raise AssertionError(f"{kernel.name} {shapes}: {error}\n{show(program)}") from error


def all_of(kernel: Kernel, machine: Machine) -> list[Program]:
    return candidates(kernel, machine, every=True)


def best(kernel: Kernel, machine: Machine) -> list[Program]:
    return [schedule(kernel, machine)]


@pytest.mark.parametrize("name", sorted(k.PATTERNS))
def test_ragged_sizes(name: str, cache: Cache) -> None:
    fixed = 3 if name == "layer_norm_backward" else 5
    lowest = 1 if name in READERS else 0
    high = 1 if name == "cross_entropy" else 37
    check([k.PATTERNS[name](fixed, size) for size in STATIC_SIZES if size >= lowest], cache, high=high)


@pytest.mark.parametrize("name", sorted(set(k.PATTERNS) - {"cat", "max_pool"}))
def test_sizes_known_at_run_time(name: str, cache: Cache) -> None:
    """One program for all sizes (symbols are 2 at least)."""
    kernel = k.PATTERNS[name](Sym("n"), Sym("m"))
    (entry,) = build([schedule(kernel, MACHINE)], TARGET, cache)
    high = 2 if name == "cross_entropy" else 37
    for m in SIZES[2:]:
        k.run_against_reference(kernel, entry, {"n": 5, "m": m}, high=high, scale=20)
    for n in (2, 17, 200):
        k.run_against_reference(kernel, entry, {"n": n, "m": 33}, high=high, scale=20)


@pytest.mark.parametrize("name", sorted(k.PATTERNS))
def test_many_rows(name: str, cache: Cache) -> None:
    """Enough rows for a parallel grid, split folds and their finishing phase; short rows; every candidate."""
    high = 33 if name == "cross_entropy" else 37
    shapes = ((300, 33), (1500, 10))
    check([k.PATTERNS[name](n, m) for n, m in shapes], cache, scale=20, high=min(high, 10), every=True)


@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
@pytest.mark.parametrize("name", sorted(k.PATTERNS))
def test_float_types(name: str, dtype: DType, cache: Cache) -> None:
    if dtype is F64 and name in ("layer_norm_backward", "cross_entropy"):
        pytest.skip("mixes f32 statistics into the pattern")
    check([k.PATTERNS[name](7, 37, dtype)], cache, scale=8)


@pytest.mark.parametrize("dtype", (I64, I32, I16, I8, U8), ids=repr)
def test_integer_types(dtype: DType, cache: Cache) -> None:
    patterns = (k.bias_relu, k.transpose_add, k.gather_rows, k.scatter_add_rows, k.cat, k.column_sum, k.whole_fold)
    folds = [k.row_fold(9, 35, dtype, c) for c in ("sum", "prod", "max", "min", "argmax", "argmin", "xor")]
    check([*(p(9, 35, dtype) for p in patterns), *folds], cache)


@pytest.mark.parametrize("combiner", ("prod", "max", "min", "any", "all", "argmax", "argmin", "welford", "maxsumexp"))
def test_combiners(combiner: str, cache: Cache) -> None:
    check([k.row_fold(5, size, F32, combiner) for size in (1, 3, 16, 33, 200)], cache, scale=20)


def test_output_written_over_an_input(cache: Cache) -> None:
    """s = x + z in x's own memory, while three passes of layer norm read x."""
    kernel = k.add_layer_norm(40, 200)
    (entry,) = build([schedule(kernel, MACHINE)], TARGET, cache)
    rng = np.random.default_rng(0)
    arrays = {b.name: rng.standard_normal([s.const for s in b.shape]).astype("f4") for b in kernel.buffers}
    expected = {name: a.copy() for name, a in arrays.items()}
    run_kernel(kernel, expected)
    entry([arrays["x" if b.name == "s" else b.name].ctypes.data for b in kernel.buffers], [])
    for name, where in (("s", "x"), ("y", "y"), ("mean", "mean"), ("rstd", "rstd")):
        np.testing.assert_allclose(arrays[where], expected[name], rtol=1e-5, atol=1e-5)


CAPTURED = (Path(__file__).parent / "data" / "kernels.txt").read_text().split("\n=====\n")


def test_kernels_of_whole_models(cache: Cache) -> None:
    """Kernels that the walk made of a small GPT and a small convnet, forward and backward (2026-11-30)."""
    made = [parse(text) for text in CAPTURED]
    check([kernel for kernel in made if isinstance(kernel, Kernel)], cache, scale=50, high=4)


def test_random_kernels(cache: Cache) -> None:
    """Every candidate of random kernels, on a machine that splits and spreads the least work."""
    eager = replace(MACHINE, grain_bytes=16)
    check([random_kernel(seed) for seed in range(10)], cache, scale=300, every=True, machine=eager)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1400, 50))
def test_many_random_kernels(first: int, cache: Cache) -> None:
    eager = replace(MACHINE, grain_bytes=16)
    check([random_kernel(seed) for seed in range(first, first + 50)], cache, scale=300, every=True, machine=eager)


@pytest.mark.parametrize("lanes", (8, 4))
def test_narrower_vectors(lanes: int, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same programs in 8 and 4 lanes, as processors without AVX-512 have."""
    monkeypatch.setattr(cc, "lanes", lambda: lanes)
    cc.version.cache_clear()
    machine = TARGET.machine(2, MACHINE.cache_bytes)
    assert machine.width == lanes
    check([k.PATTERNS[name](9, 37) for name in sorted(k.PATTERNS)], cache, scale=20, high=9, machine=machine)
    cc.version.cache_clear()
