"""Every way to make a call is recorded once, and looks to its caller as it did before."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import anthropic
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import BaseModel

import rollout_trace as rt
from rollout_trace.testing import Reply
from tests.clients.either import Kind, done, each, entered, shown

from .harness import ASK, STREAM, World, ask, both, chunks, numbered, run, seeds, streamed

THOUGHTFUL = Reply("It is 4.", [("add", '{"a": 2, "b": "\u00e9"}')], "two and two")
TOOL = {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {}}}


class Sum(BaseModel):
    """A structured answer."""

    answer: int


def needs(owner: Any, name: str) -> None:
    if not hasattr(owner, name):
        pytest.skip(f"anthropic {anthropic.__version__} has no {name}")


async def helper(world: World, owner: Any = None) -> Any:
    async with entered((owner or world.client.messages).stream(**ASK)) as stream:
        events = [shown(event) async for event in each(stream)]
        return [events, await done(stream.get_final_message())]


async def text_stream(world: World) -> Any:
    async with entered(world.client.messages.stream(**ASK)) as stream:
        return [text async for text in each(stream.text_stream)]


async def final_message(world: World) -> Any:
    async with entered(world.client.messages.stream(**ASK)) as stream:
        return await done(stream.get_final_message())


async def beta_create(world: World) -> Any:
    return await done(world.client.beta.messages.create(**ASK, betas=["some-beta"]))


async def beta_stream(world: World) -> Any:
    return await chunks(await done(world.client.beta.messages.create(**STREAM)))


async def beta_helper(world: World) -> Any:
    return await helper(world, world.client.beta.messages)


SURFACES: dict[str, Callable[[World], Any]] = {
    "create": lambda world: ask(world.client),
    "create stream": lambda world: streamed(world.client),
    "stream": helper,
    "text_stream": text_stream,
    "final message": final_message,
    "beta create": beta_create,
    "beta create stream": beta_stream,
    "beta stream": beta_helper,
}


@pytest.mark.parametrize("surface", SURFACES)
def test_one_record_per_call(kind: Kind, surface: str) -> None:
    """create and stream, and their beta forms, make one step with thinking, text and the tool call."""

    async def scenario(world: World) -> Any:
        return await SURFACES[surface](world)

    step = both(kind, THOUGHTFUL, scenario).step
    assert (step.status, step.protocol, step.finish_reason) == ("ok", "anthropic.messages", "tool_use")
    assert step.completion is not None
    assert (step.completion.content, step.completion.reasoning) == ("It is 4.", "two and two")
    (call,) = step.completion.tool_calls
    spelled = '{"a": 2, "b": "\u00e9"}'
    assert call.arguments == (spelled.replace(" ", "") if surface in ("create", "beta create") else spelled)
    assert len(step.attempts) == 1
    assert step.token_issue is not None
    assert step.token_issue.code == "ids_missing"


@pytest.mark.filterwarnings("ignore:The 'output_format' parameter is deprecated:DeprecationWarning")
@pytest.mark.parametrize("resource", ["messages", "beta.messages"])
def test_parse(kind: Kind, resource: str) -> None:
    """`parse` makes one step."""
    needs(anthropic.resources.Messages, "parse")

    async def scenario(world: World) -> Any:
        owner = world.client.messages if resource == "messages" else world.client.beta.messages
        answer = await done(owner.parse(**ASK, output_format=Sum))
        return [answer, answer.parsed_output.answer]

    assert both(kind, '{"answer": 4}', scenario).step.status == "ok"


@pytest.mark.parametrize("streams", [False, True])
def test_tool_runner(kind: Kind, streams: bool) -> None:
    """Each turn of the SDK's own tool loop is a step; the tool's result is in the next request.

    Newer releases send only what is new, and name the message before it: that is what is recorded.
    """
    needs(anthropic.resources.beta.Messages, "tool_runner")
    decorate: Any = anthropic.beta_tool if kind == "sync" else anthropic.beta_async_tool

    async def scenario(world: World) -> Any:
        def add(a: int, b: int) -> str:
            """Adds."""
            return str(a + b)

        async def add_async(a: int, b: int) -> str:
            """Adds."""
            return str(a + b)

        tool = decorate(add if world.kind == "sync" else add_async, name="add")
        runner = world.client.beta.messages.tool_runner(**ASK, tools=[tool], stream=streams)
        seen = []
        async for item in each(runner):
            seen.append([shown(event) async for event in each(item)] if streams else shown(item))
        return seen

    def script(request: Any) -> Reply:
        return Reply("4") if "tool_result" in str(request["messages"]) else Reply(None, [("add", '{"a": 2, "b": 2}')])

    run = both(kind, script, scenario)
    first, second = run.steps
    assert (first.finish_reason, second.finish_reason) == ("tool_use", "end_turn")
    assert second.messages is not None
    assert second.messages[-1]["content"][0]["type"] == "tool_result"


def with_new_http_client(world: World) -> Any:
    made = anthropic.DefaultHttpxClient if world.kind == "sync" else anthropic.DefaultAsyncHttpxClient
    return world.track(world.client.with_options(http_client=made()))


COPIES: dict[str, Callable[[World], Any]] = {
    "with_options": lambda world: world.client.with_options(timeout=7),
    "copy of a copy": lambda world: world.client.copy().copy(),
    "http_client": with_new_http_client,
    "copy.copy": lambda world: copy.copy(world.client),
}


@pytest.mark.parametrize("way", COPIES)
def test_copies_record(kind: Kind, way: str) -> None:
    """A copy of a wrapped client is wrapped, however it was made; so is the original still."""

    async def scenario(world: World) -> Any:
        copied = COPIES[way](world)
        return [
            await ask(copied, **numbered(0)),
            await streamed(copied, **numbered(1)),
            await ask(world.client, **numbered(2)),
            copied,
        ]

    assert seeds(both(kind, "fine", scenario)) == ["0", "1", "2"]


def test_what_was_cached_before_wrapping_records(kind: Kind) -> None:
    """Resources, raw objects and bound methods taken from the client before it was wrapped record too."""

    async def scenario(world: World) -> Any:
        client = world.new_client()
        resource, raw, beta = client.messages, client.messages.with_raw_response, client.beta.messages
        root, create = client.with_raw_response, client.messages.create
        copied = client.copy()
        client = world.wrap(client)
        return [
            await done(resource.create(**ASK, **numbered(0))),
            await done((await done(raw.create(**ASK, **numbered(1)))).parse()),
            await done((await done(root.messages.create(**ASK, **numbered(2)))).parse()),
            await done(create(**ASK, **numbered(3))),
            await done(beta.create(**ASK, **numbered(4))),
            await chunks(await done(create(**STREAM, **numbered(5)))),
            await done(copied.messages.create(**ASK, **numbered(6))),
        ]

    assert seeds(both(kind, "fine", scenario, unrecorded=1)) == ["0", "1", "2", "3", "4", "5"]


def test_post(kind: Kind) -> None:
    """`client.post` records: parsed, as a stream, as a plain response, and with a whole URL."""

    async def scenario(world: World) -> Any:
        client, body = world.client, copy.deepcopy(ASK)
        stream_cls: Any = anthropic.Stream if world.kind == "sync" else anthropic.AsyncStream
        path = "/v1/messages"
        stream = await done(
            client.post(
                path,
                cast_to=Message,
                body={**body, "stream": True},
                stream=True,
                stream_cls=stream_cls[RawMessageStreamEvent],
            )
        )
        seen = [
            await done(client.post(path, cast_to=Message, body=body)),
            await chunks(stream),
            await done(client.post(path, cast_to=object, body=body)),
            await done(client.post(f"{world.server.url}{path}", cast_to=Message, body=body)),
        ]
        assert body == ASK
        return seen

    run = both(kind, "fine", scenario)
    assert [step.status for step in run.steps] == ["ok"] * 4


def test_what_is_not_recorded(kind: Kind) -> None:
    """Token counts, batches and models are no generation: nothing is recorded, and they go on as they did."""

    async def scenario(world: World) -> Any:
        client = world.client
        count = {"model": "m", "messages": ASK["messages"]}
        seen = [
            await done(client.messages.count_tokens(**count)),
            await done(client.beta.messages.count_tokens(**count)),
        ]
        for call in (client.messages.batches.list, client.models.retrieve):
            try:
                seen.append(shown(await done(call(*(["m"] if "retrieve" in repr(call) else [])))))
            except Exception as error:
                seen.append(shown(error))
        return seen

    found = both(kind, "fine", scenario)
    assert (found.steps, found.stats) == ([], rt.Stats())
    assert found.requests == []
    assert len(found.server.requests) == 4


def test_sampling_is_read_from_the_body(kind: Kind) -> None:
    """Parameters that newer releases have no argument for are recorded as they were sent; the system prompt leads."""

    async def scenario(world: World) -> Any:
        extra = {"temperature": 0.5, "top_k": 3}
        options = {**ASK, "system": "be brief", "tools": [TOOL], "stop_sequences": ["x"], "extra_body": extra}
        return await done(world.client.messages.create(**options))

    step = both(kind, "fine", scenario).step
    expected = {"temperature": 0.5, "top_k": 3, "stop_sequences": ["x"], "max_tokens": 200}
    assert (step.model, step.sampling, step.tools) == ("m", expected, [TOOL])
    assert step.messages == [{"role": "system", "content": "be brief"}, *ASK["messages"]]


def test_stop_sequences(kind: Kind) -> None:
    """A stop sequence, and a limit, are told as the server told them."""

    async def scenario(world: World) -> Any:
        return [await ask(world.client, stop_sequences=["two"]), await streamed(world.client, max_tokens=3)]

    stopped, cut = both(kind, "one two three", scenario).steps
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop_sequence", "two")
    assert (cut.finish_reason, cut.stop_reason) == ("max_tokens", None)
    assert stopped.completion is not None
    assert stopped.completion.content == "one "


@pytest.mark.parametrize("keep", [True, False])
def test_keep_bytes(kind: Kind, keep: bool) -> None:
    """`keep_bytes` keeps both bodies on each step, decompressed; without it they are let go."""

    async def scenario(world: World) -> Any:
        return [await ask(world.client), await streamed(world.client), await ask(world.client.copy())]

    def script(request: Any) -> Reply:
        return Reply("fine", compress="gzip" if request.get("stream") else None)

    found = run(kind, script, scenario, wrap=lambda client: rt.wrap_anthropic(client, keep_bytes=keep))
    for step, record in zip(found.steps, found.requests, strict=True):
        assert step.status == "ok"
        assert step.request_bytes == (record.body if keep else None)
        expected = record.response_body if "content-encoding" not in dict(record.response_headers) else None
        if not keep:
            assert step.response_bytes is None
        elif expected is None:
            assert step.response_bytes is not None
            assert step.response_bytes.startswith(b"event: message_start\ndata: {")
        else:
            assert step.response_bytes == expected
