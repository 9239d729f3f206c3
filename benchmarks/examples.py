"""Eager, TorchInductor and Ridgeline on a step of each example, and the cold compile of a 12-layer transformer.

    python benchmarks/examples.py            everything, a table, and a dated JSON in benchmarks/results/
    python benchmarks/examples.py gpt        only these

Model and loss are compiled as a user would, `torch.compile(..., backend=...)`; clipping and optimizer run as they are.
The three take turns in random order in one process; times are medians, the spread is between the quartiles.
No cache on disk is used, and every process pays a trivial compile first.
"""

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from cpu import RESULTS, cold, seconds, spread, trivial_compiles

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import generate_llama
import train_digits
import train_gpt

Step = Callable[[], Any]
Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Workload:
    """`make` gives one step of it, with the model and loss gone through a compiler."""

    name: str
    make: Callable[[Compile], Step]
    rounds: int = 15


def gpt_step(compile_: Compile) -> Step:
    """A training step at the example's own size."""
    torch.manual_seed(0)
    model = train_gpt.GPT(128, 4, 4, 256, 0.1)
    optimizer = train_gpt.make_optimizer(model, 3e-3)
    data = train_gpt.batches(train_gpt.read_library(1_000_000), 12, 256, "cpu")

    @compile_
    def loss_of(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    def step() -> None:
        loss = loss_of(*next(data))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def digits_step(compile_: Compile) -> Step:
    """A training step at the example's own size."""
    torch.manual_seed(0)
    model = train_digits.Reader(64)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=5e-4, nesterov=True)
    batches = list(train_digits.load_data(125)[0])

    @compile_
    def loss_of(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(images), labels, label_smoothing=0.05)

    def step() -> None:
        loss = loss_of(*random.choice(batches))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def llama_step(compile_: Compile) -> Step:
    """Sixteen tokens from a prompt of sixty-six."""
    torch.manual_seed(0)
    model = generate_llama.make_model(512, 8)
    model.forward = compile_(model.forward)
    prompt = torch.randint(0, 256, (1, 66))
    return partial(model.generate, prompt, max_new_tokens=16, do_sample=False, use_cache=True)


def transformer(compile_: Compile, training: bool) -> Step:
    """Twelve layers, small enough that compiling is what its first call takes."""
    torch.manual_seed(0)
    model = train_gpt.GPT(192, 12, 6, 64, 0.0 if not training else 0.1).train(training)
    tokens, targets = torch.randint(0, 256, (2, 64)), torch.randint(0, 256, (2, 64))

    @compile_
    def loss_of(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    def step() -> None:
        with torch.set_grad_enabled(training):
            loss = loss_of(tokens, targets)
        if training:
            loss.backward()

    return step


WORKLOADS = (
    Workload("train_gpt, one step", gpt_step),
    Workload("train_digits, one step", digits_step),
    Workload("generate_llama, 16 tokens", llama_step, 5),
    Workload("12 layers, training", partial(transformer, training=True)),
    Workload("12 layers, inference", partial(transformer, training=False)),
)


def compare(workload: Workload, backends: tuple[str, ...]) -> dict[str, Any]:
    """Cold seconds of the first step and interleaved seconds of those after it."""
    steps = {"eager": workload.make(lambda f: f)}
    first = {"eager": seconds(steps["eager"])}
    for backend in backends:
        torch._dynamo.reset()
        steps[backend] = workload.make(lambda f, backend=backend: torch.compile(f, backend=backend))
        first[backend] = seconds(steps[backend])
    for step in steps.values():
        for _ in range(3):
            step()
    order, shuffle = list(steps), random.Random(0)
    times: dict[str, list[float]] = {name: [] for name in order}
    for _ in range(workload.rounds):
        shuffle.shuffle(order)
        for name in order:
            times[name].append(seconds(steps[name]))
    eager = statistics.median(times["eager"])
    return {
        "workload": workload.name,
        "compile_s": {name: first[name] - eager for name in backends},
        "median_s": {name: statistics.median(t) for name, t in times.items()},
        "spread_s": {name: spread(t) for name, t in times.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="workloads whose name contains one of these")
    names = parser.parse_args().names
    backends = ("inductor", "ridgeline")
    cold()
    trivial_compiles(backends)
    rows = []
    for workload in WORKLOADS:
        if names and not any(n in workload.name for n in names):
            continue
        row = compare(workload, backends)
        rows.append(row)
        shown = "  ".join(f"{n} {s * 1e3:8.1f} ms" for n, s in row["median_s"].items())
        ratio = row["median_s"]["inductor"] / row["median_s"]["ridgeline"]
        compiled = row["compile_s"]
        print(
            f"{workload.name:28} {shown}  inductor/ours {ratio:5.2f}  compile {compiled['inductor']:.1f} s / "
            f"{compiled['ridgeline']:.1f} s = {compiled['ridgeline'] / compiled['inductor']:.2f}",
            flush=True,
        )
    if not names:
        content = {
            "date": date.today().isoformat(),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "workloads": rows,
        }
        path = RESULTS / f"{date.today().isoformat()}-examples.json"
        path.write_text(json.dumps(content, indent=1) + "\n")
        print(f"written to {path}")


if __name__ == "__main__":
    main()
