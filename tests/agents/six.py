"""Runs a program's `run` six times at once under `rt.instrument()`, each in a trajectory of its own.

    python -m tests.agents.six PROGRAM.py OUTPUT ENGINE {before,after}

`before`: the process is instrumented before the program is imported, `after`: once it is. ENGINE may be empty.
A `run` that is a coroutine function has six tasks in one event loop, any other has six threads.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import rollout_trace as rt
from tests.agents.script import question

COUNT = 6


def in_threads(run: Callable[[str], Any]) -> list[str]:
    """The answers of six threads."""

    def one(number: int) -> str:
        with rt.trajectory(f"rollout {number}"):
            return str(run(question(number)))

    with ThreadPoolExecutor(COUNT) as pool:
        return list(pool.map(one, range(COUNT)))


async def in_tasks(run: Callable[[str], Any]) -> list[str]:
    """The answers of six tasks."""

    async def one(number: int) -> str:
        with rt.trajectory(f"rollout {number}"):
            return str(await run(question(number)))

    return list(await asyncio.gather(*map(one, range(COUNT))))


def _loaded(program: str) -> Any:
    """The module of a program; it is found by its name, too: griptape asks where the class of a tool is from."""
    spec: Any = importlib.util.spec_from_file_location("program", program)
    module = sys.modules["program"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(program: str, output: str, engine: str, order: str) -> None:
    """Runs the program and prints an answer a line."""
    sys.path.insert(0, str(Path(program).parent))
    # An engine's name, as the harness gives it.
    instrument: dict[str, Any] = {"engine": engine} if engine else {}
    if order == "before":
        rt.instrument(**instrument)
    run = _loaded(program).run
    if order == "after":
        rt.instrument(**instrument)
    with rt.recording(output):
        answers = asyncio.run(in_tasks(run)) if inspect.iscoroutinefunction(run) else in_threads(run)
    # After whatever the program has printed.
    print("", *answers, sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
