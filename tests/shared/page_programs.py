"""Runs a page of the documentation as its reader does: its files, programs and commands, in one folder.

A block below a line that ends with a file's name (``agent.py``:) is that file. Any other block ``python`` is a program,
a block ``bash`` are commands, and a block ``text`` is what the latest of them printed: each of its lines, in their
order, with other lines between. Ids, times and durations may be others. Blocks of other kinds (``sh``, ``json``) are
left alone.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"(?P<before>[^\n]*)\n\n```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`(?P<name>[\w/]+\.(?:py|jsonl|toml|json))`:$")
_VARIABLE = (
    (r"\b[0-9a-f]{24}\b", "ID"),
    (r"\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d", "WHEN"),
    (r"\d[\d.,]* ?(?:ms|µs|s|MB|kB)\b", "SIZE"),
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"[━─]+", "─"),
    (r"\s+", " "),
)
_COMMAND = f"#!{sys.executable}\nimport sys\nfrom rollout_trace.cli import main\nsys.exit(main())\n"


class Block(NamedTuple):
    """One block of a page."""

    section: str
    """The heading of the second level that it stands below."""
    kind: str
    text: str
    file: str | None
    """The name of the file that it is."""


def page_blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page in their order."""
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        name = _FILE.search(found["before"])
        section = text[: found.start()].rpartition("\n## ")[2].partition("\n")[0]
        yield Block(section, found["kind"], found["text"], name and name["name"])


def run_page(
    page: Path, folder: Path, variables: Mapping[str, str], *, skip: Collection[str] = (), only: Collection[str] = ()
) -> None:
    """Runs a page's blocks in a folder; fails at the first that fails, or printed something else than the page shows.

    Args:
        page: a file in Markdown.
        folder: where files are written and programs run; it must be there.
        variables: added to the environment.
        skip: sections to leave out.
        only: sections to run; empty: all.
    """
    environment = {**os.environ, **_commands(folder.with_name(f"{folder.name}-bin")), "PYTHONPATH": str(ROOT)}
    environment |= {"COLUMNS": "100", "PYTHONWARNINGS": "error,ignore::ResourceWarning", **variables}
    printed = ""
    for number, block in enumerate(page_blocks(page)):
        if block.section in skip or (only and block.section not in only):
            continue
        if block.file is not None:
            (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.file).write_text(block.text, encoding="utf-8")
        elif block.kind == "text":
            assert_printed(block.text, printed)
        elif block.kind in ("python", "bash"):
            program = folder / f"block_{number}.py"
            program.write_text(block.text, encoding="utf-8")
            command = [sys.executable, program.name] if block.kind == "python" else ["bash", "-e", program.name]
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
            printed = done.stdout + done.stderr
            assert done.returncode == 0, f"{page.name}:\n{block.text}\n{printed}"


def exec_page(page: Path, *, skip: Collection[str] = ()) -> None:
    """As `run_page`, in this process and its folder: programs alone, each with names of its own.

    For programs whose imports take longer than they do.
    """
    printed = io.StringIO()
    for number, block in enumerate(page_blocks(page)):
        if block.section in skip or block.kind not in ("python", "text"):
            continue
        if block.kind == "text":
            assert_printed(block.text, printed.getvalue())
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block.text, f"{page.name}, block {number}", "exec"), {"__name__": "__main__"})


def assert_printed(shown: str, printed: str) -> None:
    """Each shown line was printed, in this order; a line of dots stands for any."""
    lines = iter(map(_plain, printed.splitlines()))
    for line in shown.splitlines():
        if line.strip() not in ("", "…"):
            assert any(_plain(line) == found for found in lines), f"{line!r} is not, or not in its place, in\n{printed}"


def _plain(line: str) -> str:
    for pattern, word in _VARIABLE:
        line = re.sub(pattern, word, line)
    return line.strip()


def _commands(folder: Path) -> dict[str, str]:
    """``rollout-trace`` and ``python`` are those of this interpreter."""
    folder.mkdir(exist_ok=True)
    (folder / "rollout-trace").write_text(_COMMAND)
    (folder / "rollout-trace").chmod(0o755)
    return {"PATH": os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])}
