"""`ridgeline hardware` as a user calls it, and what the command line does with errors."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import typer

from ridgeline.hw import catalog
from ridgeline.top import cli

RUN = "import sys; from ridgeline.top.cli import main; code = main(); "
NO_TORCH = RUN + "assert 'torch' not in sys.modules, 'torch was loaded'; sys.exit(code)"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder of devices, away from the real one."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "ridgeline" / "devices"


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = cli.main(words)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("words", [["list"], ["ridge"], ["show", "b200"], ["history"], ["list", "--json"]])
def test_starts_without_torch(words: list[str], tmp_path: Path) -> None:
    environment = os.environ | {"XDG_DATA_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", NO_TORCH, "hardware", *words], capture_output=True, text=True, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "b200" in done.stdout


def test_list_has_one_line_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "hardware", "list")
    assert code == 0
    lines = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    assert set(catalog.known_ids()) <= set(lines)
    assert lines["h100-sxm"] == ["h100-sxm", "NVIDIA", "2022", "989.4", "80", "3,350", "700", "591"]
    assert lines["tpu-v6e"][-2] == "-"  # no published power
    assert lines["rubin-nvl72-gpu"][1] == "*"
    assert call(capsys, "hardware")[1] == out  # the same without a command


def test_show_prints_unknown_as_a_dash_and_every_source(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = call(capsys, "hardware", "show", "h200_sxm")
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    assert rows["bf16"] == ["bf16", "398", "718", "790", "678", "measured"]  # the matmul table comes last
    assert rows["DRAM"] == ["DRAM", "HBM3e", "141.00", "GiB", "4,800", "4,260", "4,610", "4,680", "main,", "measured"]
    assert rows["L2"][3:7] == ["-", "-", "-", "-"]
    for source in catalog.load("h200-sxm").sources.values():
        assert source.title.split(",")[0] in " ".join(out.split())
    assert call(capsys, "hardware", "show", "NVIDIA H200")[1] == out


def test_ridge_of_some_devices_in_one_format(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = call(capsys, "hardware", "ridge", "--format", "fp4", "b300", "h100-sxm")
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    assert rows["b300"] == ["b300", "14,000.0", "7,750", "903.2", "1,806.5"]
    assert rows["h100-sxm"] == ["h100-sxm", "-", "3,350", "-", "-"]
    _, out, _ = call(capsys, "hardware", "ridge", "--format", "fp4")
    assert "mi355x" in out and "h100-sxm" not in out  # without ids, the devices that have it


@pytest.mark.parametrize("words", ["list", "ridge", "ridge --per-byte", "history", "ridge --format fp8"])
def test_tables_fit_80_columns(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = call(capsys, "hardware", *words.split())
    rows = [
        line.rstrip() for line in out.splitlines() if line.split(" ")[0] in catalog.known_ids() or "20" in line[7:11]
    ]
    assert len(rows) > 30
    assert max(len(row) for row in rows) <= 80
    assert "…" not in out


def test_json_has_the_records_field_names(capsys: pytest.CaptureFixture[str]) -> None:
    listed = json.loads(call(capsys, "hardware", "list", "--json")[1])
    assert listed["schema_version"] == 1
    rows = {row["id"]: row for row in listed["devices"]}
    assert len(rows) == 65
    assert rows["b200"]["bytes_per_s"] == 7.7e12 and rows["b200"]["flops_per_s_16bit"] == 2.25e15
    assert rows["rubin-nvl72-gpu"]["power_w"] is None

    shown = json.loads(call(capsys, "hardware", "show", "b300", "--json")[1])
    int8 = shown["device"]["matrix"]["int8"]
    assert int8 == {"value": 153.5, "unit": "TOP/s", "source": "main", "dense": True}
    assert shown["device"]["sources"]["main"]["checked"] == "2026-11-30"
    assert shown["ridge"]["spread"] == pytest.approx(45.6, abs=0.01)

    [row] = json.loads(call(capsys, "hardware", "ridge", "--json", "tpu-8t")[1])["ridge"]
    assert row["flop_per_number"]["fp4"] == pytest.approx(969.2, abs=0.05)
    assert row["flop_per_byte"]["fp4"] == pytest.approx(1938.5, abs=0.05)

    past = json.loads(call(capsys, "hardware", "history", "--json")[1])
    assert {"history", "growth", "schema_version"} == set(past)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hardwear"], "Did you mean 'hardware'?"),
        (["hardware", "shw"], "Did you mean 'show'?"),
        (["hardware", "list", "--jsn"], "No such option: --jsn"),
        (["hardware", "show"], "Missing argument"),
        (["hardware", "show", "b20"], "Did you mean 'b200'?"),
        (["hardware", "ridge", "mi300"], "Did you mean 'mi300x'?"),
        (["hardware", "ridge", "--format", "bf17"], "one of fp64, fp32"),
        (["hardware", "show", "this-machine"], "hardware measure"),
        (["hardware", "measure", "--device", "tpu"], "cpu or cuda"),
    ],
)
def test_user_error_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, *words)
    assert (code, out) == (2, "")
    assert said in err and len(err.splitlines()) == 1 and "Traceback" not in err


def test_malformed_device_file_is_one_line(own_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_folder.mkdir(parents=True)
    (own_folder / "mine.toml").write_text('id = "mine"\nname = \n')
    code, out, err = call(capsys, "hardware", "list")
    assert (code, out) == (2, "")
    assert "mine.toml" in err and "line 2" in err and len(err.splitlines()) == 1
    assert call(capsys, "hardware", "show", "b200")[0] == 0  # one bad file hides no other


def test_unwritable_folder_is_told_before_measuring(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ridgeline").write_text("a file where the folder should be")
    code, out, err = call(capsys, "hardware", "measure")
    assert (code, out) == (2, "")
    assert "cannot write" in err and len(err.splitlines()) == 1


def test_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    program = f"{sys.executable} -c '{RUN}sys.exit(code)' hardware list --json | head -n 1"
    environment = os.environ | {"XDG_DATA_HOME": str(tmp_path)}
    done = subprocess.run(["sh", "-c", program], capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == ("{\n", "")


def test_overview_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys)
    assert code == 0 and out == call(capsys, "--help")[1]
    assert all(f"  {name} " in out and command.help in out for name, command in cli.COMMANDS.items())
    assert call(capsys, "--version")[1].startswith("ridgeline 0.")
    assert "Usage: ridgeline hardware" in call(capsys, "hardware", "--help")[1]


def _command(monkeypatch: pytest.MonkeyPatch, action: Callable[[], int | None]) -> None:
    """A command `probe` that returns the action."""
    module = ModuleType("probe_command")
    app = typer.Typer(add_completion=False)
    app.command()(lambda: action)
    module.app = app  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "probe_command", module)
    monkeypatch.setitem(cli.COMMANDS, "probe", cli.Command("probe_command", "for this test"))


def test_exit_code_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    _command(monkeypatch, lambda: 3)
    assert cli.main(["probe"]) == 3
    _command(monkeypatch, lambda: None)
    assert cli.main(["probe"]) == 0


def _raise(error: BaseException) -> Callable[[], int | None]:
    def action() -> int | None:
        raise error

    return action


def test_interrupt_exits_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _command(monkeypatch, _raise(KeyboardInterrupt()))
    assert call(capsys, "probe") == (130, "", "interrupted\n")


@pytest.mark.parametrize("error", [EOFError("theirs"), BrokenPipeError("theirs"), ValueError("theirs"), SystemExit(5)])
def test_the_users_own_exception_passes_through(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    _command(monkeypatch, _raise(error))
    with pytest.raises(type(error)) as raised:
        cli.main(["probe"])
    assert raised.value is error
