"""Moves with known positions: cat, pads, shifts, triangles, shuffles, and their gradients."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from rows import check_call
from samples import check_nodes, with_backward, without_row

from ridgeline.ir.value import loads

aten = torch.ops.aten
X = torch.arange(24.0).reshape(2, 3, 4)

MOVES: dict[str, Callable[[torch.Tensor], object]] = {
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.mT.contiguous(),
    "copy": lambda x: aten.copy(x, x[0]),
    "cat": lambda x: (torch.cat([x, x * 2, x[:1]], 0), torch.cat([x, x[..., :1]], -1), torch.cat([x])),
    "cat of types": lambda x: torch.cat([x, (x > 3).long(), x.bfloat16()], 1),
    "cat with empties": lambda x: torch.cat([torch.zeros(0), x, x[:, :0]], 1),
    "stack": lambda x: (torch.stack([x, -x]), torch.stack([x, x, x], -1), torch.stack([x[0, 0, 0]] * 3)),
    "block_diag": lambda x: torch.block_diag(x[0], x[1, :2, :1], x[0, 0]),
    "pad": lambda x: (F.pad(x, (1, 2)), F.pad(x, (0, 1, 2, 0, 1, 1), value=7.0), F.pad(x, (-1, 2, 0, -1))),
    "pad of integers": lambda x: F.pad(x.long(), (1, 1), value=-3),
    "repeat": lambda x: (x.repeat(2, 1, 3), x.repeat(2, 1, 1, 2), x[0, 0].repeat(3)),
    "tile": lambda x: x.tile(2, 2),
    "roll": lambda x: (x.roll(1, 0), x.roll((2, -1), (2, 1)), x.roll(5), x.roll(-7, -1)),
    "flip": lambda x: (x.flip(0), x.flip(-1, 0), x.flip(())),
    "rot90": lambda x: tuple(torch.rot90(x, k, d) for k in (-1, 0, 1, 2, 3, 5) for d in ((0, 1), (2, 0))),
    "tril": lambda x: (x.tril(), x.tril(1), x.tril(-2), x.triu(), x.triu(2), x.triu(-1)),
    "slice_scatter": lambda x: (
        x.slice_scatter(-x[:, :2], 1, 1),
        x.slice_scatter(x[..., :2] * 9, 2, 0, 4, 2),
        x.slice_scatter(x[:1], 0, -1),
    ),
    "select_scatter": lambda x: (x.select_scatter(-x[0], 0, 1), x.select_scatter(x[..., 0], -1, -1)),
    "diagonal_scatter": lambda x: (
        x[0].diagonal_scatter(torch.full((3,), 9.0)),
        x.diagonal_scatter(torch.zeros(2, 3), 1, 1, 2),
        x[0].diagonal_scatter(torch.zeros(2), -1),
    ),
    "diag_embed": lambda x: (torch.diag_embed(x), torch.diag_embed(x, 1, 0, 2), torch.diag_embed(x[0], -2)),
    "pixel_shuffle": lambda x: F.pixel_unshuffle(F.pixel_shuffle(x.reshape(1, 4, 3, 2), 2), 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x.reshape(2, 6, 2), 3),
    "narrow_copy": lambda x: aten.narrow_copy(x, 2, 1, 2),
    "cross": lambda x: torch.linalg.cross(x[..., :3], x[..., 1:] + 1, dim=1),
    "linalg.diagonal": lambda x: torch.diag(x[0, 0]) + torch.diag(x[1, 1], 0),
}


@pytest.mark.parametrize("name", MOVES)
def test_move(name: str) -> None:
    graph = check_call(MOVES[name], X)
    assert not without_row(graph)


GRADIENTS = [
    lambda x: torch.cat([x, x * 2], 1),
    lambda x: F.pad(x, (1, -1, 0, 2)),
    lambda x: x.repeat(2, 1, 2),
    lambda x: x[:, 1:, ::2],
    lambda x: x[1],
    lambda x: x.diagonal(0, 1, 2),
    lambda x: x.unfold(2, 2, 1),
    lambda x: x.roll(2, 2).flip(0),
    lambda x: x.tril(1),
    lambda x: torch.stack([x, x]),
    lambda x: x.unbind(1)[1] * x.split(1, 1)[0][:, 0],
    lambda x: x.slice_scatter(x[:, :1], 1, 2),
    lambda x: x.select_scatter(x[0], 0, 1),
    lambda x: F.pixel_shuffle(x.reshape(1, 4, 3, 2), 2),
]


def test_gradients_of_moves() -> None:
    assert not without_row(check_nodes(with_backward(lambda x: [f(x) for f in GRADIENTS], [X]), X))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool, torch.uint8, torch.float64], ids=str)
def test_types(dtype: torch.dtype) -> None:
    x = (X % 5 - 1).to(dtype)
    check_call(lambda x: (torch.cat([x, x]), F.pad(x, (1, 1)), x.roll(1), x.flip(1), x.tril(), torch.stack([x, x])), x)


def test_copy_into_an_input_names_its_memory() -> None:
    graph = check_call(lambda x, y: x.copy_(y), torch.zeros(2, 3), torch.arange(3))
    (node,) = [n for n in graph.nodes if n.operator == "aten.copy_.default"]
    assert node.storage == graph.inputs[0]


def test_pad_guards_its_load() -> None:
    graph = check_call(lambda x: F.pad(x, (2, 2)), torch.randn(5))
    (load,) = loads([graph.nodes[1].definitions[0].value])
    assert load.args, "outside the input nothing may be touched"


def test_pads_that_only_cut_need_no_guard() -> None:
    graph = check_call(lambda x: F.pad(x, (-1, -1)), torch.randn(5))
    (load,) = loads([graph.nodes[1].definitions[0].value])
    assert not load.args


@pytest.mark.parametrize("n", [1, 2, 3])
def test_reflection_and_replication_both_ways(n: int) -> None:
    x = torch.randn(2, *[4, 3, 5][:n])
    pads = [1, 2, 2, 0, 1, 1][: 2 * n]
    for mode in ("reflect", "replicate", "circular"):
        assert not without_row(check_nodes(with_backward(lambda x, m=mode: [F.pad(x, pads, m)], [x]), x))


def test_replication_that_cuts() -> None:
    x = torch.randn(2, 3, 6)
    assert not without_row(check_nodes(with_backward(lambda x: [F.pad(x, (-2, 3), "replicate")], [x]), x))


def test_empty() -> None:
    check_call(
        lambda x: (torch.cat([x, x]), x.roll(1, 1), x.flip(0), x.repeat(2, 2), F.pad(x, (1, 1))), torch.zeros(0, 3)
    )
