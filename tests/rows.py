"""Running a row by itself: an ATen call -> FX -> operator graph -> the reference interpreter, against eager.

`check_call(fn, *inputs)` is what every family's tests use; tolerances are by dtype, values compared elementwise
against a float64 run, NaN and infinity in the same places.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from ridgeline.capture.convert import FROM_TORCH, convert
from ridgeline.ir.graph import Graph, Node, NodeKind
from ridgeline.ir.kernel import Mode
from ridgeline.ir.reference import NUMPY, evaluate, round_to
from ridgeline.ir.value import iota

TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A tensor in the interpreter's form (bf16 and f16 widened)."""
    wide = tensor.detach().cpu()
    if wide.dtype in (torch.bfloat16, torch.float16):
        wide = wide.float()
    return wide.numpy().copy()


Sizes = Mapping[str, int]


def run_node(node: Node, arrays: dict[str, np.ndarray], sizes: Sizes = MappingProxyType({})) -> None:
    """Evaluates a node's definitions with the reference interpreter, adding its outputs to `arrays`."""
    for d in node.definitions:
        if d.initial is None:
            out = evaluate(d.value, d.axes, arrays, sizes)
            arrays[d.buffer.name] = round_to(np.asarray(out), d.buffer.dtype).copy()
            continue
        base = round_to(np.asarray(evaluate(d.initial.value, d.initial.axes, arrays, sizes)), d.buffer.dtype).copy()
        value = evaluate(d.value, d.axes, arrays, sizes)
        at = tuple(np.broadcast_to(evaluate(iota(i), d.axes, arrays, sizes), value.shape) for i in d.index)
        if d.mode is Mode.ADD:
            np.add.at(base, at, value)
        else:
            base[at if at else ()] = value
        arrays[d.buffer.name] = base


def capture(fn: Callable[..., Any], *inputs: Any) -> Graph:
    """The operator graph of a function of tensors, without decompositions."""
    return convert(make_fx(lambda *tensors: fn(*tensors), tracing_mode="fake")(*inputs))


def check_call(fn: Callable[..., Any], *inputs: Any, native: bool = True, tolerance: float | None = None) -> Graph:
    """Runs fn eagerly and by its rows and compares every output. `native`: no operator may lack a row."""
    graph = capture(fn, *inputs)
    tensors = [i for i in inputs if isinstance(i, torch.Tensor)]
    arrays = {name: to_numpy(t) for name, t in zip(graph.inputs, tensors, strict=False)}
    for node in graph.nodes:
        if node.kind is NodeKind.LIBRARY:
            assert not native, f"{node.operator} ran as a library call: {node.reason}"
            return graph
        run_node(node, arrays)
    expected = fn(*inputs)
    expected = expected if isinstance(expected, list | tuple) else [expected]
    for name, want in zip(graph.outputs, expected, strict=True):
        if isinstance(name, str) and isinstance(want, torch.Tensor):
            compare(arrays[name], want, tolerance)
    return graph


def compare(got: np.ndarray, want: torch.Tensor, tolerance: float | None = None) -> None:
    """Elementwise comparison in the tolerance of the dtype; integers exact; NaN and infinity in their places."""
    dtype = FROM_TORCH[want.dtype]
    expected = to_numpy(want)
    assert got.shape == expected.shape, f"shape {got.shape} instead of {expected.shape}"
    assert got.dtype == NUMPY[dtype.name]
    if not dtype.is_float:
        np.testing.assert_array_equal(got, expected)
        return
    limit = tolerance if tolerance is not None else TOLERANCE[want.dtype]
    np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), rtol=limit, atol=limit)
