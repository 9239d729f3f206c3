"""`ridgeline explain` and `ridgeline run` as a user calls them: outputs, exit codes, bad input in one line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = """
import sys
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Dropout(0.1), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(int(sys.argv[1])):
    x = torch.randn(64, 16)
    loss = F.cross_entropy(model(x), x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.4f}")
"""


def call(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    code = "import sys; from ridgeline.top.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=cwd, env=environment, timeout=300
    )


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scripts") / "train.py"
    path.write_text(TRAIN)
    return path


def test_explain_prints_and_writes_one_account(script: Path, tmp_path: Path) -> None:
    plain = subprocess.run([sys.executable, str(script), "24"], capture_output=True, text=True, check=True)
    page, document = tmp_path / "a.html", tmp_path / "a.json"
    done = call(
        *("explain", "--on", "b200,mi300x", "--html", str(page), "--json", str(document), "--top", "5"),
        *(str(script), "24"),
    )
    assert done.returncode == 0, done.stderr
    losses = [line for line in done.stdout.splitlines() if line and line[0].isdigit() and "." in line][:24]
    for got, want in zip(losses, plain.stdout.split(), strict=True):
        assert float(got) == pytest.approx(float(want), rel=1e-4)
    for section in ("Capture", "Eager, graph, limit", "Kernels", "Moves", "Elsewhere", "Findings", "b200", "mi300x"):
        assert section in done.stdout
    account = json.loads(document.read_text())
    assert account["schema_version"] == 1
    assert {g["phase"] for g in account["graphs"]} >= {"forward", "backward"}
    plans = {p["name"]: p for p in account["plans"]}
    assert plans["eager"]["measured"]["count"] == plans["graph"]["measured"]["count"] == 10
    kernel_s = sum(
        k["measured"]["seconds"] * k["calls"] for g in account["graphs"] for k in g["kernels"] if k["measured"]
    )
    unmeasured = sum(
        k["prediction"]["seconds"] * k["calls"] for g in account["graphs"] for k in g["kernels"] if not k["measured"]
    )
    whole = kernel_s + unmeasured + account["remainder_s"]
    assert whole == pytest.approx(plans["graph"]["measured"]["seconds"])
    for g in account["graphs"]:
        for k in g["kernels"]:
            assert k["prediction"]["seconds"] >= k["limit"]["seconds"]
    assert page.read_text().startswith("<!doctype html>")
    assert "http" not in page.read_text().replace("http-equiv", "").replace("http://www.w3.org", "")


def test_run_prints_one_line(script: Path) -> None:
    done = call("run", str(script), "4")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 4
    assert [line for line in done.stderr.splitlines() if line.startswith("ridgeline:")]


def test_steps_end_the_script(script: Path) -> None:
    done = call("run", "--steps", "3", str(script), "1000")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 3


def test_the_scripts_own_exit_code_and_crash(tmp_path: Path) -> None:
    (tmp_path / "exits.py").write_text("import sys\nprint(sys.argv[1:])\nsys.exit(7)\n")
    done = call("run", "exits.py", "--top", "-x", "--", "y", cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[0]) == (7, "['--top', '-x', '--', 'y']")
    (tmp_path / "crash.py").write_text("def f():\n    raise ValueError('mine')\n\nf()\n")
    done = call("run", "crash.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "ValueError: mine" in done.stderr
    assert "ridgeline/" not in done.stderr.replace(str(tmp_path), "")


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 2, done
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return lines[0]


def test_bad_input_is_one_clear_line(script: Path, tmp_path: Path) -> None:
    assert "there is no such file" in one_line(call("explain", "missing.py", cwd=tmp_path))
    (tmp_path / "broken.py").write_text("x = (\n")
    assert "broken.py:1" in one_line(call("explain", "broken.py", cwd=tmp_path))
    assert "b200" in one_line(call("explain", "--on", "b20", str(script), "1"))
    target = tmp_path / "no" / "such" / "a.json"
    assert str(target) in one_line(call("explain", "--json", str(target), str(script), "1"))
    assert not target.parent.exists()
    assert "--steps" in one_line(call("explain", "--steps", "0", str(script)))
    assert "explain" in one_line(call("explan", str(script)))
    assert "no such option" in one_line(call("explain", "--tops", "3", str(script)))
    assert "options stand before" in one_line(call("explain", "torch.nn:ReLU", "--input-shape", "2x3"))
    assert "module:object" in one_line(call("run", "--input-shape", "2x3", str(script), "1"))
    assert "without arguments" in one_line(call("explain", "--input-shape", "2x3", "torch.nn:Linear"))


@pytest.mark.parametrize("steps", ["1", "2", "8"])
def test_a_step_is_a_step_however_early_the_script_ends(script: Path, tmp_path: Path, steps: str) -> None:
    """What is called on copies after the end of the script is no part of a step."""
    document = tmp_path / "a.json"
    done = call("explain", "--no-measure", "--json", str(document), str(script), steps)
    assert done.returncode == 0, done.stderr
    calls = {g["phase"]: g["calls"] for g in json.loads(document.read_text())["graphs"]}
    assert calls == {"forward": 1, "backward": 1, "optimizer": 1}


def test_nothing_captured_is_unknown_and_not_zero(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("print(1 + 1)\n")
    document = tmp_path / "a.json"
    done = call("explain", "--on", "b200", "--json", str(document), "plain.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    account = json.loads(document.read_text())
    assert all(plan["predicted_s"] is None for plan in account["plans"])
    assert account["elsewhere"] == []
    assert "is 0 s" not in done.stdout
    assert "no step was captured" in call("run", "plain.py", cwd=tmp_path).stderr
