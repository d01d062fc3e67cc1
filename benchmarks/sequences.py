"""Building training sequences from recorded trajectories."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise

import rollout_trace as rt
from benchmarks.report import Effort, Row, at_least, at_most, ratios, spread
from benchmarks.timing import blocks
from benchmarks.trajectories import long_agent, many_turns, single_turns

SPEED = 100
DECADES = (2, 20, 200, 2_000)
"""Turns of 500 tokens: from a thousand tokens to a million."""


def run(effort: Effort) -> Iterator[Row]:
    """Rows of this section."""
    yield _speed("single turns, recorded", single_turns(effort.size(200, 100)), effort, repeat=5)
    yield _speed("a long agent, recorded", [long_agent(effort.size(200, 50))], effort, repeat=5)
    count = effort.size(1_000, 100)
    yield _speed(
        f"{count:,} trajectories of 50 turns", [many_turns(50, seed) for seed in range(count)], effort, repeat=1
    )
    yield from _growth(effort)


def _speed(what: str, trajectories: Sequence[rt.Trajectory], effort: Effort, *, repeat: int) -> Row:
    """Tokens of the rows that come out, a second."""
    tokens = sum(len(row.token_ids) for each in trajectories for row in each.sequences())
    rows = sum(len(each.sequences()) for each in trajectories)
    seconds = blocks({"": lambda: _build(trajectories, repeat)}, rounds=effort.repeat(15), clock=time.thread_time)[""]
    value = spread(repeat * tokens / each / 1e6 for each in seconds)
    middle = spread(seconds).middle / repeat
    more = f"{tokens:,} tokens in {middle * 1e3:.2f} ms; {rows / middle:,.0f} sequences/s"
    return at_least(what, value, SPEED, form=".0f", unit=" M tokens/s", more=more)


def _growth(effort: Effort) -> Iterator[Row]:
    """Time for ten times the turns; 10 is linear, 100 is quadratic."""
    made = {turns: many_turns(turns, turns) for turns in DECADES}
    # As many tokens in each block: the clock is not fine enough for a thousand.
    actions = {str(turns): partial(_build, [made[turns]], DECADES[-1] // turns) for turns in DECADES}
    found = blocks(actions, rounds=effort.repeat(15), clock=time.thread_time)
    for few, many in pairwise(DECADES):
        value = ratios([10 * each for each in found[str(many)]], found[str(few)])
        more = f"{few * 500:,} and {many * 500:,} tokens; 10 is linear"
        yield at_most(f"time for {many:,} turns, beside {few}", value, 12, form=".1f", unit="×", more=more)


def _build(trajectories: Sequence[rt.Trajectory], repeat: int) -> None:
    for _ in range(repeat):
        for trajectory in trajectories:
            trajectory.sequences()
