"""Generated Triton kernels against this GPU's copy rate: what the loop programs reach, whatever graph they came from.

    python benchmarks/kernels_gpu.py [NAME...] [--output FOLDER]

Each kernel of `tests/triton_cases.py`, in bf16 at the sizes models have, is replayed as a CUDA graph with the cache
filled with something else, as in gpu.py; `of limit` is the bytes it must move (every input it reads and output it
writes once) over the copy rate that a 1 GiB copy reached in the same run.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))
from gpu import RESULTS, Timer, interleaved, spread

from ridgeline.codegen.triton import Triton
from ridgeline.codegen.triton_build import load
from ridgeline.ir.kernel import Buffer, Kernel
from ridgeline.schedule import schedule
from ridgeline.top.engine import current_stream, device_memory
from tests import kernels as k
from tests.triton_cases import COMPILED

TARGET = Triton(device_memory, current_stream)
TABLE_ROWS = 128256  # what indices point into, where that is not the other side of the tensor
# Reads that depend on an index touch as much as is written, not the whole table.
GATHERED = {"gather_rows": 2 * 16384 * 4096 * 2, "scatter_add_rows": 3 * 16384 * 4096 * 4}


def least_bytes(name: str, kernel: Kernel) -> int:
    """Every buffer once for each way it is used."""
    total = 0
    for buffer in kernel.buffers:
        uses = (buffer.name in kernel.read) + (buffer.name in kernel.written)
        total += uses * (buffer.numel.const or 1) * buffer.dtype.bytes
    return GATHERED.get(name, total)


def tensor(buffer: Buffer) -> torch.Tensor:
    """Random contents; positive, as variances are, so that no kernel works on NaN."""
    dtype: torch.dtype = getattr(torch, buffer.dtype.torch)
    extent = 1 + sum((s.const - 1) * t.const for s, t in zip(buffer.shape, buffer.strides, strict=True))  # type: ignore
    if dtype is torch.int64:
        return torch.randint(0, TABLE_ROWS, (extent,), device="cuda")
    return torch.randn(extent, device="cuda", dtype=dtype).abs_()


def prepared(kernel: Kernel) -> tuple[Callable[[], None], Any]:
    """A replay of the kernel, and what must live as long."""
    properties = torch.cuda.get_device_properties(0)
    caches = (int(properties.shared_memory_per_block_optin), int(properties.L2_cache_size))  # type: ignore[attr-defined]
    source = TARGET.emit([schedule(kernel, TARGET.machine(properties.multi_processor_count, caches))])
    entry = load(source, Path(tempfile.mkdtemp(prefix="ridgeline-")), device_memory, current_stream)[kernel.name]
    tensors = [tensor(b) for b in kernel.buffers]
    run = entry.bind([t.data_ptr() for t in tensors], ())
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay, (tensors, run, graph)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="kernels whose name contains one of these")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    timer = Timer()
    whole = k.pointwise(1 << 14, 1 << 14, word_name="neg")  # as good as a copy of 1 GiB
    seconds = interleaved({"copy": [prepared(whole)[0]]}, args.rounds, timer)["copy"]
    copy = least_bytes("copy", whole) / statistics.median(seconds)
    print(f"{torch.cuda.get_device_name()}: copy {copy / 1e12:.2f} TB/s")
    rows = []
    for name, kernel in COMPILED.items():
        if args.names and not any(n in name for n in args.names):
            continue
        replay, keep = prepared(kernel)
        times = interleaved({name: [replay]}, args.rounds, timer)[name]
        limit, median = least_bytes(name, kernel) / copy, statistics.median(times)
        rows.append({"kernel": name, "limit_s": limit, "median_s": median, "spread_s": spread(times)})
        print(
            f"{name:26} limit {limit * 1e3:7.3f} ms  {median * 1e3:7.3f} ms  of limit {limit / median:4.2f}", flush=True
        )
        del replay, keep
        torch.cuda.empty_cache()
    content = {"date": date.today().isoformat(), "device": torch.cuda.get_device_name(), "copy_bytes_per_s": copy}
    args.output.mkdir(exist_ok=True)
    path = args.output / f"{date.today().isoformat()}-gpu-kernels.json"
    path.write_text(json.dumps({**content, "torch": torch.__version__, "kernels": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
