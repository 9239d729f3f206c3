"""Rates that our own generated kernels reach on this processor, which `hardware measure` would miss with torch's.

Gives a table for `runtime.probe.measure`: name of a figure -> a function that measures it in base units. Streaming
stores write without reading first, and our polynomials are faster than the library's, so a limit read off torch's
kernels would be beaten by ours.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F

from ridgeline.base.knobs import knobs_from
from ridgeline.base.units import MIB
from ridgeline.runtime.system import caches
from ridgeline.top.backend import Backend
from ridgeline.top.engine import Engine

ROUNDS = 7
CHAIN = 16  # exponentials an element, so that arithmetic and not memory is timed
ARITHMETIC_BYTES = 256 << 10  # in the cache of one core

WIDTH = 2048  # of rows

Function = Callable[[torch.Tensor], torch.Tensor]


def _chain(x: torch.Tensor) -> torch.Tensor:
    for _ in range(CHAIN):
        x = torch.exp(-x)
    return x


def _seconds(function: Function, x: torch.Tensor) -> list[float]:
    times = []
    for _ in range(ROUNDS + 2):
        start = time.perf_counter()
        function(x)
        times.append(time.perf_counter() - start)
    return times[2:]


def _rate(function: Function, size: int, per_byte: float, of: Callable[[list[float]], float] = min) -> float:
    """`per_byte` units for each byte of input, over the seconds of a call: the best for a ceiling."""
    x = torch.rand(size // 4)
    with torch.no_grad():
        return per_byte * x.nbytes / of(_seconds(function, x))


def own_kernels() -> Mapping[str, Callable[[], float]]:
    """Measurements of the processor by our kernels."""
    knobs = knobs_from({})
    backend = Backend(Engine(knobs), knobs)
    # Each a function of its own: TorchDynamo counts recompiles of PyTorch's together, and gives up after a few.
    bodies: dict[str, Function] = {
        "copy": lambda x: torch.clone(x),
        "read": lambda x: torch.sum(x),
        "write": lambda x: torch.zeros_like(x),
        "exp": _chain,
        "pointwise": lambda x: x * 2 + 1,
        "reduction": lambda x: x.view(-1, WIDTH).sum(-1),
        "softmax": lambda x: torch.softmax(x.view(-1, WIDTH), -1),
        "norm": lambda x: F.layer_norm(x.view(-1, WIDTH), (WIDTH,)),
    }
    compiled = {name: torch.compile(body, backend=backend, dynamic=False) for name, body in bodies.items()}
    sizes = {"DRAM": max(4 * max((c.total_bytes for c in caches()), default=0), 256 * MIB)}
    sizes |= {c.name: c.total_bytes // 4 for c in caches() if c.bytes >= MIB}
    moved = {"copy": 2.0, "read": 1.0, "write": 1.0}
    table: dict[str, Callable[[], float]] = {
        f"{level}.{way}": partial(_rate, compiled[way], size, moved[way])
        for level, size in sizes.items()
        for way in moved
    }
    for name in ("pointwise", "reduction", "softmax", "norm"):  # numbers a second
        table[f"generated {name}"] = partial(_rate, compiled[name], sizes["DRAM"], 1 / 4, statistics.median)
    threads = torch.get_num_threads()
    table["exp"] = partial(_rate, compiled["exp"], ARITHMETIC_BYTES * threads, CHAIN / 4)
    return table
