"""Eager, TorchInductor and Ridgeline on memory-bound patterns, interleaved in one run on this CPU.

    python benchmarks/cpu.py                   all patterns, a table, and a dated JSON in benchmarks/results/
    python benchmarks/cpu.py softmax gelu      only these, and no file

Every pattern is larger than the last-level cache over its rotated inputs. Times are medians of interleaved rounds in
which the three take turns in random order; the spread is the distance between the quartiles. `limit` is the pattern's
least bytes over the copy (or read) rate measured in the same run, the best of torch's and our own kernels.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

RESULTS = Path(__file__).parent / "results"
MEGA = 1 << 20
Function = Callable[..., Any]


@dataclass(frozen=True)
class Pattern:
    """One workload: its function, a maker of one set of inputs, and the least bytes it must move."""

    name: str
    function: Function
    inputs: Callable[[], list[torch.Tensor]]
    least_bytes: int
    backward: bool = False
    read_only: bool = False


def rand(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape).requires_grad_(grad)


def softmax_backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten._softmax_backward_data(dy, y, -1, torch.float32)


def layer_norm_step(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b)


def rms_norm_step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), w)


def rope(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = q.shape[-1] // 2
    return q * cos + torch.cat((-q[..., half:], q[..., :half]), -1) * sin


def batch_norm_relu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.relu(F.batch_norm(x, None, None, w, b, training=True))


def patterns() -> list[Pattern]:
    rows, width = 8192, 4096  # 128 MiB of fp32: with an output, beyond any last-level cache here
    m, n = rows, width
    size = m * n * 4
    labels = torch.randint(0, 16384, (2048,))
    return [
        Pattern("bias + gelu", lambda x, b: F.gelu(x + b), lambda: [rand(m, n), rand(n)], 2 * size),
        Pattern("swiglu", lambda a, b: F.silu(a) * b, lambda: [rand(m, n), rand(m, n)], 3 * size),
        Pattern("softmax", lambda x: torch.softmax(x, -1), lambda: [rand(m, n)], 2 * size),
        Pattern("softmax backward", softmax_backward, lambda: [rand(m, n), rand(m, n).softmax(-1)], 3 * size),
        Pattern("long softmax", lambda x: torch.softmax(x, -1), lambda: [rand(256, 131072)], 2 * 256 * 131072 * 4),
        Pattern(
            "add + layer norm",
            lambda x, y, w, b: F.layer_norm(x + y, (n,), w, b),
            lambda: [rand(m, n), rand(m, n), rand(n), rand(n)],
            3 * size,
        ),
        Pattern("rms norm", rms_norm_step, lambda: [rand(m, n), rand(n)], 2 * size),
        Pattern(
            "layer norm, forward + backward",
            layer_norm_step,
            lambda: [rand(m, 1024, grad=True), rand(1024, grad=True), rand(1024, grad=True)],
            5 * m * 1024 * 4,
            backward=True,
        ),
        Pattern(
            "rms norm, forward + backward",
            rms_norm_step,
            lambda: [rand(m, 1024, grad=True), rand(1024, grad=True)],
            5 * m * 1024 * 4,
            backward=True,
        ),
        Pattern(
            "cross entropy",
            lambda x, t: F.cross_entropy(x, t),
            lambda: [rand(2048, 16384), labels],
            2048 * 16384 * 4,
            read_only=True,
        ),
        Pattern(
            "cross entropy, forward + backward",
            lambda x, t: F.cross_entropy(x, t),
            lambda: [rand(2048, 16384, grad=True), labels],
            3 * 2048 * 16384 * 4,
            backward=True,
        ),
        Pattern(
            "batch norm + relu, forward + backward",
            batch_norm_relu,
            lambda: [rand(32, 64, 112, 112, grad=True), rand(64, grad=True), rand(64, grad=True)],
            8 * 32 * 64 * 112 * 112 * 4,
            backward=True,
        ),
        Pattern("column sum", lambda x: x.sum(0), lambda: [rand(m, n)], size, read_only=True),
        Pattern("sum of squares of everything", lambda x: (x * x).sum(), lambda: [rand(m, n)], size, read_only=True),
        Pattern("variance of rows", lambda x: x.var(-1), lambda: [rand(m, n)], size, read_only=True),
        Pattern("transpose + add", lambda x, y: x.t() + y, lambda: [rand(n, m), rand(m, n)], 3 * size),
        Pattern("cat with scale", lambda a, b: torch.cat((a * 2, b), -1), lambda: [rand(m, n), rand(m, n)], 4 * size),
        Pattern(
            "rope",
            rope,
            lambda: [rand(4, 16, 4096, 128), rand(4096, 128), rand(4096, 128)],
            2 * 4 * 16 * 4096 * 128 * 4,
        ),
        Pattern(
            "embedding",
            lambda i, w: F.embedding(i, w),
            lambda: [torch.randint(0, 50000, (32768,)), rand(50000, 1024)],
            2 * 32768 * 1024 * 4,
        ),
        Pattern(
            "max pool 3x3",
            lambda x: F.max_pool2d(x, 3, 2, 1),
            lambda: [rand(32, 64, 112, 112)],
            5 * 32 * 64 * 56 * 56 * 4,
        ),
    ]


def step_of(pattern: Pattern, function: Function) -> Function:
    """One call: forward, and backward where the pattern has one."""
    if not pattern.backward:

        def forward(*inputs: torch.Tensor) -> None:
            with torch.no_grad():
                function(*inputs)

        return forward

    def both(*inputs: torch.Tensor) -> None:
        leaves = [i for i in inputs if i.requires_grad]
        out = function(*inputs)
        torch.autograd.grad(out, leaves, out if out.dim() else None)

    return both


def cold() -> None:
    """Takes the caches on disk away: what is compiled here is compiled, and not found."""
    os.environ["RIDGELINE_CACHE"] = "off"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()


def trivial_compiles(backends: Sequence[str]) -> None:
    """What a process pays once is nobody's compile time."""
    for backend in backends:
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(8))


def copy_rates() -> tuple[float, float]:
    """(copy, read) bytes a second of this machine now: the best of torch's and our own plain kernels."""
    x, y = torch.randn(64 * MEGA), torch.empty(64 * MEGA)
    copy = torch.compile(torch.clone, backend="ridgeline")
    read = torch.compile(torch.sum, backend="ridgeline")
    with torch.no_grad():
        copy_s = min(seconds(work) for work in (lambda: y.copy_(x), lambda: copy(x)) for _ in range(9))
        read_s = min(seconds(work) for work in (x.sum, lambda: read(x)) for _ in range(9))
    return 2 * x.nbytes / copy_s, x.nbytes / read_s


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(pattern: Pattern, rounds: int, backends: Sequence[str]) -> dict[str, Any]:
    """Interleaved medians of one pattern, with cold compile seconds."""
    sets = [pattern.inputs() for _ in range(2)]
    steps: dict[str, Function] = {"eager": step_of(pattern, pattern.function)}
    compile_s: dict[str, float] = {}
    for backend in backends:
        torch._dynamo.reset()
        step = step_of(pattern, torch.compile(pattern.function, backend=backend, dynamic=False))
        compile_s[backend] = seconds(lambda step=step: step(*sets[0]))
        steps[backend] = step
    for step in steps.values():
        for inputs in sets:
            step(*inputs)
    order = list(steps)
    shuffle = random.Random(0)
    times: dict[str, list[float]] = {name: [] for name in order}
    for k in range(rounds):
        shuffle.shuffle(order)
        for name in order:
            times[name].append(seconds(lambda name=name, k=k: steps[name](*sets[k % 2])))
    return {"pattern": pattern.name, "compile_s": compile_s, "seconds": times}


def spread(seconds: Sequence[float]) -> float:
    low, _, high = statistics.quantiles(seconds, n=4)
    return high - low


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="patterns whose name contains one of these")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--without-inductor", action="store_true")
    args = parser.parse_args()
    backends = ["ridgeline"] if args.without_inductor else ["inductor", "ridgeline"]
    torch.manual_seed(0)
    cold()
    trivial_compiles(backends)
    copy, read = copy_rates()
    print(f"copy {copy / 1e9:.1f} GB/s, read {read / 1e9:.1f} GB/s, {torch.get_num_threads()} threads")
    rows = []
    for pattern in patterns():
        if args.names and not any(n in pattern.name for n in args.names):
            continue
        row = compare(pattern, args.rounds, backends)
        row["limit_s"] = pattern.least_bytes / (read if pattern.read_only else copy)
        rows.append(row)
        medians = {name: statistics.median(t) for name, t in row["seconds"].items()}
        shown = "  ".join(f"{n} {s * 1e3:8.2f} ms" for n, s in medians.items())
        ratio = medians.get("inductor", float("nan")) / medians["ridgeline"]
        compiled = "  ".join(f"{s:.1f} s" for s in row["compile_s"].values())
        print(
            f"{pattern.name:38} {shown}  inductor/ours {ratio:5.2f}  "
            f"of limit {row['limit_s'] / medians['ridgeline']:4.2f}  compile {compiled}"
        )
        sys.stdout.flush()
    report(rows, copy, read, whole=len(rows) == len(patterns()) and not args.without_inductor)


def report(rows: list[dict[str, Any]], copy: float, read: float, whole: bool) -> None:
    """Prints the geometric mean, and of a whole run writes the dated result file."""
    ratios = [
        statistics.median(r["seconds"]["inductor"]) / statistics.median(r["seconds"]["ridgeline"])
        for r in rows
        if "inductor" in r["seconds"]
    ]
    if ratios:
        print(f"geometric mean of inductor/ours over {len(ratios)}: {statistics.geometric_mean(ratios):.2f}")
    for row in rows:
        row["median_s"] = {n: statistics.median(t) for n, t in row["seconds"].items()}
        row["spread_s"] = {n: spread(t) for n, t in row.pop("seconds").items()}
    RESULTS.mkdir(exist_ok=True)
    content = {
        "date": date.today().isoformat(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "copy_bytes_per_s": copy,
        "read_bytes_per_s": read,
        "patterns": rows,
    }
    if whole:
        path = RESULTS / f"{date.today().isoformat()}-cpu.json"
        path.write_text(json.dumps(content, indent=1) + "\n")
        print(f"written to {path}")


if __name__ == "__main__":
    main()
