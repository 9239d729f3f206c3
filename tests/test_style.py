"""The house rules that a program can check: who imports whom, sizes, one broad except, no cycle, public names."""

import ast
import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import ridgeline

PACKAGE = Path(ridgeline.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

# folder -> what it may import: of ours, of others beside the standard library
MAY_IMPORT: dict[str, tuple[set[str], set[str]]] = {
    "base": (set(), set()),
    "hw": ({"base"}, {"msgspec", "platformdirs"}),
    "ir": ({"base"}, {"numpy"}),
    "ops": ({"base", "ir"}, set()),
    "capture": ({"base", "ir", "ops"}, {"torch", "sympy"}),
    "cost": ({"base", "hw", "ir", "ops"}, set()),
    "fuse": ({"base", "hw", "ir", "ops", "cost"}, set()),
    "schedule": ({"base", "hw", "ir", "ops", "cost"}, set()),
    "codegen": ({"base", "ir"}, {"triton"}),
    "runtime": ({"base", "hw", "ir", "ops", "codegen"}, {"torch", "triton", "platformdirs", "msgspec", "numpy"}),
    "plan": ({"base", "hw", "ir", "ops", "cost", "fuse", "schedule"}, {"numpy"}),
    "report": ({"base", "hw"}, {"rich", "jinja2", "msgspec", "markupsafe"}),
    "top": (
        {"base", "hw", "ir", "ops", "capture", "cost", "fuse", "schedule", "codegen", "runtime", "plan", "report"},
        {"torch", "typer", "rich", "msgspec", "functorch"},
    ),
}
# Places that import inside a function: the command table, which loads torch only for commands that need it, the
# measurement behind it, and targets found by their file's name.
LATE_IMPORTS = {"top/cli.py", "top/hardware_commands.py", "top/engine.py"}
LONGEST_MODULE, LONGEST_FUNCTION = 600, 100


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def name(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_imports_go_down(path: Path) -> None:
    parts = path.relative_to(PACKAGE).parts
    if len(parts) == 1:
        return
    ours, others = MAY_IMPORT[parts[0]]
    for module in imports(path):
        top, _, rest = module.partition(".")
        if top == "ridgeline":
            folder = rest.partition(".")[0]
            assert not folder or folder == parts[0] or folder in ours, f"{name(path)} imports {module}"
        else:
            known = top in __import__("sys").stdlib_module_names or top in others
            assert known, f"{name(path)} imports {module}"


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_no_import_inside_a_function(path: Path) -> None:
    inside = [
        node.lineno
        for function in ast.walk(tree(path))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert not inside
    called = [n for n in ast.walk(tree(path)) if isinstance(n, ast.Name) and n.id == "import_module"]
    called += [n for n in ast.walk(tree(path)) if isinstance(n, ast.Attribute) and n.attr == "import_module"]
    assert not called or name(path) in LATE_IMPORTS or path.parts[-2] == "codegen" or name(path) == "capture/target.py"


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_sizes_and_docstrings(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST_MODULE
    assert path.name == "__init__.py" or ast.get_docstring(tree(path)), "a module says what it is for"
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= LONGEST_FUNCTION, f"{node.name} has {length} lines"


def test_there_is_one_broad_except() -> None:
    broad = [
        name(path)
        for path in MODULES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")))
    ]
    assert broad == ["top/fallback.py"]


def test_generated_code_comes_from_no_operator_name() -> None:
    for folder in ("codegen", "schedule"):
        for path in (PACKAGE / folder).glob("*.py"):
            assert "aten" not in path.read_text(), f"{name(path)} names an operator"
    for path in (PACKAGE / "schedule").glob("*.py"):
        assert "triton" not in path.read_text().lower(), f"{name(path)} names a target"


def test_nothing_is_pickled() -> None:
    for path in MODULES:
        assert "pickle" not in set(imports(path))


def test_public_names() -> None:
    assert sorted(ridgeline.__all__) == sorted(n for n in ridgeline.__all__ if hasattr(ridgeline, n))
    assert ridgeline.hardware["b200"].ridge("fp8") == pytest.approx(584, abs=1)


def test_every_module_can_be_imported() -> None:
    for path in MODULES:
        if path.parts[-2] == "codegen" and "triton" in path.name:
            pytest.importorskip("triton")
        module = name(path).removesuffix(".py").replace("/", ".").removesuffix(".__init__").removesuffix("__init__")
        importlib.import_module(f"ridgeline.{module}".rstrip("."))


def test_knobs_are_at_most_ten() -> None:
    knobs = importlib.import_module("ridgeline.base.knobs")
    assert len(knobs.Knobs.__dataclass_fields__) <= 10
