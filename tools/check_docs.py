"""Hold the documentation against the code (generated parts, links, commands), and the import rules against strings.

    python tools/check_docs.py            report documents out of step, exit 1
    python tools/check_docs.py --write    write the generated parts

Generated: docs/options.md from the option table; docs/queue-options.md from the options' docstrings; docs/held-lease.svg from the table of transitions; docs/performance.md and README's table of performance from
docs/performance.json, which `make bench` writes. Checked: the README names every `make` target that users need and
every command that the command line has; links between the project's own documents lead somewhere; the changelog has an
entry for the version; docs/internals-used.md names every module of botocore and moto that the code imports beyond their
public interface, and the tests that it names exist; every page of docs/ is in the site's navigation; docs/metrics.md has exactly the metrics that the code sends;
docs/lease-algorithm.md has every attribute of a lease row and every write; files that a page names exist; no
module below the command line is imported by a string, where the import contracts would not see it (a package's lazy
`__init__` names only its own modules).
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from pathlib import Path
from typing import get_args

ROOT = Path(__file__).resolve().parent.parent
SOURCES = tuple(ROOT / name for name in ("src", "local/src", "simulator/src", "examples/demonstration/src"))
_LINK = re.compile(r"\[[^\]]*\]\((?!https?://|#|mailto:)([^)#\s]+)(#[^)]*)?\)")


def generated() -> dict[Path, str]:
    """Return each generated document with the text that it must have."""
    from penstock.spark.options.option_docs import render_markdown

    sys.path.append(str(ROOT / "bench"))
    import report
    from held_lease_drawing import draw_held_lease
    from queue_option_docs import render_queue_options

    return {
        ROOT / "docs" / "options.md": render_markdown(),
        ROOT / "docs" / "held-lease.svg": draw_held_lease(),
        ROOT / "docs" / "queue-options.md": render_queue_options(),
        **report.documents(ROOT),
    }


def stale_documents() -> list[str]:
    """Name the generated documents that differ from the committed ones."""
    return [
        f"{path.relative_to(ROOT)} is out of step with the code: run `make docs`"
        for path, text in generated().items()
        if not path.exists() or path.read_text() != text
    ]


def broken_links() -> list[str]:
    """Name links to files that do not exist."""
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md"), *(ROOT / "examples").glob("**/*.md")]
    found = []
    for document in documents:
        for target, _ in _LINK.findall(document.read_text()):
            if not (document.parent / target).exists():
                found.append(f"{document.relative_to(ROOT)}: the link to {target} leads nowhere")
    return found


def pages_out_of_reach() -> list[str]:
    """Name pages that the site's navigation leaves out."""
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    pages = sorted(page.name for page in (ROOT / "docs").glob("*.md"))
    return [
        f"mkdocs.yml: the navigation does not name docs/{page}"
        for page in pages
        if not re.search(rf"[ :]{re.escape(page)}$", navigation, re.MULTILINE)
    ]


def missing_words() -> list[str]:
    """Name commands that the README does not mention."""
    from penstock.cli.main import command_names

    readme = (ROOT / "README.md").read_text()
    found = [
        f"README.md does not mention `penstock {name}`"
        for name in command_names()
        if f"penstock {name}" not in readme
    ]
    found += [
        f"README.md does not mention `make {target}`"
        for target in ("demo", "test", "bench")
        if f"make {target}" not in readme
    ]
    return found


_SECTION_BYTES_MAX = 8_000
"""Of one version in the changelog: who upgrades reads all of it."""


def unreadable_changes() -> list[str]:
    """Name a version without a section in the changelog, and sections that are too long to be read."""
    import penstock

    sections = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1:]
    sizes = {text.split(maxsplit=1)[0]: len(text.encode()) for text in sections}
    found = [
        f"CHANGELOG.md: {version} has {size} bytes, more than {_SECTION_BYTES_MAX}"
        for version, size in sizes.items()
        if size > _SECTION_BYTES_MAX
    ]
    if penstock.__version__ not in sizes:
        found.append(f"CHANGELOG.md has no entry for {penstock.__version__}")
    return found


_PUBLIC = ("botocore.config", "botocore.exceptions", "botocore.session", "moto.server")
_LISTED = re.compile(r"`(tests/[a-z0-9_/]+\.py)(?:::(\w+))?`")


def _source_files() -> list[Path]:
    return sorted(path for folder in SOURCES for path in folder.glob("**/*.py"))


def imported_modules() -> set[str]:
    """Return the modules of botocore and moto that the code imports."""
    found = set()
    for path in _source_files():
        for node in ast.walk(ast.parse(path.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names.append(node.module)
            found |= {name for name in names if name.split(".")[0] in ("botocore", "moto")}
    return found - {"botocore", *_PUBLIC}


def unlisted_internals() -> list[str]:
    """Name modules that docs/internals-used.md leaves out, and tests that it names and that do not exist."""
    page = ROOT / "docs" / "internals-used.md"
    text = page.read_text()
    found = [
        f"{page.relative_to(ROOT)} does not mention `{name}`, which the code imports"
        for name in sorted(imported_modules())
        if f"`{name}" not in text
    ]
    for path, name in _LISTED.findall(text):
        if not (ROOT / path).exists() or (name and f"def {name}(" not in (ROOT / path).read_text()):
            found.append(f"{page.relative_to(ROOT)} names a test that is not there: {path}::{name}")
    return found


_KINDS = {"count": "counter", "gauge": "gauge", "observe": "distribution"}
_METRIC_ROW = re.compile(r"^\| `(\w+)` \| (counter|gauge|distribution) \|", re.MULTILINE)


def sent_metrics() -> set[tuple[str, str]]:
    """Return name and kind of every metric that the code sends."""
    found = set()
    for path in _source_files():
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                found |= _metrics_of(function)
    return found


def _metrics_of(function: ast.FunctionDef) -> set[tuple[str, str]]:
    """Return the metrics that one function sends; the name may be a text, or a variable that the function sets to texts."""
    found = set()
    for node in ast.walk(function):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        kind = _KINDS.get(node.func.attr)
        if kind is None or not ast.unparse(node.func.value).endswith("metrics"):
            continue
        name = node.args[0]
        values = _assigned(function, name.id) if isinstance(name, ast.Name) else [name]
        found |= {
            (part.value, kind)
            for value in values
            for part in (value, *ast.iter_child_nodes(value))
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
        }
    return found


def _assigned(function: ast.FunctionDef, name: str) -> list[ast.expr]:
    return [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    ]


def misdescribed_metrics() -> list[str]:
    """Name metrics that only the code or only docs/metrics.md knows, or that are of another kind there."""
    page = ROOT / "docs" / "metrics.md"
    described, sent = set(_METRIC_ROW.findall(page.read_text())), sent_metrics()
    where = page.relative_to(ROOT)
    return [
        *(
            f"{where} does not describe the {kind} `{name}`, which the code sends"
            for name, kind in sorted(sent - described)
        ),
        *(
            f"{where} describes the {kind} `{name}`, which nobody sends"
            for name, kind in sorted(described - sent)
        ),
    ]


_STRING_IMPORTS = ("import_module", "__import__", "loaded_on_use")
_MAY_IMPORT_BY_STRING = (
    "src/penstock/cli/*.py",
    "src/penstock/_lazy_names.py",
    "src/penstock/__init__.py",
    "src/penstock/*/__init__.py",
    "src/penstock/metrics.py",
    "local/src/penstock_local/__init__.py",
)


def imports_by_string() -> list[str]:
    """Name the places below the command line that import a module by a string."""
    found = []
    for path in _source_files():
        place = path.relative_to(ROOT)
        if any(place.match(pattern) for pattern in _MAY_IMPORT_BY_STRING):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node, "attr", None) or getattr(node, "id", None)
            if name in _STRING_IMPORTS:
                found.append(f"{place}:{node.lineno}: {name} hides an import from the import contracts")
    return found


_FILE = re.compile(r"`([\w./-]+\.(?:py|md|json))(?:::\w+)?`")
# Files that a reader makes, and those of a project that `penstock init` writes.
_EXAMPLES = {
    "pipeline.py",
    "tables.py",
    "test_pipeline.py",
    "transformations/large_orders.py",
    "transformations/tables.py",
}


def missing_files() -> list[str]:
    """Name files in backticks that do not exist. The changelog may name former files."""
    pages = [
        ROOT / "README.md",
        ROOT / "ARCHITECTURE.md",
        ROOT / "SECURITY.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").glob("*.md"),
    ]
    folders = ("src", "local", "simulator", "tests", "docs", "examples", "bench", "tools")
    known = [f"/{path.relative_to(ROOT)}" for folder in folders for path in (ROOT / folder).glob("**/*.*")]
    known += [f"/{path.name}" for path in ROOT.glob("*.md")]
    return [
        f"{page.relative_to(ROOT)} names {name}, which is not there"
        for page in pages
        for name in sorted(set(_FILE.findall(page.read_text())) - _EXAMPLES)
        if not any(path.endswith(f"/{name}") for path in known)
    ]


def undescribed_leases() -> list[str]:
    """Name attributes of a lease row and writes that docs/lease-algorithm.md leaves out, and documented writes that do not exist."""
    from penstock.aws import lease_codec
    from penstock.core.leases.lease_writes import LeaseWrite

    page = ROOT / "docs" / "lease-algorithm.md"
    text = page.read_text()
    where = page.relative_to(ROOT)
    attributes = {
        value for name, value in vars(lease_codec).items() if name.isupper() and isinstance(value, str)
    }
    section = text.partition("\n## The writes\n")[2].partition("\n## ")[0]
    described = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    writes = {kind.__name__ for kind in get_args(LeaseWrite)}
    return [
        *(
            f"{where} does not describe the attribute `{name}`"
            for name in sorted(attributes)
            if f"`{name}" not in text
        ),
        *(f"{where} does not describe the write `{name}`" for name in sorted(writes - described)),
        *(
            f"{where} describes the write `{name}`, which does not exist"
            for name in sorted(described - writes)
        ),
    ]


def main() -> int:
    """Check or write; exit code 1 when something is out of step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the generated documents")
    if parser.parse_args().write:
        for path, text in generated().items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}")
    problems = [
        *stale_documents(),
        *broken_links(),
        *pages_out_of_reach(),
        *missing_words(),
        *unreadable_changes(),
        *unlisted_internals(),
        *misdescribed_metrics(),
        *undescribed_leases(),
        *missing_files(),
        *imports_by_string(),
    ]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
