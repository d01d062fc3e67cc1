"""What is shown of a step and of a training row, each from it alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rollout_trace.view.model import RowPart, RowView
from rollout_trace.view.summary import finite
from rollout_trace.view.values import text_of

if TYPE_CHECKING:
    from datetime import datetime

    from rollout_trace.data.model import ErrorInfo, Step
    from rollout_trace.train.sequence import Sequence as Row

_EXCERPT = 120


def row_view(row: Row, index: Mapping[str, int]) -> RowView:
    """A training row.

    Args:
        row: as ``sequences()`` gives it.
        index: of the steps, by their ids.
    """
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
    """Numbers of tokens of a step's prompt and completion: of its ids, else of its usage.

    Args:
        step: the step.
        is_alone: False: its call has other choices, of which the usage counts the completions too.
    """
    prompt = None if step.prompt_token_ids is None else len(step.prompt_token_ids)
    completion = None if step.completion_token_ids is None else len(step.completion_token_ids)
    if step.usage is not None:
        prompt = step.usage.input if prompt is None else prompt
        completion = step.usage.output if completion is None and is_alone else completion
    return prompt, completion


def mean_logprob(step: Step) -> float | None:
    logprobs = step.logprobs
    # The sum of some float32 is none.
    return finite(float(logprobs.mean(dtype="float64"))) if logprobs is not None and len(logprobs) else None


def answer_excerpt(step: Step) -> str:
    completion = step.completion
    if completion is None:
        return ""
    content = completion.content
    text = content if isinstance(content, str) else "" if content is None else text_of(content)
    return (text or completion.refusal or completion.reasoning or "")[:_EXCERPT]
