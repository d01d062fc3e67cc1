"""Rewards from Inspect's scores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from inspect_ai.scorer import CORRECT, INCORRECT, NOANSWER, PARTIAL, Score

from rollout_trace.integration import snapshot

_WORDS = {CORRECT: 1.0, INCORRECT: 0.0, PARTIAL: 0.5, NOANSWER: 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
"""Numbers of texts, as Inspect's ``value_to_float()`` gives them; it gives 0 for any other, which is no score."""


def number(value: object) -> float | None:
    """The number of a score's value; None if it is none, or not finite."""
    if isinstance(value, str):
        known = _WORDS.get(value, _WORDS.get(value.lower()))
        if known is not None:
            return known
    elif not isinstance(value, (bool, int, float)):
        return None
    try:
        converted = float(value)
    except ValueError:
        return None
    return converted if math.isfinite(converted) else None


def rewards(scores: Mapping[str, Score], first: str | None) -> tuple[float | None, dict[str, float], dict[str, Any]]:
    """Rewards from the scores of a sample.

    Args:
        scores: by scorer.
        first: the task's first scorer, which may have given none; None: the first that is in ``scores``.

    Returns:
        The reward, which is that of the first scorer, if its score is one number; all numbers by scorer, those of a
        score with several values by ``scorer/key`` or ``scorer/index``; and the values that are no numbers, likewise.
    """
    numbers: dict[str, float] = {}
    others: dict[str, Any] = {}
    for name, score in scores.items():
        for key, value in _values(name, score.value):
            found = number(value)
            if found is not None:
                numbers[key] = found
            else:
                others[key] = snapshot(value)
    if first is None:
        first = next(iter(scores), None)
    return (None if first is None else numbers.get(first)), numbers, others


def _values(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield f"{name}/{key}", item
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for index, item in enumerate(value):
            yield f"{name}/{index}", item
    else:
        yield name, value
