"""A compiled graph on a device -> the records of its kernels, its eager operators and its limit.

The same function serves the device at hand and one that is not here: `price(graph, steps, device)` counts, sets limits
and predicts. Measurements are joined in `top/account.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ridgeline.base.records import KernelAccount, Limit, Work
from ridgeline.cost.count import bytes_read, kernel_work, node_work
from ridgeline.cost.limit import kernel_limit, predict
from ridgeline.cost.memory import Touch, near_bytes, peak_bytes
from ridgeline.fuse.bound import node_touch, step_limit, stored_bytes
from ridgeline.fuse.regions import bases
from ridgeline.hw.device import Device
from ridgeline.ir.graph import Graph, Node, NodeKind
from ridgeline.ir.kernel import Buffer
from ridgeline.ir.steps import CallStep, KernelStep, Step, Steps

VIEWLESS = ("library",)


@dataclass(frozen=True)
class Priced:
    """One graph on one device. `places` gives, for each kernel record, its index among the steps."""

    kernels: tuple[KernelAccount, ...]
    places: tuple[int, ...]
    eager: tuple[KernelAccount, ...]
    limit: Limit
    limit_work: Work
    peak_eager: int
    peak_graph: int


def price(steps: Steps, device: Device, phase: str, calls: float, tensors: int = 1) -> Priced:
    """Every record of a graph, each of one call, called `calls` times a step.

    A graph that stands for many `tensors` is one launch a tensor and operator in eager mode on a CPU.
    """
    graph = steps.graph
    counted = [(k, s) for k, s in enumerate(steps.steps) if _costs(s)]
    base = bases(graph)
    kernel_touches = [_step_touch(s, steps, base) for _, s in counted]
    near = near_bytes(kernel_touches, device)
    kernels = tuple(
        _kernel(s, steps, device, phase, calls, cached) for (_, s), cached in zip(counted, near, strict=True)
    )
    nodes = [n for n in graph.nodes if _runs_in_eager(n)]
    eager_touches = [node_touch(n, graph.buffers, graph.hints, base) for n in nodes]
    eager_near = near_bytes(eager_touches, device)
    apiece = tensors if device.kind == "cpu" else 1
    eager = tuple(
        _eager(n, graph, device, phase, calls, cached, apiece) for n, cached in zip(nodes, eager_near, strict=True)
    )
    limit, limit_work = step_limit(graph, device)
    sizes = {n: stored_bytes(b, graph.hints) for n, b in steps.buffers.items()}
    kept = frozenset((*graph.inputs, *graph.kept))
    return Priced(
        *(kernels, tuple(k for k, _ in counted), eager, limit, limit_work),
        peak_bytes(eager_touches, sizes, kept),
        peak_bytes(kernel_touches, sizes, kept),
    )


def _runs_in_eager(node: Node) -> bool:
    """Whether eager mode runs an operator; a mutated input's `copy_` stands for its producer working in place."""
    if node.added:
        return False
    if node.operator == "aten.copy_.default" and node.storage is not None:
        return False
    return node.kind in (NodeKind.COMPUTE, NodeKind.LIBRARY) and node.family != "size"


def _costs(step: Step) -> bool:
    return isinstance(step, KernelStep) or (step.node.kind is NodeKind.LIBRARY and step.node.family in VIEWLESS)


def _step_touch(step: Step, steps: Steps, base: Mapping[str, Sequence[str]]) -> Touch:
    if isinstance(step, CallStep):
        return node_touch(step.node, steps.buffers, steps.graph.hints, base)
    names = dict(zip((b.name for b in step.kernel.buffers), step.arguments, strict=True))
    local = {b.name: b for b in step.kernel.buffers}
    hints = steps.graph.hints
    reads = {names[n]: count for n, count in bytes_read(step.kernel.values, local, hints).items()}
    writes = {names[n]: stored_bytes(local[n], hints) for n in step.kernel.written}
    return Touch(reads, writes)


def _kernel(
    step: Step, steps: Steps, device: Device, phase: str, calls: float, near: Mapping[str, int]
) -> KernelAccount:
    hints = steps.graph.hints
    if isinstance(step, CallStep):
        work = node_work(step.node, steps.buffers, hints)
        return _record(step.node.name, "library", (step.node,), work, device, phase, calls, near, steps.buffers)
    work = kernel_work(step.kernel, hints)
    return _record(step.kernel.name, "kernel", step.nodes, work, device, phase, calls, near, steps.buffers)


def _eager(
    node: Node, graph: Graph, device: Device, phase: str, calls: float, near: Mapping[str, int], apiece: int
) -> KernelAccount:
    work = node_work(node, graph.buffers, graph.hints)
    work = replace(work, launches=work.launches * apiece)
    return _record(node.name, "eager", (node,), work, device, phase, calls, near, graph.buffers)


def _record(
    name: str,
    kind: str,
    nodes: tuple[Node, ...],
    work: Work,
    device: Device,
    phase: str,
    calls: float,
    near: Mapping[str, int],
    buffers: Mapping[str, Buffer],
) -> KernelAccount:
    limit = kernel_limit(work, device, near)
    made = f"generated {family(nodes, work)}" if kind == "kernel" else family(nodes, work)
    prediction = predict(work, limit, device, made, eager=kind == "eager")
    operators = tuple(n.operator for n in nodes)
    line = next((n.line for n in reversed(nodes) if n.line), None)
    reason = nodes[0].reason if kind == "library" else None
    return KernelAccount(
        *(name, kind, phase, operators, line, calls, work, limit, prediction),
        reason=reason,
        shapes=_shapes(nodes, buffers),
    )


def family(nodes: tuple[Node, ...], work: Work) -> str:
    """What kind of kernel this is, as `hardware measure` names efficiencies."""
    if work.matmul_flops:
        return "matmul"
    if any("softmax" in n.operator for n in nodes):
        return "softmax"
    if any("norm" in n.operator for n in nodes):
        return "norm"
    return "reduction" if any(n.family == "fold" for n in nodes) else "pointwise"


def _shapes(nodes: tuple[Node, ...], buffers: Mapping[str, Buffer]) -> str | None:
    """The tensors of a library call or operator: "fp32 (4096, 192) (192, 576)"."""
    if len(nodes) != 1:
        out = nodes[-1].outputs
        return f"{out[0].dtype.format} {out[0].shape}" if out else None
    shown = [buffers[n] for n in nodes[0].inputs if n in buffers][:3]
    return f"{shown[0].dtype.format} {' '.join(str(b.shape) for b in shown)}" if shown else None
