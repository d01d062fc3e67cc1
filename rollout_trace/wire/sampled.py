"""``vllm.llm``, ``tinker.sample`` and ``transformers.generate``: samplers in this process, which exchange no bytes.

Their requests and answers are written as JSON of our own when the call is made, so that the journal, recovery and the
limits of bytes are those of every other call. One shape serves all three. A request has ``model``, then ``prompt`` (a
text, or token ids) or ``messages`` and ``tools``, and the sampling parameters beside them, under the sampler's own
names. An answer is one object; with ``"stream": true`` in the request it is objects by lines, whose choices are deltas.

An answer::

    {"id": "0", "prompt_token_ids": [1, 2], "logprobs_mode": "raw", "cached_tokens": 0, "policy_version": "7",
     "prompt_logprobs": [null, -1.5], "prompt_top_tokens": {"ids": [[], [2, 9]], "logprobs": [[], [-1.5, -0.5]]},
     "lists_sampled": true, "extra": {},
     "choices": [{"index": 0, "text": "ab", "token_ids": [3, 4], "logprobs": [-0.5, -0.25], "tokens": ["a", "b"],
                  "top_tokens": {"ids": [[3], [4]], "logprobs": [[-0.5], [-0.25]]}, "finish_reason": "stop",
                  "stop_reason": null, "sampling_mask": [[3, 5], [4]], "routed_experts": "base64 of a .npy file",
                  "weight_versions": [{"version": "7", "start": 0, "end": 2}], "extra": {}}]}

All but ``choices`` may be missing. ``prompt_token_ids`` are there only where they are not the ids of the request.
``lists_sampled``: the alternatives always hold the sampled token. An alternative without a logprob, or with Tinker's
filler of -99999.0, is none. ``logprobs_mode`` is ``raw`` or ``processed``, or the name of what the numbers are instead:
those go to ``extra["logits"]``. ``text_from``: the text of a delta goes on at this position. ``unconfirmed``: why it is
not certain which tokens were sampled.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Raw, Struct, json

from rollout_trace.data.extras import TopTokens
from rollout_trace.data.model import Completion, ErrorInfo, Usage
from rollout_trace.wire import align
from rollout_trace.wire.align import FoundExtras, missing_ids, settle
from rollout_trace.wire.answer_extras import extra_of
from rollout_trace.wire.errors import error_of
from rollout_trace.wire.extras import (
    TopRows,
    checked_logprobs,
    returns_issue,
    view_of,
)
from rollout_trace.wire.facts import ChoiceFacts, RequestFacts, ResponseFacts
from rollout_trace.wire.lenient import NULL, LenientDecoder, later
from rollout_trace.wire.logprobs import extended
from rollout_trace.wire.reading import mark_malformed, read_bodies, reader_for, set_issue, text_of, withhold
from rollout_trace.wire.request import ids_of, messages_of
from rollout_trace.wire.sse import Event
from rollout_trace.wire.token_texts import texts_of
from rollout_trace.wire.vllm_extras import ChoiceExtras, RawExtras

if TYPE_CHECKING:
    from rollout_trace.data.tokens import FloatArray

FILLER: Final = -99999.0
"""The logprob of places in Tinker's matrices that hold no token."""
_MODES: Final = ("raw", "processed")


class _Choice(ChoiceExtras):
    index: int | None = None
    text: str | None = None
    text_from: int | None = None
    token_ids: list[int] | None = None
    logprobs: list[float | None] | None = None
    tokens: list[str | None] | None = None
    top_tokens: Raw = NULL
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    unconfirmed: str | None = None
    extra: dict[str, Any] | None = None


class _Body(Struct):
    id: Any = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: Raw = NULL
    prompt_top_tokens: Raw = NULL
    lists_sampled: bool = False
    logprobs_mode: str | None = None
    policy_version: str | int | None = None
    cached_tokens: int | None = None
    choices: list[_Choice] | None = None
    extra: dict[str, Any] | None = None
    error: Any = None


class _Top(Struct):
    ids: list[list[int]]
    logprobs: list[list[float | None]]


_BODY = LenientDecoder(_Body)
_TOP = json.Decoder(_Top)
_SCORES = json.Decoder(list[float | None])


def decode(response: bytes, *, streamed: bool, status: int, request: RequestFacts) -> ResponseFacts:
    """The facts of an answer. Never raises on bad bytes: what is wrong with them is in the facts."""
    facts = ResponseFacts()
    if not response.strip():
        # The sampler raised, or was interrupted.
        return facts
    lines = response.split(b"\n") if streamed else [response]
    # The last piece of a stream is cut, or empty: each object ends with its line.
    parts = [Event(b"", line, complete=not streamed or at < len(lines) - 1) for at, line in enumerate(lines)]
    answer = _Answer(facts, request, streamed=streamed)
    done = read_bodies([part for part in parts if part.data.strip()], _BODY, facts, answer.add, streamed=streamed)
    answer.finish(done=done)
    if not facts.choices and facts.error is None and not streamed:
        facts.error = error_of(response, status)
    return facts


class _Reader:
    """One choice, from its only object or from all its deltas."""

    def __init__(self) -> None:
        self.text: str | None = None
        self.token_ids: list[int] | None = None
        self.logprobs: list[float | None] | None = None
        self.tokens: list[str | None] | None = None
        self.tops: list[Raw] = []
        self.raw = RawExtras()
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self.unconfirmed: str | None = None
        self.uneven = False
        self.extra: dict[str, Any] = {}

    def add(self, choice: _Choice) -> None:
        if choice.text is not None:
            before = (self.text or "") if choice.text_from is None else (self.text or "")[: choice.text_from]
            self.text = before + choice.text
        self.uneven = self.uneven or len(choice.token_ids or ()) != len(choice.logprobs or ())
        self.token_ids = extended(self.token_ids, choice.token_ids)
        self.logprobs = extended(self.logprobs, choice.logprobs)
        self.tokens = extended(self.tokens, choice.tokens)
        self.tops += [] if choice.top_tokens == NULL else [choice.top_tokens]
        self.raw.add(choice)
        self.finish_reason = later(self.finish_reason, choice.finish_reason)
        self.stop_reason = later(self.stop_reason, choice.stop_reason)
        self.unconfirmed = self.unconfirmed or choice.unconfirmed
        self.extra.update(choice.extra or {})

    def facts(self, index: int, mode: str | None, *, done: bool) -> ChoiceFacts:
        """The facts of the choice. ``done``: the answer reached its end."""
        if mode is not None and mode not in _MODES and self.logprobs is not None:
            self.extra["logits"], self.logprobs, self.tops = self.logprobs, None, []
        # vLLM ends a request that it gives up so; one that was aborted after some tokens is whole.
        is_refused = self.finish_reason == "error" or (self.finish_reason == "abort" and not self.token_ids)
        choice = ChoiceFacts(
            index=index,
            completion=Completion(content=self.text),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            completion_token_ids=self.token_ids,
            logprobs=self.logprobs,
            logprobs_mode=mode if mode in _MODES else None,  # type: ignore[arg-type]
            token_texts=texts_of(self.tokens) if self.tokens else None,
            token_source=None if self.token_ids is None else "engine",
            complete=(done or self.finish_reason is not None) and not is_refused,
            uneven=self.uneven and self.logprobs is not None,
        )
        if self.unconfirmed is not None:
            withhold(choice, "ids_unconfirmed", self.unconfirmed)
        if self.token_ids is None:
            set_issue(choice, "ids_missing", "the sampler gave no token ids.")
        return choice

    def found(self, sampling: Mapping[str, Any] | None, *, lists_sampled: bool, is_named: bool) -> FoundExtras:
        """What came beside ids and logprobs. ``is_named``: the version of the weights is known otherwise."""
        if is_named and _are_unnamed(self.raw.versions):
            self.raw.versions = None
        found = self.raw.found(sampling)
        found.top_has_sampled = lists_sampled
        if self.tops:
            found.top_tokens = returns_issue("top_tokens")(_top_of)(self.tops)
        return found


class _Answer:
    """The choices of one answer, and what is said of its prompt."""

    def __init__(self, facts: ResponseFacts, request: RequestFacts, *, streamed: bool) -> None:
        self._facts, self._request, self._sampling, self._streamed = facts, request, request.sampling, streamed
        sent = messages_of(request)
        self._prompt_token_ids: list[int] | None = ids_of(sent[0]) if len(sent) == 1 else None
        self._prompt_logprobs = self._prompt_tops = NULL
        self._lists_sampled = False
        self._mode: str | None = None
        self._version: str | int | None = None
        self._cached: int | None = None
        self._readers: dict[int, _Reader] = {}
        self._extra: dict[str, Any] = {}

    def add(self, body: _Body, part: Event) -> None:
        """Reads the next object."""
        self._facts.response_id = self._facts.response_id or text_of(body.id)
        self._prompt_token_ids = self._prompt_token_ids if body.prompt_token_ids is None else body.prompt_token_ids
        self._prompt_logprobs = self._prompt_logprobs if body.prompt_logprobs == NULL else body.prompt_logprobs
        self._prompt_tops = self._prompt_tops if body.prompt_top_tokens == NULL else body.prompt_top_tokens
        self._lists_sampled = self._lists_sampled or body.lists_sampled
        self._mode = self._mode if body.logprobs_mode is None else body.logprobs_mode
        self._version = self._version if body.policy_version is None else body.policy_version
        self._cached = self._cached if body.cached_tokens is None else body.cached_tokens
        self._extra.update(body.extra or {})
        for position, choice in enumerate(body.choices or ()):
            reader_for(self._readers, choice.index, position, _Reader, streamed=self._streamed).add(choice)

    def finish(self, *, done: bool) -> None:
        """Writes the choices to the facts, and checks their ids, logprobs and extras."""
        facts, prompt = self._facts, self._request.ids(self._prompt_token_ids)
        readers = [self._readers[index] for index in sorted(self._readers)]
        for index, reader in zip(sorted(self._readers), readers, strict=True):
            choice = reader.facts(index, self._mode, done=done)
            choice.prompt_token_ids = prompt
            facts.choices.append(choice)
        if any(reader.finish_reason == "error" for reader in readers):
            facts.error = facts.error or ErrorInfo(type="error", message="the engine ended the request with an error.")
        if readers and all(choice.complete for choice in facts.choices):
            written = (
                None
                if any(one.token_ids is None for one in readers)
                else sum(len(one.token_ids or ()) for one in readers)
            )
            read = None if prompt is None else len(prompt)
            facts.usage = Usage(input=read, output=written, cache_read=self._cached)
        mark_malformed(facts, streamed=self._streamed)
        align.check(facts.choices, None)
        for choice, reader in zip(facts.choices, readers, strict=True):
            self._settle(choice, reader)

    def _settle(self, choice: ChoiceFacts, reader: _Reader) -> None:
        is_named = self._version is not None
        found = reader.found(self._sampling, lists_sampled=self._lists_sampled, is_named=is_named)
        if self._prompt_logprobs != NULL and choice.prompt_token_ids is None:
            found.prompt_logprobs = missing_ids("prompt_logprobs", "prompt")
        elif self._prompt_logprobs != NULL:
            found.prompt_logprobs = _prompt_scores_of(self._prompt_logprobs)
        if self._prompt_tops != NULL and choice.prompt_token_ids is not None:
            found.prompt_top_tokens = returns_issue("prompt_top_tokens")(_top_of)([self._prompt_tops])
        settle(choice, found)
        # The engine's own comes before the one that the call was made with.
        spans, named = choice.policy_spans, self._version
        choice.policy_version = ",".join(dict.fromkeys(str(one.version) for one in spans)) if spans else named  # type: ignore[assignment]
        choice.extra = extra_of(self._extra, reader.extra)


def _are_unnamed(versions: Any) -> bool:
    """Whether the engine names no version: vLLM's weights are ``default`` until someone names them."""
    return isinstance(versions, list) and all(
        isinstance(one, dict) and one.get("version") == "default" for one in versions
    )


@returns_issue("prompt_logprobs")
def _prompt_scores_of(raw: Raw) -> FloatArray:
    """float32 [prompt]; NaN where there is none."""
    values = _SCORES.decode(raw)
    return checked_logprobs(view_of(array("f", (math.nan if one is None else one for one in values))), "prompt")


def _top_of(parts: Sequence[Raw]) -> TopTokens:
    """Alternatives from one or more ``{"ids": rows, "logprobs": rows}``."""
    rows = TopRows()
    for part in parts:
        top = _TOP.decode(part)
        for ids, logprobs in zip(top.ids, top.logprobs, strict=True):
            kept = [at for at, one in enumerate(logprobs) if one is not None and one > FILLER]
            if len(kept) == len(ids) == len(logprobs):
                rows.add(ids, logprobs)  # type: ignore[arg-type]
            else:
                rows.add([ids[at] for at in kept], [logprobs[at] for at in kept])  # type: ignore[misc]
    return rows.get()
