"""Every way to make a call is recorded once, and looks to its caller as it did before."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from tests.clients.either import Kind, done, each, entered, kind_of, shown

from .harness import CHAT, IDS, STREAM, World, both, chat, chunks, parsing, streamed


class Sum(BaseModel):
    """A structured answer."""

    answer: int


async def parse(world: World) -> Any:
    answer = await done(parsing(world.client).parse(**IDS, response_format=Sum))
    return [answer, answer.choices[0].message.parsed.answer]


async def helper(world: World) -> Any:
    async with entered(parsing(world.client).stream(**IDS)) as stream:
        events = [shown(event) async for event in each(stream)]
        return [events, await done(stream.get_final_completion())]


async def beta_parse(world: World) -> Any:
    return await done(world.client.beta.chat.completions.parse(**IDS, response_format=Sum))


async def beta_helper(world: World) -> Any:
    async with entered(world.client.beta.chat.completions.stream(**IDS, response_format=Sum)) as stream:
        return [shown(event) async for event in each(stream)]


SURFACES: dict[str, Callable[[World], Any]] = {
    "create": lambda world: chat(world.client),
    "create stream": lambda world: streamed(world.client),
    "parse": parse,
    "stream": helper,
    "beta parse": beta_parse,
    "beta stream": beta_helper,
}


@pytest.mark.parametrize("surface", SURFACES)
def test_one_record_per_call(kind: Kind, surface: str) -> None:
    """create, parse and stream, and their beta forms, make one step with all its ids."""

    async def scenario(world: World) -> Any:
        return await SURFACES[surface](world)

    run = both(kind, '{"answer": 4}', scenario)
    assert (run.step.status, run.step.token_source, run.step.finish_reason) == ("ok", "engine", "stop")
    assert run.step.protocol == "openai.chat"
    assert len(run.step.attempts) == 1


def with_new_http_client(world: World) -> Any:
    return world.track(world.client.with_options(http_client=world.http_client()))


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
        return [await chat(copied), await streamed(copied, seed=1), await chat(world.client, seed=2), copied]

    run = both(kind, "fine", scenario)
    assert [(step.sampling or {}).get("seed") for step in run.steps] == [None, 1, 2]


def test_what_was_cached_before_wrapping_records(kind: Kind) -> None:
    """Resources, raw objects and bound methods taken from the client before it was wrapped record too."""

    async def scenario(world: World) -> Any:
        client = world.new_client()
        resource, raw = client.chat.completions, client.chat.completions.with_raw_response
        root, create = client.with_raw_response, client.chat.completions.create
        raw_create, copied = raw.create, client.copy()
        client = world.wrap(client)
        return [
            await done(resource.create(**IDS, seed=0)),
            (await done(raw.create(**IDS, seed=1))).parse(),
            (await done(root.chat.completions.create(**IDS, seed=2))).parse(),
            await done(create(**IDS, seed=3)),
            (await done(raw_create(**IDS, seed=4))).parse(),
            await chunks(await done(create(**STREAM, seed=5))),
            await done(copied.chat.completions.create(**IDS, seed=6)),
        ]

    run = both(kind, "fine", scenario, unrecorded=1)
    assert [(step.sampling or {})["seed"] for step in run.steps] == [0, 1, 2, 3, 4, 5]


def test_azure(kind: Kind) -> None:
    """An Azure client records, though its URLs are others."""

    async def scenario(world: World) -> Any:
        made = openai.AzureOpenAI if world.kind == "sync" else openai.AsyncAzureOpenAI
        client = world.wrap(world.new_client(made, azure_endpoint=world.server.url, api_version="2024-10-21"))
        copied = client.with_options(timeout=5)
        return [await chat(client), await streamed(copied), copied]

    run = both(kind, "fine", scenario)
    assert {record.path for record in run.requests} == {"/openai/deployments/m/chat/completions"}
    assert [step.protocol for step in run.steps] == ["openai.chat"] * 2
    assert [step.model for step in run.steps] == ["m", "m"]


def test_post(kind: Kind) -> None:
    """`client.post` records: parsed, as a stream, as a plain response, and with a whole URL."""

    async def scenario(world: World) -> Any:
        client, body = world.client, {**CHAT, "logprobs": True, "return_token_ids": True}
        kept = copy.deepcopy(body)
        stream_cls = openai.Stream if world.kind == "sync" else openai.AsyncStream
        url = f"{world.server.base_url}/chat/completions"
        stream = await done(
            client.post(
                "/chat/completions",
                cast_to=ChatCompletion,
                body={**body, "stream": True},
                stream=True,
                stream_cls=stream_cls[ChatCompletionChunk],
            )
        )
        seen = [
            await done(client.post("/chat/completions", cast_to=ChatCompletion, body=body)),
            await chunks(stream),
            await done(client.post("/chat/completions", cast_to=object, body=body)),
            await done(client.post(url, cast_to=ChatCompletion, body=body, options={"headers": {"x-mine": "1"}})),
        ]
        assert body == kept
        return seen

    run = both(kind, "fine", scenario)
    assert [step.status for step in run.steps] == ["ok"] * 4


def test_beta_responses(kind: Kind) -> None:
    """`beta.responses.create` is kept as a call."""
    if not hasattr(openai.OpenAI(api_key="none").beta, "responses"):
        pytest.skip(f"openai {openai.__version__} has no beta.responses")

    async def scenario(world: World) -> Any:
        return await done(world.client.beta.responses.create(model="m", input="hi"))

    assert both(kind, "fine", scenario).step.protocol == "openai.responses"


def test_the_module_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client behind `openai.chat` can be wrapped as any other."""
    monkeypatch.setattr(openai, "api_key", "none")

    async def scenario(world: World) -> Any:
        monkeypatch.setattr(openai, "base_url", f"{world.server.base_url}/")
        monkeypatch.setattr(openai, "http_client", None)
        openai._reset_client()
        client = world.track(openai._load_client())
        world.wrap(client)
        return [openai.chat.completions.create(**IDS), kind_of(client)]

    assert both("sync", "fine", scenario).step.status == "ok"
    openai._reset_client()
