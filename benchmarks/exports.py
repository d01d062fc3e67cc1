"""Exporting recorded trajectories: speed, and memory for a file ten times as long.

As a program it streams files through the writers and prints how far the peak of memory rose, in bytes, for each job:
``python -m benchmarks.exports '[["write_atif", "rollouts.jsonl", 300], ...]'``.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import TypeAlias

import rollout_trace as rt
from benchmarks.report import Effort, Row, at_least, spread
from rollout_trace import export

Write: TypeAlias = Callable[[Path, Iterable[rt.Trajectory]], object]
Job: TypeAlias = tuple[str, str, int]
"""A name of ``WRITERS``, a file, and how many of its trajectories are streamed through."""

FLAT = 1.1
SLACK = 2
"""MB by which peaks differ although nothing more is held: the allocator's, and what the collector has yet to find."""
TURNS = 20


def _lines(path: Path, trajectories: Iterable[rt.Trajectory]) -> None:
    with rt.JSONLWriter(path) as writer:
        for trajectory in trajectories:
            writer.write(trajectory)


def _rows(path: Path, trajectories: Iterable[rt.Trajectory]) -> None:
    export.write_jsonl(path, (row for trajectory in trajectories for row in export.verl(trajectory)))


_write_prompts = partial(export.write_verl_prompts, data_source="bench", ability="none")

STREAMED: dict[str, tuple[str, Write]] = {
    "write_chat, .jsonl": ("chat.jsonl", export.write_chat),
    "write_steps, .jsonl": ("steps.jsonl", export.write_steps),
    "write_trl, .jsonl": ("trl.jsonl", export.write_trl),
    "write_jsonl, rows of verl": ("verl.jsonl", _rows),
    "JSONLWriter": ("rollouts.jsonl", _lines),
}
"""Writers that hold one trajectory at a time, with the name of what they write."""
HELD: dict[str, tuple[str, Write]] = {
    "write_chat, .parquet": ("chat.parquet", export.write_chat),
    "write_steps, .parquet": ("steps.parquet", export.write_steps),
    "write_trl, .parquet": ("trl.parquet", export.write_trl),
    "write_verl_prompts, .parquet": ("prompts.parquet", _write_prompts),
    "write_verifiers, .jsonl": ("verifiers.jsonl", export.write_verifiers),
    "write_atif": ("atif", export.write_atif),
}
"""Those that hold many: a row group, or 256 trajectories that may have others of their episode behind them."""
WRITERS = STREAMED | HELD


def run(effort: Effort) -> Iterator[Row]:
    """Rows of this section."""
    with tempfile.TemporaryDirectory() as folder:
        agents = _agents(effort.size(20, 5))
        yield from _speeds(agents, Path(folder), effort)
        yield from _peaks(agents, Path(folder), effort)


def _agents(count: int) -> list[rt.Trajectory]:
    from benchmarks.trajectories import long_agent

    return [long_agent(TURNS, seed) for seed in range(count)]


def _speeds(agents: Sequence[rt.Trajectory], folder: Path, effort: Effort) -> Iterator[Row]:
    from benchmarks.timing import blocks

    source = folder / "agents.jsonl"
    _lines(source, agents)
    trajectories = list(rt.read(source))
    actions = {name: partial(_anew, write, folder / file, trajectories) for name, (file, write) in WRITERS.items()}
    found = blocks(actions, rounds=effort.repeat(12), clock=time.process_time)
    for name, seconds in found.items():
        size = _size(folder / WRITERS[name][0])
        value = spread(size / each / 1e6 for each in seconds)
        each = spread(seconds).middle / len(trajectories)
        more = f"{size / len(trajectories) / 1e3:,.0f} kB a trajectory of {TURNS} turns; {1 / each:,.0f} trajectories/s"
        yield at_least(name, value, None, form=".0f", unit=" MB/s", more=more)


def _anew(write: Write, path: Path, trajectories: Iterable[rt.Trajectory]) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    write(path, trajectories)


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)


def _peaks(agents: Sequence[rt.Trajectory], folder: Path, effort: Effort) -> Iterator[Row]:
    """Those that hold many need thousands of trajectories to show that they hold no more: not if quick."""
    counts = dict.fromkeys(STREAMED, effort.size(100, 30)) | ({} if effort.quick else dict.fromkeys(HELD, 300))
    source = folder / "many.jsonl"
    _lines(source, _copies(agents, 10 * max(counts.values())))
    jobs: list[Job] = [(name, str(source), times * count) for name, count in counts.items() for times in (1, 10)]
    command = [sys.executable, "-m", "benchmarks.exports", json.dumps(jobs)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1]).stdout
    grown = iter(json.loads(output))
    for name, count in counts.items():
        one, ten = next(grown) / 1e6, next(grown) / 1e6
        more = f"+{one:.1f} MB for {count} trajectories, +{ten:.1f} MB for {10 * count:,}"
        met = ten <= FLAT * one + SLACK
        yield Row(f"{name}, peak memory", f"{ten / one:.2f}×", more, f"≤ {FLAT:g}× + {SLACK} MB", met)


def _copies(agents: Sequence[rt.Trajectory], count: int) -> Iterator[rt.Trajectory]:
    for number in range(count):
        yield rt.Trajectory(steps=agents[number % len(agents)].steps, task=rt.Task(id=f"bench/{number}"), reward=1.0)


# In the child.


def main(jobs: Iterable[Job]) -> list[int]:
    """Runs each job in a process of its own, which begins with all imported that a writer needs, and nothing else."""
    for name in ("numpy", "pyarrow.parquet"):
        import_module(name)
    return [_forked(job) for job in jobs]


def _forked(job: Job) -> int:
    context = get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=lambda: answers.put(_peak_added(*job)))
    child.start()
    child.join()
    if child.exitcode:
        raise RuntimeError(f"the process of {job} ended with {child.exitcode}.")
    added: int = answers.get()
    return added


def _peak_added(name: str, source: str, count: int) -> int:
    before = _peak()
    with tempfile.TemporaryDirectory(dir=os.path.dirname(source)) as folder:
        file, write = WRITERS[name]
        write(Path(folder) / file, islice(rt.read(source), count))
        return _peak() - before


def _peak() -> int:
    """Bytes; of a process that was forked and runs no other program, its own alone."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
