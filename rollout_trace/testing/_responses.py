"""A minimal Responses API: the text of the reply, as one message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ._sampling import Completion
from ._turn import Turn

_Json = dict[str, Any]


def responses_object(turn: Turn, completion: Completion) -> _Json:
    """The body of an unstreamed answer."""
    incomplete = completion.finish_reason == "length"
    counts = turn.usage([completion])
    return _head(turn) | {
        "incomplete_details": {"reason": "max_output_tokens"} if incomplete else None,
        "output": [_message(turn, completion.text("content"), "completed")],
        "status": "incomplete" if incomplete else "completed",
        "usage": {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": counts["total_tokens"],
        },
    }


def _head(turn: Turn) -> _Json:
    """A response that has just begun."""
    return {
        "id": turn.id,
        "created_at": turn.created,
        "error": None,
        "incomplete_details": None,
        "instructions": turn.request.get("instructions"),
        "metadata": turn.request.get("metadata"),
        "model": turn.model,
        "object": "response",
        "output": [],
        "parallel_tool_calls": True,
        "temperature": turn.request.get("temperature", 1.0),
        "tool_choice": turn.request.get("tool_choice", "auto"),
        "tools": turn.request.get("tools", []),
        "top_p": turn.request.get("top_p", 1.0),
        "max_output_tokens": turn.request.get("max_output_tokens"),
        "status": "in_progress",
        "usage": None,
    }


def _message(turn: Turn, text: str, status: str) -> _Json:
    content = [_part(text)] if status == "completed" else []
    return {"id": f"msg_{turn.id}", "content": content, "role": "assistant", "status": status, "type": "message"}


def _part(text: str) -> _Json:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": []}


def responses_events(turn: Turn, completion: Completion) -> Iterator[_Json]:
    """The events of a streamed answer; `type` is also the name of the event."""
    for number, event in enumerate(_events(turn, completion)):
        yield {**event, "sequence_number": number}


def _events(turn: Turn, completion: Completion) -> Iterator[_Json]:
    text = completion.text("content")
    here = {"item_id": f"msg_{turn.id}", "output_index": 0, "content_index": 0}
    yield {"type": "response.created", "response": _head(turn)}
    yield {"type": "response.in_progress", "response": _head(turn)}
    begun = _message(turn, "", "in_progress")
    yield {"type": "response.output_item.added", "output_index": 0, "item": begun}
    yield {"type": "response.content_part.added", **here, "part": _part("")}
    for group, _ in turn.groups(completion.tokens):
        delta = "".join(t.effect.text for t in group if t.effect is not None and t.effect.kind == "content")
        if delta:
            yield {"type": "response.output_text.delta", **here, "delta": delta, "logprobs": []}
    yield {"type": "response.output_text.done", **here, "text": text, "logprobs": []}
    yield {"type": "response.content_part.done", **here, "part": _part(text)}
    yield {"type": "response.output_item.done", "output_index": 0, "item": _message(turn, text, "completed")}
    yield {"type": "response.completed", "response": responses_object(turn, completion)}
