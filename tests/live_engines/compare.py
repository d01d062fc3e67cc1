"""Recorded == served."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

import rollout_trace as rt
from tests.live_engines.capture import Exchange
from tests.live_engines.served import Said, Served, served


def assert_recorded(steps: Sequence[rt.Step], exchanges: Iterable[Exchange]) -> list[Served]:
    """Every choice of every answer is one step, which says what the answer said. Gives the answers back."""
    answers = [served(exchange) for exchange in exchanges]
    by_id = {answer.id: answer for answer in answers}
    assert len(by_id) == len(answers)
    places = [(step.response_id, step.choice) for step in steps]
    assert sorted(places, key=str) == sorted([(one.id, index) for one in answers for index in one.choices], key=str)
    for step in steps:
        assert step.status == "ok", step.error
        answer = by_id[step.response_id]
        said = answer.choices[step.choice]
        assert_text(step, said)
        assert (None if step.usage is None else step.usage.output) == answer.sampled
        assert_tokens(step, said, counted=answer.counted)
    return answers


def assert_text(step: rt.Step, said: Said) -> None:
    """Text, reasoning, calls and the reason of the end."""
    assert step.completion is not None
    assert (step.completion.content or "") == said.text
    assert (step.completion.reasoning or "") == said.reasoning
    assert (step.finish_reason, step.stop_reason) == (said.finish_reason, said.stop_reason)
    calls = [(call.name, value_of(call.arguments)) for call in step.completion.tool_calls]
    assert calls == [(name, value_of(arguments)) for name, arguments in said.calls.values()]


def assert_tokens(step: rt.Step, said: Said, *, counted: bool) -> None:
    """What the step has is what was served. It has the ids that the usage confirms, and the logprobs that fit them."""
    if step.prompt_token_ids is not None or said.prompt_ids:
        assert _list(step.prompt_token_ids) == said.prompt_ids
    if step.completion_token_ids is not None or counted:
        assert _list(step.completion_token_ids) == said.ids
        assert counted or not said.of_entries
    if step.logprobs is not None or (counted and len(said.logprobs) == len(said.ids)):
        assert step.logprobs is not None
        # Streams of responses lack some; where it is known which, they are NaN.
        came = np.isfinite(step.logprobs)
        assert came.all() or _issue(step) == "logprobs_incomplete"
        np.testing.assert_array_equal(step.logprobs[came], np.array(said.logprobs, np.float32))
        assert any(said.top_logprobs) == (step.top_logprobs is not None)
        assert [list(top) for top in step.top_logprobs or ()] == (said.top_logprobs if any(said.top_logprobs) else [])
    whole = step.logprobs is not None and bool(np.isfinite(step.logprobs).all())
    withheld = step.completion_token_ids is None or (bool(said.logprobs) and not whole)
    assert withheld == (step.token_issue is not None)


def _issue(step: rt.Step) -> str | None:
    return None if step.token_issue is None else step.token_issue.code


def assert_close(found: Any, expected: Any) -> None:
    """Two arrays of logprobs: kernels round differently from batch to batch."""
    assert found is not None
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def _list(ids: Any) -> list[int]:
    assert ids is not None
    numbers: list[int] = ids.tolist()
    return numbers


def value_of(arguments: str | None) -> Any:
    """Of whole arguments the value: an unstreamed Anthropic answer does not say how they were spelled."""
    try:
        return json.loads(arguments or "")
    except ValueError:
        return arguments or ""
