"""Positions read from memory: gathers, scatters, embeddings, advanced indexing; duplicates, negatives, refusals."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rows import check_call, run_node, to_numpy
from samples import check_nodes, functional, with_backward, without_row

from ridgeline.capture.convert import convert
from ridgeline.ir.graph import Graph, Node
from ridgeline.ir.kernel import Mode

aten = torch.ops.aten
X = torch.randn(4, 5, 3)
PLACES = torch.tensor([[3, 0, 1], [2, 2, 3]])


def native(fn: Callable[..., object], *inputs: torch.Tensor) -> Graph:
    graph = check_call(fn, *inputs)
    assert not without_row(graph)
    return graph


def both_ways(fn: Callable[..., list[torch.Tensor]], x: torch.Tensor, *rest: torch.Tensor) -> Graph:
    inputs = [x.clone().requires_grad_(), *rest]
    graph = check_nodes(with_backward(fn, inputs), *inputs)
    assert not without_row(graph)
    return graph


def node_of(graph: Graph, operator: str) -> Node:
    (node,) = [n for n in graph.nodes if n.operator == operator]
    return node


def test_gather_and_select() -> None:
    index = torch.randint(3, (2, 5, 3))
    native(lambda x, i: (x.gather(0, i), x.gather(-1, i), torch.take_along_dim(x, i, 0)), X, index)
    native(lambda x, i: (x.index_select(0, i[0]), x.index_select(-1, i[1, :2]), x.take(i - 2)), X, PLACES)
    both_ways(lambda x, i: [x.gather(0, i), x.index_select(1, i[0, :, 0])], X, index)


def test_advanced_indexing() -> None:
    native(
        lambda x, i: (x[i], x[:, i], x[i, i], x[:, i, i % 3], x[i, :, i % 3], x[i % 2, 1:3], x[..., i % 3]), X, PLACES
    )
    native(lambda x, i: (x[-i], x[i[0], :, 1], x[None, i], x[i[:, :1], i[0] % 5]), X, PLACES)
    both_ways(lambda x, i: [x[i], x[:, -i], x[i, :, i % 3]], X, PLACES)


def test_embedding() -> None:
    weight, ids = torch.randn(7, 3), torch.tensor([[0, 6, 6], [2, 2, 2]])
    graph = both_ways(lambda w, i: [F.embedding(i, w)], weight, ids)
    (d,) = node_of(graph, "aten.embedding_dense_backward.default").definitions
    assert d.mode is Mode.ADD
    both_ways(lambda w, i: [F.embedding(i, w, padding_idx=2)], weight, ids)
    both_ways(lambda w, i: [F.embedding(i, w)], weight.bfloat16(), ids.int())


@pytest.mark.filterwarnings("ignore:The reduce argument")
def test_scatter_along_a_dimension() -> None:
    index = torch.tensor([[0, 2, 1], [3, 3, 0]])[:, None].expand(2, 5, 3)
    source = torch.randn(3, 5, 3)
    native(lambda x, i, s: (x.scatter_add(0, i, s), x.scatter_reduce(0, i, s, "sum")), X, index, source)
    unique = torch.tensor([[2], [0], [1], [2]])
    native(lambda x, i, s: (x.scatter(1, i, s), x.scatter(1, i, 7.0)), torch.zeros(4, 3), unique, torch.randn(4, 2))
    native(lambda x, i, s: x.scatter(1, i, s, reduce="add"), torch.zeros(4, 3), unique, torch.randn(4, 2))
    both_ways(lambda x, i, s: [x.scatter_add(0, i, s), x.scatter(0, i, s)], X, index[:1], source)


def test_whole_slabs() -> None:
    index = torch.tensor([2, 0])
    native(
        lambda x, i, s: (x.index_add(0, i, s, alpha=2), x.index_copy(0, i, s), x.index_fill(0, i, -1.0)),
        X,
        index,
        X[:2] * 9,
    )
    native(lambda x, i, s: (x.index_add(1, i, s), x.index_fill(-1, i, s[0, 0, 0])), X, index, X[:, :2])
    duplicates = torch.tensor([1, 1, 1])
    native(lambda x, i, s: x.index_add(0, i, s), torch.zeros(3, 2), duplicates, torch.ones(3, 2))


def test_index_put() -> None:
    values = torch.randn(2, 3, 5, 3)
    native(lambda x, i, v: aten.index_put(x, [i], v, True), X, PLACES, values)
    native(lambda x, i, v: aten.index_put(x, [None, i], v[0, 0, 0, 0], True), X, PLACES, values)
    unique = torch.tensor([0, 3])
    native(
        lambda x, i, v: (aten.index_put(x, [i], v), aten.index_put(x, [i, None, i % 3], v[:, :, 0])),
        X,
        unique,
        values[0, :2],
    )
    native(lambda x, i, v: aten.index_put(x, [i - 4], v), X, unique, values[0, :2])
    native(lambda x, i, v: (x.put(i, v), x.put(i - 3, v, accumulate=True)), X, unique, torch.randn(2))


def test_a_number_where_a_mask_holds_is_a_choice() -> None:
    number = torch.tensor(5.0)
    graph = native(lambda x, m, n: aten.index_put(x, [m], n), X, X > 0, number)
    (d,) = node_of(graph, "aten.index_put.default").definitions
    assert d.initial is None
    native(lambda x, m, n: aten.index_put(x, [m], n, True), X, X[:, :, 0] > 0, number)


def test_masked_index() -> None:
    mask = torch.tensor([True, False, True])
    native(lambda x, m, i: aten._unsafe_masked_index(x, m, [i], 7), torch.arange(5.0), mask, torch.tensor([4, 99, 0]))
    native(
        lambda x, m, i, v: aten._unsafe_masked_index_put_accumulate(x, m, [i], v),
        *(torch.arange(5.0), mask, torch.tensor([4, 99, 4]), torch.ones(3)),
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bfloat16, torch.float64, torch.uint8], ids=str)
def test_types(dtype: torch.dtype) -> None:
    x, i = torch.arange(12).reshape(4, 3).to(dtype), torch.tensor([1, 1, 3])
    native(lambda x, i: (x[i], x.index_add(0, i, x[:3]), x.index_select(1, i % 3), x.index_fill(0, i, 2)), x, i)


def test_no_position_at_all() -> None:
    none = torch.zeros(0, dtype=torch.long)
    native(
        lambda x, i: (x[i], x.index_select(0, i), x.index_add(0, i, x[:0]), x.scatter(0, i[:, None, None], 1.0)),
        X,
        none,
    )
    native(lambda x, i: F.embedding(i, x), torch.randn(3, 2), none)


def test_positions_outside_touch_no_memory_they_must_not() -> None:
    # ATen raises; a kernel must at least stay inside. The assertion belongs to whoever calls the graph.
    graph = convert(functional(lambda w, i: F.embedding(i, w), torch.randn(3, 2), torch.tensor([0])))
    node = node_of(graph, "aten.embedding.default")
    weight = torch.arange(6.0).reshape(3, 2)
    arrays = dict(zip(graph.inputs, (to_numpy(weight), np.array([99])), strict=True))
    run_node(node, arrays)
    np.testing.assert_array_equal(arrays[node.name], [[4.0, 5.0]])


REFUSED: dict[str, tuple[Callable[..., object], str]] = {
    "mask": (lambda x, i: aten.index_put(x, [x > 0], x[0, 0, 0].expand(int(i.numel()))), "a boolean mask as an index"),
    "amax": (lambda x, i: x.scatter_reduce(0, i[:, :, None], x, "amax"), "scatter_reduce with 'amax'"),
    "bools": (lambda x, i: (x > 0).index_add(0, i[0], x[:3] > 0), "a scatter that adds up bools"),
    "frequency": (
        lambda x, i: aten.embedding_dense_backward(x[:2, :3], i, 7, -1, True),
        "embedding gradient scaled by frequency",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    fn, reason = REFUSED[name]
    graph = convert(functional(fn, X, PLACES))
    assert reason in without_row(graph).values()


def test_searches_among_few() -> None:
    edges, x = torch.tensor([0.0, 1.0, 1.0, 2.5]), torch.tensor([[-1.0, 0.0, 1.0], [2.0, 3.0, float("nan")]])
    native(lambda e, x: (torch.bucketize(x, e), torch.bucketize(x, e, right=True), torch.searchsorted(e, x)), edges, x)
    native(lambda e, x: torch.searchsorted(e, x, side="right", out_int32=True), edges.repeat(2, 1), x)
    native(lambda e, x: (torch.isin(x, e), torch.isin(x, e, invert=True), torch.isin(x, 1.0)), edges, x)
    graph = convert(functional(lambda e, x: torch.bucketize(x, e), torch.arange(100.0), x))
    assert list(without_row(graph)) == ["aten.bucketize.Tensor"]
