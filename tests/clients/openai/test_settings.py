"""What `engine=` asks the server for, what is not recorded, and what waits to be decoded."""

from __future__ import annotations

import functools
from typing import Any

import openai
import pytest

import rollout_trace as rt
from rollout_trace.data.model import STEP_FIELDS
from rollout_trace.record import decoder as call_module
from rollout_trace.testing import Fault, Reply
from tests.clients.either import Kind, done, shown

from .harness import CHAT, IDS, Run, World, both, chat, chunks, run, streamed

VERSIONS = {"return_weight_versions": True}
IDS_AND_VERSIONS = {"return_token_ids": True, **VERSIONS}
vllm = functools.partial(rt.wrap_openai, engine="vllm")


def bodies(kind: Kind, scenario: Any, wrap: Any = vllm) -> list[Any]:
    """The JSON of the requests that a scenario makes."""
    found = run(kind, "fine", scenario, wrap=wrap)
    assert found.outcome[0] == "returned", found.outcome
    return [record.json for record in found.server.requests]


def asked_for(kind: Kind, resource: str = "chat", **options: Any) -> dict[str, Any]:
    """The fields that `engine="vllm"` adds to a call."""

    async def scenario(world: World) -> Any:
        if resource == "chat":
            return await done(world.client.chat.completions.create(**CHAT, **options))
        return await done(world.client.completions.create(model="m", prompt="hi", **options))

    (plain,), (ours,) = bodies(kind, scenario, lambda client: client), bodies(kind, scenario)
    plain = {name: value for name, value in plain.items() if value is not None}
    assert ours.items() >= plain.items()
    return {name: value for name, value in ours.items() if name not in plain and value is not None}


def test_what_vllm_is_asked(kind: Kind) -> None:
    """`engine="vllm"` adds ids, logprobs, versions, to streams of chat their usage, and nothing else."""
    assert asked_for(kind) == {**IDS_AND_VERSIONS, "logprobs": True}
    assert asked_for(kind, "completions") == {**IDS_AND_VERSIONS, "logprobs": 0}
    usage = {"stream_options": {"include_usage": True}}
    assert asked_for(kind, stream=True) == {**IDS_AND_VERSIONS, "logprobs": True, **usage}
    assert asked_for(kind, extra_body={"top_k": 1}) == {**IDS_AND_VERSIONS, "logprobs": True}


@pytest.mark.parametrize("value", [True, False])
def test_the_caller_is_not_overridden(kind: Kind, value: bool) -> None:
    """What the caller set stays as it is, in the call or in `extra_body`, also when it is False."""
    assert asked_for(kind, logprobs=value) == {**IDS_AND_VERSIONS}
    assert asked_for(kind, extra_body={"logprobs": value}) == {**IDS_AND_VERSIONS}
    assert asked_for(kind, extra_body={"return_token_ids": value}) == {"logprobs": True, **VERSIONS}
    assert asked_for(kind, logprobs=value, extra_body={"return_token_ids": value}) == VERSIONS


@pytest.mark.parametrize("value", [0, 3])
def test_the_caller_of_completions_is_not_overridden(kind: Kind, value: int) -> None:
    """The same for completions, whose `logprobs` is a number."""
    assert asked_for(kind, "completions", logprobs=value) == {**IDS_AND_VERSIONS}
    assert asked_for(kind, "completions", extra_body={"logprobs": value}) == {**IDS_AND_VERSIONS}


def test_a_null_is_not_set(kind: Kind) -> None:
    """Wrappers send null for what nobody gave."""
    both = {**IDS_AND_VERSIONS, "logprobs": True}
    assert asked_for(kind, logprobs=None) == both
    assert asked_for(kind, extra_body={"logprobs": None, "return_token_ids": None}) == both
    assert asked_for(kind, "completions", logprobs=None) == {**IDS_AND_VERSIONS, "logprobs": 0}


def test_sentinels_are_not_set(kind: Kind) -> None:
    """A sentinel for "not given" is not a value that the caller set."""
    assert asked_for(kind, logprobs=openai.NOT_GIVEN) == {**IDS_AND_VERSIONS, "logprobs": True}
    if hasattr(openai, "omit"):
        assert asked_for(kind, logprobs=openai.omit) == {**IDS_AND_VERSIONS, "logprobs": True}


def test_vllm_steps_hold_ids(kind: Kind) -> None:
    """With `engine="vllm"` an agent that asks for nothing has all ids and logprobs, also from copies."""

    async def scenario(world: World) -> Any:
        client = world.client.with_options(timeout=9)
        create = client.chat.completions.create
        return [await done(create(**CHAT)), await chunks(await done(create(**CHAT, stream=True, n=2)))]

    found = run(kind, "fine", scenario, wrap=vllm)
    assert len(found.steps) == 3
    for step in found.steps:
        assert (step.engine, step.token_source, step.token_issue) == ("vllm", "engine", None)


def test_vllm_is_not_asked_elsewhere(kind: Kind) -> None:
    """Models, embeddings and other calls are sent as they are."""

    async def scenario(world: World) -> Any:
        client = world.client
        seen = [(await done(client.models.list())).data]
        await done(client.embeddings.create(model="m", input="hi"))
        with pytest.raises(openai.NotFoundError):
            await done(client.moderations.create(model="m", input="hi"))
        return seen

    assert bodies(kind, scenario) == bodies(kind, scenario, lambda client: client)


def test_what_is_not_recorded(kind: Kind) -> None:
    """Models, embeddings and moderations are no generation: nothing is recorded, and they go on as they did."""

    async def scenario(world: World) -> Any:
        seen: list[Any] = [(await done(world.client.models.list())).data]
        for path in ("embeddings", "moderations"):
            try:
                await done(getattr(world.client, path).create(model="m", input="hi"))
            except openai.NotFoundError as error:
                seen.append(shown(error))
        seen.append(shown(await done(world.client.get("/models", cast_to=object))))
        return seen

    found = both(kind, "fine", scenario)
    assert found.steps == []
    assert found.stats == rt.Stats()
    assert len(found.server.requests) == 4


def test_other_protocols(kind: Kind) -> None:
    """Responses and completions, streamed or not, are a step each; where they cannot be read yet, the step says so."""

    async def scenario(world: World) -> Any:
        client = world.client
        return [
            await done(client.responses.create(model="m", input="hi")),
            await chunks(await done(client.responses.create(model="m", input="hi", stream=True))),
            await done(client.completions.create(model="m", prompt="hi")),
            await chunks(await done(client.completions.create(model="m", prompt="hi", stream=True))),
        ]

    found = both(kind, "fine", scenario, wrap=functools.partial(rt.wrap_openai, keep_bytes=True))
    protocols = ["openai.responses", "openai.responses", "openai.completions", "openai.completions"]
    assert [step.protocol for step in found.steps] == protocols
    for step, record in zip(found.steps, found.requests, strict=True):
        assert (step.model, step.status) == ("m", "ok")
        assert step.request_bytes == record.body
        assert step.response_bytes
        assert record.response_body.startswith(step.response_bytes)
        if step.completion is None:
            assert step.token_issue is not None
            assert step.token_issue.code == "protocol_not_decoded"
        else:
            assert step.completion.content == "fine"


def test_another_protocol_that_fails(kind: Kind) -> None:
    """Its errors are read all the same."""

    async def scenario(world: World) -> Any:
        return await done(world.client.responses.create(model="m", input="hi"))

    step = both(kind, Fault(status=400), scenario, raises=True).step
    assert (step.status, step.error and step.error.status) == ("error", 400)


@pytest.mark.parametrize("keep", [True, False])
def test_keep_bytes(kind: Kind, keep: bool) -> None:
    """`keep_bytes` keeps both bodies on each step, decompressed; without it they are let go."""

    async def scenario(world: World) -> Any:
        return [await chat(world.client, n=2), await streamed(world.client), await chat(world.client.copy())]

    def script(request: Any) -> Reply:
        return Reply("fine", compress="gzip" if request.get("stream") else None)

    found = both(kind, script, scenario, wrap=functools.partial(rt.wrap_openai, keep_bytes=keep))
    for steps, record in zip(found.calls.values(), found.requests, strict=True):
        for step in steps:
            assert step.request_bytes == (record.body if keep else None)
            if keep and "content-encoding" not in dict(record.response_headers):
                assert step.response_bytes == record.response_body
            elif keep:
                assert step.response_bytes is not None
                assert step.response_bytes.startswith(b"data: {")
            else:
                assert step.response_bytes is None


def waiting() -> int:
    """Bytes that wait to be decoded."""
    return call_module.pending._total


def many_calls(kind: Kind, seen: list[int]) -> Run:
    async def scenario(world: World) -> Any:
        answers = []
        for number in range(6):
            way = streamed if number % 2 else chat
            answers.append(await way(world.client, seed=number, n=1 + number % 2))
            seen.append(waiting())
        return answers

    return both(kind, lambda request: f"answer {request['seed']} " * 3, scenario)


@pytest.mark.parametrize("limit", [0, 5000])
def test_bytes_that_wait_are_bounded(kind: Kind, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the limit the oldest calls are decoded at once, with the same result; in the end nothing waits."""
    monkeypatch.setattr(call_module, "pending", type(call_module.pending)())
    unbounded: list[int] = []
    plain = many_calls(kind, unbounded)
    assert max(unbounded[6:]) > 5000
    monkeypatch.setattr(call_module, "PENDING_LIMIT", limit)
    bounded: list[int] = []
    ours = many_calls(kind, bounded)
    assert max(bounded) <= limit
    assert waiting() == 0
    varying = {"id", "call_id", "started_at", "latency", "time_to_first_token", "attempts"}
    for one, other in zip(ours.steps, plain.steps, strict=True):
        for name in set(STEP_FIELDS) - varying:
            found, expected = getattr(one, name), getattr(other, name)
            assert (found == expected).all() if hasattr(found, "all") else found == expected, name


def test_nothing_waits_after_a_trajectory(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls of a closed trajectory do not wait any more, also those that were abandoned."""
    monkeypatch.setattr(call_module, "pending", type(call_module.pending)())

    async def scenario(world: World) -> Any:
        stream = await done(world.client.chat.completions.create(**IDS, stream=True))
        await done(stream.close())
        return await chat(world.client)

    both(kind, "fine", scenario)
    assert waiting() == 0
