"""Resampling both ways: larger, smaller and odd sizes, given scales, aligned corners, every kind."""

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from samples import check_nodes, with_backward, without_row

from ridgeline.ir.graph import Graph
from ridgeline.ir.value import loads

FLOATS = (torch.float32, torch.float64, torch.bfloat16)
SIZES = [(14, 18), (10, 4), (3, 3), (7, 20), (1, 1), (7, 9), (13, 17)]


def both_ways(fn: Callable[[torch.Tensor], Sequence[torch.Tensor]], x: torch.Tensor) -> Graph:
    graph = check_nodes(with_backward(fn, [x]), x, tolerance=None if x.dtype is not torch.float32 else 5e-6)
    assert not without_row(graph)
    return graph


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("kind", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_two_dimensions(dtype: torch.dtype, kind: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 2, 7, 9).to(dtype)
    sizes = SIZES if dtype is torch.float32 else SIZES[:2]
    both_ways(lambda x: [F.interpolate(x, s, mode=kind) for s in sizes], x)
    if kind.startswith("bi"):
        both_ways(lambda x: [F.interpolate(x, s, mode=kind, align_corners=True) for s in sizes], x)


@pytest.mark.parametrize("scale", [2, 1.7, 0.6, 3.0])
def test_given_scales(scale: float) -> None:
    x = torch.randn(1, 2, 7, 9)
    kinds = ("nearest", "nearest-exact", "bilinear", "bicubic")
    both_ways(lambda x: [F.interpolate(x, scale_factor=scale, mode=k) for k in kinds], x)


def test_one_and_three_dimensions() -> None:
    both_ways(
        lambda x: [F.interpolate(x, 11, mode=k) for k in ("nearest", "nearest-exact", "linear")], torch.randn(2, 3, 7)
    )
    x = torch.randn(1, 2, 3, 4, 5)
    both_ways(lambda x: [F.interpolate(x, (5, 4, 9), mode=k) for k in ("nearest", "nearest-exact", "trilinear")], x)


def test_nearest_by_a_whole_factor_reads_no_position() -> None:
    graph = both_ways(lambda x: [F.interpolate(x, scale_factor=2)], torch.randn(1, 1, 4, 6))
    (node,) = [n for n in graph.nodes if n.operator == "aten.upsample_nearest2d.default"]
    (load,) = loads([node.definitions[0].value])
    assert not [1 for i in load.attr.index for _ in i.reads]


@pytest.mark.slow
def test_nearest_is_what_aten_computes_for_many_sizes() -> None:
    # ATen rounds o * scale in fp32, which now and then falls under a whole number.
    for n in range(1, 40, 3):
        x = torch.arange(float(n))[None, None]
        both_ways(
            lambda x: [F.interpolate(x, m, mode=k) for m in range(1, 120, 7) for k in ("nearest", "nearest-exact")], x
        )


def test_integers() -> None:
    x = torch.randint(255, (1, 2, 5, 6), dtype=torch.uint8)
    assert not without_row(check_nodes(lambda x: F.interpolate(x, (7, 4), mode="nearest"), x))
    graph = check_nodes(lambda x: F.interpolate(x, (7, 4), mode="bilinear"), x)
    assert without_row(graph) == {"aten.upsample_bilinear2d.default": "interpolation of integers"}
