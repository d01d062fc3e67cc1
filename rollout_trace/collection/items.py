"""Tasks, what identifies a rollout, and which failures are tried again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

TIMEOUT = "RolloutTimeout"
"""Name of the exception of a rollout that took too long."""


class Key(NamedTuple):
    """Identifies a rollout in an output, however many attempts it has."""

    agent: str
    task: str
    index: int  # type: ignore[assignment]  # In the place of `tuple.index`, which nobody needs here.
    """Position among the samples of the task, from 0."""


@dataclass(frozen=True, slots=True)
class TaskItem:
    """One task of a run."""

    id: str
    value: Any
    """The argument of the agent: the task as the user gave it."""
    digest: str
    """Hash of its content: 12 hexadecimal digits of a SHA-256."""
    round: int = 1
    """How often the task has come in a stream that may repeat tasks, including this time."""
    samples: int | None = None
    """Number of its rollouts, if the caller waits for this task's group; None: as many as for other tasks."""

    @property
    def group(self) -> str:
        """Id of its group, without the agent's name in front."""
        return self.id if self.round == 1 else f"{self.id}#{self.round}"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Rules for retrying failed rollouts."""

    retries: int = 0
    """Most further attempts."""
    kinds: frozenset[str] | None = None
    """Names of the exception classes that are tried again, their subclasses included; None: all but timeouts."""
    first_wait: float = 1.0
    """Seconds before the second attempt; twice as many before each further one."""
    longest_wait: float = 60.0

    def applies(self, kinds: tuple[str, ...], failures: int) -> bool:
        """Returns whether another attempt follows after this many failures in this run."""
        if failures > self.retries or not kinds:
            return False
        return kinds[0] != TIMEOUT if self.kinds is None else not self.kinds.isdisjoint(kinds)

    def wait(self, failures: int) -> float:
        """Returns the seconds to wait after this many failed attempts."""
        return min(self.longest_wait, self.first_wait * 2.0 ** min(failures - 1, 30))
