"""Compares an answer with the messages in which a later request repeats it.

Works on messages in their provider's shape: chat, Anthropic blocks, Responses items, Google's contents, text prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from rollout_trace.data.conversations import gives_start, is_from_assistant, n_asked
from rollout_trace.data.model import CUT_OFF
from rollout_trace.wire import google_parts

if TYPE_CHECKING:
    from rollout_trace.data.model import Completion, Step

Repeat = Literal["same", "arguments", "changed"]


def compare_answer(step: Step, previous: Step) -> Repeat:
    """Compares how a step's messages repeat the answer of ``previous``.

    ``same`` text and calls; ``arguments``: the JSON arguments have the same values in another spelling; ``changed``:
    anything else.
    """
    answer, messages = previous.completion, step.messages
    if answer is None or not messages or isinstance(messages[0], str):
        return "same"
    text, calls, _ = _leading_answer(messages[n_asked(previous) :])
    answer_text, answer_calls = _answer_parts(answer)
    if gives_start(previous):
        answer_text = _leading_answer((previous.messages or ())[-1:])[0] + answer_text
    stops_early = previous.status == "abandoned" or previous.finish_reason in (*CUT_OFF, "abort")
    if stops_early and not answer_calls and text.startswith(answer_text):
        # A later request continued the answer: the message has both parts.
        return "same"
    if text != answer_text or [name for name, _ in calls] != [name for name, _ in answer_calls]:
        return "changed"
    pairs = [(one, two) for (_, one), (_, two) in zip(calls, answer_calls, strict=True) if one != two]
    if not pairs:
        return "same"
    return "arguments" if all(_parsed_arguments(one) == _parsed_arguments(two) for one, two in pairs) else "changed"


def keeps_reasoning(step: Step, previous: Step) -> bool:
    """Whether the messages that repeat the previous answer still have its reasoning."""
    return _leading_answer((step.messages or ())[n_asked(previous) :])[2]


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
            said = google_parts.completion_of(google_parts.parts_of(message))
            text, google_calls = _answer_parts(said)
            texts.append(text)
            calls += google_calls
            reasoning = bool(said.reasoning) or reasoning
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
