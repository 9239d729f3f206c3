"""Pointwise rows at the edges: NaN, infinities, signed zeros, denormals, overflow, integer wrap, promotion."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from rows import capture, check_call, run_node, to_numpy
from samples import check_nodes, without_row

from ridgeline.ir.types import BF16, BOOL, F16, F32, F64, I8, I64, U8, DType
from ridgeline.ops import families
from ridgeline.ops.array import convert_number
from ridgeline.ops.table import TABLE, Kind

assert families.LOADED
aten = torch.ops.aten
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
EDGES = [
    *(0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 1.5, 2.5, -2.5, 3.0, -3.0, 6.0, 7.0, 20.0, 25.0, -30.0, 88.0, 1e-3),
    *(1e-20, 1e-40, 3e38, -3e38, float("inf"), float("-inf"), float("nan"), 0.99999, 1.0001, 100.5, 1e6),
]
# Rows that take one tensor and nothing else that has no default.
UNARY = sorted(
    name
    for name, row in TABLE.items()
    if row.kind is Kind.SCALAR
    and name.startswith("aten.")
    and [
        a.name
        for a in getattr(getattr(aten, name.split(".")[1]), name.split(".")[2])._schema.arguments
        if not a.has_default_value()
    ]
    in (["self"], ["x"])
)


def overload(name: str) -> Any:
    packet, _, own = name.removeprefix("aten.").partition(".")
    return getattr(getattr(aten, packet), own)


def runs(operator: Callable[..., Any], dtype: torch.dtype) -> bool:
    """Whether ATen has the operator for a type (clamp needs a bound, bit operators need integers)."""
    try:
        operator(torch.ones(1, dtype=dtype))
    except (RuntimeError, ValueError):
        return False
    return True


def edges(dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(EDGES, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_unary_row_at_the_edges(dtype: torch.dtype) -> None:
    operators = [overload(n) for n in UNARY if runs(overload(n), dtype)]
    assert len(operators) > 60
    graph = check_nodes(lambda x: [f(x) for f in operators], edges(dtype))
    assert not without_row(graph)


BINARY = [
    *("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "maximum", "minimum"),
    *(
        "fmax",
        "fmin",
        "atan2",
        "hypot",
        "copysign.Tensor",
        "pow.Tensor_Tensor",
        "logaddexp",
        "logaddexp2",
        "xlogy.Tensor",
    ),
    *("eq.Tensor", "ne.Tensor", "lt.Tensor", "le.Tensor", "gt.Tensor", "ge.Tensor", "heaviside", "special_xlog1py"),
    *("floor_divide", "logical_and", "logical_or", "logical_xor", "rsub.Tensor"),
]


def pairs(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return values.repeat_interleave(len(values)), values.repeat(len(values))


@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
def test_every_binary_row_on_pairs_of_edges(dtype: torch.dtype) -> None:
    a, b = pairs(edges(dtype))
    operators = [overload(n if "." in n else n + ".default") for n in BINARY]

    def run(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        rounded = [torch.div(a, b, rounding_mode=mode) for mode in ("trunc", "floor")]
        return [*(f(a, b) for f in operators), *rounded]

    assert not without_row(check_nodes(run, a, b))


@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
def test_remainders_on_pairs_of_edges(dtype: torch.dtype) -> None:
    a, b = pairs(edges(dtype))
    # Where a / b overflows, ATen gives NaN in the lanes of a vector (Sleef) and the remainder in the ragged end.
    vague = (a / b).isinf() & a.isfinite() & (b != 0)
    check_nodes(lambda a, b: [torch.fmod(a, b), torch.remainder(a, b)], a[~vague], b[~vague])
    assert run_one(torch.fmod, torch.tensor([3e38]), torch.tensor([0.5])).tolist() == [0.0]


@pytest.mark.parametrize(
    "name", ["neg", "floor", "ceil", "trunc", "round", "sqrt", "sin", "tanh", "asinh", "expm1", "log1p"]
)
def test_zero_keeps_its_sign(name: str) -> None:
    x = torch.tensor([0.0, -0.0])
    got = run_one(overload(f"{name}.default"), x)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(to_numpy(overload(f"{name}.default")(x))))


def run_one(fn: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> np.ndarray:
    """The only output of a function, by its rows."""
    graph = capture(fn, *inputs)
    arrays = dict(zip(graph.inputs, map(to_numpy, inputs), strict=True))
    for node in graph.nodes:
        run_node(node, arrays)
    out = graph.outputs[0]
    assert isinstance(out, str)
    return arrays[out]


def test_division_keeps_the_sign_of_zero() -> None:
    a, b = torch.tensor([0.0, -0.0, 0.0, -0.0, 1.0]), torch.tensor([3.0, 3.0, -3.0, -3.0, -float("inf")])
    for mode in (None, "trunc", "floor"):
        fn = lambda a, b, m=mode: torch.div(a, b, rounding_mode=m)  # noqa: E731
        np.testing.assert_array_equal(np.signbit(run_one(fn, a, b)), np.signbit(to_numpy(fn(a, b))))


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integers_wrap(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    values = torch.tensor([info.min, info.max, info.min + 1, info.max - 1, 0, 1, 2, 3, 7, 100], dtype=dtype)
    if info.min < 0:
        values = torch.cat([values, torch.tensor([-1, -2, -7], dtype=dtype)])
    a, b = pairs(values)
    for name in ("add.Tensor", "sub.Tensor", "mul.Tensor", "maximum.default", "lt.Tensor", "bitwise_xor.Tensor"):
        check_nodes(overload(name), a, b)
    check_nodes(lambda a, b: torch.add(a, b, alpha=3), a, b)
    for name in ("neg.default", "abs.default", "sign.default", "bitwise_not.default", "square.default"):
        check_nodes(overload(name), values)
    nonzero = (b != 0) & ~((b == -1) & (a == info.min)) if info.min < 0 else b != 0
    c, d = a[nonzero], b[nonzero]
    for mode in ("trunc", "floor"):
        check_nodes(lambda a, b, m=mode: torch.div(a, b, rounding_mode=m), c, d)
    check_nodes(torch.remainder, c, d)
    check_nodes(torch.fmod, c, d)
    check_nodes(torch.div, c, d)


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_shifts_and_powers_of_integers(dtype: torch.dtype) -> None:
    x = torch.tensor([1, 3, 100, torch.iinfo(dtype).max, torch.iinfo(dtype).min], dtype=dtype)
    by = torch.arange(8 * x.element_size() + 2).to(dtype)
    a, b = x.repeat_interleave(len(by)), by.repeat(len(x))
    check_nodes(torch.bitwise_left_shift, a, b)
    check_nodes(torch.bitwise_right_shift, a, b)
    check_nodes(torch.pow, a, b)
    for exponent in (0, 1, 2, 5, 63):
        check_nodes(lambda x, e=exponent: torch.pow(x, e), x)
    if torch.iinfo(dtype).min < 0:
        check_nodes(torch.bitwise_right_shift, a, -b)


def test_promotion() -> None:
    """Every pair of types, both ways round, with dimensions and without."""
    types = (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
    tensors = [torch.tensor([0, 1, 3, 200]).to(t) for t in types]

    def run(*given: torch.Tensor) -> list[torch.Tensor]:
        out = []
        for x, y in itertools.permutations([*given, *(g[2] for g in given)], 2):
            out += [f(x, y) for f in (torch.add, torch.mul, torch.div, torch.maximum, torch.eq, torch.lt)]
            out.append(torch.where(x > 1, x, y))
        return out

    assert not without_row(check_nodes(run, *tensors))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int8, torch.uint8], ids=str)
def test_comparison_with_a_number_rounds_the_number(dtype: torch.dtype) -> None:
    # 0.1 is none of these numbers: PyTorch compares with 0.1 as the tensor's type would hold it.
    x = torch.tensor([0.1, 0.2, 1.0, 100.0]).to(dtype)
    check_call(lambda x: (x == 0.1, x <= 0.1, x < 0.2, x >= 0.2, x == 1), x)


def test_numbers_as_a_type_holds_them() -> None:
    cases: list[tuple[float, DType, float]] = [
        (300, U8, 44),
        (-1, U8, 255),
        (200, I8, -56),
        (2**63, I64, -(2**63)),
        (0.1, F64, 0.1),
        (0.1, F32, 0.10000000149011612),
        (0.1, BF16, 0.10009765625),
        (0.1, F16, 0.0999755859375),
        (1e39, F32, float("inf")),
        (-70000, F16, float("-inf")),
        (0.5, BOOL, True),
    ]
    for number, dtype, want in cases:
        assert convert_number(number, dtype) == want, (number, dtype)


def test_bools_add_by_or_and_multiply_by_and() -> None:
    a, b = torch.tensor([False, False, True, True]), torch.tensor([False, True, False, True])
    check_call(lambda a, b: (a + b, a * b, torch.maximum(a, b), torch.minimum(a, b), a ^ b, ~a, a & b, a | b), a, b)
    check_call(lambda a, b: (a + 1, a * 2.5, a.sum(), torch.sign(a), a < b), a, b)


@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_casts(source: torch.dtype) -> None:
    x = torch.tensor([0.0, -0.0, 1.5, -2.5, 3.14159, 1e-3, 7.0]).to(source)
    big = torch.tensor([65519.0, 65520.0, -65520.0, 1e30]).to(source)  # the end of fp16's range
    types = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int8, torch.bool)
    check_call(lambda x: tuple(x.to(t).to(torch.float64) for t in types), x)
    check_call(lambda x: tuple(x.to(t) for t in types[:4]), big)


def test_an_explicit_cast_rounds_even_when_nothing_is_stored() -> None:
    # The value itself must hold the rounding: fusion drops the store that would have rounded.
    graph = check_call(lambda x: x.to(torch.bfloat16).to(torch.float32), torch.randn(5))
    assert "round_bf16" in repr(graph.nodes[1].definitions[0].value)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (1, 1), (5, 1, 7)], ids=str)
def test_shapes(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    check_call(lambda x: (x + 1, x * x, torch.where(x > 0, x, -x), x.clamp(-1, 1), torch.lerp(x, x * 2, 0.3)), x)


def test_broadcast() -> None:
    check_call(lambda a, b: (a + b, a < b, torch.addcmul(a, b, b, value=2)), torch.randn(3, 1, 5), torch.randn(4, 1))


def test_known_exponents_need_no_pow() -> None:
    x = torch.tensor(EDGES)
    for exponent in (0, 1, 2, 3, 0.5, -0.5, -1, -2):
        graph = check_call(lambda x, e=exponent: torch.pow(x, e), x)
        assert "pow(" not in repr(graph.nodes[-2].definitions)
    check_call(lambda x: (torch.pow(x, 1.7), torch.pow(2, x), torch.pow(1.5, x)), x)


def test_lerp_and_clamp_of_nan_and_crossed_bounds() -> None:
    x = torch.tensor(EDGES)
    check_call(lambda x: (torch.clamp(x, 2.0, -2.0), torch.clamp(x, min=0.5), torch.clamp(x, max=0.5)), x)
    check_call(lambda x, lo, hi: torch.clamp(x, lo, hi), x, torch.full_like(x, -1), torch.full_like(x, float("nan")))
    check_call(lambda x, w: torch.lerp(x, torch.ones_like(x), w), x, torch.linspace(-1, 2, len(x)))


def test_nan_to_num() -> None:
    for dtype in FLOATS:
        check_call(lambda x: (torch.nan_to_num(x), torch.nan_to_num(x, 1.0, 2.0, -3.0)), edges(dtype))
    check_call(torch.nan_to_num, torch.arange(3))


def test_frexp_of_every_exponent() -> None:
    x = torch.tensor([m * 2.0**e for e in range(-149, 128) for m in (1.0, 1.5, -1.9999999)])
    check_call(lambda x: tuple(torch.frexp(x)), torch.cat([x, torch.tensor(EDGES)]))


def test_ints_and_floats_tested_for_nan() -> None:
    for x in (torch.tensor(EDGES), torch.arange(4), torch.tensor([True, False])):
        check_call(lambda x: (torch.isnan(x), torch.isinf(x), torch.signbit(x), torch.logical_not(x)), x)
        check_call(lambda x: (aten.isposinf.default(x), aten.isneginf.default(x)), x)
