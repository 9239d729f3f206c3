"""Views: each is an index map that moves nothing, and its copying twin gives the same elements."""

from collections.abc import Callable

import pytest
import torch
from rows import check_call

from ridgeline.base.errors import CannotConvert
from ridgeline.ir.graph import NodeKind
from ridgeline.ir.kernel import Buffer
from ridgeline.ir.types import F32
from ridgeline.ops.array import full
from ridgeline.ops.table import TABLE, Context, Kind

aten = torch.ops.aten
X = torch.arange(24.0).reshape(2, 3, 4)

VIEWS: dict[str, Callable[[torch.Tensor], object]] = {
    "view": lambda x: x.view(4, 6),
    "view -1": lambda x: x.view(3, -1, 1),
    "unsafe_view": lambda x: aten._unsafe_view(x, [24]),
    "expand": lambda x: x[:, :1].expand(5, 2, 7, 4),
    "permute": lambda x: x.permute(2, 0, -2),
    "transpose": lambda x: x.transpose(0, -1),
    "t": lambda x: x[0].t(),
    "squeeze": lambda x: x[:, :1].squeeze(),
    "squeeze dim": lambda x: x[:, :1].squeeze(1),
    "squeeze of a longer dim": lambda x: x.squeeze(1),
    "squeeze dims": lambda x: x[:1, :1].squeeze((0, 1, 2)),
    "unsqueeze": lambda x: x.unsqueeze(-1).unsqueeze(0).unsqueeze(2),
    "select": lambda x: (x[1], x.select(-1, -2)),
    "slice": lambda x: (x[:, 1:], x[..., ::2], x[..., -3:-1], x[:, 5:], x[..., 1:100:3]),
    "split": lambda x: x.split(2, 1),
    "split with sizes": lambda x: x.split([1, 3], -1),
    "chunk": lambda x: x.chunk(3, 2),
    "unbind": lambda x: x.unbind(1),
    "diagonal": lambda x: (x.diagonal(), x.diagonal(1, 1, 2), x.diagonal(-1, -1, 0)),
    "unfold": lambda x: (x.unfold(2, 3, 1), x.unfold(-2, 2, 2)),
    "movedim": lambda x: x.movedim(0, 2),
    "swapaxes": lambda x: x.swapaxes(1, 2),
    "as_strided": lambda x: (x.as_strided((2, 5), (3, 2)), x.as_strided((2, 2), (0, 1), 3)),
    "flatten": lambda x: x.flatten(1),
    "detach and alias": lambda x: (x.detach(), aten.alias(x)),
    "view_as": lambda x: x.view_as(torch.empty(6, 4)),
    "mT": lambda x: x.mT,
    "broadcast_to": lambda x: x[0, 0].broadcast_to(3, 4),
}


@pytest.mark.parametrize("name", VIEWS)
def test_view(name: str) -> None:
    graph = check_call(VIEWS[name], X)
    made = [n for n in graph.nodes if n.kind is not NodeKind.INPUT and "empty" not in n.operator]
    assert made
    assert all(n.kind is NodeKind.VIEW for n in made), [n.operator for n in made if n.kind is not NodeKind.VIEW]
    # Nothing but one load: a view computes nothing.
    assert all(d.value.op == "load" for n in made for d in n.definitions)


COPIES: dict[str, Callable[[torch.Tensor], object]] = {
    "view": lambda x: aten.view_copy(x, [6, 4]),
    "expand": lambda x: aten.expand_copy(x, [2, 2, 3, 4]),
    "permute": lambda x: aten.permute_copy(x, [1, 2, 0]),
    "transpose": lambda x: aten.transpose_copy.int(x, 0, 1),
    "select": lambda x: aten.select_copy.int(x, 1, -1),
    "slice": lambda x: aten.slice_copy.Tensor(x, 2, 1, 4, 2),
    "split": lambda x: tuple(aten.split_copy.Tensor(x, 2, 2)),
    "unbind": lambda x: tuple(aten.unbind_copy.int(x, 0)),
    "diagonal": lambda x: aten.diagonal_copy(x, 0, 1, 2),
    "unfold": lambda x: aten.unfold_copy(x, 2, 2, 1),
    "squeeze": lambda x: aten.squeeze_copy.dim(x[:1], 0),
    "unsqueeze": lambda x: aten.unsqueeze_copy(x, 3),
    "alias": lambda x: aten.alias_copy(x),
}


@pytest.mark.parametrize("name", COPIES)
def test_copy(name: str) -> None:
    graph = check_call(COPIES[name], X)
    assert graph.nodes[-2].kind is NodeKind.COMPUTE or graph.nodes[-1].kind is NodeKind.COMPUTE


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (2, 0, 4)], ids=str)
def test_empty_and_single(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    check_call(lambda x: (x.t() if x.ndim == 2 else x.mT, x.reshape(-1), x.unsqueeze(0), x[:1], x.squeeze()), x)


def test_zero_dimensions() -> None:
    check_call(
        lambda x: (x.view(1), x.expand(3), x.unsqueeze(0), x.reshape(1, 1), x.squeeze(), x.unfold(0, 1, 1)),
        torch.tensor(2.5),
    )


def test_as_strided_of_a_view_is_refused() -> None:
    graph = check_call(lambda x: x.t().as_strided((2, 2), (1, 1)), X[0], native=False)
    assert [n.reason for n in graph.nodes if n.kind is NodeKind.LIBRARY] == [
        "as_strided of a tensor that is not contiguous from the head of its storage"
    ]


def test_as_strided_that_leaves_its_input_is_refused() -> None:
    out = Buffer("y", F32, tuple(full((4,), 0, F32).shape), ())
    row = TABLE["aten.as_strided.default"]
    with pytest.raises(CannotConvert, match="leaves its input"):
        row.body(full((3,), 0, F32), (4,), (1,), 0, context=Context((out,), F32, dense=True))


def test_views_and_copies_share_their_bodies() -> None:
    for name, row in TABLE.items():
        twin = TABLE.get(name.replace("_copy.", "."))
        if "_copy." in name and twin is not None and twin.kind is Kind.VIEW:
            assert row.body is twin.body, name
