"""Facts about the trajectories of one rollout, in a few hundred bytes, for resuming, progress and the summary."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from rollout_trace._field_docs import document_fields
from rollout_trace.collection.items import Key
from rollout_trace.data import costs, episodes
from rollout_trace.data.model import Cost, shared
from rollout_trace.process.exits import reason_without_ids
from rollout_trace.train.sequences import count_drift

if TYPE_CHECKING:
    from rollout_trace.data.model import ErrorInfo
    from rollout_trace.data.trajectory import Trajectory

_ANSWERED = ("ok", "superseded")


@document_fields
@dataclass(slots=True, kw_only=True)
class CallTotals:
    """Calls with their tokens and costs. Each sum covers the known values; a second field counts the unknown ones."""

    calls: int = 0
    """Number of calls made; answers from a framework's cache are not counted."""
    failed: int = 0
    """Number of these calls that ended with an error."""
    input_tokens: int = 0
    """Tokens of prompts."""
    input_unknown: int = 0
    """Number of calls that used tokens but have no count of prompt tokens."""
    output_tokens: int = 0
    """Tokens that were sampled."""
    output_unknown: int = 0
    """Number of calls that used tokens but have no count of sampled tokens."""
    amounts: dict[tuple[str, str], float] = field(default_factory=dict)
    """Costs by currency and source."""
    cost_unknown: int = 0
    """Number of calls that used tokens but have no cost."""

    def add_call(self, call: costs.Call) -> None:
        """Counts one call. ``call`` is the list of its steps."""
        consumed = costs.has_consumed(call)
        sent, sampled, cost = costs.tokens_of(call, "input"), costs.tokens_of(call, "output"), costs.cost_of(call)
        self.add(
            CallTotals(
                calls=1,
                failed=call[0].status == "error",
                input_tokens=sent or 0,
                input_unknown=sent is None and consumed,
                output_tokens=sampled or 0,
                output_unknown=sampled is None and consumed,
                amounts={} if cost is None else {(cost.currency, cost.source): cost.amount},
                cost_unknown=cost is None and consumed,
            )
        )

    def add(self, other: CallTotals) -> None:
        """Adds another object's totals to this one."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for place, amount in other.amounts.items():
            self.amounts[place] = self.amounts.get(place, 0.0) + amount

    @property
    def known_input(self) -> int | None:
        """Sum of the known prompt counts; None if there are calls and none has a count."""
        return None if self.input_unknown and not self.input_tokens else self.input_tokens

    @property
    def known_output(self) -> int | None:
        """Sum of the known counts of sampled tokens; None as for ``known_input``."""
        return None if self.output_unknown and not self.output_tokens else self.output_tokens

    @property
    def cost(self) -> Cost | None:
        """Sum of the known costs; None if no call has one, or currencies differ."""
        if len({currency for currency, _ in self.amounts}) != 1:
            return None
        sources: set[Any] = {source for _, source in self.amounts}
        return Cost(
            amount=sum(self.amounts.values()),
            currency=next(iter(self.amounts))[0],
            source=sources.pop() if len(sources) == 1 else "unknown",
        )


_COUNTS = [one.name for one in fields(CallTotals) if one.name != "amounts"]


@dataclass(slots=True, kw_only=True)
class Facts:
    """Facts about one attempt at one rollout: its trajectory and those opened inside it. Small and picklable."""

    key: Key
    trajectory_id: str
    """Id of the rollout's own trajectory. Status, reward and the like describe this trajectory only."""
    episode: str
    """Episode id shared by the trajectories, including those written by child processes."""
    attempt: int
    status: str
    reward: float | None
    rewards: Mapping[str, float] | None
    group: str | None
    policy_version: str | int | None = None
    error: ErrorInfo | None
    reward_errors: tuple[str, ...]
    """Why rewards are missing: the name of each function that failed, with its exception."""
    usage: CallTotals = field(default_factory=CallTotals)
    """Totals of the agent's calls, including sub-agents."""
    reward_usage: CallTotals = field(default_factory=CallTotals)
    latencies: array[float] = field(default_factory=lambda: array("f"))
    """float32, seconds: latency of each answered call of the agent."""
    first_tokens: array[float] = field(default_factory=lambda: array("f"))
    """float32, seconds: time to the first token of each call that has one."""
    steps: int = 0
    """Number of the agent's steps, including sub-agents."""
    steps_with_ids: int = 0
    turns: int = 0
    """Number of steps whose prompt should be sent as the ids of earlier steps."""
    exact_turns: int = 0
    """Number of these steps that were sent so."""
    without_ids: Counter[str] = field(default_factory=Counter)
    """Steps without completion ids, by the reason."""
    drift: int = 0
    """Number of places where a prompt repeats a completion with different ids."""


def facts_of(episode: Sequence[Trajectory]) -> Facts | None:
    """The facts of the trajectories of one rollout; None where none of them was made by ``collect``."""
    own = next((one for one in episode if key_of(one) is not None), None)
    key = None if own is None else key_of(own)
    if own is None or key is None:
        return None
    facts = Facts(
        key=key,
        trajectory_id=own.id,
        episode=episodes.episode_of(own),
        attempt=episodes.attempt_of(own),
        status=own.status,
        reward=own.reward,
        rewards=own.rewards,
        group=own.group_id,
        policy_version=episodes.noted(own).get("policy_version"),
        error=own.error,
        reward_errors=_reward_errors((own.metadata or {}).get("reward_errors")),
    )
    of_reward = episodes.of_rewards(episode)
    for one in episode:
        if one.id in of_reward:
            for call in costs.calls_of(one.steps):
                facts.reward_usage.add_call(call)
        else:
            _count(facts, one)
    return facts


def _count(facts: Facts, one: Trajectory) -> None:
    """Counts a trajectory of the agent's."""
    for call in costs.calls_of(one.steps):
        facts.usage.add_call(call)
        latency, first = call[0].latency, call[0].time_to_first_token
        if call[0].status in _ANSWERED:
            facts.latencies.extend([] if latency is None else [latency])
            facts.first_tokens.extend([] if first is None else [first])
    facts.steps += len(one.steps)
    for step in one.steps:
        if step.exact_turn is not None:
            facts.turns += 1
            facts.exact_turns += step.exact_turn.is_exact
        if shared(step, "completion_token_ids") is not None:
            facts.steps_with_ids += 1
        else:
            facts.without_ids[reason_without_ids(step)] += 1
    facts.drift += count_drift(one)


def key_of(trajectory: Trajectory) -> Key | None:
    """The rollout that a trajectory of ``collect`` is an attempt at; None for any other."""
    found = episodes.rollout_of(trajectory)
    return None if found is None else Key(*found)


def _reward_errors(found: Any) -> tuple[str, ...]:
    return tuple(f"{name}: {text}" for name, text in found.items()) if isinstance(found, dict) else ()
