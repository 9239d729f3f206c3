"""The patches: what they catch, what they leave alone, and that nothing of them stays."""

import copy
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from running import Exact
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ridgeline.capture.root import current_root
from ridgeline.capture.roots import LOSSES, Roots
from ridgeline.capture.schedule import Policy
from ridgeline.capture.steps import Steps


class Watched:
    """The patches and steps of one test, compiling from the first call on."""

    def __init__(self, engine: Any = None, policy: Policy = Policy.RUN) -> None:
        self.engine = engine or Exact()
        self.steps = Steps(policy, seed=0, pairs=2, limit=None)
        self.roots = Roots(self.steps, self.engine)

    @property
    def called(self) -> dict[str, int]:
        return {calls.root.name: calls.calls for calls in self.roots.calls}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield


def patched_places() -> list[Any]:
    """Everything that the patches replace."""
    return [
        nn.Module.__call__,
        *(getattr(F, name) for name in LOSSES),
        nn.utils.clip_grad_norm_,
        nn.utils.clip_grad_value_,
        torch.autograd.backward,
        torch.compile,
        torch.optim.Optimizer.profile_hook_step,
        torch.optim.Optimizer._patch_step_function,
        torch._dynamo.config.suppress_errors,
    ]


def test_everything_is_undone_at_exit_and_after_an_error() -> None:
    before = patched_places()
    with pytest.raises(ZeroDivisionError), Watched().roots:
        assert sum(new is not old for new, old in zip(patched_places(), before, strict=True)) >= len(before) - 1
        raise ZeroDivisionError
    assert all(new is old for new, old in zip(patched_places(), before, strict=True))


def test_optimizer_classes_get_their_steps_back() -> None:
    class Mine(torch.optim.SGD):
        """First made under the patches. Calls no other step: PyTorch runs hooks for each one that it has wrapped."""

        def step(self, closure: Any = None) -> Any:
            return closure

    weight = nn.Parameter(torch.ones(2))
    torch.optim.Adam([weight])
    adam_step = torch.optim.Adam.step
    with Watched().roots:
        mine = Mine([weight])
        assert torch.optim.Adam.step is not adam_step
    assert torch.optim.Adam.step is adam_step
    calls = []
    mine.register_step_post_hook(lambda *_: calls.append(1))
    weight.grad = torch.ones(2)
    mine.step()
    assert calls == [1]
    assert Mine.step.hooked  # type: ignore[attr-defined]


def test_nothing_is_left_on_the_users_objects() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer_before = sorted(vars(optimizer))
    before = {name: sorted(vars(module)) for name, module in model.named_modules()}
    hooks = copy.copy(model._forward_hooks)
    with Watched().roots:
        F.mse_loss(model(torch.ones(2, 3)), torch.ones(2, 3)).backward()
        optimizer.step()
    assert {name: sorted(vars(module)) for name, module in model.named_modules()} == before
    assert sorted(vars(optimizer)) == optimizer_before
    assert model._forward_hooks == hooks
    assert list(model.state_dict()) == ["0.weight", "0.bias"]


def test_compiled_modules_are_not_kept_alive() -> None:
    watched = Watched()
    with watched.roots, torch.no_grad():
        model = nn.Linear(2, 2)
        model(torch.ones(1, 2))
        gone = torch.nn.utils.parametrize.is_parametrized(model)
        key = id(model)
        del model
        kept = {target for target, _ in watched.roots._runner._compiled}
    assert not gone
    assert key not in kept


def test_a_module_of_the_same_class_is_compiled_for_itself_without_recompiles() -> None:
    """Dynamo counts recompiles by code object, and gives up after eight of them."""
    watched = Watched()
    models = [nn.Linear(2, 2 + i) for i in range(12)]
    with watched.roots, torch.no_grad():
        for model in models:
            model(torch.ones(1, 2))
    assert len(watched.engine.graphs) == 12


class Outer(nn.Module):
    """Calls a module, a loss and a compiled function inside its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.inner(x), x) + helper(x)


def helper(x: torch.Tensor) -> torch.Tensor:
    return x.sum() * 2


def test_only_outermost_calls_are_roots_and_patches_are_invisible_to_dynamo() -> None:
    global helper
    watched, plain = Watched(), helper
    model = Outer()
    with watched.roots:
        helper = torch.compile(helper, mode="reduce-overhead")
        try:
            model(torch.ones(2, 3))
            assert helper(torch.ones(2)).item() == 4
        finally:
            helper = plain
    assert watched.called == {"Outer.forward": 1, "helper": 1}
    assert watched.engine.names == {"Outer.forward", "helper"}
    assert len(watched.engine.graphs) == 2


class Failing(Exact):
    """An engine that cannot compile anything."""

    def backend(self, graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        raise NotImplementedError("no such target")


class Broken(nn.Module):
    """Breaks its graph in the middle, after an effect that must happen once."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.linear(x))
        torch._dynamo.graph_break()
        return F.dropout(x, 0.5) * torch.rand(1)


@pytest.mark.parametrize("engine", [Exact(), Failing()])
def test_a_root_that_cannot_be_compiled_runs_eager_each_effect_once(engine: Any) -> None:
    torch.manual_seed(1)
    model = Broken()
    twin = copy.deepcopy(model)
    x = torch.randn(8, 4)
    torch.manual_seed(2)
    expected = [twin(x).sum().item() for _ in range(3)]
    torch.manual_seed(2)
    with Watched(engine).roots:
        found = [model(x).sum().item() for _ in range(3)]
    assert found == expected
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), twin.state_dict().values(), strict=True))


def test_compilation_moves_no_random_stream() -> None:
    class Restless(Exact):
        """Draws numbers while it compiles."""

        def backend(self, graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
            torch.rand(3), random.random(), np.random.rand()
            torch.manual_seed(7)
            return super().backend(graph, example_inputs)

        def optimizer_step(self, optimizer: torch.optim.Optimizer) -> Callable[[], None] | None:
            torch.rand(3)
            return None

    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    expected = (torch.rand(1).item(), random.random(), np.random.rand())
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    model = nn.Linear(3, 3)
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters())
    with Watched(Restless()).roots:
        F.mse_loss(model(torch.ones(2, 3)), torch.zeros(2, 3)).backward()
        optimizer.step()
    assert (torch.rand(1).item(), random.random(), np.random.rand()) == expected


def test_errors_of_the_users_own_pass_unchanged() -> None:
    class Refuses(nn.Module):
        """Raises an error of its own."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise LookupError("not today")

    with Watched().roots, pytest.raises(LookupError, match="not today"):
        Refuses()(torch.ones(1))
    with Watched().roots, pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        nn.Linear(3, 3)(torch.ones(2, 4))


def test_the_engine_is_asked_for_the_optimizers_update() -> None:
    class Updates(Exact):
        """Updates by plain gradient descent."""

        def __init__(self) -> None:
            super().__init__()
            self.calls: list[str] = []

        def optimizer_step(self, optimizer: torch.optim.Optimizer) -> Callable[[], None] | None:
            if not isinstance(optimizer, torch.optim.SGD):
                return None

            def update() -> None:
                root = current_root()
                self.calls.append(root.name if root else "")
                with torch.no_grad():
                    for group in optimizer.param_groups:
                        for weight in group["params"]:
                            weight -= group["lr"] * weight.grad

            return update

    engine, weight = Updates(), nn.Parameter(torch.ones(2))
    counts = {"post": 0}
    with Watched(engine).roots:
        sgd, adam = torch.optim.SGD([weight], lr=0.5), torch.optim.Adam([weight], lr=0.5)
        sgd.register_step_post_hook(lambda *_: counts.update(post=counts["post"] + 1))
        schedule = torch.optim.lr_scheduler.ConstantLR(sgd, factor=0.5, total_iters=5)
        weight.grad = torch.ones(2)
        sgd.step()
        schedule.step()
        assert weight.tolist() == [0.75, 0.75]
        adam.step()
    assert engine.calls == ["SGD.step"]
    assert counts == {"post": 1}
    assert weight.tolist() == pytest.approx([0.25, 0.25])


def test_roots_are_the_main_threads_only() -> None:
    watched, model = Watched(), nn.Linear(2, 2)
    with watched.roots:
        thread = threading.Thread(target=lambda: model(torch.ones(1, 2)))
        thread.start()
        thread.join()
    assert watched.called == {}


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_in_backward_is_no_root(reentrant: bool) -> None:
    watched, model = Watched(), nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    with watched.roots:
        x = torch.ones(2, 3, requires_grad=True)
        torch.utils.checkpoint.checkpoint(model, x, use_reentrant=reentrant).sum().backward()
    assert watched.called == {"Sequential.forward": 1}
    assert x.grad is not None


def test_under_a_dispatch_mode_of_the_users_a_root_runs_eager() -> None:
    class Counting(TorchDispatchMode):
        """Counts what reaches the dispatcher."""

        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    watched = Watched()
    with watched.roots, Counting() as counting:
        nn.Linear(2, 2)(torch.ones(1, 2))
    assert "aten.addmm.default" in counting.names
    assert not watched.engine.graphs


def test_functional_transforms_see_the_module_itself() -> None:
    model = nn.Linear(2, 1)
    weights = dict(model.named_parameters())

    def loss(weights: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, weights, (x,)).sum()

    expected = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, torch.ones(3, 2))
    with Watched().roots:
        found = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, torch.ones(3, 2))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_torchscript_and_tracing_see_the_originals() -> None:
    def scripted_loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(x, y)

    model, x = nn.Linear(2, 2), torch.ones(1, 2)
    watched = Watched()
    with watched.roots:
        script = torch.jit.script(scripted_loss)
        traced = torch.jit.trace(model, x)
        graph = torch.fx.symbolic_trace(nn.Sequential(model))
        assert script(x, x).item() == 0
        assert torch.equal(traced(x), model(x))
        assert torch.equal(graph(x), model(x))
    assert set(watched.called) == {"Linear.forward"}


def test_clipping_takes_a_generator_a_tensor_and_nothing() -> None:
    weights = [nn.Parameter(torch.ones(3)) for _ in range(3)]
    for weight in weights[:2]:
        weight.grad = torch.full((3,), 2.0)
    with Watched().roots:
        norm = nn.utils.clip_grad_norm_((weight for weight in weights), 1.0)
        nn.utils.clip_grad_value_(weights[0], 0.25)
        assert nn.utils.clip_grad_norm_([], 1.0).item() == 0
        with pytest.warns(UserWarning, match="empty generator"):
            nn.utils.clip_grad_norm_((weight for weight in ()), 1.0)
    assert norm.item() == pytest.approx((6 * 4) ** 0.5)
    assert weights[0].grad.tolist() == [0.25] * 3
    assert weights[1].grad.tolist() == pytest.approx([2 / 24**0.5] * 3)


def test_a_joined_loss_and_its_gradients_are_those_of_eager() -> None:
    def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = model(x)
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), y.view(-1))
        loss.backward()
        return loss

    model = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 5))
    twin = copy.deepcopy(model)
    twin_optimizer = torch.optim.SGD(twin.parameters())
    watched = Watched(policy=Policy.COUNT)
    hidden = watched.roots._runner.hidden
    with watched.roots:
        optimizer = torch.optim.SGD(model.parameters())
        for time in (2, 2, 2, 2, 3, 3):  # the shape of the output is unknown when it changes
            x, y = torch.randn(3, time, 4), torch.randint(5, (3, time))
            assert torch.equal(train(model, x, y), hidden(train, twin, x, y))
            for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
                assert torch.equal(ours.grad, theirs.grad)
            optimizer.step()
            hidden(twin_optimizer.step)
    assert "Sequential.forward + cross_entropy" in watched.engine.names
    assert watched.roots.calls[0].joined == "cross_entropy"
