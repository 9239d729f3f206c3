"""The documents are true: their code runs, their commands exist."""

import re
import shutil
from pathlib import Path

import pytest

from ridgeline.top.cli import COMMANDS

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(shutil.which("cc") is None, reason="the tour builds a kernel with a C compiler")
@pytest.mark.parametrize("path", [p for p in DOCUMENTS if BLOCK.search(p.read_text())], ids=lambda p: p.name)
def test_python_blocks_run(path: Path) -> None:
    scope: dict[str, object] = {}
    for block in BLOCK.findall(path.read_text()):
        exec(compile(block, str(path), "exec"), scope)


def test_commands_of_the_readme_exist() -> None:
    named = re.findall(r"^ {4}ridgeline (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert named
    assert set(named) <= set(COMMANDS)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target
