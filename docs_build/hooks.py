"""Hooks of mkdocs: pages made from files outside of ``docs/``, links from names to pages, old addresses."""

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
MOVED = {
    "collect-command": "collect#the-command-rollout-trace-collect",
    "costs": "steps#tokens-and-costs",
    "dependencies": "security#dependencies",
    "exact-turns": "tokens#exact-turns",
    "extras": "steps#beyond-ids-and-logprobs",
    "google": "engines#google-gemini-api-and-vertex-ai",
    "instrument": "unmodified#the-whole-process-rtinstrument",
    "journal": "files#the-journal-nothing-is-lost",
    "later": "files#notes-what-is-known-later",
    "look-lists": "look#lists-sums-and-checks",
    "look-terminal": "look#in-a-terminal-show-and-diff",
    "multi-agent": "threads#several-agents",
    "page-server": "look#the-pages-server",
    "promises": "security#what-it-promises",
    "query": "filter#sql-duckdb",
    "run": "unmodified#a-program-rollout-trace-run",
    "samplers": "engines#samplers-in-the-process",
    "secrets": "security#secrets",
    "sequences": "tokens#training-sequences",
    "shards": "files#folders-and-object-storage",
    "test-asserts": "test-agents#asserts-on-rollouts",
    "testing": "test-agents#model-servers-for-tests",
    "troubleshooting": "checks#questions",
    "validate": "file-format#check-files-check-format",
    "web-services": "threads#web-services-and-streams",
    "words": "start#words",
}
"""Pages that are now a part of another one: that page, and the part's anchor."""

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
    name, _, anchor = MOVED.get(named[1].removesuffix(".md"), named[1].removesuffix(".md")).partition("#")
    file = files.get_file_from_path(f"{name}.md")
    if file is None or file.page is None:
        return named[0]
    return f'<a href="{file.url_relative_to(page.file)}{anchor and "#"}{anchor}">{escape(str(file.page.title))}</a>'


def _to_name(named: re.Match[str]) -> str:
    # Optional: the name may be that of an internal module, which has no entry.
    return f'<autoref identifier="rollout_trace.{named[1]}" optional>{named[0]}</autoref>'


def on_post_build(config: MkDocsConfig) -> None:
    """Writes the old addresses; orders the search."""
    for old, new in MOVED.items():
        folder = Path(config.site_dir) / old
        folder.mkdir(exist_ok=True)
        page, _, anchor = new.partition("#")
        (folder / "index.html").write_text(_REDIRECT.format(page=page, anchor=anchor), encoding="utf-8")
    _order_search(config)


_REDIRECT = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>This page has moved</title>
<link rel="canonical" href="../{page}/">
<script>location.replace("../{page}/" + (location.hash || "#{anchor}"))</script>
<meta http-equiv="refresh" content="1; url=../{page}/#{anchor}">
<p>This page has moved: <a href="../{page}/#{anchor}">{page}</a>.</p>
</html>
"""


def _order_search(config: MkDocsConfig) -> None:
    """Puts public names before fields and types in the search: ``Step`` before ``Step.id``, of which there are many."""
    path = Path(config.site_dir) / "search" / "search_index.json"
    index = json.loads(path.read_text())
    for entry in index["docs"]:
        if entry["location"].startswith("api/") and "#rollout_trace." in entry["location"]:
            is_public = "." not in entry["title"] and not entry["location"].startswith("api/types/")
            entry["boost"] = 2 if is_public else 0.6
    path.write_text(json.dumps(index, separators=(",", ":"), ensure_ascii=False))
