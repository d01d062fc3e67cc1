"""Every way to make a call is recorded once, and looks to its caller as it did before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.testing import Reply
from tests.clients.either import Kind, done, each

from .harness import ASK, World, ask, begun, both, numbers, run, shown, streamed

THOUGHTFUL = Reply("It is 4.", [("add", '{"a": 2, "b": "\u00e9"}')], "two and two")
DECLARED = {"name": "add", "description": "Adds.", "parameters": {"type": "OBJECT", "properties": {}}}


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


# As types: older releases do not read annotations that are texts.
add.__annotations__ = {"a": int, "b": int, "return": int}


async def chat(world: World) -> Any:
    talk = world.client.chats.create(model="gemini-2.5-flash")
    return [shown(await done(talk.send_message("hi"))), shown(await done(talk.send_message("and now?")))]


async def chat_stream(world: World) -> Any:
    talk = world.client.chats.create(model="gemini-2.5-flash")
    return [shown(chunk) async for chunk in each(await done(talk.send_message_stream("hi")))]


SURFACES: dict[str, tuple[int, Callable[[World], Any]]] = {
    "generate_content": (1, lambda world: ask(world.client)),
    "generate_content_stream": (1, lambda world: streamed(world.client)),
    "chat": (2, chat),
    "chat stream": (1, chat_stream),
}


@pytest.mark.parametrize("surface", SURFACES)
def test_one_record_per_call(kind: Kind, library: str, surface: str) -> None:
    """Every method that generates makes one step with thoughts, text and the function call."""
    count, call = SURFACES[surface]

    async def scenario(world: World) -> Any:
        return await call(world)

    steps = both(kind, THOUGHTFUL, scenario, library=library).steps
    assert len(steps) == count
    for step in steps:
        assert (step.status, step.protocol, step.model) == ("ok", "google.generate_content", "gemini-2.5-flash")
        assert step.response_model == "gemini-2.5-flash"
        assert step.completion is not None
        assert (step.completion.content, step.completion.reasoning) == ("It is 4.", "two and two")
        assert [(c.name, c.arguments) for c in step.completion.tool_calls] == [("add", '{"a":2,"b":"\u00e9"}')]
        assert step.usage is not None
        assert step.usage.reasoning
        assert (step.time_to_first_token is not None) == ("stream" in surface)


@pytest.mark.parametrize("stream", [False, True])
def test_candidates_logprobs_and_settings(kind: Kind, stream: bool) -> None:
    """Candidates are steps of one call; ids and logprobs are the server's; what was asked for is on the step."""
    config = {
        "candidate_count": 2,
        "response_logprobs": True,
        "logprobs": 3,
        "temperature": 0.5,
        "system_instruction": "Be brief.",
        "tools": [{"function_declarations": [DECLARED]}],
    }

    async def scenario(world: World) -> Any:
        return await (streamed if stream else ask)(world.client, config=config)

    def script(request: Any, choice: int) -> str:
        return ("one", "another")[choice]

    first, second = both(kind, script, scenario).steps
    assert [one.completion and one.completion.content for one in (first, second)] == ["one", "another"]
    assert first.call_id == second.call_id
    assert (first.token_source, first.token_issue) == ("logprobs", None)
    assert first.completion_token_ids is not None
    assert first.logprobs is not None
    assert len(first.completion_token_ids) == len(first.logprobs) > 0
    assert first.top_tokens is not None
    assert first.top_tokens.ids.shape == (len(first.completion_token_ids), 3)
    assert first.messages is not None
    assert [message["role"] for message in first.messages] == ["system", "user"]
    assert first.tools is not None
    assert first.tools[0]["functionDeclarations"][0]["name"] == "add"
    assert first.sampling is not None
    assert (first.sampling["temperature"], first.sampling["responseLogprobs"]) == (0.5, True)


@pytest.mark.parametrize("stream", [False, True])
def test_automatic_function_calling(kind: Kind, stream: bool) -> None:
    """The requests that the SDK makes by itself, with the results of functions, are calls of their own."""

    async def scenario(world: World) -> Any:
        return await (streamed if stream else ask)(world.client, config={"tools": [add]})

    def script(request: Any) -> Reply:
        return Reply("5") if len(request["contents"]) > 1 else Reply(tool_calls=[("add", '{"a": 2, "b": 3}')])

    first, *others = both(kind, script, scenario).steps
    assert first.completion is not None
    assert [call.name for call in first.completion.tool_calls] == ["add"]
    if stream and not others:
        pytest.skip("this release calls no function unless its call is in the last chunk")
    (second,) = others
    assert second.completion is not None
    assert second.completion.content == "5"
    assert second.messages is not None
    assert second.messages[-1]["parts"][0]["functionResponse"]["response"] == {"result": 5}


def test_what_is_not_recorded(kind: Kind) -> None:
    """Counting tokens generates nothing."""

    async def scenario(world: World) -> Any:
        counted = await done(world.client.models.count_tokens(model="m", contents="hi"))
        return [counted.total_tokens, await ask(world.client)]

    assert len(both(kind, "fine", scenario).steps) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_compressed_answers(kind: Kind, library: str, stream: bool) -> None:
    """Compressed bytes are recorded as they are unpacked."""

    async def scenario(world: World) -> Any:
        return await (streamed if stream else ask)(world.client)

    step = both(kind, Reply("fine " * 50, compress="gzip"), scenario, library=library).step
    assert (step.status, step.token_issue and step.token_issue.code) == ("ok", "ids_missing")


@pytest.mark.parametrize("stream", [False, True])
def test_kept_bytes(kind: Kind, library: str, stream: bool) -> None:
    """The bytes on a step are the server's log."""

    async def scenario(world: World) -> Any:
        return await (streamed if stream else ask)(world.client, contents="caf\u00e9 \U0001f600")

    def keeping(client: Any) -> Any:
        return rt.wrap_google(client, keep_bytes=True)

    found = both(kind, Reply("na\u00efve \U0001f600"), scenario, wrap=keeping, library=library)
    assert (found.step.request_bytes, found.step.response_bytes) == (
        found.requests[0].body,
        found.requests[0].response_body,
    )


def test_vertex_with_a_key(kind: Kind) -> None:
    """Vertex AI's express mode: the model is in a longer path."""

    async def scenario(world: World) -> Any:
        client = world.wrap(world.new_client(vertexai=True))
        return [await ask(client), await streamed(client)]

    found = both(kind, "fine", scenario)
    assert found.requests[0].path.endswith("/publishers/google/models/gemini-2.5-flash:generateContent")
    assert [(step.model, step.status) for step in found.steps] == [("gemini-2.5-flash", "ok")] * 2


def test_a_stream_belongs_to_where_it_was_begun(kind: Kind) -> None:
    """A stream that is read after its trajectory's end is recorded in it, once its first item was read inside."""

    async def scenario(world: World) -> Any:
        with rt.trajectory("inner") as inner:
            chunks = each(await begun(world.client))
            await anext(chunks)
        rest = [shown(chunk) async for chunk in chunks]
        kept.append(inner)
        return rest

    kept: list[rt.Trajectory] = []
    found = run(kind, "a longer answer", scenario)
    assert found.outcome[0] == "returned"
    assert found.steps == []
    assert [step.status for step in kept[0].steps] == ["ok"]


def test_calls_of_one_client_are_told_apart(kind: Kind) -> None:
    """Each step has the settings of its own call."""

    async def scenario(world: World) -> Any:
        return [await ask(world.client, config={"seed": number}) for number in range(3)]

    assert numbers(both(kind, "fine", scenario)) == [0, 1, 2]


def test_the_key_is_stored_nowhere(kind: Kind) -> None:
    """A key that comes back in an answer is cut out of it."""
    key = "AIzaSyC0ffee-4711-secret"

    async def scenario(world: World) -> Any:
        return await ask(world.client)

    step = run(kind, Reply(f"Your key is {key}."), scenario, api_key=key).step
    assert step.completion is not None
    assert step.completion.content == "Your key is [redacted]."
    assert ASK["contents"] == "hi"
