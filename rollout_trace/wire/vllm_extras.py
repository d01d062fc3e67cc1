"""The places of vLLM's extras in answers of chat, completions and generate, and which are deltas in a stream.

``routed_experts``, ``weight_versions``: on a choice, streamed on its last chunk, whole; the latter in chat and
completions from 0.33 on, where ``return_weight_versions`` asks for it. ``sampling_mask``: on a choice, streamed as a
delta. ``prompt_logprobs``: on a choice (completions) or on the body around (chat, generate), never streamed. Other
engines that use these names are read in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from msgspec import Raw, Struct

from rollout_trace.data.extras import ExtraIssue, TopTokens
from rollout_trace.data.tokens import id_array, same_array
from rollout_trace.wire.align import FoundExtras, missing_ids, settle
from rollout_trace.wire.extras import (
    experts_of,
    has_ids,
    mask_of,
    prompt_logprobs_of,
    prompt_scores_of,
    spans_of,
    top_tokens_of,
)
from rollout_trace.wire.facts import ChoiceFacts
from rollout_trace.wire.lenient import NULL

if TYPE_CHECKING:
    from rollout_trace.data.tokens import FloatArray, IntArray


class ChoiceExtras(Struct, gc=False):
    """The fields of a choice with extras, as bytes: they are read once the answer is whole.

    Whatever they are, the choice around them is read.
    """

    routed_experts: Raw = NULL
    sampling_mask: Raw = NULL
    sampling_mask_logprobs: Raw = NULL
    prompt_logprobs: Raw = NULL
    weight_versions: Any = None


_FIELDS = attrgetter(*ChoiceExtras.__struct_fields__)
_LISTS_SAMPLED = re.compile(rb'"token_id:|"rank"\s*:')
"""What alternatives of vLLM have: it lists the sampled token first. Others list the likeliest ones alone."""


class PromptScores:
    """Scores of the prompts of one answer. Its samples of one prompt follow each other: decoded once, they share the
    arrays."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: tuple[Raw, Any, Any] | None = None

    def get(self, raw: Raw, ids: IntArray, *, keep_top: bool) -> tuple[FloatArray, TopTokens | None] | ExtraIssue:
        """As ``prompt_scores_of``, whose arguments are these, in all calls with the same ``keep_top``."""
        if self._last is not None and self._last[0] == raw and same_array(self._last[1], ids):
            known: tuple[FloatArray, TopTokens | None] | ExtraIssue = self._last[2]
            return known
        found = prompt_scores_of(raw, ids, keep_top=keep_top)
        self._last = raw, ids, found
        return found


class RawExtras:
    """The extras of one choice as they came, from its only body or from all its chunks."""

    __slots__ = ("echoed", "experts", "masks", "masks_logprobs", "prompt_logprobs", "tops", "versions")

    def __init__(self) -> None:
        self.experts = NULL
        self.masks: list[Raw] = []
        self.masks_logprobs: list[Raw] = []
        self.prompt_logprobs = NULL
        self.versions: Any = None
        self.tops: Sequence[Raw] = ()
        """The alternatives of each sampled token, where any has some."""
        self.echoed: tuple[list[float | None], list[Raw]] | None = None
        """Logprobs and alternatives of an echoed prompt."""

    def add(self, choice: ChoiceExtras) -> None:
        """Reads the next chunk, or the only body."""
        experts, mask, mask_logprobs, prompt_logprobs, versions = _FIELDS(choice)
        self.experts = self.experts if experts == NULL else experts
        self.prompt_logprobs = self.prompt_logprobs if prompt_logprobs == NULL else prompt_logprobs
        self.versions = self.versions if versions is None else versions
        if mask != NULL:
            self.masks.append(mask)
        if mask_logprobs != NULL:
            self.masks_logprobs.append(mask_logprobs)

    def found(self, sampling: Mapping[str, Any] | None) -> FoundExtras:
        """Experts, masks and versions. ``sampling``: the parameters of the request."""
        found = FoundExtras()
        if self.experts != NULL:
            found.routed_experts = experts_of(self.experts)
            found.experts_start = requested_number(sampling, "routed_experts_prompt_start") or 0
        if self.masks:
            found.sampling_mask = mask_of(self.masks, self.masks_logprobs)
        if self.versions is not None:
            found.policy_spans = spans_of(self.versions)
        return found

    def settle(self, choice: ChoiceFacts, sampling: Mapping[str, Any] | None, prompts: PromptScores) -> None:
        """Sets the extras of a choice whose ids have been checked.

        Args:
            sampling: the parameters of the request.
            prompts: shared by the choices of an answer.
        """
        found = self.found(sampling)
        if self.prompt_logprobs != NULL:
            self._add_prompt(choice, sampling, prompts, found)
        elif self.echoed is not None:
            logprobs, tops = self.echoed
            found.prompt_logprobs = prompt_logprobs_of(logprobs)
            if has_ids(tops) and requested_number(sampling, "logprobs") != 0:
                found.prompt_top_tokens = top_tokens_of(tops, "prompt_top_tokens")
        if self.tops and has_ids(self.tops) and requested_number(sampling, "logprobs") != 0:
            found.top_tokens = top_tokens_of(self.tops)
            found.top_has_sampled = _LISTS_SAMPLED.search(self.tops[0]) is not None
        settle(choice, found)

    def _add_prompt(
        self, choice: ChoiceFacts, sampling: Mapping[str, Any] | None, prompts: PromptScores, found: FoundExtras
    ) -> None:
        if choice.prompt_token_ids is None:
            found.prompt_logprobs = missing_ids("prompt_logprobs", "prompt")
            return
        wanted = requested_number(sampling, "prompt_logprobs")
        scores = prompts.get(self.prompt_logprobs, id_array(choice.prompt_token_ids), keep_top=wanted != 0)
        if isinstance(scores, ExtraIssue):
            found.prompt_logprobs = scores
            return
        found.prompt_logprobs, top = scores
        # Where no alternatives were requested (0, or an echo without), each position has its own token alone.
        found.prompt_top_tokens = None if top is not None and not wanted and top.ids.shape[1] < 2 else top


_NAME = b'"routed_experts"'
_LARGE = 4096


def without_experts(body: bytes) -> bytes:
    """A body with null in place of experts in base64: tens of MB, in which searches for ids would find nothing."""
    kept, done = [], 0
    at = body.find(_NAME)
    while at >= 0:
        begin = body.find(b'"', at + len(_NAME))
        end = body.find(b'"', begin + 1) + 1
        if begin < 0 or end <= 0:
            break
        # Before a large value only a colon and white space stand; in any other case what follows is left as it is.
        if end - begin > _LARGE and body[at + len(_NAME) : begin].strip() == b":":
            kept += [body[done:begin], b"null"]
            done = end
        at = body.find(_NAME, max(done, at + 1))
    return body if not kept else b"".join([*kept, body[done:]])


def requested_number(sampling: Mapping[str, Any] | None, name: str) -> int | None:
    """A number of the request, among its fields or in ``sampling_params`` (of the first of several)."""
    if sampling is None:
        return None
    inside = sampling.get("sampling_params")
    inside = inside[0] if isinstance(inside, list) and inside else inside
    for values in (sampling, inside):
        value = values.get(name) if isinstance(values, Mapping) else None
        if type(value) is int:
            return value
    return None
