"""When a module's output provably goes to a loss and nowhere else."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ridgeline.capture.joins import find_consumer, find_join

X, Y = torch.randn(4, 3), torch.randint(3, (4,))
criterion = nn.CrossEntropyLoss()


class Asked:
    """Stands where a module would; keeps whether its call could be joined, and with what."""

    def __init__(self) -> None:
        self.consumer: Any = None

    def __call__(self, x: Tensor) -> Tensor:
        frame = sys._getframe(1)
        join = find_join(frame)
        self.consumer = None if join is None else find_consumer(join, frame)
        return x * 1


def as_argument(model: Asked, y: Tensor) -> Tensor:
    return F.cross_entropy(model(X), y)


def as_viewed_argument(model: Asked, y: Tensor) -> Tensor:
    return F.cross_entropy(model(X).view(-1, 3).float(), y.view(-1), label_smoothing=0.1)


def as_next_statement(model: Asked, y: Tensor) -> Tensor:
    logits = model(X)
    loss = F.cross_entropy(logits.view(-1, logits.size(-1)), y.flatten())
    return loss


def in_a_loop(model: Asked, y: Tensor) -> float:
    total = 0.0
    for _ in range(2):
        logits = model(X)
        total += F.cross_entropy(logits, y).item() / 2
    return total


def by_a_module(model: Asked, y: Tensor) -> Tensor:
    logits = model(X)
    return criterion(logits, y) * 0.5


def with_a_local_module(model: Asked, y: Tensor) -> Tensor:
    loss_module = nn.CrossEntropyLoss()
    logits = model(X)
    (loss_module(logits, y) / 3).sum()
    return loss_module.weight


@pytest.mark.parametrize(
    ("program", "consumer"),
    [
        (as_argument, F.cross_entropy),
        (as_viewed_argument, F.cross_entropy),
        (as_next_statement, F.cross_entropy),
        (in_a_loop, F.cross_entropy),
        (by_a_module, criterion),
    ],
)
def test_joined(program: Callable[[Asked, Tensor], Any], consumer: Any) -> None:
    model = Asked()
    program(model, Y)
    assert model.consumer is consumer


def test_a_loss_module_in_a_local_name_is_found() -> None:
    model = Asked()
    with_a_local_module(model, Y)
    assert type(model.consumer) is nn.CrossEntropyLoss


def read_again(model: Asked, y: Tensor) -> Any:
    logits = model(X)
    loss = F.cross_entropy(logits, y)
    return loss, logits.argmax(1)


def read_in_the_next_round(model: Asked, y: Tensor) -> Any:
    logits = None
    for _ in range(2):
        print(logits is None)
        logits = model(X)
        F.cross_entropy(logits, y)


def something_between(model: Asked, y: Tensor) -> Any:
    logits = model(X)
    torch.rand(1)
    return F.cross_entropy(logits, y)


def something_first(model: Asked, y: Tensor) -> Any:
    logits = model(X)
    return torch.rand(1) + F.cross_entropy(logits, y)


def not_a_view(model: Asked, y: Tensor) -> Any:
    logits = model(X)
    return F.cross_entropy(logits.softmax(-1), y)


def target_is_computed(model: Asked, y: Tensor) -> Any:
    return F.cross_entropy(model(X), torch.randint(3, (4,)))


def target_is_an_attribute(model: Asked, y: Tensor) -> Any:
    model.y = y  # type: ignore[attr-defined]
    return F.cross_entropy(model(X), model.y)  # type: ignore[attr-defined]


def target_is_the_output(model: Asked, y: Tensor) -> Any:
    logits = model(X)
    return F.mse_loss(logits, logits.detach())


def captured_by_a_closure(model: Asked, y: Tensor) -> Any:
    logits = model(X)
    loss = F.cross_entropy(logits, y)
    return loss, lambda: logits


def all_names_are_looked_at(model: Asked, y: Tensor) -> Any:
    logits = model(X)
    loss = F.cross_entropy(logits, y)
    return loss, sorted(locals())


def two_names(model: Asked, y: Tensor) -> Any:
    logits = other = model(X)
    return F.cross_entropy(logits, y), other


def two_losses(model: Asked, y: Tensor) -> Any:
    logits = model(X)
    return F.cross_entropy(logits, y) + F.multi_margin_loss(logits, y)


def in_a_comprehension(model: Asked, y: Tensor) -> Any:
    return [F.cross_entropy(model(X), y) for _ in range(2)]


def in_another_block(model: Asked, y: Tensor) -> Any:
    with torch.autocast("cpu", enabled=False):
        logits = model(X)
    return F.cross_entropy(logits, y)


def second_argument(model: Asked, y: Tensor) -> Any:
    return F.mse_loss(X, model(X))


def unpacked(model: Asked, y: Tensor) -> Any:
    first, *_ = model(X)
    return F.mse_loss(first, X[0])


def only_when(model: Asked, y: Tensor) -> Any:
    logits = model(X)
    return F.cross_entropy(logits, y) if len(y) else None


@pytest.mark.parametrize(
    "program",
    [
        read_again,
        read_in_the_next_round,
        something_between,
        something_first,
        not_a_view,
        target_is_computed,
        target_is_an_attribute,
        target_is_the_output,
        captured_by_a_closure,
        all_names_are_looked_at,
        two_names,
        two_losses,
        in_a_comprehension,
        in_another_block,
        second_argument,
        unpacked,
        only_when,
    ],
)
def test_not_joined(program: Callable[[Asked, Tensor], Any], capsys: pytest.CaptureFixture[str]) -> None:
    model = Asked()
    program(model, Y)
    assert model.consumer is None


class Sneaky(Tensor):
    """A tensor of the user's own, whose views may do anything."""


def test_a_target_of_a_users_own_kind_is_not_joined() -> None:
    model = Asked()
    as_argument(model, Y.as_subclass(Sneaky))
    assert model.consumer is None


MODULE = """
import torch.nn.functional as F
def evaluate(): return {read}
for _ in range(2):
    logits = model(x)
    loss = F.cross_entropy(logits, y)
"""


@pytest.mark.parametrize(("read", "joined"), [("None", True), ("logits", False)])
def test_global_names_are_followed_through_the_whole_file(tmp_path: Any, read: str, joined: bool) -> None:
    path = tmp_path / "module.py"
    path.write_text(MODULE.format(read=read))
    model = Asked()
    exec(compile(path.read_text(), str(path), "exec"), {"model": model, "x": X, "y": Y})
    assert (model.consumer is F.cross_entropy) is joined
