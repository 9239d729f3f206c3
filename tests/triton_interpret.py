"""Runs generated Triton in Triton's interpreter against the reference interpreter; a program of its own, because the
interpreter is chosen when Triton is imported. `python -m tests.triton_interpret CASE...`; prints one line a failure.

What the device's math library gives is taken from the reference interpreter's words here: the interpreter has no such
library. Everything else - blocks, masks, folds, phases, types - is what runs on a device.
"""

import ctypes
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from ridgeline.base.records import Machine
from ridgeline.codegen import triton_prelude
from ridgeline.codegen.triton import Triton
from ridgeline.codegen.triton_build import Table, import_source, tables
from ridgeline.ir.kernel import Kernel
from ridgeline.ir.reference import WORD_FUNCTIONS
from ridgeline.schedule import schedule
from tests import kernels as k
from tests.triton_cases import CASES

TARGET = Triton(lambda count: torch.empty(count, dtype=torch.uint8), lambda: 0)
POINTED = {
    **{"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "i1": torch.bool},
    **{"i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8},
}


class _Library:
    """Triton's math library by way of numpy."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = WORD_FUNCTIONS[name]

        def apply(*args: Any) -> Any:
            blocks = [tl.to_tensor(a) if not isinstance(a, tl.tensor) else a for a in args]
            with np.errstate(all="ignore"):
                out = np.asarray(function(*(b.handle.data for b in blocks)))
            first = max(blocks, key=lambda b: b.handle.data.size)
            return tl.tensor(TensorHandle(out.astype(first.handle.data.dtype), first.handle.dtype), first.type)

        return apply


def tensor_at(address: int, kind: str) -> torch.Tensor:
    """Something with an address and a type: the interpreter reads memory by itself."""
    dtype = POINTED[kind.lstrip("*")]
    raw = (ctypes.c_char * dtype.itemsize).from_address(address)
    return torch.frombuffer(raw, dtype=dtype, count=1)


class Interpreted:
    """An entry that runs a program's kernels in the interpreter."""

    def __init__(self, module: Any, table: Table) -> None:
        self.module, self.table = module, table

    def __call__(self, pointers: Sequence[int], sizes: Sequence[int]) -> None:
        names = dict(zip(self.table.sizes, sizes, strict=True))
        keep = [torch.full((eval(s, {}, names) + 64,), 0x5A, dtype=torch.uint8) for s in self.table.scratch]
        places = [*pointers, *(b.data_ptr() for b in keep)]
        for launch in self.table.launches:
            args = [tensor_at(places[a], t) if isinstance(a, int) else names[a] for a, t in launch.arguments]
            count = eval(launch.grid, {}, names)
            if count:
                getattr(self.module, launch.kernel)[(count,)](*args)


def entries(kernels: Sequence[Kernel], machine: Machine) -> list[Interpreted]:
    """One interpreted entry a kernel; their names must differ."""
    source = TARGET.emit([schedule(kernel, machine) for kernel in kernels])
    folder = Path(tempfile.mkdtemp(prefix="ridgeline-"))
    (folder / "module.py").write_text(source)
    module = import_source(folder / "module.py")
    for user in (module, triton_prelude):
        setattr(user, "libdevice", _Library())  # noqa: B010 - a module's name, seen by the functions in it
    found = tables(source)
    return [Interpreted(module, found[kernel.name]) for kernel in kernels]


def check(kernels: Sequence[Kernel], machine: Machine, scale: float, high: int) -> list[str]:
    """Runs each kernel both ways; what failed."""
    named = [k.renamed(kernel, f"{kernel.name}_{n}") for n, kernel in enumerate(kernels)]
    failed = []
    for kernel, entry in zip(named, entries(named, machine), strict=True):
        try:
            k.run_against_reference(kernel, entry, scale=scale, high=high)
        except Exception as error:
            shapes = {b.name: (b.dtype, b.shape) for b in kernel.buffers}
            failed.append(f"{kernel.name} {shapes}: {type(error).__name__}: {error}")
    return failed


if __name__ == "__main__":
    problems = [f"{name}: {line}" for name in sys.argv[1:] or CASES for line in check(*CASES[name]())]
    print("\n".join(problems))
    sys.exit(bool(problems))
