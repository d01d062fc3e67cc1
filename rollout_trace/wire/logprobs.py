"""Token ids and logprobs as several protocols spell them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from msgspec import Struct

T = TypeVar("T")

_ID_PREFIX = "token_id:"


def joined(old: list[T] | None, new: list[T] | None) -> list[T] | None:
    """One list after the other, in place; None where there is neither."""
    if old is None or new is None:
        return new if old is None else old
    old.extend(new)
    return old


def id_of(text: str) -> int | None:
    """The id in ``token_id:N`` (vLLM's ``return_tokens_as_token_ids``); None for any other text."""
    digits = text[len(_ID_PREFIX) :] if text.startswith(_ID_PREFIX) else ""
    return int(digits) if len(digits) <= 10 and digits.isascii() and digits.isdigit() else None


def whole_ids(values: Sequence[float | None]) -> list[int] | None:
    """Ids that are sent as numbers of any type; None where one is missing, or none at all."""
    ids = [int(value) for value in values if isinstance(value, int) or (value is not None and value.is_integer())]
    return ids if ids and len(ids) == len(values) else None


def number_of(value: Any) -> float | None:
    """A logprob as it is sent; None for what is no number, which the rules then find."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return float("inf")


class Entry(Struct, gc=False):
    """One token of ``logprobs.content``, with the id as llama-server (``id``) or Fireworks (``token_id``) gives it."""

    token: str | None = None
    id: int | None = None
    token_id: int | None = None
    logprob: float | None = None
    top_logprobs: list[dict[str, Any]] | None = None


class ArrayLogprobs(Struct):
    """``logprobs`` of /completions: a list for each property, or (llama-server) entries as in a chat."""

    tokens: list[str | None] | None = None
    token_logprobs: list[float | None] | None = None
    token_ids: list[float | None] | None = None
    top_logprobs: list[Any] | None = None
    content: list[Entry] | None = None


@dataclass(slots=True)
class Columns:
    """What ``logprobs`` say, one item a token in each list; None where an item is missing."""

    logprobs: list[float | None]
    ids: list[float | None]
    tokens: list[str | None]
    tops: list[Any]
    lossy: bool = False
    """From a server that leaves out entries of tokens which end inside a character."""

    def __len__(self) -> int:
        return len(self.logprobs)

    def extend(self, more: Columns) -> None:
        """Appends the tokens of a later chunk."""
        self.logprobs += more.logprobs
        self.ids += more.ids
        self.tokens += more.tokens
        self.tops += more.tops
        self.lossy = self.lossy or more.lossy

    def cut(self, length: int) -> Columns:
        """Takes the first tokens out, and gives them."""
        head = Columns(self.logprobs[:length], self.ids[:length], self.tokens[:length], self.tops[:length])
        del self.logprobs[:length], self.ids[:length], self.tokens[:length], self.tops[:length]
        return head

    def token_ids(self) -> list[int] | None:
        """The ids, given as such or spelled ``token_id:N``; None where one of them is missing."""
        if self._nameless():
            return None
        ids = whole_ids(self.ids)
        return ids if ids is not None else whole_ids([id_of(token or "") for token in self.tokens])

    def clash(self, ids: list[int]) -> int | None:
        """The first position at which these ids are of another token than the one that the logprobs name."""
        if self._nameless():
            return None
        named = zip(ids, self.ids, self.tokens, strict=False)
        return next((at for at, (one, other, token) in enumerate(named) if one != _named(one, other, token)), None)

    def _nameless(self) -> bool:
        """Whether there are no ids here at all: told fast, as it is the usual case. All tokens are spelled, or none."""
        spelled = bool(self.tokens) and (self.tokens[-1] or "").startswith(_ID_PREFIX)
        return not spelled and self.ids.count(None) == len(self.ids)

    def alternatives(self) -> list[Any] | None:
        """For each token its alternatives as objects; None where there are none at all."""
        return [_alternatives(top) for top in self.tops] if any(self.tops) else None


def _named(default: int, value: float | None, token: str | None) -> float:
    if value is None:
        value = id_of(token or "")
    return default if value is None else value


def _alternatives(top: Any) -> list[Any]:
    if isinstance(top, dict):
        return [{"token": token, "logprob": logprob} for token, logprob in top.items()]
    return top if isinstance(top, list) else []


def columns_of(logprobs: ArrayLogprobs | float | None) -> Columns | None:
    """The columns of one body: arrays, entries, or (Together, streamed) the logprob of the only token."""
    if logprobs is None:
        return None
    if not isinstance(logprobs, ArrayLogprobs):
        return Columns([float(logprobs)], [None], [None], [None])
    values = logprobs.token_logprobs
    if values is not None:
        size = len(values)
        return Columns(
            values,
            _sized(logprobs.token_ids, size),
            _sized(logprobs.tokens, size),
            _sized(logprobs.top_logprobs, size),
        )
    entries = logprobs.content
    if entries is None:
        return None
    return Columns(
        [entry.logprob for entry in entries],
        [entry.token_id if entry.id is None else entry.id for entry in entries],
        [entry.token for entry in entries],
        [entry.top_logprobs for entry in entries],
        lossy=any(entry.id is not None for entry in entries),
    )


def _sized(values: list[T | None] | None, size: int) -> list[T | None]:
    """A list with one item a token: what has another length cannot be told apart, and is left out."""
    return values if values is not None and len(values) == size else [None] * size
