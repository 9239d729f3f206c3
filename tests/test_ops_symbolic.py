"""Rows for sizes known only at run time: traced at one size with symbols, run by the interpreter at another."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rows import compare, run_node, to_numpy
from torch.fx.experimental.proxy_tensor import make_fx

from ridgeline.capture.convert import convert
from ridgeline.ir.graph import Graph
from ridgeline.ir.index import Sym

Fn = Callable[[torch.Tensor], torch.Tensor]

FUNCTIONS: dict[str, Fn] = {
    "softmax": lambda x: x.softmax(-1),
    "log softmax": lambda x: x.log_softmax(1),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "group norm": lambda x: F.group_norm(x, 1),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "cat": lambda x: torch.cat([x, x * 2], 1),
    "stack": lambda x: torch.stack([x, x]),
    "pad": lambda x: F.pad(x, (1, 2)),
    "view": lambda x: x.view(x.shape[0] * x.shape[1], -1),
    "flatten": lambda x: x.flatten(1),
    "permuted view": lambda x: x.permute(2, 0, 1).reshape(x.shape[2], -1),
    "slice": lambda x: x[:, 1:-1],
    "half": lambda x: x[:, : x.shape[0] // 2],
    "select": lambda x: x[-1],
    "split": lambda x: x.split(2, 1)[0],
    "roll": lambda x: x.roll(1, 1),
    "flip": lambda x: x.flip(1),
    "tril": lambda x: x.tril(),
    "rot90": lambda x: torch.rot90(x),
    "repeat": lambda x: x.repeat(2, 1, 1),
    "expand": lambda x: x[:, :1].expand(x.shape),
    "unfold": lambda x: x.unfold(2, 3, 1),
    "mean": lambda x: x.mean((0, 1)),
    "argmax": lambda x: x.argmax(),
    "logsumexp": lambda x: x.logsumexp(2),
    "max pool": lambda x: F.max_pool1d(x, 3, 2, 1),
    "average pool": lambda x: F.avg_pool1d(x, 3, 2, 1),
    "global pool": lambda x: F.adaptive_avg_pool1d(x, 1),
    "glu": lambda x: F.glu(torch.cat([x, x], 1), 1),
    "times a size": lambda x: x * x.shape[0] / x.shape[1],
    "a size everywhere": lambda x: torch.full((x.shape[0],), x.shape[1]) + x[:, 0, 0],
    "arange": lambda x: torch.arange(x.shape[0]) + x[:, 0, 0],
    "embedding": lambda x: F.embedding(torch.arange(x.shape[0]) % 2, x[0]),
    "gather": lambda x: x.gather(1, torch.zeros_like(x, dtype=torch.long)),
    "cross entropy": lambda x: F.cross_entropy(x[0], torch.zeros(x.shape[1], dtype=torch.long)),
    "mse": lambda x: F.mse_loss(x, x * 2),
}


def gradient(fn: Fn) -> Fn:
    """The gradient of the sum of the output."""

    def backward(x: torch.Tensor) -> torch.Tensor:
        own = x.detach().requires_grad_()
        out = fn(own)
        return torch.autograd.grad(out, own, torch.ones_like(out))[0] if out.requires_grad else out

    return backward


def sizes_of(graph: Graph, tensor: torch.Tensor) -> dict[str, int]:
    """The numbers of the symbols, from the shape of the only tensor that is given."""
    name = next(n for n in graph.inputs if n in graph.buffers)
    found: dict[str, int] = {}
    for size, number in zip(graph.buffers[name].shape, tensor.shape, strict=True):
        found |= {a.name: number for a in size.atoms if isinstance(a, Sym)}
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("way", ["forward", "backward"])
def test_at_another_size(name: str, way: str) -> None:
    fn = FUNCTIONS[name] if way == "forward" else gradient(FUNCTIONS[name])
    graph = convert(make_fx(lambda x: fn(x), tracing_mode="symbolic")(torch.randn(6, 5, 9)))
    assert not {n.operator: n.reason for n in graph.nodes if n.reason is not None}
    declared = graph.buffers[next(n for n in graph.inputs if n in graph.buffers)].shape
    other = [n + 2 if s.const is None else n for n, s in zip((6, 5, 9), declared, strict=True)]  # some are pinned
    assert sum(s.const is None for s in declared) >= 2
    for shape in ((6, 5, 9), tuple(other)):
        x = torch.randn(shape)
        sizes = sizes_of(graph, x)
        arrays: dict[str, np.ndarray] = {n: to_numpy(x) for n in graph.inputs if n in graph.buffers}
        for node in graph.nodes:
            run_node(node, arrays, sizes)
        out = next(o for o in graph.outputs if isinstance(o, str))
        compare(arrays[out], fn(x), 1e-5)
