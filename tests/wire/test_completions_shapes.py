"""/completions as servers that were not recorded send it, and damage to it. All payloads are made by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_trace.data.model import Step
from rollout_trace.wire import decode
from tests.wire.raw import JSON, SSE, sse
from tests.wire.recorded import BOUNDED, check, check_cuts, damaged, decoded, numbers, of_recording

COMPLETIONS = "openai.completions"


def arrays(*logprobs: Any, **more: Any) -> dict[str, Any]:
    """`logprobs` of the legacy shape with these numbers."""
    tokens = [f"t{at}" for at in range(len(logprobs))]
    return {"tokens": tokens, "token_logprobs": list(logprobs), "top_logprobs": None, "text_offset": [0], **more}


def choice(text: str = "x", **fields: Any) -> dict[str, Any]:
    """A finished choice."""
    return {"index": 0, "text": text, "finish_reason": "stop", **fields}


def body(*choices: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """An answer, or a chunk."""
    return {"id": "r", "object": "text_completion", "model": "m", "choices": list(choices), **fields}


def usage(prompt: int, completion: int) -> dict[str, Any]:
    """Counts."""
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def read(answer: dict[str, Any], **request: Any) -> Step:
    """The only step of an unstreamed answer."""
    (step,) = decoded(COMPLETIONS, {"prompt": "p", **request}, [answer], streamed=False)
    check(step)
    return step


def read_stream(*chunks: dict[str, Any], **request: Any) -> Step:
    """The only step of a stream."""
    (step,) = decoded(COMPLETIONS, {"prompt": "p", **request}, list(chunks), streamed=True)
    check(step)
    return step


IDS, LOGPROBS = [5, 6], [-1.0, -2.0]
SPELLED = arrays(*LOGPROBS, tokens=["token_id:5", "token_id:6"])
ENTRIES = [{"token": "a", "logprob": -1.0, "top_logprobs": []}, {"token": "b", "logprob": -2.0, "top_logprobs": []}]
# Where each server puts the two ids: the choice's fields, and what the step says of where they are from.
PLACES: dict[str, tuple[dict[str, Any], str]] = {
    "SGLang, vLLM": ({"token_ids": IDS, "logprobs": arrays(*LOGPROBS)}, "engine"),
    "Fireworks raw output": (
        {"raw_output": {"completion_token_ids": IDS, "prompt_token_ids": [1]}, "logprobs": arrays(*LOGPROBS)}, "engine",
    ),
    "LiteLLM": ({"provider_specific_fields": {"token_ids": IDS}, "logprobs": arrays(*LOGPROBS)}, "engine"),
    "Together": ({"logprobs": arrays(*LOGPROBS, token_ids=[5.0, 6.0])}, "logprobs"),
    "Fireworks legacy": ({"logprobs": arrays(*LOGPROBS, token_ids=IDS)}, "logprobs"),
    "Fireworks": (
        {"logprobs": {"content": [{**ENTRIES[0], "token_id": 5}, {**ENTRIES[1], "token_id": 6}]}}, "logprobs",
    ),
    "llama-server": ({"logprobs": {"content": [{**ENTRIES[0], "id": 5}, {**ENTRIES[1], "id": 6}]}}, "logprobs"),
    "vLLM, spelled": ({"logprobs": SPELLED}, "logprobs"),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_ids_are_found_where_each_server_puts_them(place: str) -> None:
    """Two ids and their logprobs, and whether the ids stood among the logprobs."""
    fields, source = PLACES[place]
    step = read(body(choice(**fields), usage=usage(1, 2)))
    assert (numbers(step.completion_token_ids), numbers(step.logprobs)) == (IDS, LOGPROBS)
    assert (step.token_source, step.token_issue) == (source, None)


def test_logprobs_of_other_tokens_are_not_paired() -> None:
    """Ids of the choice that are not those beside its logprobs, in any of the ways to spell these."""
    for place in ("Together", "Fireworks", "vLLM, spelled"):
        step = read(body(choice(**PLACES[place][0], token_ids=[5, 7]), usage=usage(1, 2)))
        assert (numbers(step.completion_token_ids), step.logprobs) == ([5, 7], None)
        assert step.token_issue is not None
        assert step.token_issue.message == "the ids and the logprobs are of different tokens from position 1 on."


@pytest.mark.parametrize("case", ["null", "not whole", "no id", "not spelled"])
def test_ids_of_which_one_is_missing_are_none(case: str) -> None:
    """Those of a completion, whose logprobs stay, and those of an echoed prompt: no usage need count these."""
    gaps: dict[str, dict[str, Any]] = {
        "null": arrays(*LOGPROBS, token_ids=[5, None]),
        "not whole": arrays(*LOGPROBS, token_ids=[5.0, 6.5]),
        "no id": {"content": [{**ENTRIES[0], "token_id": 5}, ENTRIES[1]]},
        "not spelled": arrays(*LOGPROBS, tokens=["token_id:5", "token_id:"]),
    }
    step = read(body(choice(logprobs=gaps[case]), usage=usage(1, 2)))
    assert (step.completion_token_ids, numbers(step.logprobs)) == (None, LOGPROBS)
    assert step.token_issue is not None
    assert step.token_issue.code == "ids_missing"
    echoed = arrays(None, -9, *LOGPROBS, token_ids=[7, None, *IDS])
    step = read(body(choice(token_ids=IDS, logprobs=echoed), usage=usage(2, 2)), echo=True)
    assert (step.prompt_token_ids, numbers(step.completion_token_ids)) == (None, IDS)
    assert numbers(step.logprobs) == LOGPROBS


def test_tensorrt_llm_without_detokenizing_gives_ids_and_no_text() -> None:
    """The text is empty, not missing."""
    step = read(body(choice("", token_ids=IDS), usage=usage(1, 2)))
    assert step.completion is not None
    assert (step.completion.content, numbers(step.completion_token_ids), step.token_issue) == ("", IDS, None)


def test_together_streams_one_id_and_one_number_a_chunk() -> None:
    """`delta.token_id` beside `logprobs`, a bare number."""
    chunks = [
        body({"index": 0, "delta": {"content": text, "token_id": at}, "logprobs": value})
        for text, at, value in (("a", 5, -1.0), ("b", 6, -2.0))
    ]
    step = read_stream(*chunks, body(choice("", finish_reason="eos"), usage=usage(1, 2)))
    assert (numbers(step.completion_token_ids), numbers(step.logprobs)) == (IDS, LOGPROBS)
    assert step.completion is not None
    assert (step.completion.content, step.finish_reason) == ("ab", "eos")


def test_together_echoes_the_prompt_beside_the_choices() -> None:
    """Its ids are the prompt's, and the choice's logprobs are left alone."""
    echoed = [{"text": "p", "logprobs": {"tokens": ["p"], "token_ids": [9.0], "token_logprobs": [None]}}]
    answer = body(choice(logprobs=arrays(*LOGPROBS, token_ids=[5.0, 6.0])), prompt=echoed, usage=usage(1, 2))
    step = read(answer, echo=True)
    assert (numbers(step.prompt_token_ids), numbers(step.completion_token_ids)) == ([9], IDS)
    assert numbers(step.logprobs) == LOGPROBS


def test_sglang_says_matched_stop() -> None:
    """It stands for `stop_reason`, as an id or a text."""
    assert read(body(choice(matched_stop=2041))).stop_reason == 2041
    assert read(body(choice(matched_stop="\n", stop_reason=None))).stop_reason == "\n"


def test_llama_servers_ids_need_a_count() -> None:
    """It leaves out tokens that end inside a character: without a usage nobody knows whether it did."""
    fields, _ = PLACES["llama-server"]
    step = read(body(choice(**fields)))
    assert step.token_issue is not None
    assert step.token_issue.code == "ids_unconfirmed"
    assert (step.completion_token_ids, step.logprobs) == (None, None)
    lossy = read(body(choice(**fields), usage=usage(1, 3)))
    assert lossy.token_issue is not None
    assert lossy.token_issue.message == "2 tokens arrived, usage says 3."


@pytest.mark.parametrize(
    ("prompt", "n", "expected"),
    [
        ("a", 2, [None, None]),
        (["a", "b"], 1, ["a", "b"]),
        (["a", "b"], 2, ["a", "a", "b", "b"]),
        ([[1, 2], [3]], 1, [[1, 2], [3]]),
        ([1, 2], 2, [None, None]),
    ],
)
def test_choices_are_numbered_prompt_by_prompt(prompt: Any, n: int, expected: list[Any]) -> None:
    """Each choice of several prompts has its own alone; one that was sent as ids is in the prompt's ids alone."""
    answer = body(*({**choice(), "index": at} for at in range(len(expected))))
    steps = decoded(COMPLETIONS, {"prompt": prompt, "n": n}, [answer], streamed=False)
    several = expected[0] is not None
    whole = prompt if isinstance(prompt[0], list) else [prompt]
    messages = [[one] if several else whole for one in expected]
    assert [step.messages for step in steps] == [one if isinstance(one[0], str) else None for one in messages]
    sent = expected if several else [prompt] * len(expected)
    assert [numbers(step.prompt_token_ids) for step in steps] == [
        one if isinstance(one[0], int) else None for one in sent
    ]


def test_a_server_that_does_not_know_n_is_not_mistaken() -> None:
    """Two prompts, n = 2, two choices: one for each prompt. Three: nobody knows whose, and all prompts are kept."""
    request = {"prompt": [[1, 2], [3]], "n": 2}
    for count, expected in ((2, [[1, 2], [3]]), (3, [None, None, None])):
        answer = body(*({**choice(), "index": at} for at in range(count)))
        steps = decoded(COMPLETIONS, request, [answer], streamed=False)
        assert [numbers(step.prompt_token_ids) for step in steps] == expected
        assert [step.messages for step in steps] == [[[1, 2], [3]] if one is None else None for one in expected]


def test_a_prompt_of_ids_that_the_engine_counts_otherwise_is_not_believed() -> None:
    """It was truncated, or begun with a special token: the ids that were read are not those that were sent."""
    assert read(body(choice(), usage=usage(3, 1)), prompt=[7, 8]).prompt_token_ids is None
    assert numbers(read(body(choice(), usage=usage(2, 1)), prompt=[7, 8]).prompt_token_ids) == [7, 8]
    told = read(body(choice(prompt_token_ids=[0, 7, 8]), usage=usage(3, 1)), prompt=[7, 8])
    assert numbers(told.prompt_token_ids) == [0, 7, 8]


ECHOES: dict[str, tuple[dict[str, Any], list[int] | None, list[float] | None, str | None]] = {
    # The choice; ids, logprobs and issue with a prompt of two tokens and a completion of two.
    "both, ids of both known": (
        {"token_ids": IDS, "prompt_token_ids": [1, 2], "logprobs": arrays(None, -9, -1, -2)}, IDS, LOGPROBS, None,
    ),
    "both, counted": ({"logprobs": arrays(None, -9, -1, -2)}, None, LOGPROBS, "ids_missing"),
    "both, the first is a number": (
        {"token_ids": IDS, "prompt_token_ids": [1, 2], "logprobs": arrays(0.0, -9, -1, -2)}, IDS, LOGPROBS, None,
    ),
    "spelled": (
        {"logprobs": arrays(None, -9, -1, -2, tokens=[f"token_id:{i}" for i in (1, 2, 5, 6)])}, IDS, LOGPROBS, None,
    ),
    "the completion alone": ({"token_ids": IDS, "logprobs": arrays(-1, -2)}, IDS, LOGPROBS, None),
    "one too few": (
        {"token_ids": IDS, "prompt_token_ids": [1, 2], "logprobs": arrays(None, -1, -2)}, IDS, None, "echo_unresolved",
    ),
    "one too many": ({"logprobs": arrays(None, -8, -9, -1, -2)}, None, None, "echo_unresolved"),
}  # fmt: skip


@pytest.mark.parametrize("case", ECHOES)
@pytest.mark.parametrize("streamed", [False, True])
def test_echoed_logprobs_are_cut_only_where_their_number_is_certain(case: str, streamed: bool) -> None:
    """Cut where the counts add up, withheld with their numbers where they do not."""
    fields, ids, logprobs, issue = ECHOES[case]
    if streamed:
        step = read_stream(body(choice(**fields)), body(usage=usage(2, 2)), echo=True)
    else:
        step = read(body(choice(**fields), usage=usage(2, 2)), echo=True)
    assert (numbers(step.completion_token_ids), numbers(step.logprobs)) == (ids, logprobs)
    assert (None if step.token_issue is None else step.token_issue.code) == issue
    assert step.completion is not None
    assert step.completion.content == "x"
    if case == "spelled":
        assert numbers(step.prompt_token_ids) == [1, 2]


def test_an_echo_of_two_samples_is_cut_by_the_ids_and_not_by_the_usage() -> None:
    """The usage counts both choices: without ids nobody knows where each prompt ends."""
    both = [{**choice(logprobs=arrays(None, -9, -1)), "index": at} for at in range(2)]
    steps = decoded(
        COMPLETIONS, {"prompt": "p", "n": 2, "echo": True}, [body(*both, usage=usage(2, 2))], streamed=False
    )
    assert {step.token_issue.code for step in steps if step.token_issue} == {"echo_unresolved"}
    told = [{**one, "token_ids": [5], "prompt_token_ids": [1, 2]} for one in both]
    steps = decoded(
        COMPLETIONS, {"prompt": "p", "n": 2, "echo": True}, [body(*told, usage=usage(2, 2))], streamed=False
    )
    assert [numbers(step.logprobs) for step in steps] == [[-1.0]] * 2


def test_a_streamed_echo_comes_with_the_first_chunk() -> None:
    """More logprobs than ids there are no gap, even where no usage comes; elsewhere they are."""
    first = {
        **choice("p a", token_ids=[5], prompt_token_ids=[1, 2], logprobs=arrays(None, -9, -1)),
        "finish_reason": None,
    }
    second = choice("b", token_ids=[6], logprobs=arrays(-2))
    step = read_stream(body(first), body(second), echo=True)
    assert (numbers(step.completion_token_ids), numbers(step.logprobs), step.token_issue) == (IDS, LOGPROBS, None)
    swapped = [{**first, "logprobs": arrays(None, -9)}, {**second, "logprobs": arrays(-1, -2)}]
    step = read_stream(*map(body, swapped), echo=True)
    assert step.token_issue is not None
    assert step.logprobs is None


def test_alternatives_of_another_number_are_left_out() -> None:
    """They cannot be told which token they belong to."""
    one_too_few = arrays(*LOGPROBS, top_logprobs=[{"a": -1.0}])
    step = read(body(choice(token_ids=IDS, logprobs=one_too_few)))
    assert (numbers(step.logprobs), step.top_logprobs) == (LOGPROBS, None)
    whole = arrays(*LOGPROBS, top_logprobs=[{"a": -1.0, "b": -3}, None])
    step = read(body(choice(token_ids=IDS, logprobs=whole)))
    assert step.top_logprobs == [[{"token": "a", "logprob": -1.0}, {"token": "b", "logprob": -3}], []]


def test_errors_in_a_stream_keep_what_came() -> None:
    """An error object after a chunk, and an event that is no JSON."""
    chunk = {**choice(token_ids=[5]), "finish_reason": None}
    step = read_stream(body(chunk), {"error": {"message": "out of memory", "type": "server_error"}})
    assert (step.status, numbers(step.completion_token_ids)) == ("error", [5])
    assert step.error is not None
    assert step.error.message == "out of memory"
    (broken,) = decode(COMPLETIONS, b"{}", sse(body(chunk), b"<html>"), content_type=SSE)
    assert broken.status == "error"
    assert broken.error is not None
    assert broken.error.type == "InvalidJSON"


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"", "error"), (b"{}", "error"), (b"[]", "error"), (b"null", "error"), (b"<html>", "error"),
        (b'{"choices": []}', "error"), (b'{"choices": null, "error": "no"}', "error"),
        (b'{"detail": "Not Found"}', "error"), (b'{"choices": [{}]}', "ok"),
    ],
)  # fmt: skip
def test_what_is_no_completion_is_an_error(answer: bytes, status: str) -> None:
    """One step, and the bytes are in its error."""
    (step,) = decode(COMPLETIONS, b"{}", answer, content_type=JSON)
    check(step)
    assert step.status == status


@pytest.mark.parametrize(
    "request_body", [b"", b"[]", b"{", b'{"prompt": 5, "n": "2"}', b'{"prompt": [1, "a"], "n": -1}']
)
def test_a_request_that_cannot_be_read_costs_only_what_it_says(request_body: bytes) -> None:
    """The answer is decoded all the same."""
    answer = json.dumps(body(choice(token_ids=IDS, logprobs=arrays(*LOGPROBS)))).encode()
    (step,) = decode(COMPLETIONS, request_body, answer, content_type=JSON)
    assert numbers(step.completion_token_ids) == IDS


def test_unstreamed_choices_of_one_index_are_not_one_completion() -> None:
    """A server that numbers every choice 0 still gives two completions."""
    answer = body(choice("a", token_ids=[5]), choice("b", token_ids=[6]))
    steps = decoded(COMPLETIONS, {"prompt": "p", "n": 2}, [answer], streamed=False)
    assert [numbers(step.completion_token_ids) for step in steps] == [[5], [6]]


def test_a_hand_made_stream_cut_anywhere_gives_what_came() -> None:
    """Together's chunks, with line ends of every kind."""
    chunks = [body({"index": 0, "delta": {"content": "é", "token_id": at}, "logprobs": -at}) for at in range(1, 5)]
    for end in (b"\n", b"\r\n", b"\r"):
        check_cuts(COMPLETIONS, b'{"prompt": "p"}', sse(*chunks, body(choice(""))).replace(b"\n", end))


RECORDED = [
    "vllm/completions_echo_ids",
    "vllm/completions_n2",
    "vllm/completions_batch_prompts",
    "vllm/completions_n2_stream",
]
RECORDED += ["llama_server/oai_completions_ids", "llama_server/completions_n2_stream", "vllm/completions_tokens_as_ids"]


@BOUNDED
@given(st.data())
def test_a_damaged_answer_is_still_a_step_that_keeps_the_rules(data: st.DataObject) -> None:
    """Fields and items deleted, doubled, or of another type, in answers and requests."""
    request, values, streamed = of_recording(COMPLETIONS, data.draw(st.sampled_from(RECORDED)))
    request, *values = data.draw(damaged([request, *values])) if data.draw(st.booleans()) else (
        request, *data.draw(damaged(values)),
    )  # fmt: skip
    steps = decoded(COMPLETIONS, request, values or [None], streamed=streamed)
    for step in steps:
        check(step)
        if len(steps) == 1 and step.status == "ok" and step.usage is not None and step.usage.output is not None:
            ids = step.completion_token_ids
            assert ids is None or len(ids) == step.usage.output


# Places of other engines than vLLM: read part by part, as strictly as the protocol's own fields.


def elsewhere(*ids: Any, name: str = "provider_specific_fields", **fields: Any) -> dict[str, Any]:
    """A chunk with ids in another place than vLLM's."""
    return choice(fields.pop("text", "a"), **{name: {"token_ids": list(ids)}}, **fields)


def going_on(part: dict[str, Any]) -> dict[str, Any]:
    """The same, of a choice that has not ended."""
    return {**part, "finish_reason": None}


def streamed(*parts: dict[str, Any]) -> Step:
    """The only step of a stream of these bodies."""
    (step,) = decoded(COMPLETIONS, {"prompt": "p", "stream": True}, list(parts), streamed=True)
    return step


def ids_of(step: Step) -> list[int] | None:
    return None if step.completion_token_ids is None else step.completion_token_ids.tolist()


def test_ids_of_several_places_in_one_stream_are_all_taken() -> None:
    native = going_on(choice("ab", token_ids=[1, 2]))
    assert ids_of(streamed(body(native), body(elsewhere(3)))) == [1, 2, 3]
    assert ids_of(streamed(body(going_on(choice("", token_ids=[]))), body(elsewhere(3)))) == [3]


@pytest.mark.parametrize("wrong", [{"token_ids": {"0": 3}}, {"token_ids": [3.5]}, {"token_ids": [True]}, "x", [[3]]])
def test_something_else_in_a_place_of_ids_is_a_fault(wrong: Any) -> None:
    """It may stand for ids: those of the other chunks are not the completion's."""
    step = streamed(body(going_on(elsewhere(1, 2))), body(choice("c", provider_specific_fields=wrong)))
    assert ids_of(step) is None
    assert step.token_issue is not None
    assert step.token_issue.code == "response_malformed"
    assert "provider_specific_fields" in step.token_issue.message


def test_no_tokens_are_not_missing_ids() -> None:
    """An empty list says that nothing was sampled; and the counts of all choices are compared with the usage."""
    step = read(body(elsewhere(text=""), usage=usage(1, 0)))
    assert (ids_of(step), step.token_issue) == ([], None)
    answer = body(elsewhere(1), elsewhere(text="", index=1), usage=usage(1, 3))
    steps = decoded(COMPLETIONS, {"prompt": "p", "n": 2}, [answer], streamed=False)
    assert [step.token_issue.code if step.token_issue else None for step in steps] == ["usage_differs"] * 2
    assert [ids_of(step) for step in steps] == [None, None]


def test_two_choices_of_one_index_keep_their_own_ids() -> None:
    """A server's mistake: each is a completion of its own."""
    answer = body(elsewhere(1), elsewhere(2))
    steps = decoded(COMPLETIONS, {"prompt": "p", "n": 2}, [answer], streamed=False)
    assert [ids_of(step) for step in steps] == [[1], [2]]


def test_ids_after_an_error_are_not_read() -> None:
    step = streamed(body(going_on(elsewhere(1, 2))), {"error": {"message": "boom"}}, body(elsewhere(3)))
    assert (step.status, ids_of(step)) == ("error", [1, 2])


def test_ids_of_the_whole_body_must_be_a_list() -> None:
    step = read({**body(choice()), "__verbose": {"tokens": 5}})
    assert ids_of(step) is None
    assert step.token_issue is not None
    assert "`__verbose.tokens`" in step.token_issue.message


def test_ids_beside_the_choices_of_a_stream_may_come_without_choices() -> None:
    """In its last body, with the usage."""
    last = {**body(usage=usage(1, 2)), "__verbose": {"tokens": [5, 6]}}
    assert ids_of(streamed(body(choice("ab")), last)) == [5, 6]
