"""How long the sentences of the pages and of the messages are.

    python -m tests.documentation.readability [--list] [--messages]

prints the mean of each page and of all messages, and the sentences that are too long; ``--list`` prints every message,
with its place. `test_readability` fails for a sentence over the limit.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from .log_lines import CALLS, ROOT, SOURCES, called, template

LIMIT = 35
"""The most words of a sentence."""
MEAN = 16.0
"""Their mean, for all pages together and for all messages."""
_RAISED = ("Error", "Exception", "Exit", "Usage", "Warning")
_OPTIONS = ("help", "short_help", "epilog", "advice")
_END = re.compile(r"(?<=[.!?])[\"')*]*\s+(?=[\"'(`*\[]*[A-Z0-9`*_\[])")


class Sentence(NamedTuple):
    """A sentence, and where it stands."""

    place: str
    text: str
    is_cell: bool = False
    """Of a table: most cells are fragments, which count for no mean."""

    @property
    def words(self) -> int:
        """A name in backticks, a number and a word between hyphens are one word each."""
        return len(re.findall(r"[\w`…'’./=<>{}\[\]@*+-]*\w[\w`…'’./=<>{}\[\]@*+-]*", self.text))


def pages() -> list[Path]:
    """What a reader reads: the pages that are written by hand, and the repository's own."""
    names = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
    return [*(ROOT / name for name in names), *sorted(ROOT.glob("docs/*.md"))]


def of_page(path: Path) -> list[Sentence]:
    """The sentences of paragraphs, items and cells."""
    text = re.sub(r"^( *)```.*?^\1```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]+`", "`code`", text)
    found = []
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) |\||#)", text):
        is_table = block.lstrip().startswith("|")
        parts = block.split("|") if is_table else [block]
        for part in parts:
            plain = re.sub(r"^\s*(?:[-*]|\d+\.|#+) ", "", " ".join(part.split()))
            found += [Sentence(path.name, one, is_table) for one in _END.split(plain) if re.search(r"\w", one)]
    return found


class Message(NamedTuple):
    """A text of the source that users read."""

    kind: str
    place: str
    text: str


def messages() -> list[Message]:
    """All of the library: what is raised, warned of and logged, helps of options, first lines of public docstrings."""
    return [one for path in SOURCES for one in _of_source(path)]


def _of_source(path: Path) -> Iterator[Message]:
    place = path.relative_to(ROOT).as_posix()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            for kind, text in _of_call(node):
                yield Message(kind, f"{place}:{node.lineno}", text)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            document = ast.get_docstring(node)
            if document and not node.name.startswith("_"):
                first = " ".join(document.split("\n\n")[0].split())
                yield Message("docstring", f"{place}:{node.lineno}", first)


def _of_call(node: ast.Call) -> Iterator[tuple[str, str]]:
    for option in node.keywords:
        if option.arg in _OPTIONS:
            yield "help", template(option.value)
    name = called(node.func)
    at = 0 if name.endswith(_RAISED) else CALLS.get(name)
    if at is not None and len(node.args) > at:
        text = template(node.args[at])
        if " " in text:
            yield ("error" if name.endswith(_RAISED) else "log"), text


def of_messages() -> list[Sentence]:
    """The sentences of all messages."""
    plain = [(one.place, re.sub(r"`+[^`]+`+", "`code`", one.text)) for one in messages()]
    return [Sentence(place, one) for place, text in plain for one in _END.split(text) if re.search(r"\w", one)]


def mean(sentences: list[Sentence]) -> float:
    """The mean number of words of a sentence."""
    return fmean(one.words for one in sentences if not one.is_cell)


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print every message")
    parser.add_argument("--messages", action="store_true", help="print no pages")
    wanted = parser.parse_args()
    if wanted.list:
        for message in messages():
            print(f"{message.kind:<10} {message.place}: {message.text}")
        return
    by_page = {} if wanted.messages else {path.name: of_page(path) for path in pages()}
    for name, found in [*by_page.items(), ("messages", of_messages())]:
        print(
            f"{mean(found):5.1f} words, {max(one.words for one in found):3} at most, {len(found):4} sentences  {name}"
        )
    everything = [one for found in by_page.values() for one in found]
    if everything:
        print(f"{mean(everything):5.1f} words, all pages")
    for one in [*everything, *of_messages()]:
        if one.words > LIMIT:
            print(f"\n{one.place}: {one.words} words\n  {one.text}")


if __name__ == "__main__":
    main()
