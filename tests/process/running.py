"""Runs programs with ``rollout-trace run``, and without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import rollout_trace as rt

LIBRARY = str(Path(rt.__file__).parents[1])
_MAIN = "import sys; from rollout_trace.cli import main; sys.exit(main())"
COMMAND = [sys.executable, "-W", "error", "-c", _MAIN, "run"]
CALL = """
import os, sys
import httpx
url = os.environ["SERVER"] + "/chat/completions"
def ask(text="hi"):
    messages = [{"role": "user", "content": text}]
    httpx.post(url, json={"model": "m", "messages": messages}, timeout=60).raise_for_status()
"""
"""Begins a program: after it, ``ask()`` makes a call."""
CALL_BY_SDK = """
import os, sys
from openai import OpenAI
client = OpenAI(base_url=os.environ["SERVER"], api_key="none", max_retries=0)
def ask(text="hi"):
    return client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
"""
"""The same with an SDK, whose import takes most of a second."""


class Done(NamedTuple):
    """A program that has ended."""

    code: int
    out: str
    err: str


def environment(**more: str) -> dict[str, str]:
    """That of a user: without pytest's, under which failures of the recorder are raised."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return {**kept, "PYTHONPATH": LIBRARY, **more}


def execute(folder: Path, command: list[str], *, stdin: str = "", **more: str) -> Done:
    """Runs a command in a folder, as a shell does; ``more`` are environment variables."""
    variables = environment(**more)
    done = subprocess.run(command, cwd=folder, env=variables, input=stdin, capture_output=True, text=True, timeout=120)
    return Done(done.returncode, done.stdout, done.stderr)


def run(folder: Path, *args: str, stdin: str = "", **more: str) -> Done:
    """Runs ``rollout-trace run`` with these arguments; ``more`` are environment variables."""
    return execute(folder, [*COMMAND, *args], stdin=stdin, **more)


def python(folder: Path, *args: str, stdin: str = "", **more: str) -> Done:
    """Runs Python itself."""
    return execute(folder, [sys.executable, *args], stdin=stdin, **more)


def recorded(path: Path) -> list[rt.Trajectory]:
    """The trajectories of a file, those without a parent first."""
    return sorted(rt.read(path), key=lambda one: (one.parent_id is not None, one.started_at))
