"""The compile cache: what it keeps, whom it lets in, and that damage is a miss; building without a compiler."""

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ridgeline.base.errors import BuildFailed
from ridgeline.codegen import cc
from ridgeline.codegen.c import C
from ridgeline.ir.program import Program
from ridgeline.runtime import cache as caches
from ridgeline.runtime.build import MODULE_PROGRAMS, build, modules
from ridgeline.runtime.cache import Cache, key_of, open_cache, private
from ridgeline.schedule import schedule
from tests import kernels as k

TARGET = C()
MACHINE = TARGET.machine(2, (48 << 10, 2 << 20, 32 << 20))


def program(name: str = "negate") -> Program:
    return schedule(k.renamed(k.pointwise(3, 5, word_name="neg"), name), MACHINE)


class Counting(C):
    """Counts how often the compiler runs."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    def compile(self, source, folder):  # type: ignore[no-untyped-def]
        self.runs += not (folder / cc.LIBRARY).exists()
        return super().compile(source, folder)


def run(entry) -> None:  # type: ignore[no-untyped-def]
    x, y = np.arange(15, dtype="f4"), np.zeros(15, "f4")
    entry([x.ctypes.data, y.ctypes.data], [])
    np.testing.assert_array_equal(y, -x)


def test_second_build_compiles_nothing(tmp_path: Path) -> None:
    target = Counting()
    for _ in range(2):
        (entry,) = build([program()], target, Cache(tmp_path))
        run(entry)
    assert target.runs == 1
    (folder,) = tmp_path.iterdir()
    assert sorted(p.name for p in folder.iterdir()) == ["entry.json", "module.c", "module.so"]


@pytest.mark.parametrize("damage", ("flip", "shorten", "remove", "no list", "bad list", "list of a list"))
def test_a_damaged_entry_is_a_miss(damage: str, tmp_path: Path) -> None:
    target = Counting()
    build([program()], target, Cache(tmp_path))
    (folder,) = tmp_path.iterdir()
    library, entry = folder / "module.so", folder / "entry.json"
    if damage == "flip":
        data = bytearray(library.read_bytes())
        data[len(data) // 2] ^= 1
        library.write_bytes(data)
    elif damage == "shorten":
        library.write_bytes(library.read_bytes()[:-1])
    elif damage == "remove":
        library.unlink()
    elif damage == "no list":
        entry.unlink()
    else:
        entry.write_text("{" if damage == "bad list" else json.dumps({"files": [1]}))
    assert Cache(tmp_path).find(folder.name) is None
    (again,) = build([program()], target, Cache(tmp_path))
    run(again)
    assert target.runs == 2


def test_source_target_and_version_make_the_key() -> None:
    keys = {key_of(p) for p in (("a", "b"), ("ab",), ("a", "c"), ("", "ab"), ("a", "b", ""))}
    assert len(keys) == 5


def test_the_folder_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "cache"
    assert private(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o755)
    assert private(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: os.stat(tmp_path).st_uid + 1)
    assert not private(tmp_path)


def test_a_link_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert not private(tmp_path / "link")


def test_without_a_folder_one_for_the_process_serves(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    caches._Opened.caches.clear()
    with pytest.warns(UserWarning, match="compiled kernels are not kept"):
        cache = open_cache(str(tmp_path / "file"))
    assert open_cache(str(tmp_path / "file")) is cache  # warned once
    (entry,) = build([program()], TARGET, cache)
    run(entry)


def test_off_keeps_nothing(tmp_path: Path) -> None:
    caches._Opened.caches.clear()
    folder = open_cache("off").folder
    assert folder.name.startswith("ridgeline-")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_two_processes_may_build_the_same(tmp_path: Path) -> None:
    """The rename that comes second finds the entry there and uses its own files."""
    first, second = Cache(tmp_path).start(), Cache(tmp_path).start()
    for folder in (first, second):
        (folder / "a").write_text("same")
    kept = Cache(tmp_path).keep("key", first)
    assert Cache(tmp_path).keep("key", second) == kept == tmp_path / "key"
    assert [p.name for p in tmp_path.iterdir()] == ["key"]


def test_programs_are_dealt_out() -> None:
    one = program()
    many = [replace(one, name=f"p{n}") for n in range(50)]
    parts = modules(many, workers=2)
    assert sorted(p.name for part in parts for p in part) == sorted(p.name for p in many)
    assert len(parts) >= 2 and max(map(len, parts)) <= MODULE_PROGRAMS
    assert len(modules(many[:3], workers=8)) == 1  # starting a compiler costs more than three kernels
    same = modules([replace(one), replace(one)], workers=1)
    assert all(len({p.name for p in part}) == len(part) for part in same)


def test_several_modules_in_order(tmp_path: Path) -> None:
    programs = [program(f"p{n}") for n in range(9)]
    for entry in build(programs, TARGET, Cache(tmp_path)):
        run(entry)


def test_no_compiler_is_one_clear_message(tmp_path: Path) -> None:
    with pytest.raises(BuildFailed, match="there is no C compiler: 'no-such-cc' cannot be run"):
        build([program()], C("no-such-cc"), Cache(tmp_path))


def test_a_compiler_that_fails_says_so(tmp_path: Path) -> None:
    class Broken(C):
        def emit(self, programs):  # type: ignore[no-untyped-def]
            return super().emit(programs) + "not C\n"

    with pytest.raises(BuildFailed, match=r"'cc' failed: .*unknown type name"):
        build([program()], Broken(), Cache(tmp_path))
    assert not list(tmp_path.iterdir())


def test_chain_runs_in_order(tmp_path: Path) -> None:
    """y = -x, then y = y + b, relu: one call into C."""
    first, second = build([program(), schedule(k.bias_relu(3, 5), MACHINE)], TARGET, Cache(tmp_path))
    x, b, y, z = np.arange(15, dtype="f4") - 7, np.ones(5, "f4"), np.zeros(15, "f4"), np.zeros(15, "f4")
    assert isinstance(first, cc.Function) and isinstance(second, cc.Function)
    chain = cc.Chain(
        [
            first.bind([x.ctypes.data, y.ctypes.data]),
            second.bind([y.ctypes.data, b.ctypes.data, z.ctypes.data]),
        ]
    )
    chain()
    np.testing.assert_array_equal(z, np.maximum(1 - x, 0))


FORKED = """
import os, sys
from pathlib import Path
from tests.test_cache import TARGET, program, run
from ridgeline.runtime.build import build
from ridgeline.runtime.cache import Cache
cache = Cache(Path(sys.argv[1]))
programs = [program(f"parent{n}") for n in range(8)]
run(build(programs, TARGET, cache)[0])
child = os.fork()
if child == 0:
    run(build([program(f"child{n}") for n in range(8)], TARGET, cache)[0])
    os._exit(7)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_builds(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FORKED, str(tmp_path)], timeout=120, check=False)
    assert done.returncode == 7


WITHOUT_OPENMP = """
import ctypes, sys
from pathlib import Path
from ridgeline.codegen import cc
assert not cc.has_openmp() and "-fopenmp" not in cc.flags()
from tests.test_cache import TARGET, program, run
from ridgeline.runtime.build import build
from ridgeline.runtime.cache import Cache
run(build([program()], TARGET, Cache(Path(sys.argv[1])))[0])
"""


def test_without_openmp_in_the_process(tmp_path: Path) -> None:
    """A process that has not loaded torch has no OpenMP to share: code is compiled without."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_OPENMP, str(tmp_path)], timeout=120, check=False)
    assert done.returncode == 0


WITH_TORCH = """
import sys
from pathlib import Path
import torch
from ridgeline.codegen import cc
from ridgeline.codegen.c import C
from ridgeline.runtime.build import build
from ridgeline.runtime.cache import Cache
from ridgeline.schedule import schedule
from tests import kernels as k
assert cc.has_openmp() and "-fopenmp" in cc.flags()
target = C()
kernel = k.copy(1 << 20)
(entry,) = build([schedule(kernel, target.machine(2, ()))], target, Cache(Path(sys.argv[1])))
x, y = torch.randn(1 << 20), torch.zeros(1 << 20)
for threads in (2, 1):
    torch.set_num_threads(threads)
    entry([x.data_ptr(), y.data_ptr()], [])
    assert torch.equal(x, y)
loaded = {line.split()[-1] for line in open("/proc/self/maps") if "gomp" in line}
assert len(loaded) == 1 and "torch" in loaded.pop(), loaded
"""


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="asks Linux which libraries are loaded")
def test_openmp_is_the_one_that_torch_loaded(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WITH_TORCH, str(tmp_path)], timeout=120, check=False)
    assert done.returncode == 0
