"""Follows a page as its reader does: pastes, runs or saves each block where it stands, and compares what it shows."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

from page_blocks import ROOT, SERVER, Block, blocks_of, run_block

from rollout_trace.process.instrument import Instrumentation
from rollout_trace.testing import ScriptedServer

from .shell import Shell
from .stage import Setting, Stage, programs

tomllib = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
SHELL = ("bash", "sh", "console")
_INSTALL = re.compile(r"^pip install .*\n", re.MULTILINE)


def read_page(
    page: str, folder: Path, *settings: Setting, wanted: Callable[[Block], bool] = lambda block: True
) -> None:
    """Reads a page in a folder, which may be there; fails at the first block that fails or shows something else.

    Args:
        page: its path in the checkout.
        settings: what it takes for granted, and what has to come of it.
        wanted: which of its blocks.
    """
    folder.mkdir(exist_ok=True)
    with ScriptedServer(lambda request: stage.answer(request)) as server, pasted(folder) as names, uninstrumented():
        stage = Stage(folder, server, names)
        # What SDKs read where a client is made without an address and a key.
        stage.variables |= {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "none"}
        with contextlib.ExitStack() as stack:
            for setting in settings:
                stack.enter_context(contextlib.contextmanager(setting)(stage))
            stack.enter_context(patch.dict(os.environ, stage.variables))
            reader = Reader(stage)
            for block in filter(wanted, blocks_of(page)):
                reader.read(block)
            reader.run_tests()


def record_start(folder: Path) -> None:
    """Records what docs/start.md does, in ``rollouts.jsonl``, for pages that go on with it."""
    read_page("docs/start.md", folder, programs, wanted=lambda block: "Record" in block.headings)


class Reader:
    """Who reads a page on a stage.

    A block that is a file is saved. Other blocks of Python share one namespace, or are programs with names of their
    own. A session (`$ command`, and what it prints) is run and compared; so is a block of text, with what the block
    before it printed.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._shell = Shell(stage.folder, stage.variables)
        self._printed = ""  # by the block before, stderr included save that of programs in Python
        self._has_run_tests = False

    def read(self, block: Block) -> None:
        """Does what a reader does with a block."""
        if block.kind == "json":
            check_json(block.text)
        elif block.kind == "toml":
            tomllib.loads(block.text)
        if block.file is not None:
            self._stage.write(block.file, block.text)
        if block.kind == "python" and self._stage.tests and "def test_" in block.text:
            path = self._stage.folder / "test_page.py"
            path.write_text((path.read_text() if path.exists() else self._stage.tests) + "\n\n" + block.text)
        elif block.kind == "python" and block.file is None and self._stage.programs:
            with uninstrumented():
                self._run_python(block, {"__name__": "__main__"})
        elif block.kind == "python" and (block.file is None or ("__main__" in block.text and not self._stage.programs)):
            self._run_python(block, self._stage.names)
        elif block.text.startswith("$ "):
            self._run_session(block)
        elif block.kind in SHELL:
            self._printed = self._shell.run(self._typed(_INSTALL.sub("", block.text)))
        elif block.kind == "text":
            if block.headings[-1] in self._stage.outputs:
                self._printed = self._stage.outputs[block.headings[-1]]()
            assert_shown(block.text, self._printed)
        elif block.kind not in ("python", "json", "toml"):
            raise AssertionError(f"no language that is run here: {block.kind!r}")

    def run_tests(self) -> None:
        """Runs the page's tests, if none of its commands has: those that replay are recorded."""
        if (self._stage.folder / "test_page.py").exists() and not self._has_run_tests:
            self._shell.run("pytest -q --replay=record test_page.py\n")

    def _run_python(self, block: Block, names: dict[str, Any]) -> None:
        if "__main__" in block.text or self._stage.programs:  # a program: it imports the folder's modules anew
            forget_modules_of(self._stage.folder)
        out = io.StringIO()
        # Trainers log to stderr, with bars of progress.
        err = io.StringIO() if self._stage.programs else out
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            run_block(block, names, server=self._stage.server.url)
        self._printed = out.getvalue()

    def _run_session(self, block: Block) -> None:
        """Commands after `$ `, each with the output that it shows."""
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            typed, _, shown = part.partition("\n")
            self._printed = self._shell.on_terminal(self._typed(typed + "\n"))
            assert_shown(shown, self._printed)

    def _typed(self, text: str) -> str:
        self._has_run_tests |= "pytest" in text
        return text.replace(SERVER, self._stage.server.url).replace("--port 8000", "--port 0")


def check_json(text: str) -> None:
    """It is JSON, or lines of JSON; a line of a file follows the format's schema. `…` stands for what is left out."""
    try:
        found = [json.loads(text)]
    except json.JSONDecodeError:
        found = [json.loads(line) for line in text.splitlines()]
    for record in found:
        for schema in (ROOT / "rollout_trace" / "schema").glob("*.json"):
            if record.get("schema", "").startswith(schema.stem.rpartition("-")[0] + "/"):
                import jsonschema  # not there in every environment of a trainer

                jsonschema.validate(record, json.loads(schema.read_text()))


_RULES = (
    (r"/(?:[\w.-]+/)+(?=[\w.-])", ""),  # folders of this machine
    (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?( UTC|Z)?", "TIME"),
    (r"\b\d\d:\d\d:\d\d\b", "TIME"),
    (r"\b(?!\d+\b)[0-9a-f]{8,32}\b", "ID"),
    (r"\b127\.0\.0\.1:\d+\S*", "ADDRESS"),
    (r"\b(\d+ ?(h|m|min) ?)?\d+(\.\d+)? ?(ms|s|min|µs|us|rollouts/s)\b", "DURATION"),
    (r"[━─]{3,}", "─"),
    (r"\s+", " "),  # the width of columns, and where long lines are broken
)
"""What differs from run to run and from machine to machine: places, times, ids, addresses, durations, widths."""


def same_each_time(text: str) -> str:
    """A text without what differs from run to run."""
    for pattern, instead in _RULES:
        text = re.sub(pattern, instead, text)
    return text.strip()


def assert_shown(shown: str, printed: str) -> None:
    """What a page shows was printed, and nothing else, after `same_each_time`. `…` stands for anything."""
    parts = same_each_time(shown).split("…")
    pattern = ".*?".join(re.escape(part.strip()) for part in parts)
    found = same_each_time(printed)
    assert re.fullmatch(pattern, found), f"the page shows\n{shown}\nand what is printed is\n{printed}"


@contextlib.contextmanager
def pasted(folder: Path) -> Iterator[dict[str, Any]]:
    """The current folder, of which modules can be imported, as for a program that is run there. Gives its names."""
    before = os.getcwd()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # the clients of most programs are not closed
            names: dict[str, Any] = {}
            yield names
            names.clear()
            gc.collect()
    finally:
        os.chdir(before)
        sys.path.remove(str(folder))
        forget_modules_of(folder)


@contextlib.contextmanager
def uninstrumented() -> Iterator[None]:
    """Undoes at its end what `rt.instrument` has done inside."""
    handles: list[Instrumentation] = []
    begin = Instrumentation._begin

    def noted(handle: Instrumentation) -> None:
        handles.append(handle)
        begin(handle)

    with patch.object(Instrumentation, "_begin", noted):
        try:
            yield
        finally:
            for handle in handles:
                handle.undo()


def forget_modules_of(folder: Path) -> None:
    """The next import of a module in this folder runs it again."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(f"{folder}{os.sep}"):
            del sys.modules[name]
