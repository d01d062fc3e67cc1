"""/responses as OpenAI sends it, which was not recorded, and answers that are damaged. All payloads are made by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_trace.model import Completion, Step, ToolCall
from rollout_trace.wire import decode
from tests.wire.raw import JSON, SSE, sse
from tests.wire.recorded import BOUNDED, check, check_cuts, damaged, decoded, differing, numbers, of_recording

RESPONSES = "openai.responses"


def response(*output: Any, status: str = "completed", **fields: Any) -> dict[str, Any]:
    """A response object."""
    return {"id": "resp_1", "object": "response", "model": "m", "status": status, "output": list(output), **fields}


def text(value: str, **fields: Any) -> dict[str, Any]:
    """A part of a message."""
    return {"type": "output_text", "text": value, "annotations": [], **fields}


def message(*parts: Any, **fields: Any) -> dict[str, Any]:
    """A message item."""
    return {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": list(parts),
        **fields,
    }


def entries(*values: Any) -> list[dict[str, Any]]:
    """`logprobs` of a part."""
    return [{"token": "x", "bytes": [120], "logprob": value, "top_logprobs": []} for value in values]


def usage(prompt: int, completion: int) -> dict[str, Any]:
    """Counts, as OpenAI gives them."""
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 2},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": prompt + completion,
    }


def read(answer: Any, **request: Any) -> Step:
    """The only step of an unstreamed answer."""
    (step,) = decoded(RESPONSES, {"input": "hi", **request}, [answer], streamed=False)
    check(step)
    return step


def read_stream(*events: Any, done: bool = False) -> Step:
    """The only step of a stream."""
    (step,) = decode(RESPONSES, b'{"input": "hi"}', sse(*events, done=done), content_type=SSE)
    check(step)
    return step


CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": '{"a": 1}'}
CUSTOM = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_2", "name": "run", "input": "ls -l"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
SUMMED = {
    "type": "reasoning", "id": "rs_2", "encrypted_content": "gAAA",
    "summary": [{"type": "summary_text", "text": "one"}, {"type": "summary_text", "text": "two"}],
}  # fmt: skip
CITED = text(
    "see", annotations=[{"type": "url_citation", "url": "https://example.org", "start_index": 0, "end_index": 3}]
)
BUILT_IN: list[dict[str, Any]] = [
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
    {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["q"], "results": None},
    {"type": "computer_call", "id": "cu_1", "call_id": "c", "action": {"type": "click", "x": 1, "y": 2}, "status": "x"},
    {"type": "code_interpreter_call", "id": "ci_1", "code": "1+1", "container_id": "c", "outputs": [], "status": "x"},
    {"type": "mcp_list_tools", "id": "ml_1", "server_label": "s", "tools": []},
    {"type": "mcp_call", "id": "mc_1", "server_label": "s", "name": "t", "arguments": "{}", "output": "ok", "error": None},
    {"type": "mcp_approval_request", "id": "ma_1", "server_label": "s", "name": "t", "arguments": "{}"},
    {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "iVBOR"},
    {"type": "a_kind_of_the_future", "id": "zz_1", "depth": {"of": [1, 2]}},
]  # fmt: skip
FUNCTION = ToolCall(id="call_1", name="f", arguments='{"a": 1}', extra={"item_id": "fc_1"})

COMPLETIONS: dict[str, tuple[list[Any], Completion]] = {
    "text": ([message(text("hi"))], Completion(content="hi")),
    "two parts": ([message(text("a"), text("b"))], Completion(content="ab")),
    "empty": ([message(text(""))], Completion(content="")),
    "nothing": ([], Completion()),
    "refusal": ([message({"type": "refusal", "refusal": "no"})], Completion(refusal="no")),
    "call": ([CALL], Completion(tool_calls=(FUNCTION,))),
    "text and call": ([message(text("a")), CALL], Completion(content="a", tool_calls=(FUNCTION,))),
    "custom call": (
        [CUSTOM],
        Completion(
            tool_calls=(ToolCall(id="call_2", name="run", arguments="ls -l", type="custom", extra={"item_id": "ctc_1"}),)
        ),
    ),
    "reasoning": ([THOUGHT, message(text("a"))], Completion(content="a", reasoning="hm")),
    "summary": (
        [SUMMED, message(text("a"))],
        Completion(content="a", reasoning="one\n\ntwo", extra={"output": [SUMMED, message(text("a"))]}),
    ),
    "citation": ([message(CITED)], Completion(content="see", extra={"output": [message(CITED)]})),
    "another order": (
        [CALL, message(text("a"))],
        Completion(content="a", tool_calls=(FUNCTION,), extra={"output": [CALL, message(text("a"))]}),
    ),
    "two messages": (
        [message(text("a")), message(text("b"))],
        Completion(content="ab", extra={"output": [message(text("a")), message(text("b"))]}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", COMPLETIONS)
def test_items_make_the_completion(case: str) -> None:
    """Each kind of item has its place; where the places do not tell it all, the items are kept as they came."""
    output, expected = COMPLETIONS[case]
    step = read(response(*output))
    assert step.completion == expected
    assert step.finish_reason == ("tool_calls" if expected.tool_calls else "stop")
    assert (step.status, step.response_id, step.response_model) == ("ok", "resp_1", "m")


@pytest.mark.parametrize("item", BUILT_IN, ids=lambda item: str(item["type"]))
def test_built_in_tools_and_items_of_unknown_types_are_kept_as_they_came(item: dict[str, Any]) -> None:
    """In order, beside the text."""
    output = [THOUGHT, item, message(text("done", logprobs=entries(-1)))]
    step = read(response(*output))
    assert step.completion is not None
    assert (step.completion.content, step.completion.reasoning, step.completion.tool_calls) == ("done", "hm", ())
    assert dict(step.completion.extra or {}) == {"output": [THOUGHT, item, message(text("done"))]}
    assert step.finish_reason == "stop"


@pytest.mark.parametrize(
    ("fields", "status", "finish_reason"),
    [
        ({"status": "completed"}, "ok", "stop"),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "ok", "max_output_tokens"),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "ok", "content_filter"),
        ({"status": "incomplete", "incomplete_details": None}, "ok", "incomplete"),
        # vLLM's last event is `response.completed` all the same.
        ({"status": "completed", "incomplete_details": {"reason": "max_output_tokens"}}, "ok", "max_output_tokens"),
        ({"status": "cancelled"}, "abandoned", "cancelled"),
        ({"status": "queued"}, "abandoned", None),
        ({"status": "in_progress"}, "abandoned", None),
        ({"status": "failed", "error": {"code": "server_error", "message": "sorry"}}, "error", None),
        ({"status": "failed", "error": None}, "error", None),
    ],
)
def test_the_status_of_a_response(fields: dict[str, Any], status: str, finish_reason: str | None) -> None:
    """What it means for the step, unstreamed, retrieved, and as the last event of a stream."""
    answer = {**response(message(text("so far"))), **fields}
    for step in (read(answer), read_stream({"type": f"response.{fields['status']}", "response": answer})):
        assert step.response_id == "resp_1"
        if fields["status"] in ("queued", "in_progress") and step.completion is None:
            continue
        assert (step.status, step.finish_reason) == (status, finish_reason)
        assert step.completion is not None
        assert step.completion.content == "so far"
    failed = read(answer)
    if status == "error":
        assert failed.error is not None
        assert failed.error.message == ("sorry" if fields["error"] else "the response failed.")


def test_a_background_response_has_an_id_and_nothing_else_yet() -> None:
    """It is neither an error nor an answer; what it was asked with is kept."""
    step = read(response(status="queued", background=True), previous_response_id="resp_0", background=True)
    assert (step.status, step.error, step.completion, step.response_id) == ("abandoned", None, None, "resp_1")
    assert dict(step.sampling or {}) == {"previous_response_id": "resp_0", "background": True}
    assert step.token_issue is None


def test_usage_of_a_response() -> None:
    """Counts by their own names, and those within them."""
    step = read(response(message(text("a")), usage=usage(9, 4)))
    assert step.usage is not None
    assert (step.usage.input, step.usage.output, step.usage.cache_read, step.usage.reasoning) == (9, 4, 2, 1)


def raw(*ids: int) -> dict[str, Any]:
    """A message as vLLM shows it with `enable_response_messages`."""
    return {"type": "raw_message_tokens", "message": "...", "tokens": list(ids)}


def test_several_completions_within_one_answer_are_not_one() -> None:
    """A tool loop inside the server sampled twice: joined, their ids would be a completion nobody sampled."""
    answer = response(
        message(text("a", logprobs=entries(-1))),
        message(text("b", logprobs=entries(-2))),
        input_messages=[raw(1, 2), raw(1, 2, 5, 3)],
        output_messages=[raw(5), raw(6)],
        usage=usage(2, 2),
    )
    step = read(answer)
    assert (step.completion_token_ids, step.logprobs, step.prompt_token_ids) == (None, None, None)
    assert step.token_issue is not None
    assert step.token_issue.code == "several_completions"
    assert "sampled 2 completions" in step.token_issue.message
    assert step.completion is not None
    assert step.completion.content == "ab"


def test_ids_that_cover_more_than_the_text() -> None:
    """Reasoning and calls have ids but no logprobs: the ids stay where the usage counts them, the logprobs do not."""
    output = [THOUGHT, message(text("ab", logprobs=entries(-1, -2)))]
    answer = response(*output, input_messages=[raw(1)], output_messages=[raw(7, 8, 5, 6)], usage=usage(1, 4))
    step = read(answer)
    assert (numbers(step.completion_token_ids), step.logprobs) == ([7, 8, 5, 6], None)
    assert step.token_issue is not None
    assert step.token_issue.message == "4 token ids but 2 logprobs."


@pytest.mark.parametrize(
    ("output", "counts", "logprobs", "issue"),
    [
        ([message(text("ab", logprobs=entries(-1, -2)))], usage(1, 2), [-1.0, -2.0], "ids_missing"),
        ([message(text("ab", logprobs=entries(-1, -2)))], None, [-1.0, -2.0], "ids_missing"),
        ([message(text("ab", logprobs=entries(-1, -2)))], usage(1, 3), None, "usage_differs"),
        ([message(text("ab", logprobs=[]))], usage(1, 2), None, "ids_missing"),
        ([message(text("a", logprobs=entries(-1)), text("b"))], usage(1, 2), None, "logprobs_partial"),
        ([THOUGHT, message(text("a", logprobs=entries(-1)))], None, None, "logprobs_partial"),
        ([CALL, message(text("a", logprobs=entries(-1)))], usage(1, 9), None, "usage_differs"),
        ([message(text("a", logprobs=entries(None)))], usage(1, 1), None, "logprobs_incomplete"),
        ([message(text("a", logprobs=entries("x")))], usage(1, 1), None, "logprobs_incomplete"),
        ([message(text("a", logprobs=["x", 5]))], usage(1, 2), None, "logprobs_incomplete"),
        ([message(text("a", logprobs={"content": []}))], usage(1, 1), None, "ids_missing"),
    ],
)
def test_logprobs_are_there_for_the_whole_completion_or_withheld(
    output: list[Any], counts: Any, logprobs: list[float] | None, issue: str
) -> None:
    """One for each sampled token, as far as the usage or the items can tell."""
    step = read(response(*output, usage=counts))
    assert numbers(step.logprobs) == logprobs
    assert step.token_issue is not None
    assert step.token_issue.code == issue


def streamed(*, places: bool = True) -> list[dict[str, Any]]:
    """A stream of a reasoning item with a summary, a cited text, a call, a custom call and a built-in tool."""

    def event(kind: str, at: int, item_id: str, **fields: Any) -> dict[str, Any]:
        where = {"output_index": at} if places else {}
        return {"type": f"response.{kind}", "item_id": item_id, **where, **fields}

    def item(kind: str, at: int, value: dict[str, Any]) -> dict[str, Any]:
        where = {"output_index": at} if places else {}
        return {"type": f"response.output_item.{kind}", "item": value, **where}

    begun = {**SUMMED, "summary": [], "encrypted_content": None}
    search = BUILT_IN[0]
    return [
        {"type": "response.created", "response": response(status="in_progress")},
        item("added", 0, begun),
        event("reasoning_summary_part.added", 0, "rs_2", summary_index=0, part={"type": "summary_text", "text": ""}),
        *(event("reasoning_summary_text.delta", 0, "rs_2", summary_index=0, delta=d) for d in ("o", "ne")),
        event("reasoning_summary_part.added", 0, "rs_2", summary_index=1, part={"type": "summary_text", "text": ""}),
        event("reasoning_summary_text.delta", 0, "rs_2", summary_index=1, delta="two"),
        item("done", 0, SUMMED),
        item("added", 1, {**search, "status": "in_progress"}),
        {"type": "response.web_search_call.searching", "item_id": "ws_1", "output_index": 1},
        item("done", 1, search),
        item("added", 2, message(status="in_progress")),
        event("content_part.added", 2, "msg_1", content_index=0, part=text("")),
        *(event("output_text.delta", 2, "msg_1", content_index=0, delta=d, logprobs=entries(-1)) for d in ("s", "ee")),
        event("output_text.annotation.added", 2, "msg_1", content_index=0, annotation=CITED["annotations"][0]),
        event("content_part.done", 2, "msg_1", content_index=0, part={**CITED, "logprobs": entries(-1, -1)}),
        {"type": "response.something.new", "delta": 5, "text": {"a": 1}, "item": "x", "logprobs": "no"},
        item("added", 3, {**CALL, "arguments": ""}),
        *(event("function_call_arguments.delta", 3, "fc_1", delta=d) for d in ('{"a"', ": 1}")),
        event("function_call_arguments.done", 3, "fc_1", arguments='{"a": 1}'),
        item("added", 4, {**CUSTOM, "input": ""}),
        *(event("custom_tool_call_input.delta", 4, "ctc_1", delta=d) for d in ("ls", " -l")),
    ]


OUTPUT = [SUMMED, BUILT_IN[0], message({**CITED, "logprobs": entries(-1, -1)}), CALL, CUSTOM]


@pytest.mark.parametrize("places", [True, False])
def test_a_stream_that_was_cut_is_put_together_from_its_events(places: bool) -> None:
    """Items by their place, or by their id alone (llama-server), are those of the unstreamed answer."""
    unary = read(response(*OUTPUT))
    cut = read_stream(*streamed(places=places))
    assert cut.status == "abandoned"
    assert unary.completion is not None
    assert cut.completion is not None
    assert cut.completion.tool_calls == unary.completion.tool_calls
    assert (cut.completion.content, cut.completion.reasoning) == ("see", "one\n\ntwo")
    begun = dict(cut.completion.extra or {})["output"]
    assert [item["type"] for item in begun] == [item["type"] for item in OUTPUT]
    assert begun[:2] == OUTPUT[:2]
    assert begun[2]["content"] == [CITED]


@pytest.mark.parametrize("name", ["completed", "incomplete"])
def test_the_last_event_is_the_truth(name: str) -> None:
    """It makes the step of the unstreamed answer, whatever the events before it said."""
    answer = response(*OUTPUT, usage=usage(3, 30), status=name)
    step = read_stream(*streamed(), {"type": f"response.{name}", "response": answer})
    assert differing(step, read(answer)) == set()
    other = read_stream(
        *streamed(), {"type": f"response.{name}", "response": response(message(text("no")), status=name)}
    )
    assert other.completion == Completion(content="no")


def test_an_empty_output_in_the_last_event_leaves_what_came() -> None:
    """Some servers repeat everything but the items."""
    step = read_stream(*streamed(), {"type": "response.completed", "response": response(usage=usage(3, 30))})
    assert step.status == "ok"
    assert step.completion is not None
    assert step.completion.content == "see"
    assert [call.name for call in step.completion.tool_calls] == ["f", "run"]


def test_event_names_may_stand_in_the_frame_alone() -> None:
    """`event:` says what the data does not."""
    body = b'event: response.output_text.delta\ndata: {"delta": "hi", "content_index": 0}\n\n'
    (step,) = decode(RESPONSES, b"{}", body, content_type=SSE)
    assert step.completion == Completion(content="hi")


def test_done_ends_a_stream_without_a_last_event() -> None:
    """`[DONE]` after items is an end like any other; before any it is not."""
    assert read_stream(*streamed(), done=True).status == "ok"
    assert read_stream(streamed()[0], done=True).status == "abandoned"


@pytest.mark.parametrize(
    "event",
    [
        {"type": "error", "code": "server_error", "message": "sorry", "param": None, "sequence_number": 3},
        {"type": "error", "error": {"code": "server_error", "message": "sorry"}},
        {"error": {"code": "server_error", "message": "sorry"}},
        {"type": "response.failed", "response": response(status="failed", error={"code": "server_error", "message": "sorry"})},
    ],
)  # fmt: skip
def test_an_error_event_keeps_what_came(event: dict[str, Any]) -> None:
    """In every shape that servers give it; what follows is not read."""
    step = read_stream(*streamed()[:15], event, {"type": "response.completed", "response": response()}, done=True)
    assert step.status == "error"
    assert step.error is not None
    assert (step.error.message, step.error.code) == ("sorry", "server_error")
    assert step.response_id == "resp_1"


def test_text_without_its_logprobs_withholds_the_others() -> None:
    """A cut stream in which one delta came without: the rest would be paired with other tokens."""
    deltas = [{"type": "response.output_text.delta", "delta": d, "logprobs": entries(-1)} for d in "abc"]
    assert numbers(read_stream(*deltas).logprobs) == [-1.0] * 3
    for bare in ([], None, "x"):
        step = read_stream(deltas[0], {**deltas[1], "logprobs": bare}, deltas[2])
        assert step.logprobs is None
        assert step.token_issue is not None
        assert step.token_issue.code == "logprobs_partial"


def test_parts_and_items_that_never_began_are_kept() -> None:
    """A stream resumed in the middle (`starting_after`) begins with deltas."""
    step = read_stream(
        {"type": "response.output_text.delta", "output_index": 1, "content_index": 1, "delta": "b"},
        {"type": "response.output_text.delta", "output_index": 1, "content_index": 1, "delta": "c"},
        {"type": "response.function_call_arguments.delta", "output_index": 2, "item_id": "fc_1", "delta": "{"},
        {"type": "response.reasoning_text.delta", "output_index": 0, "content_index": 0, "delta": "hm"},
    )
    assert step.completion is not None
    assert (step.completion.content, step.completion.reasoning) == ("bc", "hm")
    assert [call.arguments for call in step.completion.tool_calls] == ["{"]


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"", "error"), (b"{}", "error"), (b"[]", "error"), (b"null", "error"), (b"<html>", "error"),
        (b'{"output": "x"}', "error"), (b'{"error": "no"}', "error"), (b'{"output": [null, 5, "x"]}', "ok"),
        (b'{"choices": [{"message": {"content": "a chat"}}]}', "error"), (b'{"status": "of the future"}', "abandoned"),
    ],
)  # fmt: skip
def test_what_is_no_response_is_an_error(answer: bytes, status: str) -> None:
    """One step, and the bytes are in its error."""
    (step,) = decode(RESPONSES, b"{}", answer, content_type=JSON)
    check(step)
    assert step.status == status


def test_a_hand_made_stream_cut_anywhere_gives_what_came() -> None:
    """Every kind of item, at every third byte."""
    check_cuts(RESPONSES, b'{"input": "hi"}', sse(*streamed(), done=False), stride=3)


RECORDED = ["vllm/responses_ids_probe", "vllm/responses_logprobs_stream", "vllm/responses_tools_required_stream"]
RECORDED += ["llama_server/responses_stream", "transformers_serve/responses_stream"]


@BOUNDED
@given(st.data())
def test_a_damaged_answer_is_still_a_step_that_keeps_the_rules(data: st.DataObject) -> None:
    """Fields and items deleted, doubled, or of another type, in recordings and in the payloads above."""
    name = data.draw(st.sampled_from([*RECORDED, "stream", "stream without an end", "unary"]))
    if name in RECORDED:
        request, values, as_stream = of_recording(RESPONSES, name)
    else:
        last = {"type": "response.completed", "response": response(*OUTPUT)}
        streams = {"stream": [*streamed(), last], "stream without an end": streamed(places=False)}
        request, values = {"input": "hi"}, streams.get(name, [response(*OUTPUT, usage=usage(3, 30))])
        as_stream = name in streams
    steps = decoded(RESPONSES, request, data.draw(damaged(values)) or [None], streamed=as_stream)
    assert len(steps) == 1
    check(steps[0])
