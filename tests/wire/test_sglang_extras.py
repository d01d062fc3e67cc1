"""Extras of SGLang's /generate, made by hand from the source of sglang 0.5.23 (paths within its package `sglang/srt`).

managers/tokenizer_manager.py: `_handle_batch_output` and `add_logprob_to_meta_info` (names and nesting),
`_slice_streaming_output_meta_info` (which lists an incremental stream cuts), `_build_flat_top_logprobs_fields`;
managers/scheduler_components/batch_result_processor.py: rows of experts from `routed_experts_start_len` to the last
token but one; state_capturer/routed_experts.py: base64 of int32; sampling/sampling_mask.py: rows of ids, and of
logprobs; utils/weight_versions.py: spans; logprob_result_processor.py: prompt scores from `logprob_start_len` on,
null first, ids clipped to 0.
"""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from rollout_trace.data.model import Step
from rollout_trace.wire import decode
from tests.wire.raw import JSON, SSE, sse
from tests.wire.recorded import numbers
from tests.wire.test_extras_recorded import check

PROMPT, IDS, LOGPROBS = [11, 12, 13, 14], [5, 6, 7], [-1.0, -2.0, -0.5]
MASK = [[5, 6], [6], [1, 7, 9]]
SUPPORT = [[-0.5, -1.0], [0.0], [-3.0, -0.25, -2.0]]
EXPERTS = np.arange(6 * 2 * 3, dtype="<i4")
"""Of 4 + 3 - 1 tokens: 2 layers, 3 experts a token."""


def b64(values: Any) -> str:
    return base64.b64encode(np.asarray(values).tobytes()).decode()


def info(size: int = 3, *, since: int = 0, **fields: Any) -> dict[str, Any]:
    """`meta_info` of the first tokens; lists begin with token `since`."""
    triples = [[value, at, None] for value, at in zip(LOGPROBS, IDS, strict=True)]
    return {
        "id": "abc",
        "finish_reason": {"type": "length", "length": 3} if size == 3 else None,
        "prompt_tokens": 4,
        "weight_version": "v2",
        "num_retractions": 0,
        "output_token_logprobs": triples[since:size],
        "output_token_logprobs_length": size,
        "reasoning_tokens": 0,
        "completion_tokens": size,
        "cached_tokens": 0,
        **fields,
    }


def read(request: dict[str, Any] | None = None, **fields: Any) -> Step:
    """The step of an unstreamed answer with these fields in its `meta_info`."""
    body = {"text": " a b c", "output_ids": IDS, "meta_info": info(**fields)}
    (step,) = decode(
        "sglang.generate",
        json.dumps({"input_ids": PROMPT, **(request or {})}).encode(),
        json.dumps(body).encode(),
        content_type=JSON,
    )
    check(step)
    assert (numbers(step.prompt_token_ids), numbers(step.completion_token_ids)) == (PROMPT, IDS)
    assert step.token_issue is None
    return step


def withheld(step: Step) -> list[tuple[str, str]]:
    """Field and code of each extra that was withheld."""
    return [(issue.field, issue.code) for issue in step.extra_issues]


def test_experts_have_a_row_for_each_token_but_the_last() -> None:
    """Layers and k are not in the answer: the columns are both."""
    step = read(routed_experts=b64(EXPERTS))
    assert step.routed_experts is not None
    assert step.routed_experts.dtype == np.int32
    assert step.routed_experts.shape == (6, 1, 6)
    assert step.routed_experts.ravel().tolist() == EXPERTS.tolist()
    assert "routed_experts" not in (step.extra or {})


@pytest.mark.parametrize(("start", "rows"), [(4, 2), (5, 1), (2, 4), (0, 6)])
def test_experts_of_a_later_start(start: int, rows: int) -> None:
    """`routed_experts_start_len` of the request: the rows before are not sent."""
    step = read({"routed_experts_start_len": start}, routed_experts=b64(EXPERTS[-rows * 6 :]))
    assert step.routed_experts is not None
    assert step.routed_experts.shape == (rows, 1, 6)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (b64(EXPERTS[:35]), "not_aligned"), (b64(EXPERTS)[:-1], "malformed"), ("", "not_aligned"), (5, "malformed"),
        ("0f9ab2~object-ref", "malformed"), ({"data": "x"}, "malformed"), (b64(-1 - EXPERTS), "malformed"),
    ],
)  # fmt: skip
def test_experts_that_are_no_rows_stay_as_they_came(value: Any, code: str) -> None:
    """With the reason; so does the key of an object store in which LMDeploy keeps them."""
    step = read(routed_experts=value)
    assert step.routed_experts is None
    assert withheld(step) == [("routed_experts", code)]
    assert step.extra is not None
    assert step.extra["routed_experts"] == value


@pytest.mark.parametrize("rows", [6, 7])
def test_experts_of_lmdeploy_are_lists(rows: int) -> None:
    """Nested [positions, layers, k]; the row of the last token, which no other engine has, is cut."""
    nested = np.arange(rows * 6).reshape(rows, 2, 3)
    step = read(routed_experts=nested.tolist())
    assert step.routed_experts is not None
    assert step.routed_experts.tolist() == nested[:6].tolist()
    assert withheld(read(routed_experts=nested[:5].tolist())) == [("routed_experts", "not_aligned")]
    assert withheld(read(routed_experts=[[[1], [2]], [[3]]])) == [("routed_experts", "malformed")]


def test_the_mask_and_its_logprobs() -> None:
    """In the mode "support" a logprob for each id; in "selected" one for each token, which has no field."""
    step = read(output_token_sampling_mask=MASK, output_token_sampling_logprobs=SUPPORT)
    assert step.sampling_mask is not None
    assert [row.tolist() for row in step.sampling_mask] == MASK
    assert numbers(step.sampling_mask.logprobs) == [value for row in SUPPORT for value in row]
    assert step.extra == {"num_retractions": 0}
    step = read(output_token_sampling_mask=MASK, output_token_sampling_logprobs=[-0.5, 0.0, -0.25])
    assert step.sampling_mask is not None
    assert step.sampling_mask.logprobs is None
    assert step.extra == {"num_retractions": 0, "output_token_sampling_logprobs": [-0.5, 0.0, -0.25]}


@pytest.mark.parametrize(
    ("mask", "logprobs", "code"),
    [
        (MASK[:2], None, "not_aligned"), ([[5], [6], [8]], None, "not_aligned"), (5, None, "malformed"),
        ([[5], [6], [7.5]], None, "malformed"), ([[5], [6], [-7, 7]], None, "malformed"),
        ([[5], [6], [2**31, 7]], None, "malformed"), (MASK, SUPPORT[:2], "malformed"),
        (MASK, [[-0.5], [0.0], [-3.0, -0.25, -2.0]], "malformed"), (MASK, [[-0.5, 1.0], *SUPPORT[1:]], "malformed"),
    ],
)  # fmt: skip
def test_a_mask_that_does_not_fit_is_withheld(mask: Any, logprobs: Any, code: str) -> None:
    """The ids and the other extras stay."""
    step = read(output_token_sampling_mask=mask, output_token_sampling_logprobs=logprobs, routed_experts=b64(EXPERTS))
    assert step.sampling_mask is None
    assert withheld(step) == [("sampling_mask", code)]
    assert step.routed_experts is not None


def spans(*borders: int) -> list[dict[str, Any]]:
    """Spans of the versions v0, v1, ... between these borders."""
    pairs = enumerate(pairwise(borders))
    return [{"version": f"v{number}", "start": start, "end": end} for number, (start, end) in pairs]


def test_versions_of_the_weights() -> None:
    """`weight_versions` are spans over the completion; without it the one of the answer counts for all of it."""
    step = read(weight_versions=spans(0, 2, 3))
    assert step.policy_spans == ((0, 2, "v0"), (2, 3, "v1"))
    assert step.policy_version == "v0,v1"
    assert (read().policy_spans, read().policy_version) == (None, "v2")


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (spans(0, 2), "not_aligned"), (spans(1, 3), "not_aligned"), (spans(0, 4), "not_aligned"),
        (spans(0, 2)[:1] + spans(0, 1, 3)[1:], "not_aligned"), ("v1", "malformed"), ([5], "malformed"),
        ([{"version": None, "start": 0, "end": 3}], "malformed"),
    ],
)  # fmt: skip
def test_versions_that_do_not_cover_the_completion(value: Any, code: str) -> None:
    """They are withheld; the version of the answer stays."""
    step = read(weight_versions=value)
    assert (step.policy_spans, step.policy_version) == (None, "v2")
    assert withheld(step) == [("policy_spans", code)]


@pytest.mark.parametrize("start", range(4))
def test_scores_of_the_prompt_begin_where_they_were_asked_for(start: int) -> None:
    """`logprob_start_len`: the first one sent is null, those before were not computed."""
    scores = [[None, PROMPT[start], None]] + [[-float(at), PROMPT[at], None] for at in range(start + 1, 4)]
    tops = [None] + [[[-0.5, 7, None], [-0.75, 8, None]] for _ in range(start + 1, 4)]
    step = read(input_token_logprobs=scores, input_top_logprobs=tops)
    nan = float("nan")
    expected = [nan] * (start + 1) + [-float(at) for at in range(start + 1, 4)]
    assert step.prompt_logprobs is not None
    assert np.array_equal(step.prompt_logprobs, np.array(expected, np.float32), equal_nan=True)
    if start == 3:
        assert step.prompt_top_tokens is None
    else:
        assert step.prompt_top_tokens is not None
        assert step.prompt_top_tokens.ids.tolist() == [[-1, -1]] * (start + 1) + [[7, 8]] * (3 - start)
    assert withheld(step) == []
    assert step.extra == {"num_retractions": 0}


def test_ids_that_sglang_clips_to_zero_are_still_the_prompt() -> None:
    """The last id of a vocabulary, and placeholders of images, are 0 beside their logprobs."""
    step = read(input_token_logprobs=[[None, 11, None], [-1.0, 0, None], [-2.0, 13, None], [-3.0, 0, None]])
    assert numbers(step.prompt_logprobs)[1:] == [-1.0, -2.0, -3.0]  # type: ignore[index]


@pytest.mark.parametrize(
    ("scores", "code"),
    [
        ([[None, 11, None], [-1.0, 99, None]], "not_aligned"), ([[-1.0, 0, None]] * 5, "not_aligned"),
        ([[None, 13, None], [1.0, 14, None]], "malformed"), ([[None, 14]] * 1 + [["x", 14]], "malformed"),
        ({"a": 1}, "malformed"), ([[None, 13, None], [-1e39, 14, None]], "malformed"),
    ],
)  # fmt: skip
def test_scores_of_another_prompt_are_withheld(scores: Any, code: str) -> None:
    """Other tokens than the prompt's, more of them, or no numbers."""
    step = read(input_token_logprobs=scores)
    assert step.prompt_logprobs is None
    assert withheld(step) == [("prompt_logprobs", code)]


TOPS = [[[-1.0, 5, None], [-1.5, 50, None]], [[-2.0, 6, None], [-2.5, 60, None]], [[-0.5, 7, None], [-0.75, 70, None]]]


def flat(side: str, rows: list[Any], before: int = 0, *, as_bytes: bool = False) -> dict[str, Any]:
    """The same rows in the flat form."""
    values = np.array([one[0] for row in rows for one in row], "<f4")
    ids = np.array([one[1] for row in rows for one in row], "<i4")
    name = f"{side}_top_logprobs"
    sent = (
        {
            f"{name}_val_flat_b64": b64(values), f"{name}_idx_flat_b64": b64(ids),
            f"{name}_val_flat_b64_dtype": "float32", f"{name}_idx_flat_b64_dtype": "int32",
        }
        if as_bytes
        else {f"{name}_val_flat": values.tolist(), f"{name}_idx_flat": ids.tolist()}
    )  # fmt: skip
    return {**sent, f"{name}_shape": [len(rows), 2], f"{name}_null_prefix": before}


@pytest.mark.parametrize(
    "fields",
    [
        {"output_top_logprobs": TOPS, "input_top_logprobs": [None, *TOPS]},
        {**flat("output", TOPS), **flat("input", TOPS, 1)},
        {**flat("output", TOPS, as_bytes=True), **flat("input", TOPS, 1, as_bytes=True)},
    ],
    ids=["nested", "flat", "bytes"],
)
def test_likeliest_tokens_in_every_form(fields: dict[str, Any]) -> None:
    """Of prompt and completion: lists of triples, flat lists, or their bytes."""
    step = read(**fields)
    assert step.top_tokens is not None
    assert step.prompt_top_tokens is not None
    assert step.top_tokens.ids.tolist() == [[5, 50], [6, 60], [7, 70]]
    assert step.top_tokens.logprobs.tolist() == [[-1.0, -1.5], [-2.0, -2.5], [-0.5, -0.75]]
    assert step.prompt_top_tokens.ids.tolist() == [[-1, -1], [5, 50], [6, 60], [7, 70]]
    assert np.isnan(step.prompt_top_tokens.logprobs[0]).all()
    assert withheld(step) == []
    assert step.extra == {"num_retractions": 0}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"output_top_logprobs_shape": [2, 3]}, "not_aligned"), ({"output_top_logprobs_shape": [6]}, "malformed"),
        ({"output_top_logprobs_null_prefix": 10**12}, "malformed"), ({"output_top_logprobs_shape": None}, "malformed"),
        ({"output_top_logprobs_null_prefix": 1}, "not_aligned"), ({"output_top_logprobs_idx_flat": [1]}, "malformed"),
        ({"output_top_logprobs_idx_flat": [-1] * 6}, "malformed"),
        ({"output_top_logprobs_idx_flat": [2**40] * 6}, "malformed"),
        ({"output_top_logprobs_val_flat": [1.0] * 6}, "malformed"),
        ({"output_top_logprobs_val_flat": [-1e39] * 6}, "malformed"),
        ({"output_top_logprobs_val_flat": None}, "malformed"),
    ],
)  # fmt: skip
def test_flat_lists_that_do_not_fit_their_shape(change: dict[str, Any], code: str) -> None:
    """They are withheld before memory of their shape is taken."""
    step = read(**{**flat("output", TOPS), **change})
    assert step.top_tokens is None
    assert withheld(step) == [("top_tokens", code)]


def test_what_has_no_field_is_kept_under_its_name() -> None:
    """Hidden states, scores of chosen tokens, counters."""
    states = [[0.5, 0.25], [0.75, 1.0]]
    step = read(hidden_states=states, e2e_latency=0.5, output_token_ids_logprobs=[None, [[-1.0, 3, None]], None])
    assert step.extra == {
        "num_retractions": 0,
        "hidden_states": states,
        "e2e_latency": 0.5,
        "output_token_ids_logprobs": [None, [[-1.0, 3, None]], None],
    }


def growing(size: int, since: int) -> dict[str, Any]:
    """The lists that grow with the stream."""
    return {
        "output_token_sampling_mask": MASK[since:size],
        "output_token_sampling_logprobs": SUPPORT[since:size],
        "output_top_logprobs": TOPS[since:size],
        "output_token_ids_logprobs": [None, None, [[-1.0, 3, None]]][since:size],
    }


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("sizes", [(1, 2, 3), (1, 3), (3,), (2, 3, 3)])
def test_a_stream_has_what_the_unstreamed_answer_has(sizes: tuple[int, ...], incremental: bool) -> None:
    """Cumulative chunks, or with `--incremental-streaming-output`; experts and versions on the last chunk."""
    last = {"routed_experts": b64(EXPERTS), "weight_versions": spans(0, 2, 3)}
    scores = {"input_token_logprobs": [[None, 13, None], [-1.0, 14, None]]}
    chunks = []
    for number, (old, size) in enumerate(zip((0, *sizes), sizes, strict=False)):
        since = old if incremental else 0
        ends = number == len(sizes) - 1
        meta = info(size, since=since, **growing(size, since), **scores, **(last if ends else {}))
        meta["finish_reason"] = {"type": "length", "length": 3} if ends else None
        text = "".join((" a", " b", " c")[since:size])
        chunks.append({"text": text, "output_ids": IDS[since:size], "meta_info": meta})
    request = json.dumps({"input_ids": PROMPT, "stream": True}).encode()
    (step,) = decode("sglang.generate", request, sse(*chunks), content_type=SSE)
    whole = read(None, **growing(3, 0), **scores, **last)
    for field in ("prompt_logprobs", "top_tokens", "sampling_mask", "routed_experts", "policy_spans", "extra"):
        one, other = getattr(step, field), getattr(whole, field)
        assert one is not None, field
        if isinstance(one, np.ndarray):
            assert np.array_equal(one, other, equal_nan=True), field
        else:
            assert one == other, field
    assert (step.extra_issues, step.policy_version) == ((), "v0,v1")


def test_each_sample_of_a_list_has_its_own() -> None:
    """`n` of `sampling_params`: a list of samples, one step for each."""
    bodies = [
        {"text": " a", "output_ids": IDS, "meta_info": info(output_token_sampling_mask=mask)}
        for mask in (MASK, [[5], [6], [7]])
    ]
    request = json.dumps({"input_ids": PROMPT, "sampling_params": {"n": 2}}).encode()
    found = decode("sglang.generate", request, json.dumps(bodies).encode(), content_type=JSON)
    masks = [[row.tolist() for row in step.sampling_mask or ()] for step in found]
    assert masks == [MASK, [[5], [6], [7]]]


def test_without_ids_extras_have_no_positions() -> None:
    """A prompt whose ids are not known: its scores and the experts are withheld, the mask is not."""
    body = {"output_ids": IDS, "meta_info": info(output_token_sampling_mask=MASK, routed_experts=b64(EXPERTS))}
    (step,) = decode("sglang.generate", b'{"text": "p"}', json.dumps(body).encode(), content_type=JSON)
    assert step.prompt_token_ids is None
    assert withheld(step) == [("routed_experts", "ids_missing")]
    assert step.sampling_mask is not None


LISTED = [[None, 11, None], [-1.0, 0, None], [-1.0, 13, None], [-1.0, 14, None]]


@pytest.mark.parametrize(
    ("request_ids", "fields", "expected"),
    [
        ([11, 12, 13, 14], {}, [11, 12, 13, 14]),
        ([11, 99, 13, 14], {}, [11, 99, 13, 14]),
        ([12, 12, 13, 14], {}, [11, 0, 13, 14]),
        ([11, 12], {}, [11, 0, 13, 14]),
        ([11, 12], {"image_tokens": 2}, None),
        (None, {}, [11, 0, 13, 14]),
        (None, {"image_tokens": 1}, None),
        (None, {"prompt_token_ids": PROMPT}, PROMPT),
    ],
)
def test_ids_of_a_prompt(request_ids: Any, fields: dict[str, Any], expected: Any) -> None:
    """From the answer; from the request where SGLang lists the same ones, but for the 0 that it puts for some; with
    images in the prompt those zeros may be their placeholders, and are no ids."""
    request = {"text": "p"} if request_ids is None else {"input_ids": request_ids}
    body = {"output_ids": IDS, "meta_info": info(input_token_logprobs=LISTED, **fields)}
    (step,) = decode("sglang.generate", json.dumps(request).encode(), json.dumps(body).encode(), content_type=JSON)
    assert numbers(step.prompt_token_ids) == expected
