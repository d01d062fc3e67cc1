"""Parts of ATIF documents: contents, tool calls, the metrics of a step."""

from __future__ import annotations

import json
from collections.abc import Callable
from mimetypes import guess_type
from typing import TYPE_CHECKING, Any, TypeAlias

from rollout_trace.wire.chat_messages import Message, arguments_of, calls_of

if TYPE_CHECKING:
    from rollout_trace.data.model import ToolRun
    from rollout_trace.report import ExportReport

MediaPath: TypeAlias = Callable[[str, str], str]
"""Maps a media type and a URL to the path or URL for the document."""

SOURCES = {"system": "system", "developer": "system", "assistant": "agent"}
_IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_AUDIO = {"wav": "audio/wav", "mp3": "audio/mpeg", "flac": "audio/flac", "aac": "audio/aac", "aiff": "audio/aiff"}
_NOT_EXTRA = frozenset({"role", "content", "tool_calls", "reasoning", "reasoning_content", "tool_call_id", "refusal"})


def without_none(values: dict[str, Any]) -> dict[str, Any]:
    """The values without those that are None: ATIF leaves out what is missing."""
    return {name: value for name, value in values.items() if value is not None}


def content_of(value: Any, media_path: MediaPath, report: ExportReport) -> str | list[dict[str, Any]]:
    """The content of a chat message in ATIF's form: a text (empty for none), or parts of text, image and audio."""
    if not isinstance(value, list):
        return value if isinstance(value, str) else "" if value is None else json.dumps(value)
    parts = [part for item in value if (part := _part(item, media_path, report)) is not None]
    return parts if any(part["type"] != "text" for part in parts) else "".join(part["text"] for part in parts)


def _part(item: Any, media_path: MediaPath, report: ExportReport) -> dict[str, Any] | None:
    kind = item.get("type") if isinstance(item, dict) else type(item).__name__
    # A chat part has its value under the name of its type: {"type": "text", "text": ...}.
    payload = item.get(kind) if isinstance(item, dict) and isinstance(kind, str) else item
    if isinstance(payload, str) and kind in ("text", "refusal", "str"):
        return {"type": "text", "text": payload}
    url = payload.get("url") if isinstance(payload, dict) else payload
    if kind == "image_url" and isinstance(url, str):
        media = _media_type(url)
        if media in _IMAGES:
            return {"type": "image", "source": {"media_type": media, "path": media_path(media, url)}}
    if kind == "input_audio" and isinstance(payload, dict) and payload.get("format") in _AUDIO:
        media = _AUDIO[payload["format"]]
        url = f"data:{media};base64,{payload.get('data')}"
        return {"type": "audio", "source": {"media_type": media, "path": media_path(media, url)}}
    report.drop(f"content parts that ATIF has no type for: {kind}")
    return None


def _media_type(url: str) -> str:
    """The media type of a data URL, or that of another URL's suffix; empty where there is neither."""
    if url.startswith("data:"):
        return url[5:].split(",", 1)[0].split(";", 1)[0]
    return guess_type(url.split("?", 1)[0])[0] or ""


def message_fields(message: Message, media_path: MediaPath, report: ExportReport) -> dict[str, Any]:
    """The fields of an ATIF step from a chat message: all but its number and source."""
    refusal = message.get("refusal")
    extra = {name: value for name, value in message.items() if name not in _NOT_EXTRA and value is not None}
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    return {
        "message": content_of(message.get("content") or refusal, media_path, report),
        "reasoning_content": reasoning if isinstance(reasoning, str) and message.get("role") == "assistant" else None,
        "tool_calls": [_call(call, at) for at, call in enumerate(calls_of(message))] or None,
        "extra": extra if refusal is None else {**extra, "refusal": refusal},
    }


def call_id(call: Any, position: int) -> str:
    """The id of a tool call; for one without, an id made of its position in the answer."""
    own = call.get("id") if isinstance(call, dict) else None
    return own if isinstance(own, str) and own else f"call_{position}"


def _call(call: Any, position: int) -> dict[str, Any]:
    kind = call.get("type") if isinstance(call, dict) else None
    function = call.get("custom" if kind == "custom" else "function") if isinstance(call, dict) else None
    payload = function if isinstance(function, dict) else {}
    written = payload.get("input") if kind == "custom" else payload.get("arguments")
    arguments = None if kind == "custom" else arguments_of(written)
    return without_none(
        {
            "tool_call_id": call_id(call, position),
            "function_name": str(payload.get("name") or ""),
            "arguments": arguments or {},
            # ATIF's `arguments` is an object: what is none (broken JSON, a custom tool's text) is kept verbatim here.
            "extra": {"arguments": written} if arguments is None else None,
        }
    )


def run_result(run: ToolRun) -> tuple[str | None, dict[str, Any]]:
    """The result of a tool as a text, and the other facts of its run."""
    names = ("type", "message", "code", "status")
    error = None if run.error is None else without_none({name: getattr(run.error, name) for name in names})
    began = None if run.started_at is None else run.started_at.isoformat()
    text = run.result if run.result is None or isinstance(run.result, str) else json.dumps(run.result, default=str)
    facts = {"tool": run.name, "started_at": began, "duration_seconds": run.duration, "error": error}
    return text, without_none(facts)
