"""How far a run of ``collect`` is, computed while it runs, and what those who show it have in common."""

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
    exact_turns: float | None = None
    """Share of the steps with exact turns that were sent as ids, from 0 to 1; None where none was to be sent so."""
    taken: int = 0
    """Of ``rt.rollouts``: groups that were handed over."""
    ready: int = 0
    """Of ``rt.rollouts``: complete groups that wait to be taken."""
    stale: int = 0
    """Of ``rt.rollouts``: rollouts that were older than ``max_lag`` allows when they could have been handed over."""
    dropped: int = 0
    """Of ``rt.rollouts``: groups that were given up, since rollouts of theirs were too old again and again."""
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
    """Computes the progress from what is counted. Made when the earlier rollouts are in the tally.

    Args:
        tally: what has ended.
        concurrency: rollouts at the same time.
        output: of the run.
        run_id: of the run.
        stream: whose groups are handed over; None: there is none.
        clock: seconds, of any origin.
    """

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
        self._rate = Rate(self._began, tally.ended, tally.output_tokens, least=2 * concurrency)
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
        """How far the run is now, with so many rollouts running."""
        tally, stream, now = self._tally, self._stream, self._clock()
        self._rate.add(now, tally.ended, tally.output_tokens)
        return Progress(
            run_id=self._run_id,
            output=self._output,
            state=self.state,
            planned=tally.planned,
            earlier=tally.earlier,
            ended=tally.ended,
            running=running,
            by_status=dict(tally.by_status),
            failures=_most(tally.errors),
            retried=tally.retried,
            left_behind=tally.left_behind,
            reward_failures=tally.reward_failures,
            calls=tally.calls,
            input_tokens=tally.input_tokens,
            output_tokens=tally.output_tokens,
            tokens_per_second=self._rate.tokens(),
            mean_reward=tally.mean_reward,
            n_scored=tally.n_scored,
            exact_turns=tally.exact_turns / tally.turns if tally.turns else None,
            taken=0 if stream is None else stream.taken,
            ready=0 if stream is None else stream.ready,
            stale=0 if stream is None else stream.stale,
            dropped=0 if stream is None else stream.dropped,
            cost=tally.cost,
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
    """Rollouts and tokens a second over the last 30 seconds, or longer where little ended in them.

    Args:
        at: the time now, in seconds.
        ended: rollouts that have ended, before the first is begun.
        tokens: their tokens.
        least: rollouts that a window has at the least. Rollouts that begin together end together: a window that holds
            less than two such waves is too short.
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
