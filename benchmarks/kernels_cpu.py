"""Generated C kernels against this machine's copy and read limits, and against torch eager, in one interleaved run.

    python benchmarks/kernels_cpu.py [--json FILE] [--only NAME] [--rounds N] [--threads N]

For each kernel and size: bytes that must move, median seconds of ours, of torch, and of a copy (a read, for pure
reductions) of as many bytes by generated code of the same kind, measured in the same rounds. `share` is limit / ours.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
from ridgeline.codegen.c import C
from ridgeline.ir.kernel import Kernel
from ridgeline.ir.types import BF16, F32
from ridgeline.runtime.build import build
from ridgeline.schedule import schedule
from tests import kernels as k

F = torch.nn.functional
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "i64": torch.int64}
Case = tuple[str, Kernel, Callable[..., object], bool]  # name, kernel, eager, reads only


def eager_layer_norm_backward(x, dy, w, mean, rstd, dx, dw, db):  # type: ignore[no-untyped-def]
    shape = x.shape[-1:]
    return torch.ops.aten.native_layer_norm_backward(dy, x, shape, mean[:, None], rstd[:, None], w, w, [True] * 3)


def cases() -> list[Case]:
    out: list[Case] = []
    for n, m in ((256, 256), (2048, 1024), (8192, 4096)):
        size = f"{n}x{m}"
        out += [
            (f"softmax {size}", k.softmax(n, m), lambda x, y: torch.softmax(x, 1, out=None), False),
            (
                f"add layer norm {size}",
                k.add_layer_norm(n, m),
                lambda x, z, w, b, s, y, mean, rstd: F.layer_norm(x + z, (x.shape[1],), w, b),
                False,
            ),
            (f"layer norm backward {size}", k.layer_norm_backward(n, m), eager_layer_norm_backward, False),
            (f"gelu {size}", k.gelu(n, m), lambda x, y: F.gelu(x), False),
            (f"bias relu {size}", k.bias_relu(n, m), lambda x, b, y: torch.relu(x + b), False),
            (f"sigmoid chain {size}", k.sigmoid_chain(n, m), lambda x, y: x * torch.sigmoid(x * 1.702) + 1, False),
            (f"column sum {size}", k.column_sum(n, m), lambda x, y: x.sum(0), True),
            (f"whole sum {size}", k.whole_fold(n, m), lambda x, y: x.sum(), True),
            (f"row max {size}", k.row_fold(n, m, F32, "max"), lambda x, y: x.amax(1), True),
            (f"transpose add {size}", k.transpose_add(n, m), lambda a, b, y: a + b.T, False),
            (f"softmax bf16 {size}", k.softmax(n, m, BF16), lambda x, y: torch.softmax(x, 1), False),
            (f"cross entropy {size}", k.cross_entropy(n, m), lambda x, t, lse, loss: F.cross_entropy(x, t), True),
        ]
    out += [
        ("softmax 1000000x10", k.softmax(1_000_000, 10), lambda x, y: torch.softmax(x, 1), False),
        ("bias relu 1000000x10", k.bias_relu(1_000_000, 10), lambda x, b, y: torch.relu(x + b), False),
        ("column sum 1000000x10", k.column_sum(1_000_000, 10), lambda x, y: x.sum(0), True),
        ("column sum 64x500000", k.column_sum(64, 500_000), lambda x, y: x.sum(0), True),
        ("softmax 8x1000000", k.softmax(8, 1_000_000), lambda x, y: torch.softmax(x, 1), False),
        (
            "batch norm 32x64x3136",
            k.batch_norm(32, 64, 3136),
            lambda x, w, y, mean, rstd: F.batch_norm(x, None, None, w, None, True),
            False,
        ),
        (
            "batch norm last 32x64x3136",
            k.batch_norm(32, 64, 3136, last=True),
            lambda x, w, y, mean, rstd: F.batch_norm(x, None, None, w, None, True),
            False,
        ),
        ("gather rows 20000x768", k.gather_rows(20_000, 768, F32, 5000), lambda i, t, y: t[i], False),
        (
            "scatter rows 20000x768",
            k.scatter_add_rows(20_000, 768, F32, 5000),
            lambda i, x, t: t.index_add_(0, i, x),
            False,
        ),
        ("max pool 4096x1000", k.max_pool(4096, 1000), lambda x, y: F.max_pool1d(x, 3, 2, 1), False),
        ("cat 8192x1000", k.cat(8192, 1000), lambda a, b, y: torch.cat([a, b], 1), False),
    ]
    return out


def tensors(kernel: Kernel) -> list[torch.Tensor]:
    made = []
    for b in kernel.buffers:
        shape = [s.const for s in b.shape]
        strides = [s.const for s in b.strides]
        t = torch.empty_strided(shape, strides, dtype=TYPES[b.dtype.name])
        t.random_(0, 10) if b.dtype.name == "i64" else t.normal_()
        made.append(t)
    return made


def bytes_of(kernel: Kernel) -> int:
    total = 0
    for b in kernel.buffers:
        size = (b.numel.const or 0) * b.dtype.bytes
        total += size * ((b.name in kernel.read) + (b.name in kernel.written))
    return total


def seconds(run: Callable[[], object], repeats: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(repeats):
        run()
    return (clock() - start) / repeats


def compare(case: Case, rounds: int, clock: Callable[[], float]) -> dict[str, object]:
    name, kernel, eager, reads = case
    target = C()
    machine = target.machine(torch.get_num_threads(), (48 << 10, 2 << 20, 105 << 20))
    moved = bytes_of(kernel)
    count = max(moved // 8, 4096) if not reads else moved // 4
    limit_kernel = k.whole_fold(1, count) if reads else k.copy(count)
    start = time.perf_counter()
    program = schedule(k.renamed(kernel, "measured"), machine)
    scheduled = time.perf_counter() - start
    entry, limit_entry = build([program, schedule(k.renamed(limit_kernel, "limit"), machine)], target)
    data, limit_data = tensors(kernel), tensors(limit_kernel)
    ours = entry.bind([t.data_ptr() for t in data], [])
    limit = limit_entry.bind([t.data_ptr() for t in limit_data], [])
    runs = {"ours": ours, "torch": lambda: eager(*data), "limit": limit}
    repeats = {key: max(1, int(0.01 / max(seconds(run, 2, clock), 1e-7))) for key, run in runs.items()}
    times: dict[str, list[float]] = {key: [] for key in runs}
    for _ in range(rounds):
        for key, run in runs.items():
            times[key].append(seconds(run, repeats[key], clock))
    best = {key: statistics.median(t) for key, t in times.items()}
    return {
        "name": name,
        "bytes": moved,
        "schedule_ms": scheduled * 1e3,
        **{f"{key}_ms": value * 1e3 for key, value in best.items()},
        "share": best["limit"] / best["ours"],
        "speedup": best["torch"] / best["ours"],
        "gb_per_s": moved / best["ours"] / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int)
    parser.add_argument(
        "--cpu-time", action="store_true", help="one thread's own seconds: where others use the machine"
    )
    args = parser.parse_args()
    if args.threads or args.cpu_time:
        torch.set_num_threads(1 if args.cpu_time else args.threads)
    rows = []
    print(
        f"{'kernel':32} {'MB':>7} {'ours ms':>9} {'torch ms':>9} {'limit ms':>9} "
        f"{'share':>6} {'x torch':>7} {'GB/s':>6}"
    )
    for case in cases():
        if args.only not in case[0]:
            continue
        r = compare(case, args.rounds, time.thread_time if args.cpu_time else time.perf_counter)
        rows.append(r)
        print(
            f"{r['name']:32} {r['bytes'] / 1e6:7.1f} {r['ours_ms']:9.3f} {r['torch_ms']:9.3f} {r['limit_ms']:9.3f} "
            f"{r['share']:6.2f} {r['speedup']:7.2f} {r['gb_per_s']:6.1f}",
            flush=True,
        )
    if args.json:
        Path(args.json).write_text(json.dumps({"threads": torch.get_num_threads(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
