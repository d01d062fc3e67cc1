"""A step that a request may continue: what is compared with the request, and the ids that are sent again."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rollout_trace.data.model import CUT_OFF, stored_ids
from rollout_trace.data.tokens import Span
from rollout_trace.wire import chat_messages
from rollout_trace.wire.message_key import Message, answer_key, calls_in, content_key, plain, unpadded

if TYPE_CHECKING:
    from rollout_trace.data.model import Step

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


class Ids:
    """Token ids as JSON writes them: those of the ids that they continue, and their own. Each id is written once."""

    __slots__ = ("_branch", "_stop", "last", "length")

    def __init__(self, before: Ids | None, own: Sequence[int]) -> None:
        self.length: int = len(own) + (0 if before is None else before.length)
        self.last = own[-1]
        text = written(own)
        if before is None:
            self._branch = _Branch(None)
        else:
            is_end = before._stop == before._branch.length
            self._branch, text = before._branch if is_end else _Branch(before), b",%b" % text
        self._stop: int = self._branch.append(text)

    def texts(self) -> list[memoryview]:
        """All ids, with commas between them, in pieces: one, and one more for each fork."""
        parts: list[memoryview] = []
        ids: Ids | None = self
        while ids is not None:
            parts.append(memoryview(ids._branch.text)[: ids._stop])
            ids = ids._branch.before
        return parts[::-1]


class _Branch:
    """The text of one turn's ids, and of those that continue it one after another: in one place, to be copied fast.

    It grows in its place behind what was handed out, which stays as it is.
    """

    __slots__ = ("before", "length", "text")

    def __init__(self, before: Ids | None) -> None:
        self.before = before
        self.length = 0
        self.text = bytearray()

    def append(self, text: bytes) -> int:
        """Appends to it, and returns its length."""
        begin, self.length = self.length, self.length + len(text)
        if self.length > len(self.text):
            # By half: linear in time. Another one: this one may be in a request.
            grown = bytearray(self.length + self.length // 2 if begin else self.length)
            grown[:begin] = memoryview(self.text)[:begin]
            self.text = grown
        self.text[begin : self.length] = text
        return self.length


def written(ids: Sequence[int]) -> bytes:
    """Ids as JSON writes them, with commas between them."""
    return msgspec.json.encode(ids)[1:-1]


class Turn:
    """A step that a request may continue, and what is compared and sent of it."""

    __slots__ = ("answer", "fields", "has_thought", "ids", "is_behind_results", "is_cut", "leads", "model",
                 "n_messages", "prompt_end", "protocol", "reasonings", "server", "settings", "step", "tools",
                 "unpadded")  # fmt: skip

    def __init__(self, step: Step, server: str | None, before: Turn | None, like: Turn | None) -> None:
        """``before`` is the turn that it continues by its messages; ``like`` another one, with the same settings."""
        self.step = step
        self.server = server
        self.protocol, self.model, self.is_cut = step.protocol, step.model, _is_cut(step)
        self.answer = answer_key(chat_messages.answer(step) or {})
        self.unpadded = unpadded(self.answer)
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
        prompt, _ = stored_ids(step)
        length = 0 if prompt is None else prompt.stop if isinstance(prompt, Span) else len(prompt)
        self.prompt_end = b",%b" % written(_from(prompt, max(0, length - _END))) if length else b""
        """The last ids of the prompt, as JSON writes them, each behind a comma."""


def call_ids(turn: Turn) -> list[str | None]:
    completion = turn.step.completion
    return [] if completion is None else [call.id for call in completion.tool_calls]


def _ids_of(step: Step, before: Turn | None) -> Ids | None:
    """The ids of prompt and completion; they share those of the turn before where the prompt begins with them."""
    prompt, completion = stored_ids(step)
    if prompt is None or completion is None or not (sampled := _from(completion, 0)):
        return None
    shares = before is not None and before.ids is not None and _begins_with(prompt, before.step, before.ids.length)
    known = before.ids if before is not None and shares else None
    return Ids(known, [*_from(prompt, 0 if known is None else known.length), *sampled])


def _begins_with(prompt: Any, earlier: Step, known: int) -> bool:
    """Whether a prompt begins with all ids of an earlier step, which are so many."""
    first, second = stored_ids(earlier)
    if all(isinstance(one, Span) and one.segment.tree is prompt.segment.tree for one in (prompt, first, second)):
        # Equal beginnings are the same segments: none of them is read.
        at_end = second.segment.ending_segment(known) is prompt.segment.ending_segment(known)
        return bool(at_end and second.stop == known <= prompt.stop)
    return _from(prompt, 0)[:known] == [*_from(first, 0), *_from(second, 0)]


def _from(ids: Any, start: int) -> list[int]:
    """Stored ids from one of them on."""
    found: list[int] = (ids.segment.ids(ids.start + start, ids.stop) if isinstance(ids, Span) else ids[start:]).tolist()
    return found


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


def _is_cut(step: Step) -> bool:
    """Whether a completion lacks its end of turn: cut by a limit, a stop text or id, aborted, left by its reader."""
    ended = step.finish_reason not in CUT_OFF and step.finish_reason not in (None, "abort") and step.status == "ok"
    return not ended or step.stop_reason is not None


def added_text(turn: Turn, message: Message) -> str | None:
    """The text of a message behind all that a step sampled; None where it does not begin with that."""
    text, step = content_key(message.get("content")), turn.step
    if not turn.is_cut or not isinstance(text, str) or calls_in(message) or step.completion is None:
        return None
    sampled = step.completion.content
    if step.stop_reason is not None:
        if step.token_texts is None:
            return None  # How much of the stop text was sampled is not known.
        # With the stop text, which the content of the answer lacks.
        sampled = "".join(step.token_texts)
    if not isinstance(sampled, str) or not sampled or step.completion.reasoning or step.completion.tool_calls:
        return None
    if text == sampled.strip():
        return ""
    begin = next((one for one in (sampled, sampled.lstrip()) if one and text.startswith(one)), None)
    return None if begin is None else text[len(begin) :]


__all__ = ["COMPARED_FIELDS", "TEMPLATE_FIELDS", "Ids", "Turn", "added_text", "call_ids", "written"]
