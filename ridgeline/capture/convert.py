"""FX graph -> operator graph: each ATen call becomes a node with the definitions its row gives.

Takes a graph of OpOverloads whose nodes carry fake tensors in meta["val"]; gives an `ir.graph.Graph`. What no row
covers becomes a LIBRARY node with the reason; strict mode raises instead. Reads no real tensor and adds no guard.
"""

import operator as builtin
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import sympy
import torch
from torch.fx import GraphModule
from torch.fx import Node as FxNode
from torch.utils._sympy.functions import Max as TorchMax

from ridgeline.base.errors import CannotConvert, CheckFailed, NoRow
from ridgeline.capture.lines import user_line
from ridgeline.capture.statistics import ADDED
from ridgeline.ir.graph import Definition, Graph, Node, NodeKind
from ridgeline.ir.index import Index, Sym, as_index
from ridgeline.ir.kernel import Buffer, Mode
from ridgeline.ir.types import BOOL, DTYPES, DType
from ridgeline.ir.value import Value, cast
from ridgeline.ops import families
from ridgeline.ops.array import Array, loaded
from ridgeline.ops.table import Context, Kind, Row, Scatter, find

FROM_TORCH: dict[torch.dtype, DType] = {getattr(torch, d.torch): d for d in DTYPES.values()}
# Arguments that say where or how a tensor is made, not what is in it.
PLACEMENT = frozenset(("device", "layout", "pin_memory", "memory_format", "non_blocking"))
LOWEST = 1 << 31  # stands for no least number at all
NUMBERS = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)

assert families.LOADED


def convert_size(size: Any) -> Index:
    """An int or SymInt as an index expression. Raises CannotConvert for forms outside our algebra."""
    if isinstance(size, int):
        return as_index(size)
    return _from_sympy(size.node.expr, size.node.shape_env)


def known_size(size: torch.SymInt) -> Index:
    """A size given as an argument; one that was read from a tensor may be anything, so rows cannot have it."""
    if any(not s.name.startswith("s") for s in size.node.expr.free_symbols):
        raise CannotConvert(f"the number {size} is known only at run time")
    return convert_size(size)


def _from_sympy(expr: Any, env: Any) -> Index:
    if expr.is_Integer:
        return as_index(int(expr))
    if expr.is_Symbol:
        return as_index(Sym(expr.name, _least(expr, env)))
    if isinstance(expr, sympy.Add | sympy.Mul):
        out = as_index(0 if isinstance(expr, sympy.Add) else 1)
        for part in (_from_sympy(a, env) for a in expr.args):
            out = out + part if isinstance(expr, sympy.Add) else out * part
        return out
    if isinstance(expr, sympy.Pow) and expr.exp.is_Integer and int(expr.exp) > 0:
        out = base = _from_sympy(expr.base, env)
        for _ in range(int(expr.exp) - 1):
            out = out * base
        return out
    kind = type(expr).__name__
    if kind in ("FloorDiv", "CleanDiv"):
        return _from_sympy(expr.args[0], env) // _from_sympy(expr.args[1], env)
    if kind in ("Mod", "PythonMod"):
        return _from_sympy(expr.args[0], env) % _from_sympy(expr.args[1], env)
    if kind == "ModularIndexing":
        return (_from_sympy(expr.args[0], env) // _from_sympy(expr.args[1], env)) % _from_sympy(expr.args[2], env)
    raise CannotConvert(f"size {expr} is outside the index algebra")


def _least(symbol: Any, env: Any) -> int:
    """The least number a symbol stands for: sizes of 0 and 1 have graphs of their own, numbers may be negative."""
    known = env.var_to_range.get(symbol)
    if known is None:
        return 0
    return min(int(known.lower), 2) if known.lower >= -LOWEST else -LOWEST


def convert_stride(stride: Any) -> Index:
    """The same for a stride. Tracing spells max(1, n) where n may be 0; then there is no element to reach."""
    if isinstance(stride, int):
        return as_index(stride)
    expr = stride.node.expr
    factors = expr.args if isinstance(expr, sympy.Mul) else (expr,)
    out = as_index(1)
    for factor in factors:
        rest = [a for a in factor.args if a != 1] if isinstance(factor, sympy.Max | TorchMax) else [factor]
        if len(rest) != 1:
            raise CannotConvert(f"stride {expr} is outside the index algebra")
        out = out * _from_sympy(rest[0], stride.node.shape_env)
    return out


def buffer_of(name: str, fake: torch.Tensor) -> Buffer:
    """The declared form of a fake tensor."""
    dtype = FROM_TORCH.get(fake.dtype)
    if dtype is None:
        raise CannotConvert(f"dtype {fake.dtype} is not one of ours")
    if fake.layout is not torch.strided or fake.is_conj() or fake.is_neg():
        raise CannotConvert(f"layout {fake.layout} or a lazy conjugate")
    shape = tuple(convert_size(s) for s in fake.shape)
    strides = tuple(convert_stride(s) for s in fake.stride())
    return Buffer(name, dtype, shape, strides)


def operator_name(target: Any) -> str:
    """ "aten.add.Tensor" for an OpOverload, the plain name for anything else."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    return getattr(target, "__name__", str(target))


class _Converter:
    def __init__(
        self, module: GraphModule, name: str, backward: bool, strict: bool, refused: Mapping[str, str]
    ) -> None:
        self.module, self.name, self.backward, self.strict = module, name, backward, strict
        self.refused = refused
        self.nodes: list[Node] = []
        self.inputs: list[str] = []
        self.buffers: dict[str, Buffer] = {}
        self.outputs: list[str | Index | None] = []
        self.hints: dict[str, int] = {}
        self.parts: dict[str, str] = {}  # a getitem's name -> the buffer it picks
        self.sizes: dict[str, Index] = {}  # numbers made of sizes of inputs: no step makes them

    def run(self) -> Graph:
        for fx in self.module.graph.nodes:
            self.visit(fx)
        return Graph(
            *(self.name, tuple(self.nodes), tuple(self.inputs), tuple(self.outputs), self.buffers, self.hints),
            parts=self.parts,
            sizes=self.sizes,
        )

    def visit(self, fx: FxNode) -> None:
        if fx.op == "placeholder":
            self.inputs.append(fx.name)
            with suppress(CannotConvert):  # a complex or sparse input: what reads it is a library call
                self.declare(fx.name, fx.meta.get("val"))
            self.nodes.append(Node(fx.name, fx.op, NodeKind.INPUT, self.declared(fx), (), call=fx))
        elif fx.op == "get_attr":
            self.declare(fx.name, fx.meta.get("val"))
            self.nodes.append(replace(self.library(fx, None, {}), family="constant"))
        elif fx.op == "output":
            flat = fx.args[0] if isinstance(fx.args[0], Sequence) else [fx.args[0]]
            self.outputs = [self.output(a) for a in flat]
        elif fx.target is builtin.getitem and isinstance(fx.args[0], FxNode):
            source = fx.args[0]
            self.parts[fx.name] = self.parts.get(f"{source.name}.{fx.args[1]}", f"{source.name}.{fx.args[1]}")
        elif fx.op == "call_function":
            self.call(fx)
        else:
            raise CannotConvert(f"graph node {fx.op} {fx.target}")

    def output(self, value: Any) -> str | Index | None:
        if isinstance(value, FxNode):
            fake = value.meta.get("val")
            if value.name in self.sizes:
                return self.sizes[value.name]
            return self.parts.get(value.name, value.name) if isinstance(fake, torch.Tensor) else value.name
        return as_index(value) if isinstance(value, int) and not isinstance(value, bool) else None

    def declare(self, name: str, fake: Any) -> None:
        if isinstance(fake, torch.SymInt):
            self.hint(fake)
        if not isinstance(fake, torch.Tensor):
            return
        buffer = buffer_of(name, fake)
        for size in (*fake.shape, *fake.stride()):
            if isinstance(size, torch.SymInt):
                self.hint(size)
        self.buffers[name] = buffer

    def hint(self, size: torch.SymInt) -> None:
        env = size.node.shape_env
        known = env.backed_var_to_val if hasattr(env, "backed_var_to_val") else env.var_to_val
        for symbol in size.node.expr.free_symbols:
            if symbol in known:
                self.hints[symbol.name] = int(known[symbol])

    def declared(self, fx: FxNode) -> tuple[Buffer, ...]:
        fake = fx.meta.get("val")
        if isinstance(fake, torch.Tensor):
            return (self.buffers[fx.name],) if fx.name in self.buffers else ()
        if isinstance(fake, list | tuple):
            names = (f"{fx.name}.{k}" for k in range(len(fake)))
            return tuple(self.buffers[n] for n in names if n in self.buffers)
        return ()

    def call(self, fx: FxNode) -> None:
        if isinstance(fx.meta.get("val"), NUMBERS):
            self.number_call(fx)
            return
        row = find(operator_name(fx.target))
        reason = self.declare_results(fx)
        try:
            if reason is not None and (row is None or row.kind is not Kind.LIBRARY):
                raise CannotConvert(reason)
            node = self.node(fx, row)
        except (CannotConvert, CheckFailed) as refused:
            node = self.library(fx, str(refused), None)
        if self.strict and node.reason is not None:
            raise NoRow(node.operator, node.reason)
        self.nodes.append(node)

    def number_call(self, fx: FxNode) -> None:
        """A call that gives a number: spelt where it is used if sizes of inputs tell it, otherwise a step."""
        value = fx.meta["val"]
        if isinstance(value, int | torch.SymInt) and not isinstance(value, bool):
            with suppress(CannotConvert):
                self.sizes[fx.name] = known_size(value) if isinstance(value, torch.SymInt) else as_index(value)
                return
        self.nodes.append(replace(self.library(fx, None, {}), family="size"))

    def declare_results(self, fx: FxNode) -> str | None:
        """Declares every tensor that a call gives; why one of them cannot be ours, or None."""
        fake = fx.meta.get("val")
        parts = {f"{fx.name}.{k}": part for k, part in enumerate(fake)} if isinstance(fake, list | tuple) else {}
        reason = None
        for name, part in {fx.name: fake, **parts}.items():
            try:
                self.declare(name, part)
            except CannotConvert as refused:
                reason = reason or str(refused)
        return reason

    def library(self, fx: FxNode, reason: str | None, flops: Mapping[str, float] | None) -> Node:
        return Node(
            *(fx.name, operator_name(fx.target), NodeKind.LIBRARY, self.declared(fx), self.inputs_of(fx)),
            call=fx,
            reason=reason,
            flops=flops,
            family="library",
            storage=self.overwritten(fx),
            draws=torch.Tag.nondeterministic_seeded in getattr(fx.target, "tags", ()),
            **self.origin(fx),
        )

    def overwritten(self, fx: FxNode) -> str | None:
        """The tensor that a call writes to in place, its first argument."""
        schema = getattr(fx.target, "_schema", None)
        if schema is None or not schema.is_mutable or not schema.arguments[0].is_write:
            return None
        first = fx.args[0]
        return self.parts.get(first.name, first.name) if isinstance(first, FxNode) else None

    def origin(self, fx: FxNode) -> dict[str, Any]:
        backward = self.backward or "bwd" in str(fx.meta.get("partitioner_tag", ""))
        return {"line": user_line(fx), "backward": backward, "added": bool(fx.meta.get(ADDED))}

    def inputs_of(self, fx: FxNode) -> tuple[str, ...]:
        """Buffers it reads, and for what is no buffer of ours the node that makes it."""
        names: dict[str, None] = {}
        for a in fx.all_input_nodes:
            if a.name in self.sizes:
                continue
            name = self.parts.get(a.name, a.name)
            while name not in self.buffers and a.target is builtin.getitem and isinstance(a.args[0], FxNode):
                a = a.args[0]
                name = a.name
            names.setdefault(name)
        return tuple(names)

    def node(self, fx: FxNode, row: Row | None) -> Node:
        if fx.name in self.refused and (row is None or row.kind is not Kind.LIBRARY):
            raise CannotConvert(self.refused[fx.name])
        devices = {t.device for t in _tensors(fx)}
        if len(devices) > 1:
            raise CannotConvert(f"its tensors are on {' and '.join(sorted(map(str, devices)))}")
        if row is None:
            return self.library(fx, "no row in the table", None)
        out = self.declared(fx)
        if row.kind is Kind.LIBRARY:
            return replace(self.library(fx, None, self.flops(fx, row, out)), random=row.random)
        args, kwargs = self.arguments(fx)
        if not out:
            raise CannotConvert("its result is not a tensor")
        results = row.apply(self.context(fx, out), args, kwargs)
        slots = self.slots(fx)
        if any(b is not None and (k >= len(results) or results[k] is None) for k, b in enumerate(slots)):
            raise CannotConvert("its row does not make every output")
        definitions = tuple(
            define(b, r) for b, r in zip(slots, results, strict=False) if r is not None and b is not None
        )
        kind = NodeKind.VIEW if row.kind is Kind.VIEW else NodeKind.COMPUTE
        return Node(
            *(fx.name, operator_name(fx.target), kind, out, self.inputs_of(fx), definitions),
            call=fx,
            storage=self.overwritten(fx),
            family=row.kind.value,
            **self.origin(fx),
        )

    def flops(self, fx: FxNode, row: Row, out: tuple[Buffer, ...]) -> Mapping[str, float] | None:
        """What a library row counts; None where an argument or size is outside what rows can see (complex, sparse)."""
        if not out and row.wants_context:
            return None
        try:
            args, kwargs = self.arguments(fx)
            extra = {"context": self.context(fx, out)} if row.wants_context else {}
            found: Mapping[str, float] | None = row.body(*args, **kwargs, **extra)
            return found
        except CannotConvert:
            return None

    def slots(self, fx: FxNode) -> list[Buffer | None]:
        fake = fx.meta["val"]
        if isinstance(fake, torch.Tensor):
            return [self.buffers[fx.name]]
        return [self.buffers.get(f"{fx.name}.{k}") for k in range(len(fake))]

    def context(self, fx: FxNode, out: tuple[Buffer, ...]) -> Context:
        fakes = [_fake(a) for a in fx.args]
        tensors = [f for f in fakes if isinstance(f, torch.Tensor)]
        numbers = [f for f in fakes if isinstance(f, bool | int | float)]
        declared = out[0].dtype if out else BOOL
        dtype = FROM_TORCH.get(_promote(tensors, numbers), declared) if tensors else declared
        dense = bool(tensors) and tensors[0].is_contiguous() and tensors[0].storage_offset() == 0
        return Context(out, dtype, dense, self.hints)

    def arguments(self, fx: FxNode) -> tuple[list[Any], dict[str, Any]]:
        """Arguments in the order of the schema, defaults filled in, placement dropped."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for k, p in enumerate(_parameters(fx.target)):
            if p.name in PLACEMENT:
                continue
            value = self.argument(fx.args[k] if k < len(fx.args) else fx.kwargs.get(p.name, p.default))
            if isinstance(value, Array) and p.takes_number:
                value = self.number(fx, value)
            if p.keyword:
                kwargs[p.name] = value
            else:
                args.append(value)
        return args, kwargs

    def number(self, fx: FxNode, array: Array) -> Value:
        """A number known only at run time: the element of a tensor of no dimensions, in the type of the result."""
        if array.ndim or fx.name not in self.buffers:
            raise CannotConvert("an argument that must be a number is a tensor")
        return cast(array.value, self.buffers[fx.name].dtype)

    def argument(self, value: Any) -> Any:
        if isinstance(value, FxNode):
            fake = value.meta.get("val")
            if isinstance(fake, torch.Tensor):
                name = self.parts.get(value.name, value.name)
                if name not in self.buffers:
                    raise CannotConvert(f"{name} is not a tensor of ours")
                return loaded(self.buffers[name])
            if isinstance(fake, torch.SymInt):
                return known_size(fake)
            if isinstance(fake, int | float | bool):
                return fake
            raise CannotConvert(f"argument {value.name} is known only at run time")
        if isinstance(value, list | tuple):
            return tuple(self.argument(v) for v in value)
        if isinstance(value, torch.dtype):
            if value not in FROM_TORCH:
                raise CannotConvert(f"dtype {value} is not one of ours")
            return FROM_TORCH[value]
        if isinstance(value, torch.SymInt):
            return known_size(value)
        if isinstance(value, complex):
            raise CannotConvert("a complex number")
        return value


def _tensors(fx: FxNode) -> list[torch.Tensor]:
    """The fake tensors that a node takes and gives."""
    given = [a.meta.get("val") for a in fx.all_input_nodes]
    made = fx.meta.get("val")
    flat = [*given, *(made if isinstance(made, list | tuple) else [made])]
    return [t for t in flat if isinstance(t, torch.Tensor)]


def _fake(value: Any) -> Any:
    return value.meta.get("val") if isinstance(value, FxNode) else value


def _promote(tensors: Sequence[torch.Tensor], numbers: Sequence[Any]) -> torch.dtype:
    """The type PyTorch compares and computes in, dimensioned tensors before 0-dim ones before numbers."""
    if not numbers and all(t.dtype is tensors[0].dtype for t in tensors):
        return tensors[0].dtype
    metas: list[Any] = [torch.empty([1] * min(t.dim(), 1), dtype=t.dtype, device="meta") for t in tensors]
    result = metas[0]
    for other in [*metas[1:], *numbers]:
        dtype = torch.result_type(result, other)
        dim = max(result.dim(), other.dim() if isinstance(other, torch.Tensor) else 0)
        result = torch.empty([1] * dim, dtype=dtype, device="meta")
    out: torch.dtype = result.dtype
    return out


class _Parameter(NamedTuple):
    """What a row needs of one argument of a schema."""

    name: str
    default: Any
    keyword: bool
    takes_number: bool


@cache
def _parameters(operator: Any) -> tuple[_Parameter, ...]:
    """The arguments of an operator; reading a schema costs more than converting a call."""
    return tuple(
        _Parameter(a.name, a.default_value, a.kwarg_only, _takes_number(a.type)) for a in operator._schema.arguments
    )


def _takes_number(kind: Any) -> bool:
    """Whether a schema asks for a number: Scalar or float, or an optional one."""
    inner = kind.getElementType() if kind.kind() == "OptionalType" else kind
    return inner.kind() in ("NumberType", "FloatType")


def define(buffer: Buffer, result: Array | Scatter) -> Definition:
    """A row's result as the definition of a buffer, in the buffer's own type and shape."""
    if isinstance(result, Scatter):
        initial = define(buffer, result.initial)
        value = Array(result.axes, result.value).cast(buffer.dtype).value
        mode = Mode.ADD if result.add else Mode.PLAIN
        return Definition(buffer, result.axes, value, result.index, mode, initial)
    if result.shape != buffer.shape:
        result = result.expand(buffer.shape)
    return Definition(buffer, result.axes, result.cast(buffer.dtype).value)


def convert(
    module: GraphModule,
    name: str = "graph",
    backward: bool = False,
    strict: bool = False,
    refused: Mapping[str, str] = MappingProxyType({}),
) -> Graph:
    """The operator graph of an FX graph of ATen operators. `refused` names nodes to leave to torch, with the reason."""
    return _Converter(module, name, backward, strict, refused).run()
