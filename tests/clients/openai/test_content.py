"""What a step holds is what went over the wire, streamed or not, whatever the caller does with its objects."""

from __future__ import annotations

import copy
from typing import Any, Literal

import openai
import pytest

import rollout_trace as rt
from rollout_trace.data.model import STEP_FIELDS
from rollout_trace.testing import Reply, ToolCall
from rollout_trace.wire.profiles import EngineName
from tests.amount import some
from tests.clients.either import Kind, done, shown

from .harness import CHAT, IDS, STREAM, World, both, chat, chunks, streamed
from .oracle import bodies_of, told

ADD = ToolCall("add", '{"a": 1, "b": 2}')
REPLIES: dict[str, Any] = {
    "text": Reply("a plain answer"),
    "letters": Reply("naïve 日本 🙂 end"),
    "empty": Reply(""),
    "length": Reply("cut", finish_reason="length"),
    "reasoning": Reply("so", reasoning="let me think"),
    "tool call": Reply(tool_calls=[ADD]),
    "two tool calls": Reply("both:", tool_calls=[ADD, ToolCall("sub", "not json")]),
    "refusal": Reply(None, extra_message={"refusal": "I will not"}),
    "unknown fields": Reply("x", extra_message={"audio": {"id": "a"}, "new": [1, None]}, extra={"new_top": {"a": 1}}),
    "stop": Reply("before STOP after"),
    "given ids": Reply(token_ids=[104, 105, 99999 % 257]),
}
VARYING = {"id", "call_id", "index", "started_at", "latency", "time_to_first_token", "attempts"}


def same_request(stream: bool) -> dict[str, Any]:
    options = {**IDS, "stop": ["STOP"], "top_logprobs": 2}
    return {**options, "stream": True, "stream_options": {"include_usage": True}} if stream else options


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", some(REPLIES, *list(REPLIES)[::2]))
def test_streamed_equals_unstreamed(kind: Kind, name: str, size: int) -> None:
    """A streamed step equals the step of the same answer unstreamed, field by field, save timing."""

    def scenario(stream: bool) -> Any:
        async def call(world: World) -> Any:
            answer = await done(world.client.chat.completions.create(**same_request(stream)))
            return await chunks(answer) if stream else answer

        return call

    whole, parts = (both(kind, REPLIES[name], scenario(stream), chunk_tokens=size).step for stream in (False, True))
    for field in STEP_FIELDS:
        if field not in VARYING:
            one, other = dataclass_free(getattr(whole, field)), dataclass_free(getattr(parts, field))
            assert one == other, field
    assert (whole.status, whole.token_issue) == ("ok", None)
    assert whole.top_logprobs is not None
    assert whole.completion_token_ids is not None
    assert len(whole.top_logprobs) == len(whole.completion_token_ids)


def dataclass_free(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def test_unknown_message_fields_are_kept(kind: Kind) -> None:
    """Fields of the message that the field does not know are on the completion."""

    async def scenario(world: World) -> Any:
        return [await chat(world.client), await streamed(world.client)]

    run = both(kind, REPLIES["unknown fields"], scenario)
    for step in run.steps:
        assert step.completion is not None
        assert step.completion.extra == {"audio": {"id": "a"}, "new": [1, None]}


def test_ids_and_logprobs_are_joined(kind: Kind) -> None:
    """Ids and logprobs of a stream are those of all its chunks, in order, for each choice."""

    def script(request: Any, choice: int) -> str:
        return f"choice {choice} {'x' * choice}"

    async def scenario(world: World) -> Any:
        return [await streamed(world.client, n=3), await chat(world.client, n=3)]

    run = both(kind, script, scenario, chunk_tokens=2)
    assert [len(steps) for steps in run.calls.values()] == [3, 3]
    for steps, record in zip(run.calls.values(), run.requests, strict=True):
        _, prompt, choices = told(record)
        for step in steps:
            assert step.token_source == "engine"
            assert step.completion_token_ids is not None
            assert step.logprobs is not None
            assert step.completion_token_ids.tolist() == choices[step.choice].ids
            assert len(step.logprobs) == len(step.completion_token_ids)
            assert step.prompt_token_ids is not None
            assert step.prompt_token_ids.tolist() == prompt
            assert step.completion is not None
            assert step.completion.content == script(None, step.choice)


@pytest.mark.parametrize("continuous", [False, True])
def test_usage_chunks(kind: Kind, continuous: bool) -> None:
    """Usage is read from the chunk without choices, also where every chunk has one."""
    options = {"include_usage": True, "continuous_usage_stats": continuous}

    async def scenario(world: World) -> Any:
        return await streamed(world.client, stream_options=options, n=2)

    run = both(kind, "fine", scenario)
    usage = bodies_of(run.requests[0])[-1]["usage"]
    assert [step.usage for step in run.steps] == [run.steps[0].usage] * 2
    found = run.steps[0].usage
    assert found is not None
    assert (found.input, found.output) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert found.output == 2 * len("fine") + 2


@pytest.mark.parametrize("index", ["normal", "null", "missing"])
def test_tool_deltas(kind: Kind, index: Literal["normal", "null", "missing"]) -> None:
    """Tool calls are joined from their deltas, also when these have no index, or a null."""
    reply = Reply(tool_calls=[ADD, ToolCall("sub", '{"a": [2, "é"]}')], tool_index=index)

    async def scenario(world: World) -> Any:
        return await streamed(world.client)

    run = both(kind, reply, scenario)
    assert run.step.completion is not None
    calls = run.step.completion.tool_calls
    assert [(call.name, call.arguments) for call in calls] == [ADD, ("sub", '{"a": [2, "é"]}')]
    assert len({call.id for call in calls}) == 2
    assert None not in {call.id for call in calls}
    assert run.step.finish_reason == "tool_calls"


def test_messages_from_a_generator(kind: Kind) -> None:
    """Messages given as a generator arrive whole, and are recorded."""

    async def scenario(world: World) -> Any:
        return [
            await chat(world.client, messages=(message for message in CHAT["messages"] * 2)),
            await streamed(world.client, messages=iter(CHAT["messages"] * 3)),
        ]

    run = both(kind, "fine", scenario)
    assert [step.messages for step in run.steps] == [CHAT["messages"] * 2, CHAT["messages"] * 3]


def test_messages_changed_afterwards(kind: Kind) -> None:
    """A list that changes during or after its call is recorded as it was sent."""

    async def scenario(world: World) -> Any:
        messages = copy.deepcopy(CHAT["messages"])
        stream = await done(world.client.chat.completions.create(**{**STREAM, "messages": messages}))
        seen = [shown(await anext(stream) if world.kind == "async" else next(stream))]
        messages.append({"role": "user", "content": "later"})
        messages[0]["content"] = "changed"
        seen += await chunks(stream)
        seen.append(await chat(world.client, messages=messages))
        messages.clear()
        return seen

    run = both(kind, "fine", scenario)
    changed = [{"role": "user", "content": "changed"}, {"role": "user", "content": "later"}]
    assert [step.messages for step in run.steps] == [CHAT["messages"], changed]


def asked() -> dict[str, Any]:
    """Arguments of a call, with a dict or a list wherever the SDK takes one."""
    return {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "tools": [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}],
        "tool_choice": {"type": "function", "function": {"name": "add"}},
        "stop": ["x", "y"],
        "logit_bias": {"5": 1},
        "metadata": {"a": "b"},
        "extra_headers": {"x-mine": "1"},
        "extra_query": {"q": "1"},
        "extra_body": {"top_k": 5, "nested": {"a": [1]}},
    }


def assert_untouched(kind: Kind, wrap: Any) -> tuple[Any, list[rt.Step]]:
    from .harness import run

    given = asked()

    async def scenario(world: World) -> Any:
        create = world.client.chat.completions.create
        return [
            await done(create(model="m", **given)),
            await chunks(await done(create(model="m", **given, stream=True))),
        ]

    found = run(kind, "fine", scenario, wrap=wrap)
    assert given == asked()
    return found.server.requests, found.steps


@pytest.mark.parametrize("engine", [None, "vllm"])
def test_arguments_are_untouched(kind: Kind, engine: EngineName | None) -> None:
    """Lists and dicts of the caller's are as they were, and `extra_body` is recorded with the other sampling."""
    requests, steps = assert_untouched(kind, lambda client: rt.wrap_openai(client, engine=engine))
    assert requests[0].headers["x-mine"] == "1"
    assert requests[0].query == "q=1"
    for step in steps:
        assert step.messages == asked()["messages"]
        assert step.tools == asked()["tools"]
        assert step.sampling is not None
        assert (step.sampling["top_k"], step.sampling["nested"]) == (5, {"a": [1]})
        assert step.sampling["logit_bias"] == {"5": 1}
        assert "x-mine" not in step.sampling


def test_the_wire_is_the_same(kind: Kind) -> None:
    """Body and headers are those of a client that is not wrapped, whatever the call has in it."""

    async def scenario(world: World) -> Any:
        given = asked()
        client = world.client.with_options(default_headers={"x-default": "2"})
        return [await chat(client, **given), await streamed(client, **given, timeout=9), given]

    both(kind, "fine", scenario)


def test_sentinels(kind: Kind) -> None:
    """What is not given is not sent, and not recorded; None is sent, and recorded."""
    given: dict[str, Any] = {"temperature": openai.NOT_GIVEN, "seed": None}
    if hasattr(openai, "omit"):
        given |= {"top_p": openai.omit}

    async def scenario(world: World) -> Any:
        return await chat(world.client, **given)

    step = both(kind, "fine", scenario).step
    assert step.sampling is not None
    assert "temperature" not in step.sampling
    assert "top_p" not in step.sampling
    assert step.sampling["seed"] is None


def test_what_was_asked(kind: Kind) -> None:
    """Model, tools and sampling are those of the request; how the answer travels is no sampling."""

    async def scenario(world: World) -> Any:
        return await streamed(world.client, temperature=0.5, max_tokens=9, stream_options={"include_usage": False})

    step = both(kind, "fine", scenario).step
    assert step.model == "m"
    assert step.response_model == "m"
    assert step.sampling == {"temperature": 0.5, "max_tokens": 9, "logprobs": True, "return_token_ids": True}
