"""The C prelude as a shared object: a loop over arrays around each of its functions, for each way to compile it.

The loops take whole vectors; tails have functions of their own. `library` builds a variant (instruction set and
lanes) once a process; `call` runs one loop on numpy arrays, `call_one` one function on single vectors. Nothing is
checked here.
"""

import ctypes
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from ridgeline.codegen.cc import FLAGS, HERE, cpu_flags

COMPUTE = ("f32", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "b")
STORAGE = (*COMPUTE, "bf16", "f16")
FLOATS, BOOL = ("f32", "f64"), "b"
INTS = tuple(t for t in COMPUTE if t not in FLOATS and t != BOOL)
NUMPY = {
    **{t: np.dtype({"i": "int", "u": "uint", "f": "float"}[t[0]] + t[1:]) for t in (*FLOATS, *INTS)},
    **{BOOL: np.dtype(np.uint8), "bf16": np.dtype(np.uint16), "f16": np.dtype(np.uint16)},
}
CARRIED = {"bf16": "f32", "f16": "f32"}  # what these are computed in
FOLDS = ("hsum", "hprod", "hmin", "hmax")


def names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


OWN = names("exp exp2 expm1 log log2 log10 log1p tanh erf sin cos sigmoid")  # polynomials of the prelude in f32
LIBM = names("tan asin acos atan sinh cosh asinh acosh atanh erfc")
GAMMA = names("erfinv lgamma digamma")
CHAINED = (*OWN, "floor", "round", "trunc")  # also tried on a product, which the compiler might fuse into them
UNARY_FLOAT = names("neg abs recip sqrt rsqrt floor ceil trunc round") + OWN + LIBM + GAMMA
BINARY_FLOAT = names("add sub mul div div_trunc div_floor mod fmod min max copysign pow atan2 hypot nextafter")
UNARY_INT = names("neg abs not")
BINARY_INT = names("add sub mul div_trunc div_floor mod fmod min max and or xor shl shr pow")
BINARY_BOOL = names("add mul and or xor min max")
COMPARE = names("eq ne lt le gt ge")
TESTS = names("isnan isinf signbit")


@dataclass(frozen=True)
class Variant:
    """One way to compile the prelude."""

    name: str
    flags: tuple[str, ...]
    lanes: int
    needs: frozenset[str]

    @property
    def runs(self) -> bool:
        return self.needs <= cpu_flags()


AVX512 = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"})
VARIANTS = {
    v.name: v
    for v in (
        Variant("avx512", ("-march=skylake-avx512",), 16, AVX512),
        Variant("avx2", ("-mavx2", "-mfma", "-mf16c"), 8, frozenset({"avx2", "fma", "f16c"})),
        Variant("sse4", ("-msse4.1",), 4, frozenset({"sse4_1"})),
        Variant("generic", (), 4, frozenset()),
    )
}
WIDEST = next((n for n in VARIANTS if VARIANTS[n].runs and VARIANTS[n].needs), "generic")
EACH_VARIANT = [
    pytest.param(v.name, marks=[pytest.mark.skipif(not v.runs, reason="not on this processor")]
                 + ([] if v.name == WIDEST else [pytest.mark.slow]))
    for v in VARIANTS.values()
]  # fmt: skip


def c_source() -> str:
    """A loop around every function of the prelude."""
    lines = [
        '#include "prelude.h"',
    ]

    def function(title: str, ins: tuple[str, ...], out: str, callee: str) -> None:
        letters = "abc"[: len(ins)]
        args = "".join(f"const e_{t} *{x}_, " for t, x in zip(ins, letters, strict=True))
        loads = "".join(f"v_{CARRIED.get(t, t)} {x} = load_{t}({x}_ + i); " for t, x in zip(ins, letters, strict=True))
        lines.append(
            f"void loop_{title}({args}e_{out} *out, int64_t count) {{ for (int64_t i = 0; i < count; i += W) {{ "
            f"{loads}store_{out}(out + i, {callee}({', '.join(letters)})); }} }}"
        )

    for t in COMPUTE:
        floats, ints = t in FLOATS, t in INTS
        unary = UNARY_FLOAT if floats else UNARY_INT if ints else ("not",)
        binary = BINARY_FLOAT if floats else BINARY_INT if ints else BINARY_BOOL
        for w in unary:
            function(f"{w}_{t}", (t,), t, f"w_{w}_{t}")
        for w in binary:
            function(f"{w}_{t}", (t, t), t, f"w_{w}_{t}")
        for w in COMPARE:
            function(f"{w}_{t}", (t, t), BOOL, f"w_{w}_{t}")
        for w in TESTS if t != BOOL else ():
            function(f"{w}_{t}", (t,), BOOL, f"w_{w}_{t}")
        function(f"select_{t}", (BOOL, t, t), t, f"select_{t}")
        for to in COMPUTE:
            if to != t:
                function(f"cast_{t}_{to}", (t,), to, f"cast_{t}_{to}")
        if t != BOOL:
            function(f"fma_{t}", (t, t, t), t, f"w_fma_{t}")
            lines += [f"void {f}_{t}_of(const e_{t} *a, e_{t} *o) {{ *o = {f}_{t}(load_{t}(a)); }}" for f in FOLDS]
    for w in CHAINED:
        lines.append(f"FN v_f32 {w}_of_product(v_f32 a, v_f32 b) {{ return w_{w}_f32(w_mul_f32(a, b)); }}")
        function(f"{w}_of_product", ("f32", "f32"), "f32", f"{w}_of_product")
    for t in ("bf16", "f16"):
        function(f"round_{t}", ("f32",), "f32", f"round_{t}")
        function(f"to_{t}", ("f32",), t, "")
        function(f"from_{t}", (t,), "f32", "")
    return "\n".join([*lines, *map(memory_source, STORAGE), SINGLE])


SINGLE = """
int hany_of(const e_b *a) { return hany_b(load_b(a)); }
int hall_of(const e_b *a) { return hall_b(load_b(a)); }
void iota(int64_t start, int64_t step, e_i64 *out) { store_i64(out, iota_i64(start, step)); }
void bits32(const e_f32 *a, e_i32 *i, e_f32 *f) {
    v_i32 x = bitcast_f32_i32(load_f32(a));
    store_i32(i, x), store_f32(f, bitcast_i32_f32(x));
}
void bits64(const e_f64 *a, e_i64 *i, e_f64 *f) {
    v_i64 x = bitcast_f64_i64(load_f64(a));
    store_i64(i, x), store_f64(f, bitcast_i64_f64(x));
}
"""


def memory_source(t: str) -> str:
    """Each memory function of a storage type, on one vector; bf16 and f16 go through f32 and back unchanged."""
    return f"""
void load_n_{t}_of(const e_{t} *p, e_{t} *o, int n) {{ store_{t}(o, load_n_{t}(p, n)); }}
void load_s_{t}_of(const e_{t} *p, int64_t s, e_{t} *o, int n) {{ store_{t}(o, load_s_{t}(p, s, n)); }}
void splat_load_{t}_of(const e_{t} *p, e_{t} *o) {{ store_{t}(o, splat_load_{t}(p)); }}
void gather_{t}_of(const e_{t} *p, const int64_t *k, e_{t} *o, int n) {{
    store_{t}(o, gather_{t}(p, load_i64(k), n)); }}
void gather_m_{t}_of(const e_{t} *p, const int64_t *k, const e_b *m, e_{t} *o, int n) {{
    store_{t}(o, gather_m_{t}(p, load_i64(k), load_b(m), n)); }}
void store_n_{t}_of(e_{t} *p, const e_{t} *v, int n) {{ store_n_{t}(p, load_{t}(v), n); }}
void store_s_{t}_of(e_{t} *p, int64_t s, const e_{t} *v, int n) {{ store_s_{t}(p, s, load_{t}(v), n); }}
void scatter_{t}_of(e_{t} *p, const int64_t *k, const e_{t} *v, int n) {{
    scatter_{t}(p, load_i64(k), load_{t}(v), n); }}
void scatter_add_{t}_of(e_{t} *p, const int64_t *k, const e_{t} *v, int n) {{
    scatter_add_{t}(p, load_i64(k), load_{t}(v), n); }}
int stream_{t}_of(e_{t} *p, const e_{t} *v) {{
    stream_{t}(p, load_{t}(v)); stream_fence(); return (int)STREAM_ALIGN({t}); }}"""


def compile_c(variant: Variant, source: str, built: Path, *extra: str) -> Path:
    """Compiles a source against the prelude with the flags of generated kernels."""
    text = built.with_suffix(".c")
    text.write_text(source)
    flags = [f for f in FLAGS if f != "-march=native"]
    command = ["cc", *flags, *variant.flags, f"-DW={variant.lanes}", f"-I{HERE}", *extra, str(text)]
    subprocess.run([*command, "-o", str(built), "-lm"], check=True)
    return built


@cache
def library(name: str) -> ctypes.CDLL:
    """The loops of a variant, loaded; what was built for it is gone from the disk again."""
    with TemporaryDirectory(prefix="ridgeline-") as folder:
        return ctypes.CDLL(str(compile_c(VARIANTS[name], c_source(), Path(folder) / "loops.so", "-shared")))


def call(name: str, function: str, out: str, *arrays: np.ndarray) -> np.ndarray:
    """Runs one loop of the library, on arrays filled up to whole vectors; `out` is the type it returns."""
    count = len(arrays[0])
    whole = [np.concatenate([a, np.zeros(-count % 16, a.dtype)]) for a in arrays]
    result = np.zeros(len(whole[0]), NUMPY[out])
    pointers = [a.ctypes.data_as(ctypes.c_void_p) for a in (*whole, result)]
    getattr(library(name), f"loop_{function}")(*pointers, ctypes.c_int64(len(result)))
    return result[:count]


def call_one(name: str, function: str, *args: Any) -> int:
    """Runs a function on single vectors: arrays by address, integers as int64."""
    return int(getattr(library(name), function)(*(
        a.ctypes.data_as(ctypes.c_void_p) if isinstance(a, np.ndarray) else ctypes.c_int64(a) for a in args
    )))  # fmt: skip
