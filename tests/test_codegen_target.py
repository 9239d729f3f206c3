"""Every target is asked for every word and every combiner: it spells them, or says beforehand that it does not."""

from collections.abc import Sequence

import numpy as np
import pytest

from ridgeline.base.errors import BuildFailed
from ridgeline.base.records import Machine
from ridgeline.codegen.c import C
from ridgeline.codegen.target import Target
from ridgeline.ir.combiners import COMBINERS
from ridgeline.ir.kernel import Kernel
from ridgeline.ir.reference import run_kernel
from ridgeline.ir.types import BOOL, F32, F64, I32, I64, DType
from ridgeline.ir.value import cast, load, word
from ridgeline.ir.words import WORDS
from ridgeline.runtime.build import build
from ridgeline.runtime.cache import Cache
from ridgeline.schedule import schedule
from tests import kernels as k

MACHINE = Machine("vector", C().machine(1, ()).width, 16, 2, (48 << 10, 2 << 20, 32 << 20))
INTEGER_WORDS = ("and", "or", "xor", "not", "shl", "shr")
N = 100


def one_word(name: str, dtype: DType) -> Kernel:
    """y[i] = word(a[i], b[i], c[i])."""
    i = k.axis("i", N)
    info = WORDS[name]
    args = [load("abc"[n], (i,), dtype) for n in range(info.arity)]
    if name == "select":
        args[0] = word("gt", args[0], args[1])
    value = word(name, *args)
    buffers = [k.buffer("abc"[n], (N,), dtype) for n in range(info.arity)]
    return Kernel(f"w_{name}_{dtype}", (i,), (k.store("y", (i,), value),), (*buffers, k.buffer("y", (N,), value.dtype)))


def words_by_type() -> list[tuple[str, DType]]:
    out: list[tuple[str, DType]] = []
    for name, info in WORDS.items():
        if name == "philox":
            out.append((name, I64))
            continue
        out += [(name, t) for t in (F32, F64) if name not in INTEGER_WORDS]
        if not info.float_only and name not in ("isnan", "isinf"):
            out += [(name, t) for t in (I32, I64)]
    return out


def inputs(kernel: Kernel) -> dict[str, np.ndarray]:
    """Numbers inside of every word's domain: 0 < a < 1 for floats, small positive integers, b not zero."""
    rng = np.random.default_rng(3)
    arrays = {}
    for b in kernel.buffers:
        if b.dtype.is_float:
            arrays[b.name] = rng.uniform(0.05, 0.95, N).astype("f4" if b.dtype is F32 else "f8")
            if "acosh" in kernel.name:
                arrays[b.name] += 1
        else:
            arrays[b.name] = rng.integers(1, 9, N).astype({"i32": "i4", "i64": "i8", "bool": "?"}[b.dtype.name])
    return arrays


@pytest.mark.parametrize("target", [C()], ids=lambda t: t.name)
def test_every_word(target: Target, tmp_path_factory: pytest.TempPathFactory) -> None:
    asked = words_by_type()
    assert {name for name, _ in asked} == set(WORDS)
    kernels = [one_word(name, dtype) for name, dtype in asked if name in target.words]
    entries = build([schedule(kernel, MACHINE) for kernel in kernels], target, Cache(tmp_path_factory.mktemp("words")))
    for kernel, entry in zip(kernels, entries, strict=True):
        arrays = inputs(kernel)
        expected = {name: a.copy() for name, a in arrays.items()}
        run_kernel(kernel, expected)
        entry([arrays[b.name].ctypes.data for b in kernel.buffers], [])
        if kernel.buffers[-1].dtype.is_float:
            tolerance = 1e-6 if kernel.buffers[-1].dtype is F32 else 1e-12
            np.testing.assert_allclose(arrays["y"], expected["y"], tolerance * 4, tolerance, err_msg=kernel.name)
        else:
            np.testing.assert_array_equal(arrays["y"], expected["y"], kernel.name)


@pytest.mark.parametrize("target", [C()], ids=lambda t: t.name)
def test_words_that_are_not_spelled_are_refused(target: Target) -> None:
    for name in sorted(set(WORDS) - target.words):
        with pytest.raises(BuildFailed, match=name):
            target.emit([schedule(one_word(name, I64), MACHINE)])


@pytest.mark.parametrize("target", [C()], ids=lambda t: t.name)
def test_every_combiner(target: Target, tmp_path_factory: pytest.TempPathFactory) -> None:
    kernels = [k.row_fold(9, 50, I32 if name == "xor" else F32, name) for name in COMBINERS]
    entries = build([schedule(kernel, MACHINE) for kernel in kernels], target, Cache(tmp_path_factory.mktemp("folds")))
    for kernel, entry in zip(kernels, entries, strict=True):
        k.run_against_reference(kernel, entry, scale=20)


def casts(types: Sequence[DType]) -> list[Kernel]:
    i = k.axis("i", N)
    return [
        Kernel(
            f"c_{a}_{b}",
            (i,),
            (k.store("y", (i,), cast(load("a", (i,), a), b)),),
            (k.buffer("a", (N,), a), k.buffer("y", (N,), b)),
        )
        for a in types
        for b in types
        if a is not b
    ]


@pytest.mark.parametrize("target", [C()], ids=lambda t: t.name)
def test_every_cast(target: Target, tmp_path_factory: pytest.TempPathFactory) -> None:
    kernels = casts((F32, F64, I32, I64, BOOL))
    entries = build([schedule(kernel, MACHINE) for kernel in kernels], target, Cache(tmp_path_factory.mktemp("casts")))
    for kernel, entry in zip(kernels, entries, strict=True):
        k.run_against_reference(kernel, entry)
