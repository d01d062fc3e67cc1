"""Comparison of conversations: whether a request continues an earlier step, and repeats its answer unchanged.

Works on messages in their provider's shape: chat, Anthropic blocks, Responses items, Google's contents, text prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from rollout_trace.chat import google
from rollout_trace.data.model import CUT_OFF
from rollout_trace.wire import google_parts

if TYPE_CHECKING:
    from rollout_trace.data.model import Completion, Step

Repeat = Literal["same", "arguments", "changed"]

_ASSISTANT_ITEMS = frozenset({"function_call", "custom_tool_call", "reasoning"})


def continues(step: Step, previous: Step) -> bool:
    """Whether a step's messages are those of ``previous``, then an assistant message, and perhaps more.

    A text prompt continues another if it begins with that prompt and its answer.
    """
    now, before = step.messages, asked(previous)
    if not now or not before:
        return False
    if isinstance(now[0], str) and isinstance(before[0], str):
        reply = previous.completion.content if previous.completion is not None else None
        # An empty answer adds nothing to the prompt: any prompt with this beginning would seem to continue it.
        return isinstance(reply, str) and bool(reply) and now[0].startswith(before[0] + reply)
    return len(now) > len(before) and is_from_assistant(now[len(before)]) and _same(now, before)


def continues_last(step: Step) -> bool:
    """Whether the answer continues the last message of the request: ``continue_final_message`` of vLLM and SGLang."""
    return isinstance(step.sampling, Mapping) and step.sampling.get("continue_final_message") is True


def asked(step: Step) -> Sequence[Any] | None:
    """A step's messages before its answer: without the last one where the answer continues it.

    An answer that was cut off or aborted goes on so: the conversation has one answer, of both parts.
    """
    messages = step.messages
    return messages[:-1] if messages and _given_start(step) else messages


def _given_start(step: Step) -> str:
    """The text of the last message where the answer continues it; empty where the answer begins a message."""
    last = step.messages[-1] if continues_last(step) and step.messages else None
    return _leading_answer([last])[0] if is_from_assistant(last) else ""


def shares_start(step: Step, other: Step) -> bool:
    """Whether two conversations have the same first message, system prompts aside."""
    one, two = first(step.messages), first(other.messages)
    return one is not None and two is not None and one == two


def compare_answer(step: Step, previous: Step) -> Repeat:
    """How a step's messages repeat the answer of ``previous``.

    ``same`` text and calls; ``arguments``: the JSON arguments have the same values in another spelling; ``changed``:
    anything else.
    """
    answer = previous.completion
    if answer is None or not step.messages or isinstance(step.messages[0], str):
        return "same"
    text, calls, _ = _leading_answer(step.messages[len(asked(previous) or ()) :])
    answer_text, answer_calls = _answer_parts(answer)
    answer_text = _given_start(previous) + answer_text
    if _stops_early(previous) and not answer_calls and text.startswith(answer_text):
        # A later request continued the answer: the message has both parts.
        return "same"
    if text != answer_text or [name for name, _ in calls] != [name for name, _ in answer_calls]:
        return "changed"
    pairs = [(one, two) for (_, one), (_, two) in zip(calls, answer_calls, strict=True) if one != two]
    if not pairs:
        return "same"
    return "arguments" if all(_parsed_arguments(one) == _parsed_arguments(two) for one, two in pairs) else "changed"


def _stops_early(step: Step) -> bool:
    return step.status == "abandoned" or step.finish_reason == "abort" or step.finish_reason in CUT_OFF


def keeps_reasoning(step: Step, previous: Step) -> bool:
    """Whether the messages that repeat the previous answer still have its reasoning."""
    return _leading_answer((step.messages or ())[len(asked(previous) or ()) :])[2]


def _same(now: Sequence[Any], before: Sequence[Any]) -> bool:
    # From the end, where conversations differ first. Equal messages of one trajectory are mostly one object.
    return all(is_(now[at], before[at]) or now[at] == before[at] for at in reversed(range(len(before))))


def first(messages: Sequence[Any] | None) -> Any:
    """The first message that is no system or developer prompt; None where there is none."""
    for message in messages or ():
        if not (isinstance(message, dict) and message.get("role") in ("system", "developer")):
            return message
    return None


def is_from_assistant(message: Any) -> bool:
    """Whether a message has the role assistant (Google's: model), or is a Responses item of it: a call, reasoning."""
    if not isinstance(message, dict):
        return False
    kind = message.get("type")
    return message.get("role") in ("assistant", "model") or (isinstance(kind, str) and kind in _ASSISTANT_ITEMS)


def _leading_answer(messages: Sequence[Any]) -> tuple[str, list[tuple[Any, Any]], bool]:
    """Text, calls (name, arguments) and presence of reasoning, of the assistant messages at the beginning."""
    texts: list[str] = []
    calls: list[tuple[Any, Any]] = []
    reasoning = False
    for message in messages:
        if not is_from_assistant(message):
            break
        if message.get("type") in ("function_call", "custom_tool_call"):
            calls.append((message.get("name"), message.get("arguments", message.get("input"))))
        reasoning = reasoning or message.get("type") == "reasoning"
        reasoning = reasoning or bool(message.get("reasoning_content") or message.get("reasoning"))
        reasoning = _add_content(message.get("content"), texts, calls) or reasoning
        if message.get("role") == "model":
            reasoning = _add_google_parts(message, texts, calls) or reasoning
        tool_calls = message.get("tool_calls")
        for call in tool_calls if isinstance(tool_calls, list) else ():
            function = (call.get("function") or call.get("custom")) if isinstance(call, dict) else None
            function = function if isinstance(function, dict) else {}
            calls.append((function.get("name"), function.get("arguments", function.get("input"))))
    return "".join(texts), calls, reasoning


def _add_content(content: Any, texts: list[str], calls: list[tuple[Any, Any]]) -> bool:
    """Adds the texts and calls of a content (a text or a list of parts); returns whether it has reasoning."""
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
        reasoning = reasoning or part.get("type") in ("thinking", "redacted_thinking", "reasoning")
    return reasoning


def _add_google_parts(message: dict[str, Any], texts: list[str], calls: list[tuple[Any, Any]]) -> bool:
    """Adds the texts and calls of one of Google's contents; returns whether it has reasoning."""
    said = google_parts.completion_of(google.parts_of(message))
    content, own_calls = _answer_parts(said)
    texts.append(content)
    calls += own_calls
    return bool(said.reasoning)


def _answer_parts(answer: Completion) -> tuple[str, list[tuple[Any, Any]]]:
    texts: list[str] = []
    _add_content(answer.content if isinstance(answer.content, str) else list(answer.content or ()), texts, [])
    return "".join(texts), [(call.name, call.arguments) for call in answer.tool_calls]


def _parsed_arguments(arguments: Any) -> Any:
    """The JSON value of arguments; a text that is no JSON is returned unchanged."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return arguments
