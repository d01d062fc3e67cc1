"""Building training sequences from recorded trajectories."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import rollout_trace as rt
from benchmarks.report import Effort, Row, at_least, at_most, ratios, spread
from benchmarks.timing import blocks
from benchmarks.trajectories import long_agent, single_turns

SPEED = 20


def run(effort: Effort) -> Iterator[Row]:
    """Rows of this section."""
    yield _speed("sequences of single turns", single_turns(effort.size(200, 100)), effort, repeat=5)
    turns = effort.size(100, 50)
    half, whole = long_agent(turns // 2), long_agent(turns)
    yield _speed(f"sequences of {turns} turns", [whole], effort, repeat=5)
    yield _growth(half, whole, effort)


def _speed(what: str, trajectories: Sequence[rt.Trajectory], effort: Effort, *, repeat: int) -> Row:
    """Tokens of the rows that come out, a second."""
    tokens = sum(len(row.token_ids) for each in trajectories for row in each.sequences())
    seconds = blocks({"": lambda: _build(trajectories, repeat)}, rounds=effort.repeat(15), clock=time.thread_time)[""]
    value = spread(repeat * tokens / each / 1e6 for each in seconds)
    more = f"{tokens:,} tokens in {spread(seconds).middle / repeat * 1e3:.2f} ms"
    return at_least(what, value, SPEED, form=".0f", unit=" M tokens/s", more=more)


def _growth(half: rt.Trajectory, whole: rt.Trajectory, effort: Effort) -> Row:
    """Time for twice the turns; 2 is linear, 4 is quadratic."""
    actions = {"half": lambda: _build([half], 8), "whole": lambda: _build([whole], 8)}
    found = blocks(actions, rounds=effort.repeat(15), clock=time.thread_time)
    value = ratios(found["whole"], found["half"])
    return at_most("sequences, time for twice the turns", value, 2.5, form=".2f", unit="×", more="2 is linear")


def _build(trajectories: Sequence[rt.Trajectory], repeat: int) -> None:
    for _ in range(repeat):
        for trajectory in trajectories:
            trajectory.sequences()
