"""Hypothesis strategies for the values in trajectories: texts, numbers, times, token ids, and what aligns with ids."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rollout_trace.data.extras import PolicySpan, SamplingMask, TopTokenRows, TopTokens
from rollout_trace.data.model import Cost, ErrorInfo, Usage

if TYPE_CHECKING:
    from rollout_trace.data.rows import RowStore

try:
    from hypothesis import strategies as st
except ImportError as error:
    raise ImportError(
        "rollout_trace.testing.trajectories needs hypothesis, which is not installed: pip install hypothesis"
    ) from error

Values: TypeAlias = "st.SearchStrategy[Any]"


def whole_characters(text: str) -> str:
    """A high surrogate followed by a low one is one character: in JSON they cannot be told apart."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


texts = st.text(st.characters(exclude_categories=()), max_size=12).map(whole_characters) | st.sampled_from(
    ["", "plain", '"quoted"\\\n\t', "naïve 数 🐍", "\x00\x1f\x7f\u2028", "cut \ud83d", "\udc0d", "</script>"]
)
numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-10, 10)
integers = st.integers(-5, 5) | st.sampled_from([2**31, 2**53 + 1, 2**63 - 1, 2**64, -(2**63), 10**30])
durations = st.floats(0, 1e6).map(lambda seconds: round(seconds, 9))
times = st.datetimes(
    datetime(1970, 1, 1),
    datetime(2200, 1, 1),
    timezones=st.sampled_from([timezone.utc, timezone.utc, timezone(timedelta(hours=5, minutes=30))]),
)
json_values: Values = st.recursive(
    st.none() | st.booleans() | integers | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(texts, json_values, max_size=2)
names = texts | st.none()


def some(kind: Any, **fields: Values) -> Values:
    """Objects with any of the optional fields given."""
    return st.fixed_dictionaries({}, optional=fields).map(lambda given: kind(**given))


errors = st.builds(
    ErrorInfo, type=texts, message=texts, code=st.none() | texts | integers, status=st.none() | st.integers(100, 599)
)
usages = some(Usage, input=integers, output=integers, cache_read=integers, reasoning=integers, extra=objects)
costs = st.builds(Cost, amount=numbers, currency=texts, source=st.sampled_from(["override", "table", "unknown"]))

# Few different ids, so that prompts often share a prefix by chance too; and the ends of what an id can be.
token_ids = st.lists(st.sampled_from([0, 1, 2, 7, 2**31 - 1]), max_size=6)
log_probabilities = st.floats(max_value=0, width=32, allow_nan=False, allow_infinity=False)


@st.composite
def prompt(draw: st.DrawFn, before: list[int], answer: list[int]) -> list[int]:
    """The next prompt of a conversation: it goes on, repeats (n > 1), forks, drifts by one id, or begins anew."""
    whole = before + answer
    kind = draw(st.sampled_from(["on", "on", "repeat", "fork", "drift", "anew"]))
    new = draw(token_ids)
    if kind == "repeat":
        return before
    if kind == "anew":
        return new
    cut = draw(st.integers(0, len(whole))) if kind in ("fork", "drift") else len(whole)
    if kind == "drift" and cut < len(whole):
        return [*whole[:cut], whole[cut] ^ 1, *whole[cut + 1 :]]
    return whole[:cut] + new


def _filled(draw: st.DrawFn, dtype: Any, *shape: int) -> Any:
    """An array of any content: few different rows, as those of answers to one prompt are."""
    generator = np.random.default_rng(draw(st.integers(0, 2)))
    if dtype is not np.float32:
        return generator.integers(0, 200, shape).astype(dtype)
    values = -generator.random(shape, np.float32)
    values[:1] = np.nan
    return values


@st.composite
def extras(draw: st.DrawFn, prompt: int, completion: int, rows: RowStore | None) -> dict[str, Any]:
    """Any of the fields that are aligned to the ids. ``rows``: a store for those that are shared along prefixes."""
    k, found = draw(st.integers(0, 3)), {}
    wanted = draw(st.sets(st.sampled_from(["experts", "scores", "top", "chosen", "mask", "spans"])))
    if "experts" in wanted:
        dtype, layers = draw(st.sampled_from([np.uint8, np.uint16, np.int32])), draw(st.sampled_from([2, 2, 0]))
        positions = draw(st.integers(0, max(0, prompt + completion - 1)))
        experts = _filled(draw, dtype, positions, layers, 2)
        start = max(0, prompt + completion - 1 - positions)
        found["routed_experts"] = experts if rows is None else rows.add("routed_experts", experts, start)
    if "scores" in wanted:
        scores = _filled(draw, np.float32, prompt)
        found["prompt_logprobs"] = scores if rows is None else rows.add("prompt_logprobs", scores)
    if "top" in wanted:
        ids, logprobs = _filled(draw, np.int32, prompt, k), _filled(draw, np.float32, prompt, k)
        if rows is None:
            found["prompt_top_tokens"] = TopTokens(ids, logprobs)
        else:
            spans = rows.add("prompt_top_ids", ids), rows.add("prompt_top_logprobs", logprobs)
            found["prompt_top_tokens"] = TopTokenRows(*spans)
    if "chosen" in wanted:
        found["top_tokens"] = TopTokens(
            _filled(draw, np.int32, completion, k), _filled(draw, np.float32, completion, k)
        )
    if "mask" in wanted:
        counts = _filled(draw, np.int32, completion) % 4
        total = int(counts.sum())
        logprobs = draw(st.none() | st.just(_filled(draw, np.float32, total)))
        found["sampling_mask"] = SamplingMask(_filled(draw, np.int32, total), counts, logprobs)
    if "spans" in wanted:
        cut = draw(st.integers(0, completion))
        versions = [draw(texts | integers) for _ in range(2)]
        found["policy_spans"] = (PolicySpan(0, cut, versions[0]), PolicySpan(cut, completion, versions[1]))
    return found
