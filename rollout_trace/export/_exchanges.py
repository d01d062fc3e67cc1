"""One line for each HTTP exchange with a model; and a call as the chat completion that vLLM would have answered.

Shapes: the ``llm_trajectory.jsonl`` of BenchFlow, ``LLMExchange`` in ``benchflow/trajectories/types.py`` (0.7.11).
"""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rollout_trace.data.model import CUT_OFF, Attempt
from rollout_trace.data.tokens import same_array
from rollout_trace.export._exporter import Exporter, RowIterator, listed
from rollout_trace.export._rows import each, task_id
from rollout_trace.export._values import number, strict_json
from rollout_trace.wire.chat_messages import answer, to_chat, tools_of, with_text
from rollout_trace.wire.protocols import record_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from rollout_trace.data.model import ErrorInfo, Step, Usage
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._exporter import Row, Trajectories
    from rollout_trace.report import ExportReport, Strict

CLIENT_CLOSED = 499
"""Status of an exchange whose caller went away before the answer's end, as web servers log it."""
_CHAT_PATH = "/v1/chat/completions"
COLUMNS = {
    "request": "json",
    "response": "json",
    "duration_ms": "float64",
    "usage": "json",
    "status": "string",
    "error": "json",
    "metadata": "json",
}
_FINISH_REASONS = {
    **dict.fromkeys(CUT_OFF, "length"),
    **dict.fromkeys(("end_turn", "stop_sequence", "completed", "eos", "STOP"), "stop"),
    "tool_use": "tool_calls",
}


@Exporter
def exchanges(
    trajectories: Trajectories,
    *,
    tokens: bool = True,
    strict: Strict = False,
    report: ExportReport | None = None,
) -> RowIterator:
    """Exports one dict for each HTTP exchange with a model, in the order of the calls: ``LLMExchange(**row)``.

    - ``request``: ``timestamp``, ``method``, ``path``, ``headers`` (empty: none are recorded), ``body``
    - ``response``: ``timestamp`` of its end, ``status_code``, ``headers``, ``body``
    - ``duration_ms``; ``usage`` (``input``, ``output``, ...; None where the server sent none, as for an answer from a
      framework's cache); ``status`` (that of the step: ``ok``, ``error``, ``cancelled``, ``abandoned``,
      ``superseded``, ``cached``); ``error``
    - ``metadata``: ids of trajectory, episode, group, task, call and steps; ``attempt`` of ``attempts``; ``protocol``,
      ``engine``, ``agent_name``; the trajectory's ``reward``; ``cost``, ``time_to_first_token_ms``, ``request_id``,
      ``http_status``; and what the bodies are:

    ``bodies`` is ``recorded`` if the bytes were kept (``keep_bytes=True``) and the answer was one JSON object;
    otherwise ``chat``: the call as a chat completion, whatever its protocol was, with token ids and logprobs in vLLM's
    form, so that ``rollout_trace.wire.decode`` returns the same ids. A call with ``n`` choices is one exchange; a
    retried call is one exchange per attempt.

    ``status_code`` is 200 only if the answer is complete. It is the server's if that is an error, 499 if the caller
    disconnected or stopped reading, and 0 if there was no answer or it broke off (the part received is then beside the
    ``error`` in the body).

    Args:
        tokens: False leaves token ids and logprobs out of ``chat`` bodies.
        report: counts what is left out: what a chat message has no place for. Headers are not recorded, and not
            counted.
    """
    return RowIterator(
        "exchanges", strict, report, lambda counts, raw: _exchanges(trajectories, tokens, counts, raw), COLUMNS,
        # Readers take null for no duration.
        fills=False,
        checked=True,
    )  # fmt: skip


def _exchanges(trajectories: Trajectories, tokens: bool, report: ExportReport, raw: bool) -> Iterator[Row]:
    for trajectory in each(trajectories):
        report.drop("trajectories without steps", not trajectory.steps, where=f"trajectory {trajectory.id}")
        for _, choices in groupby(trajectory.steps, lambda step: step.call_id):
            steps = list(choices)
            where = f"trajectory {trajectory.id}, step {steps[0].id}"
            for row in _call(trajectory, steps, tokens, report):
                yield strict_json(row, report, where, arrays=raw)
        report.read_one()


def _call(trajectory: Trajectory, steps: list[Step], tokens: bool, report: ExportReport) -> Iterator[Row]:
    first = steps[0]
    # A step that was not seen on the wire has no attempt.
    attempts = first.attempts or (Attempt(started_at=first.started_at, duration=first.latency),)
    recorded = _recorded(first)
    kind, (request, response) = "recorded", recorded or ({}, {})
    if recorded is None:
        kind, request, response = "chat", chat_request(first, report), chat_response(steps, report, tokens=tokens)
    for at, attempt in enumerate(attempts):
        last = at == len(attempts) - 1
        error = (first.error or attempt.error) if last else attempt.error
        status = first.status if last else "error"
        # Without the times and durations that are not known: readers take null for none of them.
        yield {
            "request": {
                **_timestamp(attempt.started_at),
                "method": "POST",
                "path": _path(first) if kind == "recorded" else _CHAT_PATH,
                "headers": {},
                "body": request,
            },
            "response": {
                **_timestamp(_end(attempt)),
                "status_code": _status_code(first, attempt, last),
                "headers": {},
                "body": _body(response, kind, status, error) if last else {"error": _error(error)},
            },
            **({} if attempt.duration is None else {"duration_ms": attempt.duration * 1000}),
            "usage": _usage(first.usage) if last and status != "cached" else None,
            "status": status,
            "error": _error(error),
            "metadata": {
                **_ids(trajectory, steps),
                "attempt": at,
                "attempts": len(attempts),
                "bodies": kind,
                "protocol": first.protocol,
                "engine": first.engine,
                "agent_name": first.agent or trajectory.name,
                "reward": number(trajectory.reward),
                "cost": None if first.cost is None else {"amount": first.cost.amount, "currency": first.cost.currency},
                "time_to_first_token_ms": _milliseconds(first.time_to_first_token) if last else None,
                "request_id": attempt.request_id,
                "http_status": attempt.status,
            },
        }


def _body(response: dict[str, Any], kind: str, status: str, error: ErrorInfo | None) -> dict[str, Any]:
    """The answer to a call. Of one that failed: the error, and what came before it, as of a stream that broke off."""
    if status != "error" or kind == "recorded":
        return response
    return {**(response if response["choices"] else {}), "error": _error(error)}


def _status_code(step: Step, attempt: Attempt, last: bool) -> int:
    status = attempt.status or 0
    if not last or step.status == "error":
        # An answer that broke off began with a good status.
        return status if status >= 400 else 0
    if step.status in ("cancelled", "abandoned", "running"):
        return CLIENT_CLOSED
    return status or 200


def _recorded(step: Step) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The bodies as they were sent; None where they were not kept, or one is no JSON object (a stream)."""
    if step.request_bytes is None or step.response_bytes is None:
        return None
    try:
        request, response = json.loads(step.request_bytes), json.loads(step.response_bytes)
    except (ValueError, RecursionError):
        return None
    return (request, response) if isinstance(request, dict) and isinstance(response, dict) else None


def _path(step: Step) -> str:
    """The end of the endpoint's path: what of it is known."""
    paths = record_of(step.protocol).paths
    return paths[0] if paths else ""


def _ids(trajectory: Trajectory, steps: list[Step]) -> dict[str, Any]:
    return {
        "trajectory_id": trajectory.id,
        "episode_id": trajectory.episode_id,
        "parent_id": trajectory.parent_id,
        "group_id": trajectory.group_id,
        "task_id": task_id(trajectory),
        "call_id": steps[0].call_id,
        "step_ids": [step.id for step in steps],
    }


def _usage(usage: Usage | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    names = ("input", "output", "cache_read", "cache_write", "reasoning")
    known = {name: getattr(usage, name) for name in names}
    return {**{name: value for name, value in known.items() if value is not None}, **(usage.extra or {})}


def _error(error: ErrorInfo | None) -> dict[str, Any] | None:
    if error is None:
        return None
    return {"type": error.type, "message": error.message, "code": error.code, "status": error.status}


def _end(attempt: Attempt) -> datetime | None:
    if attempt.started_at is None or attempt.duration is None:
        return None
    return attempt.started_at + timedelta(seconds=attempt.duration)


def _timestamp(moment: datetime | None) -> dict[str, str]:
    return {} if moment is None else {"timestamp": moment.isoformat()}


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


# A call as a chat completion


def chat_request(step: Step, report: ExportReport) -> dict[str, Any]:
    """The body of a chat request: ``model``, ``messages``, ``tools`` and the recorded sampling parameters."""
    tools = tools_of(step, report)
    # A request of chat with `functions` has them in `tools` here.
    sampling = {name: value for name, value in (step.sampling or {}).items() if name != "functions"}
    body: dict[str, Any] = {"model": step.model, "messages": to_chat(step, report), **sampling}
    return body if tools is None else {**body, "tools": tools}


def chat_response(choices: list[Step], report: ExportReport, *, tokens: bool = True) -> dict[str, Any]:
    """The body of the answer to a call: a choice for each step, in vLLM's shape with ``return_token_ids``.

    Logprobs whose number is not that of the ids are left out.
    """
    first = choices[0]
    began = next((step.started_at for step in choices if step.started_at is not None), None)
    body: dict[str, Any] = {
        "id": first.response_id or first.call_id,
        "object": "chat.completion",
        "created": 0 if began is None else int(began.timestamp()),
        "model": first.response_model or first.model or "",
        "choices": [_choice(step, report, tokens) for step in choices if _has_answer(step)],
        # An answer from a cache has the usage of the call that filled it.
        "usage": None if first.status == "cached" else _chat_usage(first.usage),
    }
    prompts = [step.prompt_token_ids for step in choices] if tokens else []
    if all(same_array(prompt, prompts[0]) for prompt in prompts):
        return body if not prompts or prompts[0] is None else {**body, "prompt_token_ids": prompts[0].tolist()}
    # A request of completions with several prompts: their ids stand on the choices, where vLLM has them there.
    answered = [step for step in choices if _has_answer(step)]
    for choice, step in zip(body["choices"], answered, strict=True):
        choice["prompt_token_ids"] = listed(step.prompt_token_ids)
    return body


def finish_reason(step: Step) -> str | None:
    """The finish reason in chat's words, where it has one for it; otherwise the server's own."""
    reason = step.finish_reason
    return None if reason is None else _FINISH_REASONS.get(reason, reason)


def _choice(step: Step, report: ExportReport, tokens: bool) -> dict[str, Any]:
    message = answer(step, "json", report)
    choice: dict[str, Any] = {
        "index": step.choice,
        "message": {"role": "assistant", "content": None} if message is None else with_text(message),
        "finish_reason": finish_reason(step),
        "logprobs": None,
    }
    if tokens and step.completion_token_ids is not None:
        ids = choice["token_ids"] = step.completion_token_ids.tolist()
        if step.logprobs is not None and len(step.logprobs) == len(ids):
            choice["logprobs"] = {
                "content": [
                    {"token": f"token_id:{one}", "logprob": logprob, "bytes": None, "top_logprobs": []}
                    for one, logprob in zip(ids, step.logprobs.tolist(), strict=True)
                ]
            }
    if step.stop_reason is not None:
        choice["stop_reason"] = step.stop_reason
    return choice


def _has_answer(step: Step) -> bool:
    return step.completion is not None or step.completion_token_ids is not None


def _chat_usage(usage: Usage | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    counts: dict[str, Any] = {"prompt_tokens": usage.input, "completion_tokens": usage.output}
    if usage.input is not None and usage.output is not None:
        counts["total_tokens"] = usage.input + usage.output
    details = {
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
    for name, values in details.items():
        known = {key: value for key, value in values.items() if value is not None}
        if known:
            counts[name] = known
    return {name: value for name, value in counts.items() if value is not None}
