"""Sampling by a grid: every padding and alignment, points far outside, both gradients."""

import pytest
import torch
import torch.nn.functional as F
from samples import check_nodes, with_backward, without_row


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_grid_sample_both_ways(mode: str) -> None:
    torch.manual_seed(0)
    x, grid = torch.randn(2, 3, 5, 7), torch.rand(2, 4, 3, 2) * 5 - 2.5

    def run(x: torch.Tensor, grid: torch.Tensor) -> list[torch.Tensor]:
        return [
            F.grid_sample(x, grid, mode, padding, align)
            for padding in ("zeros", "border", "reflection")
            for align in (False, True)
        ]

    assert not without_row(check_nodes(with_backward(run, [x, grid]), x, grid, tolerance=1e-5))


def test_one_channel() -> None:
    x, grid = torch.randn(1, 1, 4, 4), torch.rand(1, 3, 3, 2) * 2 - 1
    assert not without_row(
        check_nodes(with_backward(lambda x, g: [F.grid_sample(x, g, align_corners=False)], [x, grid]), x, grid)
    )


def test_bicubic_stays_with_aten() -> None:
    x, grid = torch.randn(1, 1, 4, 4), torch.rand(1, 3, 3, 2)
    graph = check_nodes(lambda x, g: F.grid_sample(x, g, "bicubic", align_corners=False), x, grid)
    assert without_row(graph) == {"aten.grid_sampler_2d.default": "bicubic sampling of a grid"}
