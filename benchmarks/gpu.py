"""Eager, TorchInductor and Ridgeline on memory-bound patterns, interleaved in one run on this GPU.

    python benchmarks/gpu.py                   all patterns, a table, and a dated JSON in benchmarks/results/
    python benchmarks/gpu.py softmax gelu      only these

Every call is captured once in a CUDA graph and replayed, on inputs that take turns, with the last-level cache filled
with something else before each replay. Times are medians of interleaved rounds in random order, by device events; the
spread is the distance between the quartiles. `limit` is the pattern's least bytes over the copy rate (the read rate
for patterns that write next to nothing), both measured in the same run by Triton kernels on 1 GiB of random data.
"""

import argparse
import json
import platform
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

RESULTS = Path(__file__).parent / "results"
FLUSH_BYTES = 512 << 20  # read between replays, eight times the last-level cache: it then holds nothing to write back
SETS = 2  # of inputs, in turn
Function = Callable[..., Any]


@dataclass(frozen=True)
class Pattern:
    """One workload: its function, a maker of one set of inputs, and the least bytes it must move.

    With `backward`, the last input is the gradient of what the function gives, None for a single number's.
    """

    name: str
    function: Function
    inputs: Callable[[], list[Any]]
    least_bytes: float
    backward: bool = False
    read_only: bool = False


def rand(*shape: int, grad: bool = False, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, device=DEVICE).requires_grad_(grad)


def numbers(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, device=DEVICE)


DEVICE = "cuda"


def rope(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = q.shape[-1] // 2
    return q * cos + torch.cat((-q[..., half:], q[..., :half]), -1) * sin


def batch_norm_relu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.relu(F.batch_norm(x, None, None, w, b, training=True))


def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b)


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), w)


def adamw(*tensors: torch.Tensor) -> None:
    """One step for several parameters: weights, gradients and both moments, a quarter of the list each."""
    count = len(tensors) // 4
    for k in range(count):
        p, g, m, v = (tensors[k + part * count] for part in range(4))
        m.lerp_(g, 0.1)
        v.mul_(0.95).addcmul_(g, g, value=0.05)
        p.mul_(1 - 1e-4).addcdiv_(m / 0.1, (v / 0.05).sqrt_().add_(1e-8), value=-1e-3)


def forward_patterns() -> list[Pattern]:
    m, n = 16384, 8192
    size = m * n * 2
    long = 2048 * 131072 * 2
    logits = 8192 * 128256 * 2
    image = 64 * 256 * 56 * 56 * 2
    return [
        Pattern("bias + gelu 16384x8192", lambda x, b: F.gelu(x + b), lambda: [rand(m, n), rand(n)], 2 * size),
        Pattern("swiglu 16384x8192", lambda a, b: F.silu(a) * b, lambda: [rand(m, n), rand(m, n)], 3 * size),
        Pattern("softmax 16384x8192", lambda x: torch.softmax(x, -1), lambda: [rand(m, n)], 2 * size),
        Pattern("softmax 2048x131072", lambda x: torch.softmax(x, -1), lambda: [rand(2048, 131072)], 2 * long),
        Pattern("softmax 1048576x128", lambda x: torch.softmax(x, -1), lambda: [rand(1 << 20, 128)], 2 * size),
        Pattern("rms norm 16384x8192", rms_norm, lambda: [rand(m, n), rand(n)], 2 * size),
        Pattern(
            "add + layer norm 16384x8192",
            lambda x, y, w, b: layer_norm(x + y, w, b),
            lambda: [rand(m, n), rand(m, n), rand(n), rand(n)],
            3 * size,
        ),
        Pattern(
            "cross entropy 8192x128256",
            lambda x, t: F.cross_entropy(x, t),
            lambda: [rand(8192, 128256), numbers(128256, 8192)],
            logits,
            read_only=True,
        ),
        Pattern("column sum 16384x8192", lambda x: x.sum(0), lambda: [rand(m, n)], size, read_only=True),
        Pattern("var_mean of everything", torch.var_mean, lambda: [rand(m, n)], size, read_only=True),
        Pattern("transpose + add", lambda x, y: x.t() + y, lambda: [rand(n, m), rand(m, n)], 3 * size),
        Pattern(
            "cat with scale",
            lambda a, b: torch.cat((a * 2, b), -1),
            lambda: [rand(m, n // 2), rand(m, n // 2)],
            2 * size,
        ),
        Pattern(
            "rope 8x32x4096x128",
            rope,
            lambda: [rand(8, 32, 4096, 128), rand(4096, 128), rand(4096, 128)],
            2 * size,
        ),
        Pattern(
            "embedding 16384x4096",
            lambda i, w: F.embedding(i, w),
            lambda: [numbers(128256, 16384), rand(128256, 4096)],
            2 * 16384 * 4096 * 2,
        ),
        Pattern(
            "batch norm + relu 64x256x56x56 channels last",
            batch_norm_relu,
            lambda: [rand(64, 256, 56, 56).to(memory_format=torch.channels_last), rand(256), rand(256)],
            3 * image,
        ),
        Pattern(
            "adamw fp32, 8 x 4096x4096",
            adamw,
            lambda: (
                [rand(4096, 4096, dtype=torch.float32) for _ in range(24)]
                + [rand(4096, 4096, dtype=torch.float32).square() for _ in range(8)]
            ),
            8 * 4096 * 4096 * 28,
        ),
    ]


def training_patterns() -> list[Pattern]:
    """Forward and backward: three passes over rows backward, two forward (one where the result is one number)."""
    m, n = 16384, 8192
    logits = 8192 * 128256 * 2

    def norm(rows: int, width: int, count: int) -> Callable[[], list[Any]]:
        weights = [(width,)] * count
        return lambda: [*(rand(*shape, grad=True) for shape in ((rows, width), *weights)), rand(rows, width)]

    return [
        Pattern(
            "cross entropy 8192x128256, forward + backward",
            lambda x, t: F.cross_entropy(x, t),
            lambda: [rand(8192, 128256, grad=True), numbers(128256, 8192), None],
            3 * logits,
            backward=True,
        ),
        Pattern("rms norm 16384x8192, forward + backward", rms_norm, norm(m, n, 1), 5 * m * n * 2, backward=True),
        Pattern("layer norm 16384x8192, forward + backward", layer_norm, norm(m, n, 2), 5 * m * n * 2, backward=True),
        Pattern(
            "layer norm 175360x768, forward + backward", layer_norm, norm(175360, 768, 2), 5 * 175360 * 768 * 2, True
        ),
    ]


def step_of(pattern: Pattern, function: Function) -> Function:
    """One call: forward, and backward where the pattern has one."""
    if not pattern.backward:

        def forward(*inputs: torch.Tensor) -> Any:
            with torch.no_grad():
                return function(*inputs)

        return forward

    def both(*inputs: Any) -> Any:
        *given, gradient = inputs
        leaves = [i for i in given if i.requires_grad]
        return torch.autograd.grad(function(*given), leaves, gradient)

    return both


def captured(step: Function, inputs: Sequence[torch.Tensor]) -> tuple[Callable[[], None], Any]:
    """A replay of one call, and what it returned."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step(*inputs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step(*inputs)
    return graph.replay, out


class Timer:
    """Device time of a replay after the cache was filled with something else."""

    def __init__(self) -> None:
        self.other = torch.zeros(FLUSH_BYTES // 4, dtype=torch.int32, device=DEVICE)
        self.start, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]

    def __call__(self, replay: Callable[[], None]) -> float:
        self.other.sum()
        self.start.record()
        replay()
        self.end.record()
        self.end.synchronize()
        seconds: float = self.start.elapsed_time(self.end) / 1e3
        return seconds


def interleaved(replays: dict[str, list[Callable[[], None]]], rounds: int, timer: Timer) -> dict[str, list[float]]:
    """Seconds of each arm: arms in random order, sets of inputs in turn."""
    order, shuffle = list(replays), random.Random(0)
    times: dict[str, list[float]] = {name: [] for name in order}
    for k in range(rounds + 3):
        shuffle.shuffle(order)
        for name in order:
            seconds = timer(replays[name][k % len(replays[name])])
            if k >= 3:
                times[name].append(seconds)
    return times


def ceilings(rounds: int, timer: Timer) -> tuple[float, float]:
    """(copy, read) bytes a second of this device now, by kernels of this package."""
    x = torch.randn(1 << 28, device=DEVICE)
    y = torch.empty_like(x)
    copy = torch.compile(torch.clone, backend="ridgeline")
    read = torch.compile(torch.sum, backend="ridgeline")
    replays = {
        "copy": [captured(copy, [x])[0]],
        "read": [captured(read, [x])[0]],
        "memcpy": [captured(y.copy_, [x])[0]],
    }
    seconds = {name: statistics.median(t) for name, t in interleaved(replays, rounds, timer).items()}
    return 2 * x.nbytes / min(seconds["copy"], seconds["memcpy"]), x.nbytes / seconds["read"]


def compare(pattern: Pattern, rounds: int, backends: Sequence[str], timer: Timer) -> dict[str, Any]:
    """Interleaved medians of one pattern, cold compile seconds, and how far results lie from eager's."""
    torch.manual_seed(0)
    sets = [pattern.inputs() for _ in range(SETS)]
    steps: dict[str, Function] = {"eager": step_of(pattern, pattern.function)}
    compile_s: dict[str, float] = {}
    for backend in backends:
        torch._dynamo.reset()
        step = step_of(pattern, torch.compile(pattern.function, backend=backend, dynamic=False))
        start = time.perf_counter()
        step(*[s if s is None else s.detach().clone().requires_grad_(s.requires_grad) for s in sets[0]])
        torch.cuda.synchronize()
        compile_s[backend] = time.perf_counter() - start
        steps[backend] = step
    replays: dict[str, list[Callable[[], None]]] = {}
    results: dict[str, Any] = {}
    for name, step in steps.items():
        given = [captured(step, inputs) for inputs in sets]
        replays[name] = [replay for replay, _ in given]
        results[name] = given[0][1]
    times = interleaved(replays, rounds, timer)
    apart = {name: distance(results["eager"], results[name]) for name in backends}
    return {"pattern": pattern.name, "compile_s": compile_s, "seconds": times, "apart": apart}


def distance(expected: Any, found: Any) -> float | None:
    """The largest |found - expected| over the size of what is expected, over all tensors; None where none returned."""
    if expected is None:
        return None
    pairs = [(expected, found)] if isinstance(expected, torch.Tensor) else zip(expected, found, strict=True)
    return max(float((f.float() - e.float()).norm() / e.float().norm().clamp_min(1e-30)) for e, f in pairs)


def spread(seconds: Sequence[float]) -> float:
    low, _, high = statistics.quantiles(seconds, n=4)
    return high - low


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="patterns whose name contains one of these")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--without-inductor", action="store_true")
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    backends = ["ridgeline"] if args.without_inductor else ["inductor", "ridgeline"]
    for backend in backends:  # a trivial compile first: what a process pays once is not a pattern's
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(8, device=DEVICE))
    timer = Timer()
    copy, read = ceilings(args.rounds, timer)
    print(f"{torch.cuda.get_device_name()}: copy {copy / 1e12:.2f} TB/s, read {read / 1e12:.2f} TB/s")
    rows = []
    for pattern in (*forward_patterns(), *training_patterns()):
        if args.names and not any(n in pattern.name for n in args.names):
            continue
        row = compare(pattern, args.rounds, backends, timer)
        row["limit_s"] = pattern.least_bytes / (read if pattern.read_only else copy)
        row["median_s"] = {n: statistics.median(t) for n, t in row["seconds"].items()}
        row["spread_s"] = {n: spread(t) for n, t in row.pop("seconds").items()}
        row["of_limit"] = {n: row["limit_s"] / t for n, t in row["median_s"].items()}
        rows.append(row)
        shown = "  ".join(f"{n} {s * 1e3:7.3f} ms {row['of_limit'][n]:4.2f}" for n, s in row["median_s"].items())
        compiled = "  ".join(f"{s:.1f} s" for s in row["compile_s"].values())
        print(f"{pattern.name:46} {shown}  compile {compiled}  apart {row['apart']['ridgeline']}", flush=True)
        torch.cuda.empty_cache()
    report(rows, copy, read, args.output)


def report(rows: Sequence[dict[str, Any]], copy: float, read: float, folder: Path) -> None:
    """Writes the dated result file and prints geometric means."""
    for name in rows[0]["of_limit"]:
        print(f"geometric mean of the fraction of the limit, {name}: ", end="")
        print(f"{statistics.geometric_mean(row['of_limit'][name] for row in rows):.2f}")
    content = {
        "date": date.today().isoformat(),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "copy_bytes_per_s": copy,
        "read_bytes_per_s": read,
        "patterns": rows,
    }
    folder.mkdir(exist_ok=True)
    path = folder / f"{date.today().isoformat()}-gpu.json"
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
