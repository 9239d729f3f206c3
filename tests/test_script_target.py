"""`module:object` as a program: what it calls, and what it says when it cannot."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import Exact

from ridgeline.base.errors import BadScript
from ridgeline.capture.schedule import Mode
from ridgeline.capture.script import Session, run

MODULE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.linear = nn.Embedding(7, 4), nn.Linear(4, 2)

    def forward(self, places, scale):
        return {"out": self.linear(self.embed(places)) * scale}

net = Net()

def double(x):
    return (x * 2).relu()

number = 3
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "objects_to_run.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("objects_to_run", None)


@pytest.mark.parametrize("name", ["Net", "net"])
def test_a_module_class_or_instance_trains(name: str) -> None:
    engine = Exact()
    session = Session(engine, pairs=2, steps=9, input_shapes=("5x3:int64", "scalar"))
    seen = run(f"objects_to_run:{name}", [], session)
    assert (seen.exit_code, seen.steps_seen) == (0, 9)
    assert engine.names == {"Net.forward"}
    assert {op.phase for op in seen.operators} == {"forward", "backward"}
    assert len(seen.timed(Mode.COMPILED)) == 2


def test_a_function_is_called() -> None:
    engine = Exact()
    seen = run("objects_to_run:double", [], Session(engine, pairs=1, input_shapes=("4,4:bfloat16",)))
    assert engine.names == {"double"}
    assert seen.steps[0].shape_class == "double(4x4 bfloat16)"


@pytest.mark.parametrize(
    ("target", "shapes", "why"),
    [
        ("objects_to_run:net", (), "--input-shape"),
        ("objects_to_run:net", ("3by3",), "'3by3' is not of the form"),
        ("objects_to_run:net", ("3x3:int65",), "'3x3:int65' is not of the form"),
        ("objects_to_run:absent", ("3",), "no attribute 'absent'"),
        ("objects_to_run:number", ("3",), "it is a int, which cannot be called"),
        ("nowhere_to_be_found:net", ("3",), "there is no module 'nowhere_to_be_found'"),
    ],
)
def test_what_cannot_run(target: str, shapes: tuple[str, ...], why: str) -> None:
    with pytest.raises(BadScript) as raised:
        run(target, [], Session(Exact(), input_shapes=shapes))
    assert why in str(raised.value)
