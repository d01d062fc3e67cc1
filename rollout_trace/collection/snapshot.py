"""``Progress``: how far a run of ``collect`` is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from rollout_trace._field_docs import document_fields

if TYPE_CHECKING:
    from rollout_trace.data.model import Cost

State: TypeAlias = Literal["running", "stopping", "ended"]
"""``stopping``: no further rollouts are begun."""


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run is."""

    run_id: str
    """Id of this run of ``collect``."""
    output: str
    """Path or address."""
    state: State = "running"
    """``running``, ``stopping`` (no further rollouts are begun) or ``ended``."""
    planned: int
    """Rollouts of the whole plan, those in the output included."""
    earlier: int = 0
    """Rollouts that were in the output before this run, and are not made again."""
    ended: int = 0
    """Rollouts that have ended in this run; one that is tried again has not."""
    running: int = 0
    """Rollouts that run now."""
    by_status: Mapping[str, int] = field(default_factory=dict)
    """Rollouts of this run by status: ``completed``, ``failed``, ``timeout``, ``aborted``."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Rollouts of this run that failed, by the class of the exception; ``RolloutTimeout`` where one took too long."""
    retried: int = 0
    """Attempts that another one followed."""
    left_behind: int = 0
    """Agents that could not be stopped, and run on in their threads."""
    reward_failures: int = 0
    """Rollouts for which a reward function failed."""
    calls: int = 0
    """Calls to models, of rollouts that have been written."""
    input_tokens: int = 0
    """Sum of what is known."""
    output_tokens: int = 0
    """Sum of what is known."""
    tokens_per_second: float | None = None
    """Output tokens of rollouts that ended, over about the last 30 seconds; None while none are known."""
    mean_reward: float | None = None
    """Of all rollouts that have one, earlier ones included."""
    n_scored: int = 0
    """Rollouts that have a reward, earlier ones included."""
    cost: Cost | None = None
    """Sum of what is known."""
    elapsed: float = 0.0
    """Seconds since the run began."""
    eta: float | None = None
    """Seconds until the end, as fast as rollouts ended lately; None while none has."""
    latest_failure: str | None = None
    """The rollout that failed last, with its exception, on one line."""

    @property
    def done(self) -> int:
        """Rollouts that need not be made any more: earlier ones, and those that ended."""
        return self.earlier + self.ended
