"""The runner on a GPU: the examples' losses, GPU times and peaks, random streams."""

import re
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from running import Exact, run_captured, run_plain

from ridgeline.capture.schedule import Mode

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
EXAMPLES = Path(__file__).parents[2] / "examples"
NUMBER = re.compile(r"\d+\.\d+")


def losses(text: str) -> list[float]:
    return [float(NUMBER.findall(line)[0]) for line in text.splitlines() if "loss" in line]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("train_gpt", ("--steps", "14")), ("train_digits", ("--epochs", "1", "--channels", "32"))],
)
def test_training_on_a_gpu(name: str, arguments: tuple[str, ...]) -> None:
    if name == "train_digits":
        pytest.importorskip("sklearn")
    path = EXAMPLES / f"{name}.py"
    plain = run_plain(path, "--device", "cuda", *arguments)
    shown, seen = run_captured(path, "--device", "cuda", *arguments, engine=Exact(), pairs=3)
    assert (plain.exit_code, seen.exit_code) == (0, 0)
    assert losses(shown.out) == pytest.approx(losses(plain.out), rel=1e-4)
    for mode in (Mode.EAGER, Mode.COMPILED):
        assert len(seen.timed(mode)) == 3
        for step in seen.timed(mode):
            assert 0 < sum(time.seconds for time in step.roots) <= step.wall_s * 1.05
            assert step.peak_bytes is not None
            assert step.peak_bytes < torch.cuda.get_device_properties(0).total_memory / 10
    assert {op.phase for op in seen.operators} == {"forward", "backward", "optimizer"}
    assert sum(op.phase == "backward" for op in seen.operators) > 20


def test_generation_on_a_gpu() -> None:
    pytest.importorskip("transformers")
    path = EXAMPLES / "generate_llama.py"
    plain = run_plain(path, "--device", "cuda", "--tokens", "20")
    shown, _ = run_captured(path, "--device", "cuda", "--tokens", "20", engine=Exact(), pairs=2)
    assert shown.out == plain.out
    assert len(shown.out.split()) == 20


def test_the_gpus_random_stream_is_where_eager_leaves_it(tmp_path: Path) -> None:
    path = tmp_path / "dropout.py"
    path.write_text("""
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(9):
    loss = nn.functional.mse_loss(model(torch.randn(4, 8, device="cuda")), torch.zeros(4, 1, device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item(), torch.rand(1, device="cuda").item(), torch.rand(1).item())
""")
    shown, _ = run_captured(path, engine=Exact(), pairs=2)
    assert shown.out == run_plain(path).out
