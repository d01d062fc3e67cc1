"""Streamed responses of vLLM 0.32: which tokens came without a logprob.

Its stream has an event for each token that adds text, with that token's logprob. A token that adds none has no event:
half a character, and the stop token. Its id is in the last event all the same. What half a character begins with is in
the text of the next event, beyond that event's own token; where every logprob that is missing shows so, their places
are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

TOLD_BY_NOTHING = (
    "{} of {} logprobs did not come with this stream, and nothing says of which tokens: of half characters, the stop "
    "token, others without text. Unstreamed, all come."
)
TOLD = "{} of {} logprobs did not come with this stream: those of half characters and of the stop token are NaN."


class Piece(NamedTuple):
    """One event that adds text."""

    text: str
    entries: Sequence[Any]
    """The logprobs that came with it."""


def places_of(pieces: Sequence[Piece], missing: int, *, stopped: bool) -> list[int] | None:
    """The positions of the completion ids whose logprobs are missing, in order; None where that is not sure.

    ``stopped``: a stop token ended the completion, which adds no text.
    """
    places: list[int] = []
    position = 0
    for piece in pieces:
        own = "".join(entry.get("token") or "" for entry in piece.entries if isinstance(entry, dict))
        if piece.text != own:
            before = piece.text.removesuffix(own)
            # Several tokens in one event: what adds to their text may be among them.
            if len(piece.entries) != 1 or before == piece.text or before.isascii():
                return None
            places.append(position)
            position += 1
        position += len(piece.entries)
    if stopped:
        places.append(position)
    return places if len(places) == missing else None


def filled(values: Sequence[Any], places: Sequence[int], filler: Any) -> list[Any]:
    """The values with a filler at these positions of the result."""
    result = list(values)
    for place in places:
        result.insert(place, filler)
    return result
