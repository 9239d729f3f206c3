"""The examples run unchanged: what they print is the same with and without the runner."""

from pathlib import Path

import pytest
from running import Exact, run_captured, run_plain

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL = {
    "train_gpt": ("--steps", "6", "--width", "32", "--layers", "2", "--batch", "2", "--context", "32"),
    "train_digits": ("--epochs", "1", "--channels", "8", "--batch", "250"),
    "generate_llama": ("--tokens", "8", "--width", "64", "--layers", "1"),
}
ROOTS = {
    "train_gpt": {"GPT.forward + cross_entropy", "clip_grad_norm_"},
    "train_digits": {"Reader.forward", "Reader.forward + cross_entropy"},
    "generate_llama": {"LlamaForCausalLM.forward"},
}


def compare(name: str, *arguments: str) -> None:
    engine = Exact()
    plain = run_plain(EXAMPLES / f"{name}.py", *arguments)
    shown, seen = run_captured(EXAMPLES / f"{name}.py", *arguments, engine=engine, pairs=2)
    assert (plain.exit_code, seen.exit_code) == (0, 0)
    assert shown.out == plain.out
    assert engine.names == ROOTS[name]
    assert not [found for found in seen.breaks if found.kind == "graph break"]


@pytest.mark.parametrize("name", ["train_gpt", "train_digits"])
def test_training(name: str) -> None:
    compare(name, *SMALL[name])


def test_generation() -> None:
    compare("generate_llama", *SMALL["generate_llama"])


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SMALL))
def test_at_full_size(name: str) -> None:
    compare(name)


@pytest.mark.parametrize("name", list(SMALL))
def test_an_example_does_not_mention_ridgeline(name: str) -> None:
    assert "ridgeline" not in (EXAMPLES / f"{name}.py").read_text().lower()


def test_the_gpt_learns() -> None:
    shown = run_plain(EXAMPLES / "train_gpt.py", *SMALL["train_gpt"][2:], "--steps", "40")
    losses = [float(line.split()[3]) for line in shown.out.splitlines() if line.startswith("step")]
    assert len(losses) == 40
    assert sum(losses[-5:]) < sum(losses[:5]) - 2
