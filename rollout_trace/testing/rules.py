"""A script of rules: what the last message says decides the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .script import Answer

Message = Mapping[str, Any]


@dataclass(frozen=True)
class When:
    """What a request looks like. Made by `when`."""

    last: str | None
    tool: str | None
    system: str | None
    turn: int | None

    def then(self, answer: Answer) -> Rule:
        """The rule that such a request gets this answer."""
        return Rule(self, answer)

    def matches(self, messages: Sequence[Message]) -> bool:
        """Whether the messages of a request are so."""
        if not messages:
            return False
        if self.last is not None and self.last not in text_of(messages[-1]):
            return False
        if self.tool is not None and self.tool != _tool_of(messages):
            return False
        systems = [message for message in messages if message.get("role") in ("system", "developer")]
        if self.system is not None and not any(self.system in text_of(message) for message in systems):
            return False
        return self.turn is None or self.turn == sum(message.get("role") == "assistant" for message in messages)


class Rule(NamedTuple):
    """An answer, and the requests that get it."""

    when: When
    answer: Answer


def when(
    last: str | None = None, *, tool: str | None = None, system: str | None = None, turn: int | None = None
) -> When:
    """The requests of which all of these are true; `when(...).then(answer)` is a rule for `by_content`.

    `last`: a text that is in the last message. `tool`: the last message is a result of the tool with this name.
    `system`: a text that is in the system prompt. `turn`: how often the model has answered in this conversation.
    """
    if turn is not None and not isinstance(turn, int):
        raise TypeError(f"when(turn={turn!r}): use a number")
    return When(last, tool, system, turn)


def by_content(*rules: Rule, otherwise: Answer | None = None) -> ByContent:
    """A script of rules: the first one that is true gives the answer, `otherwise` is for requests that none is for.

        script = by_content(
            when(tool="weather").then("It is sunny."),
            when("weather").then(Reply(tool_calls=[("weather", '{"city": "Paris"}')])),
            otherwise="I do not know.",
        )

    The same rules serve every protocol. Without `otherwise`, the server raises LookupError for any other request.
    """
    return ByContent(rules, otherwise)


class ByContent:
    """A script of rules. Made by `by_content`."""

    def __init__(self, rules: Sequence[Rule], otherwise: Answer | None) -> None:
        for rule in rules:
            if not isinstance(rule, Rule):
                raise TypeError(f"by_content() got {rule!r}: give it rules, as when('text').then('answer')")
        self._rules = rules
        self._otherwise = otherwise

    def __call__(self, request: Any, *, messages: Sequence[Message]) -> Answer:
        for rule in self._rules:
            if rule.when.matches(messages):
                return rule.answer
        if self._otherwise is None:
            last = text_of(messages[-1]) if messages else ""
            raise LookupError(f"no rule is for a request whose last message is {last!r}: add one, or `otherwise`")
        return self._otherwise


def text_of(message: Message) -> str:
    """The text of a message: its content, or the text parts of it."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _tool_of(messages: Sequence[Message]) -> str | None:
    """Name of the tool that the last message is a result of; None if it is none."""
    last = messages[-1]
    if last.get("role") != "tool":
        return None
    calls: list[Any] = [call for message in messages for call in message.get("tool_calls") or ()]
    asked: Any = next((call for call in reversed(calls) if call.get("id") == last.get("tool_call_id")), {})
    name = last.get("name") or last.get("tool_name") or (asked.get("function") or {}).get("name")
    return None if name is None else str(name)
