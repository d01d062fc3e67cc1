"""A trajectory, a step or a training row in a line: what ``rollout-trace ls``, the page and its index show of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain, islice
from typing import Any

from rollout_trace import guard
from rollout_trace.data.costs import calls_of
from rollout_trace.data.episodes import noted
from rollout_trace.data.model import ErrorInfo, Step
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.train.check_codes import CODES, Grade
from rollout_trace.train.checks import Finding, check_with_rows
from rollout_trace.train.sequence import Sequence as Row
from rollout_trace.train.sequence import SequenceReport, Sequences
from rollout_trace.view.model import RowPart, RowView, Summary
from rollout_trace.view.values import text_of
from rollout_trace.wire.chat_messages import as_text, convert, message_groups

EXCERPT = 160
"""Characters of an excerpt, at most."""
GRADES: tuple[Grade, ...] = ("fatal", "warning", "info")
"""From the worst on."""
_ANSWER = 120
"""Characters of an answer in the list of steps."""
_LOOKED_AT = 20
"""Messages among which that of a user is looked for."""


def summarize(trajectory: Trajectory) -> Summary:
    """The summary of a trajectory. Numbers that are not finite are None; they have a finding.

    Never raises for a trajectory that could be read.
    """
    return summary_of(trajectory, *checked(trajectory))


def checked(trajectory: Trajectory) -> tuple[list[Finding], Sequences | None]:
    """Findings and training rows of a trajectory. No findings and None where they cannot be had, which is logged."""
    try:
        return check_with_rows(trajectory)
    except Exception as error:
        guard.warn(f"trajectory {trajectory.id} could not be checked, so it has no findings: {guard.describe(error)}")
        return [], None


def summary_of(trajectory: Trajectory, findings: Sequence[Finding], rows: Sequences | None) -> Summary:
    """The summary of a trajectory whose findings and training rows (None: not to be had) are given."""
    steps, cost = trajectory.steps, trajectory.cost
    calls = calls_of(steps)
    turns = [step.exact_turn for step in steps if step.exact_turn is not None]
    latencies = [one for call in calls if (one := call[0].latency) is not None]
    firsts = [one for call in calls if (one := call[0].time_to_first_token) is not None]
    note = (trajectory.metadata or {}).get("note")
    summary = Summary(
        id=trajectory.id,
        name=trajectory.name,
        task=None if trajectory.task is None else trajectory.task.id,
        group=trajectory.group_id,
        index=trajectory.rollout_index,
        attempt=_attempt(trajectory),
        episode=trajectory.episode_id,
        parent=trajectory.parent_id,
        parent_step=trajectory.parent_step_id,
        forked_from=None if trajectory.forked_from is None else trajectory.forked_from.id,
        fork_step=None if trajectory.forked_from is None else trajectory.forked_from.step,
        status=trajectory.status,
        stop_reason=trajectory.stop_reason,
        error=None if trajectory.error is None else f"{trajectory.error.type}: {trajectory.error.message}",
        reward=finite(trajectory.reward),
        rewards=_numbers(trajectory.rewards),
        metrics=_numbers(trajectory.metrics),
        started=None if trajectory.started_at is None else trajectory.started_at.timestamp(),
        seconds=_seconds(trajectory),
        steps=len(steps),
        calls=len(calls),
        agents=_distinct(step.agent for step in steps),
        models=_distinct(step.model or step.response_model for step in steps),
        input_tokens=trajectory.n_input_tokens,
        output_tokens=trajectory.n_output_tokens,
        cost=None if cost is None else finite(cost.amount),
        currency=None if cost is None else cost.currency,
        latency=math.fsum(latencies) if latencies else None,
        first_token=math.fsum(firsts) / len(firsts) if firsts else None,
        tool_runs=len(trajectory.tool_runs),
        tool_errors=sum(run.error is not None for run in trajectory.tool_runs),
        exact=sum(turn.is_exact for turn in turns),
        as_text=dict(Counter(turn.reason for turn in turns if turn.reason is not None)),
        findings=dict(Counter(finding.code for finding in findings)),
        grade=worst(finding.grade for finding in findings),
        excerpt=_excerpt(steps),
        note=note if isinstance(note, str) else None,
    )
    if rows is not None:
        report = rows.report
        summary.rows, summary.tokens, summary.trained = report.sequences, report.tokens, report.trainable_tokens
        summary.left_out = left_out_of(report)
        summary.drift = dict(Counter(drift.kind for drift in report.drift))
    return summary


def left_out_of(report: SequenceReport) -> dict[str, int]:
    """The number of steps that no row has, by reason."""
    return {reason_of(reason): len(ids) for reason, ids in report.left_out.items()}


def reason_of(reason: str) -> str:
    """Why ``check_with_rows`` left a step out of its rows."""
    # An advantage that does not fit is the one thing for which it excludes steps.
    return "advantage_invalid" if reason == "excluded" else reason


def worst(grades: Iterable[Grade]) -> Grade | None:
    """The worst of some grades; None without any."""
    return min(grades, key=GRADES.index, default=None)


def grade_of(code: str) -> Grade:
    """The grade of a code in the table; of one that a newer version wrote, ``fatal``, as ``check`` takes it."""
    return CODES[code][0] if code in CODES else "fatal"


def finite(value: Any) -> float | None:
    """A number that is finite; None for anything else."""
    try:
        return float(value) if math.isfinite(value) else None
    except (TypeError, ValueError, OverflowError):
        return None


def _numbers(values: dict[str, float] | None) -> dict[str, float] | None:
    if values is None:
        return None
    return {str(name): number for name, value in values.items() if (number := finite(value)) is not None}


def _attempt(trajectory: Trajectory) -> int | None:
    number = noted(trajectory).get("attempt")
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def _seconds(trajectory: Trajectory) -> float | None:
    if trajectory.started_at is None or trajectory.ended_at is None:
        return None
    return (trajectory.ended_at - trajectory.started_at).total_seconds()


def _distinct(values: Iterable[str | None]) -> list[str]:
    return [value for value in dict.fromkeys(values) if value is not None]


def _excerpt(steps: Iterable[Step]) -> str:
    texts = chain.from_iterable(map(_user_texts, islice(steps, 1)))
    # Cut first: a message may be very long.
    return " ".join(next(iter(texts), "")[: 4 * EXCERPT].split())[:EXCERPT]


def _user_texts(step: Step) -> Iterable[str]:
    """Texts of the first messages of a user in a request."""
    for sent in islice(message_groups(step), _LOOKED_AT):
        try:
            messages = convert(step.protocol, sent)
        except Exception:
            # A message of no known shape. What it is can be seen where it is shown whole.
            continue
        for message in messages:
            text = as_text(message.get("content")) if message.get("role") == "user" else None
            if isinstance(text, str) and not text[: 4 * EXCERPT].isspace() and text:
                yield text


# A step, or a training row


def row_view(row: Row, index: Mapping[str, int]) -> RowView:
    """A training row, as ``sequences()`` gives it. ``index``: of the steps, by their ids."""
    parts, at = [], 0
    for step_id, (begin, end) in zip(row.step_ids, row.spans, strict=True):
        if begin > at:
            parts.append(RowPart(begin - at, 0, None))
        parts.append(RowPart(end - begin, 1, index.get(step_id)))
        at = end
    length = len(row.token_ids)
    if length > at:
        parts.append(RowPart(length - at, 0, None))
    return RowView(
        length=length,
        trained=sum(part.length for part in parts if part.mask),
        parts=parts,
        reward=row.reward,
        has_logprobs=row.logprobs is not None,
    )


def unix(time: datetime | None) -> float | None:
    """Unix time in seconds."""
    return None if time is None else time.timestamp()


def error_text(error: ErrorInfo | None) -> str | None:
    """An error in a line: its type, its message, and the HTTP status where it has one."""
    if error is None:
        return None
    status = "" if error.status is None else f" (HTTP {error.status})"
    return f"{error.type}{status}: {error.message}"


def lengths(step: Step, *, is_alone: bool) -> tuple[int | None, int | None]:
    """Numbers of tokens of a step's prompt and completion: of its ids, else of its usage, if it ``is_alone`` there."""
    prompt = None if step.prompt_token_ids is None else len(step.prompt_token_ids)
    completion = None if step.completion_token_ids is None else len(step.completion_token_ids)
    if step.usage is not None:
        prompt = step.usage.input if prompt is None else prompt
        completion = step.usage.output if completion is None and is_alone else completion
    return prompt, completion


def mean_logprob(step: Step) -> float | None:
    """The mean logprob of a completion; None where there are none, or it is not finite."""
    logprobs = step.logprobs
    # The sum of some float32 is none.
    return finite(float(logprobs.mean(dtype="float64"))) if logprobs is not None and len(logprobs) else None


def answer_excerpt(step: Step) -> str:
    """The beginning of an answer: its text, else its refusal, else its reasoning."""
    completion = step.completion
    if completion is None:
        return ""
    content = completion.content
    text = content if isinstance(content, str) else "" if content is None else text_of(content)
    return (text or completion.refusal or completion.reasoning or "")[:_ANSWER]
