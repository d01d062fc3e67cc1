"""Hashes of what a run of ``collect`` is made of: its agent, its tasks and its settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollout_trace.collection.agents import Agent
    from rollout_trace.collection.items import TaskItem

MOST_TASKS = 20_000
"""With more tasks their digests are not kept one by one: a header would have megabytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hashes:
    """SHA-256, 16 hexadecimal digits each.

    The agent's hash is that of the file that its function or class is defined in, with its qualified name and the
    arguments of a ``functools.partial``. Any change of that file changes it, a comment's too; a change of what the file
    imports does not: the run's git commit has that. An agent without a file (a notebook, a built-in function) has none.
    """

    agent: str | None
    agent_name: str
    """Module and qualified name."""
    tasks: str
    digests: Mapping[str, str] | None
    """Of the content of each task, by its id; None for more than 20,000 tasks."""
    n_tasks: int
    settings_hash: str
    settings: Mapping[str, Any]
    """As JSON."""

    def short(self) -> dict[str, Any]:
        """The hashes alone."""
        return {"agent": self.agent, "tasks": self.tasks, "settings": self.settings_hash}

    def as_json(self) -> dict[str, Any]:
        """What a header has."""
        return {
            **self.short(),
            "agent_name": self.agent_name,
            "n_tasks": self.n_tasks,
            "task_digests": None if self.digests is None else dict(self.digests),
            "values": dict(self.settings),
        }


def hashes_of(agent: Agent, tasks: Sequence[TaskItem], settings: Mapping[str, Any]) -> Hashes:
    """The hashes of a run.

    Args:
        agent: its file is read.
        tasks: all of them.
        settings: what JSON can hold.
    """
    where = agent.describe()
    content = _file_hash(where.get("source_file"))
    name = f"{where.get('module') or ''}:{where.get('qualified_name') or agent.name}"
    values = json.loads(json.dumps(dict(settings), default=str))
    digests = {task.id: task.digest for task in tasks}
    return Hashes(
        agent=None if content is None else _hash([content, where.get("qualified_name"), where.get("arguments_digest")]),
        agent_name=name,
        # Sorted: the order of the tasks changes no rollout.
        tasks=_hash(sorted(digests.items())),
        digests=digests if len(digests) <= MOST_TASKS else None,
        n_tasks=len(digests),
        settings_hash=_hash(values),
        settings=values,
    )


def _file_hash(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:  # A package in an archive, a file that is gone.
        return None


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
