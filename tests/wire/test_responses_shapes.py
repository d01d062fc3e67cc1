"""/responses as OpenAI sends it unstreamed, which was not recorded. All payloads are made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from rollout_trace.data.model import Completion, Step, ToolCall
from rollout_trace.wire import decode
from tests.wire.raw import JSON, SSE, sse
from tests.wire.recorded import check, decoded, numbers

RESPONSES = "openai.responses"


SORRY = {"code": "server_error", "message": "sorry"}


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
    {"type": "mcp_call", "id": "mc_1", "name": "t", "arguments": "{}", "output": "ok", "error": None},
    {"type": "mcp_approval_request", "id": "ma_1", "server_label": "s", "name": "t", "arguments": "{}"},
    {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "iVBOR"},
    {"type": "a_kind_of_the_future", "id": "zz_1", "depth": {"of": [1, 2]}},
]  # fmt: skip
RUN = ToolCall(id="call_2", name="run", arguments="ls -l", type="custom", extra={"item_id": "ctc_1"})
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
        Completion(tool_calls=(RUN,)),
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
    assert step.token_issue is not None
    assert step.token_issue.code == "background_not_fetched"


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
