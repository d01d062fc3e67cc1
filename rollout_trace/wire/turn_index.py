"""Which recorded step a request continues, by its messages: its request and its answer begin them.

``message_key`` says what counts as the same message. Frameworks send an answer back in a shape of their own: without
its reasoning, with ``null`` for no text, with the keys of its arguments in another order.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from rollout_trace.data.conversations import MessageTree, Node
from rollout_trace.data.model import CUT_OFF
from rollout_trace.wire import chat_messages

if TYPE_CHECKING:
    from rollout_trace.data.model import Step

_RECENT = 16
"""Steps whose messages a request is compared with as they stand: as many conversations can take turns."""
_REASONING_FIELDS = ("reasoning", "reasoning_content")
_UNREAD = frozenset({"role", "content", "name", "tool_calls", *_REASONING_FIELDS, "reasoning_details", "annotations",
                     "cache_control", "item_id", "status", "signature", "index", "id",
                     "provider_specific_fields"})  # fmt: skip
"""Fields of a message that are compared by themselves, or that no prompt holds."""
_REASONING = ("thinking", "redacted_thinking", "reasoning")
_TEXTS = ("text", "input_text", "output_text", "refusal", *_REASONING)
_ITEMS = ("message", "reasoning", "function_call", "custom_tool_call", "function_call_output",
          "custom_tool_call_output", "tool_use", "tool_result")  # fmt: skip

Message = Mapping[str, Any]


def message_key(message: Any) -> Hashable:
    """Returns a key that two messages share if they say the same.

    Compared are role, text, reasoning, tool calls (kind, name and arguments, these by their values) and all other
    fields that are set. No text is ``None``, ``""`` or a list without parts; a text is the list of that one part. Not
    compared are the ids of an answer's calls, and what no prompt holds: annotations, signatures, marks of caches.
    """
    if not isinstance(message, Mapping):
        return plain(message)
    return _reasoning(message), plain(message.get("name") or None), _answer(message)


def _answer(message: Message) -> Hashable:
    """The key without reasoning, which frameworks may leave out, and name, which LangGraph adds to answers."""
    calls = tuple((_kind_of(call), name, _arguments(text)) for call, (name, text, _) in _named(message))
    rest = {name: value for name, value in message.items() if _is_set(value) and name not in _UNREAD}
    return plain(message.get("role")), _content(message.get("content")), plain(calls), plain(rest)


def _reasoning(message: Message) -> Hashable:
    """The reasoning that a message holds; None for none."""
    found = next((message[name] for name in _REASONING_FIELDS if _is_set(message.get(name))), None)
    content = message.get("content")
    parts = [part for part in content if _kind_of(part) in _REASONING] if isinstance(content, (list, tuple)) else []
    return None if found is None and not parts else plain((found, parts))


def _kind_of(value: Any) -> Any:
    return value.get("type") if isinstance(value, Mapping) else None


def _named(message: Message) -> list[tuple[Any, tuple[Any, Any, Any]]]:
    calls = message.get("tool_calls")
    return list(zip(calls, calls_in(message), strict=True)) if isinstance(calls, (list, tuple)) else []


def calls_in(message: Message) -> list[tuple[Any, Any, Any]]:
    """The tool calls of a chat message: name, arguments, id."""
    found, calls = [], message.get("tool_calls")
    for call in calls if isinstance(calls, (list, tuple)) else ():
        function = (call.get("function") or call.get("custom")) if isinstance(call, Mapping) else None
        function = function if isinstance(function, Mapping) else {}
        arguments = function.get("arguments", function.get("input"))
        found.append((function.get("name"), arguments, call.get("id") if isinstance(call, Mapping) else None))
    return found


def _is_set(value: Any) -> bool:
    return value is not None and value not in ("", [], {})


def _content(content: Any) -> Hashable:
    """The texts of a content, or what it holds; None for none."""
    if content is None or isinstance(content, str):
        return content or None
    if not isinstance(content, (list, tuple)):
        return plain(content)
    parts = [part for part in content if _kind_of(part) not in _REASONING]
    said = tuple([plain(part) if (text := _text(part)) is None else text for part in parts])
    if len(said) == 1 and isinstance(said[0], str):
        return said[0] or None
    return said or None


def _text(part: Any) -> str | None:
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, Mapping) else None
    is_text = isinstance(part, Mapping) and part.get("type", "text") in ("text", "input_text", "output_text")
    return text if is_text and isinstance(text, str) else None


def has_media(items: Sequence[Any]) -> bool:
    """Whether messages or items, as they were sent, hold more than text: they, or a result in them."""
    return any(map(_is_media, items))


def _is_media(item: Any) -> bool:
    if not isinstance(item, Mapping):
        return False
    if "role" not in item and item.get("type", "message") not in _ITEMS:
        return True
    held = [item.get("content"), item.get("output")]
    parts = [part for one in held if isinstance(one, (list, tuple)) for part in one]
    return any((isinstance(part, Mapping) and part.get("type", "text") not in (*_TEXTS, *_ITEMS)) or _is_nested(part)
               for part in parts)  # fmt: skip


def _is_nested(part: Any) -> bool:
    """Whether a part that is a result of a tool holds more than text."""
    return isinstance(part, Mapping) and part.get("type") == "tool_result" and _is_media({**part, "type": "message"})


def _arguments(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return [msgspec.json.decode(value)]
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return value


def plain(value: Any) -> bytes:
    """Returns bytes that are equal for equal values; for what has no JSON, those of its ``repr``. Never raises."""
    try:
        return msgspec.json.encode(value, order="sorted", enc_hook=str)
    except Exception:  # Half a surrogate pair, a hundred thousand brackets, a class of the user's.
        try:
            return repr(value).encode("utf-8", "surrogatepass")
        except Exception:
            return f"{type(value)} {id(value)}".encode()


class Found(NamedTuple):
    """The step that a request continues."""

    step: Step | None
    """None where it continues none that is known."""
    answer: Message
    """The step's answer, as the request has it."""
    thought: bool
    """Whether an answer of the conversation held thinking."""
    added: str
    """Text that the request adds to an answer that was cut off: smolagents does, behind a stop text."""
    new: list[Message]
    """The messages behind it."""
    changed: int | None
    """Index of the first message that an earlier request or answer has otherwise; None where none is known."""


_NOTHING = Found(None, {}, False, "", [], None)


class _Sent(NamedTuple):
    """A request that a step answered."""

    protocol: str | None
    messages: list[Any]
    node: Node
    """Of its last message."""
    found: Found
    """What it continued itself."""


class TurnIndex(MessageTree):
    """The steps of one trajectory by the messages that they were asked with. Not safe for threads."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: dict[Node, list[Step]] = {}
        """Those whose requests end at a node."""
        self._seen: set[str] = set()
        self._recent: list[_Sent] = []
        """Of the latest steps."""
        self._answers: set[Hashable] = set()
        """Keys of the steps' answers."""
        self._starts: set[Hashable] = set()
        """Keys of the first messages that are no system prompts."""

    def key(self, message: Any) -> Hashable:
        # Computed each time: the messages of a request are its caller's, who may change them in their place.
        return message_key(message)

    def add(self, steps: Sequence[Step]) -> None:
        """Adds the steps that are new: those that ended with an answer."""
        for step in steps:
            if step.id in self._seen or step.status not in ("ok", "abandoned"):
                continue
            self._seen.add(step.id)
            if step.messages is None or step.completion is None:
                continue
            sent = list(step.messages)
            found, node = self._find(step.protocol, sent)
            self._starts.add(node.start)
            self._steps.setdefault(node, []).append(step)
            self._answers.add(_answer_key(step))
            self._recent = [_Sent(step.protocol, sent, node, found), *self._recent[: _RECENT - 1]]

    def find(self, protocol: str, messages: Sequence[Any]) -> Found:
        """Finds the step whose request and answer begin the messages: the one with the most of them.

        Args:
            protocol: of the request.
            messages: in its shape.
        """
        return self._find(protocol, messages)[0]

    def _find(self, protocol: str | None, messages: Sequence[Any]) -> tuple[Found, Node]:
        """The step, and the node of the last message."""
        known = self._known_beginning(protocol, messages)
        found, node, at = (_NOTHING, self.root, 0) if known is None else (known.found, known.node, len(known.messages))
        path = self._walk(node, _chat(protocol, messages[at:]))
        is_known = at > 0 or self._is_known(path)
        found, first_new = found._replace(new=[*found.new]), found.changed
        for message, one, is_new in path:
            answered = self._answered(node, message)
            if answered is not None:
                step, added = answered
                found, first_new = Found(step, message, found.thought or _has_thought(step), added, [], None), None
            else:
                first_new = one.depth - 1 if first_new is None and is_new else first_new
                found.new.append(message)
                if message.get("role") == "assistant" and _reasoning(message) is not None:
                    found = found._replace(thought=True)
                if is_known and message.get("role") == "assistant":
                    found = found._replace(changed=one.depth - 1 if first_new is None else first_new)
            node = one
        return found, node

    def _walk(self, node: Node, messages: Sequence[Message]) -> list[tuple[Message, Node, bool]]:
        """The chat messages behind a node, each with its own, and whether that is new."""
        path = []
        for message in messages:
            child = self.child(node, message)
            node = child or self.append(node, message)
            path.append((message, node, child is None))
        return path

    def _is_known(self, path: Sequence[tuple[Message, Node, bool]]) -> bool:
        """Whether messages are a conversation of this trajectory: by their first one, or by an answer among them."""
        answers = [_answer(message) for message, _, _ in path if message.get("role") == "assistant"]
        return bool(path) and (path[-1][1].start in self._starts or not self._answers.isdisjoint(answers))

    def _known_beginning(self, protocol: str | None, messages: Sequence[Any]) -> _Sent | None:
        """The latest step with the most messages that these begin with, compared as they were sent."""
        best: _Sent | None = None
        for one in self._recent:
            length = len(one.messages)
            is_longer = length <= len(messages) and (best is None or length > len(best.messages))
            if is_longer and one.protocol == protocol and messages[:length] == one.messages:
                best = one
        return best

    def _answered(self, node: Node, message: Message) -> tuple[Step, str] | None:
        """The step of a node whose answer a message is: of several the one with its ids of calls, then the latest call.

        And the text that is added to it.

        Choices of one call that say the same differ in nothing that a request shows: the first is taken.
        """
        asked = self._steps.get(node)
        if not asked or message.get("role") != "assistant":
            return None
        thought, key = _reasoning(message), _answer(message)
        ids = [one for _, _, one in calls_in(message)]
        asked_of = [one for one in asked if thought is None or thought in _reasonings(one)]
        same = [one for one in asked_of if _answer_key(one) == key]
        with_ids = [one for one in same if one.completion and [call.id for call in one.completion.tool_calls] == ids]
        same = with_ids or same
        if same:
            return next(one for one in same if one.call_id == same[-1].call_id), ""
        return next(((one, added) for one in reversed(asked_of) if (added := _added(one, message)) is not None), None)


def _reasonings(step: Step) -> tuple[Hashable, ...]:
    """The keys of the reasoning of a step: as the field of a message, and as a part of it."""
    reasoning = None if step.completion is None else step.completion.reasoning
    parts = [{"type": "thinking", "thinking": reasoning}], [{"type": "reasoning", "text": reasoning}]
    return () if not reasoning else (plain((reasoning, [])), *(plain((None, one)) for one in parts))


def _has_thought(step: Step) -> bool:
    """Whether an answer holds thinking, also where no parser took it out of the text."""
    completion = step.completion
    content = None if completion is None else completion.content
    return completion is not None and bool(completion.reasoning or (isinstance(content, str) and "</think>" in content))


def is_cut(step: Step) -> bool:
    """Whether a completion lacks its end of turn: cut by a limit, a stop text or id, aborted, left by its reader."""
    ended = step.finish_reason not in CUT_OFF and step.finish_reason not in (None, "abort") and step.status == "ok"
    return not ended or step.stop_reason is not None


def _added(step: Step, message: Message) -> str | None:
    """The text of a message behind all that a step sampled; None where it does not begin with that."""
    text = _content(message.get("content"))
    if not is_cut(step) or not isinstance(text, str) or calls_in(message) or step.completion is None:
        return None
    if step.token_texts is None and step.stop_reason is not None:
        return None  # How much of the stop text was sampled is not known.
    # With the stop text, which the content of the answer lacks.
    sampled = step.completion.content if step.token_texts is None else "".join(step.token_texts)
    if not isinstance(sampled, str) or not sampled or step.completion.reasoning or step.completion.tool_calls:
        return None
    return text[len(sampled) :] if text.startswith(sampled) else None


def _answer_key(step: Step) -> Hashable:
    return _answer(chat_messages.answer(step) or {})


def _chat(protocol: str | None, messages: Sequence[Any]) -> list[Message]:
    groups = chat_messages.grouped(protocol, messages)
    return [message for group in groups for message in chat_messages.convert(protocol, group)]


__all__ = ["Found", "TurnIndex", "calls_in", "has_media", "is_cut", "message_key", "plain"]
