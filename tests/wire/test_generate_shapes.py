"""/generate of SGLang and /inference/v1/generate of vLLM: the recorded refusals, and payloads made by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_trace.data.model import Completion, Step, ToolCall
from rollout_trace.wire import decode, generate
from rollout_trace.wire.facts import RequestFacts
from tests.wire.raw import JSON, SSE, sse
from tests.wire.recorded import (
    BOUNDED,
    check,
    check_cuts,
    damaged,
    decoded,
    differing,
    numbers,
    recorded,
    rows,
    steps_of,
)

GENERATE = "sglang.generate"

# Name; prompt ids; completion ids; logprobs; code of the token issue or status of an error.
TABLE = """
vllm/generate_n2               -  -  -  error:403
vllm/generate_stream           -  -  -  error:403
vllm/generate_text             -  -  -  error:403
vllm/generate_tokens           -  -  -  error:403
vllm/generate_tokens_promptlp  -  -  -  error:403
"""
TEXTS, IDS, LOGPROBS = [" a", " b", "", " c"], [5, 6, 7, 6], [-1.0, -2.0, -0.5, 0.0]
PROMPT = [1, 2, 3]


def info(size: int = 4, *, since: int = 0, **fields: Any) -> dict[str, Any]:
    """`meta_info` of the first tokens; lists begin with token `since`."""
    triples = [[value, at, None] for value, at in zip(LOGPROBS, IDS, strict=True)]
    tops = [[[value, at, "t"], [-9.0, 99, None]] for value, at in zip(LOGPROBS, IDS, strict=True)]
    return {
        "id": "abc",
        "finish_reason": {"type": "stop", "matched": 6} if size == 4 else None,
        "prompt_tokens": 3,
        "completion_tokens": size,
        "cached_tokens": 2,
        "weight_version": "7",
        "input_token_logprobs": [[None, 1, None], [-3.0, 2, None], [-3.0, 3, None]],
        "output_token_logprobs": triples[since:size],
        "output_top_logprobs": tops[since:size],
        **fields,
    }


def sample(size: int = 4, **fields: Any) -> dict[str, Any]:
    """An unstreamed answer, or a cumulative chunk."""
    return {"text": "".join(TEXTS[:size]), "output_ids": IDS[:size], "meta_info": info(size), **fields}


def cumulative(*sizes: int) -> list[dict[str, Any]]:
    """The chunks of a stream in which each repeats what came before."""
    return [sample(size) for size in sizes]


def incremental(*sizes: int) -> list[dict[str, Any]]:
    """The same with `--incremental-streaming-output`."""
    return [
        {"text": "".join(TEXTS[old:new]), "output_ids": IDS[old:new], "meta_info": info(new, since=old)}
        for old, new in zip((0, *sizes), sizes, strict=False)
    ]


def mixed(*sizes: int) -> list[dict[str, Any]]:
    """The same with the `--stream-output` of older releases: only the ids are incremental."""
    return [
        {**sample(new), "output_ids": IDS[old:new]} for old, new in zip((0, *sizes), sizes, strict=False)
    ]  # fmt: skip


MODES = {"cumulative": cumulative, "incremental": incremental, "mixed": mixed}


def steps(answer: Any, *, streamed: bool = False, **request: Any) -> list[Step]:
    """The steps of an answer, or of its chunks."""
    found = decoded(GENERATE, {"text": "p", **request}, answer if streamed else [answer], streamed=streamed)
    for step in found:
        check(step)
    return found


def read(answer: Any, **request: Any) -> Step:
    """The only step of an unstreamed answer."""
    (step,) = steps(answer, **request)
    return step


def read_stream(chunks: list[Any], **request: Any) -> Step:
    """The only step of a stream."""
    (step,) = steps(chunks, streamed=True, **request)
    return step


def test_the_table_names_every_recorded_exchange() -> None:
    """All of them are refusals: the server had not been started with --enable-scale-out."""
    assert sorted(rows(TABLE)) == sorted(recorded(GENERATE))
    for name, row in rows(TABLE).items():
        (step,) = steps_of(GENERATE, name)
        said = json.loads(recorded(GENERATE)[name].response)["error"]
        assert step.error is not None
        assert f"error:{step.error.status}" == row[3]
        assert (step.error.message, step.error.type) == (said["message"], "PermissionDeniedError")
        assert (step.status, step.completion, step.prompt_token_ids) == ("error", None, None)


def test_an_answer_of_sglang() -> None:
    """Text, ids, logprobs, alternatives, reasons, counts, the version of the weights, and the prompt's ids."""
    step = read(sample())
    assert (numbers(step.completion_token_ids), numbers(step.logprobs)) == (IDS, LOGPROBS)
    assert (numbers(step.prompt_token_ids), step.token_source, step.token_issue) == (PROMPT, "engine", None)
    assert step.top_logprobs is not None
    assert step.top_logprobs[0] == [
        {"token": "t", "token_id": 5, "logprob": -1.0},
        {"token_id": 99, "logprob": -9.0},
    ]
    assert step.completion is not None
    assert (step.completion.content, step.messages) == (" a b c", ["p"])
    assert (step.status, step.finish_reason, step.stop_reason, step.response_id) == ("ok", "stop", 6, "abc")
    assert step.usage is not None
    assert (step.usage.input, step.usage.output, step.usage.cache_read) == (3, 4, 2)


@pytest.mark.parametrize(
    ("answer", "request_fields", "expected"),
    [
        (sample(prompt_token_ids=[9, 8, 7]), {}, [9, 8, 7]),
        (sample(meta_info=info(prompt_token_ids=[9, 8, 7])), {}, [9, 8, 7]),
        (sample(), {}, PROMPT),
        (sample(meta_info=info(input_token_logprobs=[[None, 3, None]])), {}, None),
        (sample(meta_info=info(input_token_logprobs=None)), {"text": None, "input_ids": [1, 2, 3]}, PROMPT),
        (sample(meta_info=info(input_token_logprobs=None)), {"text": None, "input_ids": [1, 2]}, None),
        (sample(meta_info=info(input_token_logprobs=None)), {"text": None, "input_ids": [[1, 2, 3]]}, PROMPT),
    ],
)
def test_where_the_prompts_ids_are(answer: Any, request_fields: Any, expected: Any) -> None:
    """As the engine says, else those of its logprobs if they cover the prompt, else as sent if it counts as many."""
    assert numbers(read(answer, **request_fields).prompt_token_ids) == expected


def test_ids_may_stand_in_the_logprobs_alone() -> None:
    """Older releases give no `output_ids`, and with `skip_tokenizer_init` there is no text."""
    step = read({"text": " a b c", "meta_info": info()})
    assert (numbers(step.completion_token_ids), step.token_source) == (IDS, "logprobs")
    bare = read({"output_ids": IDS, "meta_info": info(output_token_logprobs=None, output_top_logprobs=None)})
    assert (numbers(bare.completion_token_ids), bare.logprobs, bare.token_source) == (IDS, None, "engine")
    assert bare.completion is not None
    assert bare.completion.content is None


def test_logprobs_of_other_tokens_are_not_paired() -> None:
    """As many, but not the same."""
    step = read(sample(output_ids=[5, 6, 8, 6]))
    assert (numbers(step.completion_token_ids), step.logprobs, step.top_logprobs) == ([5, 6, 8, 6], None, None)
    assert step.token_issue is not None
    assert step.token_issue.message == "the ids and the logprobs are of different tokens from position 2 on."
    unreadable = info(output_token_logprobs=[[-1.0, 5, None], [-2.0, 9, None], [-0.5, None, None], [0.0, 6, None]])
    step = read(sample(meta_info=unreadable))
    assert step.token_issue is not None
    assert (step.token_issue.code, step.logprobs) == ("ids_differ", None)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (sample(output_ids=IDS[:3]), "usage_differs"),
        (sample(meta_info=info(completion_tokens=5)), "usage_differs"),
        (sample(meta_info=info(output_token_logprobs=[[-1.0, 5]])), "lengths_differ"),
        (sample(meta_info=info(output_token_logprobs=[["x", i, None] for i in IDS])), "logprobs_incomplete"),
        (sample(meta_info=info(output_token_logprobs=[[0.5, i, None] for i in IDS])), "logprobs_positive"),
        (sample(meta_info=info(output_token_logprobs=[None, 5, [], {}])), "logprobs_incomplete"),
        (sample(output_ids=["5"]), "response_malformed"),
        (sample(output_ids=[10**400, 6, 7, 6]), "ids_differ"),
        (sample(output_ids=[-1, 6, 7, 6], meta_info=info(output_token_logprobs=None)), "ids_out_of_range"),
    ],
)
def test_what_breaks_a_rule_is_withheld(answer: Any, code: str) -> None:
    """With the code of the rule."""
    step = read(answer)
    assert step.token_issue is not None
    assert step.token_issue.code == code


def test_a_list_of_answers() -> None:
    """Two prompts, two samples each: prompt by prompt, each with its own counts; the usage is of the whole call."""
    answers = [sample() for _ in range(4)]
    found = steps(answers, text=["p", "q"], sampling_params={"n": 2})
    assert [step.messages for step in found] == [["p"], ["p"], ["q"], ["q"]]
    assert [step.choice for step in found] == [0, 1, 2, 3]
    assert [numbers(step.completion_token_ids) for step in found] == [IDS] * 4
    assert found[0].usage is not None
    assert (found[0].usage.input, found[0].usage.output) == (6, 16)
    by_ids = [sample(meta_info=info(input_token_logprobs=None)) for _ in range(2)]
    found = steps(by_ids, text=None, input_ids=[[1, 2, 3], [4, 5, 6]])
    assert [numbers(step.prompt_token_ids) for step in found] == [[1, 2, 3], [4, 5, 6]]


def test_one_bad_sample_leaves_its_siblings_alone() -> None:
    """Each is counted by itself."""
    good, bad = steps([sample(), sample(output_ids=IDS[:2])], sampling_params={"n": 2})
    assert (numbers(good.completion_token_ids), good.token_issue) == (IDS, None)
    assert bad.completion_token_ids is None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sizes", [(4,), (1, 2, 3, 4), (2, 4), (1, 1, 4), (2, 4, 4), (3, 4)])
def test_a_stream_equals_the_unstreamed_answer(mode: str, sizes: tuple[int, ...]) -> None:
    """Cumulative, incremental or mixed: which it is, is told from the content and the counts."""
    assert differing(read_stream(MODES[mode](*sizes)), read(sample())) == set()


@BOUNDED
@given(st.data())
def test_any_stream_equals_its_unstreamed_answer(data: st.DataObject) -> None:
    """Few different ids and texts, so that new tokens often look like a repetition of the old."""
    size = data.draw(st.integers(1, 7))
    ids = data.draw(st.lists(st.sampled_from([5, 6]), min_size=size, max_size=size))
    logprobs = data.draw(st.lists(st.sampled_from([-1.0, -2.0]), min_size=size, max_size=size))
    cuts = sorted(data.draw(st.sets(st.integers(1, size), min_size=1)) | {size})
    mode = data.draw(st.sampled_from(list(MODES)))

    def chunk(old: int, new: int) -> dict[str, Any]:
        first, ids_first = old if mode == "incremental" else 0, 0 if mode == "cumulative" else old
        triples = [[value, at, None] for value, at in zip(logprobs, ids, strict=True)]
        told = info(new, output_token_logprobs=triples[first:new], output_top_logprobs=None)
        told["finish_reason"] = {"type": "length", "length": size} if new == size else None
        return {
            "text": "".join("ab"[at - 5] for at in ids[first:new]), "output_ids": ids[ids_first:new], "meta_info": told,
        }  # fmt: skip

    step = read_stream([chunk(old, new) for old, new in zip((0, *cuts), cuts, strict=False)])
    assert (numbers(step.completion_token_ids), numbers(step.logprobs)) == (ids, logprobs)
    assert step.completion is not None
    assert step.completion.content == "".join("ab"[at - 5] for at in ids)
    assert step.token_issue is None


def test_chunks_that_no_count_explains_are_not_trusted() -> None:
    """A lost chunk, a count that is missing, and one that is wrong."""
    lost = [incremental(1, 2, 4)[at] for at in (0, 2)]
    uncounted = [
        {**chunk, "meta_info": {**chunk["meta_info"], "completion_tokens": None}} for chunk in incremental(1, 4)
    ]
    backwards = cumulative(3, 2)
    for chunks in (lost, uncounted, backwards):
        step = read_stream(chunks)
        assert (step.completion_token_ids, step.logprobs) == (None, None)
        assert step.token_issue is not None
        assert step.token_issue.code == "stream_inconsistent"
    last = read_stream(backwards).token_issue
    assert last is not None
    assert last.message == "a chunk of 2 tokens came after 3 with a count of 2."


def test_streams_of_several_samples_are_told_apart_by_their_index() -> None:
    """Chunks of two samples that take turns."""
    chunks = [{**chunk, "index": at} for chunk in incremental(1, 4) for at in (1, 0)]
    one, other = steps(chunks, streamed=True, sampling_params={"n": 2})
    assert differing(one, other) <= {"choice"}
    assert numbers(one.completion_token_ids) == IDS


def test_an_aborted_sample_keeps_its_tokens() -> None:
    """A partial rollout that the engine ended itself is a whole answer, as in chat; a refusal is an error."""
    partial = sample(2, meta_info=info(2, finish_reason={"type": "abort", "message": "paused"}))
    step = read(partial)
    assert (step.status, step.finish_reason, numbers(step.completion_token_ids)) == ("ok", "abort", IDS[:2])
    refused = {"type": "abort", "message": "queue is full", "status_code": 503, "err_type": "ServiceUnavailable"}
    step = read(sample(2, meta_info=info(2, finish_reason=refused)))
    assert step.error is not None
    assert (step.status, step.error.message, step.error.status) == ("error", "queue is full", 503)


@pytest.mark.parametrize("mode", MODES)
def test_a_stream_cut_at_any_byte_gives_what_came(mode: str) -> None:
    """The tokens of the chunks that arrived, in every mode."""
    check_cuts(GENERATE, b'{"text": "p"}', sse(*MODES[mode](1, 3, 4)))


def vllm(*choices: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """An answer of vLLM, or a chunk."""
    return {"request_id": "req", "choices": list(choices), **fields}


def tokens(ids: list[int], logprobs: list[float] | None = None, **fields: Any) -> dict[str, Any]:
    """A choice of vLLM's."""
    pairs = zip(ids, logprobs or (), strict=False)
    content = [
        {"token": f"token_id:{at}", "token_id": at, "logprob": v, "rank": 1, "top_logprobs": []} for at, v in pairs
    ]
    return {"index": 0, "token_ids": ids, "logprobs": {"content": content} if logprobs else None, **fields}


USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
VERSIONS = [{"version": "1", "start": 0, "end": 2}, {"version": "2", "start": 2, "end": 4}]


def test_an_answer_of_vllm() -> None:
    """Ids, logprobs and reasons; the prompt's ids as they were sent, or as they came back."""
    answer = vllm(tokens(IDS, LOGPROBS, finish_reason="length", weight_versions=VERSIONS), usage=USAGE)
    step = read(answer, text=None, token_ids=PROMPT)
    assert (numbers(step.completion_token_ids), numbers(step.logprobs)) == (IDS, LOGPROBS)
    assert (numbers(step.prompt_token_ids), step.token_issue, step.token_source) == (PROMPT, None, "engine")
    assert (step.status, step.finish_reason, step.response_id) == ("ok", "length", "req")
    told = read({**answer, "prompt_token_ids": [1, 2, 9]}, text=None, token_ids=PROMPT)
    assert numbers(told.prompt_token_ids) == [1, 2, 9]
    text = read(vllm({**tokens(IDS), "text": " a b c"}), text=None, token_ids=PROMPT)
    assert text.completion is not None
    assert (text.completion.content, numbers(text.completion_token_ids)) == (" a b c", IDS)


MESSAGE = {
    "role": "assistant",
    "content": None,
    "reasoning": "I look.",
    "refusal": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}],
}


def test_a_parsed_answer_of_vllm() -> None:
    """`output_mode="derender"`, from 0.33 on: the message is the completion, its ids and versions stand beside it."""
    choice = {**tokens(IDS, LOGPROBS), "message": MESSAGE, "finish_reason": "tool_calls", "weight_versions": VERSIONS}
    step = read(vllm(choice, output_mode="derender", usage=USAGE), text=None, token_ids=PROMPT)
    call = ToolCall(id="c1", name="look", arguments='{"at": 1}')
    assert step.completion == Completion(content=None, reasoning="I look.", tool_calls=(call,))
    assert (numbers(step.completion_token_ids), numbers(step.logprobs)) == (IDS, LOGPROBS)
    assert (step.finish_reason, step.token_issue, step.policy_version) == ("tool_calls", None, "1,2")
    assert step.extra == {"output_mode": "derender"}
    # Ids are hidden with the reasoning: which weights sampled what is not known then, but which they were.
    hidden = {**choice, "token_ids": None, "logprobs": None, "message": {"role": "assistant", "content": "a"}}
    step = read(vllm(hidden, output_mode="derender"), text=None, token_ids=PROMPT)
    assert step.completion is not None
    assert (step.completion.content, step.completion_token_ids, step.policy_version) == ("a", None, "1,2")
    assert [(one.field, one.code) for one in step.extra_issues] == [("policy_spans", "ids_missing")]


def test_alternatives_of_vllm_are_one_more_where_the_sampled_token_is_none_of_the_likeliest() -> None:
    """From 0.33 on: the sampled token, then the likeliest k, it among them or not. The rows differ in length."""
    ranked = [[(5, -1.0, 1), (8, -1.5, 2)], [(6, -2.0, 9), (8, -0.5, 1), (9, -0.7, 2)]]
    content = [
        {"token_id": at, "logprob": value, "rank": rank,
         "top_logprobs": [{"token_id": i, "logprob": v, "rank": r} for i, v, r in row]}
        for row in ranked for at, value, rank in row[:1]
    ]  # fmt: skip
    choice = {"index": 0, "token_ids": [5, 6], "logprobs": {"content": content}, "finish_reason": "stop"}
    step = read(vllm(choice), text=None, token_ids=PROMPT, sampling_params={"logprobs": 2})
    assert step.top_tokens is not None
    assert step.top_tokens.ids.tolist() == [[5, 8, -1], [6, 8, 9]]
    assert step.extra_issues == ()


def test_the_version_of_the_weights() -> None:
    """As the engine names it; where the weights changed on the way, every one of them in order."""
    changed = vllm(tokens(IDS, LOGPROBS, weight_versions=VERSIONS))
    updated = [
        {**chunk, "meta_info": {**chunk["meta_info"], "weight_version": at}}
        for at, chunk in enumerate(cumulative(2, 4))
    ]
    for body, streamed, expected in (
        (json.dumps(sample()).encode(), False, "7"),
        (json.dumps(sample(meta_info=info(weight_version=None))).encode(), False, None),
        (json.dumps(changed).encode(), False, "1,2"),
        (sse(*updated), True, "0,1"),
    ):
        facts = generate.decode(body, streamed=streamed, status=200, request=RequestFacts())
        assert [choice.policy_version for choice in facts.choices] == [expected]


def test_ids_of_vllm_that_are_spelled_in_the_logprobs_alone() -> None:
    """`token_id:N`, as releases before `token_id` gave it."""
    choice = tokens(IDS, LOGPROBS, finish_reason="stop")
    choice["token_ids"] = None
    for entry in choice["logprobs"]["content"]:
        del entry["token_id"]
    step = read(vllm(choice))
    assert (numbers(step.completion_token_ids), step.token_source) == (IDS, "logprobs")


@pytest.mark.parametrize("usage", [USAGE, None])
def test_a_stream_of_vllm_equals_the_unstreamed_answer(usage: Any) -> None:
    """Deltas of ids and logprobs, the usage in a chunk of its own or not at all."""
    last = tokens(IDS[3:], LOGPROBS[3:], finish_reason="length")
    chunks = [vllm(tokens(IDS[:1], LOGPROBS[:1])), vllm(tokens(IDS[1:3], LOGPROBS[1:3])), vllm(last)]
    step = read_stream([*chunks, *([vllm(usage=usage)] if usage else [])], text=None, token_ids=PROMPT)
    whole = vllm(tokens(IDS, LOGPROBS, finish_reason="length"), usage=usage)
    assert differing(step, read(whole, text=None, token_ids=PROMPT)) == set()
    check_cuts(GENERATE, b'{"token_ids": [1, 2, 3]}', sse(*chunks))


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"", "error"), (b"{}", "error"), (b"[]", "error"), (b"null", "error"), (b"<html>", "error"), (b"[null]", "ok"),
        (b'{"error": {"message": "no"}}', "error"), (b"[5]", "ok"), (b'{"text": "a"}', "ok"),
        (b'{"choices": []}', "error"),
        (b'{"meta_info": 5}', "error"), (b'{"object": "error", "message": "no"}', "error"),
    ],
)  # fmt: skip
def test_what_is_no_sample_is_an_error(answer: bytes, status: str) -> None:
    """One step, and the bytes are in its error."""
    (step,) = decode(GENERATE, b"{}", answer, content_type=JSON)
    check(step)
    assert step.status in (status, "error")


@pytest.mark.parametrize("field", ["text", "input_ids", "token_ids", "sampling_params"])
@pytest.mark.parametrize("value", [5, 1.5, True, {"n": 0}, [], [[]], [None], "x", {"n": "2"}])
def test_a_request_of_other_types_costs_only_what_it_says(field: str, value: Any) -> None:
    """The answer is decoded all the same."""
    assert numbers(read(sample(), **{"text": None, field: value}).completion_token_ids) == IDS


def test_an_error_in_a_stream_keeps_what_came() -> None:
    """SGLang sends an object with `error`."""
    (step,) = decode(GENERATE, b"{}", sse(*cumulative(2), {"error": {"message": "no"}}), content_type=SSE)
    assert (step.status, numbers(step.completion_token_ids)) == ("error", IDS[:2])


@BOUNDED
@given(st.data())
def test_a_damaged_answer_is_still_a_step_that_keeps_the_rules(data: st.DataObject) -> None:
    """Fields and items deleted, doubled, or of another type."""
    name = data.draw(st.sampled_from(["unary", "list", "vllm", "vllm stream", *MODES]))
    others: dict[str, list[Any]] = {
        "unary": [sample()],
        "list": [[sample(), sample()]],
        "vllm": [vllm(tokens(IDS, LOGPROBS), usage=USAGE)],
        "vllm stream": [vllm(tokens(IDS[:2], LOGPROBS[:2])), vllm(tokens(IDS[2:], LOGPROBS[2:])), vllm(usage=USAGE)],
    }
    values = data.draw(damaged(others[name] if name in others else MODES[name](1, 2, 4))) or [None]
    found = decoded(GENERATE, {"text": "p"}, values, streamed=name in MODES or name == "vllm stream")
    assert found
    for step in found:
        check(step)
