"""Streamed calls of logfire: a span that ends when the stream begins, and a log with the answer when it has ended."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING

from rollout_trace.file.plain import dumps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rollout_trace.importing.span_values import Span

_ANSWERS = ("gen_ai.output.messages", "response_data", "all_messages_events")
_REQUESTS = ("request_data", "gen_ai.request.model", "gen_ai.input.messages", "gen_ai.system_instructions")


def joined_streams(spans: Iterable[Span]) -> list[Span]:
    """The spans; that of a streamed call has what its log says of the answer, and the log is not among them.

    The log names no span: it is of the earliest call with the same request, of its trace where there is one, that has
    no answer yet.
    """
    found = list(spans)
    waiting: dict[bytes, deque[Span]] = defaultdict(deque)
    for span in found:
        if span.text("logfire.span_type") == "span" and span.error is None and not _has_answer(span):
            waiting[_request(span)].append(span)
    kept = []
    for span in found:
        is_log = span.text("logfire.span_type") == "log" and _has_answer(span)
        opened = _pop(waiting.get(_request(span)), span) if is_log else None
        if opened is None:
            kept.append(span)
            continue
        kinds = {name: opened.attributes.get(name) for name in ("logfire.span_type", "logfire.msg")}
        opened.attributes.update({**span.attributes, **kinds})
        opened.ended_at = span.started_at or opened.ended_at
    return kept


def _pop(waiting: deque[Span] | None, log: Span) -> Span | None:
    if not waiting:
        return None
    found = next((one for one in waiting if one.trace_id == log.trace_id), waiting[0])
    waiting.remove(found)
    return found


def _has_answer(span: Span) -> bool:
    return any(span.attributes.get(name) is not None for name in _ANSWERS)


def _request(span: Span) -> bytes:
    return dumps([span.attributes.get(name) for name in _REQUESTS])
