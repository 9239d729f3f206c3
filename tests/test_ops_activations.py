"""Activations and their gradients, at the edges of every branch."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from samples import check_nodes, with_backward, without_row

FLOATS = (torch.float32, torch.float64, torch.bfloat16)
# The ends of every branch, and far out: 0, ±0.5, ±1, ±3, 6, ±20 and what lies beyond.
POINTS = [
    0.0,
    -0.0,
    0.5,
    -0.5,
    1.0,
    -1.0,
    3.0,
    -3.0,
    6.0,
    20.0,
    20.5,
    -20.0,
    30.0,
    -40.0,
    0.3,
    -0.7,
    1.7,
    -2.2,
    4.5,
    -5.1,
]

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "elu": lambda x: F.elu(x, 0.7),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 1.3),
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 3.0),
    "relu6": F.relu6,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "threshold": lambda x: F.threshold(x, 0.5, -7.0),
    "softplus": lambda x: F.softplus(x, 2.0, 15.0),
    "logsigmoid": F.logsigmoid,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "tanhshrink": F.tanhshrink,
    "hardshrink": F.hardshrink,
    "softshrink": lambda x: F.softshrink(x, 0.3),
    "softsign": F.softsign,
    "logit": lambda x: torch.logit(x, 0.01),
    "rrelu": lambda x: F.rrelu(x, training=False),
    "glu": lambda x: F.glu(x.view(4, 5, 1).expand(4, 5, 2).contiguous(), -1),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_activations_both_ways(dtype: torch.dtype) -> None:
    x = torch.tensor(POINTS, dtype=dtype)

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        return [f(x) for f in ACTIVATIONS.values()]

    # hardsigmoid_backward of ATen holds 1/6 in fp32 even for fp64 (Activation.cpp), hence 1e-7 there.
    graph = check_nodes(with_backward(run, [x]), x, tolerance=1e-7 if dtype is torch.float64 else None)
    assert not without_row(graph)
    made = {n.operator for n in graph.nodes}
    assert {f"aten.{n}_backward.default" for n in ("gelu", "elu", "glu", "hardswish", "softplus", "threshold")} <= made


def test_infinities_and_nan() -> None:
    x = torch.tensor([float("inf"), float("-inf"), float("nan")])
    names = (
        "relu",
        "elu",
        "hardswish",
        "leaky_relu",
        "softplus",
        "sigmoid",
        "tanh",
        "threshold",
        "hardshrink",
        "logsigmoid",
    )
    assert not without_row(check_nodes(lambda x: [ACTIVATIONS[n](x) for n in (*names, "gelu", "silu", "mish")], x))


def test_prelu_both_ways() -> None:
    x, w = torch.randn(3, 4, 5), torch.rand(4)
    assert not without_row(check_nodes(with_backward(lambda x, w: [F.prelu(x, w)], [x, w]), x, w))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_glu_along_each_dimension(dim: int) -> None:
    x = torch.randn(2, 4, 6)
    assert not without_row(check_nodes(with_backward(lambda x: [F.glu(x, dim)], [x]), x))


def test_dropout_backward_is_pointwise() -> None:
    x, mask = torch.randn(7), torch.rand(7) > 0.5
    check_nodes(lambda x, m: torch.ops.aten.native_dropout_backward(x, m, 2.0), x, mask)


def test_mish_takes_one_exp() -> None:
    graph = check_nodes(F.mish, torch.randn(4))
    body = repr(next(n for n in graph.nodes if n.operator == "aten.mish.default").definitions)
    assert "tanh" not in body and "log1p" not in body
