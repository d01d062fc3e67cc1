"""Tasks, and what identifies a rollout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class Key(NamedTuple):
    """What identifies a rollout in an output, however often it was tried."""

    agent: str
    """The trajectory's name."""
    task: str
    """Id of the task."""
    index: int  # type: ignore[assignment]  # In the place of `tuple.index`, which nobody needs here.
    """Position among the samples of the task, from 0."""


@dataclass(frozen=True, slots=True)
class TaskItem:
    """One task of a run."""

    id: str
    value: Any
    """What the agent is called with: the task as the user gave it."""
    digest: str
    """Of its content: 12 hexadecimal digits of a SHA-256."""
