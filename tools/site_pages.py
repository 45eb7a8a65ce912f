"""Adds pages at the repository's root, and links to its files, to the site of docs/. Called by MkDocs."""

from __future__ import annotations

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
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changes.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/README.md": "examples.md",
}
_LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
_ELSEWHERE = re.compile(
    r'<(?:script|img|iframe|link rel="?(?:stylesheet|preconnect|icon))\b[^>]*?\b(?:src|href)="?https?://[^>]*>'
    r'|data-md-component="?source\b|class="?mermaid\b'
)
"""Files that a browser, or the theme's script, would fetch from another host."""
_FENCE = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside docs/."""
    for source, name in PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to the site's pages, and to the repository if a file is no page."""
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
    return "".join(part if part.startswith("```") else _LINK.sub(resolve, part) for part in parts)


def on_post_page(output: str, page: Page, **_: object) -> str:
    """Refuse a page that would load files from another host."""
    found = _ELSEWHERE.search(output)
    if found is not None:
        raise PluginError(f"{page.file.src_uri} would be loaded from another host: {found[0][:200]}")
    return output
