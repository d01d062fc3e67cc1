"""Token ids and logprobs that some servers add to answers of Anthropic's shape."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from rollout_trace.wire.facts import ChoiceFacts
from rollout_trace.wire.logprobs import number_of
from rollout_trace.wire.places import COMPLETION_IDS, MESSAGES, PROMPT_IDS, Path, look_up

_COMPLETIONS = tuple(row for row in COMPLETION_IDS if row.protocols >= MESSAGES)
_PROMPTS = tuple(row.ids for row in PROMPT_IDS if row.protocols >= MESSAGES)
_PATHS = (*_PROMPTS, *(row.ids for row in _COMPLETIONS), *(row.logprobs for row in _COMPLETIONS if row.logprobs))
NAMES = tuple(sorted({str(path[0]) for path in _PATHS}))
"""The fields that can hold ids or logprobs."""
_VALUES = attrgetter(*NAMES)
_NOTHING = (None,) * len(NAMES)


class MessageTokens:
    """Gathers ids and logprobs: those of the whole message, else of its parts in order, else in ``raw_output``."""

    def __init__(self) -> None:
        self.problem: str | None = None
        self._prompt: list[int] | None = None
        self._whole: tuple[list[int] | None, list[Any] | None] = (None, None)
        self._raw: tuple[list[int] | None, list[Any] | None] = (None, None)
        self._ids: list[int] = []
        self._logprobs: list[Any] = []
        self._uneven = False

    def add_message(self, message: dict[str, Any]) -> None:
        """Reads the ids and logprobs of an unstreamed message, those of its blocks excepted."""
        self._set_prompt_ids(message)
        self._whole = self._tokens_in(message)

    def add_part(self, values: Any) -> None:
        """Appends the ids and logprobs of a block, a delta, or the message that begins a stream."""
        # Nearly no server sends any of these: the common case ends here.
        if not isinstance(values, dict) or values.keys().isdisjoint(NAMES):
            return
        self._set_prompt_ids(values)
        ids, logprobs = self._tokens_in(values)
        if ids or logprobs:
            self._uneven = self._uneven or len(ids or ()) != len(logprobs or ())
            self._ids += ids or ()
            self._logprobs += logprobs or ()

    def add_event(self, event: Any) -> None:
        """Appends the ids and logprobs that are on an event itself, beside its delta."""
        found = _VALUES(event)
        if found != _NOTHING:
            self.add_part({name: value for name, value in zip(NAMES, found, strict=True) if value})

    def write_to(self, choice: ChoiceFacts) -> None:
        """Writes the gathered ids and logprobs to a choice."""
        # Never mixed: ids of one place beside logprobs of another could be of different tokens.
        parts = (self._ids or None, self._logprobs or None)
        found = next((pair for pair in (self._whole, parts, self._raw) if pair[0] or pair[1]), (None, None))
        choice.prompt_token_ids = self._prompt
        choice.completion_token_ids, choice.logprobs = found
        choice.token_source = None if found[0] is None else "engine"
        choice.uneven = found is parts and self._uneven

    def _set_prompt_ids(self, values: dict[str, Any]) -> None:
        for path in _PROMPTS:
            self._prompt = self._prompt or self._ids_at(values, path)

    def _tokens_in(self, values: dict[str, Any]) -> tuple[list[int] | None, list[Any] | None]:
        """Ids and logprobs on the values themselves. Those of the whole answer (``raw_output``) are kept apart."""
        own: tuple[list[int] | None, list[Any] | None] = (None, None)
        for row in _COMPLETIONS:
            logprobs = None if row.logprobs is None else _logprobs_of(look_up(values, row.logprobs, 0))
            found = (self._ids_at(values, row.ids), logprobs)
            if row.of_body and (found[0] or found[1]):
                self._raw = found
            elif not row.of_body:
                own = found
        return own

    def _ids_at(self, values: dict[str, Any], path: Path) -> list[int] | None:
        ids = look_up(values, path, 0)
        if ids is None or (isinstance(ids, list) and all(type(item) is int for item in ids)):
            return ids
        self.problem = self.problem or f"`{path[-1]}` is not a list of whole numbers"
        return None


def _logprobs_of(value: Any) -> list[Any] | None:
    """Numbers, OpenAI's ``content`` entries, or the older ``token_logprobs``; None where it is none of these."""
    if isinstance(value, dict):
        value = value.get("content") if value.get("content") is not None else value.get("token_logprobs")
    if not isinstance(value, list):
        return None
    return [number_of(item.get("logprob") if isinstance(item, dict) else item) for item in value]


def without_tokens(raw_output: Any) -> Any:
    """``raw_output`` without the ids and logprobs, which become the step's own arrays."""
    if not isinstance(raw_output, dict):
        return raw_output
    gathered = ("prompt_token_ids", "completion_token_ids", "completion_logprobs")
    return {name: value for name, value in raw_output.items() if name not in gathered}
