"""One generated Triton kernel over many tensors: programs find their tensor in tables.

`sweep(program, strides, counts)` makes two kernels from the text of each of a program's kernels. Program i of either
works on block `of_block[i]` of tensor `of_row[i]`, whose pointers are `rows[tensor * width ...]`. In `..._whole` every
block is whole, so that the compiler knows its length and accesses are wide; in `..._tail` blocks end where the tensor
does. So a step over any number of tensors is two launches. The tables of blocks go to the device once, that of
pointers when one of them has changed.
"""

import ctypes
import re
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.codegen.triton_build import ALIGNED, Launch, Module, Program, Ready, driver

GRID = re.compile(r"\(\((?P<size>\w+) \+ \d+\) // (?P<block>\d+)\)")
TABLES = (("rows", "*i64"), ("of_row", "*i32"), ("of_block", "*i32"), ("counts", "*i64"))
ELEMENTS = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
ELEMENTS |= {f"{sign}{bits}": f"{sign}nt{bits}".replace("unt", "uint") for sign in "iu" for bits in (8, 16, 32, 64)}


def swept(source: str, launch: Launch, strides: Sequence[int], whole: bool, aligned: bool) -> str:
    """The text of a kernel over many tensors, from that of a kernel over one. See the module's docstring.

    `aligned`: pointers to more than one element are multiples of ALIGNED.
    """
    head, _, rest = source.partition(f"@triton.jit\ndef {launch.kernel}(")
    names, _, body = rest.partition("):\n")
    body = body.partition("\n\n\n")[0].replace("tl.program_id(0)", "block")
    lines = ["place = tl.program_id(0).to(tl.int64)", "row = tl.load(of_row + place).to(tl.int64)"]
    lines.append("block = tl.load(of_block + place)")
    grid = GRID.fullmatch(launch.grid)
    for name, (what, kind) in zip(names.split(", "), launch.arguments, strict=True):
        if isinstance(what, str):
            end = f"(block.to(tl.int64) + 1) * {grid['block']}" if whole and grid else "tl.load(counts + row)"
            lines.append(f"{name} = {end}")
            continue
        element = ELEMENTS[kind.removeprefix("*")]
        text = f"tl.load(rows + {len(strides)} * row + {what}).to(tl.pointer_type(tl.{element}))"
        lines.append(f"{name} = tl.multiple_of({text}, {ALIGNED})" if aligned and strides[what] else f"{name} = {text}")
    prologue = "\n".join("    " + line for line in lines)
    imports = head.partition("\n\n\n")[0]
    arguments = ", ".join(name for name, _ in TABLES)
    return f"{imports}\n\n\n@triton.jit\ndef {kernel_name(launch, whole)}({arguments}):\n{prologue}\n{body}\n"


def kernel_name(launch: Launch, whole: bool) -> str:
    return f"{launch.kernel}_{'whole' if whole else 'tail'}"


def sweep(program: Program, strides: Sequence[int], counts: Sequence[int]) -> "Sweep | None":
    """The program over tensors of so many elements; None unless each launch is over blocks of its only axis."""
    table = program.table
    if table.scratch or min(strides) < 0:
        return None
    for launch in table.launches:
        kinds = {kind.removeprefix("*") for what, kind in launch.arguments if isinstance(what, int)}
        if not (GRID.fullmatch(launch.grid) or launch.grid == "1") or not ELEMENTS.keys() >= kinds:
            return None
    return Sweep(program.module, table.launches, strides, counts)


@dataclass(frozen=True, slots=True)
class Part:
    """One launch for all tensors: which blocks it works on."""

    launch: Launch
    whole: bool
    programs: int
    of_row: int  # addresses on the device
    of_block: int


class Sweep:
    """The launches with their tables. `pointers[row * width + k]` may be written to between calls."""

    def __init__(
        self, module: Module, launches: Sequence[Launch], strides: Sequence[int], counts: Sequence[int]
    ) -> None:
        self.module, self.strides, self.width = module, tuple(strides), len(strides)
        self.pointers = (ctypes.c_int64 * (len(counts) * self.width))()
        self.sent, self.aligned = b"", True
        self.kept: list[Any] = []
        self.rows = module.allocate(ctypes.sizeof(self.pointers))
        self.counts = self.upload(array("q", counts))
        self.parts = [part for launch in launches for part in self.parts_of(launch, counts)]
        self.pieces = sum(part.programs for part in self.parts)
        self.ready: dict[tuple[Launch, bool, bool], Ready] = {}

    def parts_of(self, launch: Launch, counts: Sequence[int]) -> Iterator[Part]:
        """What one launch of the program becomes: whole blocks and tails, or one program a tensor."""
        grid = GRID.fullmatch(launch.grid)
        if grid is None:
            yield self.part(launch, False, [range(1)] * len(counts))
            return
        block = int(grid["block"])
        yield self.part(launch, True, [range(n // block) for n in counts])
        yield self.part(launch, False, [range(n // block, -(-n // block)) for n in counts])

    def part(self, launch: Launch, whole: bool, blocks: Sequence[range]) -> Part:
        rows, places = array("i"), array("i")
        for row, numbers in enumerate(blocks):
            rows.extend(array("i", [row]) * len(numbers))
            places.extend(numbers)
        return Part(launch, whole, len(rows), self.upload(rows), self.upload(places))

    def upload(self, numbers: "array[int]") -> int:
        """The address of a copy on the device that lives as long as this."""
        data = numbers.tobytes()
        memory = self.module.allocate(max(len(data), 1))
        self.kept.append(memory)
        address: int = memory.data_ptr()
        self.send(address, data)
        return address

    def send(self, address: int, data: bytes) -> None:
        """Copies to the device in the order of the stream; the driver has taken `data` when this returns."""
        if data:
            copy = driver().library.cuMemcpyHtoDAsync_v2
            stream = ctypes.c_void_p(self.module.stream())
            driver().check(copy(ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)), stream), "copying a table")

    def kernel(self, part: Part) -> Ready:
        """Compiled when first needed."""
        key = (part.launch, part.whole, self.aligned)
        if key not in self.ready:
            text = swept(self.module.source, part.launch, self.strides, part.whole, self.aligned)
            with tempfile.TemporaryDirectory(prefix="ridgeline-") as folder:
                module = Module(text, Path(folder), self.module.allocate, self.module.stream)
                made = Launch(kernel_name(part.launch, part.whole), "", part.launch.threads, TABLES)
                self.ready[key] = module.ready(made, True)
        return self.ready[key]

    def __call__(self) -> None:
        pointers = bytes(self.pointers)
        rows = self.rows.data_ptr()
        if pointers != self.sent:
            self.send(rows, pointers)
            self.sent = pointers
            many = [k for k, stride in enumerate(self.strides) if stride]
            self.aligned = not any(p % ALIGNED for k in many for p in self.pointers[k :: self.width])
        stream, launch, check = self.module.stream(), driver().launch, driver().check
        for part in self.parts:
            if not part.programs:
                continue
            ready = self.kernel(part)
            facts, count = ready.facts, ready.facts.parameters
            values = (rows, part.of_row, part.of_block, self.counts, *([0] * count))
            data = (ctypes.c_uint64 * count)(*values[:count])
            base = ctypes.addressof(data)
            given = (ctypes.c_void_p * count)(*[base + 8 * k for k in range(count)])
            size = (part.programs, 1, 1, facts.threads, 1, 1, facts.shared_bytes)
            check(launch(ready.handle, *size, stream, given, None), "launch")
