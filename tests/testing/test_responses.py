"""The Responses API of the scripted server: tools, reasoning, streams, and what a limit cuts off."""

from __future__ import annotations

import socket
from typing import Any

import openai
import pytest
from openai import OpenAI

import rollout_trace as rt
from rollout_trace.testing import ReplayServer, Reply, ScriptedServer

TOOL: Any = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
ASKED = Reply("Let me look.", [("weather", '{"city":  "Paris"}'), ("weather", '{"city": "Rome"}')], "two cities")


def script(request: Any) -> Reply:
    items = request["input"]
    done = isinstance(items, list) and any(item.get("type") == "function_call_output" for item in items)
    return Reply("Sunny in both.") if done else ASKED


def run(client: OpenAI, *, stream: bool) -> str:
    """An agent: it asks until no tool is called, and sends back every item that it got."""
    items: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "Is it sunny?"}]}]
    while True:
        answer = ask(client, items, stream=stream)
        calls = [item for item in answer.output if item.type == "function_call"]
        if not calls:
            return str(answer.output_text)
        items += [item.model_dump(exclude_none=True) for item in answer.output]
        items += [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"} for call in calls]


def ask(client: OpenAI, items: list[Any], *, stream: bool) -> Any:
    arguments: Any = {"model": "m", "input": items, "tools": [TOOL], "instructions": "Be brief."}
    if not stream:
        return client.responses.create(**arguments)
    with client.responses.stream(**arguments) as events:
        return events.get_final_response()


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_with_tools_runs_on_the_responses_api(stream: bool) -> None:
    with ScriptedServer(script) as server, rt.trajectory() as trajectory:
        with rt.wrap_openai(OpenAI(base_url=server.base_url, api_key="none")) as client:
            assert run(client, stream=stream) == "Sunny in both."
    first, last = trajectory.steps
    assert first.completion is not None
    assert (first.completion.content, first.completion.reasoning) == ("Let me look.", "two cities")
    assert [(call.name, call.arguments) for call in first.completion.tool_calls] == list(ASKED.tool_calls)
    assert [step.status for step in trajectory.steps] == ["ok", "ok"]
    assert last.completion is not None
    assert last.completion.content == "Sunny in both."
    # The items that were sent back are the ids that were sampled: the prompt extends the first one and its answer.
    answer = {
        "role": "assistant",
        "reasoning": "two cities",
        "content": "Let me look.",
        "tool_calls": [{"function": {"name": name, "arguments": arguments}} for name, arguments in ASKED.tool_calls],
    }
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Is it sunny?"},
        answer,
        *[{"role": "tool", "content": "sunny"}] * 2,
    ]
    tokens = server.tokenizer.apply_chat_template
    assert first.usage is not None
    assert last.usage is not None
    assert first.usage.input == len(tokens(messages[:2], [TOOL]))
    assert last.usage.input == len(tokens(messages, [TOOL]))


def test_a_streamed_answer_is_the_unstreamed_one() -> None:
    arguments: Any = {"model": "m", "input": "a", "tools": [TOOL]}
    with ScriptedServer(ASKED) as server, OpenAI(base_url=server.base_url, api_key="none") as client:
        whole = client.responses.create(**arguments).output
    with ScriptedServer(ASKED) as server, OpenAI(base_url=server.base_url, api_key="none") as client:
        events = list(client.responses.create(**arguments, stream=True))
    assert events[-1].response.output == whole
    assert [event.item for event in events if event.type == "response.output_item.done"] == whole
    assert [item.type for item in whole] == ["reasoning", "message", "function_call", "function_call"]
    for index, item in enumerate(whole):
        pieces = [e.delta for e in events if e.type.endswith(".delta") and e.output_index == index]
        assert len(pieces) > 1
        assert "".join(pieces) == (item.arguments if item.type == "function_call" else item.content[0].text)


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_a_limit_cut_off_is_incomplete(stream: bool) -> None:
    with ScriptedServer(Reply(tool_calls=[("weather", '{"city": "Paris"}')])) as server:
        with OpenAI(base_url=server.base_url, api_key="none") as client:
            arguments: Any = {"model": "m", "input": "a", "max_output_tokens": 40, "tools": [TOOL]}
            if stream:
                answer = list(client.responses.create(**arguments, stream=True))[-1].response
            else:
                answer = client.responses.create(**arguments)
    (call,) = answer.output
    assert (call.type, call.status, call.name) == ("function_call", "incomplete", "weather")
    assert '{"city": "Paris"}'.startswith(call.arguments)
    assert call.arguments != '{"city": "Paris"}'
    assert answer.status == "incomplete"


@pytest.mark.parametrize("given", [{"input": 3}, {"input": [3]}])
def test_an_input_without_messages_is_refused(given: Any) -> None:
    with ScriptedServer("x") as server, OpenAI(base_url=server.base_url, api_key="none") as client:
        with pytest.raises(openai.BadRequestError, match="input"):
            client.responses.create(model="m", **given)


def test_a_server_listens_on_the_port_that_it_is_given() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"cannot listen on port {port} of 127\.0\.0\.1"):
            ScriptedServer("x", port=port).start()
    for server in (ScriptedServer("x", port=port), ReplayServer([], port=port)):
        with server:
            assert server.url == f"http://127.0.0.1:{port}"
