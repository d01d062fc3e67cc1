"""Token ids and logprobs in an answer of Anthropic's shape, for the servers that add them."""

from __future__ import annotations

from typing import Any

from rollout_trace.wire.facts import ChoiceFacts
from rollout_trace.wire.logprobs import number_of

_PLACES = frozenset({"token_ids", "prompt_token_ids", "logprobs", "raw_output"})


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

    def whole(self, message: dict[str, Any]) -> None:
        """Takes what an unstreamed message says of itself."""
        self._take_prompt(message)
        self._whole = (self._ids_in(message, "token_ids"), _logprobs_of(message.get("logprobs")))
        self._take_raw_output(message.get("raw_output"))

    def part(self, values: Any) -> None:
        """Takes what a block, a delta or the beginning of a stream says of its own tokens."""
        # Nearly no server has any of these.
        if not isinstance(values, dict) or _PLACES.isdisjoint(values):
            return
        self._take_prompt(values)
        self._take_raw_output(values.get("raw_output"))
        ids, logprobs = self._ids_in(values, "token_ids"), _logprobs_of(values.get("logprobs"))
        if ids or logprobs:
            self._uneven = self._uneven or len(ids or ()) != len(logprobs or ())
            self._ids += ids or ()
            self._logprobs += logprobs or ()

    def event(self, event: Any) -> None:
        """Takes what an event says beside its delta."""
        if event.token_ids or event.logprobs or event.prompt_token_ids or event.raw_output:
            names = ("token_ids", "logprobs", "prompt_token_ids", "raw_output")
            self.part({name: getattr(event, name) for name in names})

    def tell(self, choice: ChoiceFacts) -> None:
        """Puts what was gathered into the facts of the message."""
        parts = (self._ids or None, self._logprobs or None)
        found = next((pair for pair in (self._whole, parts, self._raw) if pair[0] or pair[1]), (None, None))
        choice.prompt_token_ids = self._prompt
        choice.completion_token_ids, choice.logprobs = found
        choice.token_source = None if found[0] is None else "engine"
        choice.uneven = found is parts and self._uneven

    def _take_prompt(self, values: dict[str, Any]) -> None:
        self._prompt = self._prompt or self._ids_in(values, "prompt_token_ids")

    def _take_raw_output(self, value: Any) -> None:
        if isinstance(value, dict):
            self._take_prompt(value)
            self._raw = (self._ids_in(value, "completion_token_ids"), _logprobs_of(value.get("completion_logprobs")))

    def _ids_in(self, values: dict[str, Any], name: str) -> list[int] | None:
        ids = values.get(name)
        if ids is None or (isinstance(ids, list) and all(type(item) is int for item in ids)):
            return ids
        self.problem = self.problem or f"`{name}` is not a list of whole numbers"
        return None


def _logprobs_of(value: Any) -> list[Any] | None:
    """Numbers, OpenAI's ``content`` entries, or the older ``token_logprobs``; None where it is none of these."""
    if isinstance(value, dict):
        value = value.get("content") if value.get("content") is not None else value.get("token_logprobs")
    if not isinstance(value, list):
        return None
    return [number_of(item.get("logprob") if isinstance(item, dict) else item) for item in value]


def without_tokens(raw_output: Any) -> Any:
    """What ``raw_output`` holds beside ids and logprobs."""
    if not isinstance(raw_output, dict):
        return raw_output
    gathered = ("prompt_token_ids", "completion_token_ids", "completion_logprobs")
    return {name: value for name, value in raw_output.items() if name not in gathered}
