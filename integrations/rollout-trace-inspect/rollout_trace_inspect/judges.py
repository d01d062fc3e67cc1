"""Scorers that an agent has called while it runs, as ``react(attempts=2)`` does.

Inspect's ``score()`` opens no span for them, so without a frame the calls of a judge would be the agent's own steps.
"""

from __future__ import annotations

import functools

from inspect_ai.scorer import Score, Scorer, Target
from inspect_ai.scorer._score import _scorers
from inspect_ai.scorer._scorer import unique_scorer_name
from inspect_ai.solver import TaskState

from rollout_trace.integration import active, guarded
from rollout_trace_inspect.events import ScorerFrame


@guarded
def mark_judges() -> None:
    """Gives the scorers that ``score()`` finds in this context a frame each time that they run."""
    found: list[Scorer] | None = _scorers.get(None)
    if not found:
        return
    names: list[str] = []
    for scorer in found:
        names.append(unique_scorer_name(scorer, names))
    # A list of its own: the samples of a task share the one that was found.
    _scorers.set([_in_a_frame(scorer, name) for scorer, name in zip(found, names, strict=True)])


def _in_a_frame(scorer: Scorer, name: str) -> Scorer:
    # With the attributes by which Inspect finds the scorer's name and arguments.
    @functools.wraps(scorer)
    async def score(state: TaskState, target: Target) -> Score | None:
        with ScorerFrame(name, active()):
            return await scorer(state, target)

    return score
