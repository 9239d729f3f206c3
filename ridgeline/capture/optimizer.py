"""One parameter's update as a graph of ATen operators over an axis of unknown length.

`layout_of` says what the code of a step can see of a parameter, or why it is left to torch. `graph_of` makes an FX
graph of one way through the step (capture/standin.py finds it): functional, with a `copy_` for each tensor the step
changes, each tensor one-dimensional. Numbers that change from step to step become inputs of no dimensions in fp64.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule
from torch.fx import Node as FxNode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.fx.node import map_arg

from ridgeline.base.errors import LeftToTorch
from ridgeline.capture.standin import SET_ITEM, Call, Layout, Ref, Slot

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
HOST_TYPES = (torch.float32, torch.float64, torch.int64, torch.int32)
PLAIN = (torch.Tensor, nn.Parameter)
FEWEST = 4096  # elements a graph is made for, so that no size is taken for a constant


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill their memory without gaps or overlaps, in whatever order of dimensions."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted((st, n) for n, st in zip(tensor.shape, tensor.stride(), strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def same_places(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether equal offsets in memory hold equal positions."""
    return a.shape == b.shape and (a.stride() == b.stride() or (a.is_contiguous() and b.is_contiguous()))


def layout_of(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    state: Mapping[str, Any] | None,
    group: Mapping[str, Any],
    known: Mapping[str, bool],
) -> Layout:
    """The layout of a parameter. `known` says which keys of a state hold one element for each of the parameter's.

    That is needed where the parameter itself is a single number. Raises LeftToTorch.
    """
    if type(parameter) not in PLAIN or type(gradient) not in PLAIN:
        raise LeftToTorch(f"a parameter or gradient is a {type(gradient).__name__}", lasting=False)
    if parameter.layout is not torch.strided or gradient.layout is not torch.strided:
        raise LeftToTorch("a gradient is sparse", lasting=False)
    if parameter.dtype not in FLOATS or gradient.dtype not in FLOATS:
        raise LeftToTorch(f"a parameter is {parameter.dtype}", lasting=False)
    if not is_dense(parameter) or not same_places(parameter, gradient):
        raise LeftToTorch("a gradient lies in memory in another order than its parameter", lasting=False)
    parts: dict[str, list[tuple[str, Any]]] = {"full": [], "cells": [], "hosts": []}
    for key, value in (state or {}).items():
        parts[_kind(key, value, parameter, known)].append((key, getattr(value, "dtype", None)))
    on_device = [(k, v.dtype) for k, v in group.items() if isinstance(v, torch.Tensor) and v.device.type != "cpu"]
    full, cells, hosts = (tuple(found) for found in parts.values())
    own = (parameter.dtype, parameter.device, gradient.dtype)
    return Layout(*own, full, cells, hosts, tuple(on_device), state is not None)


def _kind(key: str, value: Any, parameter: torch.Tensor, known: Mapping[str, bool]) -> str:
    """Which part of a layout one entry of the state is."""
    if not isinstance(value, torch.Tensor):
        if type(value) not in (int, float):
            raise LeftToTorch(f"its state '{key}' is a {type(value).__name__}", lasting=False)
        return "hosts"
    if type(value) not in PLAIN or value.layout is not torch.strided:
        raise LeftToTorch(f"its state '{key}' is not a plain tensor", lasting=False)
    full = value.shape == parameter.shape if parameter.dim() else known.get(key)
    if full is None or (not full and value.dim()):
        raise LeftToTorch(f"its state '{key}' has another shape than the parameter", lasting=False)
    if full:
        if value.device != parameter.device or not same_places(parameter, value):
            raise LeftToTorch(f"its state '{key}' lies in memory in another order than the parameter", lasting=False)
        return "full"
    if value.device.type != "cpu":
        return "cells"
    if value.dtype not in HOST_TYPES:
        raise LeftToTorch(f"its state '{key}' is {value.dtype}", lasting=False)
    return "hosts"


@dataclass(frozen=True, slots=True)
class Update:
    """A graph, and what each of its inputs is: a role (a key of the state, ...), or the place of a number."""

    module: GraphModule
    inputs: tuple[str | int, ...]


def graph_of(
    end: Call,
    inputs: Sequence[tuple[Ref, torch.Tensor]],
    device: torch.device,
    numbers: Sequence[float],
    varying: frozenset[int],
    elements: int,
) -> Update:
    """The graph of the way to `end`. `inputs` are the stand-in's tensors with their models.

    Numbers that are not `varying` are constants of the graph; `elements` is an example length. Raises LeftToTorch.
    """
    way = end.way
    runtime = sorted(varying | {k for k, slot in enumerate(_slots(way)) if slot.dtype is not None})
    used = set(numbers)
    marks = {k: next(m for m in _marks(k) if m not in used) for k in runtime}

    def play(*given: torch.Tensor) -> tuple[()]:
        tensors = {ref: t for (ref, _), t in zip(inputs, given, strict=False)}
        scalars = dict(zip(runtime, given[len(inputs) :], strict=True))
        for place in _play(way, tensors, scalars, {**dict(enumerate(numbers)), **marks}):
            marks.pop(place, None)
        return ()

    shapes = [(m.dim(), m.dtype) for _, m in inputs] + [(0, torch.float64)] * len(runtime)
    module = _traced(play, shapes, device, elements)
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    _put_numbers(module, dict(zip(runtime, placeholders[len(inputs) :], strict=True)), marks)
    _make_functional(module.graph)
    roles: list[str | int] = [*(ref.role for ref, _ in inputs), *runtime]
    kept = tuple(role for node, role in zip(placeholders, roles, strict=True) if node.users)
    for node in placeholders:
        if not node.users:
            module.graph.erase_node(node)
    module.recompile()
    return Update(module, kept)


def trace(
    function: Callable[..., Any], shapes: Sequence[tuple[int, torch.dtype]], device: torch.device, elements: int
) -> GraphModule:
    """The same kind of graph of a function that changes its arguments: tensors of one dimension or none."""
    module = _traced(function, shapes, device, elements)
    _make_functional(module.graph)
    module.recompile()
    return module


def _traced(
    function: Callable[..., Any], shapes: Sequence[tuple[int, torch.dtype]], device: torch.device, elements: int
) -> GraphModule:
    with enable_python_dispatcher():  # operators written in Python work with a symbolic length only under it
        module: GraphModule = make_fx(function)(*_fakes(shapes, device, elements))
    return module


def _fakes(shapes: Sequence[tuple[int, torch.dtype]], device: torch.device, elements: int) -> list[torch.Tensor]:
    """Tensors without memory, those of one dimension all of one unknown length."""
    mode: Any = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    model = torch.empty(max(elements, FEWEST), device="meta")
    context: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC])
    length = mode.from_tensor(model, symbolic_context=context, source=ConstantSource("n")).shape[0]
    with mode:
        return [torch.empty(length if dim else (), dtype=dtype, device=device) for dim, dtype in shapes]


def _marks(place: int) -> Iterator[float]:
    """Numbers that no step uses, to find an argument again in the graph."""
    return (0.30517578125 + place + k * 2.0**-30 for k in count(1))


def _slots(way: Sequence[Call]) -> list[Slot]:
    out: list[Slot] = []

    def visit(value: Any) -> None:
        if isinstance(value, Slot):
            out.append(value)
        elif isinstance(value, tuple):
            for part in value:
                visit(part)

    for call in way:
        visit(call.arguments)
        visit(tuple(v for _, v in call.keywords))
    return out


def _play(
    way: Sequence[Call],
    tensors: dict[Ref, torch.Tensor],
    scalars: Mapping[int, torch.Tensor],
    numbers: Mapping[int, float],
) -> set[int]:
    """Applies the operators of a way to tensors. Gives the places of numbers that had to be tensors."""
    first, as_tensors = 0, set[int]()
    for call in way:
        slots = _slots([call])
        function: Callable[..., Any] = _put_where if call.function is SET_ITEM else call.function
        places = range(first, first + len(slots))
        first += len(slots)
        args, kwargs = _fill(call, tensors, iter([numbers[k] for k in places]))
        try:
            result = function(*args, **kwargs)
        except TypeError:  # torch.maximum and the like take no numbers
            wrapped = {k: scalars[k].to(s.dtype) for k, s in zip(places, slots, strict=True) if s.dtype is not None}
            if not wrapped:
                raise
            as_tensors |= wrapped.keys()
            args, kwargs = _fill(call, tensors, iter([wrapped.get(k, numbers[k]) for k in places]))
            result = function(*args, **kwargs)
        if call.result is not None:
            tensors[call.result.ref] = result
    return as_tensors


def _fill(call: Call, tensors: Mapping[Ref, torch.Tensor], numbers: Iterator[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call, tensors and numbers put back in."""

    def fill(value: Any) -> Any:
        if isinstance(value, Ref):
            return tensors[value]
        if isinstance(value, Slot):
            return next(numbers)
        kind, *rest = value
        return kind(map(fill, rest)) if kind in (list, tuple) else rest[0]

    return [fill(a) for a in call.arguments], {k: fill(v) for k, v in call.keywords}


def _put_where(tensor: torch.Tensor, mask: Any, value: Any) -> None:
    """tensor[mask] = number, without making a tensor of the number."""
    if not isinstance(mask, torch.Tensor) or mask.dtype is not torch.bool or isinstance(value, torch.Tensor):
        raise LeftToTorch("its step writes to parts of a tensor")
    tensor.masked_fill_(mask, value)


def _put_numbers(module: GraphModule, scalars: Mapping[int, FxNode], marks: Mapping[int, float]) -> None:
    """Puts the input in place of every marked argument."""
    place_of = {mark: place for place, mark in marks.items()}
    found: set[int] = set()

    def put(value: Any) -> Any:
        if isinstance(value, float) and value in place_of:
            found.add(place_of[value])
            return scalars[place_of[value]]
        if isinstance(value, list | tuple):
            return type(value)(map(put, value))
        return value

    for node in module.graph.nodes:
        node.args = tuple(map(put, node.args))
        node.kwargs = {k: put(v) for k, v in node.kwargs.items()}
    if found != set(marks):
        raise LeftToTorch("a number of its step is lost on the way to ATen")


def _make_functional(graph: FxGraph) -> None:
    _Functional(graph).run()


class _Functional:
    """Rewrites operators that change a tensor as ones that make a new one; there are no views among them."""

    def __init__(self, graph: FxGraph) -> None:
        self.graph = graph
        self.root: dict[FxNode, FxNode] = {}  # a tensor's node -> the node the tensor came from
        self.latest: dict[FxNode, FxNode] = {}  # that node -> what the tensor is now
        self.gone: list[FxNode] = []

    def now(self, node: FxNode) -> FxNode:
        root = self.root.get(node, node)
        return self.latest.get(root, node)

    def run(self) -> None:
        inputs = [n for n in self.graph.nodes if n.op == "placeholder"]
        for node in [n for n in self.graph.nodes if n.op == "call_function"]:
            node.args = map_arg(node.args, self.now)
            node.kwargs = map_arg(node.kwargs, self.now)
            schema = node.target._schema
            if any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns):
                raise LeftToTorch(f"its step takes a view ({node.target})")
            if schema.is_mutable:
                self.rewrite(node, [a.alias_info is not None and a.alias_info.is_write for a in schema.arguments])
        end = next(n for n in self.graph.nodes if n.op == "output")
        with self.graph.inserting_before(end):
            for node in inputs:
                made = self.latest.get(node, node)
                if made is not node:
                    copied = self.graph.call_function(torch.ops.aten.copy_.default, (node, made))
                    copied.meta["val"] = node.meta["val"]
        for node in reversed(self.gone):
            self.graph.erase_node(node)
        self.graph.eliminate_dead_code()

    def rewrite(self, node: FxNode, written: Sequence[bool]) -> None:
        schema: Any = node.target._schema  # type: ignore[union-attr]
        if sum(written) != 1:
            raise LeftToTorch(f"its step changes several tensors at once ({node.target})")
        argument = schema.arguments[written.index(True)]
        target: Any = node.kwargs.get(argument.name) if argument.kwarg_only else node.args[written.index(True)]
        made = node
        if node.target is torch.ops.aten.copy_.default:
            made = node.args[1]  # type: ignore[assignment]
            self.gone.append(node)
        else:
            node.target = functional_overload(node.target)
            node.kwargs = {k: v for k, v in node.kwargs.items() if not (argument.kwarg_only and k == argument.name)}
        fake = target.meta["val"]
        tensors = [n.meta["val"] for n in node.all_input_nodes]
        wide = (t.dtype for t in tensors if t.dim() or not fake.dim())
        if any(dtype.is_floating_point and dtype is not fake.dtype for dtype in wide):
            with self.graph.inserting_after(node):
                made = self.graph.call_function(torch.ops.aten._to_copy.default, (made,), {"dtype": fake.dtype})
                made.meta["val"] = fake
        root = self.root.get(target, target)
        self.root[node] = self.root[made] = root
        self.latest[root] = made


def functional_overload(operator: Any) -> Any:
    """The overload that makes a new tensor: aten.add_.Tensor -> aten.add.Tensor, aten.maximum.out -> .default."""
    name, overload = operator.overloadpacket.__name__, operator._overloadname
    overload = "default" if overload == "out" else overload.removesuffix("_out")
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
    found = getattr(packet, overload, None)
    if found is None or found._schema.is_mutable:
        raise LeftToTorch(f"{operator} has no form that makes a new tensor")
    return found
