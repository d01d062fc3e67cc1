"""Hooks of mkdocs: pages that are made from files outside of ``docs/``, and links from names to their pages."""

from __future__ import annotations

import json
import re
from functools import partial
from html import escape
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Files of the repository that are pages of the site, with their names there."""

_LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:|#)([^)#\s]*)(#[^)\s]*)?\)")
_WITHOUT_LINKS = re.compile(r"(<pre\b.*?</pre>|<a\b.*?</a>|<autoref\b.*?</autoref>|<h[1-6]\b.*?</h[1-6]>)", re.S)
_PAGE = re.compile(r"(?:<code>)?\bdocs/([\w-]+\.md)\b(?:</code>)?")
_NAME = re.compile(r"<code>(?:rt|rollout_trace)\.([A-Za-z_]+(?:\.[A-Za-z_]+)*)(?:\([^<]*\))?</code>")


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


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Makes links of the pages and of the public names that a text names: ``docs/look.md``, ``rt.read(path)``."""
    parts = _WITHOUT_LINKS.split(html)
    parts[::2] = [_NAME.sub(_to_name, _PAGE.sub(partial(_to_page, page, files), part)) for part in parts[::2]]
    return "".join(parts)


def _to_page(page: Page, files: Files, named: re.Match[str]) -> str:
    file = files.get_file_from_path(named[1])
    if file is None or file.page is None:
        return named[0]
    return f'<a href="{file.url_relative_to(page.file)}">{escape(str(file.page.title))}</a>'


def _to_name(named: re.Match[str]) -> str:
    # Optional: the name may be that of an internal module, which has no entry.
    return f'<autoref identifier="rollout_trace.{named[1]}" optional>{named[0]}</autoref>'


def on_post_build(config: MkDocsConfig) -> None:
    """Puts public names before fields and types in the search: ``Step`` before ``Step.id``, of which there are many."""
    path = Path(config.site_dir) / "search" / "search_index.json"
    index = json.loads(path.read_text())
    for entry in index["docs"]:
        if entry["location"].startswith("api/") and "#rollout_trace." in entry["location"]:
            is_public = "." not in entry["title"] and not entry["location"].startswith("api/types/")
            entry["boost"] = 2 if is_public else 0.6
    path.write_text(json.dumps(index, separators=(",", ":"), ensure_ascii=False))
