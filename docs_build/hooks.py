"""Hooks of mkdocs: pages of the site that are made from files outside of ``docs/``."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Files of the repository that are pages of the site, with their names there."""

_LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:|#)([^)#\s]*)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=as_page((ROOT / source).read_text())))
    return files


def as_page(text: str) -> str:
    """A file of the repository's root as a page: its links lead to pages, and those to other files become plain text.

    The search puts such a page behind those that explain.
    """
    return f"---\nsearch:\n  boost: 0.3\n---\n\n{_LINK.sub(_on_the_site, text)}"


def _on_the_site(link: re.Match[str]) -> str:
    label, path, anchor = link[1], link[2], link[3] or ""
    if path in PAGES:
        return f"[{label}]({PAGES[path]}{anchor})"
    if path.startswith("docs/") and path.endswith(".md"):
        return f"[{label}]({path.removeprefix('docs/')}{anchor})"
    return label
