"""Memory across calls: what a program still holds is never written again, threads do not meet, nothing grows.

Outputs here are larger than `blocks.LEAST_BYTES`, so that they lie in memory that is used again.
"""

import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from backends import compiled, loosely
from torch.utils import dlpack

from ridgeline.base.knobs import Knobs
from ridgeline.runtime.blocks import BLOCKS, LEAST_BYTES
from ridgeline.runtime.memory import SLABS
from ridgeline.top.backend import Backend
from ridgeline.top.engine import Engine

COUNT = 2 * LEAST_BYTES // 4


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def filled(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


HOLDERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": lambda t: t,
    "view": lambda t: t[5:],
    "element": lambda t: t[-1],
    "detached": lambda t: t.detach(),
    "array": lambda t: t.numpy(),
    "array view": lambda t: t.numpy()[::7],
    "buffer": lambda t: memoryview(t.numpy()),
    "storage": lambda t: t.untyped_storage(),
    "capsule": lambda t: dlpack.to_dlpack(t),
    "set": lambda t: torch.empty(0).set_(t.untyped_storage(), 3, (5,), (2,)),
    "saved for backward": lambda t: (torch.ones(COUNT, requires_grad=True) * t).sum(),
    "closure": lambda t: lambda: t,
}


def content(held: Any) -> float:
    """The sum of what a holder still sees."""
    if callable(held):
        held = held()
    if isinstance(held, torch.UntypedStorage):
        held = torch.empty(0).set_(held)
    if isinstance(held, torch.Tensor) and held.grad_fn is not None:
        leaf = held.grad_fn.next_functions[0][0].next_functions[0][0].variable
        (held,) = torch.autograd.grad(held, leaf, retain_graph=True)
    if "PyCapsule" in type(held).__name__:
        held = dlpack.from_dlpack(held)
    return float(torch.as_tensor(held).double().sum())


@pytest.mark.parametrize("name", HOLDERS)
def test_what_is_held_is_never_overwritten(name: str) -> None:
    run = compiled(filled)
    held, expected = [], []
    for k in range(6):
        out = run(torch.full((COUNT,), float(k)))
        held.append(HOLDERS[name](out))
        del out
        fresh = filled(torch.full((COUNT,), float(k)))
        expected.append(content(HOLDERS[name](fresh)))
    for _ in range(4):
        run(torch.full((COUNT,), -99.0))
    assert list(map(content, held)) == expected


def test_memory_that_nobody_holds_is_used_again() -> None:
    run = compiled(filled)
    x = torch.ones(COUNT)
    places = set()
    for _ in range(6):
        out = run(x)
        places.add(out.data_ptr())
        del out
    assert len(places) == 1


def test_storages_are_as_large_as_the_tensor() -> None:
    out = compiled(filled)(torch.ones(COUNT + 3))
    assert out.untyped_storage().nbytes() == 4 * (COUNT + 3)
    assert out._base is None and out.storage_offset() == 0


def test_memory_shared_with_other_processes_is_left_alone() -> None:
    run = compiled(filled)
    out = run(torch.ones(COUNT))
    out.share_memory_()
    handle = out.untyped_storage()._share_filename_cpu_()
    theirs = torch.UntypedStorage._new_shared_filename_cpu(*handle)
    del out
    run(torch.zeros(COUNT))
    assert torch.empty(0).set_(theirs, 0, (COUNT,), (1,)).unique().tolist() == [3]


def test_a_resized_output_does_not_come_back_short() -> None:
    run = compiled(filled)
    out = run(torch.ones(COUNT))
    out.untyped_storage().resize_(0)
    del out
    assert run(torch.ones(COUNT)).unique().tolist() == [3]


def test_pending_backwards_keep_their_activations() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * w, -1).square().cumsum(0)

    run = compiled(f)
    w = torch.randn(1024, requires_grad=True)
    xs = torch.randn(5, 512, 1024)
    losses = [run(x, w).sum() for x in xs]
    for k in (3, 0, 4, 1, 2):
        (got,) = torch.autograd.grad(losses[k], w)
        (want,) = torch.autograd.grad(f(xs[k], w).sum(), w)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_threads() -> None:
    """One function from several threads, each with its own slab and its own outputs."""

    def f(x: torch.Tensor) -> Any:
        h = torch.cumsum(torch.softmax(x, -1), 0)  # a library call between two kernels: h lives in the slab
        return x * 2, (h * 3).sum(0)

    run = compiled(f)
    xs = torch.randn(4, 300, 1024)
    want = [f(x) for x in xs]
    run(xs[0])
    wrong: list[int] = []

    def work(k: int) -> None:
        for _ in range(25):
            got = run(xs[k])
            if not all(torch.allclose(g, w, rtol=1e-4, atol=1e-4) for g, w in zip(got, want[k], strict=True)):
                wrong.append(k)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


def test_a_block_is_held_before_another_thread_can_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is held until the tensor holds the block: else two threads can be given one block."""
    held: list[bool] = []

    class Watched(torch.Tensor):
        def set_(self, *args: Any) -> torch.Tensor:  # type: ignore[override]
            held.append(BLOCKS._lock.locked())
            return super().set_(*args)

    monkeypatch.setattr("ridgeline.runtime.blocks.torch.empty", lambda *a, **k: torch.zeros(0).as_subclass(Watched))
    BLOCKS.tensor(LEAST_BYTES, torch.float32, (5,), (1,))
    assert held == [True]


def test_an_error_in_a_call_leaves_no_memory_behind() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        h = torch.softmax(x @ x.mT, -1)
        return torch.linalg.cholesky(h - 5 * torch.eye(400)) @ h

    run, backend = loosely(f)
    SLABS.clear()
    for _ in range(5):
        with pytest.raises(RuntimeError, match="positive-definite"):
            run(torch.randn(400, 400))
    gc.collect()
    assert backend.events[0].reason is None
    assert sum(map(len, SLABS.free.values())) <= 1


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell")
def test_a_thousand_calls_do_not_grow() -> None:
    w = torch.randn(64, 64, requires_grad=True)
    run = compiled(lambda x: torch.softmax((x @ w).relu(), -1).square().sum())

    def calls(count: int) -> None:
        for _ in range(count):
            run(torch.randn(512, 64)).backward()
            w.grad = None

    # What leaks grows in every window; what an allocator takes once, at a time of its choosing, grows in one.
    calls(100)
    gc.collect()
    resident, objects = [resident_bytes()], len(gc.get_objects())
    for _ in range(6):
        calls(200)
        gc.collect()
        resident.append(resident_bytes())
    assert min(later - earlier for earlier, later in pairwise(resident)) < 100_000
    assert len(gc.get_objects()) - objects < 500


def test_a_compiled_function_can_be_collected() -> None:
    engine = Engine(Knobs(strict=True))
    backend = Backend(engine, engine.knobs)

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1) @ x

    run = torch.compile(f, backend=backend)
    run(torch.randn(9, 9, requires_grad=True)).sum().backward()
    seen = [weakref.ref(backend), weakref.ref(backend.events[0].compiled.run)]
    del run, backend, f, engine
    torch._dynamo.reset()
    gc.collect()
    assert [r() for r in seen] == [None, None]


def test_forked_children_compile_and_run() -> None:
    """As a DataLoader's workers do: with one thread, for OpenMP's team does not outlive the fork."""
    run = compiled(filled)
    run(torch.ones(COUNT))
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        fine = torch.equal(run(torch.ones(COUNT)), torch.full((COUNT,), 3.0))
        os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0
