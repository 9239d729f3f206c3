"""Runs an update swept over many tensors in Triton's interpreter, against the same update by torch; a program of its
own, because the interpreter is chosen when Triton is imported. `python -m tests.triton_sweep_interpret`; fails loudly.
"""

import os
import tempfile
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import torch

from ridgeline.codegen.triton_build import import_source, tables
from ridgeline.codegen.triton_sweep import kernel_name, swept
from tests.sweep_update import TARGET, swept_update

COUNTS = (1500, 3, 0, 512, 1025)  # whole blocks and a tail, a tail alone, nothing, one whole block, a tail of one


def main() -> None:
    program, strides = swept_update()
    source = TARGET.emit([program])
    (launch,) = tables(source)[program.name].launches
    draw = torch.Generator().manual_seed(0)
    weights = [torch.randn(n, generator=draw) for n in COUNTS]
    gradients = [torch.randn(n, generator=draw) for n in COUNTS]
    rates = [torch.tensor(0.1 * k, dtype=torch.float64) for k in range(len(COUNTS))]
    expected = [w - float(r) * g for w, r, g in zip(weights, rates, gradients, strict=True)]
    given = {"weight": weights, "gradient": gradients, "rate": rates}
    pointers = [[given[b.name][k].data_ptr() for b in program.buffers] for k in range(len(COUNTS))]
    rows = torch.tensor(pointers, dtype=torch.int64)
    counts = torch.tensor(COUNTS, dtype=torch.int64)
    for whole in (True, False):
        blocks = [range(n // 512) if whole else range(n // 512, -(-n // 512)) for n in COUNTS]
        of_row = torch.tensor([k for k, b in enumerate(blocks) for _ in b], dtype=torch.int32)
        of_block = torch.tensor([i for b in blocks for i in b], dtype=torch.int32)
        path = Path(tempfile.mkdtemp(prefix="ridgeline-")) / "module.py"
        path.write_text(swept(source, launch, strides, whole, True))
        getattr(import_source(path), kernel_name(launch, whole))[(len(of_row),)](rows, of_row, of_block, counts)
    for found, right in zip(weights, expected, strict=True):
        torch.testing.assert_close(found, right)


if __name__ == "__main__":
    main()
