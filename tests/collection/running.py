"""A run of which a test says what ends, and a clock that it sets."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from rollout_trace.collection.items import Key
from rollout_trace.collection.job import Outcome
from rollout_trace.collection.progress import Monitor, Progress
from rollout_trace.collection.tally import Tally
from rollout_trace.data.model import Cost, ErrorInfo

if TYPE_CHECKING:
    from rollout_trace.collection.summary import CollectSummary


class Summary:
    """What reporters use of a summary: its lines."""

    def render(self, width: int) -> str:
        """The lines."""
        return "the summary\nin two lines \x1b[2J"


SUMMARY = cast("CollectSummary", Summary())


class Run:
    """A run whose rollouts end when the test says so.

    Args:
        planned: rollouts.
        concurrency: rollouts at the same time.
        earlier: rollouts that were in the output before.
        retried: attempts that another one followed.
        left_behind: agents that could not be stopped.
        reward: of each rollout that completes.
        cost: of the calls that were made before.
    """

    def __init__(
        self,
        *,
        planned: int = 100,
        concurrency: int = 1,
        earlier: int = 0,
        retried: int = 0,
        left_behind: int = 0,
        reward: float | None = None,
        cost: Cost | None = None,
    ) -> None:
        self.now = 1000.0
        self.reward = reward
        self.tally = Tally(planned)
        self.tally.earlier, self.tally.retried, self.tally.left_behind = earlier, retried, left_behind
        if cost is not None:
            self.tally.usage.amounts[cost.currency, cost.source] = cost.amount
        self.monitor = Monitor(
            self.tally, concurrency=concurrency, output="runs/x.jsonl", run_id="r1", clock=lambda: self.now
        )

    def end(self, number: int = 1, *, tokens: int = 0, seconds: float = 0.0, error: str | None = None) -> None:
        """Some seconds later, so many rollouts end at once."""
        self.now += seconds
        self.tally.usage.output_tokens += tokens
        ended = replace(COMPLETED, reward=self.reward) if error is None else outcome("failed", error)
        for _ in range(number):
            self.tally.add(ended)
        if error is not None:
            self.monitor.add(ended)

    def progress(self, running: int = 0) -> Progress:
        """How far it is."""
        return self.monitor.progress(running)


def outcome(status: str, error: str, message: str = "no", task: str = "t", *, will_retry: bool = False) -> Outcome:
    """Of a rollout that failed."""
    info = ErrorInfo(type=error, message=message)
    return replace(COMPLETED, key=Key("agent", task, 2), status=status, error=info, will_retry=will_retry)


COMPLETED = Outcome(key=Key("agent", "t", 2), attempt=1, trajectory_id="T", status="completed")
"""Of a rollout that went well."""
