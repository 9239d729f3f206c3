"""Outputs that share memory, empty and 0-dimensional tensors, inputs of every layout, changing sizes: against eager."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from backends import ENGINE, check, compiled, copied, flat, gradients, loosely, same, strides

from ridgeline.top.backend import Backend


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


# Aliasing


def shares(outputs: Any, arguments: Any) -> list[list[int]]:
    everything = [*flat(arguments), *flat(outputs)]
    return [
        [k for k, u in enumerate(everything) if u.untyped_storage().data_ptr() == t.untyped_storage().data_ptr()]
        for t in everything
    ]


ALIASES: dict[str, Callable[..., Any]] = {
    "views of inputs": lambda x, y: (x.t(), x[1], x.view(-1), x[:, ::2], x),
    "the same twice": lambda x, y: (z := x + y, z, z),
    "detached": lambda x, y: ((x * 2).detach(), x.detach(), y),
    "views of intermediates": lambda x, y: (z := x * y, z[0], z.t(), z.view(-1)[3:]),
    "only views of intermediates": lambda x, y: ((x * y)[1:], (x + y).t()),
    "two views of one": lambda x, y: (z := x * y, (z[1:], z[:-1]))[1],
    "expanded": lambda x, y: x.sum(0).expand(4, -1),
    "through a call": lambda x, y: (z := torch.cumsum(x, 0), z.t(), z[0])[1:],
    "mutated then viewed": lambda x, y: (y.add_(1), y[0], y.t()),
    "contiguous": lambda x, y: (x.contiguous(), x.t().contiguous(), x.to(torch.float32), x.reshape(-1)),
}


@pytest.mark.parametrize("name", ALIASES)
@pytest.mark.parametrize("grad", [False, True])
def test_aliased_outputs(name: str, grad: bool) -> None:
    fn = ALIASES[name]
    args = torch.randn(4, 9).requires_grad_(grad), torch.randn(4, 9)
    run = check(fn, *args)
    ours, theirs = copied(args), copied(args)
    got, want = run(*ours), fn(*theirs)
    assert shares(got, ours) == shares(want, theirs)
    if not grad:
        for g, w in zip(flat(got), flat(want), strict=True):
            if g.numel() and 0 not in g.stride():
                g.add_(1), w.add_(1)
        same(ours, theirs), same(got, want)


def test_arguments_that_overlap() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        b.mul_(2)
        return a.sum() + b.sum()

    ours = torch.randn(12)
    theirs = ours.clone()
    run, backend = loosely(f)
    for one, other in ((slice(0, 8), slice(3, 12)), (slice(0, 12), slice(0, 12)), (slice(0, 4), slice(6, 12))):
        same(run(ours[one], ours[other]), f(theirs[one], theirs[other]))
        same(ours, theirs)
    assert all(e.reason is None for e in backend.events)


def test_lists_changed_in_place() -> None:
    run, backend = loosely(lambda x, y: torch._foreach_add_([x, y], 1.0))
    x, y = torch.randn(9), torch.randn(4, 3)
    want = x + 1, y + 1
    run(x, y)
    same((x, y), want)
    assert all(e.reason is None for e in backend.events)


def test_one_tensor_given_twice() -> None:
    run = compiled(lambda a, b: (a.add_(b), b * 2))
    x = torch.randn(9)
    y = x.clone()
    same(run(x, x), (y.add_(y), y * 2))
    same(run(x, y), (y + y, y * 2))
    same(x, y + y)


# Sizes


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x + 1,
        lambda x: x.sum(),
        lambda x: x.mean(),
        lambda x: x.sum(0),
        lambda x: x.prod(-1),
        lambda x: torch.softmax(x, 0),
        lambda x: torch.cat([x, x + 1]),
        lambda x: x @ x.mT,
        lambda x: F.pad(x, (1, 1)),
        lambda x: x.reshape(-1),
        lambda x: (x.any(), x.all(), x.flip(0), x.std()),
        lambda x: x.cumsum(0) + 1,
        lambda x: F.layer_norm(x, x.shape[-1:]),
    ],
)
@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)])
def test_empty(fn: Callable[..., Any], shape: tuple[int, ...]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # std of nothing
        check(fn, torch.randn(shape, requires_grad=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16])
def test_zero_dimensional(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        z = x.float() * 2 + y
        return (
            z,
            x.sum(),
            x.max(),
            z.mean(),
            x.reshape(1, 1),
            x.expand(3),
            torch.stack([z, z]),
            torch.where(x > 0, z, y),
            x.clone(),
        )

    check(f, torch.tensor(1, dtype=dtype), torch.randn(()))
    check(f, torch.tensor(1, dtype=dtype), torch.randn(5))


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "plain": lambda: torch.randn(2, 6, 5, 7),
    "transposed": lambda: torch.randn(7, 5, 6, 2).permute(3, 2, 1, 0),
    "channels last": lambda: torch.randn(2, 6, 5, 7).to(memory_format=torch.channels_last),
    "expanded": lambda: torch.randn(1, 6, 1, 7).expand(2, 6, 5, 7),
    "sliced": lambda: torch.randn(4, 12, 5, 16)[1:3, ::2, :, 2:16:2],
    "inner swap": lambda: torch.randn(2, 6, 7, 5).mT,
    "offset": lambda: torch.randn(3 + 2 * 6 * 5 * 7)[3:].view(2, 6, 5, 7),
    "overlapping": lambda: torch.randn(400).as_strided((2, 6, 5, 7), (3, 20, 7, 1)),
}
SHAPED: dict[str, Callable[..., Any]] = {
    "pointwise": lambda x: (x + 1, x * x, -x, x.sigmoid()),
    "broadcast": lambda x: (x + x[:1, :1], x + x[0, 0, 0], x[:, :, :1] * x),
    "folds": lambda x: (x.sum(1), x.mean((0, 2)), x.amax(3, keepdim=True), x.var((1, 2, 3))),
    "rows": lambda x: (torch.softmax(x, 1), F.layer_norm(x, x.shape[-2:]), torch.softmax(x, -1)),
    "moves": lambda x: (x.contiguous(), x.clone(), x.transpose(0, 1) + 1, torch.cat([x, x], 1), x.flatten(1) * 2),
    "formats": lambda x: (x.contiguous(memory_format=torch.channels_last), torch.empty_like(x).fill_(1), x.relu()),
    "convolution": lambda x: F.conv2d(x, torch.ones(4, 6, 3, 3) / 9).relu() + 1,
    "pooling": lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 3, 1, 1), F.interpolate(x, scale_factor=2.0)),
    "norms": lambda x: (F.batch_norm(x, None, None, training=True), F.group_norm(x, 3)),
    "products": lambda x: (x @ x.mT, x.flatten(2).mT @ x.flatten(2)),
    "gathers": lambda x: (
        x[:, torch.tensor([0, 5, 0])],
        x.gather(3, x.long().abs() % 7),
        x.index_select(2, torch.tensor([4, 1])),
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SHAPED)
def test_layouts(layout: str, name: str) -> None:
    """Values and gradients."""
    fn, x = SHAPED[name], LAYOUTS[layout]().requires_grad_()
    ours, theirs = copied(x), copied(x)
    got, want = flat(compiled(fn)(ours)), flat(fn(theirs))
    same([g.contiguous() for g in got], [w.contiguous() for w in want], tolerance=2e-5)
    gradients(got, want, ours, theirs, tolerance=2e-5)
    # Strides are those that tracing foretells; eager's own kernels depart from them here and there.
    fakes = torch._subclasses.FakeTensorMode()
    fake = fakes.from_tensor(x.detach())
    with fakes:
        foretold = flat(fn(fake))
    assert list(map(strides, got)) == list(map(strides, foretold))


def test_sizes_that_change() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        h = torch.softmax(x @ w, -1)
        return h, h.sum(0), torch.cat([x, x * 2]), x.reshape(-1)[1:], x.shape[0] * 2, F.pad(x, (0, 1)).mean(1)

    for dynamic in (True, None):
        torch._dynamo.reset()
        backend = Backend(ENGINE, ENGINE.knobs)
        run = torch.compile(f, backend=backend, dynamic=dynamic)
        w = torch.randn(7, 33, requires_grad=True)
        for n in (5, 9, 1, 64, 17, 2, 0, 9):
            x = torch.randn(n, 7)
            got, want = run(x, w), f(x, w)
            same(got, want, tolerance=1e-5)
            (g,), (e,) = (torch.autograd.grad(o[0].square().sum() + o[1].sum(), [w]) for o in (got, want))
            torch.testing.assert_close(g, e, rtol=1e-4, atol=1e-5)
        assert len([e for e in backend.events if e.phase == "forward"]) <= (4 if dynamic else 5)


def test_every_size_changes() -> None:
    def f(x: torch.Tensor) -> Any:
        return (x + 1).transpose(0, 1).contiguous(), x.mean((0, 1)), x.flip(2), F.layer_norm(x, x.shape[-1:]), x.amax(1)

    run = compiled(f, dynamic=True)
    for shape in ((3, 4, 5), (9, 2, 33), (1, 4, 5), (17, 1, 3), (4, 4, 4)):
        x = torch.randn(shape)
        same(run(x), f(x), tolerance=1e-5)
