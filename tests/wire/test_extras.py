"""Extras of vLLM's answers: shapes, and what becomes of each that does not fit. The ids stay whatever an extra is."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rollout_trace.data.extras import PolicySpan
from rollout_trace.data.model import Step
from rollout_trace.wire import decode
from rollout_trace.wire.lenient import NULL
from rollout_trace.wire.logprobs import Columns
from rollout_trace.wire.vllm_extras import without_experts
from tests.wire.raw import JSON, SSE, sse
from tests.wire.recorded import differing, numbers

PROMPT, IDS, LOGPROBS = [7, 8, 9], [4, 5], [-0.5, -0.25]
EXPERTS = np.arange(4 * 2 * 2, dtype=np.uint8).reshape(4, 2, 2)
MASK = [[4, 6], [3, 5, 9]]
VERSIONS = [{"version": "a", "start": 0, "end": 1}, {"version": "b", "start": 1, "end": 2}]
SCORES = [None, {"8": {"logprob": -1.0, "rank": 2}, "3": {"logprob": -0.5}}, {"9": {"logprob": -2.0}}]
REQUEST = {"token_ids": PROMPT, "sampling_params": {"max_tokens": 2}}


def npy(values: Any) -> str:
    """An array as vLLM sends it."""
    file = io.BytesIO()
    np.save(file, values, allow_pickle=True)
    return base64.b64encode(file.getvalue()).decode()


def content(*rows: list[tuple[int, float]]) -> dict[str, Any]:
    """The logprobs of the sampled ids, each with alternatives."""
    entries = []
    for token, logprob, row in zip(IDS, LOGPROBS, rows or ([], []), strict=True):
        tops = [{"token_id": one, "logprob": value, "rank": 1} for one, value in row]
        entries.append({"token_id": token, "logprob": logprob, "top_logprobs": tops})
    return {"content": entries}


def answer(around: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """An answer of generate with these fields on its choice."""
    choice = {"index": 0, "token_ids": IDS, "logprobs": content(), "finish_reason": "stop", **fields}
    return {"choices": [choice], "prompt_token_ids": PROMPT, "usage": {"completion_tokens": 2}, **(around or {})}


def read(body: Any, request: Any = None, protocol: str = "vllm.generate") -> Step:
    """The only step of an answer, whose ids are whole."""
    response = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = json.dumps(REQUEST if request is None else request).encode()
    (step,) = decode(protocol, sent, response, content_type=JSON)
    return step


def whole(**fields: Any) -> Step:
    """The step of an answer with these extras; its ids are not touched by them."""
    step = read(answer(**fields))
    assert (step.token_issue, numbers(step.completion_token_ids), numbers(step.logprobs)) == (None, IDS, LOGPROBS)
    assert (numbers(step.prompt_token_ids), step.status) == (PROMPT, "ok")
    return step


def issue_of(step: Step, field: str) -> tuple[str, str]:
    """Code and message of the only issue, and the field is withheld."""
    (issue,) = step.extra_issues
    assert issue.field == field
    assert getattr(step, field) is None
    assert issue.message.endswith(".")
    return issue.code, issue.message


def test_each_extra_is_an_array_with_its_dtype() -> None:
    """All of them in one answer, as the engine sent them."""
    rows = [(4, -0.5), (2, -0.1)], [(5, -0.25)]
    step = read(
        answer(
            {"prompt_logprobs": SCORES},
            routed_experts=npy(EXPERTS),
            sampling_mask=MASK,
            sampling_mask_logprobs=[[-0.7, -0.7], [-1.0, -1.5, -2.0]],
            weight_versions=VERSIONS,
            logprobs=content(*rows),
        )
    )
    assert step.extra_issues == ()
    assert step.routed_experts is not None
    assert (step.routed_experts.dtype.name, step.routed_experts.tolist()) == ("uint8", EXPERTS.tolist())
    assert step.sampling_mask is not None
    assert [row.tolist() for row in step.sampling_mask] == MASK
    assert (step.sampling_mask.ids.dtype.name, step.sampling_mask.counts.tolist()) == ("int32", [2, 3])
    assert numbers(step.sampling_mask.logprobs) == np.array([-0.7, -0.7, -1.0, -1.5, -2.0], np.float32).tolist()
    assert step.policy_spans == (PolicySpan(0, 1, "a"), PolicySpan(1, 2, "b"))
    assert step.policy_version == "a,b"
    assert step.prompt_logprobs is not None
    np.testing.assert_array_equal(step.prompt_logprobs, np.array([np.nan, -1.0, -2.0], np.float32))
    assert step.prompt_top_tokens is not None
    assert step.prompt_top_tokens.ids.tolist() == [[-1, -1], [8, 3], [9, -1]]
    np.testing.assert_array_equal(
        step.prompt_top_tokens.logprobs, np.array([[np.nan, np.nan], [-1.0, -0.5], [-2.0, np.nan]], np.float32)
    )
    assert step.top_tokens is not None
    assert step.top_tokens.ids.tolist() == [[4, 2], [5, -1]]
    assert step.top_tokens.ids.dtype == np.int32
    arrays = [step.routed_experts, step.sampling_mask.ids, step.prompt_logprobs, step.top_tokens.ids]
    assert not any(array.flags.writeable for array in arrays)


@pytest.mark.parametrize("dtype", ["|u1", "<u2", "<i4"])
def test_experts_keep_their_type(dtype: str) -> None:
    """The three types that the file and consumers have."""
    step = whole(routed_experts=npy(EXPERTS.astype(dtype)))
    assert step.routed_experts is not None
    assert step.routed_experts.dtype == np.dtype(dtype)
    assert step.routed_experts.tolist() == EXPERTS.tolist()


def test_experts_without_the_first_tokens_of_the_prompt() -> None:
    """Rows from where the request asked for them, at its top or in its parameters; the answer does not name it."""
    body = answer(routed_experts=npy(EXPERTS[3:]))
    for request in ({"routed_experts_prompt_start": 3}, {"sampling_params": {"routed_experts_prompt_start": 3}}):
        step = read(body, request)
        assert step.routed_experts is not None
        assert len(step.routed_experts) == 1
    assert issue_of(read(body, {}), "routed_experts") == (
        "not_aligned",
        "1 rows of experts; 3 prompt and 2 sampled tokens have 4.",
    )
    code, message = issue_of(read(body, {"routed_experts_prompt_start": 2}), "routed_experts")
    assert (code, message) == (
        "not_aligned",
        "1 rows of experts; 3 prompt and 2 sampled tokens without the first 2 have 2.",
    )


def header(descr: str, shape: str, data: bytes, order: str = "False") -> str:
    """A .npy file with any header."""
    text = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({shape}), }}\n".encode()
    return base64.b64encode(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data).decode()


WRONG_EXPERTS: dict[str, Any] = {
    "no string": {"data": 1},
    "a number": 5,
    "not base64": "!!!!",
    "a character of base64 is wrong": npy(EXPERTS)[:-8] + "!" + npy(EXPERTS)[-7:],
    "no npy": base64.b64encode(b"12345678901234567890").decode(),
    "empty": "",
    "cut": npy(EXPERTS)[:-8],
    "longer than its shape": base64.b64encode(base64.b64decode(npy(EXPERTS)) + b"1").decode(),
    "floats": npy(EXPERTS.astype(np.float32)),
    "objects, which only a pickle holds": npy(np.array([[[{}]]], dtype=object)),
    "two dimensions": npy(EXPERTS.reshape(4, 4)),
    "negative": npy(-EXPERTS.astype(np.int32)),
    "a huge shape": header("|u1", "99999999999999999999, 99999999999999, 8", b"12345678"),
    "a negative shape": header("|u1", "-4, 2, 2", b"1" * 16),
    "Fortran's order": header("|u1", "4, 2, 2", b"1" * 16, "True"),
    "a header that is no header": header("|u1", "__import__('os')", b"1" * 16),
    "lists that differ": [[[1, 2], [3]], [[1, 2], [3, 4]]],
    "lists of texts": [[["a"]]],
    "an empty list": [],
    "lists beyond int32": [[[2**40]]] * 4,
}


@pytest.mark.parametrize("case", WRONG_EXPERTS)
def test_experts_that_cannot_be_read_are_withheld(case: str) -> None:
    """With a reason; nothing is unpickled, and nothing of a claimed size is made."""
    assert issue_of(whole(routed_experts=WRONG_EXPERTS[case]), "routed_experts")[0] == "malformed"


def test_experts_as_lists_and_with_escaped_slashes() -> None:
    """LMDeploy's nested lists; and base64 whose slashes an encoder wrote as `\\/`."""
    step = whole(routed_experts=EXPERTS.tolist())
    assert step.routed_experts is not None
    assert (step.routed_experts.dtype.name, step.routed_experts.tolist()) == ("int32", EXPERTS.tolist())
    full = np.full((4, 2, 2), 255, np.uint8)
    body = json.dumps(answer(routed_experts=npy(full))).replace("/", "\\/").encode()
    assert b"\\/" in body
    step = read(body)
    assert step.routed_experts is not None
    assert (step.routed_experts == 255).all()


WRONG_MASKS: dict[str, tuple[dict[str, Any], str]] = {
    "a row too few": ({"sampling_mask": MASK[:1]}, "not_aligned"),
    "the sampled id is missing": ({"sampling_mask": [[4], [3, 9]]}, "not_aligned"),
    "an empty row": ({"sampling_mask": [[4], []]}, "not_aligned"),
    "a row is null": ({"sampling_mask": [[4], None]}, "malformed"),
    "an id is no number": ({"sampling_mask": [[4], ["5"]]}, "malformed"),
    "an id is negative": ({"sampling_mask": [[4, -1], [5]]}, "malformed"),
    "an id beyond int32": ({"sampling_mask": [[4], [5, 2**31]]}, "malformed"),
    "an id beyond int64": ({"sampling_mask": [[4], [5, 2**70]]}, "malformed"),
    "no list": ({"sampling_mask": {"0": [4]}}, "malformed"),
    "logprobs of other lengths": ({"sampling_mask": MASK, "sampling_mask_logprobs": [[-1.0], [-1.0] * 3]}, "malformed"),
    "logprobs that are none": ({"sampling_mask": MASK, "sampling_mask_logprobs": "x"}, "malformed"),
}


@pytest.mark.parametrize("case", WRONG_MASKS)
def test_masks_that_do_not_fit_are_withheld(case: str) -> None:
    """A trainer that renormalises over a wrong support would train on wrong logprobs."""
    fields, code = WRONG_MASKS[case]
    assert issue_of(whole(**fields), "sampling_mask")[0] == code


WRONG_VERSIONS: dict[str, tuple[Any, str]] = {
    "a gap": ([VERSIONS[0], {"version": "b", "start": 2, "end": 2}], "not_aligned"),
    "too short": (VERSIONS[:1], "not_aligned"),
    "backwards": ([{"version": "a", "start": 0, "end": -2}], "not_aligned"),
    "no numbers": ([{"version": "a", "start": "0", "end": 2}], "malformed"),
    "no version": ([{"start": 0, "end": 2}], "malformed"),
    "texts": (["a", "b"], "malformed"),
    "no list": ("a", "malformed"),
}


@pytest.mark.parametrize("case", WRONG_VERSIONS)
def test_spans_that_do_not_fit_are_withheld(case: str) -> None:
    """Versions of positions that do not exist are none."""
    versions, code = WRONG_VERSIONS[case]
    assert issue_of(whole(weight_versions=versions), "policy_spans")[0] == code


WRONG_SCORES: dict[str, tuple[Any, str]] = {
    "too few": (SCORES[:2], "not_aligned"),
    "of another prompt": ([None, {"3": {"logprob": -1.0}}, {"9": {"logprob": -1.0}}], "not_aligned"),
    "null inside": ([None, None, {"9": {"logprob": -1.0}}], "not_aligned"),
    "a name that is no id": ([None, {"8": {"logprob": -1.0}, "x": {"logprob": -1.0}}, SCORES[2]], "malformed"),
    "no logprob": ([None, {"8": {"rank": 1}}, SCORES[2]], "malformed"),
    "a positive one": ([None, {"8": {"logprob": 0.5}}, SCORES[2]], "malformed"),
    "infinite as float32": ([None, {"8": {"logprob": -1e300}}, SCORES[2]], "malformed"),
    "texts": (["a", "b", "c"], "malformed"),
    "no list": ({"8": -1.0}, "malformed"),
}


@pytest.mark.parametrize("case", WRONG_SCORES)
def test_scores_of_a_prompt_that_do_not_fit_are_withheld(case: str) -> None:
    """The prompt's own ids decide which of the listed tokens is its own."""
    scores, code = WRONG_SCORES[case]
    assert issue_of(whole(around={"prompt_logprobs": scores}), "prompt_logprobs")[0] == code


def test_scores_of_the_prompt_alone_have_no_alternatives() -> None:
    """With 0 requested each position has its own token, as `prompt_logprobs`; with 1 it is an alternative, too."""
    scores = [None, {"8": {"logprob": -1.0}}, {"9": {"logprob": -2.0}}]
    for wanted in (0, 1):
        step = read(answer({"prompt_logprobs": scores}), {"sampling_params": {"prompt_logprobs": wanted}})
        assert step.prompt_logprobs is not None
        assert (step.prompt_top_tokens is None) == (wanted == 0)


WRONG_TOPS: dict[str, tuple[Any, str]] = {
    "the sampled id is not listed": (content([(4, -0.5)], [(9, -0.5)]), "not_aligned"),
    "an alternative without an id": (
        {
            "content": [
                {"token_id": 4, "logprob": -0.5, "top_logprobs": [{"token_id": 4, "logprob": -0.5}, {"logprob": -1.0}]},
                {"token_id": 5, "logprob": -0.25, "top_logprobs": []},
            ]
        },
        "malformed",
    ),
    "a negative id": (content([(4, -0.5)], [(5, -0.25), (-5, -0.5)]), "malformed"),
    "an id beyond int32": (content([(4, -0.5)], [(5, -0.25), (2**31, -0.5)]), "malformed"),
}


@pytest.mark.parametrize("case", WRONG_TOPS)
def test_alternatives_that_do_not_fit_are_withheld(case: str) -> None:
    """They stay in `top_logprobs`, as the engine sent them."""
    logprobs, code = WRONG_TOPS[case]
    step = whole(logprobs=logprobs)
    assert issue_of(step, "top_tokens")[0] == code
    assert step.top_logprobs == [entry["top_logprobs"] for entry in logprobs["content"]]


def test_one_wide_row_among_many_does_not_take_memory() -> None:
    """A rectangle of 3,000 rows of 100,000 alternatives would be 2.4 GB, of an answer of 2 MB."""
    size = 3000
    wide = {f"token_id:{token}": -1.0 for token in range(100_000)}
    logprobs = {
        "tokens": ["token_id:0"] * size,
        "token_logprobs": [-1.0] * size,
        "top_logprobs": [wide, *[{"token_id:0": -1.0}] * (size - 1)],
    }
    body = {"choices": [{"index": 0, "text": "a", "logprobs": logprobs, "token_ids": [0] * size}]}
    step = read(body, {"prompt": "a"}, "openai.completions")
    assert issue_of(step, "top_tokens")[0] == "malformed"
    assert step.completion_token_ids is not None
    assert len(step.completion_token_ids) == size


EXTRAS: dict[str, Callable[[], Any]] = {
    "routed_experts": lambda: answer(routed_experts=npy(EXPERTS)),
    "sampling_mask": lambda: answer(sampling_mask=MASK),
    "policy_spans": lambda: answer(weight_versions=VERSIONS),
    "top_tokens": lambda: answer(logprobs=content([(4, -0.5)], [(5, -0.25)])),
}


@pytest.mark.parametrize("field", EXTRAS)
def test_without_ids_an_extra_has_no_positions(field: str) -> None:
    """Ids that were withheld (here: another count than the usage) take the extras with them."""
    step = read({**EXTRAS[field](), "usage": {"completion_tokens": 3}})
    assert step.token_issue is not None
    assert step.token_issue.code == "usage_differs"
    assert issue_of(step, field)[0] == "ids_missing"


def test_scores_without_prompt_ids() -> None:
    """Which of the tokens is the prompt's own is not known then."""
    body = answer({"prompt_logprobs": SCORES})
    del body["prompt_token_ids"]
    assert issue_of(read(body, {}), "prompt_logprobs")[0] == "ids_missing"


JUNK: tuple[Any, ...] = (True, 0, -1, 1.5, "", "x", [], [None], [[]], {}, {"a": []}, [[[[]]]], 10**40)


@pytest.mark.parametrize("protocol", ["openai.chat", "openai.completions", "vllm.generate"])
def test_no_value_of_an_extra_is_a_fault_of_the_answer(protocol: str) -> None:
    """Any JSON in place of any extra: an issue of that extra, or none, and never one of the ids."""
    names = ("routed_experts", "sampling_mask", "sampling_mask_logprobs", "weight_versions", "prompt_logprobs")
    message = {"message": {"content": "a"}} if protocol == "openai.chat" else {"text": "a"}
    for name in names:
        for value in JUNK:
            fields = {name: value, "prompt_token_ids": PROMPT, **message}
            step = read(answer({name: value}, **fields), {"token_ids": PROMPT}, protocol)
            assert step.token_issue is None, (name, value)
            assert numbers(step.completion_token_ids) == IDS


def test_extras_of_an_answer_that_the_strict_reader_refuses() -> None:
    """A NaN, or a field of the wrong type, elsewhere: the extras are read all the same."""
    fields = {"routed_experts": npy(EXPERTS), "sampling_mask": MASK, "weight_versions": VERSIONS}
    rows = content([(4, -0.5), (2, -0.1)], [(5, -0.25)])
    good = read(answer({"prompt_logprobs": SCORES}, logprobs=rows, **fields))
    odd = read(answer({"prompt_logprobs": SCORES, "metrics": {"a": float("nan")}}, logprobs=rows, **fields))
    assert differing(good, odd) == set()
    wrong = read(answer({"prompt_logprobs": SCORES}, logprobs=rows, stop_reason=[1], **fields))
    assert wrong.token_issue is not None
    assert wrong.token_issue.code == "response_malformed"
    assert wrong.routed_experts is not None
    assert wrong.sampling_mask == good.sampling_mask
    assert wrong.top_tokens == good.top_tokens


def test_streams_of_generate_join_masks_and_take_the_rest_from_the_last_chunk() -> None:
    """Two samples that take turns, in chunks of one and two tokens."""
    first = {"token_ids": IDS[:1], "logprobs": None, "sampling_mask": MASK[:1], "finish_reason": None}
    last = {"token_ids": IDS[1:], "logprobs": None, "sampling_mask": MASK[1:], "finish_reason": "stop"}
    ends: dict[str, Any] = {"routed_experts": npy(EXPERTS), "weight_versions": VERSIONS}
    nothing = {"routed_experts": None, "weight_versions": None}
    chunks = [
        {"prompt_token_ids": PROMPT, "mm_placeholders": {"image": [{"offset": 1, "length": 2}]}, "choices": []},
        *({"choices": [{"index": at, **first, **nothing}]} for at in (1, 0)),
        *({"choices": [{"index": at, **last, **ends}]} for at in (0, 1)),
    ]
    request = {"token_ids": PROMPT, "sampling_params": {"n": 2}}
    one, two = decode("vllm.generate", json.dumps(request).encode(), sse(*chunks), content_type=SSE)
    assert differing(one, two) == {"choice"}
    unary = read({**answer(sampling_mask=MASK, logprobs=None, **ends), "usage": None}, request)
    assert differing(one, unary) == {"extra"}
    assert one.extra == {"mm_placeholders": {"image": [{"offset": 1, "length": 2}]}}


def test_an_abort_with_tokens_is_a_whole_answer() -> None:
    """A pause, or new weights, ends a sample early: what was sampled counts, as in chat. With no tokens it does not."""
    step = whole(finish_reason="abort", weight_versions=VERSIONS)
    assert (step.finish_reason, step.policy_version) == ("abort", "a,b")
    empty = read(answer({"usage": None}, finish_reason="abort", token_ids=[], logprobs=None))
    assert (empty.status, empty.finish_reason) == ("abandoned", "abort")


def test_older_files_name_vllms_answers_sglang() -> None:
    """Both protocols read both shapes of bytes."""
    body = answer(routed_experts=npy(EXPERTS))
    assert differing(read(body), read(body, protocol="sglang.generate")) == {"protocol"}


def test_echoed_logprobs_are_those_of_the_prompt() -> None:
    """A stream has no `prompt_logprobs`; what its first chunk repeats of the prompt is the same."""
    arrays = {"tokens": ["a", "b", "c", "d"], "token_logprobs": [None, -1.0, -2.0, -0.5]}
    arrays["top_logprobs"] = [
        None,
        {"token_id:8": -1.0, "token_id:2": -0.1},
        {"token_id:9": -2.0},
        {"token_id:4": -0.5},
    ]
    first = {"index": 0, "text": "abcd", "token_ids": IDS[:1], "prompt_token_ids": PROMPT, "logprobs": arrays}
    rest = {"tokens": ["e"], "token_logprobs": [-0.25], "top_logprobs": [{"token_id:5": -0.25}]}
    last = {"index": 0, "text": "e", "token_ids": IDS[1:], "logprobs": rest, "finish_reason": "stop"}
    request = json.dumps({"prompt": "abc", "echo": True, "logprobs": 1}).encode()
    (step,) = decode("openai.completions", request, sse({"choices": [first]}, {"choices": [last]}), content_type=SSE)
    assert numbers(step.logprobs) == LOGPROBS
    assert step.prompt_logprobs is not None
    np.testing.assert_array_equal(step.prompt_logprobs, np.array([np.nan, -1.0, -2.0], np.float32))
    assert step.prompt_top_tokens is not None
    assert step.prompt_top_tokens.ids.tolist() == [[-1, -1], [8, 2], [9, -1]]
    assert step.top_tokens is not None
    assert step.top_tokens.ids.tolist() == [[4], [5]]


CHAT = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}


def test_what_has_no_field_of_its_own_is_in_extra() -> None:
    """Of the answer and of the choice, which counts where both have a name; nulls and what is implied left out."""
    choice = {**CHAT, "content_filter_results": {"hate": False}, "new_field": [1], "shared": 2, "nothing": None}
    body = {
        "id": "x", "object": "chat.completion", "created": 5, "model": "m", "choices": [choice], "service_tier": None,
        "system_fingerprint": "fp", "metrics": {"a": 1}, "newer_field": {"deep": [1]}, "shared": 1, "obfuscation": "zz",
    }  # fmt: skip
    step = read(body, {}, "openai.chat")
    assert list((step.extra or {}).items()) == [
        ("created", 5), ("system_fingerprint", "fp"), ("metrics", {"a": 1}), ("newer_field", {"deep": [1]}),
        ("shared", 2), ("content_filter_results", {"hate": False}), ("new_field", [1]),
    ]  # fmt: skip
    assert read({"choices": [CHAT]}, {}, "openai.chat").extra is None


def test_ids_that_became_arrays_are_not_in_extra_again() -> None:
    """Of the objects in which other engines have them, the rest is."""
    raw = {"completion_token_ids": IDS, "prompt_token_ids": PROMPT, "prompt_fragments": ["a"], "images": None}
    step = read({"choices": [{**CHAT, "raw_output": raw, "response_token_ids": IDS}]}, {}, "openai.chat")
    assert numbers(step.completion_token_ids) == IDS
    assert step.extra == {"raw_output": {"prompt_fragments": ["a"]}}


def test_of_a_stream_the_last_value_of_each_name_counts() -> None:
    """Declared fields and unknown ones, nulls between them."""
    deltas = [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in "abc"]
    chunks = [
        {**deltas[0], "system_fingerprint": "one", "unknown": 1, "created": 5},
        {**deltas[1], "system_fingerprint": None, "unknown": None, "created": 5},
        {**deltas[2], "system_fingerprint": "two", "unknown": 3, "created": 6},
        {"choices": [], "metrics": {"a": 1}},
    ]
    (step,) = decode("openai.chat", b"{}", sse(*chunks), content_type=SSE)
    assert step.completion is not None
    assert step.completion.content == "abc"
    assert step.extra == {"system_fingerprint": "two", "unknown": 3, "created": 6, "metrics": {"a": 1}}


def test_what_entries_have_for_each_token_is_a_list() -> None:
    """Fireworks' routing matrices and logprobs of the sampler, streamed too; None where an entry has none."""

    def entry(matrix: str | None, score: float) -> dict[str, Any]:
        return {"token": "a", "logprob": -1.0, "routing_matrix": matrix, "sampling_logprob": score, "top_logprobs": []}

    matrices = ["AA", None, "BB", None]
    entries = [entry(matrix, -0.5 - at) for at, matrix in enumerate(matrices)]
    expected = {"routing_matrix": matrices, "sampling_logprob": [-0.5, -1.5, -2.5, -3.5]}
    step = read({"choices": [{**CHAT, "logprobs": {"content": entries}}]}, {}, "openai.chat")
    assert step.extra == expected
    chunks = [{"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [one]}}]} for one in entries]
    (streamed,) = decode("openai.chat", b"{}", sse(*chunks), content_type=SSE)
    assert streamed.extra == expected
    texts = [{"choices": [{"index": 0, "text": "a", "logprobs": {"content": [one]}}]} for one in entries]
    (completion,) = decode("openai.completions", b"{}", sse(*texts), content_type=SSE)
    assert completion.extra == expected


def test_what_the_chunks_of_a_stream_have_for_each_token_is_appended() -> None:
    """To the same list, not to a copy of it: that would take time that grows with the square."""
    columns = Columns([-1.0], [None], [None], [NULL])
    columns.extend(Columns([-1.0, -1.0], [None] * 2, [None] * 2, [NULL] * 2, more={"a": [0, None]}))
    values = columns.more["a"]
    columns.extend(Columns([-1.0], [None], [None], [NULL]))
    columns.extend(Columns([-1.0], [None], [None], [NULL], more={"a": [1]}))
    assert columns.more == {"a": [None, 0, None, None, 1]}
    assert columns.more["a"] is values


@pytest.mark.parametrize("version", [[1, 2], {"version": True}, {"version": {"a": 1}}, {"version": None}])
def test_what_is_no_version_is_not_the_policy_s(version: Any) -> None:
    step = read(answer(weight_versions=[version]))
    assert ([one.code for one in step.extra_issues], step.policy_version) == (["malformed"], None)


def test_a_token_whose_text_is_id_has_no_id() -> None:
    """With a logprob of 0.0, as under a grammar: alternatives of /completions that are texts are no error."""
    tops = [{"id": 0.0, "x": -9999.0}, {"b": -1.0, "c": -2.0}]
    logprobs = {"tokens": ["id", "b"], "token_logprobs": [0.0, -1.0], "top_logprobs": tops}
    choice = {"index": 0, "text": "idb", "token_ids": IDS, "logprobs": logprobs, "finish_reason": "stop"}
    step = read({"choices": [choice]}, {"logprobs": 2}, "openai.completions")
    assert (step.extra_issues, step.top_tokens) == ((), None)
    assert step.top_logprobs == [[{"token": t, "logprob": v} for t, v in row.items()] for row in tops]


def test_a_parameter_that_a_response_changed_is_kept() -> None:
    """What repeats the request is not."""
    sent = {"input": "Hi", "service_tier": "auto", "temperature": 1, "truncation": "auto"}
    changed = {"service_tier": "default", "top_p": 0.5}
    response = {"id": "r", "status": "completed", "output": [], **sent, "temperature": 1.0, **changed}
    assert read(response, sent, "openai.responses").extra == changed
    events = [{"type": "response.completed", "response": response}]
    (streamed,) = decode("openai.responses", json.dumps(sent).encode(), sse(*events), content_type=SSE)
    assert streamed.extra == changed


ALTERNATIVES: dict[str, tuple[Any, Any]] = {
    "objects": ([{"token": "a", "logprob": -1.0, "bytes": [97], "more": None}], None),
    "texts with lone surrogates": ([{"token": "\ud83d", "logprob": -1.0}], None),
    "by token": ({"a": -1.0, "b": -2}, [{"token": "a", "logprob": -1.0}, {"token": "b", "logprob": -2}]),
    "by token, one a lone surrogate": ({"\ud83d": -1.0}, [{"token": "\ud83d", "logprob": -1.0}]),
    "of another type": ("x", []),
}


@pytest.mark.parametrize("case", ALTERNATIVES)
@pytest.mark.parametrize("protocol", ["openai.chat", "openai.completions"])
def test_alternatives_are_read_as_sent(case: str, protocol: str) -> None:
    """As lists of objects, whatever the shape on the wire; a token without any has an empty list."""
    tops, expected = ALTERNATIVES[case]
    good = [{"token": "z", "logprob": -3.0}]
    entries = [{"token": "t", "logprob": -1.0, "top_logprobs": top} for top in (tops, None, good)]
    logprobs: Any = {"content": entries}
    if protocol == "openai.completions":
        logprobs = {"token_logprobs": [-1.0] * 3, "tokens": ["t"] * 3, "top_logprobs": [tops, None, good]}
    step = read({"choices": [{**CHAT, "text": "ttt", "logprobs": logprobs}]}, {}, protocol)
    assert step.token_issue is None or step.token_issue.code == "ids_missing"
    assert step.top_logprobs == [tops if expected is None else expected, [], good]


def test_large_experts_are_left_out_of_the_search_for_ids() -> None:
    """Replaced by null where they are text in base64, and nowhere else."""
    large = "A" * 10_000
    value = {"choices": [{"routed_experts": large, "a": 1}, {"routed_experts": large}], "b": [large]}
    nulls = {"choices": [{"routed_experts": None, "a": 1}, {"routed_experts": None}], "b": [large]}
    assert json.loads(without_experts(json.dumps(value).encode())) == nulls
    named = json.dumps({"a": "routed_experts", "b": large})
    for kept in (named, '{"routed_experts": null}', '"routed_experts"', "{"):
        assert without_experts(kept.encode()) == kept.encode()
    sent = npy(np.zeros((4, 100, 100), np.uint8))
    for protocol, text in (("openai.chat", {"message": {"content": "a"}}), ("openai.completions", {"text": "a"})):
        step = read(answer(routed_experts=sent, prompt_token_ids=PROMPT, logprobs=None, **text), {}, protocol)
        assert step.routed_experts is not None
        assert step.routed_experts.shape == (4, 100, 100)


def test_samples_of_one_prompt_share_its_scores() -> None:
    """They are decoded once: of sixteen samples of a long prompt they would be the same sixteen times."""
    body = answer({"prompt_logprobs": SCORES})
    body["choices"] = [{**body["choices"][0], "index": at} for at in range(2)]
    body["usage"] = None
    one, two = decode("vllm.generate", json.dumps(REQUEST).encode(), json.dumps(body).encode(), content_type=JSON)
    assert one.prompt_logprobs is not None
    assert two.prompt_logprobs is not None
    assert np.shares_memory(one.prompt_logprobs, two.prompt_logprobs)
    prompts = [{"prompt_token_ids": ids, "prompt_logprobs": SCORES} for ids in (PROMPT, [7, 3, 9], PROMPT)]
    choices = [{"index": at, "text": "a", "finish_reason": "stop", **one} for at, one in enumerate(prompts)]
    sent, got = json.dumps({"prompt": ["a", "b", "c"]}).encode(), json.dumps({"choices": choices}).encode()
    steps = decode("openai.completions", sent, got, content_type=JSON)
    assert [(numbers(step.prompt_logprobs) or [])[1:] for step in steps] == [[-1.0, -2.0], [-0.5, -2.0], [-1.0, -2.0]]


def test_the_likeliest_tokens_may_lack_the_sampled_one() -> None:
    """llama-server and Fireworks list the likeliest alone; vLLM, which names ranks, always lists the sampled one."""
    tops = [{"id": 1, "token": "rank", "logprob": -0.1}]
    entries = [{"id": token, "token": "a", "logprob": -1.0, "top_logprobs": tops} for token in IDS]
    body = {"choices": [{**CHAT, "text": "aa", "logprobs": {"content": entries}}], "usage": {"completion_tokens": 2}}
    for protocol in ("openai.chat", "openai.completions"):
        step = read(body, {}, protocol)
        assert (numbers(step.completion_token_ids), step.extra_issues) == (IDS, ())
        assert step.top_tokens is not None
        assert step.top_tokens.ids.tolist() == [[1], [1]]
