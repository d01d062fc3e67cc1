"""Requests and answers of APIs as sources keep them, decoded by the protocols of the wire."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from rollout_trace.data.model import Attempt, amend
from rollout_trace.file.plain import dumps
from rollout_trace.wire.steps import Stores, exchange_of

if TYPE_CHECKING:
    from rollout_trace.data.model import Step


def protocol_of(request: Any, response: Any) -> str:
    """The protocol of a request and its answer, by the names that they have."""
    body = request if isinstance(request, dict) else {}
    answer = response if isinstance(response, dict) else {}
    if answer.get("object") == "response" or ("input" in body and "messages" not in body):
        return "openai.responses"
    if answer.get("type") == "message" or isinstance(answer.get("content"), list):
        return "anthropic.messages"
    if "prompt" in body and "messages" not in body:
        return "openai.completions"
    return "openai.chat"


def exchange_steps(
    stores: Stores,
    call_id: str,
    protocol: str,
    request: Any,
    response: Any,
    *,
    status: int = 200,
    started_at: datetime | None = None,
    latency: float | None = None,
) -> list[Step]:
    """The steps of one exchange, one for each choice. ``response``: an answer, or the list of a stream's chunks."""
    if isinstance(response, list):
        body = b"".join(b"data: " + dumps(chunk) + b"\n\n" for chunk in response) + b"data: [DONE]\n\n"
        request = {**request, "stream": True} if isinstance(request, dict) else request
    else:
        body = dumps(response)
        # The answer of a stream was put together by the source: it is no stream any more.
        request = {**request, "stream": False} if isinstance(request, dict) else request
    steps, _ = exchange_of(
        call_id,
        protocol,
        dumps(request) if isinstance(request, dict) else None,
        body,
        content_type="text/event-stream" if isinstance(response, list) else "application/json",
        status=status,
        stores=stores,
    )
    attempt = Attempt(started_at=started_at, duration=latency, status=status)
    for step in steps:
        amend(step, started_at=started_at, latency=latency, attempts=(attempt,))
    return steps
