"""Every golden kernel as machine code for devices that are not here: it compiles, and nothing spills.

Sizes are those that models have; what they use is read from the binaries.
"""

import math

import pytest

from ridgeline.base.errors import BuildFailed
from ridgeline.codegen.triton import Triton
from ridgeline.codegen.triton_build import TARGETS, Resources, compile_for
from ridgeline.ir.index import as_index
from ridgeline.ir.kernel import Kernel
from ridgeline.ir.types import BF16, BOOL, F8E4M3, F32, F64, I8, I32, I64, U8, DType
from ridgeline.ir.value import load, word
from ridgeline.ir.words import WORDS
from ridgeline.schedule import schedule
from tests import kernels as k
from tests.triton_cases import COMPILED

TARGET = Triton(lambda count: None, lambda: 0)
# Memory that the threads of one program share: NVIDIA's compute capability tables (what a block may opt in to), AMD's
# CDNA3 and CDNA4 instruction set guides (LDS of a compute unit).
SHARED_KIB = {"sm_80": 163, "sm_90": 227, "sm_100": 227, "gfx942": 64, "gfx950": 160}
REGISTERS = {"cuda": 255, "hip": 512}  # most that a thread can have
LIKE_OTHERS = (
    *("bias_relu", "softmax_128", "softmax_32768", "layer_norm_backward_768", "rms_norm", "rms_norm_backward"),
    *("normalise_by_all", "batch_norm_last", "argmax_gather"),
)


def resources(kernel: Kernel, arch: str) -> list[Resources]:
    machine = TARGET.machine(132, (SHARED_KIB[arch] << 10, 60 << 20))
    return list(compile_for(TARGET.emit([schedule(kernel, machine)]), arch).values())


def check(name: str, arch: str) -> None:
    for used in resources(COMPILED[name], arch):
        assert used.spill_bytes == 0, f"{name} on {arch}: {used}"
        assert 0 < used.registers <= REGISTERS[TARGETS[arch].backend]
        assert used.shared_bytes <= SHARED_KIB[arch] << 10
        assert used.code_bytes > 0


@pytest.mark.parametrize("arch", TARGETS)
def test_kernels(arch: str) -> None:
    for name in COMPILED:
        if name not in LIKE_OTHERS:
            check(name, arch)


@pytest.mark.slow
@pytest.mark.parametrize("arch", TARGETS)
def test_kernels_like_others(arch: str) -> None:
    for name in LIKE_OTHERS:
        check(name, arch)


@pytest.mark.slow
@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("width", (1000, 4096, 12288, 16384, 32768, 50257))
def test_rows_of_every_length_stay_in_registers(arch: str, width: int) -> None:
    forward, backward = k.add_layer_norm(4096, width), k.layer_norm_backward(4096, width, BF16)
    for kernel in (k.softmax(4096, width, BF16), forward, backward):
        for used in resources(kernel, arch):
            assert used.spill_bytes == 0, f"{kernel.name} {width} on {arch}: {used}"


def applies(name: str, dtype: DType) -> bool:
    """Whether a word takes values of a type."""
    if dtype.is_float:
        return name not in ("and", "or", "xor", "not", "shl", "shr", "philox")
    if dtype is BOOL:
        return name in ("and", "or", "xor", "not", "eq", "ne", "select")
    return not WORDS[name].float_only and name not in ("fma", "isnan", "isinf") and (name != "philox" or dtype is I64)


def words_kernel(dtype: DType) -> Kernel:
    """One store a word."""
    i = k.axis("i", 100)
    stores, buffers = [], [k.buffer("c", (100,), BOOL), *(k.buffer(f"x{n}", (100,), dtype) for n in range(3))]
    for name, info in WORDS.items():
        if applies(name, dtype):
            arguments = [load(f"x{n}", (i,), dtype) for n in range(info.arity)]
            if name == "select":
                arguments[0] = load("c", (i,), BOOL)
            value = word(name, *arguments)
            stores.append(k.store(f"y_{name}", (as_index(i),), value))
            buffers.append(k.buffer(f"y_{name}", (100,), value.dtype))
    return Kernel(f"words_{dtype}", (i,), tuple(stores), tuple(buffers))


@pytest.mark.parametrize(("dtype", "arch"), ((F32, "sm_90"), (F32, "gfx942"), (I64, "sm_90")), ids=str)
def test_words(dtype: DType, arch: str) -> None:
    assert resources(words_kernel(dtype), arch)


@pytest.mark.slow
@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("dtype", (F32, F64, I64, I32, I8, U8, BOOL), ids=str)
def test_words_of_every_type(dtype: DType, arch: str) -> None:
    assert resources(words_kernel(dtype), arch)


def test_what_a_device_lacks_is_refused() -> None:
    """fp8 of the e4m3 kind came with sm_89."""
    with pytest.raises(BuildFailed, match=r"k_neg_k_0: .*fp8e4nv"):
        resources(k.pointwise(100, 100, F8E4M3, "neg"), "sm_80")
    assert resources(k.pointwise(100, 100, F8E4M3, "neg"), "sm_90")


def test_a_spill_would_be_seen() -> None:
    """A tile far beyond the registers of its threads: the figure that the other tests hold to 0 is then not 0."""
    machine = TARGET.machine(132, (1 << 10, 60 << 20))
    (used,) = compile_for(
        TARGET.emit([schedule(k.softmax(64, 32768, F32), machine)]).replace(" 1024, [(0", " 128, [(0"), "sm_90"
    ).values()
    assert used.spill_bytes > 0 and math.isfinite(used.registers)
