"""Every page: its programs are run by a test or say why not, its Python and JSON can be read, its commands exist."""

from __future__ import annotations

import ast
import json
import re
import shlex

import pytest

import penstock
from docs_blocks import ROOT, blocks, run_blocks
from penstock.cli.main import build_parser

PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"))
    if page.name != "CHANGELOG.md"
)
RUN = {
    "README.md": "tests/docs/test_readme.py and tests/spark/session/test_documented_blocks.py",
    "docs/coming-from.md": "tests/docs/test_coming_from.py and tests/spark/session/test_recipes.py",
    "docs/conformance.md": "tests/conformance/test_page.py",
    "docs/consumer.md": "tests/docs/test_consumer_pages.py",
    "docs/fan-out.md": "tests/docs/test_consumer_pages.py",
    "docs/lakehouse.md": "tests/lake_recipes.py",
    "docs/queues.md": "tests/docs/test_queue_page.py",
    "docs/recipes.md": "tests/docs/test_recipes.py and tests/spark/session/test_recipes.py",
    "docs/record-replay.md": "tests/docs/test_recording_pages.py",
    "docs/recording-format.md": "tests/docs/test_recording_pages.py",
    "docs/schemas.md": "tests/docs/test_schema_page.py and tests/spark/session/test_glue_columns.py",
    "docs/spark.md": "tests/spark/session/test_documented_blocks.py",
    "docs/testing.md": "tests/docs/test_testing_page.py",
}
"""Pages whose programs are run, and by what."""
_PLACEHOLDER = re.compile(r"^[A-Z][A-Z_]*$|[<>%…]|\\.\\.\\.")


@pytest.mark.parametrize("page", PAGES)
def test_a_program_is_run_by_a_test_or_says_why_not(page):
    if page in RUN:
        assert run_blocks(page)
        for file in RUN[page].split(" and "):
            assert page in (ROOT / file).read_text()
    else:
        assert [block.text for block in blocks(page) if block.is_program and block.is_run] == []


@pytest.mark.parametrize("page", PAGES)
def test_python_and_json_can_be_read(page):
    for block in blocks(page):
        if block.language == "python" and not block.text.startswith("%pip"):
            compile(block.text, page, "exec")
        if block.language == "json":
            json.loads(block.text)


@pytest.mark.parametrize("page", PAGES)
def test_a_block_with_imports_imports_what_it_takes_from_penstock(page):
    for block in blocks(page):
        if block.language == "python" and re.search(r"^(from|import) ", block.text, re.MULTILINE):
            names = [
                node for node in ast.walk(ast.parse(block.text)) if isinstance(node, ast.Name | ast.alias)
            ]
            used = {node.id for node in names if isinstance(node, ast.Name)} & set(penstock.__all__)
            assert used <= {node.name for node in names if isinstance(node, ast.alias)}, block.text


def commands(page):
    """Give the calls of the command line that a page shows."""
    lines = [line for block in blocks(page) for line in block.text.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"`([^`\n]+)`", (ROOT / page).read_text().replace("\\|", "|"))
    for line in lines:
        for part in re.split(r"[|;&]| > |\$\(", line.removeprefix("$ ")):
            if part.strip().startswith("penstock "):
                yield part.partition("#")[0].strip().rstrip(')"')


@pytest.mark.parametrize("page", PAGES)
def test_a_command_is_one_that_exists(page, capsys):
    for command in commands(page):
        words = shlex.split(command)[1:]
        parser = build_parser()[0]
        while words and parser.subcommands is not None:
            known = parser.subcommands
            assert words[0] in known or _PLACEHOLDER.search(words[0]) or words[0].startswith("-"), command
            if words[0] not in known:
                break
            parser = known[words.pop(0)]
        options = [word.partition("=")[0] for word in words if word.startswith("--")]
        assert set(options) <= {*parser.option_names, "--help", "--version", "--verbose", "--log-json"}, (
            command
        )


def test_the_json_lines_of_a_delivery_have_the_fields_on_its_page():
    module = ast.parse((ROOT / "src/penstock/delivery/table_writer.py").read_text())
    [report] = [node for node in module.body if isinstance(node, ast.ClassDef) and node.name == "BatchReport"]
    fields = [node.target.id for node in report.body if isinstance(node, ast.AnnAssign)]
    page = (ROOT / "docs/deliver.md").read_text()
    [shown] = re.findall(r"With `--json` each batch is one line: (.+?)\n\n", page, re.DOTALL)
    assert sorted(re.findall(r"`(\w+)`", shown)) == sorted(fields)
