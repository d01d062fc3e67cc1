"""The documentation site as it is built: its files, links, names and search index, and a server of it on loopback."""

from __future__ import annotations

import functools
import http.server
import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from mkdocstrings import Inventory

ROOT = Path(__file__).parent.parent.parent
MODULES = (
    "rollout_trace",
    *(f"rollout_trace.{name}" for name in ("export", "importing", "integration", "testing", "wire")),
    *(f"rollout_trace.{name}" for name in ("clients", "collection", "data", "file", "process", "record", "train")),
)
LOADED = {("link", "href"), ("script", "src"), ("img", "src"), ("source", "src"), ("iframe", "src"), ("object", "data")}
"""Attributes whose address a browser loads by itself."""


def build(folder: Path) -> None:
    """Builds the site as `make check` does; a warning fails it."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """A server of a folder; gives its address."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


class Link(NamedTuple):
    """An address in a page, and the attribute that it stands in."""

    tag: str
    attribute: str
    address: str


class Document(HTMLParser):
    """What a page of the site holds: ids, classes and addresses."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.classes: set[str] = set()
        self.links: list[Link] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for attribute, value in attrs:
            if attribute == "id" and value:
                self.ids.add(value)
            elif attribute == "class" and value:
                self.classes.update(value.split())
            elif attribute in ("href", "src", "data") and value is not None:
                self.links.append(Link(tag, attribute, value))


class Site:
    """A built site."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.documents = {
            path.relative_to(folder).as_posix().removesuffix("index.html"): Document(path.read_text())
            for path in sorted(folder.rglob("*.html"))
        }
        """By address in the site: `look/`."""

    @property
    def pages(self) -> list[str]:
        """Addresses of the pages. Those that lead on from an old address have nothing of the theme."""
        return [page for page, one in self.documents.items() if page != "404.html" and one.classes]

    def broken(self, page: str, link: Link) -> bool:
        """Whether a link leads to a page, a file or an anchor that the site does not have."""
        address, anchor = urldefrag(urljoin(f"http://site/{page}", link.address))
        parts = urlsplit(address)
        if parts.netloc != "site":
            return False
        path = unquote(parts.path).lstrip("/")
        if path in self.documents:
            return bool(anchor) and unquote(anchor) not in self.documents[path].ids
        return not (self.folder / path).is_file()

    def entries(self) -> dict[str, str]:
        """The address of each name's entry in the API pages, by its full name."""
        with (self.folder / "objects.inv").open("rb") as file:
            return {name: item.uri.replace("$", name) for name, item in Inventory.parse_sphinx(file).items()}

    def search_index(self) -> dict[str, Any]:
        """What the search looks through."""
        index: dict[str, Any] = json.loads((self.folder / "search" / "search_index.json").read_text())
        return index


def public_names() -> list[str]:
    """The full names that users import."""
    return [f"{module}.{name}" for module in MODULES for name in importlib.import_module(module).__all__]
