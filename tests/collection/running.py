"""A tally that a test fills by hand, and a clock that it sets."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from rollout_trace.collection.items import Key
from rollout_trace.collection.job import Outcome
from rollout_trace.collection.progress import Monitor, Progress
from rollout_trace.data.model import Cost, ErrorInfo

if TYPE_CHECKING:
    from rollout_trace.collection.summary import CollectSummary


class Summary:
    """What reporters use of a summary: its lines."""

    def render(self, width: int) -> str:
        """The lines."""
        return "the summary\nin two lines \x1b[2J"


SUMMARY = cast("CollectSummary", Summary())


@dataclass
class Counts:
    """The figures of a ``Tally`` that a progress is made from."""

    planned: int = 100
    earlier: int = 0
    ended: int = 0
    by_status: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    retried: int = 0
    left_behind: int = 0
    reward_failures: int = 0
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    turns: int = 0
    exact_turns: int = 0
    mean_reward: float | None = None
    n_scored: int = 0
    cost: Cost | None = None


class Run:
    """A run whose rollouts end when the test says so."""

    def __init__(self, *, concurrency: int = 1, **counts: Any) -> None:
        self.now = 1000.0
        self.counts = Counts(**counts)
        self.monitor = Monitor(
            cast(Any, self.counts), concurrency=concurrency, output="runs/x.jsonl", run_id="r1", clock=lambda: self.now
        )

    def end(self, number: int = 1, *, tokens: int = 0, seconds: float = 0.0, error: str | None = None) -> None:
        """Some seconds later, so many rollouts end at once."""
        self.now += seconds
        self.counts.ended += number
        self.counts.output_tokens += tokens
        self.counts.by_status["completed" if error is None else "failed"] += number
        if error is not None:
            self.counts.errors[error] += number
            self.monitor.add(outcome("failed", error))

    def progress(self, running: int = 0) -> Progress:
        """How far it is."""
        return self.monitor.progress(running)


def outcome(status: str, error: str, message: str = "no", task: str = "t", *, will_retry: bool = False) -> Outcome:
    """Of a rollout that failed."""
    info = ErrorInfo(type=error, message=message)
    key = Key("agent", task, 2)
    return Outcome(key=key, attempt=1, trajectory_id="T", status=status, error=info, will_retry=will_retry)
