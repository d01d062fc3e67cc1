"""Values of Claude Code's lines: their order, texts and durations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollout_trace.importing._claude_code_lines import Line


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
