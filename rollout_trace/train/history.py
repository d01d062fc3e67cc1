"""Conversations as the agent sends them back: which step a prompt goes on from, and whether it repeats its answer.

Works on the messages in their provider's shape: chat, Anthropic blocks, Responses items, text prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from rollout_trace.data.model import Completion, Step

Repeat = Literal["same", "arguments", "changed"]

_ITEMS_SAID = frozenset({"function_call", "custom_tool_call", "reasoning"})


def goes_on(step: Step, previous: Step) -> bool:
    """Whether a step's messages are those of another, then an answer in the assistant's name, and perhaps more."""
    now, before = step.messages, previous.messages
    if not now or not before:
        return False
    if isinstance(now[0], str) and isinstance(before[0], str):
        said = previous.completion.content if previous.completion is not None else None
        return isinstance(said, str) and bool(said) and now[0].startswith(before[0] + said)
    return len(now) > len(before) and is_said(now[len(before)]) and _same(now, before)


def shares_its_start(step: Step, other: Step) -> bool:
    """Whether two conversations begin alike: their first message that is no system prompt is the same."""
    one, two = first(step.messages), first(other.messages)
    return one is not None and two is not None and one == two


def repeats(step: Step, previous: Step) -> Repeat:
    """Whether a step's messages say again what the previous answered: ``same`` text and calls, calls whose JSON
    ``arguments`` are written otherwise, or something that was ``changed``."""
    answer = previous.completion
    if answer is None or not step.messages or isinstance(step.messages[0], str):
        return "same"
    text, calls, _ = _said(step.messages[len(previous.messages or ()) :])
    answered, asked = _answered(answer)
    if text != answered or [name for name, _ in calls] != [name for name, _ in asked]:
        return "changed"
    pairs = [(one, two) for (_, one), (_, two) in zip(calls, asked, strict=True) if one != two]
    if not pairs:
        return "same"
    return "arguments" if all(_value(one) == _value(two) for one, two in pairs) else "changed"


def keeps_reasoning(step: Step, previous: Step) -> bool:
    """Whether the previous answer's reasoning is in a step's messages again."""
    return _said((step.messages or ())[len(previous.messages or ()) :])[2]


def _same(now: Sequence[Any], before: Sequence[Any]) -> bool:
    # From the end: conversations differ there first. Equal messages of one trajectory mostly are one object.
    return all(is_(now[at], before[at]) or now[at] == before[at] for at in reversed(range(len(before))))


def first(messages: Sequence[Any] | None) -> Any:
    """The first message that is no system prompt; None where there is none."""
    for message in messages or ():
        if not (isinstance(message, dict) and message.get("role") in ("system", "developer")):
            return message
    return None


def is_said(message: Any) -> bool:
    """Whether a message is in the assistant's name."""
    if not isinstance(message, dict):
        return False
    kind = message.get("type")
    return message.get("role") == "assistant" or (isinstance(kind, str) and kind in _ITEMS_SAID)


def _said(messages: Sequence[Any]) -> tuple[str, list[tuple[Any, Any]], bool]:
    """Text, calls (name, arguments) and whether there is reasoning, of the answer that messages begin with."""
    texts: list[str] = []
    calls: list[tuple[Any, Any]] = []
    reasoning = False
    for message in messages:
        if not is_said(message):
            break
        if message.get("type") in ("function_call", "custom_tool_call"):
            calls.append((message.get("name"), message.get("arguments", message.get("input"))))
        reasoning = reasoning or message.get("type") == "reasoning"
        reasoning = reasoning or bool(message.get("reasoning_content") or message.get("reasoning"))
        reasoning = _add_content(message.get("content"), texts, calls) or reasoning
        asked = message.get("tool_calls")
        for call in asked if isinstance(asked, list) else ():
            function = (call.get("function") or call.get("custom")) if isinstance(call, dict) else None
            held = function if isinstance(function, dict) else {}
            calls.append((held.get("name"), held.get("arguments", held.get("input"))))
    return "".join(texts), calls, reasoning


def _add_content(content: Any, texts: list[str], calls: list[tuple[Any, Any]]) -> bool:
    """Adds what a content holds, a text or a list of parts; True where it holds reasoning."""
    if isinstance(content, str):
        texts.append(content)
    reasoning = False
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, dict):
            continue
        if part.get("type") == "tool_use":
            calls.append((part.get("name"), part.get("input")))
        elif isinstance(part.get("text"), str):
            texts.append(part["text"])
        reasoning = reasoning or part.get("type") in ("thinking", "redacted_thinking")
    return reasoning


def _answered(answer: Completion) -> tuple[str, list[tuple[Any, Any]]]:
    texts: list[str] = []
    _add_content(answer.content if isinstance(answer.content, str) else list(answer.content or ()), texts, [])
    return "".join(texts), [(call.name, call.arguments) for call in answer.tool_calls]


def _value(arguments: Any) -> Any:
    """Arguments as the value they mean; a text that is no JSON as it is."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return arguments
