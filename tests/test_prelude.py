"""The C prelude against ATen and exact references: every word and cast of every type, memory, folds, rounding.

Equal bits where ATen rounds exactly; a bound in units of the last place where it does not. All variants of the prelude
that this processor runs: the one it compiles by default in the fast suite, the others in the slow one.
"""

import math
import operator
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from prelude_loops import (
    BINARY_BOOL,
    BINARY_INT,
    BOOL,
    CHAINED,
    COMPARE,
    COMPUTE,
    EACH_VARIANT,
    FLOATS,
    FOLDS,
    GAMMA,
    INTS,
    LIBM,
    NUMPY,
    OWN,
    STORAGE,
    TESTS,
    UNARY_FLOAT,
    UNARY_INT,
    VARIANTS,
    call,
    call_one,
    compile_c,
    names,
)

from ridgeline.codegen.cc import cpu_flags

TORCH = {t: getattr(torch, {"i": "int", "u": "uint", "f": "float"}[t[0]] + t[1:]) for t in (*FLOATS, *INTS)}
TORCH |= {BOOL: torch.bool, "bf16": torch.bfloat16, "f16": torch.float16}
ATEN_INTS = ("i8", "i16", "i32", "i64", "u8")  # ATen has no arithmetic for the others
each_variant = pytest.mark.parametrize("variant", EACH_VARIANT)


@cache
def special(t: str) -> np.ndarray:
    """Numbers at which words differ: ends of ranges, ties, signs of zero, subnormals, and small ones."""
    kind = NUMPY[t]
    if t == BOOL:
        return np.array([0, 1], kind)
    if t not in FLOATS:
        info = np.iinfo(kind)
        middle = [info.min, info.min + 1, -3, -2, -1, 0, 1, 2, 3, 5, 7, 8, 31, 63, 100, info.max // 2, info.max - 1]
        return np.array(sorted({v for v in (*middle, info.max) if info.min <= v <= info.max}), kind)
    info = np.finfo(kind)
    half = 2.0**info.nmant
    positive = [0, info.smallest_subnormal, 3 * info.smallest_subnormal, info.tiny, 1e-10, 0.1, 0.25, 0.5, 0.7, 1, 1.5]
    positive += [2, 2.5, 3, 3.5, 5, 10, 17.3, 88.8, 100, half / 2 + 0.5, half - 1, half + 1, 2 * half, info.max, np.inf]
    numbers = np.array(positive, kind)
    return np.concatenate([numbers, -numbers, [np.nan]]).astype(kind)


def values(t: str, arity: int) -> tuple[np.ndarray, ...]:
    """All tuples of special numbers, then random ones; a length that no vector divides."""
    rng = np.random.default_rng(len(t) + arity)
    grid = [special(t) if arity < 3 else special(t)[::3]] * arity
    columns = [np.array(c, NUMPY[t]) for c in zip(*product(*grid), strict=True)]
    count = 1501
    if t in FLOATS:
        more = [(rng.standard_normal(count) * 10.0 ** rng.integers(-3, 4, count)).astype(NUMPY[t]) for _ in columns]
    elif t == BOOL:
        more = [rng.integers(0, 2, count).astype(np.uint8) for _ in columns]
    else:
        info = np.iinfo(NUMPY[t])
        more = [rng.integers(info.min, info.max, count, NUMPY[t], endpoint=True) for _ in columns]
    joined = [np.concatenate(c) for c in zip(columns, more, strict=True)]
    return tuple(c[: len(c) // 16 * 16 - 3] for c in joined)


def assert_same(what: str, got: np.ndarray, want: np.ndarray, inputs: Sequence[np.ndarray]) -> None:
    """Equal bits, but any NaN is as good as another."""
    wrong = got.view(f"u{got.itemsize}") != want.astype(got.dtype, copy=False).view(f"u{got.itemsize}")
    if got.dtype.kind == "f":
        wrong &= ~(np.isnan(got) & np.isnan(want))
    if wrong.any():
        k = int(np.argmax(wrong))
        raise AssertionError(f"{what}: {wrong.sum()} differ, first {[c[k] for c in inputs]} -> {got[k]}, not {want[k]}")


def ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Distance from a wider `want` in units of the last place of `got`; infinite for a wrong NaN, infinity or sign."""
    info = np.finfo(got.dtype)
    with np.errstate(all="ignore"):
        rounded = want.astype(got.dtype)
        exponent = np.frexp(np.where(np.isfinite(want), want, 1))[1] - 1
        unit = np.ldexp(np.ones_like(want), np.maximum(exponent, info.minexp) - info.nmant)
        distance = np.abs(got.astype(want.dtype) - want) / unit
        both = np.isfinite(got) & np.isfinite(rounded) & (np.signbit(got) == np.signbit(rounded))
        ends = (got == rounded) & (np.signbit(got) == np.signbit(rounded)) | np.isnan(got) & np.isnan(rounded)
    return np.where(both, distance, np.where(ends, 0, np.inf))


def assert_close(what: str, got: np.ndarray, want: np.ndarray, limit: float, inputs: Sequence[np.ndarray]) -> None:
    distance = ulps(got, want)
    k = int(np.argmax(distance))
    assert distance[k] <= limit, f"{what}: {distance[k]:.3f} ulp at {[c[k] for c in inputs]} -> {got[k]}, not {want[k]}"


# ---- Words that round exactly: the bits of ATen

SAME_BITS: dict[str, Callable[..., torch.Tensor]] = {
    "neg": torch.neg, "abs": torch.abs, "recip": torch.reciprocal, "floor": torch.floor,
    "ceil": torch.ceil, "trunc": torch.trunc, "round": torch.round, "add": torch.add, "sub": torch.sub,
    "mul": torch.mul, "div": torch.true_divide, "div_trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "div_floor": lambda a, b: torch.div(a, b, rounding_mode="floor"), "mod": torch.remainder, "fmod": torch.fmod,
    "min": torch.minimum, "max": torch.maximum, "copysign": torch.copysign, "nextafter": torch.nextafter,
    "isnan": torch.isnan, "isinf": torch.isinf, "signbit": torch.signbit,
    **{w: getattr(torch, w) for w in COMPARE},
}  # fmt: skip


@each_variant
@pytest.mark.parametrize("t", FLOATS)
def test_float_words_have_the_bits_of_aten(variant: str, t: str) -> None:
    for word, function in SAME_BITS.items():
        columns = values(t, 1 if word in (*UNARY_FLOAT, *TESTS) else 2)
        got = call(variant, f"{word}_{t}", BOOL if word in (*COMPARE, *TESTS) else t, *columns)
        want = function(*map(torch.from_numpy, columns)).numpy()
        if word in ("mod", "fmod"):  # ATen's fmod (Sleef's) loses large quotients to NaN
            a, b = columns
            lost = np.isnan(want) & np.isfinite(a) & (b != 0)
            rest = np.array([math.fmod(x, y) for x, y in zip(a[lost], b[lost], strict=True)], a.dtype)
            turned = (word == "mod") & (rest != 0) & ((rest < 0) != (b[lost] < 0))
            want[lost] = np.where(turned, rest + b[lost], rest)
        assert_same(f"{word}_{t}", got, want, columns)
    (x,) = values(t, 1)
    with np.errstate(invalid="ignore"):  # torch takes MKL's, which is not always the nearest
        assert_same(f"sqrt_{t}", call(variant, f"sqrt_{t}", t, x), np.sqrt(x), (x,))


def trunc_div(a: int, b: int) -> int:
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def power(a: int, b: int) -> int:
    return pow(a, b, 2**64) if b >= 0 else {1: 1, -1: 1 - 2 * (b % 2)}.get(a, 0)


def integer_reference(word: str, bits: int) -> Callable[..., int]:
    """The word on Python's integers, before wrapping."""
    return {
        "neg": operator.neg, "abs": abs, "not": operator.invert, "add": operator.add, "sub": operator.sub,
        "mul": operator.mul, "and": operator.and_, "or": operator.or_, "xor": operator.xor, "min": min, "max": max,
        "div_trunc": trunc_div, "fmod": lambda a, b: a - trunc_div(a, b) * b if b else 0,
        "div_floor": lambda a, b: a // b if b else 0, "mod": lambda a, b: a % b if b else 0,
        "shl": lambda a, b: a << b if 0 <= b < bits else 0, "shr": lambda a, b: a >> (b if 0 <= b < bits else bits),
        "pow": power, "isnan": lambda a: 0, "isinf": lambda a: 0, "signbit": lambda a: a < 0,
        **{w: getattr(operator, w) for w in COMPARE},
    }[word]  # fmt: skip


@each_variant
@pytest.mark.parametrize("t", INTS)
def test_integer_words_wrap_and_never_trap(variant: str, t: str) -> None:
    bits = 8 * NUMPY[t].itemsize
    for word in (*UNARY_INT, *TESTS, *BINARY_INT, *COMPARE):
        out = BOOL if word in (*TESTS, *COMPARE) else t
        columns = values(t, 1 if word in (*UNARY_INT, *TESTS) else 2)
        reference = integer_reference(word, bits)
        wanted = [reference(*row) % 2**bits for row in zip(*(c.tolist() for c in columns), strict=True)]
        want = np.array(wanted, f"u{NUMPY[t].itemsize}").view(NUMPY[t]).astype(NUMPY[out])
        assert_same(f"{word}_{t}", call(variant, f"{word}_{t}", out, *columns), want, columns)


@pytest.mark.parametrize("t", ATEN_INTS)
def test_integer_reference_is_aten(t: str) -> None:
    """What the test above holds the words against, where ATen does not raise."""
    a, b = values(t, 2)
    fair = (b != 0) & ((b + 1 != 0) | (a != np.iinfo(NUMPY[t]).min))
    a, b = a[fair], b[fair]
    aten = {"shl": torch.bitwise_left_shift, "shr": torch.bitwise_right_shift, "pow": torch.pow}
    for word in ("div_trunc", "div_floor", "mod", "fmod", *aten):
        function = aten.get(word) or SAME_BITS[word]
        reference = integer_reference(word, 8 * NUMPY[t].itemsize)
        wanted = [reference(x, y) % 2 ** (8 * NUMPY[t].itemsize) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        want = np.array(wanted, f"u{NUMPY[t].itemsize}").view(NUMPY[t])
        assert_same(f"{word}_{t}", function(torch.from_numpy(a), torch.from_numpy(b)).numpy(), want, (a, b))


@each_variant
def test_bool_words(variant: str) -> None:
    aten = {"and": torch.logical_and, "or": torch.logical_or, "xor": torch.logical_xor}
    aten |= {"add": torch.add, "mul": torch.mul, "min": torch.minimum, "max": torch.maximum}
    columns = values(BOOL, 2)
    tensors = [torch.from_numpy(c.astype(bool)) for c in columns]
    for word in (*BINARY_BOOL, *COMPARE):
        want = (aten.get(word) or SAME_BITS[word])(*tensors).numpy()
        assert_same(f"{word}_b", call(variant, f"{word}_b", BOOL, *columns), want.astype(np.uint8), columns)
    assert_same("not_b", call(variant, "not_b", BOOL, columns[0]), 1 - columns[0], columns)


@each_variant
@pytest.mark.parametrize("t", COMPUTE)
def test_select_and_fma(variant: str, t: str) -> None:
    a, b = values(t, 2)
    mask = np.random.default_rng(3).integers(0, 2, len(a)).astype(np.uint8)
    assert_same(f"select_{t}", call(variant, f"select_{t}", t, mask, a, b), np.where(mask, a, b), (mask, a, b))
    if t in INTS:
        with np.errstate(over="ignore"):
            assert_same(f"fma_{t}", call(variant, f"fma_{t}", t, a, b, a), a * b + a, (a, b))
    elif t in FLOATS:  # one rounding or two, as the machine has it
        a, b, c = (x[np.abs(x) < 1e6] for x in values(t, 3))
        a, b, c = (x[: min(len(a), len(b), len(c))] for x in (a, b, c))
        bound = np.finfo(NUMPY[t]).eps * (np.abs(a * b) + np.abs(c)) + np.finfo(NUMPY[t]).tiny
        assert (np.abs(call(variant, f"fma_{t}", t, a, b, c) - (a * b + c)) <= bound).all()


# ---- Words with an error bound

OWN_F32_ULPS = {  # a little above the worst of all floats, which test_prelude_exhaustive.py measures
    "exp": 1.2, "exp2": 1.1, "expm1": 1.5, "log": 1, "log2": 1.2, "log10": 1.7, "log1p": 1.4, "tanh": 1.6, "erf": 1.2,
    "sin": 1.6, "cos": 1.6, "sigmoid": 1.8,
}  # fmt: skip
WIDE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    **{w: getattr(np, w) for w in names("exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh")},
    **{w: getattr(np, w.replace("a", "arc", 1)) for w in names("asin acos atan asinh acosh atanh")},
    **{w: lambda x, w=w: getattr(torch, w)(torch.from_numpy(x)).numpy() for w in ("erf", "erfc", *GAMMA)},
    "sigmoid": lambda x: np.where(x < 0, np.exp(-np.abs(x)), 1) / (1 + np.exp(-np.abs(x))),
    "rsqrt": lambda x: 1 / np.sqrt(x),
}


def any_floats(t: str, count: int) -> np.ndarray:
    """Special numbers, numbers of ordinary size and random bits: every exponent, NaN, infinity."""
    rng = np.random.default_rng(11)
    unsigned = f"u{NUMPY[t].itemsize}"
    bits = rng.integers(0, np.iinfo(unsigned).max, count, unsigned, endpoint=True).view(NUMPY[t])
    ordinary = (rng.standard_normal(count) * 4.0 ** rng.integers(-6, 6, count)).astype(NUMPY[t])
    return np.concatenate([special(t), ordinary, bits])


@each_variant
@pytest.mark.parametrize("word", [*OWN, *LIBM, "rsqrt"])
def test_f32_words_within_ulps(variant: str, word: str) -> None:
    x = any_floats("f32", 20011)
    with np.errstate(all="ignore"):
        want = WIDE[word](x.astype(np.float64))
    assert_close(f"{word}_f32", call(variant, f"{word}_f32", "f32", x), want, OWN_F32_ULPS.get(word, 4), (x,))


@each_variant
@pytest.mark.parametrize("word", CHAINED)
def test_words_keep_their_bits_in_a_chain(variant: str, word: str) -> None:
    """-ffp-contract=fast must not pull a product before the word into the word's own exact steps."""
    a, b = any_floats("f32", 20011), any_floats("f32", 20011)[::-1].copy()
    with np.errstate(all="ignore"):
        want = call(variant, f"{word}_f32", "f32", a * b)
    assert_same(f"{word}_f32", call(variant, f"{word}_of_product", "f32", a, b), want, (a, b))


@each_variant
@pytest.mark.parametrize("word", OWN)
def test_f64_words_within_ulps(variant: str, word: str) -> None:
    x = any_floats("f64", 20011)
    if word in ("sin", "cos"):
        x = x[~(np.abs(x) > 1e15)]  # long double's own reduction is not exact there
    wide = np.longdouble if word != "erf" else np.float64
    with np.errstate(all="ignore"):
        want = WIDE[word](x.astype(wide))
    assert_close(f"{word}_f64", call(variant, f"{word}_f64", "f64", x), want.astype(np.longdouble), 2.5, (x,))


@each_variant
@pytest.mark.parametrize("t", FLOATS)
def test_rare_words_agree_with_aten(variant: str, t: str) -> None:
    """lgamma, digamma and erfinv lose digits near their zeros and poles, so the scale there is 1."""
    x = any_floats(t, 5003)
    for word in GAMMA:
        with np.errstate(all="ignore"):
            if word == "digamma":
                x = x[~((x < 0) & (np.abs(x - np.round(x)) < 1e-3))]
            got, want = call(variant, f"{word}_{t}", t, x), WIDE[word](x.astype(np.float64))
            ends = ~np.isfinite(want.astype(NUMPY[t]))
            assert_same(f"{word}_{t}", got[ends], want[ends].astype(NUMPY[t]), (x[ends],))
            distance = np.abs(got - want)[~ends] / np.maximum(1, np.abs(want[~ends]))
        assert distance.max() < 16 * np.finfo(NUMPY[t]).eps, f"{word}_{t} at {x[~ends][np.argmax(distance)]}"


@each_variant
@pytest.mark.parametrize("t", FLOATS)
def test_words_of_two_floats(variant: str, t: str) -> None:
    a, b = values(t, 2)
    wide = np.float64 if t == "f32" else np.longdouble
    for word, function in {"pow": np.power, "atan2": np.arctan2, "hypot": np.hypot}.items():
        with np.errstate(all="ignore"):
            want = function(a.astype(wide), b.astype(wide))
        assert_close(f"{word}_{t}", call(variant, f"{word}_{t}", t, a, b), want, 1.5, (a, b))


# ---- Casts, rounding, bits


@each_variant
@pytest.mark.parametrize("t", COMPUTE)
def test_casts_are_atens(variant: str, t: str) -> None:
    (x,) = values(t, 1)
    if t in FLOATS:
        edges = [127.9, 128, 255.5, 256, 300, 32768, 65536, 70000, 2.0**31, 3e9, 2.0**32, 5e9, 2.0**53, 9.3e18, 1e25]
        x = np.concatenate([x, edges, np.negative(edges)]).astype(NUMPY[t])
    for to in COMPUTE:
        if to == t:
            continue
        column = x
        if t in FLOATS and to == "u32":  # beyond these ATen gives one thing in vectors, another in their tails
            column = x[(x > -(2.0**31)) & (x < 2.0**32)]
        tensor = torch.from_numpy(column.astype(bool) if t == BOOL else column)
        want = tensor.to(TORCH[to]).numpy().astype(NUMPY[to])
        assert_same(f"cast_{t}_{to}", call(variant, f"cast_{t}_{to}", to, column), want, (column,))


def half_inputs() -> np.ndarray:
    """Floats around every number of both 16-bit formats: the number, ties, and just beside ties."""
    out = [any_floats("f32", 20011)]
    for kind in (torch.bfloat16, torch.float16):
        numbers = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(kind).to(torch.float32).numpy()
        numbers = np.sort(numbers[np.isfinite(numbers)])
        with np.errstate(over="ignore"):
            ties = (numbers[1:].astype(np.float64) + numbers[:-1]).astype(np.float32) / 2
        out += [numbers, ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, -np.float32(np.inf))]
    return np.concatenate([*out, np.array([65519.996, 65520, -65520, 3.3961776e38], np.float32)])


@each_variant
@pytest.mark.parametrize("t", ["bf16", "f16"])
def test_halves_round_to_nearest_even(variant: str, t: str) -> None:
    x = half_inputs()
    want = torch.from_numpy(x).to(TORCH[t])
    numbers = want.to(torch.float32).numpy()
    assert_same(f"round_{t}", call(variant, f"round_{t}", "f32", x), numbers, (x,))
    fair = ~np.isnan(x)
    stored = call(variant, f"to_{t}", t, x)
    assert_same(f"store_{t}", stored[fair], want.view(torch.uint16).numpy()[fair], (x[fair],))
    assert_same(f"load_{t}", call(variant, f"from_{t}", "f32", stored), numbers, (x,))
    every = np.arange(2**16).astype(np.uint16)
    want = torch.from_numpy(every).view(TORCH[t]).to(torch.float32).numpy()
    assert_same(f"load_{t}", call(variant, f"from_{t}", "f32", every), want, (every,))


@each_variant
def test_bits_are_kept(variant: str) -> None:
    lanes = VARIANTS[variant].lanes
    for width in (32, 64):
        x = any_floats(f"f{width}", 100)[:lanes]
        bits, back = np.zeros(lanes, f"i{width // 8}"), np.zeros(lanes, f"f{width // 8}")
        call_one(variant, f"bits{width}", x, bits, back)
        assert (bits == x.view(bits.dtype)).all() and (back.view(bits.dtype) == bits).all()


# ---- Memory


def sample(t: str, count: int, seed: int) -> np.ndarray:
    """Numbers of a storage type, none zero, that survive a load and a store, and sums of three of them."""
    rng = np.random.default_rng(seed)
    small = rng.integers(1, 30, count)
    if t in ("bf16", "f16"):
        return torch.from_numpy(small).to(TORCH[t]).view(torch.uint16).numpy()
    return (small % 2 if t == BOOL else small).astype(NUMPY[t])


def decode(t: str, stored: np.ndarray) -> np.ndarray:
    """The numbers that elements of a storage type stand for."""
    if t not in ("bf16", "f16"):
        return stored.copy()
    return torch.from_numpy(stored).view(TORCH[t]).to(torch.float32).numpy()


def canaries(t: str, count: int) -> np.ndarray:
    """Elements of a pattern no sample has."""
    return np.full(count * NUMPY[t].itemsize, 0x5A, np.uint8).view(NUMPY[t])


@each_variant
@pytest.mark.parametrize("t", STORAGE)
def test_tails_and_lanes(variant: str, t: str) -> None:
    """For every count of lanes: what is read, what is written, and nothing beside it."""
    lanes = VARIANTS[variant].lanes
    source, vector = sample(t, 200, 1), sample(t, lanes, 2)
    rng = np.random.default_rng(4)
    for n in range(lanes + 1):
        index = rng.permutation(100)[:lanes]
        mask = rng.integers(0, 2, lanes).astype(np.uint8)
        here = np.arange(lanes) < n
        out = canaries(t, lanes)
        for function, args, want in (
            ("load_n", (source[3:], out, n), source[3 : 3 + lanes]),
            ("load_s", (source[5:], 3, out, n), source[5 : 5 + 3 * lanes : 3]),
            ("load_s", (source[150:], -2, out, n), source[150 : 150 - 2 * lanes : -2]),
            ("gather", (source, index, out, n), source[index]),
            ("gather_m", (source, index, mask, out, n), np.where(mask, source[index], 0)),
        ):
            call_one(variant, f"{function}_{t}_of", *args)
            assert (out == np.where(here, want, 0)).all(), f"{function}_{t}, {n} of {lanes} lanes"
        for function, at, places in (
            ("store_n", (), 7 + np.arange(lanes)),
            ("store_s", (4,), 7 + 4 * np.arange(lanes)),
            ("scatter", (index,), 7 + index),
        ):
            memory = canaries(t, 200)
            want = memory.copy()
            want[places[here]] = vector[here]
            call_one(variant, f"{function}_{t}_of", memory[7:], *at, vector, n)
            assert (memory == want).all(), f"{function}_{t}, {n} of {lanes} lanes"


@each_variant
@pytest.mark.parametrize("t", STORAGE)
def test_scatter_add_counts_duplicates(variant: str, t: str) -> None:
    lanes = VARIANTS[variant].lanes
    for n in range(lanes + 1):
        index = np.arange(lanes) % 3 * 2
        memory, vector = sample(t, 8, 1), sample(t, lanes, 2)
        want, add = decode(t, memory), decode(t, vector)
        for place, number in zip(index[:n], add[:n], strict=True):
            want[place] = min(want[place] + number, 1) if t == BOOL else want[place] + number
        call_one(variant, f"scatter_add_{t}_of", memory, index, vector, n)
        assert (decode(t, memory) == want).all(), f"{n} of {lanes} lanes"


@each_variant
@pytest.mark.parametrize("t", STORAGE)
def test_whole_vectors(variant: str, t: str) -> None:
    """Non-temporal stores at their alignment, and one element in every lane."""
    lanes = VARIANTS[variant].lanes
    vector, memory = sample(t, lanes, 2), canaries(t, 64 + 4 * lanes)
    start = -memory.ctypes.data % 64 // NUMPY[t].itemsize
    want = memory.copy()
    want[start : start + lanes] = vector
    align = call_one(variant, f"stream_{t}_of", memory[start:], vector)
    assert (memory == want).all() and align == min(64, lanes * NUMPY[t].itemsize)
    out = canaries(t, lanes)
    call_one(variant, f"splat_load_{t}_of", vector[1:], out)
    assert (out == vector[1]).all()


GUARD = """
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>
#include "prelude.h"
#define CHECK(T) { \\
    e_##T *end = (e_##T *)(pages + size), out[W]; int64_t k[W]; int32_t m[W]; \\
    for (int n = 0; n <= W; n++) { \\
        for (int i = 0; i < W; i++) k[i] = i < n ? -1 - i : 1000, m[i] = i % 2 ? -1 : 0; \\
        store_n_##T(end - n, load_n_##T(end - n, n), n); \\
        store_s_##T(end - 2 * n, 2, load_s_##T(end - 2 * n, 2, n), n); \\
        scatter_##T(end, load_i64(k), gather_##T(end, load_i64(k), n), n); \\
        scatter_add_##T(end, load_i64(k), gather_##T(end, load_i64(k), n), n); \\
        for (int i = 0; i < W; i += 2) k[i] = 1000; \\
        store_##T(out, gather_m_##T(end, load_i64(k), load_i32(m), n)); \\
    } }
int main(void) {
    long size = sysconf(_SC_PAGESIZE);
    char *pages = mmap(0, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || mprotect(pages + size, size, PROT_NONE)) return 1;
    CHECKS
    return 0;
}
"""


@each_variant
def test_memory_past_the_last_lane_is_not_touched(variant: str, tmp_path: Path) -> None:
    """Every access stands at the end of a page whose neighbour must not be read or written."""
    source = GUARD.replace("CHECKS", " ".join(f"CHECK({t})" for t in STORAGE))
    program = compile_c(VARIANTS[variant], source, tmp_path / "guard")
    assert subprocess.run([program], check=False).returncode == 0


SECTIONS = ("", "NEED_F64", "NEED_UNSIGNED", "NEED_SMALL", "NEED_HALF", "NEED_INDEXED", "NEED_MATH")


@pytest.mark.skipif("sse2" not in cpu_flags(), reason="the compiler has other instruction sets")
@pytest.mark.parametrize("variant", VARIANTS)  # compiled, not run
def test_each_section_stands_alone(variant: str, tmp_path: Path) -> None:
    """Without warnings, and beside the headers of C that a kernel may include."""
    for section in SECTIONS:
        flags = ("-DPRELUDE_SECTIONS", f"-D{section or 'NOTHING'}", "-Wall", "-Wextra", "-Werror", "-c")
        source = '#include <stdlib.h>\n#include "prelude.h"\n#include <math.h>\n'
        compile_c(VARIANTS[variant], source, tmp_path / "section", *flags)


# ---- Folds


def tree(x: np.ndarray, combine: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """Halves joined until one element is left."""
    while len(x) > 1:
        x = combine(x[: len(x) // 2], x[len(x) // 2 :])
    return x


@each_variant
@pytest.mark.parametrize("t", [*FLOATS, *INTS])
def test_folds(variant: str, t: str) -> None:
    lanes = VARIANTS[variant].lanes
    combine = {"hsum": np.add, "hprod": np.multiply, "hmin": np.minimum, "hmax": np.maximum}
    function_source = values(t, 1)[0]
    for start in range(0, 40 * lanes, lanes - 1):
        x = np.ascontiguousarray(function_source[start : start + lanes])
        for fold in FOLDS:
            got = np.zeros(1, NUMPY[t])
            call_one(variant, f"{fold}_{t}_of", x, got)
            with np.errstate(all="ignore"):
                want = tree(x, combine[fold])
            if fold in ("hmin", "hmax"):
                got, want = got + 0, want + 0  # either zero is the least of both
            assert_same(f"{fold}_{t}", got, want, (x[None],))


@each_variant
def test_masks_and_iota(variant: str) -> None:
    lanes = VARIANTS[variant].lanes
    for k in range(-1, lanes):
        one = (np.arange(lanes) == k).astype(np.uint8)
        assert call_one(variant, "hany_of", one) == (k >= 0)
        assert call_one(variant, "hall_of", 1 - one) == (k < 0)
    out = np.zeros(lanes, np.int64)
    call_one(variant, "iota", -(2**40), 3, out)
    assert (out == -(2**40) + 3 * np.arange(lanes)).all()
