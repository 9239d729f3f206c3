"""One optimizer step and one gradient clipping: eager, torch.compile and ours, in one interleaved run.

    python benchmarks/optimizer.py [--device cuda] [--rounds N] [--scale X] [--threads N] [--no-inductor] [--out FILE]

The parameters are those of a transformer of 12 layers: 147 tensors, 50 M numbers in fp32 (`--scale 4` divides the
width by 4). AdamW must move 28 bytes a parameter - reads of parameter, gradient and two moments, writes of parameter
and moments - so each time is also shown as a fraction of this machine's copy bandwidth, measured in the same rounds
with as many bytes. Clipping must read 4 bytes a parameter, and read and write them again when it scales. `busy_share`
is what other programs took of the processor meanwhile. Compile seconds are those of the first step after one that made
the state. On a GPU ten steps run in a row, so that what the host does for one overlaps the one before.
"""

import argparse
import datetime
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

sys.path.insert(0, str(Path(__file__).parent.parent))
from ridgeline.base.knobs import Knobs
from ridgeline.runtime.clock import wait_for_rest
from ridgeline.runtime.system import processor_name
from ridgeline.top.backend import Backend
from ridgeline.top.clip import Clips
from ridgeline.top.engine import Engine
from ridgeline.top.optimizer import Updates

ADAMW_BYTES = 28  # a parameter in fp32
CLIP_BYTES = 12
LAYERS, WIDTH, VOCABULARY = 12, 576, 3600
BUSY_SHARE = 0.1  # of the processor that other programs may take; a round waits for it, but not for ever


def make_parameters(scale: float, device: str) -> list[nn.Parameter]:
    """A GPT's tensors: embedding, per layer two norms, attention and MLP with biases, and a last norm."""
    d = round(WIDTH / scale)
    shapes: list[tuple[int, ...]] = [(round(VOCABULARY / scale), d)]
    for _ in range(LAYERS):
        shapes += [(d,)] * 4 + [(3 * d, d), (3 * d,), (d, d), (d,), (4 * d, d), (4 * d,), (d, 4 * d), (d,)]
    shapes += [(d,)] * 2
    out = [nn.Parameter(torch.randn(s, device=device) * 0.02) for s in shapes]
    for p in out:
        p.grad = torch.randn_like(p)
    return out


def seconds_of(call: Callable[[], Any], device: str, calls: int = 1) -> float:
    """Of one of so many calls in a row, until the device is done."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / calls


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--no-inductor", action="store_true")
    parser.add_argument("--out")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    parameters = make_parameters(args.scale, args.device)
    numbers = sum(p.numel() for p in parameters)
    ways, compile_s = steps_of(parameters, not args.no_inductor, args.device)
    if args.device == "cpu":
        ways |= clips_of(parameters)
    source = torch.randn(numbers * ADAMW_BYTES // 8, device=args.device)
    target = torch.empty_like(source)
    ways["copy of as many bytes"] = lambda: target.copy_(source)
    times: dict[str, list[float]] = {name: [] for name in ways}
    busy = []
    for _ in range(args.rounds):
        busy.append(wait_for_rest(torch.get_num_threads(), BUSY_SHARE))
        for name, way in ways.items():
            times[name].append(seconds_of(way, args.device, 1 if args.device == "cpu" else 10))
    median = {name: statistics.median(t) for name, t in times.items()}
    copy_bytes_per_s = numbers * ADAMW_BYTES / median["copy of as many bytes"]
    rows: list[dict[str, Any]] = []
    for name, seconds in median.items():
        low, _, high = statistics.quantiles(times[name], n=4)
        moved = numbers * (CLIP_BYTES if name.startswith("clip") else ADAMW_BYTES)
        fraction = moved / seconds / copy_bytes_per_s
        row = {"name": name, "seconds": seconds, "spread_s": high - low, "fastest_s": min(times[name])}
        row["fraction_of_copy"] = fraction
        rows.append(row | {"compile_s": compile_s.get(name)})
        compiled = f"  compile {compile_s[name]:6.2f} s" if name in compile_s else ""
        shown = f"{seconds * 1e3:9.2f} ms  +-{(high - low) * 1e3:8.2f}  fastest {min(times[name]) * 1e3:8.2f}"
        print(f"{name:24} {shown}  {fraction:6.2f} of copy{compiled}")
    today = datetime.date.today().isoformat()
    result = {
        "date": today,
        "machine": processor_name() if args.device == "cpu" else torch.cuda.get_device_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "tensors": len(parameters),
        "parameters": numbers,
        "rounds": args.rounds,
        "busy_share": statistics.median(busy),
        "copy_bytes_per_s": copy_bytes_per_s,
        "rows": rows,
    }
    name = f"{today}-optimizer{'' if args.device == 'cpu' else '-gpu'}.json"
    out = Path(args.out) if args.out else Path(__file__).parent / "results" / name
    out.write_text(json.dumps(result, indent=1) + "\n")


def steps_of(
    parameters: list[nn.Parameter], inductor: bool, device: str
) -> tuple[dict[str, Callable[[], Any]], dict[str, float]]:
    """Each way to step AdamW, warm, and the seconds that compiling took."""
    ways: dict[str, Callable[[], Any]] = {}
    compile_s: dict[str, float] = {}
    for name, options in {"eager": {}, "eager foreach": {"foreach": True}, "eager fused": {"fused": True}}.items():
        optimizer = torch.optim.AdamW(parameters, lr=1e-4, **options)
        optimizer.step()
        ways[name] = optimizer.step
    # What a first compilation of anything costs is not the optimizer's.
    torch.compile(lambda x: x + 1)(torch.ones(3, device=device))
    if inductor:
        optimizer = torch.optim.AdamW(parameters, lr=torch.tensor(1e-4))
        optimizer.step()
        compiled = torch.compile(optimizer.step)
        compile_s["inductor"] = seconds_of(compiled, device)
        ways["inductor"] = compiled
    knobs = Knobs(cache="off", strict=True)
    updates = Updates(Backend(Engine(knobs), knobs))
    mine = torch.optim.AdamW(parameters, lr=1e-4)
    mine.step()

    def ours() -> None:
        update = updates.optimizer_step(mine)
        assert update is not None
        update()

    compile_s["ours"] = seconds_of(ours, device)
    ways["ours"] = ours
    return ways, compile_s


def clips_of(parameters: list[nn.Parameter]) -> dict[str, Callable[[], Any]]:
    """Clipping to less than the norm there is, which must scale every time."""
    knobs = Knobs(strict=True)
    clips = Clips(Backend(Engine(knobs), knobs))
    gradients = [p.grad for p in parameters if p.grad is not None]
    most = iter(range(10**6, 0, -1))

    def ours() -> None:
        work = clips.clip(clip_grad_norm_, gradients, (next(most) * 1e-6,), {})
        assert work is not None
        work()

    ours()
    return {"clip eager": lambda: clip_grad_norm_(parameters, next(most) * 1e-6), "clip ours": ours}


if __name__ == "__main__":
    main()
