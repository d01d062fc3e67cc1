"""The summary of a run of ``collect``, for the caller, for people and for the history."""

from __future__ import annotations

import dataclasses
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollout_trace._field_docs import document_fields
from rollout_trace.data.episodes import NOT_SUCCEEDED
from rollout_trace.guard import printable

if TYPE_CHECKING:
    from rollout_trace.collection.facts import CallTotals
    from rollout_trace.data.model import Cost

_LABEL = 13
"""Columns of the names, with the space behind them."""
_SHOWN = 5
"""Most reasons, errors and named rewards that are shown."""
_NARROWEST = 30


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Percentiles in seconds, with linear interpolation between values; above 50,000 values, accurate to 0.5 %."""

    count: int
    """Number of values."""
    p50: float
    """The median."""
    p90: float
    """90 % of the values are at most this."""
    p99: float
    """99 % of the values are at most this."""


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class PassRate:
    """A probability of passing, averaged over tasks."""

    value: float
    """From 0 to 1."""
    tasks: int
    """Number of tasks averaged: those with at least k scored runs."""


@document_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class CollectSummary:
    """Summary of a run of ``rt.collect``. ``str(summary)`` is the text printed at the end of the run.

    Rollouts, statuses and rewards cover the whole plan, including rollouts that were in the output before. Calls,
    tokens, costs, times, ids and drift cover this run only, including failed and repeated attempts. Missing values are
    None.
    """

    run_id: str
    """Id of this run of ``collect``."""
    output: str
    """Path or address of the output."""
    planned: int
    """Number of planned rollouts."""
    made: int
    """Number of rollouts made by this run, whatever their status."""
    earlier: int
    """Number of rollouts that were in the output before and were not made again."""
    by_status: dict[str, int]
    """Number of rollouts by status: ``completed``, ``failed``, ``timeout``, ``aborted``, the most frequent first."""
    errors: dict[str, int]
    """Number of this run's rollouts that ended with an exception, by its class."""
    attempts: int
    """Number of attempts in this run."""
    unwritten: int
    """Number of attempts that are not in the output; the log has the reason."""
    retried: int
    """Number of attempts that were retried."""
    left_behind: int
    """Number of attempts whose agent could not be stopped and kept running in its thread."""
    interrupted: bool
    """Whether Ctrl-C or a cancellation ended the run."""
    stopped: str | None
    """Why the run ended before all rollouts were made; None if it was not stopped."""
    n_tasks: int
    """Number of tasks with a rollout."""
    n_scored: int
    """Number of rollouts with a reward."""
    mean_reward: float | None
    """Mean reward of the scored rollouts."""
    std_reward: float | None
    """Sample standard deviation of the rewards (divided by n - 1)."""
    stderr_reward: float | None
    """Standard error of the mean, clustered by task; None with fewer than two tasks."""
    rewards: dict[str, float]
    """Mean of each named reward, over the rollouts that have it."""
    unscored: dict[str, int]
    """Number of rollouts without a reward, by reason."""
    reward_failures: int
    """Number of this run's rollouts for which a reward function failed."""
    threshold: float | None
    """A run passes with at least this reward: 1 if all rewards are 0 or 1. None: pass@k is not computed."""
    pass_at_k: dict[int, PassRate]
    """For k = 1, 2, 4, ...: the probability that at least one of k runs of a task passes."""
    pass_hat_k: dict[int, PassRate]
    """pass^k: the probability that all k runs of a task pass."""
    usage: CallTotals
    """Calls of the agents, with tokens and costs."""
    reward_usage: CallTotals
    """Calls of the reward functions, with tokens and costs."""
    latency: Percentiles | None
    """Seconds to the end of the answer, over the agents' answered calls."""
    time_to_first_token: Percentiles | None
    """Seconds to the first bytes, over the streamed ones among these calls."""
    steps: int
    """Number of the agents' steps."""
    steps_with_ids: int
    """Number of steps with token ids of the completion."""
    without_ids: dict[str, int]
    """Number of steps without them, by reason."""
    drift: int
    """Number of places where a prompt repeats an earlier completion in text, but not in ids: see ``rt.drift()``."""
    drifted: int
    """Number of attempts with such a place."""
    seconds: float
    """Duration of the run in seconds."""

    @property
    def not_made(self) -> int:
        """Number of planned rollouts that are still to be made."""
        return max(0, self.planned - self.made - self.earlier)

    @property
    def succeeded(self) -> int:
        """Number of rollouts that completed, whatever their reward."""
        return sum(count for status, count in self.by_status.items() if status not in NOT_SUCCEEDED)

    @property
    def ok(self) -> bool:
        """Whether all planned rollouts succeeded and are in the output, and no reward function failed."""
        return self.succeeded >= self.planned and not (self.unwritten or self.reward_failures)

    @property
    def exit_code(self) -> int:
        """Exit code of the command: 0, or 1 if no rollout succeeded."""
        return 0 if self.succeeded else 1

    @property
    def input_tokens(self) -> int | None:
        """Sum of the known prompt counts of the agents' calls; None if no call has one. See ``usage.input_unknown``."""
        return self.usage.known_input

    @property
    def output_tokens(self) -> int | None:
        """Sum of the known counts of sampled tokens, as for ``input_tokens``."""
        return self.usage.known_output

    @property
    def cost(self) -> Cost | None:
        """Sum of the known costs of the agents' calls; ``usage.cost_unknown`` calls have no known cost.

        None if no call has one, or if currencies differ; ``usage.amounts`` has the cost by currency.
        """
        return self.usage.cost

    @property
    def rollouts_per_second(self) -> float | None:
        """Number of rollouts made by this run, divided by its duration."""
        return self.made / self.seconds if self.made and self.seconds > 0 else None

    def as_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values, for ``history.jsonl`` and other programs."""
        found = {item.name: _json(getattr(self, item.name)) for item in dataclasses.fields(self)}
        return {**found, "not_made": self.not_made, "succeeded": self.succeeded, "exit_code": self.exit_code}

    def render(self, width: int) -> str:
        """Returns the summary as lines of at most ``width`` characters."""
        width = max(width, _NARROWEST)
        return "\n".join(line for name, text in _rows(self) for line in _wrapped(name, text, width))

    def __str__(self) -> str:
        return self.render(shutil.get_terminal_size((100, 24)).columns)


def _rows(summary: CollectSummary) -> Iterator[tuple[str, str]]:
    yield "output", printable(summary.output, 500)
    yield "run", printable(summary.run_id)
    yield "rollouts", _rollouts(summary)
    if summary.by_status:
        yield "status", _counts(summary.by_status)
    if summary.errors:
        yield "errors", _counts(summary.errors)
    special = {"retried": summary.retried, "left running": summary.left_behind, "not in the output": summary.unwritten}
    if any(special.values()):
        attempts = {"made": summary.attempts, **special}
        yield "attempts", _joined(f"{count:,} {what}" for what, count in attempts.items() if count)
    if summary.stopped is not None:
        yield "stopped", printable(summary.stopped, 500)
    if summary.interrupted:
        yield "interrupted", "run it again to continue"
    yield from _rewards(summary)
    yield from _usage(summary)
    yield from _quality(summary)
    rate = summary.rollouts_per_second
    yield "time", _joined([_duration(summary.seconds), "" if rate is None else f"{rate:,.3g} rollouts/s"])


def _rollouts(summary: CollectSummary) -> str:
    parts = [f"{summary.planned:,} planned", f"{summary.made:,} made"]
    if summary.earlier:
        parts.append(f"{summary.earlier:,} in the output before")
    if summary.not_made:
        parts.append(f"{summary.not_made:,} not made")
    return _joined(parts)


def _rewards(summary: CollectSummary) -> Iterator[tuple[str, str]]:
    if summary.mean_reward is not None:
        spread = "" if summary.std_reward is None else f"sd {summary.std_reward:.4g}"
        error = "" if summary.stderr_reward is None else f"se {summary.stderr_reward:.3g} by task"
        parts = [f"mean {summary.mean_reward:.4g}", spread, error, f"{summary.n_scored:,} scored"]
        yield "reward", _joined(parts)
    if summary.rewards:
        shown = list(summary.rewards.items())[:_SHOWN]
        more = len(summary.rewards) - len(shown)
        means = [f"{printable(name, 60)} {mean:.4g}" for name, mean in shown]
        yield "rewards", _joined([*means, f"{more} more" if more else ""])
    # Where nothing is scored, a run without a reward function has no more to say.
    if summary.unscored and (summary.n_scored or summary.reward_failures):
        yield "unscored", _counts(summary.unscored)
    if summary.threshold is not None:
        for name, rates in (("pass@k", summary.pass_at_k), ("pass^k", summary.pass_hat_k)):
            if rates:
                yield name, _rates(rates, summary.n_tasks)
        if summary.pass_at_k:
            of = "" if summary.threshold == 1 else f"with a reward of {summary.threshold:g} or more; "
            yield "", f"({of}over the scored runs of each task)"


def _usage(summary: CollectSummary) -> Iterator[tuple[str, str]]:
    usage = summary.usage
    if summary.made or summary.attempts:
        of = " in this run" if summary.earlier else ""
        yield "calls", _joined([f"{usage.calls:,}{of}", f"{usage.failed:,} failed" if usage.failed else ""])
    if usage.calls:
        yield "tokens", _tokens(usage)
        yield "cost", _cost(usage)
    judge = summary.reward_usage
    if judge.calls:
        yield "of rewards", _joined([_many(judge.calls, "calls"), _tokens(judge), f"cost {_cost(judge)}"])
    for name, times in (("latency", summary.latency), ("first token", summary.time_to_first_token)):
        if times is not None:
            yield name, _percentiles(times)


def _quality(summary: CollectSummary) -> Iterator[tuple[str, str]]:
    if summary.steps:
        yield "token ids", f"in {summary.steps_with_ids:,} of {_many(summary.steps, 'steps')}"
        if summary.without_ids:
            yield "", f"without: {_counts(summary.without_ids)}"
    if summary.drift:
        yield "drift", f"{_many(summary.drift, 'places')} in {_many(summary.drifted, 'attempts')}"


def _json(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {item.name: _json(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {"/".join(key) if isinstance(key, tuple) else str(key): _json(item) for key, item in value.items()}
    return value


def _wrapped(name: str, text: str, width: int) -> list[str]:
    # What belongs together, such as "p50 0.8 s", is joined by no-break spaces, at which `wrap` does not break.
    begin, indent = f"{name:<{_LABEL}}", " " * _LABEL
    lines = textwrap.wrap(text, width, initial_indent=begin, subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ").rstrip() for line in lines]


def _rates(found: Mapping[int, PassRate], n_tasks: int) -> str:
    """Chances to pass by k; where they are not of all tasks, of how many."""
    parts = []
    for k, rate in found.items():
        of = "" if rate.tasks == n_tasks else f" ({rate.tasks:,} of {n_tasks:,} tasks)"
        parts.append(f"k={k} {rate.value:.3f}{of}")
    return _joined(parts)


def _tokens(usage: CallTotals) -> str:
    """What is known of the tokens of calls, and what is not."""
    parts = []
    sums = (("in", usage.known_input, usage.input_unknown), ("out", usage.known_output, usage.output_unknown))
    for name, known, unknown in sums:
        if known is None:
            parts.append(f"{name} unknown")
        else:
            lacks = f" + {_many(unknown, 'calls')} without a count" if unknown else ""
            parts.append(f"{known:,} {name}{lacks}")
    return _joined(parts)


def _cost(usage: CallTotals) -> str:
    """Costs by currency, each with its source, and the number of calls without one."""
    if not usage.amounts:
        return "unknown" if usage.cost_unknown else "none"
    parts = []
    for (currency, source), amount in usage.amounts.items():
        parts.append(f"{amount:{',.2f' if amount >= 10 else '.4g'}} {printable(currency, 20)} ({source})")
    return _joined([*parts, f"{_many(usage.cost_unknown, 'calls')} without a cost" if usage.cost_unknown else ""])


def _percentiles(of: Percentiles) -> str:
    return _joined([f"p50 {_seconds(of.p50)}", f"p90 {_seconds(of.p90)}", f"p99 {_seconds(of.p99)}"])


def _seconds(value: float) -> str:
    return f"{value * 1000:,.3g} ms" if value < 0.9995 else f"{value:,.1f} s"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def _counts(found: Mapping[str, int]) -> str:
    """Counts by name, the most frequent first."""
    most = sorted(found.items(), key=lambda item: -item[1])
    shown = [f"{count:,} {printable(name, 120)}" for name, count in most[:_SHOWN]]
    others = sum(count for _, count in most[_SHOWN:])
    return _joined([*shown, f"{others:,} others" if others else ""], keep=False)


def _many(count: int, what: str) -> str:
    """A number of things, with their name in the plural where it needs one."""
    return f"{count:,} {what[:-1] if count == 1 and what in ('calls', 'steps', 'places', 'attempts') else what}"


def _joined(parts: Iterable[str], *, keep: bool = True) -> str:
    """The parts that are not empty, with commas; ``keep``: lines break between parts alone."""
    given = [part for part in parts if part]
    return ", ".join(part.replace(" ", "\N{NO-BREAK SPACE}") if keep and len(part) < 40 else part for part in given)
