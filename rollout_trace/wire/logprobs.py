"""Token ids and logprobs in the shapes of several protocols."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from rollout_trace.data.extras import JSONText
from rollout_trace.data.lists import PackedTexts
from rollout_trace.wire.lenient import NULL, loads
from rollout_trace.wire.token_texts import texts_of

T = TypeVar("T")
E = TypeVar("E", bound="list[Any] | Columns")

_ID_PREFIX = "token_id:"


def extended(old: E | None, new: E | None) -> E | None:
    """``old`` extended by ``new`` in place, where both are there; else the one that is; None where neither is."""
    if old is None or new is None:
        return new if old is None else old
    old.extend(new)  # type: ignore[arg-type]
    return old


def id_of(text: str) -> int | None:
    """The id in ``token_id:N`` (vLLM's ``return_tokens_as_token_ids``); None for any other text."""
    digits = text[len(_ID_PREFIX) :] if text.startswith(_ID_PREFIX) else ""
    return int(digits) if len(digits) <= 10 and digits.isascii() and digits.isdigit() else None


def integral_ids(values: Sequence[float | None]) -> list[int] | None:
    """Ids sent as ints or floats, as ints; None where one is missing or not whole, or there are none."""
    ids = [int(value) for value in values if isinstance(value, int) or (value is not None and value.is_integer())]
    return ids if ids and len(ids) == len(values) else None


def number_of(value: Any) -> float | None:
    """A logprob as a float; None for other values, which ``align.check`` reports."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        # An integer beyond float's range is a number all the same: reported as not finite, not as missing.
        return float("inf")


class Entry(Struct, gc=False):
    """One token of ``logprobs.content``."""

    logprob: float | None = None
    token: Any = None
    bytes: Raw = NULL
    # As bytes: of a long answer the garbage collector would visit a million objects, with all threads stopped.
    top_logprobs: Raw = NULL
    routing_matrix: Any = None
    sampling_logprob: Any = None


class _EntryWithId(Entry, gc=False):
    """One with its id from llama-server (``id``) or Fireworks (``token_id``)."""

    token: str | None = None
    id: int | None = None
    token_id: int | None = None


class ArrayLogprobs(Struct):
    """``logprobs`` of /completions: a list for each property, or (llama-server) entries as in a chat."""

    tokens: list[str | None] | None = None
    token_logprobs: list[float | None] | None = None
    token_ids: list[float | None] | None = None
    # Of any type: what is wrong with alternatives is no fault of the ids.
    top_logprobs: Raw = NULL
    content: list[_EntryWithId] | None = None


@dataclass(slots=True)
class Columns:
    """Logprobs as columns: one item per token in each list, None where it is missing."""

    logprobs: list[float | None]
    ids: list[float | None]
    tokens: list[str | None]
    tops: list[Raw]
    raws: list[Raw] = field(default_factory=list)
    """``bytes`` of each token; empty where no part of the answer can have them."""
    lossy: bool = False
    """True from a server that leaves out the entries of tokens that end inside a character."""
    more: dict[str, list[Any]] = field(default_factory=dict)
    """What else the entries have for each token, by name."""

    def __len__(self) -> int:
        return len(self.logprobs)

    def extend(self, more: Columns) -> None:
        """Appends the tokens of a later chunk."""
        size = len(self)
        self.logprobs += more.logprobs
        self.ids += more.ids
        self.tokens += more.tokens
        self.tops += more.tops
        self.lossy = self.lossy or more.lossy
        self.raws = _aligned(self.raws, size) + _aligned(more.raws, len(more)) if self.raws or more.raws else []
        for name in {**self.more, **more.more}:
            values = self.more.setdefault(name, [])
            values += [None] * (len(self) - len(more) - len(values))
            values += more.more.get(name) or [None] * len(more)

    def cut(self, length: int) -> Columns:
        """Removes the first ``length`` tokens and returns them."""
        head = Columns(self.logprobs[:length], self.ids[:length], self.tokens[:length], self.tops[:length])
        del self.logprobs[:length], self.ids[:length], self.tokens[:length], self.tops[:length], self.raws[:length]
        for values in self.more.values():
            del values[:length]
        return head

    def token_ids(self) -> list[int] | None:
        """The ids, from numbers or from tokens spelled ``token_id:N``; None where one of them is missing."""
        if self._has_no_ids():
            return None
        ids = integral_ids(self.ids)
        return ids if ids is not None else integral_ids([id_of(token or "") for token in self.tokens])

    def clash(self, ids: list[int]) -> int | None:
        """The first position where ``ids`` differ from those among the logprobs; None where none does."""
        if self._has_no_ids():
            return None
        named = zip(ids, self.ids, self.tokens, strict=False)
        for at, (one, value, token) in enumerate(named):
            other = id_of(token or "") if value is None else value
            if other is not None and other != one:
                return at
        return None

    def alternatives(self) -> JSONText | None:
        """The alternatives of each token; None where no token has any."""
        return top_logprobs_of(self.tops)

    def texts(self) -> PackedTexts | None:
        """The text of each token; None where one has none, or there are no tokens."""
        return texts_of(self.tokens, self.raws) if self.tokens else None

    def _has_no_ids(self) -> bool:
        """True where there are no ids. Fast, as that is usual: either all tokens are spelled as ids, or none."""
        spelled = bool(self.tokens) and (self.tokens[-1] or "").startswith(_ID_PREFIX)
        return not spelled and self.ids.count(None) == len(self.ids)


def _aligned(raws: list[Raw], size: int) -> list[Raw]:
    return raws or [NULL] * size


_EMPTY = (b"null", b"[]", b"{}")


def top_logprobs_of(tops: Sequence[Raw]) -> JSONText | None:
    """The alternatives of each token as JSON; None where no token has any: engines then send null, or empty lists."""
    # Engines that were asked for none send the same null or empty list each time: counting it is much faster.
    if not tops or (_is_empty(tops[0]) and tops.count(tops[0]) == len(tops)) or all(_is_empty(top) for top in tops):
        return None
    batches = (tops[at : at + _BATCH] for at in range(0, len(tops), _BATCH))
    return JSONText(b"[" + b",".join([_batch(batch) for batch in batches]) + b"]")


def _batch(tops: Sequence[Raw]) -> bytes:
    """The alternatives of some tokens as JSON, one list after the other."""
    if any(bytes(memoryview(top)[:1]) != b"[" for top in tops):
        try:
            # Logprobs by token (completions), of many tokens at once: each call costs more than what it decodes.
            rows = _BY_TOKEN.decode(b"[" + b",".join(tops) + b"]")
            named = [[_Alternative(token, logprob) for token, logprob in (row or {}).items()] for row in rows]
            return msgspec.json.encode(named)[1:-1]
        except (msgspec.MsgspecError, UnicodeError):
            return b",".join([_alternatives(top) for top in tops])
    return b",".join(tops)


def _is_empty(top: Raw) -> bool:
    text = memoryview(top)
    return text.nbytes < 8 and b"".join(bytes(text).split()) in _EMPTY


class _Alternative(Struct, gc=False):
    token: str
    logprob: Raw


def json_of(tops: Any) -> JSONText | None:
    """Alternatives that were decoded with the answer around them, as JSON."""
    if tops is None or isinstance(tops, JSONText):
        return tops
    try:
        return JSONText(msgspec.json.encode(tops))
    except (msgspec.MsgspecError, UnicodeError):
        return JSONText(json.dumps(tops).encode())


_BATCH = 256
"""Tokens whose alternatives are objects at the same time."""
_BY_TOKEN = msgspec.json.Decoder(list[dict[str, Raw] | None])


def _alternatives(top: Raw) -> bytes | Raw:
    """One token's alternatives as the JSON of a list: from a list of objects, or from logprobs by token."""
    first = bytes(memoryview(top)[:1])
    return top if first == b"[" else _tolerant(top) if first == b"{" else b"[]"


def _tolerant(top: Raw) -> bytes:
    """Logprobs by token as the JSON of a list, from any bytes: with lone surrogates, or of no UTF-8."""
    try:
        by_token = json.loads(bytes(top).decode("utf-8", "replace"))
        return json.dumps([{"token": token, "logprob": value} for token, value in by_token.items()]).encode()
    except (ValueError, RecursionError):
        return b"[]"


_ITEMS = msgspec.json.Decoder(list[Raw])


def _items_of(tops: Raw) -> list[Raw]:
    """The alternatives of each token; none where they are no list."""
    if bytes(memoryview(tops)[:1]) != b"[":
        return []
    try:
        return _ITEMS.decode(tops)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    try:
        # With a NaN, or lone surrogates.
        return [Raw(json.dumps(item).encode()) for item in loads(bytes(tops))]
    except (ValueError, RecursionError):
        return []


def columns_of(logprobs: ArrayLogprobs | float | None) -> Columns | None:
    """The columns of one body, from arrays, entries, or (Together, streamed) the logprob of its only token."""
    if logprobs is None:
        return None
    if not isinstance(logprobs, ArrayLogprobs):
        return Columns([float(logprobs)], [None], [None], [NULL])
    values = logprobs.token_logprobs
    if values is not None:
        size, tops = len(values), _items_of(logprobs.top_logprobs)
        return Columns(
            values,
            _of_size(logprobs.token_ids, size),
            _of_size(logprobs.tokens, size),
            tops if len(tops) == size else [NULL] * size,
        )
    entries = logprobs.content
    if entries is None:
        return None
    return Columns(
        [entry.logprob for entry in entries],
        [entry.token_id if entry.id is None else entry.id for entry in entries],
        [entry.token for entry in entries],
        [entry.top_logprobs for entry in entries],
        raws=[entry.bytes for entry in entries],
        lossy=any(entry.id is not None for entry in entries),
        more=more_of(entries),
    )


def more_of(entries: Sequence[Any]) -> dict[str, list[Any]]:
    """What Fireworks' entries have for each token beside its logprob, as lists by name; empty from other engines."""
    # One token may lack them (the last sampled one was not run through the model). Not all are looked at: of engines
    # that have neither, that would take a fourth of the time of decoding.
    ends = (*entries[:2], *entries[-2:])
    names = ("routing_matrix", "sampling_logprob")
    found = [name for name in names if any(getattr(entry, name) is not None for entry in ends)]
    return {name: [getattr(entry, name) for entry in entries] for name in found}


def _of_size(values: list[T | None] | None, size: int) -> list[T | None]:
    """The list, if it has one item per token. Of another length its items cannot be assigned: all are None then."""
    return values if values is not None and len(values) == size else [None] * size
