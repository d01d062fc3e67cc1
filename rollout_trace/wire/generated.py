"""Reader of one sample of /generate, from its only object or from all its chunks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from rollout_trace.data.model import Completion, ErrorInfo, Usage
from rollout_trace.wire.answer_extras import OtherNames, PartExtras
from rollout_trace.wire.facts import ChoiceFacts
from rollout_trace.wire.lenient import NULL, later
from rollout_trace.wire.logprobs import ArrayLogprobs, Columns, columns_of, extended, number_of
from rollout_trace.wire.message import completion_of
from rollout_trace.wire.reading import report_clash, text_of, withhold
from rollout_trace.wire.sglang_extras import MetaReader
from rollout_trace.wire.vllm_extras import ChoiceExtras


class MetaInfo(Struct):
    """SGLang's ``meta_info`` of a sample: counts, logprobs, finish reason, version of the weights."""

    id: Any = None
    finish_reason: Any = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    weight_version: Any = None
    prompt_token_ids: list[int] | None = None
    output_token_logprobs: list[Any] | None = None
    # Of any type: what is wrong with these is no fault of the ids.
    input_token_logprobs: Any = None
    output_top_logprobs: Any = None
    image_tokens: Any = None
    audio_tokens: Any = None
    video_tokens: Any = None


class Sample(ChoiceExtras):
    """One sample, or a chunk of one, of SGLang (``text``, ``output_ids``, ``meta_info``) or of vLLM."""

    index: int | None = None
    text: str | None = None
    prompt_token_ids: list[int] | None = None
    output_ids: list[int] | None = None
    meta_info: MetaInfo | None = None
    token_ids: list[int] | None = None
    logprobs: ArrayLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class Choice(Sample):
    """One sample of vLLM, which from 0.33 on may be parsed into a message: ``output_mode="derender"``."""

    message: dict[str, Any] | None = None


_NAMES = OtherNames(Sample, ChoiceExtras.__struct_fields__, ())


class SampleReader:
    """Merges the chunks of one sample: SGLang's snapshots, vLLM's deltas."""

    def __init__(self) -> None:
        self.counts = Usage()
        self.error: ErrorInfo | None = None
        self.listed_prompt_ids: list[int] | None = None
        """Ids of the whole prompt beside its logprobs, where SGLang puts 0 for the last id of the vocabulary."""
        self._meta = MetaReader()
        self._prompt_token_ids: list[int] | None = None
        self._text = GrowingText()
        self._ids, self._triples, self._tops = GrowingList(), GrowingList(), GrowingList()
        self._deltas: list[str] = []
        self._message: dict[str, Any] | None = None
        self._token_ids: list[int] | None = None
        self._columns: Columns | None = None
        self._uneven = False
        self._ends_empty = False
        self._finish_reason: str | None = None
        self._stop_reason: str | int | None = None
        self._versions: list[str] = []
        self.extras = PartExtras(_NAMES)

    def add(self, sample: Sample, data: bytes = b"{}", position: int = 0) -> None:
        """Reads the next chunk, or the only object. ``data``: the body that the sample is in, at this position."""
        if sample.meta_info is not None:
            self._meta.add(data, position)
        self._prompt_token_ids = self._prompt_token_ids or sample.prompt_token_ids
        if sample.meta_info is None and sample.output_ids is None:
            self._add_delta(sample)
        else:
            self._add_snapshot(sample, sample.meta_info or MetaInfo())

    def facts(self, index: int, *, done: bool) -> ChoiceFacts:
        """The facts of the sample. ``done``: the answer reached its end."""
        text = self._text.get(self._ids, self._triples)
        if text is None and self._deltas:
            text = "".join(self._deltas)
        choice = ChoiceFacts(
            index=index,
            completion=Completion(content=text) if self._message is None else completion_of(self._message),
            finish_reason=self._finish_reason,
            stop_reason=self._stop_reason,
            prompt_token_ids=self._prompt_token_ids,
            complete=(done or self._finish_reason is not None) and not self._is_refused(),
            uneven=self._uneven,
            policy_version=",".join(self._versions) or None,
        )
        self._add_tokens(choice)
        problem = self._ids.problem or self._triples.problem
        if problem is not None:
            withhold(choice, "stream_inconsistent", problem)
        return choice

    def _is_refused(self) -> bool:
        """Whether the engine broke the sample off with an error, or before its first token. Aborted by a call of the
        engine's own (to pause it, to change the weights), what was sampled is whole."""
        is_empty = not (self._token_ids or self._ids.items or self._triples.items)
        return self._finish_reason == "abort" and (self.error is not None or is_empty)

    @property
    def more(self) -> Mapping[str, Any]:
        """What its logprobs hold beside ids and logprobs."""
        return {} if self._columns is None else self._columns.more

    def settle_meta(self, choice: ChoiceFacts, sampling: Mapping[str, Any] | None) -> None:
        """Adds SGLang's extras to a choice whose ids have been checked. ``sampling``: the parameters of the request."""
        grows = self._ids if self._triples.items is None else self._triples
        # A last chunk without tokens is of either kind.
        incremental = grows.incremental is True or (grows.incremental is None and self._ends_empty)
        start = None if sampling is None else sampling.get("routed_experts_start_len")
        self._meta.settle(choice, incremental=incremental, start=start)

    def _add_delta(self, sample: Sample) -> None:
        if sample.text is not None:
            self._deltas.append(sample.text)
        if isinstance(sample, Choice):
            self._message = sample.message or self._message
        columns = columns_of(sample.logprobs)
        self._uneven = self._uneven or len(sample.token_ids or ()) != (0 if columns is None else len(columns))
        self._token_ids = extended(self._token_ids, sample.token_ids)
        self._columns = extended(self._columns, columns)
        self._finish_reason = later(self._finish_reason, sample.finish_reason)
        self._stop_reason = later(self._stop_reason, sample.stop_reason)
        self.extras.add(sample)

    def _add_snapshot(self, sample: Sample, info: MetaInfo) -> None:
        counted = info.completion_tokens
        self._text.add(sample.text)
        self._ids.add(sample.output_ids, counted)
        self._ends_empty = sample.output_ids == []
        self._triples.add(info.output_token_logprobs, counted)
        if isinstance(info.output_top_logprobs, list):
            self._tops.add(info.output_top_logprobs, counted)
        self._set_finish(info.finish_reason)
        version = text_of(info.weight_version) if type(info.weight_version) in (str, int) else None
        if version is not None and version not in self._versions:
            self._versions.append(version)
        self.counts = Usage(
            input=_latest(info.prompt_tokens, self.counts.input),
            output=_latest(counted, self.counts.output),
            cache_read=_latest(info.cached_tokens, self.counts.cache_read),
            reasoning=_latest(info.reasoning_tokens, self.counts.reasoning),
        )
        self._prompt_token_ids = self._prompt_token_ids or info.prompt_token_ids
        if not self._prompt_token_ids and not self.listed_prompt_ids:
            self.listed_prompt_ids = self._listed_ids(info)

    def _listed_ids(self, info: MetaInfo) -> list[int] | None:
        ids = _ids(info.input_token_logprobs)
        # SGLang returns these logprobs from `logprob_start_len` on: fewer ids than counted are not the prompt.
        if ids is None or len(ids) != self.counts.input:
            return None
        # The placeholders of images are 0 among them.
        has_media = any((info.image_tokens, info.audio_tokens, info.video_tokens))
        return None if has_media and 0 in ids else ids

    def _set_finish(self, reason: Any) -> None:
        if isinstance(reason, str):
            self._finish_reason = later(self._finish_reason, reason)
        if not isinstance(reason, dict):
            return
        self._finish_reason = text_of(reason.get("type")) or self._finish_reason
        matched, status = reason.get("matched"), reason.get("status_code")
        if type(matched) in (int, str):
            self._stop_reason = later(self._stop_reason, matched)
        if self._finish_reason == "abort" and type(status) is int:
            message = text_of(reason.get("message")) or "the request was aborted."
            self.error = ErrorInfo(type=text_of(reason.get("err_type")) or "abort", message=message, status=status)

    def _add_tokens(self, choice: ChoiceFacts) -> None:
        triples = self._triples.items
        columns = self._columns if triples is None else _columns_of(triples)
        ids = self._token_ids if self._ids.items is None else self._ids.items
        if ids is not None:
            choice.completion_token_ids, choice.token_source = ids, "engine"
        if columns is None or (ids is not None and report_clash(choice, columns.clash(ids))):
            return
        choice.logprobs, choice.token_texts = columns.logprobs, columns.texts()
        choice.top_logprobs = columns.alternatives() if triples is None else self._alternatives()
        if triples is None and choice.top_logprobs is not None:
            self.extras.tops = columns.tops
        # Ids from among the logprobs cannot differ from them in number.
        if ids is None:
            choice.completion_token_ids, choice.uneven = columns.token_ids(), False
            choice.token_source = None if choice.completion_token_ids is None else "logprobs"

    def _alternatives(self) -> list[Any] | None:
        tops, size = self._tops.items or [], len(self._triples.items or ())
        if self._tops.problem is not None or len(tops) != size or not any(tops):
            return None
        return [[_alternative(triple) for triple in top or ()] if isinstance(top, list) else [] for top in tops]


def total_usage(samples: list[SampleReader], firsts: list[SampleReader]) -> Usage | None:
    """Usage of a whole call; None where no sample has counts. ``firsts``: one sample per prompt, which counts once."""
    if all(sample.counts == Usage() for sample in samples):
        return None
    return Usage(
        input=_sum([sample.counts.input for sample in firsts]),
        output=_sum([sample.counts.output for sample in samples]),
        cache_read=_sum([sample.counts.cache_read for sample in firsts]),
        reasoning=_sum([sample.counts.reasoning for sample in samples]),
    )


def _sum(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _latest(count: int | None, before: int | None) -> int | None:
    return before if count is None or count < 0 else count


def _ids(triples: Any) -> list[int] | None:
    """The ids in ``[logprob, id, text]`` entries; None where one is missing, or there are none."""
    return _columns_of(triples).token_ids() if isinstance(triples, list) else None


def _columns_of(triples: list[Any]) -> Columns:
    """``[logprob, id, text]`` entries as columns. The text is null unless it was asked for."""
    found = [triple if isinstance(triple, list) else [] for triple in triples]
    ids: list[float | None] = [triple[1] if len(triple) > 1 and type(triple[1]) is int else None for triple in found]
    texts: list[str | None] = [text_of(triple[2]) if len(triple) > 2 else None for triple in found]
    logprobs = [number_of(triple[0]) if triple else None for triple in found]
    return Columns(logprobs, ids, texts, [NULL] * len(found))


def _alternative(triple: Any) -> Any:
    if not isinstance(triple, list) or len(triple) < 2:
        return {}
    named = {"token": triple[2]} if len(triple) > 2 and triple[2] is not None else {}
    return {**named, "token_id": triple[1], "logprob": triple[0]}


class GrowingList:
    """A list from a stream of either kind: contents and the engine's count decide which kind each chunk is.

    A chunk is cumulative if it begins with the items so far and has as many items as are counted; incremental if it and
    the items so far make up the count. It cannot be both.
    """

    def __init__(self) -> None:
        self.items: list[Any] | None = None
        self.incremental: bool | None = None
        """None until a chunk has decided it."""
        self.problem: str | None = None
        """Why the items cannot be trusted; None while they can."""

    def add(self, items: list[Any] | None, counted: int | None) -> None:
        """Merges the items of a chunk. ``counted``: the engine's count of all items so far."""
        if items is None:
            return
        before = self.items or []
        repeats = items[: len(before)] == before
        if not before:
            self.items = [*items]
        elif repeats and len(items) == counted:
            # A whole list that the count confirms replaces whatever was doubtful before.
            self.items, self.problem = [*items], None
            self.incremental = False if len(items) > len(before) else self.incremental
        elif len(before) + len(items) == counted:
            self.items = before + items
            # A stream that was cumulative before and is incremental now has mixed up its chunks.
            if items and self.incremental is False:
                self._doubt(items, before, counted)
            self.incremental = True if items else self.incremental
        else:
            self.items = [*items] if repeats else before + items
            self._doubt(items, before, counted)

    def _doubt(self, items: list[Any], before: list[Any], counted: int | None) -> None:
        total = "no count" if counted is None else f"a count of {counted}"
        self.problem = f"a chunk of {len(items)} tokens came after {len(before)} with {total}."


class GrowingText:
    """A text from a stream of either kind. Its chunks decide which; where they do not, the lists beside it do."""

    def __init__(self) -> None:
        self._chunks: list[str] = []
        self._repeats = True
        self._grew = False

    def add(self, text: str | None) -> None:
        """Adds the text of a chunk."""
        # An empty text after the first adds nothing as a delta, and as a snapshot would take away what came.
        if text is None or (self._chunks and not text):
            return
        if self._chunks:
            self._repeats = self._repeats and text.startswith(self._chunks[-1])
            self._grew = self._grew or len(text) > len(self._chunks[-1]) > 0
        self._chunks.append(text)

    def get(self, ids: GrowingList, logprobs: GrowingList) -> str | None:
        """The whole text; None where there was none.

        In every release of SGLang logprobs are of the same kind as the text; ids need not be.
        """
        if not self._chunks:
            return None
        # A single chunk, or equal ones ("a", "a"), can be of either kind: then the lists decide.
        whole = self._repeats and logprobs.incremental is not True
        if whole and (self._grew or logprobs.incremental is False or not ids.incremental):
            return self._chunks[-1]
        return "".join(self._chunks)
