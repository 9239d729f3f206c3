"""Cuts the joint graph of forward and backward: what is saved, and what the backward makes again.

A value the backward needs costs its bytes once to read, and once more to write if the forward would not store it
anyway. It is made again where reading what it is made from costs less: views always, elementwise chains when their
inputs are saved or stored already and nothing but generated kernels reads them. Each such choice is a move.
Takes what AOTAutograd gives a partitioner; returns the forward and backward modules.
"""

import heapq
from collections.abc import Callable, Sequence
from operator import getitem
from typing import Any

import torch
from torch._functorch.partitioners import _extract_fwd_bwd_modules, _extract_fwd_bwd_outputs
from torch.fx import GraphModule
from torch.fx import Node as FxNode

from ridgeline.base.records import MoveAccount
from ridgeline.capture.convert import operator_name
from ridgeline.capture.lines import user_line
from ridgeline.capture.statistics import ADDED, keep_row_statistics
from ridgeline.ops.table import Kind, find

# Rows that a generated kernel can repeat from their inputs (a softmax too: its row is there to be read again).
REPEATABLE = frozenset((Kind.SCALAR, Kind.INDEX, Kind.VIEW, Kind.COMPOSITE))
# How many values in a row are considered for being made again together.
CHAIN = 8
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def tensor_bytes(fx: FxNode) -> int:
    """Bytes of a node's fake tensor, with the hint of each symbolic size; 0 for what is no tensor."""
    fake = fx.meta.get("val")
    if not isinstance(fake, torch.Tensor):
        return 0
    count = 1
    for size in fake.shape:
        count *= size.node.hint if isinstance(size, torch.SymInt) and size.node.has_hint() else int(size)
    return count * fake.dtype.itemsize


def _kind(fx: FxNode) -> Kind | None:
    if fx.op != "call_function" or not isinstance(fx.target, torch._ops.OpOverload):
        return None
    row = find(operator_name(fx.target))
    return None if row is None else row.kind


def _is_library(fx: FxNode) -> bool:
    return _kind(fx) in (None, Kind.LIBRARY) and fx.target is not getitem


def _repeatable(fx: FxNode) -> bool:
    return _kind(fx) in REPEATABLE and isinstance(fx.meta.get("val"), torch.Tensor)


def _late(joint: GraphModule) -> set[FxNode]:
    """Nodes that depend on a tangent."""
    late: set[FxNode] = set()
    for n in joint.graph.nodes:
        tangent = n.op == "placeholder" and "tangents" in str(n.target)
        tagged = n.meta.get("partitioner_tag") == "must_be_in_backward"
        if tangent or tagged or any(a in late for a in n.all_input_nodes):
            late.add(n)
    return late


def _serves(n: FxNode, late: set[FxNode]) -> bool:
    """Whether a node is of the backward, or a view that only the backward reads."""
    return n.op != "output" and (
        n in late or (_kind(n) is Kind.VIEW and bool(n.users) and all(_serves(u, late) for u in n.users))
    )


class _Partition:
    def __init__(self, joint: GraphModule, forward_outputs: int) -> None:
        self.joint = joint
        self.late = _late(joint)
        keep_row_statistics(joint, self.late, lambda n: _serves(n, self.late))
        forward, backward = _extract_fwd_bwd_outputs(joint, num_fwd_outputs=forward_outputs)[:2]
        self.forward_outputs = [o for o in forward if isinstance(o, FxNode)]
        self.backward_outputs = [o for o in backward if isinstance(o, FxNode)]
        self.order = {n: k for k, n in enumerate(joint.graph.nodes)}
        self.forward = self._ancestors(self.forward_outputs)
        self.stored = self._stored()
        self.saved: set[FxNode] = set()
        # Needed, by itself or through views, and not repeatable: saved whatever is decided.
        self.sure: set[FxNode] = set()
        self.moves: list[MoveAccount] = []

    def _ancestors(self, roots: Sequence[FxNode]) -> set[FxNode]:
        seen: set[FxNode] = set()
        stack = list(roots)
        while stack:
            n = stack.pop()
            if n not in seen:
                seen.add(n)
                stack += n.all_input_nodes
        return seen

    def _stored(self) -> set[FxNode]:
        """Forward values in memory whatever is saved: inputs, outputs, what library calls touch or come between."""
        stored = set(self.forward_outputs)
        depth: dict[FxNode, int] = {}  # library calls before a value: what crosses one lies in memory
        for n in sorted(self.forward, key=lambda n: self.order[n]):
            depth[n] = max((depth[a] + _is_library(a) for a in n.all_input_nodes), default=0)
            stored.update(b for b in map(self._base, n.all_input_nodes) if depth[b] < depth[n])
            if n.op == "placeholder" or _is_library(n):
                stored.add(n)
                stored.update(u for u in n.users if u.target is getitem)
            if n.op != "placeholder" and _is_library(n):
                for a in n.all_input_nodes:
                    stored.add(self._base(a))
        return stored

    def _base(self, n: FxNode) -> FxNode:
        while _kind(n) is Kind.VIEW and n.all_input_nodes:
            n = n.all_input_nodes[0]
        return n

    def boundary(self) -> list[FxNode]:
        """What the backward needs of the rest."""
        needed: dict[FxNode, None] = {}
        for n in self._ancestors([o for o in self.backward_outputs if o in self.late]):
            if n in self.late:
                needed |= dict.fromkeys(a for a in n.all_input_nodes if a not in self.late)
        return [*needed, *(o for o in self.backward_outputs if o not in self.late)]

    def decide(self) -> None:
        """Fills `saved`, latest values first, so that a value made again passes the question on to its inputs."""
        boundary = self.boundary()
        self.sure = {b for b in map(self._base, boundary) if not _repeatable(b)}
        queue = [(-self.order[n], n.name, n) for n in boundary]
        heapq.heapify(queue)
        readers: dict[FxNode, set[FxNode]] = {n: {u for u in n.users if u in self.late} for _, _, n in queue}
        seen = set(readers)
        while queue:
            _, _, n = heapq.heappop(queue)
            if not self.remake(n, readers[n]):
                self.saved.add(n)
                continue
            for a in n.all_input_nodes:
                mine = readers[n] if _kind(n) is Kind.VIEW else {n}
                readers.setdefault(a, set()).update(mine)
                if a not in seen:
                    seen.add(a)
                    heapq.heappush(queue, (-self.order[a], a.name, a))

    def inputs_cost(self, n: FxNode, depth: int) -> int:
        """Bytes moved to have what a value is made from, itself made again where that is cheaper."""
        return sum(self.cost(a, depth) for a in dict.fromkeys(map(self._base, n.all_input_nodes)))

    def cost(self, n: FxNode, depth: int) -> int:
        if n in self.saved or n in self.sure:
            return 0  # the backward reads it anyway
        keep = tensor_bytes(n) * (1 if n in self.stored else 2)
        return min(keep, self.inputs_cost(n, depth - 1)) if depth and keep and _repeatable(n) else keep

    def remake(self, n: FxNode, readers: set[FxNode]) -> bool:
        """Whether the backward makes a value again; records the move."""
        if n.op == "placeholder" or isinstance(n.meta.get("val"), SYMBOLIC) or not _repeatable(n):
            return False
        if _kind(n) is Kind.VIEW:
            return True
        keep = tensor_bytes(n) * (1 if n in self.stored else 2)
        again = self.inputs_cost(n, CHAIN)
        if any(_is_library(r) for r in readers):
            again += 2 * tensor_bytes(n)  # a library call needs it in memory
        if again > keep or (again == keep and n in self.forward):
            return False
        what = operator_name(n.target)
        sources = ", ".join(dict.fromkeys(self._base(a).name for a in n.all_input_nodes))
        reason = f"the backward makes {n.name} again from {sources or 'nothing'}"
        self.moves.append(MoveAccount("recompute", True, what, user_line(n), float(keep - again), 0.0, reason))
        return True


def partition(
    joint: GraphModule, num_fwd_outputs: int, record: Callable[[Sequence[MoveAccount]], None]
) -> tuple[GraphModule, GraphModule]:
    """The forward and the backward module of a joint graph."""
    work = _Partition(joint, num_fwd_outputs)
    work.decide()
    record(work.moves)
    again = {n.name for n in work.forward}
    saved = sorted(work.saved, key=lambda n: work.order[n])
    values = [n for n in saved if not isinstance(n.meta.get("val"), SYMBOLIC)]
    sizes = [n for n in saved if isinstance(n.meta.get("val"), SYMBOLIC)]
    out: Any = _extract_fwd_bwd_modules(joint, values, sizes, num_fwd_outputs=num_fwd_outputs)
    forward, backward = out
    for n in backward.graph.nodes:
        if n.op == "call_function" and n.name in again:
            n.meta[ADDED] = True  # eager mode makes it once, in the forward
    return forward, backward
