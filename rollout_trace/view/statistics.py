"""Sums over many trajectories: statuses, rewards, tokens, costs, times, rows, drift and findings."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from rollout_trace.data.costs import calls_of
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.train.evaluation import Chances, chances_of
from rollout_trace.train.quantiles import Numbers
from rollout_trace.view.counted import Families, key_of
from rollout_trace.view.model import Summary
from rollout_trace.view.summary import finite, grade_of, summarize

By: TypeAlias = Literal["group", "task", "agent", "model", "name", "status"]
BY: tuple[By, ...] = get_args(By)
PERCENTS = (50.0, 90.0, 99.0)
_SUMMED = ("calls", "rows", "tokens", "tool_runs", "tool_errors", "exact")
_COUNTED = ("left_out", "drift", "as_text", "findings")
_FOUND = ("findings", "models", "agents")
_OF_PART = ("trajectories", "statuses", "reward", "steps", "input_tokens", "output_tokens", "cost", "without_cost",
            "seconds", "latency", "first_token", "trained", "grades")  # fmt: skip
NONE = "(none)"
"""The name of the part of those that have no group, task, ..."""


class Facts(NamedTuple):
    """Facts taken from a trajectory."""

    summary: Summary
    latencies: list[float]
    """Seconds of its calls."""
    first_tokens: list[float]
    """Seconds to the first token of its calls."""


def facts_of(trajectory: Trajectory) -> Facts:
    """Returns a trajectory's facts, from which sums are computed."""
    latencies, first_tokens = [], []
    for call in calls_of(trajectory.steps):
        step = call[0]
        if (latency := finite(step.latency)) is not None:
            latencies.append(latency)
        if (first := finite(step.time_to_first_token)) is not None:
            first_tokens.append(first)
    return Facts(summarize(trajectory), latencies, first_tokens)


class Total:
    """A sum of numbers of which some may not be known."""

    def __init__(self) -> None:
        self.sum: float = 0
        self.known = 0
        self.unknown = 0

    def add(self, value: float | None) -> None:
        """None counts as not known."""
        if value is None:
            self.unknown += 1
        else:
            self.known += 1
            self.sum += value

    @property
    def value(self) -> float | None:
        """The sum of what is known; None where nothing is."""
        return self.sum if self.known else None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"sum": self.value, "unknown": self.unknown}


class Part:
    """The sums that each part of ``stats --by`` has."""

    def __init__(self) -> None:
        self.trajectories = 0
        self.statuses: Counter[str] = Counter()
        self.reward = Numbers()
        self.steps = 0
        self.input_tokens = Total()
        self.output_tokens = Total()
        self.cost: defaultdict[str, float] = defaultdict(float)
        """By currency."""
        self.without_cost = 0
        """Trajectories whose cost is not known."""
        self.seconds = Numbers()
        """Of a trajectory."""
        self.latency = Numbers()
        """Of a call."""
        self.first_token = Numbers()
        """Of a call."""
        self.trained = 0
        self.grades: Counter[str] = Counter()
        """Trajectories by the worst grade of their findings."""

    def add(self, facts: Facts) -> None:
        """Adds a trajectory."""
        one = facts.summary
        self.trajectories += 1
        self.statuses[one.status] += 1
        self.steps += one.steps
        self.trained += one.trained
        self.input_tokens.add(one.input_tokens)
        self.output_tokens.add(one.output_tokens)
        if one.cost is None:
            # One that made no call cost nothing.
            self.without_cost += bool(one.calls)
        else:
            self.cost[one.currency or ""] += one.cost
        if one.grade is not None:
            self.grades[one.grade] += 1
        for numbers, value in ((self.reward, one.reward), (self.seconds, one.seconds)):
            if value is not None:
                numbers.add(value)
        for value in facts.latencies:
            self.latency.add(value)
        for value in facts.first_tokens:
            self.first_token.add(value)

    def as_dict(self) -> dict[str, Any]:
        """For JSON. A percentile is None where there is nothing that it is of."""
        found = {name: _as_json(getattr(self, name)) for name in _OF_PART}
        return found | {"reward": _spread(self.reward)}


class Statistics(Part):
    """The sums over all trajectories, and over each part of them. A run passes with ``threshold`` or more."""

    def __init__(self, by: By | None = None, threshold: float = 1.0, families: Families | None = None) -> None:
        super().__init__()
        self.by = by
        self.parts: defaultdict[str, Part] = defaultdict(Part)
        """In the order in which they came."""
        self.passes = Passes(threshold, families)
        self.sums: Counter[str] = Counter()
        """Of the fields ``_SUMMED`` of summaries; ``drifted``: trajectories with drift."""
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """Of each field of ``_COUNTED`` how often it has a value."""
        self.found_in: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """Of each field of ``_FOUND`` in how many trajectories it has a value."""
        self.named: defaultdict[str, defaultdict[str, Numbers]] = defaultdict(lambda: defaultdict(Numbers))
        """Of ``rewards`` and ``metrics`` the numbers by their names."""
        self.steps_each = Numbers()
        self.tokens_each = Numbers()
        """Sampled tokens of a trajectory."""

    def add(self, facts: Facts) -> None:
        """Adds a trajectory."""
        super().add(facts)
        one = facts.summary
        if self.by is not None:
            self.parts[part_of(one, self.by)].add(facts)
        self.passes.add(one)
        self.steps_each.add(one.steps)
        if one.output_tokens is not None:
            self.tokens_each.add(one.output_tokens)
        self.sums.update({name: getattr(one, name) for name in _SUMMED}, drifted=bool(one.drift))
        for name in _COUNTED:
            self.counts[name].update(getattr(one, name))
        for name in _FOUND:
            self.found_in[name].update(dict.fromkeys(getattr(one, name), 1))
        for name in ("rewards", "metrics"):
            for key, value in (getattr(one, name) or {}).items():
                self.named[name][key].add(value)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        edges, counts = self.reward.histogram(10)
        sums = self.sums
        found = {
            **super().as_dict(),
            "reward_histogram": {"edges": edges, "counts": counts},
            **{kind: {name: _spread(one) for name, one in self.named[kind].items()} for kind in ("rewards", "metrics")},
            **self.passes.as_dict(),
            "steps_each": _percentiles(self.steps_each),
            "output_tokens_each": _percentiles(self.tokens_each),
            **{name: sums[name] for name in ("calls", "rows", "tool_runs", "tool_errors", "drifted")},
            **{name: dict(self.found_in[name]) for name in ("models", "agents")},
            **{name: dict(self.counts[name]) for name in ("left_out", "drift", "as_text")},
            "row_tokens": sums["tokens"],
            "trainable_share": self.trained / sums["tokens"] if sums["tokens"] else None,
            "exact_turns": sums["exact"],
            "findings": {
                code: {"grade": grade_of(code), "count": count, "trajectories": self.found_in["findings"][code]}
                for code, count in self.counts["findings"].most_common()
            },
        }
        if self.by is not None:
            found |= {"by": self.by, "parts": {key: one.as_dict() for key, one in self.parts.items()}}
        return found


def part_of(one: Summary, by: By) -> str:
    """The part that a trajectory belongs to. Several agents or models are joined by commas."""
    if by in ("agent", "model"):
        names: Iterable[str] = one.agents if by == "agent" else one.models
        return ", ".join(names) or NONE
    value = getattr(one, by)
    return NONE if value is None else str(value)


def _spread(numbers: Numbers) -> dict[str, Any]:
    if not numbers.count:
        return {"count": 0}
    return {
        "count": numbers.count,
        "mean": numbers.mean,
        "std": numbers.deviation,
        "standard_error": numbers.error,
        "min": numbers.low,
        "median": numbers.percentile(50),
        "max": numbers.high,
    }


def _as_json(value: Any) -> Any:
    if isinstance(value, (Total, Numbers)):
        return value.as_dict() if isinstance(value, Total) else _percentiles(value)
    return dict(value) if isinstance(value, dict) else value


def _percentiles(numbers: Numbers) -> dict[str, Any]:
    found = numbers.percentiles(PERCENTS)
    return {"count": numbers.count, "mean": numbers.mean} | {
        f"p{percent:.0f}": value for percent, value in zip(PERCENTS, found, strict=True)
    }


class Passes:
    """Scored runs, and those that pass with a reward of ``threshold`` or more, by group.

    ``families``: which trajectories are inside others, of all that were read; None: of those that are added.
    """

    def __init__(self, threshold: float, families: Families | None = None) -> None:
        self.threshold = threshold
        self._families = Families() if families is None else families
        self._adds_families = families is None
        self._groups: dict[str, list[int]] = {}
        """Number of scored runs, and of those that pass."""
        self._waiting: list[tuple[int, str, float]] = []
        """Key of the id, group and reward of scored ones that were opened inside another one, perhaps of their group:
        whether they are runs of it is known when all have been read."""

    def add(self, one: Summary) -> None:
        """Adds a trajectory."""
        if self._adds_families:
            self._families.add(one.id, one.parent, one.group)
        if one.group is None or one.reward is None:
            return
        if one.parent is None:
            self._score(one.group, one.reward)
        else:
            self._waiting.append((key_of(one.id), one.group, one.reward))

    def _score(self, group: str, reward: float) -> None:
        counts = self._groups.setdefault(group, [0, 0])
        counts[0] += 1
        counts[1] += reward >= self.threshold

    def _take_waiting(self) -> None:
        for key, group, reward in self._waiting:
            if not self._families.is_inside(key, group):
                self._score(group, reward)
        self._waiting = []

    def at_k(self) -> list[Chances]:
        """The chances with 1, 2, 4, ... runs, as far as there is a group with as many. When all have been added."""
        self._take_waiting()
        return chances_of((n, c) for n, c in self._groups.values())

    @property
    def groups(self) -> int:
        """Groups with a scored run. When all have been added."""
        self._take_waiting()
        return len(self._groups)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = self.at_k()
        return {
            "threshold": self.threshold,
            "groups": self.groups,
            "pass_at_k": {str(one.k): one.any for one in found},
            "pass_hat_k": {str(one.k): one.all for one in found},
            "groups_at_k": {str(one.k): one.groups for one in found},
        }
