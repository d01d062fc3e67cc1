"""Lines of Claude Code's conversations: their order, texts and durations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime

    from rollout_trace.importing._claude_code_requests import Request
    from rollout_trace.importing.fields import Fields


@dataclass(slots=True)
class Line:
    """A line of a conversation."""

    fields: Fields
    kind: str
    uuid: str
    parent: str | None
    time: datetime | None
    message: Fields | None
    agent_name: str | None = None
    request: Request | None = None
    """What an answer, or an error, was the answer to; None in files of older releases."""
    is_call: bool = True
    """False of an error that the CLI wrote where no request waited for an answer."""


def parents_first(lines: list[Line]) -> list[Line]:
    """The lines in their order, a line that stands before its parent behind it."""
    known, own = {""}, {line.uuid for line in lines}
    waiting: dict[str, list[Line]] = {}
    found: list[Line] = []
    for line in lines:
        if line.parent in own and line.parent not in known:
            waiting.setdefault(line.parent or "", []).append(line)
            continue
        ready = [line]
        while ready:
            one = ready.pop()
            found.append(one)
            known.add(one.uuid)
            ready += reversed(waiting.pop(one.uuid, []))
    # Of a circle: each is above the others.
    return [*found, *(line for left in waiting.values() for line in left)]


def duration(line: Line) -> float | None:
    """Seconds that a tool took, where its structured result has them."""
    more = line.fields.get("toolUseResult")
    for name in ("totalDurationMs", "durationMs") if isinstance(more, dict) else ():
        value = more.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e12:
            return float(value) / 1e3
    return None


def is_texts(content: Any) -> bool:
    """Whether a content is a list of text blocks alone."""
    return isinstance(content, list) and all(isinstance(one, dict) and one.get("type") == "text" for one in content)


def text_of(content: Any) -> str:
    """The text of a content: itself, or that of its text blocks."""
    if isinstance(content, str):
        return content
    texts = [one.get("text") for one in content if isinstance(one, dict)] if isinstance(content, list) else []
    return "\n".join(text for text in texts if isinstance(text, str))


def is_prompt(line: Line) -> bool:
    """Whether a line is what the user said, or that the user interrupted."""
    content = None if line.message is None else line.message.get("content")
    blocks = content if isinstance(content, list) else ()
    is_result = any(isinstance(one, dict) and one.get("type") == "tool_result" for one in blocks)
    return line.kind == "user" and not is_result and line.fields.get("isMeta") is not True


def queued(line: Line) -> dict[str, Any] | None:
    """The message of a prompt that was typed while the model worked, and was read with the next results of tools."""
    given = line.fields.get("attachment") if line.kind == "attachment" else None
    if not isinstance(given, dict) or given.get("type") != "queued_command":
        return None
    prompt, shown = given.get("prompt"), line.fields.get("rendered")
    texts = [one.get("content") for one in shown if isinstance(one, dict)] if isinstance(shown, list) else []
    content = texts[0] if len(texts) == 1 else prompt
    role = line.fields.get("renderedRole") if content is not prompt else "user"
    return {"role": role or "user", "content": content} if isinstance(content, (str, list)) else None
