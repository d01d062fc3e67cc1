"""``openai.responses``: /responses of OpenAI and of engines with the same API, streamed, unstreamed or retrieved.

Where the ids are: vLLM 0.32 puts them in ``input_messages`` and ``output_messages`` (with
``enable_response_messages``), one entry for each completion that it sampled for the answer. Logprobs stand on the texts
(with ``include``).

``finish_reason`` is the reason why a response is incomplete (``max_output_tokens``, ``content_filter``); else
``tool_calls`` where it calls functions, and ``stop`` where it does not; ``cancelled`` of a cancelled one. A response
that is still queued or in progress (``background``) is a choice that is not complete, and has no error.

``extra`` has what else the response holds (of a stream: its last event), save what it repeats of the request: of the
parameters only those that the server filled in itself, or changed (``service_tier``).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec import Struct

from rollout_trace.data.model import ErrorInfo
from rollout_trace.wire import align
from rollout_trace.wire.answer_extras import extra_of, fields_without
from rollout_trace.wire.errors import error_of, error_value
from rollout_trace.wire.facts import ChoiceFacts, RequestFacts, ResponseFacts
from rollout_trace.wire.lenient import LenientDecoder, loads
from rollout_trace.wire.logprobs import json_of, number_of
from rollout_trace.wire.reading import (
    add_usage,
    error_without_choices,
    events_of,
    is_read,
    mark_malformed,
    read_bodies,
    set_issue,
    text_of,
    withhold,
)
from rollout_trace.wire.response_items import (
    GAPS_PLACED,
    GAPS_UNPLACED,
    ItemEvent,
    Items,
    completion_of,
    content_parts,
    filled,
    missing_positions,
    num_sampled,
)
from rollout_trace.wire.sse import Event
from rollout_trace.wire.token_texts import texts_of_entries


class _Tokens(Struct):
    tokens: list[int] | None = None


class _Response(Struct):
    id: Any = None
    object: Any = None
    model: Any = None
    status: str | None = None
    output: list[Any] | None = None
    usage: Any = None
    incomplete_details: Any = None
    input_messages: list[_Tokens] | None = None
    output_messages: list[_Tokens] | None = None
    error: Any = None


class _Event(ItemEvent):
    type: str | None = None
    response: _Response | None = None
    message: Any = None
    error: Any = None


_BACKGROUND = "the response was still {}: a later responses.retrieve() has its answer, if any."
_RESPONSE = LenientDecoder(_Response)
_EVENT = LenientDecoder(_Event)
_NO_EXTRA = frozenset({*_Response.__struct_fields__, "input", "instructions", "tools", "output_text"})
_FINAL = frozenset({"completed", "incomplete", "failed", "cancelled"})


def decode(response: bytes, *, streamed: bool, status: int, request: RequestFacts) -> ResponseFacts:
    """The facts of an answer. Never raises on bad bytes: what is wrong with them is in the facts."""
    facts = ResponseFacts()
    answer = _Answer(facts, request)
    if streamed:
        parts = events_of(response, streamed=True)
        done = read_bodies(parts, _EVENT, facts, answer.add_event, streamed=True)
        answer.finish(done=done)
        if not facts.choices and facts.error is None and not answer.has_response:
            is_known = partial(is_read, _EVENT, test=lambda event: event.type is not None)
            facts.error = error_without_choices(parts, response, status, is_known, streamed=True)
    else:
        answer.add_body(response, status)
    mark_malformed(facts, streamed=streamed)
    align.check(facts.choices, facts.usage)
    return facts


class _Answer:
    """One response, from its only body or from the events of its stream."""

    def __init__(self, facts: ResponseFacts, request: RequestFacts) -> None:
        sampling: Mapping[str, Any] = request.sampling or {}
        self.has_response = False
        """True once an event of a response was read."""
        self._facts = facts
        self._request = request
        self._stop = bool(sampling.get("stop"))
        self._sampling = sampling
        self._items = Items()
        self._final: _Response | None = None
        self._extra: dict[str, Any] = {}

    def add_body(self, data: bytes, status: int) -> None:
        """Reads an unstreamed answer."""
        try:
            response, self._facts.malformed = _RESPONSE.decode(data)
        except ValueError:
            self._facts.error = error_of(data, status)
            return
        if response.output is None and response.status is None:
            self._facts.error = error_of(data, status)
            return
        self._final = response
        self._read_head(response)
        self._set_choice(response, response.output or [], ended=response.status not in ("queued", "in_progress"))
        self._facts.choices[0].extra = extra_of(self._others(data))

    def add_event(self, event: _Event, part: Event) -> None:
        """Reads the next event of a stream. Unknown kinds are ignored."""
        kind = event.type or part.type.decode("utf-8", "replace")
        prefix, _, name = kind.partition(".")
        if kind == "error":
            self._facts.error = self._facts.error or error_value(_without_type(part.data))
        # After an error only what came before it counts.
        if prefix != "response" or self._facts.error is not None:
            return
        self.has_response = True
        if event.response is not None:
            self._read_head(event.response)
            if name in _FINAL:
                self._final, self._extra = event.response, self._others(part.data, "response")
        else:
            name, _, step = name.rpartition(".")
            self._items.add(name, step, event)

    def finish(self, *, done: bool) -> None:
        """Sets the choice after the last event: from the final response if one came, else from the items so far."""
        items = self._items.all()
        if self._final is not None:
            # Some servers leave the output of the final event empty: the items of the stream stand in.
            whole = bool(self._final.output) or not items
            self._set_choice(self._final, (self._final.output or []) if whole else items, ended=True, gaps=not whole)
        elif self.has_response:
            self._set_choice(_Response(), items, ended=done and bool(items) and self._facts.error is None, gaps=True)
        for choice in self._facts.choices:
            choice.extra = extra_of(self._extra)

    def _others(self, data: bytes, inside: str | None = None) -> dict[str, Any]:
        """The fields of a response that have no place of their own, without those that its request has too."""
        found, sent = fields_without(data, _NO_EXTRA, inside), self._sampling
        return {name: value for name, value in found.items() if name not in sent or value != sent[name]}

    def _read_head(self, response: _Response) -> None:
        facts = self._facts
        facts.response_id = facts.response_id or text_of(response.id)
        facts.model = text_of(response.model) or facts.model
        add_usage(facts, response.usage)
        if response.error and facts.error is None:
            facts.error = error_value(response.error)

    def _set_choice(self, response: _Response, items: list[Any], *, ended: bool, gaps: bool = False) -> None:
        """Makes the response the only choice of the facts. ``gaps``: some text came without logprobs."""
        status = response.status or ("completed" if ended else "in_progress")
        if status == "failed" and self._facts.error is None:
            self._facts.error = ErrorInfo(type="ProviderError", message="the response failed.")
        choice = ChoiceFacts(
            completion=completion_of(items) if items or status == "completed" else None,
            complete=ended and status in ("completed", "incomplete"),
        )
        if choice.complete or status == "cancelled":
            choice.finish_reason = _finish_reason(status, response.incomplete_details, choice)
        if status in ("queued", "in_progress") and not ended and not items and self._facts.error is None:
            set_issue(choice, "background_not_fetched", _BACKGROUND.format(status))
        self._facts.choices = [choice]
        _set_ids(choice, response)
        choice.prompt_token_ids = self._request.ids(choice.prompt_token_ids)
        choice.completion_token_ids = self._request.ids(choice.completion_token_ids)
        self._set_logprobs(choice, items, gaps=gaps and self._items.gaps)

    def _set_logprobs(self, choice: ChoiceFacts, items: list[Any], *, gaps: bool) -> None:
        """Sets the logprobs if every sampled text has them; else reports that they are partial."""
        texts = [part for part in content_parts(items) if part.get("type") == "output_text" and part.get("text")]
        lists = [part["logprobs"] for part in texts if isinstance(part.get("logprobs"), list) and part["logprobs"]]
        entries = [entry if isinstance(entry, dict) else {} for entries in lists for entry in entries]
        if not entries or (choice.issue is not None and choice.completion_token_ids is None):
            return
        usage = self._facts.usage
        counted = choice.complete and usage is not None and usage.output is not None
        # Calls and reasoning are sampled too, but have no logprobs: with neither ids nor a count to compare with, those
        # of the texts would pass for all.
        of_all = len(lists) == len(texts) and not gaps
        if not of_all or (choice.completion_token_ids is None and not counted and num_sampled(items) > 1):
            set_issue(
                choice,
                "logprobs_partial",
                f"logprobs came for {len(lists)} texts; {num_sampled(items)} items and {len(texts)} texts were "
                "sampled.",
            )
            return
        choice.logprobs = [number_of(entry.get("logprob")) for entry in entries]
        choice.token_texts = texts_of_entries(entries)
        tops = [entry.get("top_logprobs") for entry in entries]
        choice.top_logprobs = [top if isinstance(top, list) else [] for top in tops] if any(tops) else None
        size = len(choice.completion_token_ids or ())
        if self._items.pieces and len(entries) < size:
            self._mark_gaps(choice, size, num_sampled(items) == len(texts) == 1)
        choice.top_logprobs = json_of(choice.top_logprobs)

    def _mark_gaps(self, choice: ChoiceFacts, size: int, is_one_text: bool) -> None:
        """Puts None at ids for which the stream has no logprob; removes all logprobs where that is uncertain."""
        came = len(choice.logprobs)
        pieces = self._items.pieces
        stopped = choice.finish_reason == "stop"
        places = None
        # With stop strings the server holds text back: an event's text is then not that of its own token.
        if is_one_text and not self._stop and sum(len(piece.entries) for piece in pieces) == came:
            places = missing_positions(pieces, size - came, stopped=stopped)
        message = (GAPS_UNPLACED if places is None else GAPS_PLACED).format(size - came, size)
        set_issue(choice, "logprobs_incomplete", message)
        # Tokens without a logprob have no text either.
        choice.token_texts = None
        if places is None:
            choice.logprobs = choice.top_logprobs = None
            return
        # Nulls that the server sent itself stay an error: among the gaps they would pass for tokens without logprobs.
        choice.may_lack_logprobs = None not in choice.logprobs
        choice.logprobs = filled(choice.logprobs, places, None)
        tops = choice.top_logprobs
        choice.top_logprobs = filled(tops, places, []) if isinstance(tops, list) else None


def _set_ids(choice: ChoiceFacts, response: _Response) -> None:
    prompts = [message.tokens for message in response.input_messages or ()]
    completions = [message.tokens for message in response.output_messages or ()]
    if len(completions) > 1:
        withhold(
            choice,
            "several_completions",
            f"the server sampled {len(completions)} completions for this answer: their ids are not one completion's.",
        )
    elif completions and completions[0] is not None:
        choice.completion_token_ids, choice.token_source = completions[0], "engine"
    if len(prompts) == 1 and len(completions) < 2:
        choice.prompt_token_ids = prompts[0]


def _finish_reason(status: str, details: Any, choice: ChoiceFacts) -> str:
    reason = details.get("reason") if isinstance(details, dict) else None
    if reason:
        return str(reason)
    if status != "completed":
        return status
    return "tool_calls" if choice.completion is not None and choice.completion.tool_calls else "stop"


def _without_type(data: bytes) -> Any:
    """The fields of an ``error`` event without its type, which is always ``error``."""
    value = loads(data)
    if not isinstance(value, dict):
        return value
    return {name: item for name, item in value.items() if name not in ("type", "sequence_number") and item is not None}
