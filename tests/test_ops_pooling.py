"""Pooling and im2col both ways: strides, pads, dilation, ceil mode, divisors, uneven adaptive windows, ties, NaN."""

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from samples import check_nodes, with_backward, without_row

from ridgeline.ir.graph import Graph
from ridgeline.ir.kernel import Mode
from ridgeline.ir.value import nodes

X = torch.randn(2, 3, 11, 13)


def both_ways(fn: Callable[[torch.Tensor], Sequence[torch.Tensor]], x: torch.Tensor) -> Graph:
    graph = check_nodes(with_backward(fn, [x]), x)
    assert not without_row(graph)
    return graph


def test_max_pool() -> None:
    both_ways(
        lambda x: [
            *(F.max_pool2d(x, 3, 2, 1), F.max_pool2d(x, 2), F.max_pool2d(x, (2, 5), (3, 1)), F.max_pool2d(x, 1)),
            *(F.max_pool2d(x, 3, 2, 1, dilation=2), F.max_pool2d(x, 2, 2, ceil_mode=True), F.max_pool2d(x[0], 3)),
        ],
        X,
    )


def test_max_pool_of_ties_and_infinities() -> None:
    x = torch.tensor([[1.0, 1.0, 0.0, -float("inf")], [1.0, 1.0, -float("inf"), -float("inf")], [0.0] * 4, [2.0] * 4])
    both_ways(lambda x: [F.max_pool2d(x[None, None], 2, 2), F.max_pool2d(x[None, None], 3, 1, 1)], x)


def test_max_pool_takes_nan() -> None:
    x = torch.randn(1, 1, 6, 6)
    x[0, 0, 2, 3] = float("nan")
    check_nodes(lambda x: F.max_pool2d(x, 2), x)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.int8, torch.bfloat16, torch.float64], ids=str)
def test_max_pool_of_types(dtype: torch.dtype) -> None:
    x = torch.randint(0, 100, (1, 2, 7, 7)).to(dtype)
    assert not without_row(check_nodes(lambda x: F.max_pool2d(x, 3, 2, 1), x))


def test_average_pool() -> None:
    both_ways(
        lambda x: [
            *(F.avg_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 2), F.avg_pool2d(x, (4, 2), (3, 1), (2, 0), ceil_mode=True)),
            *(F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), F.avg_pool2d(x, 2, 2, divisor_override=3)),
            *(F.avg_pool2d(x, 4, 3, 2, ceil_mode=True, count_include_pad=False), F.avg_pool2d(x[0], 5, 1)),
        ],
        X,
    )


def test_one_and_three_dimensions() -> None:
    both_ways(lambda x: [F.max_pool1d(x[0], 3, 2, 1), F.avg_pool1d(x[0], 3, 2, 1), F.adaptive_avg_pool1d(x[0], 4)], X)
    both_ways(
        lambda x: [F.max_pool3d(x, 2, 1, 1), F.avg_pool3d(x, (2, 3, 2)), F.adaptive_max_pool3d(x, (2, 3, 5))],
        *[X[:, :, :5, :6].reshape(1, 2, 3, 5, 6)],
    )


def test_adaptive_pools() -> None:
    sizes = [(5, 4), (1, 1), (11, 13), (20, 13), (3, 26)]
    both_ways(lambda x: [F.adaptive_avg_pool2d(x, s) for s in sizes], X)
    both_ways(lambda x: [F.adaptive_max_pool2d(x, s) for s in sizes], X)
    both_ways(lambda x: [F.adaptive_avg_pool2d(x, 4), F.adaptive_avg_pool2d(x, (2, None))], X[:, :, :8, :12])


def test_unpooling() -> None:
    def run(x: torch.Tensor) -> list[torch.Tensor]:
        y, places = F.max_pool2d(x, 2, return_indices=True)
        return [F.max_unpool2d(y, places, 2)]

    both_ways(run, X[:, :, :10, :12].contiguous())


def test_columns() -> None:
    both_ways(lambda x: [F.unfold(x, 3), F.unfold(x, (2, 3), (2, 1), (1, 0), (1, 3)), F.unfold(x[0], 2, stride=2)], X)
    columns = torch.randn(2, 3 * 9, 9 * 11)
    both_ways(lambda c: [F.fold(c, (11, 13), 3)], columns)
    both_ways(lambda c: [F.fold(c[:, :, :30], (11, 13), 3, stride=2)], columns)
    both_ways(lambda x: [F.fold(F.unfold(x, 3, 2, 2, 2), (11, 13), 3, 2, 2, 2)], X)


def test_windows_of_unfold() -> None:
    both_ways(lambda x: [x.unfold(2, 3, 1), x.unfold(3, 2, 3), x.unfold(0, 1, 1)], X)


def test_backwards_gather() -> None:
    graph = both_ways(lambda x: [F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 3, 1)], X)
    ways = [n for n in graph.nodes if "pool" in n.operator and "backward" in n.operator]
    assert len(ways) == 2
    assert all(d.mode is Mode.PLAIN and d.initial is None for n in ways for d in n.definitions)


def test_windows_that_do_not_overlap_take_no_fold_backward() -> None:
    graph = both_ways(lambda x: [F.avg_pool2d(x, 2)], X[:, :, :10, :12])
    (node,) = [n for n in graph.nodes if n.operator == "aten.avg_pool2d_backward.default"]
    assert not [v for v in nodes([node.definitions[0].value]) if v.op == "fold"]


def test_windows_inside_the_input_need_no_guard() -> None:
    graph = both_ways(lambda x: [F.max_pool2d(x, 2)], X[:, :, :10, :12])
    (node,) = [n for n in graph.nodes if n.operator == "aten.max_pool2d_with_indices.default"]
    assert all(not v.args for d in node.definitions for v in nodes([d.value]) if v.op == "load")


def test_integers_are_not_averaged() -> None:
    graph = check_nodes(lambda x: F.avg_pool2d(x, 2), torch.randint(9, (1, 1, 4, 4)))
    assert without_row(graph) == {"aten.avg_pool2d.default": "an average of integers"}
