"""``Rollout``: what an agent that asks for it is told about the run that it makes."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

from rollout_trace._field_docs import document_fields
from rollout_trace.collection.log_lines import safe_name


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One attempt of an agent at one task, for ``agent(task, rollout)``."""

    task_id: str
    """Id of the task."""
    group: str
    """Id shared by the samples of the task."""
    index: int
    """Position among the samples of the task, from 0."""
    seed: int | None = None
    """``seed + index`` of ``rt.collect(seed=...)``; None without one."""
    attempt: int = 1
    """From 1; above it, the attempts before failed."""
    name: str = "agent"
    """Of the trajectory."""
    log: logging.Logger = field(repr=False)
    """A logger of its own: with ``logs=True`` it writes to the rollout's file."""
    artifacts: str = field(default="", repr=False)
    """Folder that the rollouts of this run share."""

    @property
    def folder(self) -> Path:
        """A folder for files of this attempt, made on first use."""
        place = Path(self.artifacts, safe_name(self.task_id), f"{self.index}-{self.attempt}")
        place.mkdir(parents=True, exist_ok=True)
        return place
