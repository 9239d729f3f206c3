"""The backend in processes of its own: found by name, without a compiler, with odd caches."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKED = """
import torch
def f(x, w, seen):
    h = torch.nn.functional.gelu(x @ w)
    return torch.softmax(h, -1), h.sum(0), seen.add_(h.detach()[0])
run = torch.compile(f, backend="ridgeline"{options})
for k in range(2):
    x, w = torch.randn(7, 9), torch.randn(9, 33, requires_grad=True)
    s, t = torch.zeros(33), torch.zeros(33)
    got, want = run(x, w, s), f(x, w, t)
    for g, e in zip((*got, s), (*want, t)):
        torch.testing.assert_close(g, e, rtol=1e-5, atol=1e-5)
    (a,), (b,) = (torch.autograd.grad(o[0].square().sum() + o[1].sum(), [w]) for o in (got, want))
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
torch.compile(lambda x: x.sin(), backend="ridgeline")(torch.ones(3))
print("right")
"""


def python(code: str, **environment: str) -> subprocess.CompletedProcess:
    """Runs code in a fresh interpreter that has not imported ridgeline."""
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def test_found_by_name(tmp_path: Path) -> None:
    code = "import sys\nassert 'ridgeline' not in sys.modules\n" + CHECKED.format(options=", options={'strict': True}")
    done = python(code + "assert 'ridgeline.top.backend' in sys.modules\n", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "right\n"
    assert done.stderr == ""


@pytest.mark.parametrize("environment", [{"PATH": ""}, {"RIDGELINE_CC": "no-such-compiler"}])
def test_no_compiler(tmp_path: Path, environment: dict[str, str]) -> None:
    """One clear warning, everything runs as library calls, the results are right."""
    done = python(CHECKED.format(options=""), XDG_CACHE_HOME=str(tmp_path), **environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "right\n"
    assert done.stderr.count("Warning") == 1
    assert "RidgelineWarning: c: no compiler on PATH" in done.stderr
    assert "runs by torch" in done.stderr


def test_no_compiler_is_an_error_in_strict_mode(tmp_path: Path) -> None:
    done = python(CHECKED.format(options=", options={'strict': True}"), XDG_CACHE_HOME=str(tmp_path), PATH="")
    assert done.returncode == 1
    assert "no compiler on PATH" in done.stderr.splitlines()[-1] or "NoCompiler" in done.stderr


def test_a_compiler_that_fails(tmp_path: Path) -> None:
    """Each kernel is refused with the reason; the graph keeps running by torch."""
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'cc: out of order' >&2\nexit 1\n")
    broken.chmod(0o755)
    done = python(CHECKED.format(options=""), XDG_CACHE_HOME=str(tmp_path / "cache"), RIDGELINE_CC=str(broken))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "right\n"


@pytest.mark.parametrize("place", ["/proc/none", "off"])
def test_no_cache(place: str) -> None:
    done = python(CHECKED.format(options=""), RIDGELINE_CACHE=place)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "right\n"
    assert done.stderr.count("Warning") == (place != "off")


def test_a_second_process_needs_no_compiler(tmp_path: Path) -> None:
    """Kernels come from the cache; only names of flags are asked of the compiler."""
    for _ in range(2):
        done = python(CHECKED.format(options=", options={'strict': True}"), XDG_CACHE_HOME=str(tmp_path))
        assert done.stdout == "right\n", done.stderr
    entries = [p for p in (tmp_path / "ridgeline").iterdir() if p.is_dir()]
    assert entries and not any(p.name.startswith("new-") for p in entries)


def test_damaged_entries_are_built_again(tmp_path: Path) -> None:
    def run() -> str:
        done = python(CHECKED.format(options=", options={'strict': True}"), XDG_CACHE_HOME=str(tmp_path))
        return done.stdout + done.stderr

    assert run() == "right\n"
    for library in (tmp_path / "ridgeline").glob("*/*.so"):
        library.write_bytes(library.read_bytes()[:100])
    assert run() == "right\n"
