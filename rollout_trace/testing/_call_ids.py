"""Ids of tool calls and items, numbered anew by where they first appear in a request.

Frameworks make ids up, and servers give new ones: two requests that differ in them alone ask for the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rollout_trace.wire.protocols import record_of


def renumber(protocol: str | None, body: Any) -> None:
    """Puts ``call_1``, ``call_2``, ... (``item_1``, ... for items of Responses) in the place of a body's ids."""
    layout = record_of(protocol).request
    messages = body.get(layout.messages) if isinstance(body, dict) else None
    numbers: dict[tuple[str, str], str] = {}
    for message in [messages] if isinstance(messages, dict) else messages if isinstance(messages, list) else ():
        for holder, key, kind in _places(record_of(protocol).messages, message):
            value = holder.get(key)
            if isinstance(value, str):
                count = sum(known == kind for known, _ in numbers) + 1 if (kind, value) not in numbers else 0
                holder[key] = numbers.setdefault((kind, value), f"{kind}_{count}")


def _places(shape: str, message: Any) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Each object that may hold an id, the field it is in, and which numbers it gets."""
    if not isinstance(message, dict):
        return
    if shape in ("chat", "ollama", "sampled"):
        yield from ((call, "id", "call") for call in _objects(message.get("tool_calls")))
        yield message, "tool_call_id", "call"
    elif shape == "items":
        yield message, "id", "item"
        yield message, "call_id", "call"
    elif shape == "blocks":
        for block in _objects(message.get("content")):
            if str(block.get("type")).endswith("tool_use"):
                yield block, "id", "call"
            yield block, "tool_use_id", "call"
    elif shape == "contents":
        for part in _objects(message.get("parts")):
            for name in ("functionCall", "function_call", "functionResponse", "function_response"):
                if isinstance(part.get(name), dict):
                    yield part[name], "id", "call"


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
