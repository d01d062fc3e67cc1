"""Token ids and logprobs as several protocols spell them."""

from __future__ import annotations

from typing import TypeVar

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
