"""Ids and logprobs that break a rule are withheld, never repaired, and the step says which rule with the numbers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from rollout_trace.data.model import Step, TokenIssue
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.wire import decode
from rollout_trace.wire.steps import Stores, exchange_of
from tests.wire.raw import JSON, SSE, delta, entries, read, sse, tokens, unary

KEPT, GONE = True, False


def facts(step: Step) -> tuple[list[int] | None, list[float] | None]:
    """Completion ids and logprobs as lists."""
    ids, logprobs = step.completion_token_ids, step.logprobs
    return None if ids is None else ids.tolist(), None if logprobs is None else logprobs.tolist()


def usage(output: Any) -> dict[str, Any]:
    """A usage object that counts this many sampled tokens."""
    return {"prompt_tokens": 3, "completion_tokens": output, "total_tokens": 0}


CASES: dict[str, tuple[bytes, str, str, bool, bool]] = {
    # name: answer, code, message, whether ids stay, whether logprobs stay
    "fewer than usage": (
        unary(tokens([1, 2], entries(-1, -2)), usage=usage(3)),
        "usage_differs", "2 tokens arrived, usage says 3.", GONE, GONE,
    ),
    "more than usage": (
        unary(tokens([1, 2], entries(-1, -2)), usage=usage(1)),
        "usage_differs", "2 tokens arrived, usage says 1.", GONE, GONE,
    ),
    "ids alone and usage": (
        unary(tokens([1, 2], None), usage=usage(0)),
        "usage_differs", "2 tokens arrived, usage says 0.", GONE, GONE,
    ),
    "usage of two choices": (
        unary(tokens([1, 2], entries(-1, -2)), usage=usage(4)),
        "usage_differs", "2 tokens arrived, usage says 4.", GONE, GONE,
    ),
    "fewer logprobs": (
        unary(tokens([1, 2], entries(-1))), "lengths_differ", "2 token ids but 1 logprobs.", GONE, GONE,
    ),
    "fewer logprobs, usage vouches for the ids": (
        unary(tokens([1, 2], entries(-1)), usage=usage(2)),
        "lengths_differ", "2 token ids but 1 logprobs.", KEPT, GONE,
    ),
    "fewer ids": (
        unary(tokens([1], entries(-1, -2))), "lengths_differ", "1 token ids but 2 logprobs.", GONE, GONE,
    ),
    "no entries at all": (
        unary(tokens([1], {"content": []})), "lengths_differ", "1 token ids but 0 logprobs.", GONE, GONE,
    ),
    "null logprob": (
        unary(tokens([1, 2], entries(-1, None))),
        "logprobs_incomplete", "1 of 2 logprobs are null or missing.", KEPT, GONE,
    ),
    "missing logprob": (
        unary(tokens([1], {"content": [{"token": "x"}]})),
        "logprobs_incomplete", "1 of 1 logprobs are null or missing.", KEPT, GONE,
    ),
    "NaN": (unary(tokens([1], entries(float("nan")))), "logprobs_not_finite", "a logprob is nan.", KEPT, GONE),
    "infinite": (
        unary(tokens([1, 2], entries(-1, float("-inf")))), "logprobs_not_finite", "a logprob is -inf.", KEPT, GONE,
    ),
    "beyond a double": (
        unary(tokens([1], entries(-1.25))).replace(b"-1.25", b"-1e999"),
        "logprobs_not_finite", "a logprob is -inf.", KEPT, GONE,
    ),
    "positive": (
        unary(tokens([1, 2], entries(-1, 0.5))),
        "logprobs_positive", "a logprob is 0.5; none can be above 0.", KEPT, GONE,
    ),
    "negative id": (
        unary(tokens([1, -1], entries(-1, -2))),
        "ids_out_of_range", "completion_token_ids holds -1; ids go from 0 to 2147483647.", GONE, KEPT,
    ),
    "id above int32": (
        unary(tokens([2**31], entries(-1))),
        "ids_out_of_range", "completion_token_ids holds 2147483648; ids go from 0 to 2147483647.", GONE, KEPT,
    ),
    "id above 64 bit": (
        unary(tokens([10**20], entries(-1))),
        "ids_out_of_range",
        "completion_token_ids holds 100000000000000000000; ids go from 0 to 2147483647.", GONE, KEPT,
    ),
    "bool id": (
        unary(tokens([True], entries(-1))),
        "response_malformed", "Expected `int`, got `bool` - at `$.choices[0].token_ids[0]`.", GONE, KEPT,
    ),
    "text id": (
        unary(tokens(["5"], entries(-1))),
        "response_malformed", "Expected `int`, got `str` - at `$.choices[0].token_ids[0]`.", GONE, KEPT,
    ),
    "fractional id": (
        unary(tokens([1, 2.5], entries(-1, -2))),
        "response_malformed", "Expected `int`, got `float` - at `$.choices[0].token_ids[1]`.", GONE, KEPT,
    ),
    "null id": (
        unary(tokens([None], entries(-1))),
        "response_malformed", "Expected `int`, got `null` - at `$.choices[0].token_ids[0]`.", GONE, KEPT,
    ),
    "ids are an object": (
        unary(tokens({"0": 5}, entries(-1))),
        "response_malformed", "Expected `array | null`, got `object` - at `$.choices[0].token_ids`.", GONE, KEPT,
    ),
    "text logprob": (
        unary(tokens([1], entries("-1"))),
        "response_malformed",
        "Expected `float | null`, got `str` - at `$.choices[0].logprobs.content[0].logprob`.", KEPT, GONE,
    ),
    "logprobs are a list": (
        unary(tokens([1], [-1.0])),
        "response_malformed", "Expected `float | object | null`, got `array` - at `$.choices[0].logprobs`.", KEPT, GONE,
    ),
    "no ids, not asked": (
        unary(tokens(None, None)),
        "ids_missing", "the server sent no completion token ids, and was not asked for them.", GONE, GONE,
    ),
    "no ids, but logprobs": (
        unary(tokens(None, entries(-1))),
        "ids_missing", "the server sent no completion token ids, and was not asked for them.", GONE, KEPT,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_withheld_has_a_code_and_a_sentence(case: str) -> None:
    """Each broken rule: its code, its message, and whether ids and logprobs stay."""
    answer, code, message, ids_stay, logprobs_stay = CASES[case]
    step = read(answer)
    assert step.token_issue == TokenIssue(code=code, message=message)
    assert step.status == "ok"
    assert (step.completion_token_ids is not None, step.logprobs is not None) == (ids_stay, logprobs_stay)
    assert step.completion is not None
    assert step.completion.content == "x"
    assert step.token_source == ("engine" if ids_stay else None)
    if step.logprobs is None:
        assert step.top_logprobs is None


def test_ids_that_were_asked_for_and_did_not_come() -> None:
    """The message tells a server that does not know the field from one that was never asked."""
    step = read(unary(tokens(None, None)), request=b'{"return_token_ids": true}')
    assert step.token_issue == TokenIssue(
        code="ids_missing", message="the server sent no completion token ids, although it was asked for them."
    )


ASKED = b'{"return_token_ids": true, "stream": true}'


@pytest.mark.parametrize("chunks", [1, 2])
def test_ids_of_an_answer_that_broke_off(chunks: int) -> None:
    """The server had no time to send what it was asked for: nothing is said against it."""
    begun = sse(delta({"role": "assistant", "content": ""}), delta({"content": "x"}))
    body = b"".join(part + b"\n\n" for part in begun.split(b"\n\n")[:chunks])
    step = read(body, request=ASKED, content_type=SSE)
    assert step.status == "abandoned"
    assert step.token_issue == TokenIssue(
        code="ids_missing", message="the answer broke off before any completion token ids came."
    )


def test_what_no_protocol_has_cannot_be_asked_for() -> None:
    """Anthropic's messages have no place for ids: nobody forgot to ask, and nothing was lost."""
    answer = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "stop_reason": "end_turn",
        "content": [{"type": "text", "text": "hi"}], "usage": {"input_tokens": 3, "output_tokens": 2},
    }  # fmt: skip
    (step,) = decode("anthropic.messages", b"{}", json.dumps(answer).encode(), content_type=JSON)
    assert step.token_issue == TokenIssue(code="ids_missing", message="anthropic.messages has no place for token ids.")
    trajectory = Trajectory(steps=[step, read(unary(tokens(None, None)))])
    grades = {finding.step_id: finding.grade for finding in trajectory.check() if finding.code == "ids_missing"}
    assert list(grades.values()) == ["info", "fatal"]


def test_ids_and_logprobs_in_different_chunks_that_a_usage_counts() -> None:
    """Fewer logprobs than ids in one chunk and more in the next: all came, as the usage says."""
    parts = [
        delta({"content": "a"}, token_ids=[1, 2], logprobs=entries(-1.0)),
        delta({"content": "b"}, token_ids=[3], logprobs=entries(-2.0, -3.0), finish_reason="stop"),
    ]
    counted = {"id": "r", "model": "m", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 3}}
    step = read(sse(*parts, counted), content_type=SSE)
    assert step.token_issue is None
    assert step.logprobs is not None
    assert step.logprobs.tolist() == [-1.0, -2.0, -3.0]
    uncounted = read(sse(*parts), content_type=SSE)
    assert uncounted.logprobs is None
    assert uncounted.completion_token_ids is None


def test_a_usage_counts_choices_that_are_whole() -> None:
    """One choice ended, the other broke off: a count of both says nothing of what came."""
    body = sse(
        delta({"content": "a"}, index=0, token_ids=[1], logprobs=entries(-1.0), finish_reason="stop"),
        delta({"content": "b"}, index=1, token_ids=[2], logprobs=entries(-2.0)),
        {"id": "r", "model": "m", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}},
        done=False,
    )
    one, other = decode("openai.chat", b"{}", body, content_type=SSE)
    assert (one.status, other.status) == ("ok", "abandoned")
    for step in (one, other):
        assert step.token_issue is None
        assert step.completion_token_ids is not None
        assert step.logprobs is not None


def test_prompt_ids_out_of_range_leave_the_completion_alone() -> None:
    """Only what is wrong is withheld."""
    step = read(unary(tokens([1], entries(-1)), prompt_token_ids=[5, -2]))
    assert step.token_issue == TokenIssue(
        code="ids_out_of_range", message="prompt_token_ids holds -2; ids go from 0 to 2147483647."
    )
    assert step.prompt_token_ids is None
    assert facts(step) == ([1], [-1.0])


def test_the_first_rule_broken_is_named() -> None:
    """With several faults the one nearest to the cause is told."""
    step = read(unary(tokens([-1], entries(2.0, None)), usage=usage(7)))
    assert step.token_issue is not None
    assert step.token_issue.code == "ids_out_of_range"
    assert facts(step) == (None, None)


def test_a_protocol_without_a_decoder_keeps_the_bytes() -> None:
    """Nothing is lost: request and response stay with the step, which says that they were not read."""

    def read(request: bytes, response: bytes, status: int) -> Step:
        ((step,), _) = exchange_of(
            "c", "openai.decisions", request, response, content_type=JSON, status=status, stores=Stores()
        )
        return step

    step = read(b'{"model": "m", "input": "hi"}', b'{"id": "r"}', 200)
    assert step.token_issue == TokenIssue(
        code="protocol_not_decoded",
        message="this version has no decoder for openai.decisions: the bytes are kept, ids and text are not read.",
    )
    assert (step.request_bytes, step.response_bytes) == (b'{"model": "m", "input": "hi"}', b'{"id": "r"}')
    assert (step.status, step.model, step.protocol) == ("ok", "m", "openai.decisions")
    assert read(b"{}", b'{"error": "no"}', 500).status == "error"


def test_an_unknown_protocol_is_an_error_that_names_the_known_ones() -> None:
    """The only thing that raises is the caller's own mistake."""
    with pytest.raises(ValueError, match=r"protocol 'openai\.chats' is not known; known: openai\.chat, "):
        decode("openai.chats", b"{}", b"{}")


def test_the_edges_that_are_no_fault() -> None:
    """Id 0, the largest int32, logprob 0 and -0, whole-number logprobs, -9999 and an empty completion are fine."""
    step = read(unary(tokens([0, 2**31 - 1, 5, 6], entries(0.0, -0.0, -2, -9999.0)), usage=usage(4)))
    assert step.token_issue is None
    assert facts(step) == ([0, 2**31 - 1, 5, 6], [0.0, -0.0, -2.0, -9999.0])
    nothing = read(unary(tokens([], {"content": []}), usage=usage(0)))
    assert nothing.token_issue is None
    assert facts(nothing) == ([], [])


def test_a_faulty_choice_leaves_its_sibling_alone() -> None:
    """With n = 2 each choice is judged by itself, save for the count, which is of both."""
    answer = unary(tokens([1, 2], entries(-1, -2)), tokens([3], entries(1.0)), usage=usage(3))
    good, bad = decode("openai.chat", b"{}", answer, content_type=JSON)
    assert (good.token_issue, facts(good)) == (None, ([1, 2], [-1.0, -2.0]))
    assert bad.token_issue is not None
    assert (bad.token_issue.code, facts(bad)) == ("logprobs_positive", ([3], None))
    counted = decode("openai.chat", b"{}", answer.replace(b'"completion_tokens": 3', b'"completion_tokens": 2'))
    assert [step.token_issue and step.token_issue.message for step in counted] == [
        "3 tokens arrived, usage says 2."
    ] * 2


@pytest.mark.parametrize("output", [None, "3", 3.5, True, -1, [], {}])
def test_a_count_that_is_no_count_is_not_held_against_the_ids(output: Any) -> None:
    """Usage of another type says nothing: it is kept in `extra` where it is not null."""
    step = read(unary(tokens([1], entries(-1)), usage=usage(output)))
    assert facts(step) == ([1], [-1.0])
    assert step.usage is not None
    assert step.usage.output is None
    assert step.usage.extra == (None if output is None else {"completion_tokens": output})


def test_a_cut_stream_is_not_measured_against_usage() -> None:
    """Counts that come while the stream still runs are of what came so far, and are no fault."""
    chunk = {**delta({"content": "x"}, token_ids=[1], logprobs=entries(-1)), "usage": usage(9)}
    step = read(sse(chunk, done=False))
    assert (step.status, step.token_issue, facts(step)) == ("abandoned", None, ([1], [-1.0]))


@pytest.mark.parametrize("value", [-1e300, -3.5e38])
def test_a_logprob_that_overflows_float32_is_not_finite(value: float) -> None:
    """Every logprob that is handed out is finite, in the type it is handed out in."""
    with np.errstate(over="ignore"):
        step = read(unary(tokens([1], entries(value))))
    assert step.token_issue is not None
    assert facts(step) == ([1], None)


def test_large_positive_logprobs_are_positive() -> None:
    """However large: none above 0 is handed out."""
    with np.errstate(over="ignore"):
        step = read(unary(tokens([1, 2], entries(1e308, 1e308))))
    assert step.token_issue is not None
    assert facts(step) == ([1, 2], None)


def test_a_chunk_that_could_not_be_read_withholds_the_ids() -> None:
    """Ids with a hole in the middle are not the completion's, and cannot be told from it where no usage comes."""
    chunks = [delta({"content": c}, token_ids=[i], logprobs=entries(-i)) for i, c in enumerate("abc", 1)]
    chunks[1]["choices"].append("junk")
    step = read(sse(*chunks, delta(finish_reason="stop")))
    assert step.token_issue is not None
    assert facts(step) == (None, None)


def test_a_chunk_of_an_unknown_choice_withholds_the_ids() -> None:
    """Ids that may be another choice's are nobody's."""
    chunks = [delta({"content": c}, token_ids=[i], logprobs=entries(-i), index=i) for i, c in enumerate("ab")]
    chunks.append(delta({"content": "c"}, token_ids=[7], logprobs=entries(-7)))
    chunks[2]["choices"][0]["index"] = "1"
    body = sse(*chunks, *(delta(finish_reason="stop", index=i) for i in range(2)), {"usage": usage(3), "choices": []})
    one, _ = decode("openai.chat", b"{}", body, content_type=SSE)
    assert one.token_issue is not None
    assert facts(one) == (None, None)


def test_unstreamed_choices_of_one_index_are_not_one_completion() -> None:
    """A server that numbers every choice 0 still gives two completions; joined they would be a text nobody sampled."""
    body = json.loads(unary(tokens([1], entries(-1)), tokens([2], entries(-2)), usage=usage(2)))
    for choice in body["choices"]:
        choice["index"] = 0
    steps = decode("openai.chat", b"{}", json.dumps(body).encode(), content_type=JSON)
    assert [facts(step) for step in steps if step.token_issue is None] in ([], [([1], [-1.0]), ([2], [-2.0])])


def test_ids_and_logprobs_of_different_chunks_are_not_paired() -> None:
    """Equal totals do not make pairs: here id 2 never had the logprob -1."""
    one = delta({"content": "a"}, token_ids=None, logprobs=entries(-1))
    other = delta({"content": "b"}, token_ids=[2], logprobs=None)
    step = read(sse(one, other, delta(finish_reason="stop")))
    assert facts(step) != ([2], [-1.0])
