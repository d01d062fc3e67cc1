"""Events of a stream that come only because of fields that were added to its request.

vLLM with ``return_token_ids`` or ``logprobs`` sends a chunk for every token, with an empty ``delta`` while its parser
of tool calls or of characters still waits; SGLang sends ids and experts in a chunk without choices; ``include_usage``
brings one too. Programs break on them: an adapter made two tool calls of one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rollout_trace import guard
from rollout_trace.wire.lenient import loads

_ANSWERS: Final[Mapping[str, tuple[str, ...]]] = {
    "return_token_ids": ("token_ids", "prompt_token_ids", "response_token_ids"),
    "logprobs": ("logprobs",),
    "top_logprobs": ("logprobs",),
    "return_weight_versions": ("weight_versions",),
    "return_meta_info": ("meta_info",),
    "return_routed_experts": ("routed_experts", "sglext"),
    "return_input_ids_in_sglext": ("sglext",),
    "return_output_ids_in_sglext": ("sglext",),
    "stream_options": ("usage",),
    "stream_options.include_usage": ("usage",),
    "nvext": ("nvext",),
}
"""Fields that are added to requests, and the names of what answers them, in a chunk or in a choice of it."""

_RUNNING_USAGE: Final = "running usage"
_OF_EVERY_CHUNK: Final = frozenset(
    {"id", "object", "created", "model", "system_fingerprint", "service_tier", "choices"}
)
_PROTOCOLS: Final = frozenset({"openai.chat", "openai.completions"})
_END_OF_EVENT: Final = re.compile(rb"\n\r?\n|\r\r")
_LONGEST_END: Final = 3
_may_be_added: Final = re.compile(rb'"delta": ?\{(?:"\w+": ?null,? ?)*\}|"choices": ?\[\]').search
"""A comparison of bytes that chunks with something in them fail: none of them is parsed."""
_has_usage: Final = re.compile(rb'"usage": ?\{').search


def answers_to(protocol: str, added: Mapping[str, Any], body: Mapping[str, Any]) -> frozenset[str]:
    """The names of what a stream holds only because of added fields; empty where no chunk comes for them alone.

    Args:
        protocol: of the call.
        added: the fields that were added, by name.
        body: of the caller's request.
    """
    if not added or protocol not in _PROTOCOLS or not body.get("stream"):
        return frozenset()
    names = {name for field in added for name in _ANSWERS.get(field, ())}
    if not (body.get("logprobs") is None or body.get("logprobs") is False):
        # The caller's own, beside which something was added.
        names.discard("logprobs")
    if body.get("nvext"):
        names.discard("nvext")
    options = body.get("stream_options")
    if isinstance(options, Mapping) and options.get("continuous_usage_stats"):
        # vLLM's: in every chunk with choices, each time the total so far. The next chunk has it too.
        names.add(_RUNNING_USAGE)
    return frozenset(names)


class AddedChunks:
    """Takes such events out of one stream.

    Args:
        names: of the answers to the added fields, from ``answers_to``.
    """

    __slots__ = ("_before", "_held", "_names")

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._held = bytearray()
        """The beginning of an event whose end has not arrived: nobody can use it before."""
        self._before = b""
        """What was handed on last: whole events."""

    def shown(self, chunk: bytes) -> bytes:
        """The bytes to hand on once a chunk has arrived, with what was held back before. They may be none."""
        if not self._held and chunk.endswith(b"\n\n") and not _may_be_added(chunk):
            self._before = chunk
            return chunk
        # What was searched before is not searched again: an event may be long, and come in many pieces.
        begins = max(0, len(self._held) - _LONGEST_END + 1)
        self._held += chunk
        try:
            events, end = [], 0
            for found in [*_END_OF_EVENT.finditer(self._held, begins)]:
                event = bytes(self._held[end : found.end()])
                end = found.end()
                if not (_may_be_added(event) and self._is_added(event)):
                    events.append(event)
                    self._before = event
            del self._held[:end]
            return b"".join(events)
        except Exception as error:
            guard.failed("added_chunks", None, error)
            return self.rest()

    def rest(self) -> bytes:
        """Returns what is still held back at the end of the stream."""
        held, self._held = bytes(self._held), bytearray()
        return held

    def _is_added(self, event: bytes) -> bool:
        try:
            chunk = loads(b"".join([line[5:] for line in event.splitlines() if line.startswith(b"data:")]))
        except ValueError:
            return False
        choices = chunk.get("choices") if isinstance(chunk, dict) else None
        if not isinstance(choices, list):
            return False
        names = [name for name, value in chunk.items() if name not in _OF_EVERY_CHUNK and self._says(name, value)]
        if not choices and "usage" in names:
            # With the usage that was asked for comes what else there is, as vLLM's metrics.
            return "usage" in self._names and not self._sends_usage
        if "usage" in names and _RUNNING_USAGE in self._names:
            names.remove("usage")
        names += [name for choice in choices for name in self._names_in(choice)]
        # Without any answer, a chunk in which nothing is said came by itself.
        return bool(names) and self._names.issuperset(names)

    @property
    def _sends_usage(self) -> bool:
        """Whether the server sends usage unasked: vLLM with ``--enable-force-include-usage`` has it in every chunk."""
        return _RUNNING_USAGE not in self._names and _has_usage(self._before) is not None

    def _names_in(self, choice: Any) -> Iterator[str]:
        """The names of what a choice says. An empty ``delta`` says nothing."""
        for name, value in choice.items():
            if name == "delta" and isinstance(value, dict):
                if any(one is not None for one in value.values()):
                    yield name
            elif name != "index" and self._says(name, value):
                yield name

    def _says(self, name: str, value: Any) -> bool:
        return value is not None and (value != [] or name in self._names)
