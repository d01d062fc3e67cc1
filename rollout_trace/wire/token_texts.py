"""The texts of tokens, from what engines send of each beside its logprob: ``bytes``, or a ``token``.

Bytes count where both are there: a token that ends inside a character has no text of its own. A character that several
tokens make is in the last of them, and the others are empty, so that the texts joined are the text.
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from rollout_trace.data.lists import TO_STORED, PackedTexts
from rollout_trace.wire.lenient import DECODE_ERRORS, NULL

_ESCAPED = re.compile(r"bytes:((?:\\x[0-9a-fA-F]{2})+)")
"""The spelling of OpenAI for a token that is no text: ``bytes:\\xe2\\x80``."""
_ODD = ("\ufffd", "bytes:", "token_id:", "\\x")
"""What stands in tokens that are no text, or not the whole text: then each is looked at."""
_utf8 = getincrementaldecoder("utf-8")
_numbers = msgspec.json.Decoder(list[int])


class RawsOf(Sequence[Raw]):
    """The ``bytes`` of entries, each taken from its entry when it is asked for."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Sequence[Any]) -> None:
        self._entries = entries

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, at: Any) -> Any:
        return self._entries[at].bytes

    def __iter__(self) -> Iterator[Raw]:
        return (entry.bytes for entry in self._entries)


def texts_of(tokens: Sequence[Any], raws: Sequence[Raw] = ()) -> PackedTexts | None:
    """The texts of tokens; None where one has none.

    Args:
        tokens: the ``token`` of each entry: a text, or another value, which is none.
        raws: the ``bytes`` of each entry, as JSON; empty where the entries of the protocol have no such field. Few
            are read of tokens that are plainly their text.
    """
    try:
        text = "\x7f".join(tokens)
        data = text.encode()
    except (TypeError, UnicodeEncodeError):
        return _one_by_one(tokens, raws)
    is_plain = text.isascii() and not _is_spelled(text) and all(tokens)
    is_odd = not is_plain and any(part in text for part in _ODD)
    # One with U+007F in it cannot be told from what stands between two.
    is_odd = is_odd or data.count(b"\x7f") + 1 != len(tokens)
    if is_odd:
        return _one_by_one(tokens, raws)
    # Tokens of ASCII that are not spelled are their text: of these the number of bytes is not compared.
    agree = _agree_at_ends(tokens, raws, may_lack=True) if is_plain else _agree(tokens, raws, len(data))
    return PackedTexts(data.translate(TO_STORED), len(tokens)) if agree else _one_by_one(tokens, raws)


def _is_spelled(text: str) -> bool:
    """Whether a text of ASCII has what stands in tokens that are spelled otherwise than their text. None is ``_ODD``
    without it."""
    # Single characters are found much faster.
    return (
        "\\" in text or ("<" in text and "<0x" in text) or (":" in text and ("bytes:" in text or "token_id:" in text))
    )


def _agree(tokens: Sequence[str], raws: Sequence[Raw], length: int) -> bool:
    """Whether the bytes are those of the tokens: the same at both ends, and of as many as there are.

    Not all are compared, which would take a tenth of the time of decoding. Where engines spell tokens otherwise than
    their text (``Ġa``, ``<0xE2>``, U+FFFD), that is longer than the bytes.

    Args:
        length: number of bytes of the tokens, with one between each two.
    """
    if not raws:
        return True
    joined = b",".join(raws)
    if joined == b",".join([b"null"] * len(raws)):
        return True
    # A comma between each two bytes, and between each two lists: one less than both together, save for empty lists.
    surplus = joined.count(b",") - (length - len(tokens))
    if surplus and surplus != joined.count(b"[]"):
        return False
    return _agree_at_ends(tokens, raws, may_lack=False)


def _agree_at_ends(tokens: Sequence[str], raws: Sequence[Raw], *, may_lack: bool) -> bool:
    """Whether the bytes at both ends are those of their tokens. ``may_lack``: or null."""
    try:
        for at in (0, 1, -2, -1) if len(raws) >= 4 else range(len(raws)):
            raw = raws[at]
            if (not may_lack) if raw == NULL else bytes(_numbers.decode(raw)) != tokens[at].encode():
                return False
    except (*DECODE_ERRORS, ValueError):
        return False
    return True


def _one_by_one(tokens: Sequence[Any], raws: Sequence[Raw]) -> PackedTexts | None:
    parts = []
    for at, token in enumerate(tokens):
        part = _part(token, _bytes_of(raws[at]) if raws else None)
        if part is None:
            return None
        parts.append(part)
    return packed(parts)


def _part(token: Any, data: bytes | None) -> bytes | str | None:
    """The bytes of a token, or its text where these are not known; None where neither is."""
    if data is not None:
        return data
    if not isinstance(token, str) or token.startswith("token_id:"):
        return None
    escaped = _ESCAPED.fullmatch(token)
    return token if escaped is None else bytes.fromhex(escaped[1].replace("\\x", ""))


def _bytes_of(raw: Raw) -> bytes | None:
    """Bytes from the JSON of a list of numbers; None for anything else."""
    if raw == NULL:
        return None
    try:
        return bytes(_numbers.decode(raw))
    except (*DECODE_ERRORS, ValueError):
        return None


def packed(parts: Iterable[bytes | str]) -> PackedTexts:
    """Texts from the bytes of each token, or from texts. What is no UTF-8 becomes U+FFFD."""
    decoder, texts = _utf8("replace"), []
    for part in parts:
        # A text begins a character of its own: what came before it is no beginning of one.
        texts.append(decoder.decode(part) if isinstance(part, bytes) else decoder.decode(b"", final=True) + part)
    rest = decoder.decode(b"", final=True)
    if rest:
        texts[-1] += rest
    return PackedTexts.of(texts)


def texts_of_entries(entries: Sequence[Any]) -> PackedTexts | None:
    """The texts of entries that were decoded: objects with ``token`` and ``bytes``; None where one has none."""
    parts = []
    for entry in entries:
        values = entry if isinstance(entry, dict) else {}
        part = _part(values.get("token"), _as_bytes(values.get("bytes")))
        if part is None:
            return None
        parts.append(part)
    return packed(parts)


def _as_bytes(values: Any) -> bytes | None:
    if not isinstance(values, list):
        return None
    try:
        return bytes(values)
    except (TypeError, ValueError):
        return None
