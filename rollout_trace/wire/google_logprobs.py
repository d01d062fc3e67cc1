"""Google's ``logprobsResult`` of a candidate: ids, logprobs and alternatives of its tokens, over all chunks."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from rollout_trace.wire.extras import top_tokens_of
from rollout_trace.wire.extras_alignment import FoundExtras, settle
from rollout_trace.wire.facts import ChoiceFacts
from rollout_trace.wire.logprobs import json_of, number_of
from rollout_trace.wire.reading import set_issue
from rollout_trace.wire.token_texts import texts_of_entries


class Logprobs:
    """The logprobs of one candidate, from its only body or from all chunks of a stream."""

    def __init__(self) -> None:
        self._chosen: list[Any] | None = None
        self._tops: list[Any] = []

    def add(self, result: Any) -> Any:
        """Reads the ``logprobsResult`` of the next chunk. Returns what of it has no place of its own."""
        if not isinstance(result, dict):
            return result
        chosen, tops = result.get("chosenCandidates"), result.get("topCandidates")
        if isinstance(chosen, list):
            self._chosen = (self._chosen or []) + chosen
            tops = tops if isinstance(tops, list) else []
            # Rows of another number than the tokens cannot be assigned; the next chunk's rows still can.
            self._tops += tops if len(tops) == len(chosen) else [None] * len(chosen)
        rest = ("chosenCandidates", "topCandidates", "logProbabilitySum")
        return {name: value for name, value in result.items() if name not in rest and value is not None} or None

    def write_to(self, choice: ChoiceFacts) -> None:
        """Sets ids (where every token has one), logprobs and alternatives of a choice."""
        if self._chosen is None:
            return
        entries = [entry if isinstance(entry, dict) else {} for entry in self._chosen]
        choice.logprobs = [number_of(entry.get("logProbability")) for entry in entries]
        ids = [entry.get("tokenId") for entry in entries]
        choice.token_texts = texts_of_entries(entries)
        count = sum(isinstance(one, int) and not isinstance(one, bool) for one in ids)
        if entries and count == len(entries):
            choice.completion_token_ids, choice.token_source = ids, "logprobs"
        elif count:
            set_issue(choice, "ids_missing", f"only {count} of {len(entries)} tokens in the logprobs have an id.")
        rows = [_row(top) for top in self._tops]
        if any(rows):
            choice.top_logprobs = json_of(rows)

    def add_extras(self, choice: ChoiceFacts) -> None:
        """Sets the ids of the alternatives as arrays, where all have one; ``align.check`` has seen the choice."""
        rows = [_row(top) for top in self._tops]
        if not any(rows) or not all("id" in entry for row in rows for entry in row):
            return
        try:
            raw = [Raw(msgspec.json.encode(row)) for row in rows]
        except (msgspec.MsgspecError, UnicodeError):
            return
        # "The chosen candidate might not be in `topCandidates`."
        settle(choice, FoundExtras(top_tokens=top_tokens_of(raw)))


def _row(top: Any) -> list[dict[str, Any]]:
    """The alternatives of one token, in the names of chat's ``top_logprobs``."""
    entries = top.get("candidates") if isinstance(top, dict) else None
    found = []
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict):
            row: dict[str, Any] = {"token": entry.get("token"), "logprob": entry.get("logProbability")}
            found.append({**row, "id": entry["tokenId"]} if entry.get("tokenId") is not None else row)
    return found
