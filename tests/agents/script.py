"""The model of the agents' tests: it calls a tool to add two numbers, and then gives the sum.

Nothing is kept between requests: what to answer is read from the conversation, so agents may ask in any order.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from rollout_trace.testing import Reply, RequestRecord, ToolCall

ADDEND = 25
_QUESTION = re.compile(rf"What is (\d+) \+ {ADDEND}\?")
_RESULT = "The sum is"

Model: TypeAlias = Callable[[Mapping[str, Any], RequestRecord], str | Reply]
"""Answers a request, from its JSON and its record."""


def question(number: int) -> str:
    """What rollout `number` is asked; its number is in every request that it makes."""
    return f"What is {number} + {ADDEND}? Use the tool `add`."


def tool_result(number: int) -> str:
    """What the tool `add` of every program returns."""
    return f"{_RESULT} {number + ADDEND}."


def final(number: int) -> str:
    """The text with which the model answers in the end."""
    return f"{number} + {ADDEND} = {number + ADDEND}"


def number_of(record: RequestRecord) -> int | None:
    """The rollout that a request belongs to; None where the question is not in it."""
    found = _QUESTION.findall(record.body.decode("utf-8", "replace"))
    return int(found[0]) if found else None


def numbers(record: RequestRecord) -> int:
    """`number_of` a request that must have one."""
    number = number_of(record)
    if number is None:
        raise ValueError(f"a request without the question: {record.body[:2000]!r}")
    return number


def has_result(record: RequestRecord) -> bool:
    """Whether the tool has run: its result is in the conversation."""
    return _RESULT.encode() in record.body


def two_turns(request: Mapping[str, Any], record: RequestRecord) -> Reply:
    """Calls the tool that the request offers (the one named `add`, if there are several), then answers."""
    number = numbers(record)
    if has_result(record):
        return Reply(final(number))
    return Reply(tool_calls=[ToolCall(_tool(request), json.dumps({"a": number, "b": ADDEND}))])


def _tool(request: Mapping[str, Any]) -> str:
    # Chat and Ollama nest the name in `function`; Responses and Anthropic do not; Google declares functions in a tool.
    declared = [one for tool in request["tools"] for one in tool.get("functionDeclarations", [tool])]
    names = [str((tool.get("function") or tool)["name"]) for tool in declared if "function" in tool or "name" in tool]
    return next((name for name in names if name.endswith("add")), names[0])


class AtOnce:
    """Lets nobody's first request be answered before `count` of them have come, which proves that they overlap."""

    def __init__(self, model: Model, count: int) -> None:
        self._model = model
        self._barrier = threading.Barrier(count)
        self._seen: set[int] = set()
        self._guard = threading.Lock()

    def __call__(self, request: Mapping[str, Any], record: RequestRecord) -> str | Reply:
        number = numbers(record)
        with self._guard:
            is_first = number not in self._seen
            self._seen.add(number)
        if is_first:
            self._barrier.wait(timeout=120)
        return self._model(request, record)
