"""Losses and gradients: reductions, weights, ignored targets, the ends of every branch."""

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from rows import check_call
from samples import check_nodes, with_backward, without_row

from ridgeline.ir.graph import Graph

FLOATS = (torch.float32, torch.float64, torch.bfloat16)
KINDS = ("none", "mean", "sum")


def native(fn: Callable[..., Sequence[torch.Tensor]], x: torch.Tensor, *rest: torch.Tensor) -> Graph:
    """Forward and the gradient of the first input, all by rows."""
    inputs = [x.clone().requires_grad_(), *rest]
    graph = check_nodes(with_backward(fn, inputs), *inputs)
    assert not without_row(graph)
    return graph


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_distances(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, 0.3, 1.0, -1.0, 5.0, -2.5, 0.7]).to(dtype)
    y = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, -2.5, 0.2]).to(dtype)

    def run(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        out = []
        for kind in KINDS:
            out += [F.mse_loss(x, y, reduction=kind), F.l1_loss(x, y, reduction=kind)]
            out += [F.smooth_l1_loss(x, y, reduction=kind), F.smooth_l1_loss(x, y, reduction=kind, beta=0.5)]
            out += [F.huber_loss(x, y, reduction=kind), F.huber_loss(x, y, reduction=kind, delta=0.6)]
        return [*out, F.kl_div(x, y.abs(), reduction="sum"), F.kl_div(x, y, log_target=True, reduction="mean")]

    native(run, x, y)


@pytest.mark.parametrize("kind", KINDS)
def test_probabilities(kind: str) -> None:
    p, y, w = torch.tensor([0.0, 1.0, 0.5, 1e-20, 0.9]), torch.tensor([0.0, 0.0, 1.0, 1.0, 0.3]), torch.rand(5)
    bce, logits = F.binary_cross_entropy, F.binary_cross_entropy_with_logits
    native(lambda p, y, w: [bce(p, y, w, reduction=kind), bce(p, y, reduction=kind)], p, y, w)
    x = torch.tensor([0.0, 30.0, -30.0, 1.0, -200.0])
    native(lambda x, y, w: [logits(x, y, w, reduction=kind), logits(x, y, pos_weight=w, reduction=kind)], x, y, w)


@pytest.mark.parametrize("kind", KINDS)
def test_margins(kind: str) -> None:
    x, y, w = torch.randn(4, 5), torch.tensor([0, 4, 2, 2]), torch.rand(5)
    sign = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0]).expand(4, 5)
    native(lambda x, s: [F.soft_margin_loss(x, s, reduction=kind)], x, sign)
    native(lambda x, y: [F.multi_margin_loss(x, y, reduction=kind)], x, y)
    native(lambda x, y, w: [F.multi_margin_loss(x, y, 2, 0.5, w, reduction=kind)], x, y, w)
    native(lambda x, y: [F.multi_margin_loss(x[0], y[:1], reduction=kind)], x, y)
    native(lambda x, y: [F.hinge_embedding_loss(x, y, reduction=kind)], x, sign)
    native(lambda a, b, s: [F.margin_ranking_loss(a, b, s, 0.1, reduction=kind)], x[0], x[1], sign[0])
    native(lambda a, b, s: [F.cosine_embedding_loss(a, b, s, reduction=kind)], x, x.flip(0), sign[0, :4])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_cross_entropy(kind: str, dtype: torch.dtype) -> None:
    x, w = torch.randn(6, 5).to(dtype), torch.rand(5).to(dtype)
    y = torch.tensor([0, 4, -100, 2, 2, 1])
    native(lambda x, y: [F.cross_entropy(x, y, reduction=kind)], x, y)
    native(lambda x, y, w: [F.cross_entropy(x, y, w, reduction=kind, ignore_index=2)], x, y.clamp(min=0), w)
    native(lambda x, y, w: [F.cross_entropy(x, y, w, reduction=kind, label_smoothing=0.1)], x, y, w)


def test_cross_entropy_of_images_and_of_one_row() -> None:
    x, y = torch.randn(2, 4, 3, 5), torch.randint(4, (2, 3, 5))
    y[0, 0] = -100
    for kind in KINDS:
        native(lambda x, y, k=kind: [F.cross_entropy(x, y, reduction=k)], x, y)
        native(lambda x, y, k=kind: [F.nll_loss(x, y, torch.arange(4.0), reduction=k)], x, y)
    native(lambda x, y: [F.cross_entropy(x, y)], torch.randn(5), torch.tensor(3))
    native(lambda x, y: [F.nll_loss(x, y)], torch.randn(5), torch.tensor(3))


def test_cross_entropy_of_probabilities() -> None:
    native(lambda x, y: [F.cross_entropy(x, y.softmax(1))], torch.randn(3, 4), torch.randn(3, 4))


def test_nothing_but_ignored_targets_is_nan() -> None:
    graph = native(lambda x, y: [F.cross_entropy(x, y)], torch.randn(2, 3), torch.full((2,), -100))
    assert "aten.nll_loss_forward.default" in {n.operator for n in graph.nodes}


def test_the_gradient_of_nll_is_gathered() -> None:
    # Each element compares its own class with the target: no buffer of zeros, no scatter.
    graph = native(lambda x, y: [F.nll_loss(x, y)], torch.randn(3, 4), torch.tensor([0, 3, 1]))
    (node,) = [n for n in graph.nodes if n.operator == "aten.nll_loss_backward.default"]
    assert node.definitions[0].initial is None


def test_empty_batches() -> None:
    x = torch.randn(0, 4)
    check_call(lambda x: (F.mse_loss(x, x, reduction="sum"), F.mse_loss(x, x), F.smooth_l1_loss(x, x)), x)
    check_call(lambda x: F.cross_entropy(x, torch.zeros(0, dtype=torch.long), reduction="sum"), x)


def test_gaussian_poisson_and_triplet_losses() -> None:
    a, b, c = torch.randn(4, 5), torch.rand(4, 5), torch.randn(4, 5)
    native(lambda a, b: [F.poisson_nll_loss(a, b), F.poisson_nll_loss(a, b, full=True)], a, b)
    native(lambda a, b, c: [F.triplet_margin_loss(a, b, c)], a, b, c)
