"""Runs the command in a process of its own, as a shell does."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.forked import Starter

PROGRAM = "import sys\nfrom rollout_trace.cli import main\nsys.exit(main())"
IMPORTS = """
import ctypes, numpy
from importlib import import_module
from pkgutil import iter_modules
for room in ("cli", "collection", "data", "export", "file", "importing", "train", "view"):
    for module in iter_modules(import_module(f"rollout_trace.{room}").__path__):
        import_module(f"rollout_trace.{room}.{module.name}")
"""


class Done(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What was printed, as the one JSON object that it has to be."""
        return json.loads(self.out)


@functools.lru_cache
def _starter() -> Starter:
    return Starter(IMPORTS, "-W", "error", takes_apart=False)


def command(folder: Path, *args: str | Path, stdin: str = "", without: str | None = None) -> Done:
    """Runs ``rollout-trace`` with these arguments in a folder; ``without``: a module that cannot be imported."""
    if without is not None or not hasattr(os, "fork") or not _starter().can_start(os.environ):
        return fresh_command(folder, *args, stdin=stdin, without=without)
    code, out, err = _starter().run(PROGRAM, [str(one) for one in args], cwd=folder, stdin=stdin.encode())
    return Done(code, _text(out), _text(err))


def _text(data: bytes) -> str:
    return data.decode().replace("\r\n", "\n").replace("\r", "\n")


def fresh_command(folder: Path, *args: str | Path, stdin: str = "", without: str | None = None) -> Done:
    """The same, in a process that begins with the interpreter."""
    start = f"import sys\nsys.modules[{without!r}] = None\n" if without else ""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", start + PROGRAM, *map(str, args)],
        cwd=folder,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return Done(done.returncode, done.stdout, done.stderr)
