"""The engine's choices for a machine: which device numbers, which target, which loop program for each kernel.

`Engine(knobs)` answers for any torch device: its catalogue record (the measured one of this machine first), and
launches for kernels, built together. What a stage refuses for one kernel is gathered and raised once, with the kernel
names, so that the rest of the graph can keep its kernels.
"""

import importlib
import shutil
from collections.abc import Mapping, Sequence
from functools import cache

import torch

from ridgeline.base.errors import BuildFailed, KernelsFailed, NoCompiler, RidgelineError
from ridgeline.base.knobs import Knobs
from ridgeline.base.records import Machine
from ridgeline.base.units import GIB, MIB
from ridgeline.codegen.target import Target
from ridgeline.hw import catalog
from ridgeline.hw.device import Device, Figure, Level, Source
from ridgeline.ir.kernel import Kernel
from ridgeline.ir.program import Program
from ridgeline.runtime.build import build
from ridgeline.runtime.cache import Cache, open_cache
from ridgeline.runtime.execute import Launch
from ridgeline.runtime.system import caches, memory_bytes, processor_name
from ridgeline.schedule import schedule

COMPILERS = ("cc", "gcc", "clang")


def estimated_processor() -> Device:
    """This processor before `hardware measure`: its caches as the system tells, its rates from one socket's class."""
    guess = Source("an uncalibrated guess for a server core; run `ridgeline hardware measure`", "recalled")

    def figure(value: float, unit: str, dense: bool | None = None) -> Figure:
        return Figure(value, unit, "guess", dense)

    threads = torch.get_num_threads()
    levels = [
        Level(c.name, capacity=figure(c.total_bytes / MIB, "MiB"), bandwidth=figure(20.0 * threads, "GB/s"))
        for c in caches()
    ]
    memory = Level("DRAM", capacity=figure(memory_bytes() / GIB, "GiB"), bandwidth=figure(8.0 * threads, "GB/s"))
    return Device(
        *(1, "this-processor", processor_name(), "", "cpu", {"guess": guess}, (*levels, memory)),
        launch=figure(2.0, "us"),
        dispatch=figure(5.0, "us"),
        vector={"fp32": figure(0.05 * threads, "TFLOP/s", True), "fp64": figure(0.025 * threads, "TFLOP/s", True)},
        special={"exp": figure(1.0 * threads, "G/s")},
    )


@cache
def _device(kind: str, name: str) -> Device:
    if kind == "cpu":
        return catalog.this_machine() or estimated_processor()
    return catalog.this_machine(kind) or catalog.find(name) or _unknown_accelerator(name)


def _unknown_accelerator(name: str) -> Device:
    raise RidgelineError(
        f"the catalogue holds no device '{name}': no limit can be told. Run `ridgeline hardware measure --device cuda`."
    )


def compiler_of(knobs: Knobs) -> str:
    """The C compiler to use. Raises NoCompiler when there is none."""
    names = (knobs.cc,) if knobs.cc else COMPILERS
    for name in names:
        found = shutil.which(name)
        if found is not None:
            return found
    raise NoCompiler("c", names)


def device_memory(count: int) -> torch.Tensor:
    """Bytes on the current accelerator, of the pool that tensors come from."""
    return torch.empty(count, dtype=torch.uint8, device="cuda")


def current_stream() -> int:
    """The handle of the stream that work is put on now."""
    # What torch.cuda.current_stream() asks, without making an object of it: 9 us less a launch (H200, 2026-12-01).
    handle: int = torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice())
    return handle


class Engine:
    """Devices, targets and builds for one set of knobs."""

    def __init__(self, knobs: Knobs) -> None:
        self.knobs = knobs
        self._targets: dict[str, Target] = {}
        self._launches: dict[tuple[str, str], tuple[Launch, tuple[str, ...]]] = {}
        self._cache: Cache | None = None

    def device(self, where: torch.device) -> Device:
        """What is known of a torch device."""
        name = torch.cuda.get_device_name(where) if where.type == "cuda" else ""
        return _device(where.type, name)

    def target(self, where: torch.device) -> Target:
        """The target for a torch device."""
        name = self.knobs.target or ("c" if where.type == "cpu" else "triton")
        if name not in self._targets:
            module = importlib.import_module(f"ridgeline.codegen.{name}")
            self._targets[name] = (
                module.C(compiler_of(self.knobs)) if name == "c" else module.Triton(device_memory, current_stream)
            )
        return self._targets[name]

    def machine(self, where: torch.device) -> Machine:
        """What loop programs may use on a torch device."""
        if where.type == "cpu":
            workers = self.knobs.threads or torch.get_num_threads()
            sizes = tuple(c.bytes for c in caches())
        else:
            properties = torch.cuda.get_device_properties(where)
            shared = getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block)
            workers, sizes = properties.multi_processor_count, (int(shared), int(properties.L2_cache_size))
        return self.target(where).machine(workers, sizes)

    def cache(self) -> Cache:
        if self._cache is None:
            self._cache = open_cache(self.knobs.cache)
        return self._cache

    def build(self, kernels: Sequence[Kernel], where: torch.device) -> Mapping[str, tuple[Launch, tuple[str, ...]]]:
        """A launch for each kernel by name, with the size symbols it takes. Kernels met before are not built again."""
        if not kernels:
            return {}
        target, machine = self.target(where), self.machine(where)
        failed: dict[str, str] = {}
        programs: dict[str, Program] = {}
        for kernel in kernels:
            if (target.name, kernel.name) in self._launches or kernel.name in programs:
                continue
            try:
                programs[kernel.name] = schedule(kernel, machine)
            except RidgelineError as error:
                failed[kernel.name] = str(error).splitlines()[0]
        if failed:
            raise KernelsFailed(failed)
        self._build(list(programs.values()), target)
        return {k.name: self._launches[target.name, k.name] for k in kernels}

    def _build(self, programs: Sequence[Program], target: Target) -> None:
        try:
            entries = build(programs, target, self.cache())
        except BuildFailed as error:
            if len(programs) == 1:
                raise KernelsFailed({programs[0].name: _told(error)}) from error
            failed: dict[str, str] = {}
            for program in programs:  # one by one, to learn which
                try:
                    self._build([program], target)
                except KernelsFailed as one:
                    failed |= one.reasons
            if failed:
                raise KernelsFailed(failed) from error
            return
        for program, entry in zip(programs, entries, strict=True):
            self._launches[target.name, program.name] = (entry, program.sizes)


def _told(error: BuildFailed) -> str:
    """One line of a compiler's complaint: the first that names an error."""
    lines = str(error).splitlines()
    return next((line.strip() for line in lines if "error" in line), lines[0])
