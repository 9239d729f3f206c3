"""What a plan runs, in order: kernels of ours and calls of torch. The form between fuse and runtime."""

from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.ir.graph import Graph, Node
from ridgeline.ir.kernel import Buffer, Kernel


@dataclass(frozen=True)
class KernelStep:
    """One launch: a canonical kernel, and the graph's name of each of its buffers in order.

    `storage` maps a stored buffer to the one whose memory it must be written to.
    """

    kernel: Kernel
    arguments: tuple[str, ...]
    nodes: tuple[Node, ...]
    storage: Mapping[str, str]

    @property
    def written(self) -> tuple[str, ...]:
        """The graph's names of what it stores."""
        names = dict(zip((b.name for b in self.kernel.buffers), self.arguments, strict=True))
        return tuple(names[b] for b in self.kernel.written)

    @property
    def read(self) -> tuple[str, ...]:
        """The graph's names of what it loads."""
        names = dict(zip((b.name for b in self.kernel.buffers), self.arguments, strict=True))
        return tuple(names[b] for b in self.kernel.read)


@dataclass(frozen=True)
class CallStep:
    """One node run by torch: a library call, a view that one needs, or arithmetic on sizes."""

    node: Node


Step = KernelStep | CallStep


@dataclass(frozen=True)
class Steps:
    """A whole plan: the graph, its steps in order, and every buffer by name (scatter starts included)."""

    graph: Graph
    steps: tuple[Step, ...]
    buffers: Mapping[str, Buffer]
