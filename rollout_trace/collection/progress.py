"""Progress of a run of ``collect``, computed while it runs, and what its displays have in common."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from rollout_trace import guard
from rollout_trace._field_docs import document_fields

if TYPE_CHECKING:
    from rollout_trace.collection.job import Outcome
    from rollout_trace.collection.stream import Stream
    from rollout_trace.collection.summary import CollectSummary
    from rollout_trace.collection.tally import Tally
    from rollout_trace.data.model import Cost

State: TypeAlias = Literal["running", "stopping", "ended"]
"""``stopping``: no further rollouts are begun."""
KINDS = 20
"""Most kinds of failures that are counted apart; the rest is counted as ``other``."""
WINDOW = 30.0
"""Seconds that are looked back at least."""
_SAMPLES = 240
"""Samples that a window has, about."""


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a run of ``rt.collect`` or ``rt.rollouts``."""

    run_id: str
    """Id of this run of ``collect``."""
    output: str
    """Path or address of the output."""
    state: State = "running"
    """``running``, ``stopping`` (no new rollouts start) or ``ended``."""
    planned: int
    """Number of planned rollouts, including those already in the output."""
    earlier: int = 0
    """Number of rollouts that were in the output before this run and are not made again."""
    ended: int = 0
    """Number of rollouts that have ended in this run; one that is retried has not ended."""
    running: int = 0
    """Number of rollouts running now."""
    by_status: Mapping[str, int] = field(default_factory=dict)
    """Number of this run's rollouts by status: ``completed``, ``failed``, ``timeout``, ``aborted``."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Number of this run's failed rollouts by exception class; ``RolloutTimeout`` for those that took too long."""
    retried: int = 0
    """Number of attempts that were retried."""
    left_behind: int = 0
    """Number of agents that could not be stopped and are still running in their threads."""
    reward_failures: int = 0
    """Number of rollouts for which a reward function failed."""
    calls: int = 0
    """Number of model calls in the rollouts written so far."""
    input_tokens: int = 0
    """Sum of the known values."""
    output_tokens: int = 0
    """Sum of the known values."""
    tokens_per_second: float | None = None
    """Output tokens per second of finished rollouts, over about the last 30 seconds; None while none are known."""
    mean_reward: float | None = None
    """Mean of all known rewards, including earlier rollouts."""
    n_scored: int = 0
    """Number of rollouts with a reward, including earlier ones."""
    exact_turns: float | None = None
    """Share of steps sent as ids, from 0 to 1, among those that exact turns apply to; None if there are none."""
    taken: int = 0
    """For ``rt.rollouts``: number of groups handed over."""
    ready: int = 0
    """For ``rt.rollouts``: number of complete groups waiting to be taken."""
    stale: int = 0
    """For ``rt.rollouts``: number of rollouts that were older than ``max_lag`` allows when they were due."""
    dropped: int = 0
    """For ``rt.rollouts``: number of groups given up because their rollouts were repeatedly too old."""
    cost: Cost | None = None
    """Sum of the known values."""
    elapsed: float = 0.0
    """Seconds since the run began."""
    eta: float | None = None
    """Estimated seconds until the end, at the recent speed; None until a rollout has ended."""
    latest_failure: str | None = None
    """The most recent failed rollout and its exception, on one line."""

    @property
    def done(self) -> int:
        """Number of finished rollouts: earlier ones, and those that ended in this run."""
        return self.earlier + self.ended


class Reporter:
    """Shows the progress of one run; this one shows nothing. All methods are called in one thread."""

    def begin(self, progress: Progress) -> None:
        """The run begins."""

    def update(self, progress: Progress) -> None:
        """Something may have changed; called after each attempt, and about 4 times a second."""

    def end(self, progress: Progress, summary: CollectSummary) -> None:
        """The run has ended."""

    def note(self, text: str) -> None:
        """One line for a person."""


class Monitor:
    """Computes the progress from what is counted. Made when the earlier rollouts are in the tally."""

    def __init__(
        self,
        tally: Tally,
        *,
        concurrency: int,
        output: str,
        run_id: str,
        stream: Stream | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state: State = "running"
        """Set by the runner."""
        self._tally = tally
        self._stream = stream
        self._output = output
        self._run_id = run_id
        self._clock = clock
        self._began = clock()
        self._rate = Rate(self._began, tally.ended, tally.usage.output_tokens, least=2 * concurrency)
        self._latest_failure: str | None = None

    def add(self, outcome: Outcome) -> None:
        """Keeps the latest failure. To be called for each attempt that ended."""
        if outcome.will_retry or outcome.status == "completed":
            return
        error = outcome.error
        text = "" if error is None else f": {error.type}: {error.message}"
        # Text of the task and of the exception: it goes to a terminal.
        self._latest_failure = guard.printable(f"{outcome.key.task}[{outcome.key.index}] {outcome.status}{text}", 300)

    def progress(self, running: int) -> Progress:
        """Returns the run's progress, with this many rollouts running."""
        tally, stream, now = self._tally, self._stream, self._clock()
        self._rate.add(now, tally.ended, tally.usage.output_tokens)
        return Progress(
            run_id=self._run_id,
            output=self._output,
            state=self.state,
            running=running,
            by_status=dict(tally.by_status),
            failures=_most(tally.errors),
            tokens_per_second=self._rate.tokens(),
            exact_turns=tally.exact_turns / tally.turns if tally.turns else None,
            planned=tally.planned,
            earlier=tally.earlier,
            ended=tally.ended,
            retried=tally.retried,
            left_behind=tally.left_behind,
            reward_failures=tally.reward_failures,
            mean_reward=tally.mean_reward,
            n_scored=tally.n_scored,
            calls=tally.usage.calls,
            input_tokens=tally.usage.input_tokens,
            output_tokens=tally.usage.output_tokens,
            cost=tally.usage.cost,
            taken=0 if stream is None else stream.taken,
            ready=0 if stream is None else stream.ready,
            stale=0 if stream is None else stream.stale,
            dropped=0 if stream is None else stream.dropped,
            elapsed=now - self._began,
            eta=self._eta(),
            latest_failure=self._latest_failure,
        )

    def _eta(self) -> float | None:
        left = self._tally.planned - self._tally.earlier - self._tally.ended
        if left <= 0 or self.state == "ended":
            return 0.0 if left <= 0 else None
        is_endless = self._stream is not None and self._stream.size is None
        rate = self._rate.rollouts() if self.state == "running" and not is_endless else None
        return None if rate is None else left / rate


def _most(errors: Counter[str]) -> dict[str, int]:
    """The most frequent kinds; the sum is kept."""
    found = dict(errors.most_common(KINDS))
    if len(errors) > KINDS:
        found["other"] = found.get("other", 0) + sum(errors.values()) - sum(found.values())
    return found


class _Sample(NamedTuple):
    at: float
    ended: int
    tokens: int


class Rate:
    """Rollouts and tokens a second over the last 30 seconds, or longer where fewer than ``least`` ended in them.

    Rollouts that begin together end together: a window that holds less than two such waves is too short.
    """

    def __init__(self, at: float, ended: int, tokens: int, *, least: int) -> None:
        self._samples = deque([_Sample(at, ended, tokens)])
        self._last = self._samples[0]
        self._least = least

    def add(self, at: float, ended: int, tokens: int) -> None:
        """What has ended by now."""
        self._last = _Sample(at, ended, tokens)
        samples = self._samples
        while len(samples) > 1 and self._is_enough(samples[1]):
            samples.popleft()
        before = samples[-1]
        if (ended, tokens) == before[1:]:
            # Of what ends together in waves, the time at which a wave ended counts.
            return
        # Farther apart in a long window: the number of samples stays within bounds.
        if at - before.at >= (at - samples[0].at) / _SAMPLES:
            samples.append(self._last)

    def _is_enough(self, sample: _Sample) -> bool:
        return self._last.at - sample.at >= WINDOW and self._last.ended - sample.ended >= self._least

    def rollouts(self) -> float | None:
        """Rollouts that end in a second; None while none has."""
        return self._per_second(self._last.ended - self._samples[0].ended)

    def tokens(self) -> float | None:
        """Tokens a second; None while none is known."""
        return self._per_second(self._last.tokens - self._samples[0].tokens)

    def _per_second(self, number: int) -> float | None:
        seconds = self._last.at - self._samples[0].at
        return number / seconds if number > 0 and seconds > 0 else None
