"""Follows a page as its reader does: pastes, runs or saves each block where it stands, and compares what it shows."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema
from page_blocks import SERVER, Block, run_block

from tests.cli.command import command
from tests.file.processes import environment

tomllib = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
SHELL = ("bash", "sh", "console")
SCHEMAS = Path(__file__).parents[2] / "rollout_trace" / "schema"
ENDLESS = re.compile(r"rollout-trace view (?!.*--html)|rollout-trace tail .*-f\b|rollout_trace\.testing\.serve")
"""Commands that run until Ctrl-C: they get it once they have printed a line."""
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
_INSTALL = re.compile(r"^pip install .*\n", re.MULTILINE)


@dataclass
class Reader:
    """Who reads a page, in a folder.

    Its blocks of Python share one namespace. A session (`$ command`, and what it prints) is run and compared; so is a
    block of text, with what the block before it printed.
    """

    folder: Path
    names: dict[str, Any]
    server: str = SERVER
    """What stands for the model server of the pages."""
    variables: dict[str, str] = field(default_factory=dict)
    """More variables of the environment."""
    tests: str = ""
    """What the file of the page's tests begins with. Without it, blocks with `def test_` are like others."""
    printed: str = ""
    """By the block before, stderr included."""
    outputs: dict[str, Callable[[], str]] = field(default_factory=dict)
    """What prints the texts below these headings, where no block before does."""
    _has_run_tests: bool = False

    def read(self, block: Block) -> None:
        """Does what a reader does with a block."""
        if block.kind == "json":
            check_json(block.text)
        elif block.kind == "toml":
            tomllib.loads(block.text)
        if block.file is not None:
            path = self.folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        if block.kind == "python" and self.tests and "def test_" in block.text:
            path = self.folder / "test_page.py"
            path.write_text((path.read_text() if path.exists() else self.tests) + "\n\n" + block.text)
        elif block.kind == "python" and (block.file is None or "__main__" in block.text):
            self._run_python(block)
        elif block.text.startswith("$ "):
            self._run_session(block)
        elif block.kind in SHELL:
            self.printed = self._run_shell(_INSTALL.sub("", block.text))
        elif block.kind == "text":
            if block.headings[-1] in self.outputs:
                self.printed = self.outputs[block.headings[-1]]()
            assert_shown(block.text, self.printed)
        elif block.kind not in ("python", "json", "toml"):
            raise AssertionError(f"no language that is run here: {block.kind!r}")

    def run_tests(self) -> None:
        """Runs the page's tests, if none of its commands has: those that replay are recorded."""
        if (self.folder / "test_page.py").exists() and not self._has_run_tests:
            self._run_shell("pytest -q --replay=record test_page.py\n")

    def _run_python(self, block: Block) -> None:
        if "__main__" in block.text:  # a program: it imports the folder's modules anew
            forget_modules_of(self.folder)
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            run_block(block, self.names, server=self.server)
        self.printed = out.getvalue()

    def _run_session(self, block: Block) -> None:
        """Commands after `$ `, each with the output that it shows."""
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            typed, _, shown = part.partition("\n")
            self.printed = self._run_on_terminal(typed + "\n")
            assert_shown(shown, self.printed)

    def _run_shell(self, text: str) -> str:
        """What the commands print. Those of the library alone are forked from a process that has imported it."""
        text = text.replace(SERVER, self.server).replace("--port 8000", "--port 0")
        self._has_run_tests |= "pytest" in text
        if not text.strip():
            return ""
        if all(_is_plain(line) for line in text.splitlines()):
            printed = ""
            for line in text.splitlines():
                done = command(self.folder, *shlex.split(line, comments=True)[1:])
                assert done.code <= _finds_something(line), f"{line}\n{done.out}{done.err}"
                printed += done.out + done.err
            return printed
        if ENDLESS.search(text):
            return "".join(self._run_until_it_prints(line) for line in text.splitlines())
        ended = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", text],
            cwd=self.folder,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        assert ended.returncode == 0, f"{text}\n{ended.stdout}"
        return ended.stdout

    def _run_on_terminal(self, typed: str) -> str:
        """What a command prints on a terminal, without colours."""
        if ENDLESS.search(typed):
            return self._run_shell(typed)
        terminal, output = pty.openpty()
        variables = self._environment() | {"TERM": "xterm", "NO_COLOR": "1"}
        # What goes to stderr alone is no part of a screen: a bar of progress is redrawn there.
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                ["bash", "-c", typed], cwd=self.folder, env=variables, stdout=output, stderr=errors
            )
            os.close(output)
            printed = b""
            with process, contextlib.suppress(OSError):  # EIO: all of it has been read
                while part := os.read(terminal, 65536):
                    printed += part
            os.close(terminal)
            errors.seek(0)
            return _COLOUR.sub("", printed.decode().replace("\r\n", "\n")) + errors.read()

    def _run_until_it_prints(self, line: str) -> str:
        """A server's output up to Ctrl-C; any other command's."""
        if not ENDLESS.search(line):
            return self._run_shell(line + "\n")
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
        process = subprocess.Popen(  # type: ignore[call-overload]
            ["bash", "-c", "exec " + line], cwd=self.folder, env=self._environment(), **options
        )
        with process:
            first = process.stdout.readline()
            assert first, f"{line} printed nothing"
            os.killpg(process.pid, signal.SIGINT)
            rest = process.stdout.read()
        assert process.returncode in (0, 130), f"{line}\n{first}{rest}"
        return str(first + rest)

    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        fixed = {
            "PATH": path,
            # The clients of most programs are not closed.
            "PYTHONWARNINGS": "error,ignore::ResourceWarning",
            "PYTEST_ADDOPTS": "-p no:cacheprovider -p no:asyncio",
            "COLUMNS": "120",
            "BROWSER": "true",
        }
        return environment() | fixed | self.variables


def _finds_something(line: str) -> int:
    """The exit code of a command whose answer may be that there is a difference, or a problem."""
    return int(line.split()[1] in ("check", "diff", "validate"))


def _is_plain(line: str) -> bool:
    """Whether a line is a command of the library by itself, that a process forked for it can run."""
    if (
        not line.startswith("rollout-trace ")
        or ENDLESS.search(line)
        or re.search(r"rollout-trace (run|collect) ", line)
    ):
        return False
    with contextlib.suppress(ValueError):
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        return not any(set(word) & set("|<>;&*$") for word in lexer if not word[:1].isalnum())
    return False


def check_json(text: str) -> None:
    """It is JSON, or lines of JSON; a line of a file follows the format's schema. `…` stands for what is left out."""
    try:
        found = [json.loads(text)]
    except json.JSONDecodeError:
        found = [json.loads(line) for line in text.splitlines()]
    for record in found:
        for schema in SCHEMAS.glob("*.json"):
            if record.get("schema", "").startswith(schema.stem.rpartition("-")[0] + "/"):
                jsonschema.validate(record, json.loads(schema.read_text()))


_RULES = (
    (r"/(?:[\w.-]+/)+(?=[\w.-])", ""),  # folders of this machine
    (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?( UTC|Z)?", "TIME"),
    (r"\b[0-9a-f]{8,32}\b(?<!\d{8})", "ID"),
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


def forget_modules_of(folder: Path) -> None:
    """The next import of a module in this folder runs it again."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(f"{folder}{os.sep}"):
            del sys.modules[name]
