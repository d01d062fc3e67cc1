"""Scripts that know how far they are: one for each conversation, or rules by what the last message says."""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .script import Answer, Fault, FaultPlan, Faults, Reply, as_function, as_reply, checked_faults, reply_of

Message = Mapping[str, Any]


@dataclass(frozen=True)
class When:
    """A condition on requests. Made by `when`."""

    last: str | None
    tool: str | None
    system: str | None
    turn: int | None

    def then(self, answer: Answer) -> Rule:
        """Returns a rule: a request that matches gets this answer."""
        return Rule(self, answer)

    def matches(self, messages: Sequence[Message]) -> bool:
        """Returns whether the messages of a request match."""
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
    """An answer, and the condition on requests that get it."""

    when: When
    answer: Answer


def when(
    last: str | None = None, *, tool: str | None = None, system: str | None = None, turn: int | None = None
) -> When:
    """Makes a condition for requests that match all arguments; `when(...).then(answer)` is a rule for `by_content`.

    `last`: a text contained in the last message. `tool`: the last message is a result of the tool with this name.
    `system`: a text contained in the system prompt. `turn`: how often the model has answered in this conversation.
    """
    if turn is not None and not isinstance(turn, int):
        raise TypeError(f"when(turn={turn!r}): use a number")
    return When(last, tool, system, turn)


def by_content(*rules: Rule, otherwise: Answer | None = None) -> ByContent:
    """Makes a script of rules: the first one that matches gives the answer; `otherwise` answers all other requests.

        script = by_content(
            when(tool="weather").then("It is sunny."),
            when("weather").then(Reply(tool_calls=[("weather", '{"city": "Paris"}')])),
            otherwise="I do not know.",
        )

    The same rules work for every protocol. Without `otherwise`, the server raises LookupError for other requests.
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
            raise LookupError(f"no rule matches a request whose last message is {last!r}: add a rule, or `otherwise`")
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


Answers = Iterator[Answer] | Sequence[Answer] | Callable[[Any], Answer] | str | Reply | Fault
Factory = Callable[..., Answers] | Mapping[str, Answers]
_ASKING = ("user", "prompt")


def by_conversation(factory: Factory, *, faults: Faults | None = None) -> Conversations:
    """Makes a script that answers each conversation separately, however many run at the same time.

    `factory` is called with the first request of each conversation (and, if it has a parameter `messages`, with its
    messages as chat messages). It returns what answers the conversation: a list of answers, a function of the request,
    one answer for all requests, or a generator, the natural way to write a conversation:

        def weather(request):
            request = yield Reply(tool_calls=[("weather", '{"city": "Paris"}')])
            assert request["messages"][-1]["role"] == "tool"
            yield "It is sunny."

        with ScriptedServer(by_conversation(weather)) as server: ...

    Instead of a function, pass a dict from a text in the user's first message to what answers the conversation. The
    first text found is used; "" matches any message.

    A request belongs to the conversation whose messages it continues, in any protocol. A request that continues none,
    and in which the model has not answered yet, begins a new one, even if it equals an earlier request. If an agent
    changed earlier messages, the request belongs to the latest conversation with the same first user message. A request
    repeated in the middle of a conversation gets the same answer again, unless that was a fault. `faults` are the
    faults in each conversation, by the number of its request, from 1.

    The server raises IndexError if a conversation continues after its last answer.
    """
    return Conversations(factory, faults)


class _Conversation:
    """One conversation: its script, made when its first request is answered, and how far it is."""

    def __init__(self, faults: Faults | None) -> None:
        self.messages: list[str] = []
        self.failed = False  # the last answer was a fault
        self.last: Answer = ""
        self.guard = threading.Lock()
        self.script: Callable[[Any], Answer] | None = None
        self._plan = FaultPlan(faults)

    @property
    def left(self) -> int:
        return int(getattr(self.script, "left", 0))

    def answer(self, request: Any, make: Callable[[], Callable[[Any], Answer]]) -> Answer:
        """The answer to its next request. `make` makes the script."""
        script = self.script = self.script or make()
        key = "\n".join(self.messages).encode()
        self.last = found = self._plan.answers(key, lambda: [as_reply(script(request))])[0]
        self.failed = isinstance(found, Fault) and (found.hides_reply or found.breaks_reply)
        return found


class Conversations:
    """The conversations of a scripted server. Made by `by_conversation`."""

    def __init__(self, factory: Factory, faults: Faults | None = None) -> None:
        if not callable(factory) and not isinstance(factory, Mapping):
            raise TypeError(f"by_conversation({factory!r:.80}): give it a function of the first request, or a dict")
        self._factory = factory
        self._faults = checked_faults(faults)
        self._begun: dict[str, list[_Conversation]] = {}
        self._guard = threading.Lock()

    @property
    def left(self) -> int:
        """Number of unused answers in lists, over all conversations that have begun."""
        return sum(one.left for one in self._all())

    @property
    def count(self) -> int:
        """Number of conversations that have begun."""
        return len(self._all())

    def __call__(self, request: Any, *, messages: Sequence[Message]) -> Answer:
        sent = [json.dumps(message, sort_keys=True) for message in messages]
        with self._guard:
            one = self._find(sent, messages)
            is_repeated = one.messages == sent and not one.failed and bool(sent)
            # Set at once: an equal request on another thread belongs to another conversation.
            one.messages, one.failed = sent, False
        with one.guard:
            return one.last if is_repeated else one.answer(request, lambda: self._script(request, messages))

    def _all(self) -> list[_Conversation]:
        with self._guard:
            return [one for some in self._begun.values() for one in some]

    def _find(self, sent: list[str], messages: Sequence[Message]) -> _Conversation:
        """The conversation that a request belongs to, a new one if to none."""
        known = self._begun.setdefault(_start(messages), [])
        continued = [one for one in known if one.messages and _continues(sent, one.messages)]
        if continued:
            # Of those that are equal so far, the one whose answer was sent back.
            return max(continued, key=lambda one: (len(one.messages), _was_said(one, messages)))
        is_begun = any(message.get("role") in ("assistant", "tool") for message in messages)
        again = [one for one in known if one.messages == sent and (one.failed or is_begun)]
        if again:
            return again[0]
        if is_begun and known:
            return known[-1]
        known.append(_Conversation(self._faults))
        return known[-1]

    def _script(self, request: Any, messages: Sequence[Message]) -> Callable[[Any], Answer]:
        if callable(self._factory):
            keywords = {"messages": messages} if "messages" in inspect.signature(self._factory).parameters else {}
            return _script_of(self._factory(request, **keywords))
        task = next((text_of(message) for message in messages if message.get("role") in _ASKING), "")
        for text, answers in self._factory.items():
            if text in task:
                return _script_of(answers)
        known = ", ".join(map(repr, self._factory))
        raise LookupError(
            f"the script has no conversation that begins with {task!r}, only {known}: add it, or '' for all others"
        )


def _start(messages: Sequence[Message]) -> str:
    """Returns what all requests of a conversation have in common."""
    first = next((message for message in messages if message.get("role") == "user"), None)
    return "" if first is None else json.dumps(first, sort_keys=True)


def _continues(sent: list[str], before: list[str]) -> bool:
    if len(sent) > len(before):
        return sent[: len(before)] == before
    # The prompt of a text completion grows in itself.
    return (
        len(sent) == len(before) == 1
        and sent != before
        and _prompt(before) != ""
        and (_prompt(sent).startswith(_prompt(before)))
    )


def _prompt(sent: list[str]) -> str:
    message = json.loads(sent[0])
    return str(message["content"]) if message.get("role") == "prompt" else ""


def _was_said(one: _Conversation, messages: Sequence[Message]) -> bool:
    if len(messages) <= len(one.messages) or not isinstance(one.last, (Reply, Fault)):
        return False
    return text_of(messages[len(one.messages)]) == (reply_of(one.last).text or "")


def _script_of(answers: Answers) -> Callable[[Any], Answer]:
    return _Generated(answers) if isinstance(answers, Iterator) else as_function(answers)


class _Generated:
    """Takes the answers of an iterator; a generator is sent each request after the first."""

    def __init__(self, answers: Iterator[Answer]) -> None:
        self._answers = answers
        self._count = 0

    def __call__(self, request: Any) -> Answer:
        self._count += 1
        try:
            if self._count > 1 and isinstance(self._answers, Generator):
                answer: Answer = self._answers.send(request)
                return answer
            return next(self._answers)
        except StopIteration:
            given = "1 answer" if self._count == 2 else f"{self._count - 1} answers"
            raise IndexError(
                f"request {self._count} of a conversation came, but it has {given}: yield one more"
            ) from None
