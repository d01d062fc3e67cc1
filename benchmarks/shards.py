"""Reading a folder of shards with two processes beside one, and what a shard costs beside a file."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import rollout_trace as rt
from benchmarks.report import Effort, Row, at_least, ratios, spread
from benchmarks.trajectories import long_agent, single_turns
from rollout_trace.file.encode import encode
from rollout_trace.file.shards import Settings, ShardWriter

SHARDS = 100
READ = 1.7
"""Times as fast with two processes."""


def run(effort: Effort) -> Iterator[Row]:
    """Rows of this section."""
    # So much that other processes are started.
    size = effort.size(1_000_000_000, 200_000_000)
    workloads = {"single turns": single_turns(50), "20 turns": [long_agent(20, seed) for seed in range(10)]}
    for name, trajectories in workloads.items():
        with tempfile.TemporaryDirectory() as folder:
            written = _write(trajectories, Path(folder), size)
            yield _row(f"{written / 1e9:.1f} GB of JSON in {SHARDS} shards, {name}", Path(folder), written, effort)


def _write(trajectories: Sequence[rt.Trajectory], folder: Path, size: int) -> int:
    """Writes shards of equal length; returns bytes of JSON."""
    of_all = sum(len(encode(one)) for one in trajectories)
    lines = max(1, round(size / SHARDS / of_all * len(trajectories)))
    for _ in range(SHARDS):
        # A shard each: its process goes on with the next number where files are there.
        with ShardWriter(folder, Settings(), {}) as writer:
            for number in range(lines):
                writer.write(trajectories[number % len(trajectories)])
    return SHARDS * lines * of_all // len(trajectories)


def _row(what: str, folder: Path, size: int, effort: Effort) -> Row:
    seconds: dict[int, list[float]] = {1: [], 2: []}
    processor: dict[int, list[float]] = {1: [], 2: []}
    # Once, so that both find the files in the page cache.
    _read(folder, 1)
    for _ in range(effort.repeat(5)):
        for workers in seconds:
            wall, cpu = _read(folder, workers)
            seconds[workers].append(wall)
            processor[workers].append(cpu)
    speeds = {workers: spread(size / one / 1e6 for one in found) for workers, found in seconds.items()}
    more = (
        f"{speeds[1].middle:,.0f} and {speeds[2].middle:,.0f} MB/s; CPU of all processes "
        f"{ratios(processor[2], processor[1]).show('.2f')} of one's, so that two idle cores give "
        f"{2 / ratios(processor[2], processor[1]).middle:.2f}"
    )
    return at_least(
        f"read with 2 workers, {what}", ratios(seconds[1], seconds[2]), READ, form=".2f", unit="×", more=more
    )


def _read(folder: Path, workers: int) -> tuple[float, float]:
    """Seconds, and seconds of CPU time of this process and of those that read for it."""
    began, before = time.perf_counter(), os.times()
    steps = 0
    for trajectory in rt.read(folder, workers=workers):
        steps += len(trajectory.steps)
    assert steps
    after = os.times()
    return time.perf_counter() - began, sum(after[:4]) - sum(before[:4])
