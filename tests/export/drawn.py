"""Any trajectories, drawn once for the tests of all exporters."""

from __future__ import annotations

import functools

from hypothesis import given, settings
from hypothesis import strategies as st

import rollout_trace as rt
from tests.amount import examples
from tests.strategies import trajectories


@functools.lru_cache
def drawn() -> list[list[rt.Trajectory]]:
    """The same for each exporter: making them takes a hundred times as long as exporting them."""
    found: list[list[rt.Trajectory]] = []

    @settings(max_examples=examples(120))
    @given(runs=st.lists(trajectories(), max_size=3))
    def draw(runs: list[rt.Trajectory]) -> None:
        for run in runs:
            for step in run.steps:
                # It fits no completion by chance, and is then refused: tests/test_sequence_options.py.
                step.advantage = None
        found.append(runs)

    draw()
    return found
