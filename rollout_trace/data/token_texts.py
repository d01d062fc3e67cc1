"""The texts of a completion's tokens, stored as one bytes object.

A list of 2,500 texts takes 140 kB and as many objects; joined they take the bytes of the text and one more for each.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rollout_trace.data.lists import FrozenList

BETWEEN = b"\xff"
"""Stands between two texts: a byte that is in no UTF-8."""
TO_STORED = bytes.maketrans(b"\x7f", BETWEEN)
_TO_PLAIN = bytes.maketrans(BETWEEN, b"\x7f")
_PLAIN = "\x7f"
"""Takes the place of ``BETWEEN`` while the bytes are decoded, where no text contains it."""


class PackedTexts:
    """Texts, one for each token: the stored form of ``Step.token_texts``."""

    __slots__ = ("count", "data")

    def __init__(self, data: bytes, count: int) -> None:
        """``data``: the texts in UTF-8 (half a surrogate pair as three bytes), with ``BETWEEN`` between them."""
        self.data = data
        self.count = count
        """Number of texts: no data are one empty text, or none at all."""

    @classmethod
    def of(cls, texts: Iterable[str]) -> PackedTexts:
        """Texts as they are stored.

        Raises:
            TypeError: one is no text.
        """
        parts = [text.encode("utf-8", "surrogatepass") for text in texts]
        return cls(BETWEEN.join(parts), len(parts))

    def __len__(self) -> int:
        return self.count

    def get(self) -> FrozenList:
        """The texts; a new list each time."""
        if not self.count:
            return FrozenList()
        plain = self.plain()
        if plain is not None:
            return FrozenList(plain.split(_PLAIN))
        return FrozenList([part.decode("utf-8", "surrogatepass") for part in self.data.split(BETWEEN)])

    def plain(self) -> str | None:
        """The texts as one, with U+007F between them; None where one of them contains it, or there are none."""
        if not self.count or b"\x7f" in self.data:
            return None
        return self.data.translate(_TO_PLAIN).decode("utf-8", "surrogatepass")

    def joined(self) -> str:
        """The text that the tokens make."""
        return self.data.replace(BETWEEN, b"").decode("utf-8", "surrogatepass")

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedTexts, (self.data, self.count)

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedTexts:
        return self


def from_plain(text: str) -> PackedTexts:
    """The texts of what ``plain`` returned."""
    return PackedTexts(text.encode("utf-8", "surrogatepass").translate(TO_STORED), text.count(_PLAIN) + 1)


def as_token_texts(values: Any, name: str = "token_texts") -> PackedTexts:
    """Texts set by hand, as they are stored.

    Raises:
        ValueError: they are no list of texts.
    """
    try:
        if not isinstance(values, (str, bytes)):
            return PackedTexts.of(values)
    except (TypeError, AttributeError):
        pass
    raise ValueError(f"{name}: expected a list of texts, one for each completion token, got {repr(values)[:60]}.")
