"""Measures this machine: bandwidth per memory level, matmul rates, special functions, random numbers, overheads.

`measure` takes "cpu" or "cuda" and gives a `Device` whose figures are medians of repeated runs on random data. It goes
through PyTorch's own kernels; a caller with better ones passes them in `kernels`, and the higher rate counts. Takes
about 15 s on two cores that rest; when other programs use them it waits 10 s for them, then measures nevertheless and
says so in the device's note. Saves nothing, and leaves generators, thread count and matmul precision as they were.

What the figures mean:
- copy, read and write count the bytes a program asks for (copy: read plus written), whatever the caches do besides.
- Levels nearer than another are at least as fast as it.
- Cache levels are the slope between two sizes that fit, so a fixed cost per call is not charged to the memory.
- On a processor fp32 and fp64 matmuls run on the vector units, so their best rate stands for the vector peak.
- On an accelerator the catalogue's data-sheet figures of the same part are kept, and measured ones stand beside them.
"""

import ctypes
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date

import msgspec
import torch

from ridgeline.base.errors import BadOption
from ridgeline.base.units import GIB, GIGA, KIB, MIB, TERA
from ridgeline.hw.catalog import THIS_MACHINE
from ridgeline.hw.device import Device, Figure, Level, Source, figures
from ridgeline.runtime.clock import (
    Clock,
    CudaClock,
    Run,
    busy_share,
    matmul_precision,
    one_thread,
    seconds_of,
    wait_for_rest,
)
from ridgeline.runtime.system import caches, memory_bytes, processor_name

Step = Callable[[str, float], None]  # what is being measured, and the share done
Kernels = Mapping[str, Callable[[], float]]  # "DRAM.copy" or "exp" -> measured rate in base units

LONGEST_MATMUL_S = 0.4
BUSY_SHARE = 0.1  # of the processor in other hands, above which figures come with a warning
CPU_SIZES, CUDA_SIZES = (256, 512, 1024, 2048), (1024, 2048, 4096, 8192)
CUDA_NUMBERS = 1 << 24  # elements of functions, random numbers and atomic adds on an accelerator
CHAIN = 256  # special functions per element on an accelerator, so that arithmetic and not memory is timed

# Bodies of one link of such a chain; each keeps its value in a range where the function does its usual work.
CUDA_BODIES = {
    "exp": "__expf(-x)",
    "log": "logf(x + 2.0f)",
    "tanh": "tanhf(x + 0.5f)",
    "erf": "erff(x + 0.5f)",
    "sin": "sinf(x + 1.0f)",
    "sqrt": "sqrtf(x + 1.0f)",
    "division": "1.0f / (x + 1.0f)",
}
FMA_BODY = "x * 0.999f + 0.001f"


def measure(kind: str, find: Callable[[str], Device | None], step: Step, kernels: Kernels | None = None) -> Device:
    """Measure the processor ("cpu") or the first NVIDIA or AMD accelerator ("cuda").

    `find` looks a driver's name up in the catalogue. Raises BadOption when there is no such device.
    """
    if kind == "cuda" and not torch.cuda.is_available():
        raise BadOption("--device", kind, "cpu on this machine: torch sees no accelerator")
    devices = [0] if kind == "cuda" else []
    with torch.inference_mode(), torch.random.fork_rng(devices), matmul_precision("highest"):
        if kind == "cuda":
            return _measure_cuda(CudaClock(), find, step, kernels or {})
        return _measure_cpu(Clock(), step, kernels or {})


# Whole machines.


def _measure_cpu(clock: Clock, step: Step, kernels: Kernels) -> Device:
    threads = torch.get_num_threads()
    name = processor_name()
    measured = Source(
        title=f"measured on {name}, torch {torch.__version__}, {threads} threads",
        confidence="measured",
        checked=date.today(),
    )
    system = Source(title="as the operating system reports", confidence="measured", checked=date.today())
    step("after other programs", 0.0)
    busy = wait_for_rest(threads, BUSY_SHARE)
    step("memory", 0.0)
    levels = _cpu_levels(clock, threads, step, kernels)
    step("matmul", 0.4)
    matmul = _matmul_rates(clock, {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16}, CPU_SIZES)
    matmul |= _matmul_rates(clock, {"fp16": torch.float16, "int8": torch.int8}, CPU_SIZES)
    peaks = _peaks(matmul)
    step("functions", 0.75)
    special = {name: _per_s(_better(kernels, name, rate)) for name, rate in _cpu_special(clock, threads).items()}
    step("random numbers", 0.85)
    random = _random(clock, 2**18)
    step("overheads", 0.9)
    dispatch, launch = _cpu_overheads(clock, threads)
    device = Device(
        schema_version=1,
        id=THIS_MACHINE,
        name=name,
        vendor=_vendor(name),
        kind="cpu",
        sources={"measured": measured, "system": system},
        levels=levels,
        driver_names=(name,),
        multiprocessors=Figure(value=threads, unit="count", source="system", note="threads that torch uses"),
        dispatch=dispatch,
        launch=launch,
        matrix={name: peak for name, peak in peaks.items() if name not in ("fp32", "fp64")},
        vector={name: peak for name, peak in peaks.items() if name in ("fp32", "fp64")},
        special=special,
        random=random,
        matmul=matmul,
    )
    step("kernel families", 0.93)
    achieved = _achieved(clock, device, kernels)
    busy = max(busy, busy_share(threads))
    note = f"Other programs took {busy:.0%} of the processor meanwhile: measure again when they rest."
    return msgspec.structs.replace(device, achieved=achieved, note=note if busy > BUSY_SHARE else "")


def _measure_cuda(clock: Clock, find: Callable[[str], Device | None], step: Step, kernels: Kernels) -> Device:
    properties = torch.cuda.get_device_properties(0)
    name = properties.name
    base = find(name)
    driver = torch.version.cuda or torch.version.hip or "unknown"
    measured = Source(
        title=f"measured on {name}, torch {torch.__version__}, runtime {driver}",
        confidence="measured",
        checked=date.today(),
    )
    driver_says = Source(title="as the driver reports", confidence="measured", checked=date.today())
    step("memory", 0.0)
    levels = _cuda_levels(clock, base, kernels)
    step("matmul", 0.3)
    formats = {"fp32": torch.float32, "fp64": torch.float64, "fp16": torch.float16, "bf16": torch.bfloat16}
    matmul = _matmul_rates(clock, formats | {"int8": torch.int8, "fp8": torch.float8_e4m3fn}, CUDA_SIZES)
    with matmul_precision("high"):
        matmul |= _matmul_rates(clock, {"tf32": torch.float32}, CUDA_SIZES)
    peaks = _peaks(matmul)
    step("functions", 0.6)
    special = {name: rate for name, body in CUDA_BODIES.items() if (rate := _chain(clock, body)) is not None}
    fma = _chain(clock, FMA_BODY)
    step("random numbers", 0.8)
    random = _random(CudaClock(capture=False), 4 * CUDA_NUMBERS)  # a graph would need its generator registered
    step("overheads", 0.85)
    dispatch, launch, atomic = _cuda_overheads(clock)
    matrix = base.matrix if base else {name: peak for name, peak in peaks.items() if name != "fp32"}
    vector = base.vector if base else {} if fma is None else {"fp32": _flop_rate(2 * fma, "fp32", dense=True)}
    device = Device(
        schema_version=1,
        id=f"{THIS_MACHINE}-cuda",
        name=name,
        vendor=base.vendor if base else "AMD" if torch.version.hip else "NVIDIA",
        kind="gpu",
        sources={**(base.sources if base else {}), "measured": measured, "system": driver_says},
        levels=levels,
        driver_names=(name,),
        note=f"Data-sheet figures are those of {base.id}." if base else "",
        power=base.power if base else None,
        fabric=base.fabric if base else None,
        multiprocessors=Figure(value=properties.multi_processor_count, unit="count", source="system"),
        dispatch=dispatch,
        launch=launch,
        atomic=atomic,
        matrix=matrix,
        vector=vector,
        special={name: _per_s(_better(kernels, name, rate)) for name, rate in special.items()},
        random=random,
        matmul=matmul,
    )
    step("kernel families", 0.95)
    device = msgspec.structs.replace(device, achieved=_achieved(clock, device, kernels))
    named = {figure.source for _, figure, _ in figures(device)}
    return msgspec.structs.replace(device, sources={key: device.sources[key] for key in device.sources if key in named})


# Memory.


@dataclass(frozen=True, slots=True)
class Sweep:
    """Memory touched by one call: a span gone over so many times."""

    span_bytes: int
    passes: int = 1


def _cpu_levels(clock: Clock, threads: int, step: Step, kernels: Kernels) -> tuple[Level, ...]:
    levels, inner = [], 0
    for number, cache in enumerate(caches()):
        if cache.bytes < 256 * KIB:  # too small for torch to share out over threads: one core, times the cores
            cores = min(threads, cache.instances)
            span = cache.bytes * 3 // 4
            with one_thread():
                rates = [rate * cores for rate in _bandwidths(clock, Sweep(span, 64), Sweep(span, 16))]
            note = f"one core, times {cores}"
        else:
            span = min(cache.total_bytes // 2, max(8 * inner, cache.total_bytes // 8))
            rates, note = _bandwidths(clock, Sweep(span), Sweep(span // 4)), ""
        levels.append(_level(cache.name, _capacity(cache.total_bytes), rates, kernels, note))
        inner = cache.total_bytes
        step("memory", 0.08 * (number + 1))
    memory = memory_bytes()
    span = min(max(4 * inner, 256 * MIB), memory // 8)
    copy, read, write = _bandwidths(clock, Sweep(span))
    copy = max(copy, _library_copy(clock, span, threads))
    rates = [copy, max(read, copy / 2), max(write, copy / 2)]  # while copying it reads and writes at half the rate
    return _rising((*levels, _level("DRAM", _capacity(memory), rates, kernels)))


def _rising(levels: tuple[Level, ...]) -> tuple[Level, ...]:
    """Nearer levels at least as fast as farther ones: what streams from afar can be served from near."""
    risen = [levels[-1]]
    for level in reversed(levels[:-1]):
        ways = {}
        for way in ("copy", "read", "write"):
            near, far = getattr(level, way), getattr(risen[0], way)
            note = f"as {risen[0].name}; {near.value:g} measured"
            ways[way] = near if near.base >= far.base else msgspec.structs.replace(far, note=note)
        risen.insert(0, msgspec.structs.replace(level, **ways))
    return tuple(risen)


def _cuda_levels(clock: Clock, base: Device | None, kernels: Kernels) -> tuple[Level, ...]:
    cache = int(getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0))
    free, total = torch.cuda.mem_get_info()
    levels = []
    if cache:
        rates = _bandwidths(clock, Sweep(cache // 3), Sweep(cache // 12))
        levels.append(_level("L2", _capacity(cache), rates, kernels))
    memory = _level("DRAM", _capacity(total), _bandwidths(clock, Sweep(min(4 * GIB, free // 4))), kernels)
    if base is not None:
        memory = msgspec.structs.replace(memory, technology=base.memory.technology, bandwidth=base.memory.bandwidth)
    return _rising((*levels, memory))


def _level(name: str, capacity: Figure, rates: Sequence[float], kernels: Kernels, note: str = "") -> Level:
    copy, read, write = (
        Figure(_digits(_better(kernels, f"{name}.{way}", rate) / GIGA), "GB/s", "measured", note=note)
        for way, rate in zip(("copy", "read", "write"), rates, strict=True)
    )
    return Level(name, capacity=capacity, copy=copy, read=read, write=write)


def _capacity(count: int) -> Figure:
    scale, unit = (GIB, "GiB") if count >= GIB else (MIB, "MiB") if count >= MIB else (KIB, "KiB")
    return Figure(_digits(count / scale, 6), unit, "system")


def _bandwidths(clock: Clock, large: Sweep, small: Sweep | None = None) -> list[float]:
    """Copy, read and write in bytes/s: of one sweep, or of the difference between two."""
    runs = [_memory_runs(clock.device, sweep) for sweep in (large, small) if sweep is not None]
    seconds = clock.medians(*(run for sweep in runs for run, _ in sweep))
    rates = []
    for way, (_, moved) in enumerate(runs[0]):
        rate = moved / seconds[way]
        shorter = seconds[way + len(runs[0])] if small is not None else seconds[way]
        if seconds[way] > 1.3 * shorter:  # four times the bytes must show, else the difference is noise
            rate = (moved - runs[1][way][1]) / (seconds[way] - shorter)
        rates.append(rate)
    copy, *reads, write = rates
    return [copy, max(reads), write]


def _memory_runs(device: str, sweep: Sweep) -> list[tuple[Run, int]]:
    """Copy, ways to read (the best counts) and write, each with the bytes that it moves a call."""
    # Passes start 16 numbers apart, so that torch sees rows of one array and neither skips nor merges them.
    passes = sweep.passes
    margin = 16 * (passes - 1)
    count = sweep.span_bytes // 4 - margin
    half = (sweep.span_bytes // 2) // 4 - margin
    source, target = torch.rand(count + margin, device=device), torch.rand(count + margin, device=device)
    here, there, whole = (
        t.as_strided((passes, n), (16, 1)) for t, n in ((source, half), (target, half), (source, count))
    )
    written = target.as_strided((passes, count), (16, 1))
    first, second = source[: count // 2], source[count // 2 : count // 2 * 2]
    result = torch.empty((), device=device)

    def copy(_: int) -> object:
        return there.copy_(here)

    def add_up(_: int) -> object:
        return torch.sum(whole, dim=(0, 1), out=result)

    def find_largest(_: int) -> object:
        return torch.amax(whole, dim=(0, 1), out=result)

    def multiply_up(_: int) -> object:
        return torch.dot(first, second, out=result)

    def write(number: int) -> object:
        return written.fill_(number + 0.7)

    moved = 4 * passes * count
    reads = [add_up, find_largest, multiply_up] if passes == 1 else [add_up, find_largest]
    return [(copy, 8 * passes * half), *((read, moved) for read in reads), (write, moved)]


def _library_copy(clock: Clock, span_bytes: int, threads: int) -> float:
    """Copy by the C library, which stores past the caches where torch first loads the lines it will overwrite."""
    piece = span_bytes // 2 // threads // 64 * 64
    source, target = (torch.rand(piece * threads // 4) for _ in range(2))
    pieces = [(target.data_ptr() + piece * n, source.data_ptr() + piece * n, piece) for n in range(threads)]
    with ThreadPoolExecutor(threads) as pool:  # ctypes lets the other threads run meanwhile
        seconds = clock.median(lambda _: list(pool.map(ctypes.memmove, *zip(*pieces, strict=True))))
    return 2 * piece * threads / seconds


# Arithmetic.


def _matmul_rates(
    clock: Clock, formats: Mapping[str, torch.dtype], sizes: Sequence[int]
) -> dict[str, dict[int, Figure]]:
    """Rate of (size, size) @ (size, size) by format; formats that this build cannot multiply are left out."""
    rates: dict[str, dict[int, Figure]] = {}
    for name, dtype in formats.items():
        seconds = 0.0
        for size in sizes:
            if 8 * seconds > LONGEST_MATMUL_S:  # twice the size takes eight times as long
                break
            try:
                seconds = clock.median(_matmul_run(clock, dtype, size))
            except (RuntimeError, NotImplementedError):  # no kernel for this format here
                break
            rates.setdefault(name, {})[size] = _flop_rate(2 * size**3 / seconds, name)
    return rates


def _matmul_run(clock: Clock, dtype: torch.dtype, size: int) -> Run:
    """One matmul over rotated inputs. The right operand is stored by columns where the library wants it so."""
    count, device = clock.rotations, clock.device
    if dtype is torch.int8:
        pairs = [tuple(torch.randint(-9, 9, (2, size, size), dtype=dtype, device=device)) for _ in range(count)]
        return lambda number: torch._int_mm(pairs[number % count][0], pairs[number % count][1].t())
    pairs = [tuple(torch.rand(2, size, size, device=device).to(dtype)) for _ in range(count)]
    if dtype is torch.float8_e4m3fn:
        one = torch.ones((), device=device)
        return lambda number: torch._scaled_mm(
            pairs[number % count][0], pairs[number % count][1].t(), one, one, out_dtype=torch.bfloat16
        )
    result = torch.empty(size, size, dtype=dtype, device=device)
    return lambda number: torch.mm(*pairs[number % count], out=result)


def _cpu_special(clock: Clock, threads: int) -> dict[str, float]:
    """Functions per second on fp32 numbers that stay in the near caches."""
    values, result = torch.rand(threads * 2**16) + 0.1, torch.empty(threads * 2**16)
    other = torch.rand_like(values) + 0.5
    runs: dict[str, Run] = {
        "exp": lambda _: torch.exp(values, out=result),
        "log": lambda _: torch.log(values, out=result),
        "tanh": lambda _: torch.tanh(values, out=result),
        "erf": lambda _: torch.erf(values, out=result),
        "sin": lambda _: torch.sin(values, out=result),
        "sqrt": lambda _: torch.sqrt(values, out=result),
        "division": lambda _: torch.div(values, other, out=result),
    }
    seconds = clock.medians(*runs.values())
    return {name: values.numel() / taken for name, taken in zip(runs, seconds, strict=True)}


def _chain(clock: Clock, body: str) -> float | None:
    """Links per second of a long chain of one operation per element; None where torch cannot compile one."""
    code = (
        "template <typename T> T chain(T x) { "
        f'_Pragma("unroll 16") for (int i = 0; i < {CHAIN}; ++i) x = {body}; return x; }}'
    )
    values = torch.rand(CUDA_NUMBERS, device=clock.device)
    try:
        function = torch.cuda.jiterator._create_jit_fn(code)
        return CHAIN * values.numel() / clock.median(lambda _: function(values))
    except RuntimeError:  # no run-time compiler in this build
        return None


def _random(clock: Clock, count: int) -> dict[str, Figure]:
    """Random numbers per second, from a generator of our own."""
    generator = torch.Generator(device=clock.device).manual_seed(0)
    result = torch.empty(count, device=clock.device)
    runs: dict[str, Run] = {
        "bernoulli": lambda _: result.bernoulli_(0.9, generator=generator),
        "uniform": lambda _: result.uniform_(generator=generator),
        "normal": lambda _: result.normal_(generator=generator),
    }
    seconds = clock.medians(*runs.values())
    return {name: _per_s(count / taken) for name, taken in zip(runs, seconds, strict=True)}


# Overheads and whole kernels.


def _cpu_overheads(clock: Clock, threads: int) -> tuple[Figure, Figure | None]:
    """Seconds of an eager operator on one number, and of handing a kernel to all threads and waiting for them."""
    one, many = torch.rand(1), torch.empty(2**17)
    alone, shared = clock.medians(lambda _: torch.add(one, one), lambda _: many.fill_(0.7))
    dispatch = Figure(_digits(alone * 1e6), "us", "measured", note="torch.add of two numbers")
    with one_thread():
        serial, empty = clock.medians(lambda _: many.fill_(0.7), lambda _: one.fill_(0.7))
    fork = shared - empty - (serial - empty) / threads
    if threads == 1 or fork <= 0:
        return dispatch, None
    return dispatch, Figure(_digits(fork * 1e6), "us", "measured", note=f"fork and join of {threads} threads")


def _cuda_overheads(clock: Clock) -> tuple[Figure, Figure, Figure]:
    """An eager operator as the host issues it, one node of a replayed graph, and spread-out atomic adds."""
    one, two = torch.rand(1, device=clock.device), torch.empty(1, device=clock.device)
    launch = clock.median(lambda _: torch.add(one, one, out=two))
    torch.cuda.synchronize()
    dispatch = statistics.median(seconds_of(lambda _: torch.add(one, one, out=two), 500) / 500 for _ in range(5))
    torch.cuda.synchronize()
    places = torch.randint(2**16, (CUDA_NUMBERS,), device=clock.device)
    added, sums = torch.rand(CUDA_NUMBERS, device=clock.device), torch.zeros(2**16, device=clock.device)
    atomic = places.numel() / clock.median(lambda _: sums.index_add_(0, places, added))
    return (
        Figure(_digits(dispatch * 1e6), "us", "measured", note="torch.add of two numbers, issued from Python"),
        Figure(_digits(launch * 1e6), "us", "measured", note="one node of a replayed graph"),
        Figure(_digits(atomic / GIGA), "G/s", "measured", note="fp32 index_add_ over 65536 addresses"),
    )


def _achieved(clock: Clock, device: Device, kernels: Kernels) -> dict[str, Figure]:
    """Fraction of its limit that a kernel of each family reaches on data larger than the caches, of both makers."""
    copy, read = device.copy_bytes_per_s, device.read_bytes_per_s
    if copy is None or read is None:
        return {}
    last_cache = (device.levels[-2].capacity_bytes if len(device.levels) > 1 else None) or 64 * MIB
    each_bytes = min(2 * last_cache, (device.memory_bytes or GIB) // 16)
    rows, columns = max(2, each_bytes // (4 * 2048)), 2048
    count = rows * columns
    x, y, out = (torch.rand(rows, columns, device=clock.device) for _ in range(3))
    weight, sums = torch.rand(columns, device=clock.device), torch.empty(rows, device=clock.device)
    exp_s = 2 * count / (device.special_per_s or float("inf"))  # for the sum, and for what is stored
    families: dict[str, tuple[float, Run]] = {
        "pointwise": (12 * count / copy, lambda _: torch.add(x, y, out=out)),
        "reduction": (4 * count / read, lambda _: torch.sum(x, dim=-1, out=sums)),
        "softmax": (max(8 * count / copy, exp_s), lambda _: torch.softmax(x, -1, out=out)),
        "norm": (8 * count / copy, lambda _: torch.nn.functional.layer_norm(x, (columns,), weight, weight)),
    }
    limits = {name: limit_s for name, (limit_s, _) in families.items()}
    seconds = clock.medians(*(run for _, run in families.values()))
    shares = {
        name: Figure(_digits(min(1.0, limit_s / taken)), "fraction", "measured", note="PyTorch's own kernel, fp32")
        for (name, limit_s), taken in zip(limits.items(), seconds, strict=True)
    }
    limits["pointwise"] = 8 * count / copy  # ours reads one tensor
    for name, limit_s in limits.items():
        if (ours := f"generated {name}") in kernels:
            share = min(1.0, kernels[ours]() * limit_s / count)
            shares[ours] = Figure(_digits(share), "fraction", "measured", note="Ridgeline's kernel, fp32")
    return shares


# Figures, names and settings.


def _peaks(matmul: Mapping[str, Mapping[int, Figure]]) -> dict[str, Figure]:
    """The best rate of each format, to stand for its peak."""
    best = {name: max(rates.values(), key=lambda rate: rate.value) for name, rates in matmul.items()}
    return {name: msgspec.structs.replace(rate, dense=True, note="best matmul") for name, rate in best.items()}


def _flop_rate(flops_per_s: float, number_format: str, dense: bool | None = None) -> Figure:
    unit = "TOP/s" if number_format.startswith("int") else "TFLOP/s"
    return Figure(_digits(flops_per_s / TERA), unit, "measured", dense)


def _per_s(rate: float) -> Figure:
    return Figure(_digits(rate / GIGA), "G/s", "measured")


def _better(kernels: Kernels, name: str, rate: float) -> float:
    """PyTorch's rate, or that of the caller's kernel where it is higher."""
    return max(rate, kernels[name]()) if name in kernels else rate


def _digits(value: float, digits: int = 4) -> float:
    return float(f"{value:.{digits}g}")


def _vendor(name: str) -> str:
    return next((vendor for vendor in ("Intel", "AMD", "Apple", "ARM") if vendor.lower() in name.lower()), "unknown")
