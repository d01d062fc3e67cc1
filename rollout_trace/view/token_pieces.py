"""Splits a decoded text into the texts of its tokens."""

from __future__ import annotations

import json
from codecs import getincrementaldecoder
from collections.abc import Callable
from typing import Any

_utf8 = getincrementaldecoder("utf-8")
_REPLACED = "\ufffd"
_MOST_PENDING = 8
"""Tokens that may wait for the end of a character: one of UTF-8 has at most four bytes."""
_SEARCHED = 64
"""Characters in which a token's text is searched beyond the place where it is expected."""


class ByteLevel:
    """The vocabulary of a byte-level tokenizer: each token is a sequence of bytes, spelled in 256 letters."""

    def __init__(self, token_of: Callable[[int], str | None]) -> None:
        """``token_of``: the spelling of an id; None where there is no such id."""
        self._token_of = token_of
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def of(cls, tokenizer: Any) -> ByteLevel | None:
        """That of a tokenizer of the package tokenizers; None where its tokens are decoded otherwise."""
        decoder = json.loads(tokenizer.to_str()).get("decoder") or {}
        steps = decoder.get("decoders") if decoder.get("type") == "Sequence" else [decoder]
        is_byte_level = isinstance(steps, list) and [one.get("type") for one in steps] == ["ByteLevel"]
        return cls(tokenizer.id_to_token) if is_byte_level else None

    def texts(self, ids: list[int]) -> list[str]:
        """The text of each id; of a character in several tokens, the last one has it."""
        known, decoder = self._bytes, _utf8("replace")
        texts = []
        for one in ids:
            data = known.get(one)
            if data is None:
                data = known[one] = self.bytes_of(one)
            texts.append(decoder.decode(data))
        rest = decoder.decode(b"", final=True)
        if rest:
            texts[-1] += rest
        return texts

    def bytes_of(self, one: int) -> bytes:
        """The bytes of an id."""
        token = self._token_of(one) or ""
        try:
            return bytes([_BYTE_OF[letter] for letter in token])
        except KeyError:  # An added token with a letter that is no byte: it stands for itself.
            return token.encode()


def _letters() -> dict[str, int]:
    """The byte of each letter, as in GPT-2: bytes that print stand for themselves, the others follow U+0100."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printed)]
    return {**{chr(byte): byte for byte in printed}, **{chr(256 + at): byte for at, byte in enumerate(others)}}


_BYTE_OF = _letters()


def pieces_of(ids: list[int], whole: str, decode: Callable[[list[int]], str]) -> list[str]:
    """The texts of tokens by any decoder; joined they are ``whole``, the text of all. Time is linear in the ids.

    Each token is decoded together with the one before it: alone, decoders drop the blank at the beginning of a word.
    """
    aligned = _Aligned(whole)
    first = begun = 0
    before = ""
    for at in range(len(ids)):
        text = decode(ids[first : at + 1])
        if text.endswith(_REPLACED) and at + 1 - begun < _MOST_PENDING:
            # Maybe the beginning of a character.
            aligned.add("")
            continue
        aligned.add(text[len(before) :] if text.startswith(before) else text)
        first, begun = begun, at + 1
        before = decode(ids[first:begun])
    return aligned.finish()


class _Aligned:
    """Pieces of a text, found in it one after the other."""

    def __init__(self, whole: str) -> None:
        self._whole = whole
        self._at = 0
        self._pieces: list[str] = []

    def add(self, piece: str) -> None:
        """Adds the next piece, with what stands before it; an empty one where it does not come soon."""
        found = self._whole.find(piece, self._at, self._at + len(piece) + _SEARCHED) if piece else -1
        end = self._at if found < 0 else found + len(piece)
        self._pieces.append(self._whole[self._at : end])
        self._at = end

    def finish(self) -> list[str]:
        """The pieces; the last one has the rest of the text."""
        if self._pieces:
            self._pieces[-1] += self._whole[self._at :]
        return self._pieces
