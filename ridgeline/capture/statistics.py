"""Row statistics that the forward leaves for the backward, instead of a tensor of the logits' size or another pass.

`keep_row_statistics` changes a joint graph: where the backward needs a log-softmax, it gets x - top - total from the
two numbers of each row that `ridgeline::log_softmax_rows` gives. The partitioner then saves those and makes the rest
again. Nodes added here are no operators of the user's program: their `meta` says so under ADDED.
"""

from collections.abc import Callable, Container
from operator import getitem
from typing import Any

import torch
from torch.fx import Graph, GraphModule
from torch.fx import Node as FxNode

ADDED = "ridgeline_added"


def _wide(x: torch.Tensor) -> torch.dtype:
    return torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype


@torch.library.custom_op("ridgeline::log_softmax_rows", mutates_args=())
def log_softmax_rows(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest element of each row, and the logarithm of the sum of exponentials above it; `dim` stays as size 1."""
    x = x.to(_wide(x))
    top = x.amax(dim, keepdim=True)
    return top, (x - top).exp().sum(dim, keepdim=True).log()


@log_softmax_rows.register_fake
def _fake_rows(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape = list(x.shape)
    if shape:
        shape[dim] = 1
    return x.new_empty(shape, dtype=_wide(x)), x.new_empty(shape, dtype=_wide(x))


def keep_row_statistics(joint: GraphModule, late: Container[FxNode], serves: Callable[[FxNode], bool]) -> None:
    """Gives the backward's readers of each log-softmax one made from row statistics. `serves` tells those readers."""
    for node in list(joint.graph.nodes):
        if node.target is not torch.ops.aten._log_softmax.default or node in late:
            continue
        users = [u for u in node.users if serves(u)]
        if users:
            again = _made_of_rows(joint.graph, node)
            for user in users:
                user.replace_input_with(node, again)


def _made_of_rows(graph: Graph, node: FxNode) -> FxNode:
    """x - top - total in the type of the log-softmax, after it."""
    x: Any = node.args[0]
    fake_mode, wide, dtype = x.meta["val"].fake_mode, _wide(x.meta["val"]), node.meta["val"].dtype
    anchor = node

    def add(target: Any, *args: Any, **kwargs: Any) -> FxNode:
        nonlocal anchor
        with graph.inserting_after(anchor):
            anchor = made = graph.call_function(target, args, kwargs)
        made.meta = {k: v for k, v in node.meta.items() if k in ("stack_trace", "nn_module_stack", "original_aten")}
        with fake_mode:
            made.meta["val"] = target(*(a.meta["val"] if isinstance(a, FxNode) else a for a in args), **kwargs)
        made.meta[ADDED] = True
        return made

    aten = torch.ops.aten
    rows = add(torch.ops.ridgeline.log_softmax_rows.default, x, node.args[1])
    top, total = add(getitem, rows, 0), add(getitem, rows, 1)
    out = x if x.meta["val"].dtype == wide else add(aten._to_copy.default, x, dtype=wide)
    out = add(aten.sub.Tensor, add(aten.sub.Tensor, out, top), total)
    return out if dtype == wide else add(aten._to_copy.default, out, dtype=dtype)
