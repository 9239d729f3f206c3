"""Whole scripts, plain and under the runner: the same output, whatever was compiled on the way."""

import atexit
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from running import SCRIPTS, Exact, run_captured, run_plain

from ridgeline.base.errors import BadScript
from ridgeline.capture.schedule import Mode, Policy
from ridgeline.capture.script import Session, run
from ridgeline.capture.steps import Run, Step


def compare(name: str, *arguments: str, **options: object) -> tuple[Run, Exact]:
    """Run both ways, hold the outputs against each other."""
    engine = Exact()
    plain = run_plain(SCRIPTS / f"{name}.py", *arguments)
    shown, seen = run_captured(SCRIPTS / f"{name}.py", *arguments, engine=engine, **options)
    assert shown.out == plain.out
    assert shown.out.count("\n") > 1
    return seen, engine


def modes(seen: Run) -> list[Mode]:
    return [step.mode for step in seen.steps]


def test_a_plain_loop_with_dropout_a_schedule_and_clipping() -> None:
    seen, engine = compare("plain_loop")
    assert seen.exit_code == 0
    assert modes(seen)[:3] == [Mode.EAGER, Mode.RECORD, Mode.COMPILED]
    assert len(seen.timed(Mode.EAGER)) == len(seen.timed(Mode.COMPILED)) == 10
    assert engine.names == {"Sequential.forward + cross_entropy", "clip_grad_norm_"}
    assert [calls.root.kind for calls in seen.roots] == ["module", "loss", "clip", "optimizer"]
    assert seen.roots[0].joined == "cross_entropy"
    assert not seen.breaks
    assert all(step.wall_s >= sum(time.seconds for time in step.roots) for step in seen.steps)


def test_compiled_from_the_first_call_on() -> None:
    seen, _ = compare("plain_loop", policy=Policy.RUN)
    assert set(modes(seen)) == {Mode.COMPILED}
    assert not seen.operators


def test_counting_compiles_and_does_not_alternate() -> None:
    seen, _ = compare("plain_loop", policy=Policy.COUNT)
    assert modes(seen)[:3] == [Mode.EAGER, Mode.RECORD, Mode.COMPILED]
    assert set(modes(seen)[2:]) == {Mode.COMPILED}


def test_a_number_of_steps_ends_the_script_between_two_of_them() -> None:
    plain = run_plain(SCRIPTS / "plain_loop.py")
    told: list[Step] = []
    shown, seen = run_captured(SCRIPTS / "plain_loop.py", steps=5, on_step=told.append)
    assert tuple(told) == seen.steps
    assert shown.out == "".join(plain.out.splitlines(keepends=True)[:5])
    assert (seen.exit_code, seen.steps_seen) == (0, 5)


def test_what_the_recorded_step_holds() -> None:
    seen, _ = compare("plain_loop", policy=Policy.COUNT)
    by_root = {(op.root, op.phase) for op in seen.operators}
    assert by_root == {
        ("Sequential.forward", "forward"),
        ("Sequential.forward", "backward"),
        ("cross_entropy", "forward"),
        ("cross_entropy", "backward"),
        ("clip_grad_norm_", "optimizer"),
        ("AdamW.step", "optimizer"),
    }
    names = [op.name for op in seen.operators if (op.root, op.phase) == ("Sequential.forward", "forward")]
    assert names.count("aten.addmm.default") == 2
    assert names.count("aten.native_layer_norm.default") == 1
    outside = {row.operator: row for row in seen.outside}
    assert outside["aten.randn.default"].bytes == 8 * 16 * 4
    assert outside["aten.randn.default"].line == f"{SCRIPTS / 'plain_loop.py'}:14"
    assert outside["aten._local_scalar_dense.default"].calls == 2  # loss.item(), norm.item()


@pytest.mark.slow
def test_the_trainer_of_transformers() -> None:
    seen, _ = compare("trainer", pairs=2)
    assert {calls.root.name for calls in seen.roots} == {"GPT2LMHeadModel.forward", "clip_grad_norm_", "AdamW.step"}
    assert seen.steps_seen == 12
    assert Mode.COMPILED in modes(seen)


def test_a_gan_with_two_optimizers_has_one_step_a_round() -> None:
    seen, _ = compare("gan", pairs=3)
    assert {"Sequential.forward", "Sequential.forward #2"} <= {calls.root.name for calls in seen.roots}
    counts = {time.root: time.calls for time in seen.steps[-1].roots}
    assert (counts["RMSprop.step"], counts["Adam.step"]) == (2, 1)


def test_gradient_accumulation_is_one_step_of_many_calls() -> None:
    seen, engine = compare("accumulate", pairs=3)
    assert seen.steps_seen == 12
    assert {time.root: time.calls for time in seen.steps[1].roots}["Sequential.forward"] == 3
    assert "Sequential.forward + CrossEntropyLoss" in engine.names


def test_lazy_weights_and_batch_norm_when_compiled_from_the_first_call_on() -> None:
    compare("accumulate", policy=Policy.RUN)


def test_a_module_without_forward_has_its_inner_modules_as_roots() -> None:
    _, engine = compare("method", pairs=2)
    assert engine.names == {"Sequential.forward", "Linear.forward"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="DataParallel would take the GPUs")
def test_data_parallel_on_the_cpu() -> None:
    seen, _ = compare("data_parallel", pairs=2)
    assert seen.roots[0].root.name == "DataParallel.forward"


def test_a_script_with_its_own_compile_gets_ours() -> None:
    seen, engine = compare("own_compile", pairs=2)
    assert engine.names == {"Sequential.forward", "Linear.forward", "penalty"}
    assert any("max-autotune" in note for note in seen.notes)
    assert any("max_autotune" in note for note in seen.notes)


def test_closures_are_outermost_inside_their_optimizer() -> None:
    seen, engine = compare("closures", pairs=2)
    assert any(name.startswith("Linear.forward") for name in engine.names)
    assert {calls.root.name for calls in seen.roots} >= {"LBFGS.step", "Adam.step", "smooth_l1_loss"}


def test_hooks_checkpoints_and_an_evaluation_before_training() -> None:
    seen, _ = compare("hooks", pairs=2)
    assert any(entry.kind == "recompile" for entry in seen.breaks)


def test_two_steps_are_replayed_on_copies() -> None:
    seen, engine = compare("two_steps")
    atexit.unregister(print)  # the script's farewell
    assert seen.exit_code == 1  # sys.exit with a message
    assert modes(seen) == [Mode.EAGER, Mode.RECORD]
    assert {time.root for time in seen.replayed} == {"Linear.forward", "l1_loss", "Adagrad.step"}
    assert engine.names == {"Linear.forward", "l1_loss"}


RUNNER = """
import sys
sys.path.insert(0, {tests!r})
from running import Exact
from ridgeline.capture.script import Session, run
sys.exit(run(sys.argv[1], sys.argv[2:], Session(Exact(), pairs=1)).exit_code)
"""


def in_a_process(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], input="typed in", capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "command",
    [
        ("no_model", "a", "--b"),
        ("crash", "6"),
        pytest.param(("crash", "2"), marks=pytest.mark.slow),
        pytest.param(("two_steps",), marks=pytest.mark.slow),
    ],
)
def test_streams_exit_code_and_traceback_are_those_of_python(command: tuple[str, ...]) -> None:
    script, arguments = str(SCRIPTS / f"{command[0]}.py"), command[1:]
    plain = in_a_process(script, *arguments)
    captured = in_a_process("-c", RUNNER.format(tests=str(Path(__file__).parent)), script, *arguments)
    assert captured.stdout == plain.stdout
    assert captured.returncode == plain.returncode
    assert captured.stderr == plain.stderr


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "there is no such file"),
        ("def f(:\n", "bad.py:1: invalid syntax"),
        ("x = 1\n\ty = 2\n", "bad.py:2: unexpected indent"),
        ("x = '\0'", "source code string cannot contain null bytes"),
    ],
)
def test_a_script_that_cannot_start(tmp_path: Path, text: str | None, why: str) -> None:
    path = tmp_path / "bad.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadScript, match=r"^cannot run .*bad\.py: ") as raised:
        run(str(path), [], Session(Exact()))
    assert why in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_folder_cannot_run(tmp_path: Path) -> None:
    with pytest.raises(BadScript, match="it is a directory"):
        run(str(tmp_path), [], Session(Exact()))


def test_ctrl_c_keeps_the_account_so_far(tmp_path: Path) -> None:
    path = tmp_path / "interrupted.py"
    path.write_text((SCRIPTS / "method.py").read_text().replace("loss.backward()", INTERRUPT))
    shown, seen = run_captured(path, pairs=1)
    assert (seen.interrupted, seen.exit_code, seen.steps_seen) == (True, 130, 4)
    assert shown.err == ""
    assert seen.operators


INTERRUPT = """loss.backward()
        if step == 4:
            raise KeyboardInterrupt"""
