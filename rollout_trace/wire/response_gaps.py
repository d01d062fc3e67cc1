"""Positions of tokens without a logprob in streamed responses of vLLM 0.32.

Its stream has an event for each token that adds text, with that token's logprob. A token that adds none has no event:
half a character, and the stop token. Its id is in the last event all the same. Text that begins
with half a character is in the next event, in front of that event's own token; where this accounts for every missing
logprob, their positions are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rollout_trace.wire.lenient import text_of

GAPS_UNPLACED = (
    "{} of {} logprobs did not come with this stream, and nothing says of which tokens: of half characters, the stop "
    "token, others without text. Unstreamed, all come."
)
GAPS_PLACED = "{} of {} logprobs did not come with this stream: those of half characters and of the stop token are NaN."


class Piece(NamedTuple):
    """One event that adds text."""

    text: str
    entries: Sequence[Any]
    """The logprob entries that came with it."""


def missing_positions(pieces: Sequence[Piece], missing: int, *, stopped: bool) -> list[int] | None:
    """The positions of the completion ids whose logprobs are missing, ascending; None where they are not certain.

    ``stopped``: a stop token ended the completion, which adds no text.
    """
    places: list[int] = []
    position = 0
    for piece in pieces:
        # A token of another type is no text: what it stands for differs then.
        own = "".join(text_of(entry.get("token")) or "" for entry in piece.entries if isinstance(entry, dict))
        if piece.text != own:
            before = piece.text.removesuffix(own)
            # Of several tokens in one event, any may lack its entry; and only characters beyond ASCII have halves.
            if len(piece.entries) != 1 or before == piece.text or before.isascii():
                return None
            places.append(position)
            position += 1
        position += len(piece.entries)
    if stopped:
        places.append(position)
    return places if len(places) == missing else None


def filled(values: Sequence[Any], places: Sequence[int], filler: Any) -> list[Any]:
    """A copy of the values with ``filler`` inserted; ``places`` are ascending positions in the result."""
    result = list(values)
    for place in places:
        result.insert(place, filler)
    return result
