"""What a recorded exchange answered, as a short text."""

from __future__ import annotations

from typing import Any

from rollout_trace.data.exchange import Exchange

from ._normal_form import parsed, protocol_of
from ._requests import request_of
from ._text_parts import one_line, size

_ENDS = {"cut": "cut off", "unreachable": "no answer: unreachable", "closed": "closed by the client"}


def answer_of(exchange: Exchange) -> str:
    """The text and the tool calls of an answer, or its error. It is not escaped."""
    end = _ENDS.get(exchange.outcome, "")
    if exchange.status is None:
        return end or "no answer"
    said = _said(exchange)
    if exchange.status >= 400:
        said = f"status {exchange.status}: {said}" if said else f"status {exchange.status}"
    return f"{said} ({end})" if end else said


def _said(exchange: Exchange) -> str:
    # Not above: it imports the decoders.
    from rollout_trace.wire import decode
    from rollout_trace.wire.body import decompress
    from rollout_trace.wire.protocols import model_in_path

    protocol = protocol_of(request_of(exchange))
    encoding = next((value for name, value in exchange.headers if name == "content-encoding"), None)
    try:
        body = decompress(exchange.response, encoding)
    except ValueError:  # A library for it may not be installed.
        return f"{size(len(exchange.response))} of {encoding}"
    if protocol is None:
        return one_line(parsed(body) if body else "")
    steps = decode(
        protocol,
        exchange.request,
        body,
        content_type=exchange.content_type or None,
        status=exchange.status or 200,
        model=model_in_path(protocol, exchange.path),
    )
    return " | ".join(filter(None, (_step_text(step) for step in steps)))


def _step_text(step: Any) -> str:
    parts = []
    if step.error is not None:
        parts.append(step.error.message)
    if (completion := step.completion) is not None:
        parts += [one_line(one) for one in (completion.content, completion.refusal) if one]
        parts += [f"{call.name}({call.arguments or ''})" for call in completion.tool_calls]
    return " ".join(parts)
