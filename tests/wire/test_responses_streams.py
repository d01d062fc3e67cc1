"""Streams of /responses as OpenAI sends them, and damage to answers. All payloads are made by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace.data.model import Completion
from rollout_trace.file.decode import decode as read_line
from rollout_trace.file.encode import encode
from rollout_trace.wire import decode
from tests.wire.raw import SSE, sse
from tests.wire.recorded import BOUNDED, check, check_cuts, damaged, decoded, differing, numbers, of_recording
from tests.wire.test_responses_shapes import (
    BUILT_IN,
    CALL,
    CITED,
    CUSTOM,
    RESPONSES,
    SORRY,
    SUMMED,
    entries,
    message,
    read,
    read_stream,
    response,
    text,
    usage,
)


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
        {"type": "response.failed", "response": response(status="failed", error=SORRY)},
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
    bares: list[Any] = [[], None, "x"]
    for bare in bares:
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


def vllm_stream(
    pieces: list[tuple[str, list[tuple[str, float]]]], ids: list[int], *, status: str = "incomplete", **request: Any
) -> Any:
    """The step of a stream as vLLM sends it: an event for each token that adds text, all ids in the last one."""
    listed = [{"token": t, "logprob": value, "bytes": [], "top_logprobs": []} for _, own in pieces for t, value in own]
    events: list[Any] = [{"type": "response.created", "response": response(status="in_progress")}]
    events.append({"type": "response.output_item.added", "output_index": 0, "item": message(status="in_progress")})
    for delta, own in pieces:
        these = [{"token": token, "logprob": value, "top_logprobs": []} for token, value in own]
        place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        events.append({"type": "response.output_text.delta", **place, "delta": delta, "logprobs": these})
    last = response(
        message(text("".join(delta for delta, _ in pieces), logprobs=listed)),
        status=status,
        usage=usage(3, len(ids)),
        input_messages=[{"tokens": [1, 2, 3]}],
        output_messages=[{"tokens": ids}],
        **({"incomplete_details": {"reason": "max_output_tokens"}} if status == "incomplete" else {}),
    )
    events.append({"type": "response.completed", "response": last})
    asked = json.dumps({"input": "hi", "stream": True, **request}).encode()
    (step,) = decode(RESPONSES, asked, sse(*events, done=False), content_type=SSE)
    return step


A, B, HALF = ("a", [("a", -1.0)]), ("b", [("b", -2.0)]), ("\ufffdc", [("c", -3.0)])
NAN = None

# The pieces, how many ids, the status, and the logprobs with a null where there is none; None: it cannot be told.
GAPS: dict[str, tuple[list[Any], int, str, list[float | None] | None]] = {
    "nothing is missing": ([A, B], 2, "incomplete", [-1.0, -2.0]),
    "the stop token": ([A, B], 3, "completed", [-1.0, -2.0, NAN]),
    "before a half that shows": ([A, HALF, B], 4, "incomplete", [-1.0, NAN, -3.0, -2.0]),
    "a half and the stop token": ([HALF, A], 4, "completed", [NAN, -3.0, -1.0, NAN]),
    "two halves": ([HALF, A, HALF], 5, "incomplete", [NAN, -3.0, -1.0, NAN, -3.0]),
    "a half that does not show": ([A, ("\u00e9", [("\u00e9", -3.0)])], 3, "incomplete", None),
    "at the end, or anywhere": ([A, B], 3, "incomplete", None),
    "more than show": ([A, HALF], 4, "incomplete", None),
    "fewer than show": ([HALF, HALF], 3, "incomplete", None),
    "two before the end": ([A, B], 4, "completed", None),
    "several tokens in one event": ([("a\ufffdb", [("a", -1.0), ("b", -2.0)])], 3, "incomplete", None),
    "text of another spelling": ([(" a", [("a", -1.0)])], 2, "incomplete", None),
    "an end that is another": ([("\ufffda", [("b", -1.0)])], 2, "incomplete", None),
}


@pytest.mark.parametrize("case", GAPS)
def test_logprobs_that_a_stream_leaves_out(case: str) -> None:
    """Ids are kept, and the logprobs where every missing one has a place; else it is said that it cannot be told."""
    pieces, size, status, expected = GAPS[case]
    ids = list(range(10, 10 + size))
    step = vllm_stream(pieces, ids, status=status)
    assert step.status == "ok"
    assert numbers(step.completion_token_ids) == ids
    assert numbers(step.prompt_token_ids) == [1, 2, 3]
    found = None if step.logprobs is None else [None if value != value else value for value in step.logprobs.tolist()]
    assert found == expected
    if expected is not None and None not in expected:
        assert step.token_issue is None
        return
    assert step.token_issue is not None
    assert step.token_issue.code == "logprobs_incomplete"
    came = sum(len(own) for _, own in pieces)
    assert step.token_issue.message.startswith(f"{size - came} of {size} logprobs did not come with this stream")
    assert ("nothing says of which tokens" in step.token_issue.message) == (expected is None)


def test_a_stop_string_makes_it_uncertain() -> None:
    """It holds text back, so that events are not of their tokens."""
    step = vllm_stream([A, B], [1, 2, 3], status="completed", stop=["x"])
    assert step.logprobs is None
    assert numbers(step.completion_token_ids) == [1, 2, 3]


@pytest.mark.parametrize("bad", [0.5, float("nan"), None])
def test_what_is_left_must_be_sound(bad: Any) -> None:
    """A logprob that is no logprob takes the others with it, as ever."""
    step = vllm_stream([A, ("b", [("b", bad)])], [1, 2, 3], status="completed")
    assert step.logprobs is None
    assert numbers(step.completion_token_ids) == [1, 2, 3]


def test_a_step_with_gaps_is_not_trained_on(caplog: pytest.LogCaptureFixture) -> None:
    """Not by default and not on request; a file keeps the gaps, without a warning; a check says so once."""
    trajectory = rt.Trajectory(steps=[vllm_stream([A, B], [1, 2, 3], status="completed")], reward=1.0)
    assert trajectory.sequences() == []
    assert trajectory.sequences(allow={"logprobs_incomplete"}) == []
    found = [finding.code for finding in trajectory.check()]
    assert found.count("logprobs_incomplete") == 1
    assert "logprobs_not_finite" not in found
    (again,) = read_line(encode(trajectory)).steps
    assert again.logprobs is not None
    assert numbers(again.logprobs[:2]) == [-1.0, -2.0]
    assert again.logprobs[2] != again.logprobs[2]
    assert again == trajectory.steps[0]
    assert caplog.messages == []
    assert again.token_issue == trajectory.steps[0].token_issue
