"""The responses of a conversation of Claude Code, each from all lines that were written of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rollout_trace.importing.fields import is_whole

if TYPE_CHECKING:
    from datetime import datetime

    from rollout_trace.data.model import Step
    from rollout_trace.importing._claude_code_values import Line
    from rollout_trace.importing.fields import Fields
    from rollout_trace.importing.steps import Thread

_COUNTS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_TEXTS = ("text", "thinking")
_SIZED = (str, list, dict)


@dataclass
class Point:
    """A place in a conversation: messages may follow it."""

    thread: Thread
    length: int
    time: datetime | None = None

    def branch(self) -> Thread:
        """A conversation that goes on here; a copy where another one does already."""
        return self.thread.after(self.length)


@dataclass
class Response:
    """One response."""

    lines: list[Line] = field(default_factory=list)
    blocks: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)
    """The blocks of its lines, each with its place in the response where its line has one."""
    content: list[Any] = field(default_factory=list)
    """The blocks of the response, each once; set by ``responses_of``."""
    usage: dict[str, Any] = field(default_factory=dict)
    stop_reason: str | None = None
    stop_sequence: str | None = None
    point: Point | None = None
    step: Step | None = None


def responses_of(lines: list[Line]) -> dict[str, Response]:
    """The response that each line of the assistant is of, by the line's uuid."""
    made: dict[str, Response] = {}
    requests: dict[str, str] = {}
    found: dict[str, Response] = {}
    for line in lines:
        if line.kind != "assistant" or line.message is None:
            continue
        key = line.message.name("id") or line.uuid
        request = line.fields.name("requestId") or line.fields.name("requestRef")
        if request is not None and requests.setdefault(key, request) != request:
            # Some gateways give every response the same id.
            key = f"{key} {request}"
        found[line.uuid] = response = made.setdefault(key, Response())
        _collect(response, line, line.message)
    for response in made.values():
        response.content = joined(response.blocks)
    return found


def _collect(response: Response, line: Line, message: Fields) -> None:
    response.lines.append(line)
    content = message.get("content")
    if content is None:
        message.wrong("content", "a text or a list of blocks")
    texts = [{"type": "text", "text": content}] if isinstance(content, str) else None
    blocks = [block.values for block in message.objects("content")] if texts is None else texts
    place = line.fields.get("apiBlockIndex") if len(blocks) == 1 else None
    response.blocks += [(place, block) for block in blocks]
    usage = message.object("usage")
    for name, value in () if usage is None else usage.values.items():
        known = response.usage.get(name)
        # Early lines of older releases have counts of what had been streamed by then.
        if value is not None and not (is_whole(known) and is_whole(value) and known > value):
            response.usage[name] = value
    if usage is not None:
        for name in _COUNTS:
            usage.count(name)
    response.stop_reason = message.text("stop_reason") or response.stop_reason
    response.stop_sequence = message.text("stop_sequence") or response.stop_sequence


def joined(blocks: list[tuple[Any, dict[str, Any]]]) -> list[dict[str, Any]]:
    """The blocks of a response, each once: some are written again, as they were or as far as they had been streamed.

    Blocks with equal texts may be two: they are one where their lines have the same place for them, or where all that
    was written of the response is written again from its begin.
    """
    made: list[dict[str, Any]] = []
    places: dict[int, int] = {}
    marks: dict[str, int] = {}
    at = 0
    while at < len(blocks):
        place, block = blocks[at]
        # The id of a call and the signature of a thought are of one block alone.
        mark = block.get("id") or block.get("signature")
        known = marks.get(mark) if isinstance(mark, str) else None
        known = places.get(place) if known is None and is_whole(place) else known
        count = 0 if is_whole(place) or known is not None else _repeated(blocks[at:], made)
        if known is not None:
            made[known] = _fuller(made[known], block)
            at += 1
        elif count:
            made[:count] = map(_fuller, made[:count], (one for _, one in blocks[at : at + count]))
            at += count
        else:
            if is_whole(place):
                places[place] = len(made)
            if isinstance(mark, str):
                marks[mark] = len(made)
            made.append(block)
            at += 1
    return made


def _repeated(blocks: list[tuple[Any, dict[str, Any]]], made: list[dict[str, Any]]) -> int:
    """How many of the next blocks repeat the first ones; 0 where others follow before all of those are repeated."""
    count = 0
    for (_, block), known in zip(blocks, made, strict=False):
        if not _repeats(block, known):
            break
        count += 1
    return count if count in (len(blocks), len(made)) else 0


def _repeats(block: dict[str, Any], known: dict[str, Any]) -> bool:
    """Whether two blocks are one at two times."""
    kind = block.get("type")
    if kind != known.get("type"):
        return False
    if kind == "tool_use" and block.get("id") is not None:
        return bool(block["id"] == known.get("id"))
    if block.get("signature") and known.get("signature") not in (None, "", block["signature"]):
        return False  # Of thoughts whose text is not shown, nothing else differs.
    name = str(kind)
    new, old = block.get(name), known.get(name)
    if name in _TEXTS and isinstance(new, str) and isinstance(old, str):
        return new.startswith(old) or old.startswith(new)
    return block == known


def _fuller(known: dict[str, Any], block: dict[str, Any]) -> dict[str, Any]:
    """The later of two states of a block: what it holds only grows."""
    first, second = (sum(len(one) for one in each.values() if isinstance(one, _SIZED)) for each in (known, block))
    return block if second >= first else known
