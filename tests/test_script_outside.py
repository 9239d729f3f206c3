"""Bytes of single operators, worked by hand, and who they belong to."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ridgeline.capture.outside import Recorder, moved_bytes
from ridgeline.capture.root import Root, enter_root, leave_root

A, B = torch.ones(8, 4), torch.ones(8, 4)  # 128 bytes each
ROW = torch.ones(4)  # 16 bytes
TABLE, PLACES = torch.ones(100, 4), torch.tensor([1, 1, 2])  # 1600 and 24 bytes
HALF = torch.ones(8, 4, dtype=torch.bfloat16)  # 64 bytes
SPARSE = torch.eye(3).to_sparse()


class Asked(TorchDispatchMode):
    """Keeps the bytes of every operator."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: list[int | None] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.bytes.append(moved_bytes(func, args, kwargs or {}, result))
        return result


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: A + B, 384),  # 2 reads + 1 write
        (lambda: A + A, 256),  # the same tensor twice is one read
        (lambda: A + ROW, 128 + 16 + 128),  # the row is read once
        (lambda: A + ROW.expand(8, 4), 128 + 16 + 128),  # so is a row made to look like a matrix
        (lambda: A.clone().add_(B), 256 + 384),  # clone: 1 + 1; in place: reads both, writes one
        (lambda: A.clone().copy_(B), 256 + 256),  # what is overwritten is not read
        (lambda: torch.empty(8, 4).zero_(), 0 + 128),
        (lambda: A.view(4, 8).t()[1:], 0),  # views move nothing
        (lambda: A.t().contiguous(), 256),
        (lambda: A.sum(), 128 + 4),
        (lambda: torch.full((8, 4), 2.0), 128),
        (lambda: A.to(torch.bfloat16), 128 + 64),
        (lambda: HALF * 2, 128),  # 64 + 64
        (lambda: nn.functional.embedding(PLACES, TABLE), 48 + 24 + 48),  # the rows looked up, not the table
        (lambda: TABLE[PLACES], 48 + 24 + 48),
        (lambda: A.sum().item(), 128 + 4 + 4),
        (lambda: torch.split(A, 2), 0),
        (lambda: torch.zeros(0, 4) + 1, 0),
    ],
)
def test_bytes(run: Callable[[], Any], expected: int) -> None:
    with Asked() as asked:
        run()
    assert None not in asked.bytes
    assert sum(count or 0 for count in asked.bytes) == expected


def test_a_layout_that_cannot_be_counted_is_unknown() -> None:
    with Asked() as asked:
        torch.mv(SPARSE, torch.ones(3))
    assert asked.bytes[-1] is None


def test_operators_belong_to_the_root_that_made_their_nodes() -> None:
    weight = torch.ones(4, 4, requires_grad=True)
    inside, root = torch.ones(2, 4), Root("Net.forward", "module", "net.py:1")
    recorder = Recorder()
    with recorder:
        token = enter_root(root)
        first = torch._C._autograd._get_sequence_nr()
        hidden = inside @ weight
        recorder.called(root, first, torch._C._autograd._get_sequence_nr())
        leave_root(token)
        (hidden * 2).sum().backward()
    inside_roots = [(op.phase, op.name) for op in recorder.operators]
    assert ("forward", "aten.mm.default") in inside_roots
    assert [name for phase, name in inside_roots if phase == "backward"].count("aten.mm.default") == 1
    outside = {row.operator: row for row in recorder.outside}
    assert outside["aten.mul.Tensor"].calls == 2  # hidden * 2 and its gradient
    # 32 + 32 forward; backward reads one number made to look like a matrix and writes 32
    assert outside["aten.mul.Tensor"].bytes == 64 + 36
    assert outside["aten.sum.default"].line is not None
    assert outside["aten.sum.default"].line.startswith(__file__)
    assert "aten.mm.default" not in outside
