"""The modules that users import: they are few, they only re-export, and documents and examples use no other one."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from docs_blocks import ROOT, blocks
from penstock.aws.aws_options import AwsOptions

RE_EXPORTING = {
    "penstock": "src/penstock/__init__.py",
    "penstock.frames": "src/penstock/frames.py",
    "penstock.kclpy": "src/penstock/kclpy.py",
    "penstock.logs": "src/penstock/logs.py",
    "penstock.metrics": "src/penstock/metrics.py",
    "penstock.schemas": "src/penstock/schemas/__init__.py",
    "penstock.spark": "src/penstock/spark/__init__.py",
    "penstock.testing": "src/penstock/testing/__init__.py",
    "penstock_local": "local/src/penstock_local/__init__.py",
}
DEFINING = {"penstock.errors"}
PUBLIC = {*RE_EXPORTING, *DEFINING}
PAGES = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
PROGRAMS = sorted(
    [*ROOT.glob("examples/*.py"), *ROOT.glob("examples/demonstration/**/*.py"), *ROOT.glob("deploy/*.py")]
)
NOTEBOOKS = sorted(ROOT.glob("examples/*.ipynb"))
NAMED = {
    "penstock.batch": "a key of an Iceberg snapshot's summary",
    "penstock.delivery": "a key of an Iceberg snapshot's summary",
    "penstock.delivery.NAME": "a property of a table",
    "penstock.local": "deprecated",
    "penstock.recording": "a key of a file's metadata",
    "penstock.recording.crc32": "a key of a file's metadata",
    "penstock.spark.daemon": "a value of Spark's setting spark.python.daemon.module",
}
"""Paths that pages name though no program imports them, and why."""
PRIVATE = re.compile(r"penstock(?:_local)?(?:\.[a-zA-Z_]\w*)+")
_DIRECTIVE = re.compile(r"^::: (\S+)", re.MULTILINE)
_CONNECTION_ROW = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \|", re.MULTILINE)
_STABLE = re.compile(r"^\| `(penstock[\w.]*)` \|", re.MULTILINE)


def test_the_page_about_stability_lists_the_public_modules():
    page = (ROOT / "docs" / "stability.md").read_text(encoding="utf-8")
    assert set(_STABLE.findall(page)) == PUBLIC


@pytest.mark.parametrize("module", sorted(RE_EXPORTING))
def test_a_public_module_only_re_exports(module):
    tree = ast.parse((ROOT / RE_EXPORTING[module]).read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)
    defined = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
    }
    assert defined <= {"__getattr__", "__dir__"}


@pytest.mark.parametrize("module", sorted(PUBLIC - {"penstock.errors"}))
def test_each_public_name_is_there_and_described(module):
    found = importlib.import_module(module)
    for name in found.__all__:
        value = getattr(found, name)
        assert not callable(value) or value.__doc__, f"{module}.{name} has no docstring"


def imported(program: str) -> set[str]:
    """Return the modules of ours that a program imports; empty for text that is not a program."""
    try:
        tree = ast.parse(program)
    except SyntaxError:
        return set(re.findall(r"^\s*(?:from|import) (penstock[\w.]*)", program, re.MULTILINE))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names |= {
                f"{node.module}.{each.name}" if f"{node.module}.{each.name}" in PUBLIC else node.module
                for each in node.names
            }
    return {name for name in names if name.partition(".")[0] in ("penstock", "penstock_local")}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_imports_from_public_modules(page):
    found = {name for block in blocks(page) for name in imported(block.text)}
    assert found <= PUBLIC


def is_public(path: str) -> bool:
    """Return whether a dotted path is a public module, begins with a public name of one, or leads to no module of ours at all."""
    parts = path.split(".")
    if importlib.util.find_spec(".".join(parts[:2])) is None and not hasattr(
        importlib.import_module(parts[0]), parts[1]
    ):
        return True
    for count in range(len(parts), 0, -1):
        module = ".".join(parts[:count])
        if module in PUBLIC:
            return count == len(parts) or parts[count] in names_of(module)
    return False


def names_of(module: str) -> set[str]:
    """Return a module's public names, and those of its modules that are public."""
    found = importlib.import_module(module)
    names = set(getattr(found, "__all__", [name for name in vars(found) if not name.startswith("_")]))
    return names | {each.rpartition(".")[2] for each in PUBLIC if each.rpartition(".")[0] == module}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_no_private_path(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert {path for path in PRIVATE.findall(text) if not is_public(path)} <= NAMED.keys()


def test_the_page_about_python_describes_public_names_whose_docstrings_name_no_private_path():
    described = _DIRECTIVE.findall((ROOT / "docs" / "api.md").read_text(encoding="utf-8"))
    assert len(described) > 30
    for path in described:
        assert is_public(path), path
        module, _, name = path.rpartition(".")
        value = (
            importlib.import_module(path)
            if path in PUBLIC
            else getattr(importlib.import_module(module), name)
        )
        members = [each for each in vars(value).values() if callable(each) or isinstance(each, property)]
        texts = [each.__doc__ or "" for each in [value, *members] if hasattr(value, "__mro__")] or [
            value.__doc__
        ]
        private = {found for text in texts for found in PRIVATE.findall(text) if not is_public(found)}
        assert not private, f"{path} names {private}"


def test_the_page_about_python_lists_the_connection_options():
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    table = text.partition("## Connection options")[2].partition("\n## ")[0]
    listed = [name.strip("`") for row in _CONNECTION_ROW.findall(table) for name in row.split(", ")]
    assert sorted(listed) == sorted(each.name for each in fields(AwsOptions))


def test_examples_import_from_public_modules():
    private = {
        str(path.relative_to(ROOT)): sorted(imported(path.read_text(encoding="utf-8")) - PUBLIC)
        for path in PROGRAMS
    }
    assert {place: names for place, names in private.items() if names} == {}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_imports_from_public_modules(path: Path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    programs = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert {name for program in programs for name in imported(program)} <= PUBLIC


def test_an_import_of_a_private_module_is_found():
    assert imported("from penstock.core.position import Position\nimport boto3") == {"penstock.core.position"}
    assert imported("from penstock import testing, Consumer") == {"penstock.testing", "penstock"}
    assert imported(">>> x\nfrom penstock.wiring import open_kinesis") == {"penstock.wiring"}
