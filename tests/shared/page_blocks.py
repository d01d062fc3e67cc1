"""The fenced blocks of the documentation's pages, and running those of Python as a reader would paste them."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
SERVER = "http://localhost:8000"
"""What the pages call the reader's model server: where blocks are run, its address is put in its place."""
_LINE = re.compile(r"^(?P<indent> *)```(?P<kind>[\w-]*)")
_FILE = re.compile(r"`(?P<name>[\w./-]+\.(?:py|jsonl?|toml))`[^`]*:$")
_FILE_COMMENT = re.compile(r"# (?P<name>[\w./-]+\.(?:py|toml))\n")


class Block(NamedTuple):
    """One fenced block of a page."""

    page: str
    """Its path in the checkout."""
    line: int
    kind: str
    """The language of the fence; empty without one."""
    text: str
    headings: tuple[str, ...]
    """Those that it stands below, the page's title first."""
    before: str
    """The line of text before it; empty where another block is."""

    def __str__(self) -> str:
        return f"{self.page}, line {self.line} (below {self.headings[-1] if self.headings else 'nothing'!r})"

    @property
    def file(self) -> str | None:
        """The name of the file that it is: the line before ends with it, or its first line is a comment with it."""
        if self.kind not in ("python", "json", "toml"):
            return None
        found = _FILE.search(self.before) or _FILE_COMMENT.match(self.text)
        return None if found is None else found["name"]


def pages() -> list[str]:
    """The paths of all pages, in the checkout."""
    found = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("integrations/*/README.md")]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def blocks_of(page: str) -> list[Block]:
    """All fenced blocks of a page, in their order."""
    found: list[Block] = []
    headings: list[str] = []
    opened: Block | None = None
    indent, lines, before = "", [""], ""
    for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1):
        fence = _LINE.match(line)
        if opened is not None:
            if fence and fence["indent"] == indent and not fence["kind"]:
                found.append(opened._replace(text=textwrap.dedent("".join(f"{one}\n" for one in lines))))
                opened, before = None, ""
            else:
                lines.append(line)
        elif fence:
            indent, lines = fence["indent"], []
            opened = Block(page, number, fence["kind"], "", tuple(headings), before)
        elif line.strip():
            before = line.strip()
            if title := re.match(r"(#+) (.*)", line):
                headings[len(title[1]) - 1 :] = [title[2]]
    assert opened is None, f"{opened} has no end"
    return found


def blocks_below(page: str, heading: str) -> list[Block]:
    """The Python blocks of a page that stand below a heading which begins so."""
    found = [one for one in blocks_of(page) if any(title.startswith(heading) for title in one.headings)]
    return [one for one in found if one.kind == "python"]


def run_block(block: Block, names: dict[str, Any], *, server: str = SERVER) -> None:
    """Runs a block of Python with these names, and leaves there what it made.

    ``await`` at its top works, as in a notebook.

    Args:
        server: an address of a model server, without a path.
    """
    text = block.text.replace(SERVER, server)
    # Its lines have the numbers that they have on the page.
    code = compile("\n" * block.line + text, block.page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    made = eval(code, names)
    if inspect.iscoroutine(made):
        asyncio.get_event_loop().run_until_complete(made)


def run_blocks(page: str, heading: str = "", *, server: str = SERVER, **names: Any) -> dict[str, Any]:
    """Runs the Python blocks of a page, or those below a heading, in their order; returns all names."""
    found = blocks_below(page, heading) if heading else [one for one in blocks_of(page) if one.kind == "python"]
    assert found, f"{page} has no Python block below {heading!r}"
    for one in found:
        run_block(one, names, server=server)
    return names
