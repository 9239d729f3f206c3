"""What `torch.compile(f, backend="ridgeline")` owes a program, each against eager: modes, mutation, structures, calls
within calls, autograd, random numbers, errors and options. Shapes, memory and processes have files of their own.
"""

import copy
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from backends import check, compiled, loosely, same
from torch import nn

from ridgeline.base.errors import BadOption, UnknownOption
from ridgeline.base.knobs import Knobs, knobs_from


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


class Block(nn.Module):
    """Linear, layer norm, softmax, batch norm, dropout: a bit of everything with state."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(9, 17), nn.LayerNorm(17), nn.Linear(17, 5)
        self.batch, self.drop = nn.BatchNorm1d(17), nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.gelu(self.batch(self.norm(self.first(x))))
        return torch.softmax(self.last(self.drop(h)), -1)


# Modes


def arithmetic(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = (x * y + 1).tanh()
    return z, z.sum(0), x.amax(-1, keepdim=True), y.detach() * 2


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("grad", [False, True])
def test_modes(mode: Any, grad: bool) -> None:
    with mode():
        check(arithmetic, torch.randn(7, 33).requires_grad_(grad), torch.randn(33))


def test_mode_changes_between_calls() -> None:
    run = compiled(arithmetic)
    x, y = torch.randn(7, 33, requires_grad=True), torch.randn(33)
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            same(run(x, y), arithmetic(x, y))


def test_autocast() -> None:
    torch.manual_seed(0)
    model = Block()
    x = torch.randn(12, 9)

    def step(m: nn.Module) -> list[torch.Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            out = m(x)
        out.float().square().sum().backward()
        return [out, *(p.grad for p in m.parameters())]

    twin = copy.deepcopy(model)
    got, want = step(compiled(twin)), step(model)  # type: ignore[arg-type]
    same(got, want, tolerance=3e-2)


def test_training_is_eager_training() -> None:
    model, x, target = Block(), torch.randn(6, 12, 9), torch.randn(12, 5)
    twin = copy.deepcopy(model)

    def train(m: nn.Module, call: Callable[..., Any]) -> list[torch.Tensor]:
        optimizer = torch.optim.SGD(m.parameters(), lr=0.3, momentum=0.9)
        losses = []
        for batch in x:
            optimizer.zero_grad()
            loss = F.mse_loss(call(batch), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses

    same(train(twin, compiled(twin)), train(model, model), tolerance=1e-5)
    same(list(twin.state_dict().values()), list(model.state_dict().values()), tolerance=1e-5)
    twin.eval(), model.eval()
    same(compiled(twin)(x[0]), model(x[0]), tolerance=1e-5)


def test_gradients_accumulate() -> None:
    w = torch.randn(9, 5, requires_grad=True)
    run = compiled(lambda x, w: (x @ w).relu().sum())
    xs = torch.randn(3, 4, 9)
    for x in xs:
        run(x, w).backward()
    want = w.detach().clone().requires_grad_()
    for x in xs:
        (x @ want).relu().sum().backward()
    torch.testing.assert_close(w.grad, want.grad)


# Mutation

MUTATIONS: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x.add_(1),
    "copy": lambda x, y: x.copy_(y * 2),
    "slice": lambda x, y: x[1:].mul_(y[1:]),
    "column": lambda x, y: x[:, 2].zero_(),
    "transposed": lambda x, y: x.t().add_(y.t().sum(0)),
    "fill and read": lambda x, y: (x.fill_(3) + y, x.sum()),
    "read and write": lambda x, y: (x.sum(0), x.exp_(), x.sum(1)),
    "swap": lambda x, y: (t := x.clone(), x.copy_(y), y.copy_(t)),
    "from itself": lambda x, y: x.copy_(x.flip(0)),
    "shifted": lambda x, y: x[1:].copy_(x[:-1].clone() + y[1:]),
    "row sums": lambda x, y: x.sub_(x.mean(1, keepdim=True)).div_(x.std(1, keepdim=True)),
    "column softmax": lambda x, y: x.copy_(torch.softmax(x, 0)),
    "returns it": lambda x, y: (x.mul_(2), x, x[0]),
    "views before": lambda x, y: (v := x[::2], x.add_(1), v * 2),
    "index put": lambda x, y: x.index_put_((torch.tensor([1, 3, 1]),), torch.ones(17), accumulate=True),
    "masked": lambda x, y: x.masked_fill_(y > 0, -1),
    "setitem": lambda x, y: x.__setitem__((slice(None), torch.tensor([0, 2])), y[:, :2]),
    "scatter": lambda x, y: x.scatter_add_(1, y.abs().long() % 17, y),
    "intermediate": lambda x, y: (v := x * 2, v[0].add_(y[0]), v.t()[1].zero_(), v)[-1],
    "twice": lambda x, y: (x.add_(y), y.add_(x), x.add_(y)),
    "detached": lambda x, y: x.detach().mul_(3),
}


@pytest.mark.parametrize("name", MUTATIONS)
@pytest.mark.parametrize("layout", ["plain", "transposed", "sliced"])
def test_mutation(name: str, layout: str) -> None:
    x = {"plain": torch.randn(9, 17), "transposed": torch.randn(17, 9).t(), "sliced": torch.randn(12, 40)[2:11, 3:37:2]}
    check(MUTATIONS[name], x[layout], torch.randn(9, 17))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_statistic_updated_in_place_is_read_as_updated(dynamic: bool) -> None:
    """Rows that read the new value through others must not run beside the store that overwrites the old one."""

    def f(x: torch.Tensor, running: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        running.mul_(0.9).add_(x.mean(0))
        return (x - running) @ w * running

    check(f, torch.randn(5, 13), torch.randn(13), torch.randn(13, 13), dynamic=dynamic)


def test_a_sum_along_what_a_statistic_is_folded_over() -> None:
    """Two folds, each kept along an axis that the other folds: the inner one gets loops of its own."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.group_norm(x.tril(), 9).sum(dim=[0, 1, 3])

    check(f, torch.randn(2, 9, 33, 9), tolerance=1e-4)


@pytest.mark.parametrize("shape", [(1, 2), (4, 8)])
def test_what_reads_an_input_stays_before_what_overwrites_it(shape: tuple[int, int]) -> None:
    """A chain that only a later part reads is not moved there past the update of its input."""

    def added(kv: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        old = kv * 2
        kv.add_(1)
        return old.roll(1, 0) + kv @ w

    def copied_over(kv: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        new = kv @ w
        old = torch.nn.functional.layer_norm(kv, (kv.size(1),))
        kv.copy_(new)
        return old[:1] * (kv @ w) + old

    for f in (added, copied_over):
        check(f, torch.randn(shape), torch.randn(shape[1], shape[1]), tolerance=1e-4)


def test_a_log_softmax_given_back_is_laid_out_as_eagers() -> None:
    check(lambda x: x.log_softmax(-1), torch.randn(13, 5).t().requires_grad_())
    check(
        lambda x: (y := x.log_softmax(1), y[:, 1:].exp().sum()), torch.randn(2, 3, 4).permute(0, 2, 1).requires_grad_()
    )


def test_sums_over_nothing_beside_sums_over_something() -> None:
    check(lambda x: (x.exp(), x.exp()[1:].sum()), torch.randn(1, 2))


def test_many_small_additions_to_a_narrow_type() -> None:
    """In bf16, 128 + 0.5 is 128: such sums are kept wider until they are done."""
    run = compiled(lambda i, v: torch.zeros(4, dtype=v.dtype).scatter_add(0, i, v))
    sums = run(torch.ones(30_000, dtype=torch.int64), torch.full((30_000,), 0.5, dtype=torch.bfloat16))
    assert sums.tolist() == [0, pytest.approx(15_000, rel=0.01), 0, 0]


def test_equal_additions_add_up() -> None:
    """A scatter whose source and place do not change along an axis adds as often as the axis is long."""
    place, values = torch.ones(1, dtype=torch.int64), torch.randn(4)
    check(lambda y, i: y.index_add(0, i, torch.ones(7)), torch.zeros(3), place[0].expand(7))
    check(lambda y: y.index_add(0, torch.full((7,), 2), torch.ones(7)), torch.zeros(3))
    check(lambda y: y.index_add(0, torch.full((0,), 2), torch.full((0,), torch.inf)), torch.zeros(3))
    check(lambda y, v: y.scatter_add(0, torch.ones(5, 4, dtype=torch.int64), v.expand(5, 4)), torch.zeros(3, 4), values)


def test_mutation_beside_training() -> None:
    def f(w: torch.Tensor, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        h = (x @ w).relu()
        seen.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        return h / (seen + 1)

    check(f, torch.randn(9, 5, requires_grad=True), torch.randn(7, 9), torch.rand(5))


def test_mutated_input_that_needs_gradients() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[1:].mul_(x[:-1])
        y.t()[0].add_(1)
        return y.add_(x)

    check(f, torch.randn(5, 9, requires_grad=True))


def test_batch_norm_statistics() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.BatchNorm2d(8, momentum=None))
    twin = copy.deepcopy(model)
    run = compiled(twin)
    for x in torch.randn(3, 4, 3, 9, 9):
        same(run(x), model(x), tolerance=1e-4)
    same(dict(twin.state_dict()), dict(model.state_dict()), tolerance=1e-4)


def test_key_value_cache() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("keys", torch.zeros(2, 16, 8))
            self.register_buffer("values", torch.zeros(2, 16, 8))
            self.project = nn.Linear(8, 24)

        def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            q, k, v = self.project(x).chunk(3, -1)
            self.keys.index_put_((torch.arange(2)[:, None], at[None]), k)
            self.values[:, at] = v
            scores = q @ self.keys.mT / 8**0.5
            scores = scores.masked_fill(torch.arange(16) > at[-1], float("-inf"))
            return torch.softmax(scores, -1) @ self.values

    model = Attention()
    twin = copy.deepcopy(model)
    run = compiled(twin)
    with torch.no_grad():
        for start, count in ((0, 5), (5, 1), (6, 1), (7, 1)):
            x, at = torch.randn(2, count, 8), torch.arange(start, start + count)
            same(run(x, at), model(x, at), tolerance=1e-5)
    same(dict(twin.state_dict()), dict(model.state_dict()), tolerance=1e-5)


# Structures

Pair = namedtuple("Pair", ["left", "right"])


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: {"a": x + 1, "b": [x.sum(), None, 3, "text", 2.5, True], "c": (x * 2,)},
        lambda x: Pair(x + 1, x.sum(0)),
        lambda x: [],
        lambda x: None,
        lambda x: 5,
        lambda x: (x.shape, x.dtype, x.numel(), x.dim()),
        lambda x: [x, x + 1, [x.t(), {"deep": (x - 1, ())}]],
        lambda x: (torch.ones(3), x.mean()),
        lambda x: torch.tensor([1.0, 2.0]),
    ],
)
def test_structures(fn: Callable[..., Any]) -> None:
    check(fn, torch.randn(3, 5))


def test_structures_of_arguments() -> None:
    def f(x: torch.Tensor, *rest: Any, scale: float = 2.0, **named: Any) -> Any:
        return x * scale + rest[0]["w"] + named["bias"][1], None if named["skip"] is None else x

    x, w = torch.randn(3), torch.randn(3)
    args, names = (x, {"w": w}, None), {"bias": [1, torch.ones(3)], "skip": None, "scale": 0.5}
    same(compiled(f)(*args, **names), f(*args, **names))


# Calls within calls


def test_compiled_functions_call_each_other() -> None:
    inner = compiled(lambda x: x.sin() * 2)
    same(
        compiled(lambda x: inner(x) + inner(x + 1))(torch.ones(5)),
        torch.ones(5).sin() * 2 + torch.full((5,), 2.0).sin() * 2,
    )


def test_graph_breaks() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        z = y.relu() if y.sum() > 0 else y.neg()
        torch._dynamo.graph_break()
        return z + y

    run = compiled(f)
    for x in (torch.ones(5), -torch.ones(5)):
        same(run(x), f(x))


def test_a_graph_runs_inside_itself() -> None:
    """Memory of an outer call that is not done must not serve the inner one."""

    def body(x: torch.Tensor, depth: int) -> torch.Tensor:
        h = torch.softmax(x @ x, -1)
        below = torch.ops.ridgeline_tests.again(h + 1, depth)
        return (h * below @ x).sum(0)

    @torch.library.custom_op("ridgeline_tests::again", mutates_args=())
    def again(x: torch.Tensor, depth: int) -> torch.Tensor:
        return call(x * 0.1, depth - 1) + torch.zeros_like(x) if depth else x.clone()

    @again.register_fake
    def _(x: torch.Tensor, depth: int) -> torch.Tensor:
        return torch.empty_like(x)

    run, loose = loosely(body, dynamic=False)
    x = torch.randn(19, 19) * 0.1
    call = body
    want = body(x, 3)
    call = run
    same(run(x, 3), want, tolerance=1e-5)
    assert all(e.reason is None for e in loose.events)


def test_backward_runs_a_forward() -> None:
    inner = compiled(lambda g: torch.softmax(g @ g.mT, -1) @ g)

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return torch._dynamo.disable(inner)(g)

    def f(x: torch.Tensor) -> torch.Tensor:
        return Twice.apply(torch.softmax(x @ x.mT, -1) @ x).tanh()

    outer = compiled(lambda x: torch.softmax(x @ x.mT, -1) @ x)
    x = torch.randn(9, 17, requires_grad=True)
    (got,) = torch.autograd.grad(Twice.apply(outer(x)).tanh().sum(), x)
    (want,) = torch.autograd.grad(f(x).sum(), x)
    torch.testing.assert_close(got, want)


def test_checkpointing_and_functional_transforms() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        h = torch.utils.checkpoint.checkpoint(lambda t: torch.softmax(t @ w, -1).relu(), x, use_reentrant=False)
        return h.sum(0), torch.vmap(lambda row: row.softmax(0).sum())(x), torch.func.grad(lambda t: (t**2).sum())(x)

    check(f, torch.randn(5, 9, requires_grad=True), torch.randn(9, 9, requires_grad=True))


# Autograd


def test_backward_twice() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (torch.softmax(x, -1) * x).sum()

    run, x = compiled(f), torch.randn(5, 9, requires_grad=True)
    loss = run(x)
    (first,) = torch.autograd.grad(loss, x, retain_graph=True)
    (second,) = torch.autograd.grad(loss, x, retain_graph=True)
    same(second, first)
    (third,) = torch.autograd.grad(loss, x)
    same(third, first)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, x)


def test_second_derivatives_raise_as_in_every_backend() -> None:
    x = torch.randn(5, requires_grad=True)
    (g,) = torch.autograd.grad(compiled(lambda t: (t**3).sum())(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(g.sum(), x)


def test_saved_tensors_changed_in_place() -> None:
    """As in eager, autograd notices that an input of the graph was changed before backward."""
    x = torch.randn(5, requires_grad=True)
    y = x * 1
    loss = compiled(lambda t: t.square().sum())(y)
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# Random numbers


def draws(x: torch.Tensor) -> Any:
    a = F.dropout(x, 0.3)
    b = F.dropout(a.exp(), 0.5)
    noise = torch.randn_like(x) + torch.rand(x.shape)
    return (
        a,
        b,
        noise,
        torch.bernoulli(torch.sigmoid(x)),
        torch.randperm(7),
        F.dropout(x.sum(0), 0.2),
        torch.randint(0, 9, (4,)),
    )


def out_of_order(x: torch.Tensor) -> Any:
    """The second mask is ready long before the first one's input."""
    first = F.dropout(torch.softmax(x @ x.mT, -1) @ x, 0.5)
    second = F.dropout(x, 0.5)
    return first + second, first.sum(0) * second.sum(0), second * 2


@pytest.mark.parametrize("fn", [draws, out_of_order])
@pytest.mark.parametrize("grad", [False, True])
def test_random_streams(fn: Callable[..., Any], grad: bool) -> None:
    run, x = compiled(fn), torch.randn(9, 17, requires_grad=grad)
    for seed in range(3):
        torch.manual_seed(seed)
        got, after = run(x), torch.get_rng_state()
        torch.manual_seed(seed)
        same(got, fn(x), tolerance=1e-5)
        assert torch.equal(after, torch.get_rng_state())


def test_dropout_backward_uses_the_mask() -> None:
    model = Block(dropout=0.5)
    twin, x = copy.deepcopy(model), torch.randn(12, 9)
    grads = []
    for m, call in ((twin, compiled(twin)), (model, model)):
        torch.manual_seed(5)
        call(x).square().sum().backward()
        grads.append([p.grad for p in m.parameters()])
    same(grads[0], grads[1], tolerance=1e-4)


# Errors and options


def test_errors_of_the_program_pass() -> None:
    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        if n > 3:
            raise ValueError("mine")
        return y + n

    run, x = compiled(f), torch.ones(4)
    same(run(x, 1), f(x, 1))
    for _ in range(3):
        with pytest.raises(ValueError, match="mine"):
            run(x, 9)
    same(run(x, 1), f(x, 1))


def test_errors_of_operators_pass_and_leave_the_graph_usable() -> None:
    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        h = torch.softmax(x, -1) * 2
        return torch.linalg.cholesky(h @ h.mT + i * torch.eye(9)) + h.sum()

    run, backend = loosely(f)
    x = torch.randn(9, 9)
    for i in (9.0, -100.0, 9.0):
        value = torch.tensor(i)
        if i > 0:
            same(run(x, value), f(x, value), tolerance=1e-4)
        else:
            with pytest.raises(RuntimeError, match="positive-definite"):
                run(x, value)
    assert all(e.reason is None for e in backend.events)


def test_unknown_options_are_an_error_naming_the_known() -> None:
    run = torch.compile(lambda x: x + 1, backend="ridgeline", options={"stric": True})
    with pytest.raises(Exception, match=r"unknown option 'stric'.*Did you mean 'strict'.*threads"):
        run(torch.ones(3))
    with pytest.raises(UnknownOption):
        knobs_from({"no such": 1})


@pytest.mark.parametrize(
    "name, value", [("strict", "perhaps"), ("threads", -1), ("fuel", 1.5), ("target", "cobol"), ("cache", 3)]
)
def test_bad_values_of_options_are_errors(name: str, value: Any) -> None:
    with pytest.raises(BadOption, match=name):
        knobs_from({name: value})


def test_options_by_type() -> None:
    assert knobs_from({"strict": True, "threads": 2}, {}) == Knobs(strict=True, threads=2)
    given = {"RIDGELINE_DEBUG": "3", "RIDGELINE_STRICT": "1", "RIDGELINE_FUEL": "0"}
    assert knobs_from({"debug": 1}, given) == Knobs(debug=1, strict=True, fuel=0)


def test_options_and_modes() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    x = torch.ones(5)
    for how in ({"options": {"strict": True}}, {"options": {"strict": True, "fuel": 0}}, {"mode": "max-autotune"}, {}):
        same(torch.compile(f, backend="ridgeline", **how)(x), f(x))
