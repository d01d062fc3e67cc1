"""Extras of SGLang (0.5.23, from its source), and of LMDeploy, which has the same ``/generate``: in ``meta_info``.

``/generate`` has it in each sample, chat and completions in each choice where ``return_meta_info`` asks for it, else a
few of its fields around the choices. What no field of a step has is in ``extra``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Raw, Struct
from msgspec.json import Decoder

from rollout_trace.wire import sglang_values
from rollout_trace.wire.extras_alignment import FoundExtras, missing_ids, settle
from rollout_trace.wire.facts import ChoiceFacts
from rollout_trace.wire.lenient import DECODE_ERRORS, loads
from rollout_trace.wire.sglang_values import NULL, Meta

_READ: Final = frozenset(
    {"id", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "weight_version"}
    | {"prompt_token_ids", "output_token_logprobs", "output_token_logprobs_length", "output_token_sampling_mask_length"}
)
"""Names of ``meta_info`` whose values are in other fields of a step."""
_GROWING: Final = frozenset(
    {"output_top_logprobs", "output_token_sampling_mask", "output_token_sampling_logprobs", "output_token_ids_logprobs"}
)
"""Lists with an item for each token: of an incremental stream each chunk has its own part."""
_SOURCES: Final = {
    "prompt_logprobs": "input_token_logprobs",
    "prompt_top_tokens": "input_top_logprobs",
    "top_tokens": "output_top_logprobs",
    "sampling_mask": "output_token_sampling_mask",
    "routed_experts": "routed_experts",
    "policy_spans": "weight_versions",
}
"""The name in ``meta_info`` of each extra. The names of flat forms of likeliest tokens begin with that of the list."""


_NOTHING: Final = (NULL, Raw(b"[]"))


class _HasMeta(Struct):
    meta_info: dict[str, Raw] | None = None


class _Samples(_HasMeta):
    answers: list[_HasMeta] | None = None


_SAMPLES = Decoder(_Samples)
_HAS_GROWING = re.compile(rb'"(?:%s)"' % b"|".join(sorted(name.encode() for name in _GROWING)))


class MetaReader:
    """The extras of one sample, from the ``meta_info`` of its chunks."""

    __slots__ = ("_chunks",)

    def __init__(self) -> None:
        self._chunks: list[tuple[bytes, int]] = []

    def add(self, data: bytes, position: int) -> None:
        """Keeps the next chunk, or the only body. ``position``: of the sample among the body's ``answers``."""
        # Everything but the growing lists is in the latest chunk.
        if self._chunks and not _HAS_GROWING.search(self._chunks[-1][0]):
            self._chunks.pop()
        self._chunks.append((data, position))

    def settle(self, choice: ChoiceFacts, *, incremental: bool = False, start: Any = None) -> None:
        """Sets the extras of a choice whose ids have been checked.

        Args:
            incremental: the growing lists of each chunk have new tokens only.
            start: ``routed_experts_start_len`` of the request: the tokens before it have no experts.
        """
        meta: dict[str, list[Raw]] = {}
        for data, position in self._chunks if incremental else self._chunks[-1:]:
            for name, value in _info_of(data, position).items():
                if name in _READ or value in _NOTHING:
                    continue
                if name in _GROWING:
                    meta.setdefault(name, []).append(value)
                else:
                    meta[name] = [value]
        settle_meta(choice, meta, start)


def _info_of(data: bytes, position: int) -> dict[str, Raw]:
    try:
        body = _SAMPLES.decode(data)
        one = body.answers[position] if body.answers is not None else body
        return one.meta_info or {}
    except (*DECODE_ERRORS, IndexError):
        return _plain_info(data, position)


def _plain_info(data: bytes, position: int) -> dict[str, Raw]:
    """The same of a body that the strict reader refuses: a part of another type, a NaN."""
    body = loads(data)
    answers = body.get("answers") if isinstance(body, dict) else None
    one = answers[position] if isinstance(answers, list) and position < len(answers) else body
    info = one.get("meta_info") if isinstance(one, dict) else None
    return {name: _raw(value) for name, value in info.items()} if isinstance(info, dict) else {}


def _raw(value: Any) -> Raw:
    try:
        return Raw(json.dumps(value).encode())
    except RecursionError:
        return NULL


def settle_meta(choice: ChoiceFacts, meta: Meta, start: Any) -> None:
    """Sets the extras of a choice, and what else ``meta_info`` holds in its ``extra``."""
    settle(choice, _found(choice, meta, start))
    # An extra that was unusable in another place of the answer, and is not here.
    choice.extra_issues = tuple(one for one in choice.extra_issues if getattr(choice, one.field, None) is None)
    taken = {name for field, source in _SOURCES.items() for name in _names(meta, source) if _is_taken(choice, field)}
    if choice.sampling_mask is not None and choice.sampling_mask.logprobs is not None:
        taken.add("output_token_sampling_logprobs")
    rest = {name: _value_of(values) for name, values in meta.items() if name not in taken}
    if rest:
        choice.extra = {**(choice.extra or {}), **rest}


def _is_taken(choice: ChoiceFacts, field: str) -> bool:
    # Experts that no field can hold are kept as they came: the key of an object store, or numbers of unknown shape.
    return field != "routed_experts" or choice.routed_experts is not None


def _names(meta: Meta, source: str) -> list[str]:
    if source.endswith("_top_logprobs"):
        return [name for name in meta if name == source or name.startswith(f"{source}_")]
    return [source] if source in meta else []


def _value_of(values: list[Raw]) -> Any:
    found = [loads(bytes(value)) for value in values]
    if len(found) > 1 and all(isinstance(one, list) for one in found):
        return [item for one in found for item in one]
    return found[-1]


def _found(choice: ChoiceFacts, meta: Meta, start: Any) -> FoundExtras:
    found = FoundExtras()
    has_prompt, has_ids = choice.prompt_token_ids is not None, choice.completion_token_ids is not None
    if "input_token_logprobs" in meta:
        raw = meta["input_token_logprobs"][-1]
        missing = missing_ids("prompt_logprobs", "prompt")
        found.prompt_logprobs = sglang_values.prompt_logprobs(raw, choice.prompt_token_ids) if has_prompt else missing
    if _names(meta, "input_top_logprobs"):
        missing = missing_ids("prompt_top_tokens", "prompt")
        found.prompt_top_tokens = (
            sglang_values.prompt_top_tokens(meta, len(choice.prompt_token_ids)) if has_prompt else missing
        )
    if _names(meta, "output_top_logprobs"):
        found.top_tokens = sglang_values.top_tokens(meta)
    if "output_token_sampling_mask" in meta:
        found.sampling_mask = sglang_values.sampling_mask(meta)
    if "routed_experts" in meta:
        missing = missing_ids("routed_experts", "completion" if has_prompt else "prompt")
        found.routed_experts = missing
        if has_prompt and has_ids:
            total = len(choice.prompt_token_ids) + len(choice.completion_token_ids)
            # SGLang refuses a negative start, and cuts one beyond the last row.
            found.experts_start = max(min(start, total - 1), 0) if type(start) is int else 0
            found.routed_experts = sglang_values.experts(meta["routed_experts"][-1], total - 1, found.experts_start)
    if "weight_versions" in meta:
        found.policy_spans = sglang_values.policy_spans(meta["weight_versions"][-1])
    return found


def settle_openai(choices: Sequence[ChoiceFacts], sampling: Mapping[str, Any] | None, *, streamed: bool) -> None:
    """Sets the extras of SGLang's chat and completions, whose fields are in ``extra`` already.

    With ``return_meta_info`` they are in ``meta_info`` of each choice; else ``sglext`` of the answer has the experts of
    its first choice, and ``metadata`` the versions of the weights that sampled it.
    """
    start = (sampling or {}).get("routed_experts_start_len")
    for at, choice in enumerate(choices):
        if choice.extra is None or _OPENAI_NAMES.isdisjoint(choice.extra):
            continue
        extra = dict(choice.extra)
        # In a stream, ``sglext`` is of the choice that began first, which is not always the first one.
        is_certain = not streamed or len(choices) == 1
        meta = _taken(extra, "metadata", "weight_version", "weight_versions")
        experts = _taken(extra, "sglext", "routed_experts") if is_certain else {}
        meta = {**meta, **experts} if at == 0 else {name: meta[name] for name in ("weight_version",) if name in meta}
        info = extra.get("meta_info")
        if isinstance(info, dict):
            meta.update(info)
            del extra["meta_info"]
        version = meta.get("weight_version")
        if choice.policy_version is None and type(version) in (str, int):
            choice.policy_version = str(version)
        choice.extra = extra or None
        found = {name: value for name, value in meta.items() if name not in _READ and value is not None}
        settle_meta(choice, {name: [_raw(value)] for name, value in found.items()}, start)


_OPENAI_NAMES: Final = frozenset({"meta_info", "sglext", "metadata"})


def _taken(extra: dict[str, Any], name: str, *fields: str) -> dict[str, Any]:
    """Takes fields out of an object in ``extra``, and the object where nothing else is in it."""
    values = extra.get(name)
    if not isinstance(values, dict):
        return {}
    rest = {field: value for field, value in values.items() if field not in fields and value is not None}
    if rest:
        extra[name] = rest
    else:
        del extra[name]
    return {field: values[field] for field in fields if values.get(field) is not None}
