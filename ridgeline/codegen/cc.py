"""The C compiler and what it makes: flags, running it, loading the shared object, calling through ctypes.

OpenMP is compiled for but its library is not linked: the symbols resolve to the one that torch has loaded, so that
both share threads and `torch.set_num_threads`. In a process without it, code is compiled without OpenMP.
"""

import ctypes
import functools
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ridgeline.base.errors import BuildFailed

FLAGS = (
    *("-O2", "-std=gnu11", "-march=native", "-fPIC"),
    *("-fno-math-errno", "-fno-trapping-math", "-fwrapv", "-ffp-contract=fast", "-fno-strict-aliasing"),
    *("-Wno-unknown-pragmas",),
)
HERE = Path(__file__).parent
PRELUDE, SWEEP = HERE / "prelude.h", HERE / "sweep.h"
SOURCE, OBJECT, LIBRARY = "module.c", "module.o", "module.so"


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Features of this processor; empty where the system does not say."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    line = next((x for x in text.splitlines() if x.startswith(("flags", "Features"))), "")
    return frozenset(line.partition(":")[2].split())


def lanes() -> int:
    """Lanes of a vector on this machine, as prelude.h counts them."""
    flags = cpu_flags()
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags:
        return 16
    return 8 if "avx2" in flags else 4


@functools.cache
def has_openmp() -> bool:
    """Whether an OpenMP runtime is in the process for everybody (torch brings libgomp's symbols)."""
    return hasattr(ctypes.CDLL(None), "GOMP_parallel")


def flags() -> tuple[str, ...]:
    return (*FLAGS, f"-DW={lanes()}", *(("-fopenmp",) if has_openmp() else ()))


@functools.cache
def version(compiler: str) -> str:
    """All that a shared object depends on beside its source."""
    first = _run([compiler, "--version"]).splitlines()[:1]
    headers = (PRELUDE.read_text(), SWEEP.read_text())
    return "\n".join((*first, *flags(), platform.machine(), " ".join(sorted(cpu_flags())), *headers))


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildFailed("c", f"there is no C compiler: '{command[0]}' cannot be run ({error.strerror})") from error
    if done.returncode:
        raise BuildFailed("c", f"'{command[0]}' failed: {done.stderr.strip()[:2000]}")
    return done.stdout


def compile_source(compiler: str, source: str, folder: Path) -> Path:
    """The shared object of a source, in `folder`. Linked without OpenMP, so that no second library of it comes in."""
    built = folder / LIBRARY
    if not built.exists():
        (folder / SOURCE).write_text(f'{source}\n#include "{SWEEP.name}"\n')
        _run([compiler, *flags(), f"-I{HERE}", "-c", str(folder / SOURCE), "-o", str(folder / OBJECT)])
        _run([compiler, "-shared", str(folder / OBJECT), "-o", str(built), "-lm"])
        (folder / OBJECT).unlink()
    return built


class Function:
    """One generated function: `int f(void **buffers, const int64_t *sizes)`."""

    __slots__ = ("address", "library", "name", "raw")

    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        self.library, self.name = library, name
        self.raw = library[name]
        self.address: int = ctypes.cast(self.raw, ctypes.c_void_p).value or 0

    def __call__(self, pointers: Sequence[int], sizes: Sequence[int] = ()) -> None:
        if self.raw((ctypes.c_void_p * len(pointers))(*pointers), (ctypes.c_int64 * len(sizes))(*sizes)):
            raise MemoryError(self.name)

    def bind(self, pointers: Sequence[int], sizes: Sequence[int] = ()) -> "Bound":
        return Bound(self, pointers, sizes)

    def sweep(self, strides: Sequence[int], counts: Sequence[int], most: int, parallel: bool) -> "Sweep":
        return Sweep(self, strides, counts, most, parallel)


class Bound:
    """A function with its arguments laid out. `pointers` may be written to between calls."""

    __slots__ = ("function", "pointers", "raw", "sizes")

    def __init__(self, function: Function, pointers: Sequence[int], sizes: Sequence[int]) -> None:
        self.function, self.raw = function, function.raw
        self.pointers = (ctypes.c_void_p * len(pointers))(*pointers)
        self.sizes = (ctypes.c_int64 * len(sizes))(*sizes)

    def __call__(self) -> None:
        if self.raw(self.pointers, self.sizes):
            raise MemoryError(self.function.name)


class Chain:
    """Several bound functions run by one call into C, in order."""

    __slots__ = ("arrays", "calls", "raw")

    def __init__(self, calls: Sequence[Bound]) -> None:
        self.calls = tuple(calls)
        count = len(self.calls)
        addresses = (ctypes.c_void_p * count)(*(b.function.address for b in self.calls))
        pointers = (ctypes.c_void_p * count)(*(ctypes.addressof(b.pointers) for b in self.calls))
        sizes = (ctypes.c_void_p * count)(*(ctypes.addressof(b.sizes) for b in self.calls))
        self.arrays = (ctypes.c_int64(count), addresses, pointers, sizes)
        self.raw = self.calls[0].function.library["ridgeline_run"] if self.calls else None

    def __call__(self) -> None:
        if self.raw is not None and self.raw(*self.arrays):
            raise MemoryError(self.calls[0].function.name)


class Sweep:
    """A function of one size run over many tensors by one call into C, in `pieces`, spread over the threads.

    `strides` are bytes an element of each buffer, as sweep.h reads them; `counts` the tensors' elements, `most` those
    of one piece. `pointers[row * width + k]` is where buffer k of a tensor begins; they may be written between calls.
    """

    __slots__ = ("arguments", "function", "pieces", "pointers", "raw", "width")

    def __init__(
        self, function: Function, strides: Sequence[int], counts: Sequence[int], most: int, parallel: bool
    ) -> None:
        self.function, self.width = function, len(strides)
        self.pointers = (ctypes.c_void_p * (len(counts) * self.width))()
        flat = [
            number
            for row, count in enumerate(counts)
            for first in range(0, count, most)
            for number in (row, first, min(most, count - first))
        ]
        self.pieces = len(flat) // 3
        self.arguments = (
            ctypes.c_void_p(function.address),
            ctypes.c_int64(self.width),
            (ctypes.c_int64 * self.width)(*strides),
            self.pointers,
            ctypes.c_int64(self.pieces),
            (ctypes.c_int64 * len(flat))(*flat),
            ctypes.c_int64(parallel),
        )
        self.raw = function.library["ridgeline_sweep"]

    def __call__(self) -> None:
        if self.raw(*self.arguments):
            raise MemoryError(self.function.name)


class Functions(Mapping[str, Function]):
    """The functions of a shared object by name."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self.library = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
        self.names = tuple(names)

    def __getitem__(self, name: str) -> Function:
        if name not in self.names:
            raise KeyError(name)
        return Function(self.library, f"k_{name}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)
