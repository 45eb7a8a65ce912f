"""Hooks of MkDocs for the site of docs/.

They add the pages at the repository's root, point links to its files, weigh pages in the search, and write `llms.txt` and a
Markdown twin of each page: `spark.md` beside `spark/`.
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
SOURCES = [ROOT / "src", *sorted(ROOT.glob("*/src"))]
PAGES = {
    "README.md": "overview.md",
    "CHANGELOG.md": "changes.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/README.md": "examples.md",
}
SEARCH_BOOSTS = {
    "api.md": 0.1,
    "changes.md": 0.1,
    "comparison.md": 0.3,
    "contributing.md": 0.3,
    "internals-used.md": 0.3,
    "performance.md": 0.3,
    "index.md": 0.5,
    "overview.md": 0.5,
    "fleet.md": 0.5,
    "lease-algorithm.md": 0.5,
    "spark-batches.md": 0.5,
    "options.md": 0.5,
    "record-replay.md": 0.3,
    "recording-format.md": 0.2,
}
"""How much a page counts in the search. A guide counts 1: a reader with a question looks for a guide first."""
WIDE = frozenset({"options.md"})
"""Pages without a table of contents beside them, for the width of their tables."""
_LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
_ELSEWHERE = re.compile(
    r'<(?:script|img|iframe|link rel="?(?:stylesheet|preconnect|icon))\b[^>]*?\b(?:src|href)="?https?://[^>]*>'
    r'|data-md-component="?source\b|class="?mermaid\b'
)
"""Files that a browser, or the theme's script, would fetch from another host."""
_FENCE = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"^<!--.*?-->\n+", re.MULTILINE | re.DOTALL)
_DIRECTIVE = re.compile(r"^::: (\S+)\n(?:    .*\n)*", re.MULTILINE)
_twins: dict[str, tuple[str, str]] = {}
"""Title and Markdown of each page, by its name below docs/."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside docs/."""
    for source, name in PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to the site's pages, and to the repository if a file is not a page."""
    source = next((path for path, name in PAGES.items() if name == page.file.src_uri), None)
    folder = posixpath.dirname(source or f"docs/{page.file.src_uri}")

    def resolve(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, match[1]))
        target = PAGES.get(path, path.removeprefix("docs/"))
        if files.get_file_from_path(target) is not None:
            return f"{target}{match[2] or ''}"
        if not (ROOT / path).exists():
            return match[0]  # MkDocs names it
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"{config.extra['repository']}/{kind}/main/{path}{match[2] or ''}"

    parts = _FENCE.split(markdown)
    text = "".join(part if part.startswith("```") else _LINK.sub(resolve, part) for part in parts)
    name = page.file.src_uri
    page.meta.setdefault("search", {})["boost"] = SEARCH_BOOSTS.get(name, 1)
    if name in WIDE:
        page.meta["hide"] = ["toc"]
    _twins[name] = str(page.title), _DIRECTIVE.sub(_described, _COMMENT.sub("", text))
    return text


def _described(match: re.Match[str]) -> str:
    """Return a name of the Python API with its docstring, for a page that has no HTML."""
    path = match[1]
    return f"### `{path}`\n\n{_docstring(path)}\n"


def _docstring(path: str) -> str:
    """Return the docstring of a public module, or of a class or function where it is defined."""
    tree = _tree(path)
    if tree is not None:
        return ast.get_docstring(tree) or ""
    module, _, name = path.rpartition(".")
    tree = _tree(module)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            return ast.get_docstring(node) or ""
        if isinstance(node, ast.ImportFrom) and node.module and name in {each.name for each in node.names}:
            return _docstring(f"{node.module}.{name}")
    raise PluginError(f"api.md: there is no {path}")


def _tree(module: str) -> ast.Module | None:
    """Return the parsed file of a module of this repository; None if there is none."""
    for source in SOURCES:
        for file in (
            source / f"{module.replace('.', '/')}.py",
            source / module.replace(".", "/") / "__init__.py",
        ):
            if file.is_file():
                return ast.parse(file.read_text(encoding="utf-8"))
    return None


def on_post_build(config: MkDocsConfig) -> None:
    """Write the Markdown twins and `llms.txt`."""
    site = Path(config.site_dir)
    for name, (_, text) in _twins.items():
        (site / name).write_text(text, encoding="utf-8")
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for section in config.nav or []:
        for heading, pages in section.items():
            lines += [f"## {heading}", ""]
            for page in pages:
                name = next(iter(page.values())) if isinstance(page, dict) else page
                title, text = _twins[name]
                lines.append(f"- [{title}]({name}): {_summary(text)}")
            lines.append("")
    (site / "llms.txt").write_text("\n".join(lines), encoding="utf-8")


def _summary(text: str) -> str:
    """Return the first two sentences of a page's first paragraph, without links, in one line."""
    paragraphs = (
        part for part in _FENCE.sub("", text).split("\n\n") if part[:1].isalnum() or part[:1] in "[`"
    )
    paragraph = " ".join(next(paragraphs, "").split())
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", paragraph)
    return " ".join(re.split(r"(?<=[.:]) ", plain)[:2])


def on_post_page(output: str, page: Page, **_: object) -> str:
    """Refuse a page that would load files from another host, and name its Markdown twin."""
    found = _ELSEWHERE.search(output)
    if found is not None:
        raise PluginError(f"{page.file.src_uri} would be loaded from another host: {found[0][:200]}")
    twin = posixpath.relpath(page.file.src_uri, posixpath.dirname(page.file.dest_uri) or ".")
    return output.replace("</head>", f'<link rel="alternate" type="text/markdown" href="{twin}"></head>', 1)
