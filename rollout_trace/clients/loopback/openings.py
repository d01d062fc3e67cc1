"""What a request begins with: it tells the conversations of a program apart, and says what a sub-agent was asked."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from rollout_trace.data.conversations import is_from_assistant
from rollout_trace.wire.protocols import record_of

if TYPE_CHECKING:
    from rollout_trace.data.model import Step

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_decode = msgspec.json.Decoder().decode
_NOT_SAID = re.compile(r"\s*(?:<system-reminder>|x-anthropic-billing-header:)")
"""Begins texts that a program puts into its prompts, which change from turn to turn."""


class Opening(NamedTuple):
    """What a request begins with, before the first answer in it."""

    key: tuple[str, ...]
    """The same for all requests of a conversation."""
    texts: tuple[str, ...]
    """What the user, or the agent that asks, says."""
    has_tools: bool
    latest: tuple[str, ...] = ()
    """The same behind the last answer: a sub-agent may begin with the conversation that it was begun in."""


def opening_of(protocol: str, body: bytes) -> Opening | None:
    """The opening of a request; None where it cannot be read. Of a long conversation only the first messages are."""
    layout = record_of(protocol).request
    try:
        fields = _FIELDS.decode(body)
        aliases = {usual: other for other, usual in layout.aliases if other in fields}
        system = fields.get(aliases.get(layout.system or "", layout.system or ""))
        messages = fields.get(layout.messages)
        if messages is None or not bytes(messages).lstrip().startswith(b"["):
            items = [] if messages is None else [messages]
        else:
            items = _ITEMS.decode(messages)
        said = _until_answer(map(_decode, items))
        latest = [] if len(said) == len(items) else _until_answer(map(_decode, reversed(items)))
        found = _opening([] if system is None else [_decode(system)], said, _listed(fields.get("tools")))
        return found._replace(latest=_said(latest))
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def fork_in(protocol: str, body: bytes, beginning: str) -> str | None:
    """The text with which a request's conversation was forked, the last one that begins so; None: it was not."""
    if beginning.encode() not in body:
        return None
    try:
        messages = _decode(_FIELDS.decode(body)[record_of(protocol).request.messages])
    except (msgspec.DecodeError, KeyError, RecursionError):
        return None
    said = [one for message in messages if not _is_system(message) for one in texts_in(message)]
    return next((one for one in reversed(said) if one.startswith(beginning)), None)


def _listed(tools: msgspec.Raw | None) -> bool:
    return tools is not None and bytes(tools).strip() not in (b"null", b"[]", b"")


def _until_answer(messages: Iterable[Any]) -> list[Any]:
    found = []
    for message in messages:
        if is_from_assistant(message) or (isinstance(message, dict) and message.get("role") == "model"):
            break
        found.append(message)
    return found


def _opening(system: list[Any], said: list[Any], has_tools: bool) -> Opening:
    instructions = [*texts_in(system), *(one for message in said if _is_system(message) for one in texts_in(message))]
    texts = _said(said)
    # Of what the user says only the first: a program may add to it before it is answered.
    return Opening((*instructions[:1], "\0", *texts[:1]), texts, has_tools)


def _said(messages: list[Any]) -> tuple[str, ...]:
    return tuple(one for message in messages if not _is_system(message) for one in texts_in(message))


def _is_system(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") in ("system", "developer")


def opening_of_step(step: Step) -> Opening:
    """The opening of a recorded request."""
    return _opening([], _until_answer(step.messages or ()), bool(step.tools))


def texts_in(value: Any) -> list[str]:
    """The texts of a message, without what a program adds to each of its prompts."""
    found: list[str] = []

    def read(one: Any, depth: int = 0) -> None:
        if isinstance(one, str):
            if one.strip() and not _NOT_SAID.match(one):
                found.append(one.strip())
        elif isinstance(one, list) and depth < 8:
            for part in one:
                read(part, depth + 1)
        elif isinstance(one, dict) and depth < 8:
            for name in ("content", "parts", "text", "encrypted_content"):
                read(one.get(name), depth + 1)

    read(value)
    return found
