"""Ollama's messages and prompts as chat messages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollout_trace.report import ExportReport

_IMAGES = {"iVBOR": "image/png", "/9j/": "image/jpeg", "R0lG": "image/gif", "UklGR": "image/webp"}
"""Media types of images by how their base64 begins. Ollama's messages do not name them."""


def from_ollama(message: dict[str, Any] | str, report: ExportReport | None = None) -> dict[str, Any]:
    """One message, or one prompt, as a chat message.

    Thinking becomes ``reasoning_content``, images become parts of the content, arguments of tool calls a JSON text.
    """
    if isinstance(message, str):
        return {"role": "user", "content": message}
    found = {"role": message.get("role"), "content": _content(message, report)}
    if message.get("thinking"):
        found["reasoning_content"] = message["thinking"]
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        found["tool_calls"] = [_call(call) for call in calls if isinstance(call, dict)]
    if message.get("role") == "tool":
        named = {"tool_call_id": message.get("tool_call_id"), "name": message.get("tool_name")}
        found.update((name, value) for name, value in named.items() if value)
    return found


def _content(message: dict[str, Any], report: ExportReport | None) -> Any:
    images = message.get("images")
    if not isinstance(images, list) or not images:
        return message.get("content")
    parts: list[Any] = [{"type": "text", "text": message["content"]}] if message.get("content") else []
    for image in images:
        text = image if isinstance(image, str) else ""
        kind = next((media for beginning, media in _IMAGES.items() if text.startswith(beginning)), None)
        if kind is not None:
            parts.append({"type": "image_url", "image_url": {"url": f"data:{kind};base64,{text}"}})
        elif report is not None:
            report.drop("images of a format that is not known")
    return parts


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments or {}, ensure_ascii=False, separators=(",", ":"))
    return {
        "id": call.get("id"),
        "type": "function",
        "function": {"name": function.get("name"), "arguments": arguments},
    }
