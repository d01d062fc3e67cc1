"""Writing and reading trajectories, in MB of JSON a second of CPU time on one core."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import rollout_trace as rt
from benchmarks.report import Effort, Row, at_least, spread
from benchmarks.timing import blocks
from benchmarks.trajectories import long_agent, single_turns

WRITE, READ = 500, 250


def run(effort: Effort) -> Iterator[Row]:
    """Rows of this section."""
    turns, agents = 20, effort.size(20, 8)
    workloads = {
        "single turns": single_turns(effort.size(400, 150)),
        f"{turns} turns": [long_agent(turns, seed) for seed in range(agents)],
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, trajectories in workloads.items():
            yield from _plain(name, trajectories, Path(folder), effort)
        for suffix in (".gz", ".zst"):
            yield from _compressed(f"{turns} turns", trajectories, Path(folder) / f"rollouts.jsonl{suffix}", effort)


def _plain(name: str, trajectories: Sequence[rt.Trajectory], folder: Path, effort: Effort) -> Iterator[Row]:
    path = folder / "rollouts.jsonl"
    _write(trajectories, path)
    size = path.stat().st_size
    actions = {
        "write": lambda: _write(trajectories, path),
        "null": lambda: _write(trajectories, Path(os.devnull)),
        "read": lambda: _read(path),
        "steps": lambda: _read_steps(path),
        "loads": lambda: _loads(path),
    }
    speeds = _speeds(actions, size, effort)
    more = f"to {os.devnull} {spread(speeds['null']).middle:,.0f} MB/s; {size / len(trajectories) / 1e3:,.0f} kB a line"
    yield at_least(f"written, {name}", spread(speeds["write"]), WRITE, form=".0f", unit=" MB/s", more=more)
    middles = {what: f"{spread(speeds[what]).middle:,.0f} MB/s" for what in ("steps", "loads")}
    more = f"with all steps {middles['steps']}; json.loads {middles['loads']}"
    yield at_least(f"read, {name}", spread(speeds["read"]), READ, form=".0f", unit=" MB/s", more=more)


def _compressed(name: str, trajectories: Sequence[rt.Trajectory], path: Path, effort: Effort) -> Iterator[Row]:
    plain = path.with_suffix("")
    _write(trajectories, path)
    size = plain.stat().st_size
    actions = {"written": lambda: _write(trajectories, path), "read": lambda: _read(path)}
    more = f"{path.stat().st_size / size:.0%} of the plain size"
    for verb, speed in _speeds(actions, size, effort).items():
        yield at_least(f"{verb}, {name}, {path.suffix}", spread(speed), None, form=".0f", unit=" MB/s", more=more)


def _speeds(actions: dict[str, Callable[[], None]], size: int, effort: Effort) -> dict[str, list[float]]:
    found = blocks(actions, rounds=effort.repeat(12), clock=time.thread_time)
    return {name: [size / each / 1e6 for each in seconds] for name, seconds in found.items()}


def _write(trajectories: Sequence[rt.Trajectory], path: Path) -> None:
    if path.is_file():
        path.unlink()
    with rt.JSONLWriter(path) as writer:
        for trajectory in trajectories:
            writer.write(trajectory)


def _read(path: Path) -> None:
    for _ in rt.read(path):
        pass


def _read_steps(path: Path) -> None:
    for trajectory in rt.read(path):
        assert trajectory.steps


def _loads(path: Path) -> None:
    with path.open("rb") as lines:
        for line in lines:
            json.loads(line)
