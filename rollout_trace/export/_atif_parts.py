"""Parts of ATIF documents: contents, tool calls, the metrics of a step."""

from __future__ import annotations

import json
from collections.abc import Callable
from mimetypes import guess_type
from typing import TYPE_CHECKING, Any, TypeAlias

from rollout_trace.chat.messages import Message, arguments_of, calls_of

if TYPE_CHECKING:
    from rollout_trace.data.model import ToolRun
    from rollout_trace.report import ExportReport

Keep: TypeAlias = Callable[[str, str], str]
"""Takes a media type and a URL, and gives the path or URL that the document shall name."""

SOURCES = {"system": "system", "developer": "system", "assistant": "agent"}
_IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_AUDIO = {"wav": "audio/wav", "mp3": "audio/mpeg", "flac": "audio/flac", "aac": "audio/aac", "aiff": "audio/aiff"}
_NOT_EXTRA = frozenset({"role", "content", "tool_calls", "reasoning", "reasoning_content", "tool_call_id", "refusal"})


def without_none(values: dict[str, Any]) -> dict[str, Any]:
    """What there is: ATIF leaves out what is missing."""
    return {name: value for name, value in values.items() if value is not None}


def content_of(value: Any, keep: Keep, report: ExportReport) -> str | list[dict[str, Any]]:
    """The content of a chat message as ATIF has it: a text (empty for none), or parts of text, image and audio."""
    if not isinstance(value, list):
        return value if isinstance(value, str) else "" if value is None else json.dumps(value)
    parts = [part for item in value if (part := _part(item, keep, report)) is not None]
    return parts if any(part["type"] != "text" for part in parts) else "".join(part["text"] for part in parts)


def _part(item: Any, keep: Keep, report: ExportReport) -> dict[str, Any] | None:
    kind = item.get("type") if isinstance(item, dict) else type(item).__name__
    held = item.get(kind) if isinstance(item, dict) and isinstance(kind, str) else item
    if isinstance(held, str) and kind in ("text", "refusal", "str"):
        return {"type": "text", "text": held}
    url = held.get("url") if isinstance(held, dict) else held
    if kind == "image_url" and isinstance(url, str):
        media = _media_type(url)
        if media in _IMAGES:
            return {"type": "image", "source": {"media_type": media, "path": keep(media, url)}}
    if kind == "input_audio" and isinstance(held, dict) and held.get("format") in _AUDIO:
        media = _AUDIO[held["format"]]
        url = f"data:{media};base64,{held.get('data')}"
        return {"type": "audio", "source": {"media_type": media, "path": keep(media, url)}}
    report.drop(f"content parts that ATIF has no type for: {kind}")
    return None


def _media_type(url: str) -> str:
    """What a data URL says it is, or the ending of another one; empty where neither says."""
    if url.startswith("data:"):
        return url[5:].split(",", 1)[0].split(";", 1)[0]
    return guess_type(url.split("?", 1)[0])[0] or ""


def said(message: Message, keep: Keep, report: ExportReport) -> dict[str, Any]:
    """The fields of an ATIF step that a chat message fills, all but its number and source."""
    refusal = message.get("refusal")
    extra = {name: value for name, value in message.items() if name not in _NOT_EXTRA and value is not None}
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    return {
        "message": content_of(message.get("content") or refusal, keep, report),
        "reasoning_content": reasoning if isinstance(reasoning, str) and message.get("role") == "assistant" else None,
        "tool_calls": [_call(call, at) for at, call in enumerate(calls_of(message))] or None,
        "extra": extra if refusal is None else {**extra, "refusal": refusal},
    }


def call_id(call: Any, position: int) -> str:
    """The id of a tool call; of one without, its position in the answer."""
    found = call.get("id") if isinstance(call, dict) else None
    return found if isinstance(found, str) and found else f"call_{position}"


def _call(call: Any, position: int) -> dict[str, Any]:
    kind = call.get("type") if isinstance(call, dict) else None
    function = call.get("custom" if kind == "custom" else "function") if isinstance(call, dict) else None
    held = function if isinstance(function, dict) else {}
    written = held.get("input") if kind == "custom" else held.get("arguments")
    arguments = None if kind == "custom" else arguments_of(written)
    return without_none(
        {
            "tool_call_id": call_id(call, position),
            "function_name": str(held.get("name") or ""),
            "arguments": arguments or {},
            # Not an object, or a text that is no JSON: what the model wrote is kept as it is.
            "extra": {"arguments": written} if arguments is None else None,
        }
    )


def run_result(run: ToolRun) -> tuple[str | None, dict[str, Any]]:
    """What a tool gave, as a text, and what else is known of its run."""
    error = None if run.error is None else without_none({"type": run.error.type, "message": run.error.message})
    text = run.result if run.result is None or isinstance(run.result, str) else json.dumps(run.result, default=str)
    return text, without_none({"tool": run.name, "duration_seconds": run.duration, "error": error})
