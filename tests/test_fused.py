"""What the walk makes of whole operators, both ways: how many kernels, and the bytes they move.

Bytes are literals for 4 rows of 1,024 numbers (N = 4,096 numbers, 16,384 bytes of fp32) unless said otherwise.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from backends import ENGINE

from ridgeline.ir.steps import KernelStep
from ridgeline.top.backend import Backend
from ridgeline.top.price import price

ROWS, WIDTH = 4, 1024
N = ROWS * WIDTH * 4
LABELS = torch.arange(ROWS)
SMALL = 400  # bytes of labels, row statistics and single numbers


def rand(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype).requires_grad_(grad)


def moved(function: Callable[..., torch.Tensor], *inputs: Any) -> list[tuple[int, int]]:
    """(kernels, bytes) of each graph: forward, then backward."""
    torch._dynamo.reset()
    backend = Backend(ENGINE, ENGINE.knobs)
    out = torch.compile(function, backend=backend)(*inputs)
    if out.requires_grad:
        out.backward(torch.ones_like(out))
    found = []
    for event in backend.events:
        assert event.compiled is not None
        steps = event.compiled.steps
        priced = price(steps, ENGINE.device(torch.device("cpu")), event.phase, 1.0)
        assert len(priced.kernels) == sum(isinstance(s, KernelStep) for s in steps.steps)
        bytes_ = sum(k.work.bytes for k in priced.kernels if k.work)
        assert bytes_ >= priced.limit_work.bytes
        found.append((len(priced.kernels), bytes_))
    return found


CASES: dict[str, tuple[Callable[..., torch.Tensor], list[Any], int, int]] = {
    # Forward: x read, y written. Backward: dy and y read, dx written.
    "softmax": (lambda x: torch.softmax(x, -1), [rand(ROWS, WIDTH)], 2 * N, 3 * N),
    "log-softmax": (lambda x: torch.log_softmax(x, -1), [rand(ROWS, WIDTH)], 2 * N, 3 * N),
    # Backward with the gradients of weight and bias: dy, x and w read; dx, dw and db written: 3 N and 3 rows.
    "layer norm": (
        lambda x, w, b: F.layer_norm(x, (WIDTH,), w, b),
        [rand(ROWS, WIDTH), rand(WIDTH), rand(WIDTH)],
        2 * N + 2 * N // ROWS,
        3 * N + 3 * N // ROWS,
    ),
    "rms norm": (
        lambda x, w: F.rms_norm(x, (WIDTH,), w),
        [rand(ROWS, WIDTH), rand(WIDTH)],
        2 * N + N // ROWS,
        3 * N + 2 * N // ROWS,
    ),
    # As transformers writes it, in bf16: half the bytes.
    "rms norm in bf16, by hand": (
        lambda x, w: w * (x.float() * (x.float().pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()).to(x.dtype),
        [rand(ROWS, WIDTH, dtype=torch.bfloat16), rand(WIDTH, dtype=torch.bfloat16)],
        (2 * N + N // ROWS) // 2,
        (3 * N + 2 * N // ROWS) // 2,
    ),
    "batch norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        [rand(16, 2, 8, 16), rand(2), rand(2)],  # 4,096 numbers too
        2 * N,
        3 * N,
    ),
    # Forward reads the logits and no more; backward reads them again and writes their gradient.
    "cross-entropy": (lambda x: F.cross_entropy(x, LABELS), [rand(ROWS, WIDTH)], N, 2 * N),
    "cross-entropy of bf16 logits in fp32": (
        lambda x: F.cross_entropy(x.float(), LABELS),
        [rand(ROWS, WIDTH, dtype=torch.bfloat16)],
        N // 2,
        N,
    ),
    "cross-entropy with a soft cap": (
        lambda x: F.cross_entropy(30 * torch.tanh(x / 30), LABELS),
        [rand(ROWS, WIDTH)],
        N,
        2 * N,
    ),
    "bias + gelu": (lambda x, b: F.gelu(x + b), [rand(ROWS, WIDTH), rand(WIDTH)], 2 * N + N // 4, 3 * N + 2 * N // 4),
    # The halves of one tensor, gated: its gradient is put together where it is made.
    "swiglu of halves": (
        lambda x: F.silu(x[:, : WIDTH // 2]) * x[:, WIDTH // 2 :],
        [rand(ROWS, WIDTH)],
        N + N // 2,
        N + N // 2 + N,
    ),
    # q, cos and sin read (a row of each for 64 positions), q's rotation written; the same backward.
    "rotary embedding": (
        lambda q, c, s: q * c + torch.cat((-q[..., 64:], q[..., :64]), -1) * s,
        [rand(2, 8, 16, 128), rand(16, 128, grad=False), rand(16, 128, grad=False)],  # 32,768 numbers
        2 * 8 * N + N,
        2 * 8 * N + N,
    ),
    # Values and indices (8 bytes each) of a quarter of the numbers, made together.
    "max pool": (lambda x: F.max_pool2d(x, 3, 2, 1), [rand(2, 2, 32, 32)], N + N // 4 + N // 2, N + N // 4 + N // 2),
}


@pytest.mark.parametrize("name", CASES)
def test_one_kernel_each_way(name: str) -> None:
    function, inputs, forward, backward = CASES[name]
    (k_forward, b_forward), (k_backward, b_backward) = moved(function, *inputs)
    assert (k_forward, k_backward) == (1, 1)
    assert forward <= b_forward <= forward + SMALL
    assert backward <= b_backward <= backward + SMALL


def test_a_shifted_loss_moves_its_logits_once() -> None:
    """The next-token loss of language models: logits[:, :-1] against tokens[:, 1:], 31 of 32 positions."""
    x, t = rand(2, 32, 256), torch.randint(0, 256, (2, 32))  # 65,536 bytes of logits, 63,488 of them read
    shifted = moved(lambda x, t: F.cross_entropy(x[:, :-1].reshape(-1, 256), t[:, 1:].reshape(-1)), x, t)
    assert 63_488 <= shifted[0][1] <= 63_488 + 2 * 512 + SMALL  # each of two kernels reads the tokens
    assert shifted[1] == (1, pytest.approx(63_488 + 65_536, abs=1024 + SMALL))


def test_a_residual_stream_is_not_made_again_downstream() -> None:
    """Two norms and products around a residual: each kernel moves what the limit says, within a hundredth."""
    torch.manual_seed(0)
    first, second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
    gains = [torch.nn.RMSNorm(64) for _ in range(2)]

    def block(x: torch.Tensor) -> torch.Tensor:
        x = x + first(gains[0](x))
        return x + second(gains[1](x))

    torch._dynamo.reset()
    backend = Backend(ENGINE, ENGINE.knobs)
    torch.compile(block, backend=backend)(rand(512, 64)).sum().backward()
    for event in backend.events:
        assert event.compiled is not None
        priced = price(event.compiled.steps, ENGINE.device(torch.device("cpu")), event.phase, 1.0)
        total = sum(k.work.bytes for k in priced.kernels if k.work)
        assert priced.limit_work.bytes <= total <= 1.01 * priced.limit_work.bytes


def test_the_backward_gets_row_statistics_and_not_a_tensor() -> None:
    """Two numbers a row cross from forward to backward, and eager mode is charged for no operator that we added."""
    torch._dynamo.reset()
    backend = Backend(ENGINE, ENGINE.knobs)
    x = rand(ROWS, WIDTH)
    torch.compile(lambda x: F.cross_entropy(F.gelu(x), LABELS), backend=backend)(x).backward()
    forward, backward = backend.events
    assert forward.compiled is not None and backward.compiled is not None
    graph = backward.compiled.plan.graph
    given = sorted(str(graph.buffers[name].shape) for name in graph.inputs)
    assert given.count("(4, 1)") == 2 and given.count("(4, 1024)") == 1  # x itself is read again
    device = ENGINE.device(torch.device("cpu"))
    eager = [
        [k.operators[0].split(".")[1] for k in price(e.compiled.steps, device, e.phase, 1.0).eager]
        for e in (forward, backward)
        if e.compiled is not None
    ]
    assert eager == [
        ["gelu", "_log_softmax", "nll_loss_forward"],
        ["nll_loss_backward", "_log_softmax_backward_data", "gelu_backward"],
    ]
