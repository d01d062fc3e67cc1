"""One line for each HTTP exchange with a model: request, response, usage, status and timing, failures too.

Shapes: the ``llm_trajectory.jsonl`` of BenchFlow, ``LLMExchange`` in ``benchflow/trajectories/types.py`` (0.7.11).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rollout_trace.data.model import Attempt
from rollout_trace.export._chat_exchange import chat_request, chat_response
from rollout_trace.export._common import each, exporting, one_by_one
from rollout_trace.export._files import write_jsonl
from rollout_trace.export._rows import task_id
from rollout_trace.export._strict_json import strict_json
from rollout_trace.export._values import number
from rollout_trace.wire.protocols import record_of

if TYPE_CHECKING:
    import os
    from datetime import datetime

    from rollout_trace.data.model import ErrorInfo, Step, Usage
    from rollout_trace.data.trajectory import Trajectory
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


def exchanges(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    tokens: bool = True,
    strict: Strict = False,
    report: ExportReport | None = None,
) -> list[dict[str, Any]]:
    """One dict for each HTTP exchange with a model, in the order of the calls: ``LLMExchange(**row)``.

    - ``request``: ``timestamp``, ``method``, ``path``, ``headers`` (empty: none are recorded), ``body``
    - ``response``: ``timestamp`` of its end, ``status_code``, ``headers``, ``body``
    - ``duration_ms``; ``usage`` (``input``, ``output``, ...; None where the server sent none, as for an answer from a
      framework's cache); ``status`` (that of the step: ``ok``, ``error``, ``cancelled``, ``abandoned``,
      ``superseded``, ``cached``); ``error``
    - ``metadata``: ids of trajectory, episode, group, task, call and steps; ``attempt`` of ``attempts``; ``protocol``,
      ``engine``, ``agent_name``; the trajectory's ``reward``; ``cost``, ``time_to_first_token_ms``, ``request_id``,
      ``http_status``; and what the bodies are:

    ``bodies`` is ``recorded`` where the bytes were kept (``keep_bytes=True``) and the answer was one JSON object; else
    ``chat``: the call as a chat completion, whatever its protocol was, with token ids and logprobs in the form in which
    vLLM sends them, so that ``rollout_trace.wire.decode`` gives the same ids again. A call with ``n`` choices is one
    exchange, a call that was retried one for each attempt.

    ``status_code`` is 200 only where the answer came whole: it is the server's where that is an error, 499 where the
    caller went away or stopped reading, and 0 where there was no answer (or it broke off: what came of it stands beside
    the ``error`` in the body).

    Args:
        trajectories: one, or any iterable.
        tokens: False: bodies of the kind ``chat`` without token ids and logprobs.
        strict: raise ExportError instead of leaving something out.
        report: counts what is left out: what a chat message has no place for. Headers are not recorded, and not
            counted.

    Raises:
        ExportError: ``strict``, and something would be left out.
    """
    with exporting("exchanges", strict, report) as counts:
        return list(_exchanges(trajectories, tokens, counts))


def iter_exchanges(
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    tokens: bool = True,
    strict: Strict = False,
    report: ExportReport | None = None,
) -> Iterator[dict[str, Any]]:
    """The rows of ``exchanges``, each made on demand."""
    return one_by_one("iter_exchanges", strict, report, lambda counts: _exchanges(trajectories, tokens, counts))


def write_exchanges(
    path: str | os.PathLike[str],
    trajectories: Trajectory | Iterable[Trajectory],
    *,
    tokens: bool = True,
    strict: Strict = False,
    report: ExportReport | None = None,
) -> int:
    """Writes the rows of ``exchanges``, one a line, and returns their number.

    Raises:
        ExportError: ``strict``, and something would be left out.
        OSError: the file cannot be written.
        ValueError: the name does not end with ``.jsonl``, ``.jsonl.gz`` or ``.jsonl.zst``.
    """
    with exporting("write_exchanges", strict, report) as counts:
        return write_jsonl(path, _exchanges(trajectories, tokens, counts))


def _exchanges(
    trajectories: Trajectory | Iterable[Trajectory], tokens: bool, report: ExportReport
) -> Iterator[dict[str, Any]]:
    for trajectory in each(trajectories):
        report.drop("trajectories without steps", not trajectory.steps, where=f"trajectory {trajectory.id}")
        for _, choices in groupby(trajectory.steps, lambda step: step.call_id):
            yield from _call(trajectory, list(choices), tokens, report)
        report.read_one()


def _call(trajectory: Trajectory, steps: list[Step], tokens: bool, report: ExportReport) -> Iterator[dict[str, Any]]:
    first = steps[0]
    where = f"trajectory {trajectory.id}, step {first.id}"
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
        row = {
            "request": {
                "timestamp": _time(attempt.started_at),
                "method": "POST",
                "path": _path(first) if kind == "recorded" else _CHAT_PATH,
                "headers": {},
                "body": request,
            },
            "response": {
                "timestamp": _time(_end(attempt)),
                "status_code": _status_code(first, attempt, last),
                "headers": {},
                "body": _body(response, kind, status, error) if last else {"error": _error(error)},
            },
            "duration_ms": None if attempt.duration is None else attempt.duration * 1000,
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
        yield strict_json(_dated(row), report, where)


def _body(response: dict[str, Any], kind: str, status: str, error: ErrorInfo | None) -> dict[str, Any]:
    """The answer to a call. Of one that failed: the error, and what came before it, as of a stream that broke off."""
    if status != "error" or kind == "recorded":
        return response
    return {**(response if response["choices"] else {}), "error": _error(error)}


def _dated(row: dict[str, Any]) -> dict[str, Any]:
    """Without the times and durations that are not known: readers take null for none of them."""
    for part in (row["request"], row["response"]):
        if part["timestamp"] is None:
            del part["timestamp"]
    if row["duration_ms"] is None:
        del row["duration_ms"]
    return row


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


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
