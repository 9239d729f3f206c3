"""The operator graph: what capture hands to cost, fuse and runtime. One node an ATen operator, in program order.

A node that has a row holds a definition for each output: its value over its own axes, reading other buffers. A node
without one, or of kind LIBRARY, is called by torch. Nothing here knows torch: `call` is kept for runtime untouched.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

from ridgeline.ir.index import Axis, Index
from ridgeline.ir.kernel import Buffer, Mode
from ridgeline.ir.value import Value, loads


class NodeKind(Enum):
    """COMPUTE has definitions, VIEW has one and moves nothing in eager, LIBRARY is called, INPUT is given."""

    INPUT = "input"
    COMPUTE = "compute"
    VIEW = "view"
    LIBRARY = "library"


@dataclass(frozen=True, slots=True)
class Definition:
    """buffer[axes] = value. For a scatter: `index` over `axes`, on top of `initial` (a definition of the start)."""

    buffer: Buffer
    axes: tuple[Axis, ...]
    value: Value
    index: tuple[Index, ...] = ()
    mode: Mode = Mode.PLAIN
    initial: "Definition | None" = None


@dataclass(frozen=True)
class Node:
    """One operator. `storage` names the input whose memory the output must be written to (copy_), or None."""

    name: str
    operator: str
    kind: NodeKind
    outputs: tuple[Buffer, ...]
    inputs: tuple[str, ...]  # buffers read, or nodes that make what is no buffer, in order of first use
    definitions: tuple[Definition, ...] = ()
    call: Any = None
    line: str | None = None
    module: str | None = None
    backward: bool = False
    storage: str | None = None
    reason: str | None = None  # why it is a library call
    flops: Mapping[str, float] | None = None  # of a library call; None where unknown
    family: str = ""  # kind of row, or "library"
    random: bool = False  # a library call that draws a number for each element of its first output
    added: bool = False  # by the partitioner: eager mode runs no such operator here
    draws: bool = False  # it takes random numbers from a generator: such calls keep their order

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Buffers its definitions load."""
        found: dict[str, None] = {}
        for d in self.definitions:
            roots = [d.value, *(v for i in d.index for v in i.reads)]
            if d.initial is not None:
                roots.append(d.initial.value)
            found |= dict.fromkeys(v.attr.buffer for v in loads(roots))
        return tuple(found)


@dataclass(frozen=True)
class Graph:
    """Nodes in program order. `outputs` are buffer names, size expressions, or None."""

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str | Index | None, ...]
    buffers: Mapping[str, Buffer]
    hints: Mapping[str, int] = field(default_factory=dict)  # an example number for each size symbol
    parts: Mapping[str, str] = field(default_factory=dict)  # name of one output of several -> its buffer
    sizes: Mapping[str, Index] = field(default_factory=dict)  # numbers of the program that sizes of inputs tell

    @cached_property
    def producer(self) -> Mapping[str, Node]:
        return {b.name: n for n in self.nodes for b in n.outputs}

    @cached_property
    def users(self) -> Mapping[str, tuple[Node, ...]]:
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.inputs:
                found.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}

    @cached_property
    def kept(self) -> frozenset[str]:
        """Buffers that outlive the graph."""
        return frozenset(o for o in self.outputs if isinstance(o, str))
