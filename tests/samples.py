"""Samples of PyTorch's own operator tests (OpInfo), and a check of every node of a traced graph against eager.

`check_nodes` runs a graph once with ATen, keeping the value of every node, then runs each row by itself on the very
inputs its operator had and compares its outputs. So one wrong row fails by name, whatever stands around it.
"""

import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import torch
from rows import TOLERANCE, compare, run_node, to_numpy
from torch._subclasses import FakeTensorMode
from torch.fx import Interpreter
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from ridgeline.capture.convert import convert
from ridgeline.ir.graph import Graph, Node, NodeKind


class _Recorder(Interpreter):
    """Runs an FX graph and keeps a copy of every tensor it makes, by our buffer names."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.values: dict[str, Any] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        out = super().run_node(n)
        parts = {n.name: out} if isinstance(out, torch.Tensor) else {}
        if isinstance(out, list | tuple):
            parts = {f"{n.name}.{k}": o for k, o in enumerate(out)}
        self.values[n.name] = out
        for name, value in parts.items():
            if isinstance(value, torch.Tensor):
                self.values[name] = value.detach().clone()
        return out


def exact_outputs(node: Node, values: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What the operator gives when its floating inputs are widened to fp64; nothing where it cannot."""

    def widen(a: Any) -> Any:
        if isinstance(a, torch.fx.Node):
            a = values[a.name]
        if isinstance(a, torch.dtype) and a.is_floating_point:
            return torch.float64
        return a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a

    if "dtype" in node.call.kwargs:
        return {}
    args, kwargs = torch.fx.node.map_aggregate((node.call.args, node.call.kwargs), widen)
    try:
        out = node.call.target(*args, **kwargs)
    except RuntimeError:
        return {}
    parts = {node.name: out} if isinstance(out, torch.Tensor) else {f"{node.name}.{k}": o for k, o in enumerate(out)}
    return {name: o for name, o in parts.items() if isinstance(o, torch.Tensor) and o.dtype is torch.float64}


def no_worse(got: np.ndarray, eager: torch.Tensor, exact: torch.Tensor, limit: float) -> bool:
    """Whether our error against fp64 is at most three times the greatest of eager's, plus rounding."""
    truth = exact.numpy()
    finite = np.isfinite(truth)
    ours, theirs = (np.abs(a.astype(np.float64) - truth)[finite] for a in (got, to_numpy(eager)))
    same = np.array_equal(got[~finite], truth[~finite].astype(got.dtype), equal_nan=True)
    size = np.abs(truth[finite]).max(initial=1)
    return bool(same and ours.max(initial=0) <= 3 * theirs.max(initial=0) + limit * size)


def check_node(node: Node, values: dict[str, Any], tolerance: float | None) -> None:
    """Runs the rows of one node on the recorded inputs and compares what it makes with what ATen made."""
    arrays = {name: to_numpy(values[name]) for name in node.reads}
    run_node(node, arrays)
    exact: dict[str, torch.Tensor] | None = None
    for d in node.definitions:
        name = d.buffer.name
        try:
            compare(arrays[name], values[name], tolerance)
        except AssertionError as wrong:
            exact = exact_outputs(node, values) if exact is None else exact
            limit = tolerance or TOLERANCE.get(values[name].dtype, 0)
            if name not in exact or not no_worse(arrays[name], values[name], exact[name], limit):
                raise AssertionError(f"{node.operator} output {name}: {wrong}") from wrong


def functional(fn: Callable[..., Any], *inputs: torch.Tensor) -> torch.fx.GraphModule:
    """fn as a graph of operators below autograd, none of which writes to an input."""
    module = make_fx(lambda *tensors: fn(*tensors), tracing_mode="fake")(*inputs)
    schemas = [getattr(n.target, "_schema", None) for n in module.graph.nodes]
    if any(s is not None and s.is_mutable for s in schemas):
        module = make_fx(torch.func.functionalize(module, remove="mutations"), tracing_mode="fake")(*inputs)
    return module


def single_call(
    operator: Callable[..., Any], args: Any, kwargs: Any
) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """A graph of one call of an operator, exactly that one, and its tensors."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    graph, tensors = torch.fx.Graph(), [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    with FakeTensorMode() as mode:
        given, fakes = [], []
        for leaf in leaves:
            fake = mode.from_tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf
            if isinstance(leaf, torch.Tensor):
                node = graph.placeholder(f"x{len(given)}")
                node.meta["val"] = fake
            given.append(node if isinstance(leaf, torch.Tensor) else leaf)
            fakes.append(fake)
        called = graph.call_function(operator, *pytree.tree_unflatten(given, spec))
        fake_args, fake_kwargs = pytree.tree_unflatten(fakes, spec)
        called.meta["val"] = operator(*fake_args, **fake_kwargs)
    graph.output((called,))
    return torch.fx.GraphModule({}, graph), tensors


def check_module(module: torch.fx.GraphModule, *inputs: torch.Tensor, tolerance: float | None = None) -> Graph:
    """Checks every node of a traced graph that has a row, and gives the graph."""
    graph = convert(module)
    recorder = _Recorder(module)
    recorder.run(*inputs)
    wrong = []
    for node in graph.nodes:
        near = [*node.outputs, *(graph.buffers[name] for name in node.reads)]
        known = all(s.const is not None for b in near for s in b.shape)
        if node.definitions and known and "empty" not in node.operator:
            try:
                check_node(node, recorder.values, tolerance)
            except AssertionError as error:
                wrong.append(str(error))
    assert not wrong, "\n".join(wrong)
    return graph


def check_nodes(fn: Callable[..., Any], *inputs: torch.Tensor, tolerance: float | None = None) -> Graph:
    """Traces fn, checks every node that has a row, and gives the graph."""
    given = [t.detach() for t in inputs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return check_module(functional(fn, *given), *given, tolerance=tolerance)


def without_row(graph: Graph) -> dict[str, str]:
    """Operators that ran by ATen for want of a row, and why."""
    return {n.operator: n.reason for n in graph.nodes if n.kind is NodeKind.LIBRARY and n.reason is not None}


Case = tuple[Callable[..., Any], list[torch.Tensor]]


def as_function(op: Callable[..., Any], args: Any, kwargs: Any) -> Case:
    """op(*args, **kwargs) as a function of its tensors, giving a flat list of tensors."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def fn(*tensors: torch.Tensor) -> list[torch.Tensor]:
        full = list(leaves)
        for k, t in zip(places, tensors, strict=True):
            full[k] = t
        a, k = pytree.tree_unflatten(full, spec)
        return [o for o in pytree.tree_leaves(op(*a, **k)) if isinstance(o, torch.Tensor)]

    return fn, [leaves[k] for k in places]


def with_backward(fn: Callable[..., Any], inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """The function and the gradients of its outputs with respect to the inputs that want one (none: every float)."""
    wanted = [t.requires_grad for t in inputs]
    if not any(wanted):
        wanted = [t.is_floating_point() for t in inputs]

    def both(*tensors: torch.Tensor) -> list[torch.Tensor]:
        own = [t.detach().requires_grad_(w) for t, w in zip(tensors, wanted, strict=True)]
        outs = fn(*own)
        tops = [o for o in outs if o.requires_grad]
        leaves = [t for t in own if t.requires_grad]
        if not tops or not leaves:
            return outs
        grads = torch.autograd.grad(tops, leaves, [o.detach() + 0.5 for o in tops], allow_unused=True)
        return [*(o.detach() for o in outs), *(g for g in grads if g is not None)]

    return both


@cache
def op_database() -> dict[str, Any]:
    """OpInfo by name and variant; importing it takes seconds, so once."""
    from torch.testing._internal.common_methods_invocations import op_db  # noqa: PLC0415

    return {o.name + ("." + o.variant_test_name if o.variant_test_name else ""): o for o in op_db}


def samples(name: str, dtype: torch.dtype, limit: int | None, grad: bool = False) -> Iterator[Case]:
    """Sample inputs of an operator, at most `limit` of them, spread over PyTorch's list."""
    info = op_database()[name]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(info.sample_inputs("cpu", dtype, requires_grad=grad))
    step = 1 if limit is None else max(1, -(-len(found) // limit))
    for sample in found[::step]:
        yield as_function(info.op, (sample.input, *sample.args), sample.kwargs)
