"""An engine whose kernels are run by the reference interpreter, through the same pointers a compiled kernel gets."""

import ctypes
from collections.abc import Sequence

import numpy as np
import torch

from ridgeline.hw.catalog import load
from ridgeline.hw.device import Device
from ridgeline.ir.index import Index, Sym, evaluate
from ridgeline.ir.kernel import Kernel
from ridgeline.ir.reference import run_kernel

NATIVE = {
    **{"f64": np.float64, "f32": np.float32, "i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8},
    **{"u8": np.uint8, "bool": np.bool_},
}


def symbols(kernel: Kernel) -> tuple[str, ...]:
    indices = [i for b in kernel.buffers for i in (*b.shape, *b.strides)] + [a.size for a in kernel.axes]
    return tuple(sorted({a.name for i in indices for a in i.atoms if isinstance(a, Sym)}))


class ReferenceEngine:
    def device(self, where: torch.device) -> Device:
        return load("h200-sxm")

    def build(self, kernels: Sequence[Kernel], where: torch.device):
        return {k.name: (self.launcher(k), symbols(k)) for k in kernels}

    def launcher(self, kernel: Kernel):
        names = symbols(kernel)

        def launch(pointers, sizes):
            numbers = dict(zip(names, sizes, strict=True))

            def size(i: Index) -> int:
                return evaluate(i, {a: numbers[a.name] for a in i.atoms if isinstance(a, Sym)})

            arrays = {}
            for b, p in zip(kernel.buffers, pointers, strict=True):
                dtype = np.dtype(NATIVE[b.dtype.name])
                shape = [size(s) for s in b.shape]
                strides = [size(s) * dtype.itemsize for s in b.strides]
                extent = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + dtype.itemsize
                if 0 in shape:
                    arrays[b.name] = np.zeros(shape, dtype)
                    continue
                raw = (ctypes.c_char * extent).from_address(p)
                arrays[b.name] = np.ndarray(shape, dtype, buffer=raw, strides=strides)
            run_kernel(kernel, arrays, numbers)

        return launch
