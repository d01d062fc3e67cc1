"""Measures what rollout_trace costs, beside its budgets.

make bench                                     everything, some minutes
python benchmarks/run.py --quick               everything, roughly, in half a minute
python benchmarks/run.py --only calls          one section
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from benchmarks.report import Row

SECTIONS = {
    "calls": "What recording adds to a call",
    "exact": "What exact turns add to a call (µs of CPU time of the calling thread)",
    "instrument": "Instrumented processes",
    "threads": "Threads, tasks and processes of an instrumented program (µs added)",
    "start": "What `rollout-trace run` adds to the start of a program",
    "memory": "Memory",
    "files": "Writing and reading JSONL (MB of JSON per second of CPU time)",
    "look": "Looking at a large file from the command line (MB of JSON per second of CPU time)",
    "shards": "Reading a folder of shards with two processes beside one",
    "collect": "rt.collect beside the bare agent in an event loop",
    "extras": "Routed experts and alternatives (MB of their bytes per second of CPU time)",
    "loop": "Latency of an event loop with 64 agents in it",
    "closing": "Closing trajectories: the agent's thread, memory, the event loop",
    "journal": "The journal: on the calling thread, recovered, grown",
    "imports": "Importing (CPU time)",
    "plugin": "The pytest plugin in a run that does not use it (CPU time)",
    "loopback": "The loopback server of a program that is not Python (ms added)",
    "decode": "Decoding a call's bytes (`wire.decode`)",
    "sequences": "Training sequences",
    "exports": "Exporting (MB of output per second of CPU time, peak memory)",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, and prints one table a section."""
    asked = _parser().parse_args(arguments)
    # The sections import one another as the package `benchmarks`; `benchmarks/` itself is no place to import from.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    effort = import_module("benchmarks.report").Effort(quick=asked.quick, rounds=asked.rounds)
    console, missed = Console(width=None if sys.stdout.isatty() else 200), 0
    console.print(_machine(), highlight=False)
    for name in asked.only or SECTIONS:
        began = time.perf_counter()
        rows: list[Row] = list(import_module(f"benchmarks.{name}").run(effort))
        missed += sum(row.met is False for row in rows)
        _print(console, SECTIONS[name], rows, markdown=asked.markdown)
        console.print(f"{time.perf_counter() - began:.0f} s\n", style="dim")
    console.print(f"{missed} over budget" if missed else "all within budget")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Measures what rollout_trace costs, beside its budgets.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller workloads")
    parser.add_argument("--only", action="append", choices=tuple(SECTIONS), help="one section; may be given again")
    parser.add_argument("--rounds", type=int, help="rounds of every measurement that has any")
    parser.add_argument("--markdown", action="store_true", help="tables for README.md")
    return parser


def _machine() -> str:
    import openai

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return (
        f"Python {platform.python_version()}, openai {openai.__version__}, {platform.system()}, {cores} cores{load}\n"
    )


def _print(console: Console, title: str, rows: Iterable[Row], *, markdown: bool) -> None:
    cells = [(row.what, row.measured, row.budget, _VERDICTS[row.met], row.more) for row in rows]
    if markdown:
        lines = [f"### {title}", "", f"| {' | '.join(_HEADER)} |", "|---|---|---|---|---|"]
        console.out("\n".join([*lines, *(f"| {' | '.join(row)} |" for row in cells), ""]), highlight=False)
        return
    table = Table(*_HEADER, title=title, title_justify="left", title_style="bold")
    for row in cells:
        table.add_row(*row, style="red" if row[3] == _VERDICTS[False] else None)
    console.print(table, highlight=False)


_HEADER = ("what", "median [least..greatest]", "budget", "", "in figures")
_VERDICTS = {True: "ok", False: "over", None: ""}


if __name__ == "__main__":
    main()
