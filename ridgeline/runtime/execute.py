"""Steps -> one Python function that runs them: launches of kernels, calls of torch, and the memory between.

The function takes a list of arguments, empties it (so inputs can be freed), and returns the outputs in order. It is
generated as source, once with and once without a timer around each step; no decision is left to run time but the
numbers of size symbols.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from operator import getitem
from typing import Any

import torch
from torch.fx import Node as FxNode

from ridgeline.base.errors import CheckFailed
from ridgeline.ir.graph import Node, NodeKind
from ridgeline.ir.index import Div, Index, Mod, Sym
from ridgeline.ir.kernel import Buffer
from ridgeline.ir.steps import CallStep, KernelStep, Step, Steps
from ridgeline.runtime.blocks import LEAST_BYTES, fresh_tensor
from ridgeline.runtime.memory import SLABS, Slab, lives_of, place

# pointers, sizes -> None
Launch = Callable[[Sequence[int], Sequence[int]], None]
IDENTIFIER = str.maketrans({".": "__", "#": "___"})


def torch_dtype(buffer: Buffer) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, buffer.dtype.torch)
    return dtype


def spell_size(index: Index) -> str:
    """An index over size symbols as a Python expression."""
    if index.const is not None:
        return str(index.const)
    terms = []
    for coefficient, factors in index.terms:
        parts = [str(coefficient)] if coefficient != 1 or not factors else []
        for atom in factors:
            if isinstance(atom, Sym):
                parts.append(atom.name)
            elif isinstance(atom, Div):
                parts.append(f"(({spell_size(atom.num)}) // ({spell_size(atom.den)}))")
            elif isinstance(atom, Mod):
                parts.append(f"(({spell_size(atom.num)}) % ({spell_size(atom.den)}))")
            else:
                raise CheckFailed("execute", repr(index), "a size depends on a loop")
        terms.append("*".join(parts))
    return " + ".join(terms)


def spell_sizes(sizes: Sequence[Index]) -> str:
    inner = ", ".join(map(spell_size, sizes))
    return f"({inner},)" if sizes else "()"


def laid(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """What a call of torch gave, in the strides that tracing foretold: kernels are built for those."""
    if not tensor.numel() or all(
        n == 1 or a == b for n, a, b in zip(tensor.shape, tensor.stride(), strides, strict=True)
    ):
        return tensor
    return tensor.new_empty_strided(tensor.shape, tuple(strides)).copy_(tensor)


class _Writer:
    """Writes the source of one graph's function."""

    def __init__(self, steps: Steps, launches: Mapping[str, tuple[Launch, tuple[str, ...]]], device: torch.device):
        self.plan, self.graph, self.launches, self.device = steps, steps.graph, launches, device
        self.lines: list[str] = []
        self.names: dict[str, Any] = {
            "empty_strided": torch.empty_strided,
            "fresh": fresh_tensor,
            "laid": laid,
            "device": device,
            "clock": time.perf_counter,
        }
        self.tensors: set[str] = set()  # buffers that have a Python variable
        self.bound: set[str] = set()  # size symbols that have one
        self.root = self._roots()
        self.pinned = self._pinned()
        self.planned = self._planned()
        self.offsets, self.slab_bytes = place(self._lives())
        self.lay_order: list[str] = []

    # What lives where.

    def _roots(self) -> dict[str, str]:
        """The buffer whose memory each buffer uses: itself, or what it is written onto."""
        root: dict[str, str] = {}
        for step in self.plan.steps:
            storage = step.storage.items() if isinstance(step, KernelStep) else ()
            for name, onto in storage:
                root[name] = root.get(onto, onto)
        return root

    def _pinned(self) -> set[str]:
        """Buffers that outlive the call, or whose memory something that outlives it may share."""
        pinned: set[str] = set()
        shares: dict[str, tuple[str, ...]] = {}
        for step in self.plan.steps:
            if isinstance(step, CallStep) and _may_alias(step.node):
                shares |= dict.fromkeys(_made(step.node), step.node.inputs)
        stack = [n if n in self.plan.buffers else n.partition(".")[0] for n in self.graph.kept]
        while stack:
            name = stack.pop()
            root = self.root.get(name, name)
            if root not in pinned:
                pinned.add(root)
                stack += (*shares.get(name, ()), *shares.get(root, ()))
        return pinned

    def _planned(self) -> dict[str, Buffer]:
        """Buffers of kernels that live in the slab: static, made here, gone at the end."""
        out: dict[str, Buffer] = {}
        for step in self.plan.steps:
            if not isinstance(step, KernelStep):
                continue
            for name in step.written:
                buffer = self.plan.buffers[name]
                static = all(i.const is not None for i in (*buffer.shape, *buffer.strides))
                if name not in self.root and name not in self.pinned and static:
                    out[name] = buffer
        return out

    def _touched(self) -> dict[str, list[int]]:
        touched: dict[str, list[int]] = {}
        shares: dict[str, tuple[str, ...]] = {}
        for k, step in enumerate(self.plan.steps):
            names = step.arguments if isinstance(step, KernelStep) else (*step.node.inputs,)
            stack = [self.root.get(n, n) for n in names]
            while stack:
                name = stack.pop()
                touched.setdefault(name, []).append(k)
                stack += [self.root.get(n, n) for n in shares.get(name, ())]
            if isinstance(step, CallStep) and _may_alias(step.node):
                shares |= dict.fromkeys(_made(step.node), step.node.inputs)
        return touched

    def _lives(self) -> list[Any]:
        return lives_of(self._touched(), {n: storage_bytes(b) for n, b in self.planned.items()})

    # Source.

    def variable(self, name: str) -> str:
        return "v_" + name.translate(IDENTIFIER)

    def constant(self, value: Any) -> str:
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name

    def emit(self, line: str) -> None:
        self.lines.append("    " + line)

    def tensor(self, name: str) -> str:
        """An expression for a buffer as a tensor."""
        root = self.root.get(name, name)
        if root in self.planned and root not in self.tensors:
            if root not in self.lay_order:
                self.lay_order.append(root)
            return f"views[{self.lay_order.index(root)}]"
        return self.variable(root)

    def pointer(self, name: str) -> str:
        root = self.root.get(name, name)
        if root in self.planned and root not in self.tensors:
            return f"base + {self.offsets[root]}"
        return f"{self.variable(root)}.data_ptr()"

    def write(self, timed: bool) -> str:
        self.lines, self.tensors, self.lay_order, self.bound = [], set(), [], set()
        inputs = ", ".join(self.variable(n) for n in self.graph.inputs)
        if inputs:
            self.emit(f"({inputs},) = args")
        self.emit("args.clear()")
        self.symbols()
        self.tensors.update(self.graph.inputs)
        if self.planned:
            self.emit("slab = take()")
            self.emit("base = slab.pointer")
            self.emit("views = lay(slab)")
        last = self.last_uses()
        for k, step in enumerate(self.plan.steps):
            if timed:
                self.emit("start = clock()")
            if isinstance(step, KernelStep):
                self.launch(step)
            else:
                self.call(step.node)
            if timed:
                self.emit(f"sync(); times[{k}] += clock() - start")
            dead = [self.variable(n) for n in last.get(k, ()) if n in self.tensors]
            if dead:
                self.emit(f"del {', '.join(dead)}")
        if self.planned:
            self.emit("give(slab)")
        self.emit(f"return ({''.join(self.output(o) + ', ' for o in self.graph.outputs)})")
        head = "def run(args, times):" if timed else "def run(args):"
        return "\n".join([head, *self.lines]) + "\n"

    def symbols(self) -> None:
        """Binds each size symbol to an input that carries it."""
        for node in self.graph.nodes:
            if node.kind is NodeKind.INPUT:
                self.bind_number(node)
        for name in self.graph.inputs:
            self.bind_sizes(name)

    def bind_number(self, node: Node) -> None:
        """The symbol that a number is, where it is one."""
        fake = node.call.meta.get("val") if isinstance(node.call, FxNode) else None
        if isinstance(fake, torch.SymInt) and fake.node.expr.is_Symbol and fake.node.expr.name not in self.bound:
            self.bound.add(fake.node.expr.name)
            self.emit(f"{fake.node.expr.name} = int({self.variable(node.name)})")

    def bind_sizes(self, name: str) -> None:
        """Symbols that a size or a stride of a tensor is."""
        buffer = self.plan.buffers.get(name)
        for what in ("shape", "strides"):
            for k, size in enumerate(getattr(buffer, what, ())):
                atom = size.terms[0][1][0] if len(size.terms) == 1 and len(size.terms[0][1]) == 1 else None
                if isinstance(atom, Sym) and size.terms[0][0] == 1 and atom.name not in self.bound:
                    self.bound.add(atom.name)
                    get = f"shape[{k}]" if what == "shape" else f"stride({k})"
                    self.emit(f"{atom.name} = {self.variable(name)}.{get}")

    def launch(self, step: KernelStep) -> None:
        for name in step.written:
            if name in self.root or name in self.planned or name in self.tensors:
                continue
            buffer = self.plan.buffers[name]
            dtype = self.constant(torch_dtype(buffer))
            shape, strides = spell_sizes(buffer.shape), spell_sizes(buffer.strides)
            if self.device.type == "cpu" and (size := storage_bytes(buffer)) >= LEAST_BYTES:
                made = f"fresh({size}, {dtype}, {shape}, {strides})"
            else:
                made = f"empty_strided({shape}, {strides}, dtype={dtype}, device=device)"
            self.emit(f"{self.variable(name)} = {made}")
            self.tensors.add(name)
        launch, sizes = self.launches[step.kernel.name]
        pointers = ", ".join(self.pointer(n) for n in step.arguments)
        self.emit(f"{self.constant(launch)}(({pointers},), ({''.join(s + ', ' for s in sizes)}))")

    def call(self, node: Node) -> None:
        fx: FxNode = node.call
        if fx.op == "get_attr":
            module = fx.graph.owning_module
            self.emit(f"{self.variable(node.name)} = {self.constant(getattr(module, str(fx.target)))}")
            self.tensors.add(node.name)
            return
        target = self.constant(fx.target)
        args = [self.argument(a) for a in fx.args]
        args += [f"{k}={self.argument(v)}" for k, v in fx.kwargs.items()]
        name = self.variable(node.name)
        self.emit(f"{name} = {target}({', '.join(args)})")
        self.tensors.add(node.name)
        self.bind_number(node)
        picked = [self.graph.parts[u.name] for u in fx.users if u.target is getitem and u.args[0] is fx]
        used = list(dict.fromkeys([*(b.name for b in node.outputs if b.name != node.name), *picked]))
        for buffer in used:
            self.emit(f"{self.variable(buffer)} = {name}[{buffer.rpartition('.')[2]}]")
            self.tensors.add(buffer)
        for b in node.outputs:
            self.bind_sizes(b.name)
            if node.kind is NodeKind.LIBRARY and b.strides:
                v = self.variable(b.name)
                self.emit(f"if {v}.stride() != {spell_sizes(b.strides)}: {v} = laid({v}, {spell_sizes(b.strides)})")
        if used:
            self.emit(f"del {name}")
            self.tensors.discard(node.name)

    def argument(self, value: Any) -> str:
        if isinstance(value, FxNode):
            if value.name in self.graph.sizes:
                return f"({spell_size(self.graph.sizes[value.name])})"
            name = self.graph.parts.get(value.name, value.name)
            return self.tensor(name) if name in self.plan.buffers else self.variable(name)
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(self.argument, value))}]"
        if value is None or isinstance(value, bool | int | str):
            return repr(value)
        return self.constant(value)

    def output(self, value: str | Index | None) -> str:
        if value is None:
            return "None"
        if isinstance(value, Index):
            return spell_size(value)
        return self.tensor(value) if value in self.plan.buffers else self.variable(value)

    def last_uses(self) -> dict[int, list[str]]:
        """For each step, the variables that nothing after it needs."""
        last: dict[str, int] = {}
        for k, step in enumerate(self.plan.steps):
            if isinstance(step, KernelStep):
                names = list(step.arguments)
            else:
                nodes = [self.graph.parts.get(n.name, n.name) for n in step.node.call.all_input_nodes]
                names = [*nodes, step.node.name, *(b.name for b in step.node.outputs)]
            for name in names:
                last[self.root.get(name, name)] = k
        keep = self.pinned | {o for o in self.graph.outputs if isinstance(o, str)}
        out: dict[int, list[str]] = {}
        for name, k in last.items():
            if name not in keep:
                out.setdefault(k, []).append(name)
        return out


def storage_bytes(buffer: Buffer) -> int:
    """Bytes from the first to the last element of a static buffer; 0 for an empty or symbolic one."""
    extent = 1
    for size, stride in zip(buffer.shape, buffer.strides, strict=True):
        if not size.const or stride.const is None:
            return 0
        extent += (size.const - 1) * (stride.const or 0)
    return extent * buffer.dtype.bytes


def _made(node: Node) -> tuple[str, ...]:
    """Names under which others know what a call gives."""
    return (node.name, *(b.name for b in node.outputs))


def _may_alias(node: Node) -> bool:
    """Whether a call may return memory of its inputs."""
    if node.kind is NodeKind.VIEW:
        return True
    schema = getattr(getattr(node.call, "target", None), "_schema", None)
    return schema is None or any(r.alias_info is not None for r in schema.returns)


class Executable:
    """A compiled graph. Call it with a list of arguments; `timed` also adds seconds to a list, one entry a step."""

    _boxed_call = True

    def __init__(self, steps: Steps, launches: Mapping[str, tuple[Launch, tuple[str, ...]]], device: torch.device):
        self.steps = steps
        self.device = device
        self._writer = _Writer(steps, launches, device)
        self.slab_bytes = self._writer.slab_bytes
        self.source = self._writer.write(timed=False)
        self.laid = tuple(self._writer.lay_order)
        self._run = self._compile(self.source)

    def _compile(self, source: str) -> Callable[..., Any]:
        names = self._writer.names | {"take": self.take, "give": SLABS.give, "lay": self.lay, "sync": self.sync}
        exec(compile(source, f"<ridgeline {self.steps.graph.name}>", "exec"), names)
        run: Callable[..., Any] = names["run"]
        return run

    def __call__(self, args: list[Any]) -> tuple[Any, ...]:
        out: tuple[Any, ...] = self._run(args)
        return out

    def timed(self, args: list[Any], times: list[float]) -> tuple[Any, ...]:
        """The same, adding to `times`."""
        out: tuple[Any, ...] = self._run_timed(args, times)
        return out

    @cached_property
    def _run_timed(self) -> Callable[..., Any]:
        return self._compile(self._writer.write(timed=True))

    def take(self) -> Slab:
        return SLABS.take(self.slab_bytes, self.device)

    def lay(self, slab: Slab) -> tuple[torch.Tensor, ...]:
        views = slab.views.get(self)
        if views is None:
            views = slab.views[self] = tuple(self._lay(slab, name) for name in self.laid)
        return views

    def _lay(self, slab: Slab, name: str) -> torch.Tensor:
        buffer = self.steps.buffers[name]
        shape = [s.const or 0 for s in buffer.shape]
        strides = [s.const or 0 for s in buffer.strides]
        return slab.lay(self._writer.offsets[name], torch_dtype(buffer), shape, strides)

    def sync(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def executable(
    steps: Steps, launches: Mapping[str, tuple[Launch, tuple[str, ...]]], device: torch.device
) -> Executable:
    """The function of a plan. `launches` gives each kernel by name, with the size symbols it takes in order."""
    return Executable(steps, launches, device)


def describe(step: Step) -> str:
    """A step's name for tables."""
    return step.kernel.name if isinstance(step, KernelStep) else step.node.operator
