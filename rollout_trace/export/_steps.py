"""The per-turn dataset: one row per step, with token ids, logprobs and text."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from rollout_trace.data.tokens import readonly
from rollout_trace.export._conversations import text_reason
from rollout_trace.export._exporter import Exporter, RowIterator, copied, owned
from rollout_trace.export._rows import (
    check_row_options,
    compare,
    count_without_row,
    note_grammar,
    task_id,
    with_steps,
)
from rollout_trace.export._values import finite_counted, number
from rollout_trace.train.selection import advantage_array, n_sampled, reason_left_out
from rollout_trace.train.shaping import constrained
from rollout_trace.wire.chat_messages import answer, to_chat, tools_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rollout_trace.data.extras import ExpertArray, PolicySpan, SamplingMask, TopTokens
    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._conversations import Include
    from rollout_trace.export._exporter import Row, Trajectories
    from rollout_trace.export._rows import Advantages
    from rollout_trace.report import ExportReport, Strict

    Read: TypeAlias = Callable[[Trajectory, Step], Any]

_TOKENS: dict[str, tuple[str, Read]] = {
    "prompt_ids": ("list<int32>", lambda _, step: step.prompt_token_ids),
    "completion_ids": ("list<int32>", lambda _, step: step.completion_token_ids),
    "logprobs": ("list<float32>", lambda _, step: step.logprobs),
    "advantages": ("list<float32>", lambda _, step: _advantages(step)),
    "token_source": ("string", lambda _, step: step.token_source),
    "logprobs_mode": ("string", lambda _, step: step.logprobs_mode),
}
_FACTS: dict[str, tuple[str, Read]] = {
    "trajectory_id": ("string", lambda run, _: run.id),
    "episode_id": ("string", lambda run, _: run.episode_id),
    "parent_id": ("string", lambda run, _: run.parent_id),
    "group_id": ("string", lambda run, _: run.group_id),
    "rollout_index": ("int64", lambda run, _: run.rollout_index),
    "task_id": ("string", lambda run, _: task_id(run)),
    "task": ("json", lambda run, _: None if run.task is None else run.task.data),
    "trajectory_status": ("string", lambda run, _: run.status),
    "step_id": ("string", lambda _, step: step.id),
    "call_id": ("string", lambda _, step: step.call_id),
    "choice": ("int64", lambda _, step: step.choice),
    "turn": ("int64", lambda _, step: step.index),
    "agent": ("string", lambda _, step: step.agent),
    "protocol": ("string", lambda _, step: step.protocol),
    "engine": ("string", lambda _, step: step.engine),
    "model": ("string", lambda _, step: step.model),
    "sampling": ("json", lambda _, step: step.sampling),
    "finish_reason": ("string", lambda _, step: step.finish_reason),
    "status": ("string", lambda _, step: step.status),
    "trainable": ("bool", lambda _, step: bool(step.trainable)),
    "policy_version": ("string", lambda _, step: None if step.policy_version is None else str(step.policy_version)),
    "reward": ("float64", lambda run, _: number(run.reward)),
    "step_reward": ("float64", lambda _, step: number(step.reward)),
    "extra": ("json", lambda _, step: step.extra),
    "extra_issues": ("json", lambda _, step: [asdict(issue) for issue in step.extra_issues]),
}
_EXTRAS: dict[str, tuple[str, Read]] = {
    "prompt_logprobs": ("list<float32>", lambda _, step: _with_nulls(step.prompt_logprobs)),
    "prompt_top_token_ids": ("list<list<int32>>", lambda _, step: _rows_of(step.prompt_top_tokens, "ids")),
    "prompt_top_token_logprobs": ("list<list<float32>>", lambda _, step: _rows_of(step.prompt_top_tokens, "logprobs")),
    "top_token_ids": ("list<list<int32>>", lambda _, step: _rows_of(step.top_tokens, "ids")),
    "top_token_logprobs": ("list<list<float32>>", lambda _, step: _rows_of(step.top_tokens, "logprobs")),
    "sampling_mask_ids": ("list<list<int32>>", lambda _, step: _masked(step.sampling_mask, "ids")),
    "sampling_mask_logprobs": ("list<list<float32>>", lambda _, step: _masked(step.sampling_mask, "logprobs")),
    # Flat: nested lists of every token, layer and expert would be millions of objects.
    "routed_experts": ("list<int32>", lambda _, step: _flat(step.routed_experts)),
    "routed_experts_shape": ("list<int32>", lambda _, step: _shape(step.routed_experts)),
    "routed_experts_dtype": ("string", lambda _, step: _dtype(step.routed_experts)),
    "policy_spans": ("json", lambda _, step: _spans(step.policy_spans)),
}
"""What engines send of tokens beside ids and logprobs."""
_TEXTS = {"messages": "json", "completion": "json", "tools": "json"}
_OF_TOKENS = {**_TOKENS, **_EXTRAS}
_TRAINED_ON = frozenset({*_TOKENS, *_EXTRAS, *_TEXTS, "reward", "step_reward"})
"""Columns that a consumer trains on; losses in the others count as metadata."""
STEP_COLUMNS = {name: kind for name, (kind, _) in {**_FACTS, **_TOKENS, **_EXTRAS}.items()} | _TEXTS
"""The columns of ``steps``, with their types (see ``rollout_trace.export.arrow``)."""


@Exporter
def steps(
    trajectories: Trajectories,
    *,
    tokens: bool = True,
    arrays: bool = False,
    include: Include | None = None,
    allow: Collection[str] = (),
    advantages: Advantages = "steps",
    strict: Strict = False,
    report: ExportReport | None = None,
) -> RowIterator:
    """Exports one row for each step that can be trained on token for token, by the rules of ``Trajectory.sequences()``.

    Every row has all columns of ``STEP_COLUMNS``; unknown values are None. ``reward`` is the trajectory's,
    ``step_reward`` the step's own; ``turn`` is the step's position in its trajectory. ``advantages`` has one number per
    token, even if the step has one for all. ``messages``, ``completion`` and ``tools`` are in chat's shape whatever the
    protocol was; tool arguments are the text that the model wrote. ``policy_version`` is a string. ``routed_experts``
    is flat: ``np.array(row["routed_experts"], row["routed_experts_dtype"]) .reshape(row["routed_experts_shape"])``. In
    the columns of extras, a logprob that the engine did not send is None, and an id is -1.

    Args:
        tokens: False exports each trainable step with an answer, with or without ids; the columns of ids, logprobs,
            advantages, experts and the like are None.
        arrays: True makes ids, logprobs, advantages and ``routed_experts`` read-only arrays (int32, float32) instead of
            lists.
        include: a function that returns True for the steps to keep.
        allow: reasons that do not exclude a step, such as ``{"abandoned", "retokenized"}``.
        advantages: ``steps``: those set on the steps; ``grpo`` or ``leave_one_out``: each run's advantage within its
            group, on all its tokens (pass all runs of a group); None for runs without one.
        report: counts what is left out: steps, what a chat message has no place for, and numbers that are not finite
            (they are None).
    """
    check_row_options({"allow": allow}, advantages, "grpo", "leave_one_out", "steps")

    def make(counts: ExportReport, raw: bool) -> Iterable[Row]:
        rows = _rows(trajectories, tokens, include, allow, advantages, counts)
        return map(copied, rows) if arrays and not raw else owned(rows, raw)

    return RowIterator("steps", strict, report, make, STEP_COLUMNS, checked=True)


def _rows(
    trajectories: Trajectories,
    tokens: bool,
    include: Include | None,
    allow: Collection[str],
    advantages: Advantages,
    report: ExportReport,
) -> Iterator[Row]:
    compared = compare(trajectories, report, {}, advantages)
    for trajectory in with_steps(compared.trajectories, report):
        n_rows = 0
        for step in trajectory.steps:
            where = f"trajectory {trajectory.id}, step {step.id}"
            if tokens:
                reason = reason_left_out(step, {"include": include, "allow": allow})
            else:
                reason = text_reason(step, include, allow)
            if reason is not None:
                report.drop(f"steps left out: {reason}", where=where)
                continue
            n_rows += 1
            if tokens:
                note_grammar(constrained(step), n_sampled(step) or 0, report)
            row = {name: read(trajectory, step) for name, (_, read) in _FACTS.items()}
            row |= {name: read(trajectory, step) if tokens else None for name, (_, read) in _OF_TOKENS.items()}
            row |= {
                "messages": None if step.messages is None else to_chat(step, report),
                "completion": answer(step, "json", report),
                "tools": tools_of(step, report),
            }
            if tokens and advantages != "steps":
                row["advantages"] = _run_advantages(step, compared.advantages.get(trajectory.id))
            yield {
                name: finite_counted(value, report, f"values of {name}", where, metadata=name not in _TRAINED_ON)
                for name, value in row.items()
            }
        if not n_rows:
            count_without_row(trajectory, report)


def _advantages(step: Step) -> Any:
    """float32 [completion length], or None."""
    length = n_sampled(step)
    return None if length is None else advantage_array(step, length)


def _run_advantages(step: Step, advantage: float | None) -> Any:
    """float32 [completion length]: the run's advantage on each token; None where there is none, or there are no ids."""
    import numpy as np

    length = n_sampled(step)
    return None if length is None or advantage is None else np.full(length, advantage, np.float32)


def _with_nulls(numbers: Any) -> list[Any] | None:
    """Numbers as lists; None for NaN, which is a number that the engine did not send."""
    if numbers is None:
        return None
    import numpy as np

    found: list[Any] = numbers.tolist()
    if numbers.ndim == 1:
        for at in np.flatnonzero(np.isnan(numbers)).tolist():
            found[at] = None
    else:
        for row, at in zip(*(places.tolist() for places in np.nonzero(np.isnan(numbers))), strict=True):
            found[row][at] = None
    return found


def _rows_of(top: TopTokens | None, name: str) -> list[Any] | None:
    return None if top is None else top.ids.tolist() if name == "ids" else _with_nulls(top.logprobs)


def _masked(mask: SamplingMask | None, name: str) -> list[Any] | None:
    """The values of each position as a list."""
    values = None if mask is None else getattr(mask, name)
    if mask is None or values is None:
        return None
    whole: Any = values.tolist() if name == "ids" else _with_nulls(values)
    return [whole[begin:end] for begin, end in pairwise(mask.offsets.tolist())]


def _flat(experts: ExpertArray | None) -> Any:
    return None if experts is None else readonly(experts.reshape(-1).astype("int32"))


def _shape(experts: ExpertArray | None) -> list[int] | None:
    return None if experts is None else list(experts.shape)


def _dtype(experts: ExpertArray | None) -> str | None:
    return None if experts is None else experts.dtype.name


def _spans(spans: tuple[PolicySpan, ...] | None) -> list[dict[str, Any]] | None:
    """Objects, with text as versions: readers of JSON lines want one type in each place."""
    if spans is None:
        return None
    return [{"begin": begin, "end": end, "version": str(version)} for begin, end, version in spans]
