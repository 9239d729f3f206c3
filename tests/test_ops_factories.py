"""Tensors made from their shape: constants, ranges, identity; special functions; random numbers stay with ATen."""

import pytest
import torch
import torch.nn.functional as F
from rows import check_call
from samples import check_nodes, without_row

from ridgeline.ir.graph import NodeKind

aten = torch.ops.aten
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_constants(dtype: torch.dtype) -> None:
    x = torch.randn(2, 3).to(dtype)

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        out = [torch.zeros(2, 3, dtype=dtype), torch.ones(4, dtype=dtype), torch.full((2,), 3, dtype=dtype)]
        out += [torch.zeros_like(x), torch.ones_like(x), torch.full_like(x, 5), x.new_full((2, 2), 1), x.new_zeros(3)]
        out += [
            x.new_ones(()),
            torch.scalar_tensor(2, dtype=dtype),
            torch.eye(3, dtype=dtype),
            torch.eye(2, 4, dtype=dtype),
        ]
        return [*out, aten.fill.Scalar(x, 7), aten.zero(x)]

    assert not without_row(check_nodes(run, x))


def test_ranges() -> None:
    def run(x: torch.Tensor) -> list[torch.Tensor]:
        out = [torch.arange(7), torch.arange(2, 9), torch.arange(9, 0, -3), torch.arange(0)]
        out += [torch.arange(0.0, 1.0, 0.1), torch.arange(3.0), torch.arange(1, 2, 0.3, dtype=torch.float64)]
        out += [torch.linspace(0, 1, 7), torch.linspace(-3, 5, 10, dtype=torch.float64), torch.linspace(2, 3, 1)]
        out += [torch.linspace(0, 9, 5, dtype=torch.int64), torch.linspace(x[0], x[1], 4), torch.linspace(0, x[1], 6)]
        return [*out, torch.logspace(0, 3, 5), torch.logspace(-2, 2, 4, base=2.0)]

    assert not without_row(check_nodes(run, torch.tensor([0.5, 8.0])))


def test_uninitialised_is_zero() -> None:
    graph = check_nodes(lambda x: [torch.empty_like(x), x.new_empty(2), torch.empty(3)], torch.randn(2))
    made = [d for n in graph.nodes if "empty" in n.operator for d in n.definitions]
    assert made
    assert all(d.value.attr == 0 for d in made if d.value.op == "const")


def test_windows_are_made_of_rows() -> None:
    x = torch.randn(2)
    assert not without_row(check_nodes(lambda x: [x + torch.eye(2), F.one_hot(torch.arange(3) % 2, 2)], x))


def test_special_functions() -> None:
    x = torch.cat(
        [torch.linspace(-30, 30, 121), torch.tensor([0.0, 1e-6, 1e-3, float("inf"), float("-inf"), float("nan")])]
    )
    names = ("i0", "special_i0e", "special_i1", "special_i1e", "special_bessel_j0", "special_bessel_j1", "sinc")
    names += ("special_bessel_y0", "special_bessel_y1", "special_modified_bessel_k0", "special_modified_bessel_k1")
    names += ("special_scaled_modified_bessel_k0", "special_scaled_modified_bessel_k1", "special_entr", "special_ndtri")
    names += ("special_spherical_bessel_j0", "special_modified_bessel_i0", "special_modified_bessel_i1")
    operators = [getattr(aten, n).default for n in names]
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        graph = check_nodes(lambda x: [f(x) for f in operators], x.to(dtype), tolerance=tolerance)
        assert not without_row(graph)
    p = torch.linspace(0, 1, 41, dtype=torch.float64)
    check_nodes(lambda p: [torch.special.ndtri(p), torch.mvlgamma(p + 4, 3)], p)


def test_trigamma_and_beyond() -> None:
    x = torch.tensor([0.1, 0.5, 1.0, 3.7, 20.0, -0.3, -2.5])
    check_call(lambda x: (torch.polygamma(0, x), torch.polygamma(1, x)), x, tolerance=1e-5)
    graph = check_nodes(lambda x: torch.polygamma(2, x), x)
    assert without_row(graph) == {"aten.polygamma.default": "polygamma of order 2"}


def test_random_numbers_are_drawn_by_aten() -> None:
    def run(x: torch.Tensor) -> list[torch.Tensor]:
        return [
            torch.rand_like(x),
            torch.randn(3),
            F.dropout(x),
            torch.bernoulli(x),
            torch.randint(3, (2,)),
            torch.randperm(4),
        ]

    graph = check_nodes(run, torch.rand(4))
    drawn = [n for n in graph.nodes if n.kind is NodeKind.LIBRARY]
    assert len(drawn) == 6
    assert not without_row(graph)
