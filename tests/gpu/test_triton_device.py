"""Generated Triton on an NVIDIA GPU: kernels against the reference interpreter, words against fp64, models and eager.

Every kernel goes the way the engine takes it: schedule, build, cache, launch through the driver.
"""

import argparse
import ctypes
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ridgeline.codegen.triton import Triton
from ridgeline.ir.index import Sym, evaluate
from ridgeline.ir.kernel import Buffer, Kernel
from ridgeline.ir.reference import WORD_FUNCTIONS
from ridgeline.ir.types import BF16, F32, F64
from ridgeline.ir.value import load, word
from ridgeline.ir.words import WORDS
from ridgeline.runtime.build import build
from ridgeline.runtime.cache import Cache
from ridgeline.schedule import schedule
from ridgeline.top.engine import current_stream, device_memory
from tests import kernels as k
from tests.triton_cases import CASES

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
TARGET = Triton(device_memory, current_stream)
EXAMPLES = Path(__file__).parents[2] / "examples"
Entry = Callable[[Sequence[int], Sequence[int]], None]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("cache"))


class OnDevice:
    """An entry that works on copies of host memory, guards included; `shift` bytes off alignment."""

    def __init__(self, kernel: Kernel, entry: Entry, shift: int = 0) -> None:
        self.kernel, self.entry, self.shift = kernel, entry, shift
        self.names: tuple[str, ...] = ()

    def room(self, buffer: Buffer, sizes: Sequence[int]) -> tuple[int, int]:
        """Bytes before the first element that are guards, and bytes of all."""
        at = dict(zip(map(Sym, self.names), sizes, strict=True))
        shape = [evaluate(s, at) for s in buffer.shape]
        strides = [evaluate(s, at) for s in buffer.strides]
        extent = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        return k.MARGIN * buffer.dtype.bytes, (extent + 2 * k.MARGIN) * buffer.dtype.bytes

    def __call__(self, pointers: Sequence[int], sizes: Sequence[int]) -> None:
        copies = []
        for buffer, pointer in zip(self.kernel.buffers, pointers, strict=True):
            before, count = self.room(buffer, sizes)
            raw = np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(pointer - before))
            copy = torch.zeros(count + self.shift, dtype=torch.uint8, device="cuda")
            copy[self.shift :] = torch.from_numpy(raw)
            copies.append((raw, copy, before))
        self.entry([copy.data_ptr() + self.shift + before for _, copy, before in copies], sizes)
        for raw, copy, _ in copies:
            raw[:] = copy[self.shift :].cpu().numpy()


def test_kernels(cache: Cache) -> None:
    """All cases of the interpreter's test, compiled together."""
    made: list[tuple[str, Kernel, Any, float, int]] = []
    for name, case in CASES.items():
        kernels, machine, scale, high = case()
        for n, kernel in enumerate(kernels):
            made.append((name, replace(kernel, name=f"{name.replace('-', '_')}_{n}"), machine, scale, high))
    scatter = k.scatter_add_rows(7, 37, BF16)
    made.append(("scatter-bf16", replace(scatter, name="scatter_bf16"), CASES["ragged-cat"]()[1], 8.0, 37))
    entries = build([schedule(kernel, machine) for _, kernel, machine, _, _ in made], TARGET, cache)
    failed = []
    for (name, kernel, _, scale, high), entry in zip(made, entries, strict=True):
        try:
            k.run_against_reference(kernel, OnDevice(kernel, entry), scale=scale, high=high)
        except AssertionError as error:
            failed.append(f"{name} {[(b.name, b.dtype, b.shape) for b in kernel.buffers]}: {str(error)[:300]}")
    assert not failed, "\n".join(failed)


def test_addresses_that_are_not_aligned(cache: Cache) -> None:
    machine = TARGET.machine(132, (227 << 10, 60 << 20))
    kernel = k.softmax(33, 1000, BF16)
    (entry,) = build([schedule(kernel, machine)], TARGET, cache)
    for shift in (2, 0):
        k.run_against_reference(kernel, OnDevice(kernel, entry, shift), scale=4.0)


def test_sizes_known_at_run_time(cache: Cache) -> None:
    machine = TARGET.machine(132, (227 << 10, 60 << 20))
    kernel = k.softmax(Sym("rows"), Sym("width"), F32)
    (entry,) = build([schedule(kernel, machine)], TARGET, cache)
    for rows, width in ((1, 1), (5, 700), (70, 3)):
        device = OnDevice(kernel, entry)
        device.names = ("rows", "width")
        k.run_against_reference(kernel, device, {"rows": rows, "width": width}, scale=4.0)


# Words whose operands come from other places than -40 .. 40, and the largest error allowed in units in the last place
# of f32 where it is more than 2: what the device's own library is documented to have, or what the word is made of.
RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("log", "log2", "log10", "sqrt", "rsqrt", "lgamma", "digamma"), (1e-3, 50.0)),
    **dict.fromkeys(("asin", "acos", "atanh", "erfinv"), (-0.999, 0.999)),
    **{"acosh": (1.0, 50.0), "log1p": (-0.9, 50.0), "pow": (0.01, 20.0), "exp": (-100.0, 88.0), "tan": (-1.5, 1.5)},
}
ULP = {"tan": 5, "lgamma": 8, "digamma": 24, "erfinv": 8, "acosh": 5, "asinh": 5, "atanh": 4, "sinh": 4, "cosh": 4}
ULP |= {"erfc": 6, "sigmoid": 4, "exp": 3, "exp2": 3, "pow": 3, "atan2": 4, "asin": 4, "acos": 3, "hypot": 3, "div": 3}
ULP |= {"log10": 3, "recip": 2, "rsqrt": 3, "mod": 1, "fmod": 1}
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0, 1e-30, -1e-30, 1e-40, 1e30, float("inf"), float("-inf"), float("nan"))
SIGN_OF_ZERO_VARIES = ("max", "min", "mod", "div_floor")  # as in ATen, where it differs from numpy or is either
INTEGER_WORDS = ("and", "or", "xor", "not", "shl", "shr", "philox")


def word_kernel(name: str, count: int) -> Kernel:
    info, i = WORDS[name], k.axis("i", count)
    arguments = [load(f"x{n}", (i,), F32) for n in range(info.arity)]
    if name == "select":
        arguments[0] = word("gt", arguments[0], 0.0)
    value = word(name, *arguments)
    inputs = [k.buffer(f"x{n}", (count,)) for n in range(info.arity)]
    return Kernel(f"w_{name}", (i,), (k.store("y", (i,), value),), (*inputs, k.buffer("y", (count,), value.dtype)))


def test_words(cache: Cache) -> None:
    """Each word of f32 on random and special numbers, against the reference in fp64."""
    names = [n for n in WORDS if n not in INTEGER_WORDS]
    rng, count = np.random.default_rng(0), 4096
    machine = TARGET.machine(132, (227 << 10, 60 << 20))
    entries = build([schedule(word_kernel(n, count), machine) for n in names], TARGET, cache)
    failed = []
    for name, entry in zip(names, entries, strict=True):
        low, high = RANGES.get(name, (-40.0, 40.0))
        inputs = [rng.uniform(low, high, count).astype(np.float32) for _ in range(WORDS[name].arity)]
        for n, x in enumerate(inputs):
            x[: len(SPECIAL) ** 2] = np.tile(SPECIAL, len(SPECIAL)) if n == 0 else np.repeat(SPECIAL, len(SPECIAL))
        out = torch.empty(count, dtype=torch.bool if WORDS[name].result == "bool" else torch.float32, device="cuda")
        tensors = [torch.from_numpy(x).cuda() for x in inputs]
        entry([*(t.data_ptr() for t in tensors), out.data_ptr()], ())
        worst = error_ulp(name, inputs, out.cpu().numpy())
        print(f"{name}: {worst[0]:.2f} ulp at {worst[1]}")
        if not worst[0] <= ULP.get(name, 2):
            failed.append(f"{name}: {worst[0]:.2f} ulp at {worst[1]}: gave {worst[2]}, not {worst[3]}")
    assert not failed, "\n".join(failed)


def error_ulp(name: str, inputs: Sequence[Any], found: Any) -> tuple[float, Any, Any, Any]:
    """The largest error, and where."""
    wide = [x.astype(np.float64) for x in inputs]
    if name == "select":
        wide[0] = wide[0] > 0
    narrow = name in ("nextafter", "round_bf16", "round_f16")
    with np.errstate(all="ignore"):
        if name == "div_floor":
            expected = torch.div(*map(torch.from_numpy, inputs), rounding_mode="floor").numpy()
        else:
            expected = np.asarray(WORD_FUNCTIONS[name](*(inputs if narrow else wide)))
        rounded = expected.astype(found.dtype)
        if found.dtype == np.bool_:
            error = np.where(found == rounded, 0.0, np.inf)
        else:
            unit = np.spacing(np.maximum(np.abs(rounded), np.float32(2**-126))).astype(np.float64)
            error = np.abs(found.astype(np.float64) - expected) / unit
            signs = np.signbit(found) == np.signbit(rounded) if name not in SIGN_OF_ZERO_VARIES else True
            same = ((found == rounded) & ((found != 0) | signs)) | (np.isnan(found) & np.isnan(rounded))
            error = np.where((found == 0) & (rounded == 0) & ~same, np.inf, error)
            error = np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))
    at = int(np.argmax(error))
    return float(error[at]), [float(x[at]) for x in inputs], found[at], expected[at]


# ---- models


def example(name: str) -> Any:
    """A script of examples/ as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def losses(
    make: Callable[[], torch.nn.Module], step: Callable[[Any, Any], torch.Tensor], compiled: bool
) -> list[float]:
    """Five training steps of a fresh model."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = make().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    function = torch.compile(model, backend="ridgeline", options={"strict": True}) if compiled else model
    out = []
    for _ in range(5):
        loss = step(function)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        out.append(loss.item())
    return out


def test_gpt_training() -> None:
    gpt = example("train_gpt")
    text = torch.randint(256, (4, 129), generator=torch.Generator().manual_seed(1)).cuda()

    def step(function: Any) -> torch.Tensor:
        return F.cross_entropy(function(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    plain, ours = (losses(lambda: gpt.GPT(128, 2, 4, 128, 0.0), step, compiled) for compiled in (False, True))
    np.testing.assert_allclose(ours, plain, rtol=1e-4)
    assert plain[-1] < plain[0]


def test_convolution_training() -> None:
    digits = example("train_digits")
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(32, 1, 8, 8, generator=generator).cuda()
    labels = torch.randint(10, (32,), generator=generator).cuda()

    def step(function: Any) -> torch.Tensor:
        return F.cross_entropy(function(images), labels, label_smoothing=0.05)

    plain, ours = (losses(lambda: digits.Reader(32), step, compiled) for compiled in (False, True))
    np.testing.assert_allclose(ours, plain, rtol=1e-3)  # convolutions of the two differ in the order they add


def test_llama_generates_the_same_tokens() -> None:
    llama = example("generate_llama")
    torch.manual_seed(0)
    model = llama.make_model(256, 2).cuda()
    prompt = torch.tensor([list(b"ridge")], device="cuda")
    options = argparse.Namespace(max_new_tokens=8, do_sample=False, use_cache=True)
    plain = model.generate(prompt, **vars(options))
    model.forward = torch.compile(model.forward, backend="ridgeline")
    assert model.generate(prompt, **vars(options)).tolist() == plain.tolist()


def test_fp64(cache: Cache) -> None:
    machine = TARGET.machine(132, (227 << 10, 60 << 20))
    kernels = [k.softmax(3, 100, F64), k.pointwise(3, 100, F64, "tanh"), k.row_fold(3, 100, F64, "welford")]
    entries = build([schedule(kernel, machine) for kernel in kernels], TARGET, cache)
    for kernel, entry in zip(kernels, entries, strict=True):
        k.run_against_reference(kernel, OnDevice(kernel, entry), scale=4.0)
