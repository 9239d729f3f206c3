"""Norms and softmax both ways: values, the number of folds they take, and edges (one row, one element, infinities)."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rows import capture, check_call, compare, run_node, to_numpy
from samples import check_nodes, with_backward, without_row

from ridgeline.ir.graph import Graph
from ridgeline.ir.value import nodes

aten = torch.ops.aten
FLOATS = (torch.float32, torch.float64, torch.bfloat16)


def folds_of(graph: Graph, operator: str) -> set[str]:
    """The folds of an operator as text, each once: components and the names of the axes told apart by nothing."""
    (node,) = [n for n in graph.nodes if n.operator == operator]
    folds = {v for d in node.definitions for v in nodes([d.value]) if v.op == "fold"}
    texts = {repr(v).replace(f"{v.attr.combiner}.{v.attr.part}<", f"{v.attr.combiner}<") for v in folds}
    return {renamed(t) for t in texts}


def renamed(text: str) -> str:
    """Free axes by order of appearance."""
    names: dict[str, str] = {}
    return re.sub(r"\bt\d+\b", lambda m: names.setdefault(m[0], f"a{len(names)}"), text)


def both_ways(fn: Callable[..., Any], *inputs: torch.Tensor) -> Graph:
    graph = check_nodes(with_backward(lambda *t: [fn(*t)], list(inputs)), *inputs)
    assert not without_row(graph)
    return graph


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_softmax_both_ways(dtype: torch.dtype) -> None:
    x = torch.randn(3, 5, 7).to(dtype)
    for dim in (0, 1, -1):
        both_ways(lambda x, d=dim: x.softmax(d), x)
        both_ways(lambda x, d=dim: x.log_softmax(d), x)


INF = float("inf")


def test_softmax_of_infinities() -> None:
    x = torch.tensor(
        [[1, INF, 2], [-INF, 1, -INF], [-INF, -INF, -INF], [float("nan"), 1, 2], [1e30, -1e30, 0], [88, 89, 1000]]
    )
    check_nodes(lambda x: [x.softmax(1), x.log_softmax(1), x[:, :1].softmax(1), aten._safe_softmax(x, 1)], x)


def test_softmax_of_half_in_fp32() -> None:
    x = torch.randn(2, 3).half()
    check_nodes(lambda x: [x.softmax(1, dtype=torch.float32), x.log_softmax(1, torch.float32)], x)


def test_softmax_takes_one_online_fold() -> None:
    x = torch.randn(4, 9)
    assert len(folds_of(both_ways(lambda x: x.softmax(1), x), "aten._softmax.default")) == 1
    graph = both_ways(lambda x: x.log_softmax(1), x)
    assert len(folds_of(graph, "aten._log_softmax.default")) == 1
    assert len(folds_of(graph, "aten._log_softmax_backward_data.default")) == 1


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(4, 6), (2, 3, 5), (1, 1, 8)], ids=str)
def test_layer_norm_both_ways(dtype: torch.dtype, shape: Sequence[int]) -> None:
    x, w, b = torch.randn(*shape).to(dtype), torch.rand(shape[-1]).to(dtype), torch.rand(shape[-1]).to(dtype)
    both_ways(lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), x, w, b)
    both_ways(lambda x: F.layer_norm(x, x.shape[1:]), x)


def test_layer_norm_backward_takes_two_row_folds_and_two_column_folds() -> None:
    x, w, b = torch.randn(4, 6), torch.rand(6), torch.rand(6)
    graph = both_ways(lambda x, w, b: F.layer_norm(x, (6,), w, b), x, w, b)
    assert len(folds_of(graph, "aten.native_layer_norm.default")) == 1
    assert len(folds_of(graph, "aten.native_layer_norm_backward.default")) == 4


def test_layer_norm_gradients_that_nobody_wants_are_not_made() -> None:
    x, w, b = torch.randn(4, 6), torch.rand(6), torch.rand(6)
    mean, rstd = torch.randn(4, 1), torch.rand(4, 1)
    for mask in ([True, False, False], [False, True, False], [False, False, True]):
        run = lambda x, w, b, m, r, k=mask: [  # noqa: E731
            o for o in aten.native_layer_norm_backward(x, x, (6,), m, r, w, b, k) if o is not None
        ]
        graph = check_nodes(run, x, w, b, mean, rstd)
        (node,) = [n for n in graph.nodes if "backward" in n.operator]
        assert len(node.definitions) == 1


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rms_norm_rows(dtype: torch.dtype) -> None:
    x, w = torch.randn(4, 6).to(dtype), torch.rand(6).to(dtype)
    both_ways(lambda x, w: F.rms_norm(x, (6,), w), x, w)
    both_ways(lambda x, w: F.rms_norm(x, (6,), w, 1e-3), x, w)


def test_fused_rms_norm_of_a_gpu_graph() -> None:
    # ATen has these two on GPUs only, so they are held against autograd of the plain formula.
    x, w, dy = torch.randn(4, 6, requires_grad=True), torch.rand(6, requires_grad=True), torch.randn(4, 6)
    y = F.rms_norm(x, (6,), w, 1e-5)
    dx, dw = torch.autograd.grad(y, (x, w), dy)
    x, w = x.detach(), w.detach()
    rstd = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)
    graph = capture(lambda *t: aten._fused_rms_norm_backward(t[0], t[1], (6,), *t[2:], [True, True]), dy, x, rstd, w)
    assert len(folds_of(graph, "aten._fused_rms_norm_backward.default")) == 2
    arrays = dict(zip(graph.inputs, map(to_numpy, (dy, x, rstd, w)), strict=True))
    for node in graph.nodes:
        run_node(node, arrays)
    for name, want in zip(graph.outputs, (dx, dw), strict=True):
        assert isinstance(name, str)
        compare(arrays[name], want, 1e-5)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(2, 6, 4, 5), (3, 4), (1, 2, 7)], ids=str)
def test_group_norm_both_ways(dtype: torch.dtype, shape: Sequence[int]) -> None:
    x, w, b = torch.randn(*shape).to(dtype), torch.rand(shape[1]).to(dtype), torch.rand(shape[1]).to(dtype)
    both_ways(lambda x, w, b: F.group_norm(x, 2, w, b), x, w, b)


def test_group_norm_backward_folds() -> None:
    x, w, b = torch.randn(2, 6, 3), torch.rand(6), torch.rand(6)
    graph = both_ways(lambda x, w, b: F.group_norm(x, 3, w, b), x, w, b)
    assert len(folds_of(graph, "aten.native_group_norm_backward.default")) == 4


BATCH = [(4, 3, 5, 6), (8, 3), (2, 3, 7)]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", BATCH, ids=str)
def test_batch_norm_in_training_writes_its_statistics(dtype: torch.dtype, shape: Sequence[int]) -> None:
    x, w, b = torch.randn(*shape).to(dtype), torch.rand(3).to(dtype), torch.rand(3).to(dtype)
    mean, var = torch.randn(3).to(dtype), torch.rand(3).to(dtype)

    def run(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> Any:
        return aten._native_batch_norm_legit_functional(x, w, b, mean, var, True, 0.1, 1e-5)

    graph = check_nodes(run, x, w, b, mean, var)
    assert not without_row(graph)
    assert len(folds_of(graph, "aten._native_batch_norm_legit_functional.default")) == 1
    assert not without_row(
        check_nodes(lambda *t: aten._batch_norm_with_update_functional(*t, 0.1, 1e-5), x, w, b, mean, var)
    )


@pytest.mark.parametrize("shape", BATCH, ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_backward(shape: Sequence[int], training: bool) -> None:
    x, dy, w = torch.randn(*shape), torch.randn(*shape), torch.rand(3)
    mean, var = torch.randn(3), torch.rand(3)
    stats = (torch.randn(3), torch.rand(3)) if training else (None, None)

    def run(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, *rest: torch.Tensor) -> Any:
        saved = rest[2:] if training else (None, None)
        return aten.native_batch_norm_backward(dy, x, w, *rest[:2], *saved, training, 1e-5, [True, True, True])

    given = [s for s in stats if s is not None]
    graph = check_nodes(run, dy, x, w, mean, var, *given)
    assert not without_row(graph)
    assert len(folds_of(graph, "aten.native_batch_norm_backward.default")) == 2


def test_batch_norm_through_autograd() -> None:
    x, w, b = torch.randn(4, 3, 5), torch.rand(3), torch.rand(3)
    both_ways(lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), x, w, b)
    mean, var = torch.randn(3), torch.rand(3)
    check_call(lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b), x, mean, var, w, b)


def test_instance_norm_and_weight_norm() -> None:
    both_ways(F.instance_norm, torch.randn(2, 3, 6))
    v, g = torch.randn(4, 3), torch.rand(4, 1)
    both_ways(lambda v, g: aten._weight_norm_interface(v, g, 0)[0], v, g)
    check_call(lambda x: torch.renorm(x, 2, 0, 1.0), torch.randn(4, 5))


def test_rows_of_one_element_and_of_none() -> None:
    check_nodes(lambda x: [F.layer_norm(x, (1,)), x.softmax(1), x.log_softmax(1)], torch.randn(3, 1))
    check_nodes(lambda x: [F.layer_norm(x, (4,)), x.softmax(1), x.softmax(0)], torch.randn(0, 4))
    check_nodes(lambda x: [x.softmax(0), x.log_softmax(0)], torch.tensor(2.0))


def test_large_mean_small_spread() -> None:
    # A variance from sums of squares loses every digit here; Welford's does not.
    x = torch.randn(4, 64) * 1e-2 + 1e3
    check_call(lambda x: F.layer_norm(x, (64,)), x, tolerance=2e-2)
