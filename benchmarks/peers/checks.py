"""Whether what was sent is in what a peer has recorded: each cell of the table of behaviour is made here."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FIRST_FAILURE = "the first attempt failed on purpose"
KEPT_PIECES = 2
"""Pieces with tokens that the caller has certainly read of a stream that ends early."""

Cell = tuple[str, str]
"""``yes``, ``partly`` or ``no``, and the reason of the last two."""
_NUMBER = re.compile(r"-?\d+\.\d+(?:[eE][+-]?\d+)?")


@dataclass(frozen=True)
class Sent:
    """One answer as it left the server."""

    prompt: list[int]
    pieces: list[list[int]]
    """Completion ids, by choice or by chunk."""
    logprobs: list[float]

    @property
    def completion(self) -> list[int]:
        """All ids of the completion."""
        return [number for piece in self.pieces for number in piece]


def sent(body: bytes, *, streamed: bool) -> Sent:
    """What an answer's bytes hold."""
    if not streamed:
        answers = [json.loads(body)]
    else:
        lines = [line[6:] for line in body.decode().splitlines() if line.startswith("data: {")]
        answers = [json.loads(line) for line in lines]
    prompt: list[int] = next((answer["prompt_token_ids"] for answer in answers if answer.get("prompt_token_ids")), [])
    choices = [choice for answer in answers for choice in answer["choices"]]
    pieces = [choice["token_ids"] for choice in choices if choice.get("token_ids")]
    entries = [entry for choice in choices for entry in (choice.get("logprobs") or {}).get("content") or []]
    return Sent(prompt, pieces, [entry["logprob"] for entry in entries])


class Recorded:
    """The records of one scenario."""

    def __init__(self, records: Sequence[dict[str, Any]]) -> None:
        self.records = records
        self.text = "\n".join(record["text"] for record in records)
        self._compact = re.sub(r"\s+", "", self.text)

    def holds_ids(self, ids: Sequence[int]) -> bool:
        """Whether the ids are there as one list."""
        return bool(ids) and re.search(rf"(?<!\d){','.join(map(str, ids))}(?!\d)", self._compact) is not None

    def ids(self, ids: Sequence[int], pieces: Sequence[Sequence[int]] = ()) -> Cell:
        """A list of ids, or one that came in pieces."""
        if self.holds_ids(ids):
            return "yes", ""
        if pieces and self._in_order([f"[{','.join(map(str, piece))}]" for piece in pieces]):
            return "partly", "chunk by chunk, not joined"
        return "no", ""

    def _in_order(self, parts: Sequence[str]) -> bool:
        place = 0
        for part in parts:
            place = self._compact.find(part, place) + 1
            if not place:
                return False
        return True

    def logprobs(self, logprobs: Sequence[float]) -> Cell:
        """All logprobs, in their order."""
        numbers = [float(number) for number in _NUMBER.findall(self.text)]
        if _subsequence(logprobs, numbers):
            return "yes", ""
        if _subsequence([_float32(one) for one in logprobs], [_float32(number) for number in numbers]):
            return "yes", "as float32"
        return "no", ""


def _subsequence(wanted: Sequence[float], numbers: Sequence[float]) -> bool:
    left = iter(numbers)
    return bool(wanted) and all(one in left for one in wanted)


def _float32(number: float) -> float:
    return float(struct.unpack("f", struct.pack("f", max(-3e38, min(3e38, number))))[0])


def ended_early(found: Recorded, answer: Sent) -> Cell:
    """A stream without its end: are the tokens so far there, and is it marked?"""
    if not found.records:
        return "no", "no record"
    ids = [number for piece in answer.pieces[:KEPT_PIECES] for number in piece]
    missing = [] if found.holds_ids(ids) or found.ids(ids, answer.pieces[:KEPT_PIECES])[0] != "no" else ["no ids"]
    if not any(record["failed"] for record in found.records):
        missing.append("not marked")
    return ("partly", ", ".join(missing)) if missing else ("yes", "")


def failed(found: Recorded) -> Cell:
    """A call that got status 500."""
    if not found.records:
        return "no", "no record"
    missing = [] if any(record["failed"] for record in found.records) else ["not marked"]
    if "500" not in found.text:
        missing.append("no status")
    return ("partly", ", ".join(missing)) if missing else ("yes", "")


def retried(found: Recorded) -> Cell:
    """A call that got status 500 and then its answer: are both attempts there?"""
    if not found.records:
        return "no", "no record"
    both = len(found.records) > 1 or FIRST_FAILURE in found.text or '"status": 500' in found.text
    return ("yes", "") if both else ("partly", "the last attempt only")


def in_trace(found: Recorded, trace: str, count: int) -> Cell:
    """Calls of threads: in the trace that started them?"""
    if len(found.records) < count:
        return "no", "no record" if not found.records else f"{len(found.records)} of {count} recorded"
    return ("yes", "") if all(record["trace"] == trace for record in found.records) else ("partly", "outside the trace")


def late(found: Recorded, answer: Sent) -> Cell:
    """A stream that was read after its block."""
    if not found.records:
        return "no", "no record"
    ids, why = found.ids(answer.completion, answer.pieces)
    missing = [] if ids == "yes" else [why or "no ids"]
    if any(record["trace"] != "late" for record in found.records):
        missing.append("outside the trace")
    if any(record["failed"] for record in found.records):
        missing.append("marked as failed")
    return ("partly", ", ".join(missing)) if missing else ("yes", "")


def choices(found: Recorded, answer: Sent) -> Cell:
    """The ids of both choices."""
    kept = [found.holds_ids(piece) for piece in answer.pieces]
    return ("yes", "") if all(kept) else ("partly", f"{sum(kept)} of {len(kept)}") if any(kept) else ("no", "")


def own_traces(found: Recorded) -> Cell:
    """Two tasks at once, each in a trace of its own."""
    if len(found.records) < 4:
        return "no", f"{len(found.records)} of 4 recorded"
    own = all((record["trace"] or "none") in record["text"] for record in found.records)
    mixed = sum(f"of {record['trace']}" not in record["text"] for record in found.records)
    return ("yes", "") if own and not mixed else ("no", f"{mixed} of {len(found.records)} in another's trace or none")


def as_sent(found: Recorded) -> Cell:
    """Messages that the caller changed after the call."""
    if not found.records:
        return "no", "no record"
    return ("yes", "") if "ORIGINAL-CONTENT" in found.text and "CHANGED-CONTENT" not in found.text else ("no", "")


def extras(kept: Mapping[str, bool]) -> Cell:
    """Fields of an engine beside ids and logprobs, and whether each is kept."""
    if all(kept.values()):
        return "yes", ""
    names = [name for name, is_kept in kept.items() if is_kept]
    return ("partly", f"only {', '.join(names)}") if names else ("no", "")


def reward(value: Any) -> Cell:
    """The reward that was never given; a peer that has none has nothing to be wrong."""
    if value == "NotImplemented":
        return "", "has no rewards"
    return ("yes", "") if value is None else ("no", f"it is {value}")
