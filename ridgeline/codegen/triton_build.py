"""Compiling and launching generated Triton modules.

`load(source, folder, ...)` compiles every kernel of a module for the device of this process, leaves the machine code
and what a launch needs in `folder`, and gives entries that launch through the CUDA driver, without Triton's launcher.
`compile_for(source, arch)` compiles for a device that need not be here and tells what the code uses: registers,
spills, shared memory, bytes. Launching is written for NVIDIA devices; for others only `compile_for` works.
"""

import ast
import ctypes
import functools
import hashlib
import importlib
import importlib.util
import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.errors import TritonError

from ridgeline.base.errors import BuildFailed

PRELUDE = Path(__file__).parent / "triton_prelude.py"
SOURCE, CODE, FACTS = "module.py", "{}.cubin", "{}.json"
ALIGNED = 16  # bytes; addresses that are not multiples get code that assumes less
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
    "gfx950": GPUTarget("hip", "gfx950", 64),
}
OPTIONS = {"enable_fp_fusion": True, "enable_reflect_ftz": False}


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel of a program, as the module's table has it."""

    kernel: str
    grid: str
    threads: int
    arguments: tuple[tuple[int | str, str], ...]


@dataclass(frozen=True, slots=True)
class Table:
    """All launches of a program."""

    buffers: int
    sizes: tuple[str, ...]
    scratch: tuple[str, ...]
    launches: tuple[Launch, ...]


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel's machine code uses: registers and bytes spilled of a thread, shared memory of a program."""

    registers: int
    spill_bytes: int
    shared_bytes: int
    code_bytes: int


def tables(source: str) -> dict[str, Table]:
    """The launches of a module by program, read from its literal."""
    assigned = ast.parse(source).body[-1]
    assert isinstance(assigned, ast.Assign)
    table = ast.literal_eval(assigned.value)
    return {
        name: Table(
            buffers,
            tuple(sizes),
            tuple(scratch),
            tuple(Launch(k, g, t, tuple((a, kind) for a, kind in given)) for k, g, t, given in launches),
        )
        for name, (buffers, sizes, scratch, launches) in table.items()
    }


def import_source(path: Path) -> ModuleType:
    """A generated module from its file: Triton reads the source of its functions there."""
    name = f"ridgeline_generated_{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compile_kernel(module: ModuleType, launch: Launch, target: GPUTarget, aligned: bool = True) -> Any:
    """Triton's compiled kernel. Raises BuildFailed with the compiler's last words."""
    function = getattr(module, launch.kernel)
    signature = dict(zip(function.arg_names, (t for _, t in launch.arguments), strict=True))
    pointers = [k for k, (_, t) in enumerate(launch.arguments) if t.startswith("*")]
    attributes = {(k,): [["tt.divisibility", ALIGNED]] for k in pointers} if aligned else {}
    options = {**OPTIONS, "num_warps": max(launch.threads // target.warp_size, 1)}
    known = target.backend == "cuda"
    try:
        return triton.compile(
            ASTSource(function, signature, {}, attributes),
            target=target,
            options={k: v for k, v in options.items() if known or k != "enable_reflect_ftz"},
        )
    except (TritonError, RuntimeError) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise BuildFailed("triton", f"{launch.kernel}: {lines[-1] if lines else type(error).__name__}") from error


# ---- a device that is not here


def compile_for(source: str, arch: str) -> dict[str, Resources]:
    """Compiles every kernel of a module for one of TARGETS, without the device; what each uses, by kernel name."""
    target = TARGETS[arch]
    with tempfile.TemporaryDirectory(prefix="ridgeline-") as folder:
        path = Path(folder) / SOURCE
        path.write_text(source)
        module = import_source(path)
        launches = {x.kernel: x for t in tables(source).values() for x in t.launches}
        return {name: resources(compile_kernel(module, x, target), Path(folder)) for name, x in launches.items()}


def resources(kernel: Any, folder: Path) -> Resources:
    """Read from the machine code: the notes of an AMD one, NVIDIA's by its own tool."""
    if "hsaco" in kernel.asm:
        text = kernel.asm["amdgcn"]
        used = {key: int(number) for key, number in re.findall(r"\.(vgpr_count|vgpr_spill_count):\s+(\d+)", text)}
        return Resources(
            used["vgpr_count"], 4 * used["vgpr_spill_count"], kernel.metadata.shared, len(kernel.asm["hsaco"])
        )
    code = kernel.asm["cubin"]
    path = folder / "kernel.cubin"
    path.write_bytes(code)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    shown = subprocess.run([tool, "--dump-resource-usage", path], capture_output=True, text=True, check=True).stdout
    used = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", shown))
    return Resources(int(used["REG"]), int(used["STACK"]) + int(used["LOCAL"]), kernel.metadata.shared, len(code))


# ---- this device


@functools.cache
def here() -> GPUTarget:
    """The device of this process. Raises BuildFailed where there is none that code can be launched on."""
    return GPUTarget("cuda", driver().capability(), 32)


def version() -> str:
    """All that a compiled module depends on beside its source."""
    target = here()
    return "\n".join((triton.__version__, f"{target.backend} {target.arch}", repr(OPTIONS), PRELUDE.read_text()))


class Driver:
    """The functions of the CUDA driver that launches need."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.launch = self.library.cuLaunchKernel
        unsigned, pointer = ctypes.c_uint, ctypes.c_void_p
        self.launch.argtypes = [pointer, *([unsigned] * 7), pointer, pointer, pointer]

    def check(self, code: int, what: str) -> None:
        if code:
            text = ctypes.c_char_p()
            self.library.cuGetErrorString(code, ctypes.byref(text))
            raise BuildFailed("triton", f"{what}: {(text.value or b'unknown error').decode()}")

    def capability(self) -> int:
        """Of the first device: 90 for 9.0."""
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        self.check(self.library.cuInit(0), "cuInit")
        self.check(self.library.cuDeviceGet(ctypes.byref(device), 0), "the first device")
        for number, attribute in ((major, MAJOR_ATTRIBUTE), (minor, MINOR_ATTRIBUTE)):
            self.check(self.library.cuDeviceGetAttribute(ctypes.byref(number), attribute, device), "its capability")
        return 10 * major.value + minor.value

    def kernel(self, code: bytes, name: str, shared_bytes: int) -> int:
        """A handle that is good in every context; code is loaded into one when it is first launched there."""
        library, kernel, count = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
        self.check(self.library.cuInit(0), "cuInit")
        self.check(
            self.library.cuLibraryLoadData(ctypes.byref(library), code, None, None, 0, None, None, 0), f"loading {name}"
        )
        self.check(self.library.cuLibraryGetKernel(ctypes.byref(kernel), library, name.encode()), f"finding {name}")
        if shared_bytes > SHARED_DEFAULT:
            self.check(self.library.cuDeviceGetCount(ctypes.byref(count)), "counting devices")
            for device in range(count.value):
                code_ = self.library.cuKernelSetAttribute(SHARED_ATTRIBUTE, shared_bytes, kernel, device)
                self.check(code_, f"shared memory of {name}")
        return kernel.value or 0


SHARED_DEFAULT = 48 << 10  # bytes of shared memory that a kernel may use without asking
SHARED_ATTRIBUTE = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
MAJOR_ATTRIBUTE, MINOR_ATTRIBUTE = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_...


@functools.cache
def driver() -> Driver:
    try:
        return Driver()
    except OSError as error:
        raise BuildFailed("triton", f"there is no CUDA driver: {error}") from error


@dataclass(frozen=True, slots=True)
class Facts:
    """What launching a compiled kernel needs."""

    name: str
    threads: int
    shared_bytes: int
    parameters: int


def facts_of(kernel: Any) -> Facts:
    """Triton appends parameters of its own to a kernel's: the machine code takes as many as its entry lists."""
    if kernel.metadata.global_scratch_size:
        raise BuildFailed("triton", f"{kernel.metadata.name} asks for scratch of Triton's own")
    entry = kernel.asm["ptx"].partition(".entry")[2].partition(")")[0]
    meta = kernel.metadata
    return Facts(meta.name, meta.num_warps * meta.warp_size, meta.shared, entry.count(".param"))


@dataclass(frozen=True, slots=True)
class Ready:
    """A kernel loaded on the device."""

    handle: int
    facts: Facts


class Step:
    """One launch of an entry: code by alignment, and where its arguments come from."""

    __slots__ = ("arguments", "grid", "launch", "offsets", "pointers", "ready")

    def __init__(self, launch: Launch, ready: Ready, buffers: int, sizes: Sequence[str]) -> None:
        self.launch, self.ready = launch, ready
        self.grid = compile(launch.grid, "<grid>", "eval")
        places = {name: buffers + k for k, name in enumerate(sizes)}
        self.arguments = tuple(a if isinstance(a, int) else places[a] for a, _ in launch.arguments)
        self.pointers = tuple(a for a, _ in launch.arguments if isinstance(a, int))
        self.offsets = tuple(8 * k for k in range(ready.facts.parameters))


class Program:
    """A compiled program: codegen/target.py's Entry. Each call lays its arguments out anew, so threads may share it."""

    def __init__(self, table: Table, module: "Module") -> None:
        self.table, self.module = table, module
        count = table.buffers + len(table.scratch)
        self.steps = [Step(x, module.ready(x, True), count, table.sizes) for x in table.launches]
        self.scratch = [compile(text, "<scratch>", "eval") for text in table.scratch]
        self.fixed = not table.sizes
        self.grids = [eval(s.grid, {}) for s in self.steps] if self.fixed else []
        self.room = [eval(code, {}) for code in self.scratch] if self.fixed else []

    def __call__(self, pointers: Sequence[int], sizes: Sequence[int]) -> None:
        keep, calls = self.prepare(pointers, sizes)
        stream = self.module.stream()
        launch, check = driver().launch, driver().check
        for handle, grid, threads, shared, parameters, _ in calls:
            code = launch(handle, grid, 1, 1, threads, 1, 1, shared, stream, parameters, None)
            if code:
                check(code, "launch")
        del keep

    def bind(self, pointers: Sequence[int], sizes: Sequence[int]) -> Callable[[], None]:
        keep, calls = self.prepare(pointers, sizes)
        stream, launch, check = self.module.stream, driver().launch, driver().check

        def run() -> None:
            at = stream()
            for handle, grid, threads, shared, parameters, _ in calls:
                code = launch(handle, grid, 1, 1, threads, 1, 1, shared, at, parameters, None)
                if code:
                    check(code, "launch")

        run.keep = keep  # type: ignore[attr-defined]
        return run

    def sweep(self, strides: Sequence[int], counts: Sequence[int], most: int, parallel: bool) -> Any:
        """The same over many tensors, two launches for all; None where that cannot be (`triton_sweep.py`)."""
        return importlib.import_module("ridgeline.codegen.triton_sweep").sweep(self, strides, counts)

    def prepare(self, pointers: Sequence[int], sizes: Sequence[int]) -> tuple[Any, list[tuple[Any, ...]]]:
        """Scratch, and each launch with its arguments laid out."""
        names = {} if self.fixed else dict(zip(self.table.sizes, sizes, strict=True))
        room = self.room if self.fixed else [eval(code, {}, names) for code in self.scratch]
        grids = self.grids if self.fixed else [eval(s.grid, {}, names) for s in self.steps]
        keep, values = None, [*pointers]
        if room:
            places, total = [], 0
            for size in room:
                places.append(total)
                total += -(-size // 256) * 256
            keep = self.module.allocate(total)
            base = keep.data_ptr()
            values += [base + place for place in places]
        values += sizes
        calls = []
        for step, grid in zip(self.steps, grids, strict=True):
            if not grid:
                continue
            ready = step.ready
            if any(values[k] % ALIGNED for k in step.pointers):
                ready = self.module.ready(step.launch, False)
            count = ready.facts.parameters
            data = (ctypes.c_uint64 * count)(*(values[k] for k in step.arguments))
            base = ctypes.addressof(data)
            parameters = (ctypes.c_void_p * count)(*[base + o for o in step.offsets])
            calls.append((ready.handle, grid, ready.facts.threads, ready.facts.shared_bytes, parameters, data))
        return keep, calls


class Module:
    """The kernels of one generated module: compiled on demand, kept in a folder."""

    def __init__(self, source: str, folder: Path, allocate: Callable[[int], Any], stream: Callable[[], int]) -> None:
        self.source, self.folder, self.allocate, self.stream = source, folder, allocate, stream
        self.loaded: dict[tuple[str, bool], Ready] = {}

    @functools.cached_property
    def module(self) -> ModuleType:
        path = self.folder / SOURCE
        if not path.exists():
            path.write_text(self.source)
        return import_source(path)

    def ready(self, launch: Launch, aligned: bool) -> Ready:
        key = (launch.kernel, aligned)
        if key not in self.loaded:
            self.loaded[key] = self._load(launch, aligned)
        return self.loaded[key]

    def _load(self, launch: Launch, aligned: bool) -> Ready:
        name = launch.kernel if aligned else f"{launch.kernel}_unaligned"
        code, described = self.folder / CODE.format(name), self.folder / FACTS.format(name)
        if aligned and described.exists():
            facts, binary = Facts(**json.loads(described.read_text())), code.read_bytes()
        else:
            kernel = compile_kernel(self.module, launch, here(), aligned)
            facts, binary = facts_of(kernel), kernel.asm["cubin"]
            if aligned:
                code.write_bytes(binary)
                described.write_text(json.dumps({s: getattr(facts, s) for s in Facts.__slots__}))
        return Ready(driver().kernel(binary, facts.name, facts.shared_bytes), facts)


def load(source: str, folder: Path, allocate: Callable[[int], Any], stream: Callable[[], int]) -> Mapping[str, Program]:
    """Entries by program name; what an earlier call left in the folder is not compiled again."""
    here()
    module = Module(source, folder, allocate, stream)
    return {name: Program(table, module) for name, table in tables(source).items()}
