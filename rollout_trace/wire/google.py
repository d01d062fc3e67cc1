"""``google.generate_content``: Google's generateContent and streamGenerateContent (Gemini API, Vertex AI).

A stream is server-sent events (``alt=sse``), or one JSON array that is sent item by item; neither has a last event of
its own: a candidate is whole once it has a ``finishReason``.

Google sends no prompt ids. Completion ids and logprobs stand in ``logprobsResult``, where the request asks for
``responseLogprobs`` and the model has them; they are of the answer alone, not of its thoughts.

``finish_reason`` is as sent (``STOP``, ``MAX_TOKENS``, ``SAFETY``, ...). A prompt that was blocked gets no candidate:
it is one choice without completion, which is complete, and its ``finish_reason`` is the ``blockReason``.

Usage: ``total = prompt + tool use prompt + candidates + thoughts``, so ``output`` is candidates and thoughts, ``input``
prompt and tool use prompt. Cached tokens are part of the prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec import json as msgjson

from rollout_trace.data.model import Completion, ErrorInfo
from rollout_trace.wire import align
from rollout_trace.wire.align import FoundExtras, settle
from rollout_trace.wire.answer_extras import extra_of
from rollout_trace.wire.errors import brief, error_of, error_value
from rollout_trace.wire.extras import top_tokens_of
from rollout_trace.wire.facts import ChoiceFacts, RequestFacts, ResponseFacts
from rollout_trace.wire.google_parts import Parts
from rollout_trace.wire.lenient import DECODE_ERRORS, NULL, loads
from rollout_trace.wire.logprobs import json_of, number_of
from rollout_trace.wire.reading import (
    mark_malformed,
    merged,
    reader_for,
    set_issue,
    text_of,
    unreadable,
    usage_of,
    withhold,
)
from rollout_trace.wire.sse import Event, events
from rollout_trace.wire.token_texts import texts_of_entries

_ANSWER_FIELDS = frozenset({"candidates", "usageMetadata", "modelVersion", "responseId"})
_CANDIDATE_FIELDS = frozenset({"content", "finishReason", "index", "logprobsResult"})
_KNOWN_FIELDS = frozenset({"candidates", "usageMetadata", "promptFeedback"})
"""An object with none of these is no answer."""
_UNSPECIFIED = (None, "", "FINISH_REASON_UNSPECIFIED")


class _Call(Struct):
    args: Raw = NULL


class _RawPart(Struct):
    functionCall: _Call | None = None


class _RawContent(Struct):
    parts: list[_RawPart] = []


class _RawCandidate(Struct):
    content: _RawContent | None = None


class _RawAnswer(Struct):
    candidates: list[_RawCandidate] = []


_RAW = msgjson.Decoder(_RawAnswer)


def decode(response: bytes, *, streamed: bool, status: int, request: RequestFacts) -> ResponseFacts:
    """The facts of an answer. Never raises on bad bytes: what is wrong with them is in the facts."""
    facts = ResponseFacts()
    answer = _Answer(facts)
    is_array = response.lstrip()[:1] == b"["
    if not streamed:
        done = answer.add_body(response, status)
    else:
        parts, done = _items(response) if is_array else (list(events(response)), False)
        answer.add_stream(parts)
        done = done and facts.error is None
        if not answer.has_begun and facts.error is None:
            # Other objects, or a page in its place; not where it was cut early.
            has_page = not parts and not is_array and response.lstrip()[:1] in (b"{", b"<")
            unread = response if has_page else next((part.data for part in parts if part.complete), None)
            facts.error = None if unread is None else error_of(unread, status)
    answer.finish(done=done, streamed=streamed)
    mark_malformed(facts, streamed=streamed)
    align.check(facts.choices, facts.usage)
    answer.add_extras()
    return facts


def _items(data: bytes) -> tuple[list[Event], bool]:
    """The items of a JSON array, whole or cut, and whether its end came."""
    text = data.decode("utf-8", "replace")
    found: list[Event] = []
    at, decoder = text.index("[") + 1, json.JSONDecoder()
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if at >= len(text) or text[at] == "]":
            return found, at < len(text)
        try:
            _, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            found.append(Event(b"", text[at:].encode(), False))
            return found, False
        found.append(Event(b"", text[at:end].encode("utf-8", "surrogatepass")))
        at = end


class _Answer:
    """One answer, from its only body or from the items of its stream."""

    def __init__(self, facts: ResponseFacts) -> None:
        self.has_begun = False
        """True once an object of an answer was read."""
        self._facts = facts
        self._candidates: dict[int, _Candidate] = {}
        self._extra: dict[str, Any] = {}
        self._counts: dict[str, Any] = {}
        self._problem: str | None = None

    def add_body(self, data: bytes, status: int) -> bool:
        """Reads an unstreamed answer; False where it is none."""
        try:
            value = loads(data)
        except ValueError as error:
            self._facts.error = ErrorInfo(type="InvalidJSON", message=f"{error} in {brief(data)}")
            return False
        if not isinstance(value, dict) or value.get("error") or _KNOWN_FIELDS.isdisjoint(value):
            self._facts.error = error_of(data, status)
            return False
        self._add(value, data, streamed=False)
        return True

    def add_stream(self, parts: list[Event]) -> None:
        """Reads the items of a stream in order, up to the first error."""
        for part in parts:
            if part.data.startswith(b"[DONE]"):
                return
            try:
                value = loads(part.data)
            except ValueError as error:
                # A cut item is where the stream broke off, not an error of the server's.
                if part.complete:
                    self._facts.error = unreadable(part, error)
                return
            said = value.get("error") if isinstance(value, dict) else None
            if said or part.type == b"error":
                self._facts.error = error_value(said or value)
                return
            if isinstance(value, dict) and not _KNOWN_FIELDS.isdisjoint(value):
                self._add(value, part.data, streamed=True)

    def finish(self, *, done: bool, streamed: bool) -> None:
        """Writes what was read to the facts. ``done``: the answer reached its end."""
        facts = self._facts
        if not self.has_begun:
            return
        facts.usage = usage_of(self._counts, "google") if self._counts else None
        facts.choices = [self._candidates[index].facts(index, done=done) for index in sorted(self._candidates)]
        self._withhold_answers_alone()
        feedback = self._extra.get("promptFeedback")
        blocked = feedback.get("blockReason") if isinstance(feedback, dict) else None
        if not facts.choices:
            is_whole = done or (bool(blocked) and facts.error is None)
            facts.choices = [ChoiceFacts(finish_reason=text_of(blocked or None), complete=is_whole)]
        facts.malformed = (
            facts.malformed
            or self._problem
            or next((one.parts.problem for one in self._candidates.values() if one.parts.problem), None)
        )

    def add_extras(self) -> None:
        """Adds to the choices, whose ids have been checked, what came beside text, ids and logprobs."""
        for choice in self._facts.choices:
            candidate = self._candidates.get(choice.index)
            if candidate is not None:
                candidate.logprobs.add_extras(choice)
            choice.extra = extra_of(self._extra, {} if candidate is None else candidate.extra)

    def _withhold_answers_alone(self) -> None:
        """Removes ids and logprobs that are of the answer without the thoughts before it: they are not a completion."""
        thoughts = None if self._facts.usage is None else self._facts.usage.reasoning
        for choice in self._facts.choices:
            has_thoughts = thoughts or (choice.completion is not None and choice.completion.reasoning)
            if choice.logprobs is not None and has_thoughts:
                others = f"{thoughts} were thoughts" if thoughts else "there were thoughts before it"
                withhold(
                    choice,
                    "logprobs_partial",
                    f"logprobs came for {len(choice.logprobs)} tokens of the answer; {others}.",
                )

    def _add(self, value: dict[str, Any], data: bytes, *, streamed: bool) -> None:
        self.has_begun = True
        facts = self._facts
        facts.response_id = facts.response_id or text_of(value.get("responseId"))
        facts.model = facts.model or text_of(value.get("modelVersion"))
        if isinstance(value.get("usageMetadata"), dict):
            self._counts = merged(self._counts, value["usageMetadata"])
        self._extra.update(_others(value, _ANSWER_FIELDS))
        candidates = value.get("candidates")
        if candidates is None:
            return
        if not isinstance(candidates, list) or not all(isinstance(one, dict) for one in candidates):
            self._problem = self._problem or "`candidates` is no list of objects"
            return
        raw = _raw_arguments(data)
        for position, candidate in enumerate(candidates):
            index = candidate.get("index")
            index = index if isinstance(index, int) and not isinstance(index, bool) else None
            reader = reader_for(self._candidates, index, position, _Candidate, streamed=streamed)
            reader.add(candidate, raw[position] if position < len(raw) else [])


class _Candidate:
    """One candidate, from its only body or from its chunks."""

    def __init__(self) -> None:
        self.parts = Parts()
        self.logprobs = Logprobs()
        self.extra: dict[str, Any] = {}
        self._finish_reason: str | None = None

    def add(self, value: dict[str, Any], raw: list[Raw | None]) -> None:
        """Reads the next chunk. ``raw``: the JSON of the arguments of each part's function call."""
        content, reason = value.get("content"), value.get("finishReason")
        if isinstance(content, dict) and content.get("parts") is not None:
            self.parts.add(content["parts"], raw)
        if reason not in _UNSPECIFIED:
            self._finish_reason = text_of(reason)
        rest = self.logprobs.add(value.get("logprobsResult"))
        self.extra.update(_others(value, _CANDIDATE_FIELDS))
        if rest is not None:
            self.extra["logprobsResult"] = rest

    def facts(self, index: int, *, done: bool) -> ChoiceFacts:
        """The facts of the candidate. ``done``: the answer reached its end."""
        choice = ChoiceFacts(
            index=index,
            completion=self.parts.completion(),
            finish_reason=self._finish_reason,
            complete=done or self._finish_reason is not None,
        )
        if choice.completion == Completion() and not choice.complete:
            choice.completion = None
        self.logprobs.write_to(choice)
        return choice


def _others(value: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: item for name, item in value.items() if name not in names and item is not None}


def _raw_arguments(data: bytes) -> list[list[Raw | None]]:
    """The JSON of the arguments of function calls, as the server spelled it: by candidate, then by part."""
    if b'"functionCall"' not in data:
        return []
    try:
        found = _RAW.decode(data)
    except DECODE_ERRORS:
        # A field of another type: the arguments are then encoded anew.
        return []
    # NULL is the default too: a call without arguments.
    return [
        [
            None if part.functionCall is None or part.functionCall.args == NULL else part.functionCall.args.copy()
            for part in (one.content.parts if one.content else ())
        ]
        for one in found.candidates
    ]


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
