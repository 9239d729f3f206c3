"""Reductions: every dimension, keepdim, empty, NaN and infinity, ties, types of the result, ragged sizes."""

from collections.abc import Callable

import pytest
import torch
from rows import check_call
from samples import check_nodes, with_backward, without_row

from ridgeline.ir.graph import Graph
from ridgeline.ir.value import Value, nodes

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SHAPES = [(), (1,), (7,), (3, 5), (2, 1, 9), (4, 3, 2, 5)]


def folds(graph: Graph) -> list[str]:
    """The combiners of all folds in a graph's definitions."""
    return [v for n in graph.nodes for d in n.definitions for v in _combiners(d.value)]


def _combiners(value: Value) -> list[str]:
    return [v.attr.combiner for v in nodes([value]) if v.op == "fold"]


def every(x: torch.Tensor) -> list[torch.Tensor]:
    return [
        *(x.sum(), x.mean(), x.prod(), x.max(), x.min(), x.amax(), x.amin(), x.any(), x.all(), x.argmax(), x.argmin()),
        *(
            x.var(),
            x.std(),
            x.var(correction=0),
            x.norm(),
            torch.linalg.vector_norm(x, 3),
            x.count_nonzero(),
            x.nansum(),
        ),
        *torch.aminmax(x),
        *torch.var_mean(x, correction=0),
        *torch.std_mean(x, correction=0),
    ]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_of_everything(shape: tuple[int, ...]) -> None:
    assert not without_row(check_nodes(every, torch.randn(shape)))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_along_dimensions(dtype: torch.dtype) -> None:
    x = torch.randn(4, 3, 5).to(dtype)

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        out = []
        for dims in (0, -1, (0, 2), (0, 1, 2)):
            for keep in (False, True):
                out += [f(x, dims, keepdim=keep) for f in (torch.sum, torch.mean, torch.amax, torch.amin, torch.any)]
                out += [torch.var(x, dims, keepdim=keep), torch.logsumexp(x, dims, keepdim=keep)]
                out += [torch.linalg.vector_norm(x, p, dims, keep) for p in (0, 1, 2, 2.5, float("inf"), -float("inf"))]
        for d in (0, 1, -1):
            out += [*x.max(d), *x.min(d, keepdim=True), x.prod(d), x.argmax(d), x.all(d), x.count_nonzero(d)]
            out += [*torch.aminmax(x, dim=d), x.std(d, correction=0.5)]
        return out

    assert not without_row(check_nodes(run, x))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool], ids=str)
def test_integers(dtype: torch.dtype) -> None:
    x = torch.tensor([[3, 0, 1, 255], [1, 1, 0, 7]]).to(dtype)

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        out = [x.sum(), x.sum(1), x.prod(1), x.amax(0), x.amin(1), x.any(1), x.all(0), x.count_nonzero(1)]
        out += [*x.max(1), *x.min(0)] if x.dtype is not torch.bool else [x.max(), x.min()]
        return [*out, x.sum(dtype=torch.float32), x.sum(1, dtype=torch.int32), x.mean(dtype=torch.float64)]

    assert not without_row(check_nodes(run, x))


@pytest.mark.filterwarnings("ignore:var")
def test_empty() -> None:
    x = torch.zeros(0, 3)
    run = lambda x: [x.sum(), x.sum(0), x.sum(1), x.prod(), x.mean(), x.any(), x.all(0), x.amax(1), x.logsumexp(0)]  # noqa: E731
    assert not without_row(check_nodes(run, x))
    check_call(lambda x: (x.sum(), x.mean(), x.prod(0), x.var()), x)


NAN, INF = float("nan"), float("inf")
ROWS = torch.tensor(
    [
        *([1.0, NAN, 3.0, NAN], [INF, 1.0, -INF, 2.0], [-INF, -INF, -INF, -INF], [INF, INF, 0.0, 1.0]),
        *([0.0, -0.0, 0.0, -0.0], [-0.0, -0.0, -1.0, -1.0], [2.0, 2.0, 1.0, 2.0], [NAN, NAN, NAN, NAN]),
    ]
)


def test_nan_infinity_and_ties() -> None:
    def run(x: torch.Tensor) -> list[torch.Tensor]:
        out = [*x.max(1), *x.min(1), x.amax(1), x.argmax(1), x.argmin(1), x.nansum(1), x.prod(1), x.any(1), x.all(1)]
        return [*out, x.logsumexp(1), x.argmax(), x.max(), x.sum(1)]

    assert not without_row(check_nodes(run, ROWS))


def test_accumulation_is_in_fp32() -> None:
    # In bf16 the sum would stop growing at 256.
    x = torch.ones(5000, dtype=torch.bfloat16)
    check_call(lambda x: (x.sum(), x.mean()), x, tolerance=1e-6)


def test_gradients() -> None:
    x = torch.randn(3, 4)
    fns: list[Callable[[torch.Tensor], torch.Tensor]] = [
        *(torch.sum, torch.mean, torch.prod, torch.amax, torch.std, torch.norm, torch.max),
        *(lambda x: x.max(1)[0], lambda x: x.var(0), lambda x: x.logsumexp(1), lambda x: x.norm(3, 1)),
    ]
    assert not without_row(check_nodes(with_backward(lambda x: [f(x) for f in fns], [x]), x))


def test_variance_is_one_fold_and_shares_it_with_the_mean() -> None:
    graph = check_nodes(lambda x: torch.var_mean(x, 1), torch.randn(3, 8))
    assert set(folds(graph)) == {"welford"}


def test_logsumexp_is_one_online_fold() -> None:
    graph = check_nodes(lambda x: torch.logsumexp(x, 1), torch.randn(3, 8))
    assert set(folds(graph)) == {"maxsumexp"}


def test_distance_and_trace() -> None:
    a, b = torch.randn(4, 5), torch.randn(4, 5)
    assert not without_row(check_nodes(lambda a, b: [torch.dist(a, b), torch.dist(a, b, 1), torch.trace(a)], a, b))
    check_call(torch.trace, torch.arange(12).reshape(3, 4))
