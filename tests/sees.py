"""The table of docs/integrations.md: what each integration sees, made from the marks of its tests.

    python -m tests.sees            prints the table
    python -m tests.sees --write    writes it into the page

A test that shows something is marked with a row of the table, and may say more in a few words:

    @pytest.mark.sees("sub-agents")
    @pytest.mark.sees("cached", "LangChain's cache of chat models")

A test that shows that something cannot be seen says so: ``@pytest.mark.sees("ids", "no: the Responses API has none")``.
The marks are read from the sources, for each integration's tests run in an environment of their own. A row without a
mark stays empty.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "integrations.md"
BEGIN, END = "<!-- made by python -m tests.sees -->", "<!-- end of the table -->"

ROWS = {
    "ids": "ids and logprobs of a tool loop equal those that the server sent",
    "streaming": "a streamed step equals the same one unstreamed",
    "parallel tools": "tools that run at once",
    "tool errors": "a tool that raises: its error on the tool run",
    "sub-agents": "sub-agents as child trajectories",
    "structured output": "structured output",
    "error": "an HTTP error is a step",
    "cancelled": "a cancelled or closed run: what had arrived",
    "superseded": "answers that the framework discarded",
    "cached": "answers from a cache or a callback",
    "other models": "models whose bytes are not seen: steps without ids",
    "at once": "12 tasks and 8 threads that share one model stay apart",
    "one row": "a tool loop is one training row",
    "stream": 'events that a stream shows with `engine="vllm"`: as many as without the recorder '
    "(in brackets: with all that vLLM then sends, `show_added=True`)",
    "unchanged": "messages, events, requests and traces as without the hook",
}
"""Names of the rows, as the marks have them, and their texts."""
NAMES = {
    "rollout-trace-langchain": "LangChain, LangGraph",
    "rollout-trace-strands": "Strands",
    "rollout-trace-smolagents": "smolagents",
    "rollout-trace-openai-agents": "OpenAI Agents",
    "rollout-trace-pydantic-ai": "Pydantic AI",
    "rollout-trace-google-adk": "Google ADK",
    "rollout-trace-inspect": "Inspect",
}


def marks(source: str) -> Iterator[tuple[str, str]]:
    """The rows that the tests of a module are marked with, and what each mark says."""
    for node in ast.walk(ast.parse(source)):
        for decorator in getattr(node, "decorator_list", ()):
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.sees":
                row, *words = [ast.literal_eval(argument) for argument in decorator.args]
                yield row, words[0] if words else "yes"


def seen_by(folder: Path) -> dict[str, str]:
    """What an integration sees, by row. What tests say in words counts before a plain yes.

    Raises:
        ValueError: a mark names no row of the table.
    """
    found: dict[str, list[str]] = {}
    for path in sorted(folder.glob("tests/test_*.py")):
        for row, words in marks(path.read_text()):
            if row not in ROWS:
                raise ValueError(f"{path}: sees({row!r}) is no row of the table: {', '.join(ROWS)}.")
            if words not in found.setdefault(row, []):
                found[row].append(words)
    return {row: "; ".join([one for one in words if one != "yes"] or words) for row, words in found.items()}


def table() -> str:
    """The table, in Markdown."""
    folders = {name: ROOT / "integrations" / name for name in NAMES}
    columns = {name: seen_by(folder) for name, folder in folders.items() if folder.is_dir()}
    lines = [
        "| | " + " | ".join(f"[{NAMES[name]}]({name.removeprefix('rollout-trace-')}.md)" for name in columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for row, text in ROWS.items():
        cells = " | ".join(column.get(row, "") for column in columns.values())
        lines.append(f"| {text} | {cells} |")
    return "\n".join(lines)


def page_with(made: str, page: str) -> str:
    """The page with this table between its two marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE}: the lines {BEGIN!r} and {END!r} are missing: the table is written between them.")
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{after}"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page_with(table(), PAGE.read_text()))
    else:
        print(table())
