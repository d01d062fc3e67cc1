"""Which recorded step a request continues, by its messages: its request and its answer begin them.

A request is compared with the latest ones as they were sent, which is quick, and message by message only where it goes
on; what a comparison needs of a step is made when that is added. Recorders add steps on a thread of their own.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from rollout_trace.data.conversations import MessageTree, Node
from rollout_trace.data.model import CUT_OFF
from rollout_trace.wire import chat_messages
from rollout_trace.wire.message_key import (
    Message,
    answer_key,
    calls_in,
    content_key,
    has_media,
    message_key,
    plain,
    reasoning_key,
)

if TYPE_CHECKING:
    from rollout_trace.data.model import Step
    from rollout_trace.data.tokens import IntArray

TEMPLATE_FIELDS: Final = (
    "add_generation_prompt",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "media_io_kwargs",
    "mm_processor_kwargs",
    "reasoning",
    "reasoning_effort",
    "response_format",
    "text",
    "tool_choice",
)
"""Fields of a request that may be part of its prompt, beside messages and tools: vLLM's renderer of Kimi K3 writes the
choice of a tool and the format of the answer down."""

COMPARED_FIELDS: Final = (*TEMPLATE_FIELDS, "truncate_prompt_tokens", "truncation", "truncation_side")
"""Fields that must be those of the earlier call: ids of its prompt may have been cut off, too."""
_END = 256
"""Ids of the end of a prompt that are kept: more than any template begins an answer with."""
_RECENT = 16
"""Steps whose messages a request is compared with as they stand: as many conversations can take turns."""


class Ids:
    """Token ids as JSON writes them: those of the ids that they continue, and their own. Each id is written once."""

    __slots__ = ("_before", "_text", "last", "length")

    def __init__(self, before: Ids | None, own: Sequence[int]) -> None:
        self._before = before
        self.length: int = len(own) + (0 if before is None else before.length)
        self.last = own[-1]
        self._text = written(own) if before is None else b",%b" % written(own)

    def texts(self) -> list[bytes]:
        """All ids, with commas between them, in pieces."""
        parts: list[bytes] = []
        ids: Ids | None = self
        while ids is not None:
            parts.append(ids._text)
            ids = ids._before
        return parts[::-1]


def written(ids: Sequence[int]) -> bytes:
    """Ids as JSON writes them, with commas between them."""
    return msgspec.json.encode(ids)[1:-1]


class Turn:
    """A step that a request may continue, and what is compared and sent of it."""

    __slots__ = ("answer", "fields", "has_thought", "ids", "is_behind_results", "leads", "n_messages", "prompt_end",
                 "reasonings", "server", "settings", "step", "tools")  # fmt: skip

    def __init__(self, step: Step, server: str | None, before: Turn | None, like: Turn | None) -> None:
        """``before`` is the turn that it continues by its messages; ``like`` another one, with the same settings."""
        self.step = step
        self.server = server
        self.answer = answer_key(chat_messages.answer(step) or {})
        self.reasonings = _reasonings(step)
        self.has_thought = _has_thought(step)
        roles = [_role(one) for one in step.messages or ()]
        self.n_messages = len(roles)
        self.leads = next((role for role in roles[:1] if role in ("system", "developer")), None)
        """The role of the system prompt; None without one."""
        self.is_behind_results = bool(roles) and roles[-1] not in ("user", "system", "developer")
        """Whether the messages end with results of tools."""
        sampling = step.sampling or {}
        self.tools: Any = step.tools or None
        self.fields: dict[str, Any] = {name: sampling[name] for name in COMPARED_FIELDS if sampling.get(name)}
        if like is not None and like.tools == self.tools and like.fields == self.fields:
            # An agent's are the same in all its calls: one object, one digest.
            self.tools, self.fields, settings = like.tools, like.fields, like.settings
        else:
            settings = blake2b(plain((self.tools, self.fields)), digest_size=16).digest()
        self.settings: bytes = settings
        """Of tools and fields: equal where these are."""
        self.ids = _ids_of(step, before)
        """Of prompt and completion; None where they are not known."""
        prompt = step.prompt_token_ids
        self.prompt_end: IntArray | None = None if prompt is None else prompt[-_END:].copy()
        """The last ids of the prompt: all of them are put together anew each time that a step is asked for them."""


class Found(NamedTuple):
    """The step that a request continues."""

    turn: Turn | None
    """None where it continues none that is known."""
    answer: Message
    """The step's answer, as the request has it."""
    has_thought: bool
    """Whether an answer of the conversation held thinking."""
    added: str
    """Text that the request adds to an answer that was cut off: smolagents does, behind a stop text."""
    new: list[Message]
    """The messages behind it."""
    changed: int | None
    """Index of the first message that an earlier request or answer has otherwise; None where none is known."""
    is_ambiguous: bool
    """Whether other steps with other ids were asked and answered the same, and nothing in the request tells which."""
    has_media: bool
    """Whether a message, of all of them, holds more than text."""


_NOTHING = Found(None, {}, False, "", [], None, False, False)


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
        self._turns: dict[Node, list[Turn]] = {}
        """Those whose requests end at a node."""
        self._seen: set[str] = set()
        self._recent: list[_Sent] = []
        """Of the latest steps."""
        self._latest: Turn | None = None
        self._answers: set[Hashable] = set()
        """Keys of the steps' answers."""
        self._starts: set[Hashable] = set()
        """Keys of the first messages that are no system prompts."""

    def key(self, message: Any) -> Hashable:
        # Computed each time: the messages of a request are its caller's, who may change them in their place.
        return message_key(message)

    def add(self, steps: Sequence[Step], server: str | None = None, asked: Sequence[Any] = ()) -> None:
        """Adds the steps that are new: those that ended with an answer, which this server gave.

        ``asked`` are their messages, from ``find``.
        """
        for step in steps:
            if step.id in self._seen or step.status not in ("ok", "abandoned"):
                continue
            self._seen.add(step.id)
            if step.messages is None or step.completion is None:
                continue
            sent = list(step.messages)
            if len(asked) == len(sent):
                # Those of the caller's own texts: a comparison with them need not read what both have.
                sent = [
                    one if _is_flat(one) and one == other else other for one, other in zip(asked, sent, strict=True)
                ]
            found, node, rest = self._follow(step.protocol, sent, self._known_beginning(step.protocol, sent))
            for message in rest:
                node = self.append(node, message)
            turn = self._latest = Turn(step, server, found.turn, self._latest)
            self._turns.setdefault(node, []).append(turn)
            # What goes on from here was looked for before this step was known.
            self._recent = [one for one in self._recent if not _is_behind(one.node, node)]
            self._answers.add(turn.answer)
            self._starts.add(node.start)
            self._recent = [_Sent(step.protocol, sent, node, found), *self._recent[: _RECENT - 1]]

    def find(self, protocol: str, messages: Sequence[Any]) -> tuple[Found, list[Any]]:
        """Finds the step whose request and answer begin the messages: the one with the most of them.

        Returns it, and the messages as they stand, for ``add``.

        Args:
            protocol: of the request.
            messages: in its shape.
        """
        known = self._known_beginning(protocol, messages)
        begin = [] if known is None else known.messages
        asked = [*begin, *[{**one} if _is_flat(one) else one for one in messages[len(begin) :]]]
        return self._follow(protocol, messages, known)[0], asked

    def _follow(
        self, protocol: str | None, messages: Sequence[Any], known: _Sent | None
    ) -> tuple[Found, Node, list[Message]]:
        """The step; the node of the last message that is known, and the messages behind that."""
        found, node, at = (_NOTHING, self.root, 0) if known is None else (known.found, known.node, len(known.messages))
        path = _chat(protocol, messages[at:])
        holds_media = found.has_media or has_media(messages[at:])
        new, changed, base = [*found.new], found.changed, node.depth
        first_new, rest = changed, None
        is_known: bool | None = at > 0 or None
        for index, message in enumerate(path, base):
            hit = None
            if rest is None:
                key = message_key(message)
                hit, child = self._answered(node, message, key), self._children.get((node.number, key))
                node, rest = (node, path[index - base :]) if child is None else (child, None)
            if hit is not None:
                turn, added, is_ambiguous = hit
                new, changed, first_new = [], None, None
                has_thought = found.has_thought or turn.has_thought
                found = Found(turn, message, has_thought, added, new, None, is_ambiguous, holds_media)
                continue
            new.append(message)
            if message.get("role") == "assistant" and reasoning_key(message) is not None:
                found = found._replace(has_thought=True)
            first_new = index if first_new is None and rest is not None else first_new
            if message.get("role") == "assistant":
                is_known = self._is_known(path) if is_known is None else is_known
                changed = (index if first_new is None else first_new) if is_known else changed
        return found._replace(new=new, changed=changed, has_media=holds_media), node, rest or []

    def _is_known(self, path: Sequence[Message]) -> bool:
        """Whether messages are a conversation of this trajectory: by their first one, or by an answer among them."""
        first = next((one for one in path if one.get("role") not in ("system", "developer")), None)
        answers = (answer_key(one) for one in path if one.get("role") == "assistant")
        return (first is not None and message_key(first) in self._starts) or not self._answers.isdisjoint(answers)

    def _known_beginning(self, protocol: str | None, messages: Sequence[Any]) -> _Sent | None:
        """The latest step with the most messages that these begin with, compared as they were sent."""
        best: _Sent | None = None
        for one in self._recent:
            length = len(one.messages)
            is_longer = length <= len(messages) and (best is None or length > len(best.messages))
            if is_longer and one.protocol == protocol and messages[:length] == one.messages:
                best = one
        return best

    def _answered(self, node: Node, message: Message, key: Any) -> tuple[Turn, str, bool] | None:
        """The turn of a node whose answer a message is, by its ids of calls where several said the same.

        And the text that is added to it; and whether another one, with other ids, would do as well.
        """
        asked = self._turns.get(node)
        if not asked or message.get("role") != "assistant":
            return None
        thought, _, said = key
        asked = [one for one in asked if thought is None or thought in one.reasonings]
        same = [(one, "") for one in asked if one.answer == said]
        if len(same) > 1:
            ids = [one for _, _, one in calls_in(message)]
            same = [one for one in same if _call_ids(one[0]) == ids] or same
        same = same or [(one, added) for one in asked if (added := _added(one.step, message)) is not None]
        if not same:
            return None
        is_sure = len(same) == 1 or len({(one.ids and b"".join(one.ids.texts()), added) for one, added in same}) == 1
        # The first choice of the latest call.
        latest = same[-1][0].step.call_id
        return *next(one for one in same if one[0].step.call_id == latest), not is_sure


def _is_behind(one: Node | None, node: Node) -> bool:
    if one is node:
        return False
    while one is not None and one.depth > node.depth:
        one = one.parent
    return one is node


_FLAT = frozenset({str, int, float, bool, type(None)})


def _is_flat(message: Any) -> bool:
    """Whether nothing in a message can be changed but its own fields."""
    return type(message) is dict and _FLAT.issuperset(map(type, message.values()))


def _call_ids(turn: Turn) -> list[str | None]:
    completion = turn.step.completion
    return [] if completion is None else [call.id for call in completion.tool_calls]


def _ids_of(step: Step, before: Turn | None) -> Ids | None:
    """The ids of prompt and completion; they share those of the turn before where the prompt begins with them."""
    prompt, completion = step.prompt_token_ids, step.completion_token_ids
    if prompt is None or completion is None or not len(completion):
        return None
    if before is not None and before.ids is not None:
        known, earlier = before.ids.length, before.step
        parts = [one.tobytes() for one in (earlier.prompt_token_ids, earlier.completion_token_ids) if one is not None]
        if prompt[:known].tobytes() == b"".join(parts):
            return Ids(before.ids, [*prompt[known:].tolist(), *completion.tolist()])
    return Ids(None, [*prompt.tolist(), *completion.tolist()])


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, Mapping) else "user" if isinstance(message, str) else None


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
    text = content_key(message.get("content"))
    if not is_cut(step) or not isinstance(text, str) or calls_in(message) or step.completion is None:
        return None
    sampled = step.completion.content
    if step.stop_reason is not None:
        if step.token_texts is None:
            return None  # How much of the stop text was sampled is not known.
        # With the stop text, which the content of the answer lacks.
        sampled = "".join(step.token_texts)
    if not isinstance(sampled, str) or not sampled or step.completion.reasoning or step.completion.tool_calls:
        return None
    return text[len(sampled) :] if text.startswith(sampled) else None


def _chat(protocol: str | None, messages: Sequence[Any]) -> list[Message]:
    if protocol == "openai.chat" and all(type(one) is dict for one in messages):
        # They stay as they were sent.
        return [*messages]
    groups = chat_messages.grouped(protocol, messages)
    return [message for group in groups for message in chat_messages.convert(protocol, group)]


__all__ = ["COMPARED_FIELDS", "TEMPLATE_FIELDS", "Found", "Ids", "Turn", "TurnIndex", "is_cut", "written"]
