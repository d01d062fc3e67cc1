"""Wrapping and unwrapping: the client stays what it was for its user."""

from __future__ import annotations

import asyncio
import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

import rollout_trace as rt
from rollout_trace.record.scope import place
from rollout_trace.testing import Fault, ScriptedServer
from tests.clients.either import Kind, done, drive

from .harness import CHAT, IDS, World, both, chat, run, streamed, wrapped


def client_of(kind: Kind, made: Any = None, **options: Any) -> Any:
    made = made or (openai.OpenAI if kind == "sync" else openai.AsyncOpenAI)
    return made(api_key="none", base_url="http://127.0.0.1:9/v1", **options)


def twice(client: Any) -> Any:
    return rt.wrap_openai(rt.wrap_openai(client))


def test_wrapping_twice(kind: Kind) -> None:
    """A client wrapped twice, or a copy wrapped again, records each call once."""

    async def scenario(world: World) -> Any:
        copied = world.wrap(world.client.copy())
        return [await chat(world.client), await streamed(copied), type(copied) is type(world.client)]

    found = run(kind, "fine", scenario, wrap=twice)
    assert found.outcome[1][2] is True
    both(kind, "fine", scenario, wrap=twice)


def test_the_same_object_comes_back(kind: Kind) -> None:
    """Wrapping gives the client itself; wrapping it again changes its settings."""
    client = client_of(kind)
    assert rt.wrap_openai(client) is client
    first = type(client)
    assert rt.wrap_openai(client, engine="vllm") is client
    assert type(client) is not first
    assert len(type(client).__mro__) == len(first.__mro__)


def test_unwrap(kind: Kind) -> None:
    """Unwrapping gives the client its own class again; it records no more. Copies made before still do."""

    async def scenario(world: World) -> Any:
        client, plain = world.client, openai.OpenAI if world.kind == "sync" else openai.AsyncOpenAI
        copied = client.copy()
        if world.wrap is wrapped:
            assert rt.unwrap(client) is client
        assert type(client) is plain
        return [await chat(client, seed=1), await chat(copied, seed=2)]

    found = both(kind, "fine", scenario, unrecorded=1)
    assert [(step.sampling or {})["seed"] for step in found.steps] == [2]


@pytest.mark.parametrize("way", [chat, streamed])
@pytest.mark.parametrize("bound", [False, True], ids=["wrapped", "bound"])
def test_unwrap_during_a_call(kind: Kind, way: Any, bound: bool) -> None:
    """The call is recorded to its end, with its retries; a later one is not, and then the class is the client's own."""
    plain = openai.OpenAI if kind == "sync" else openai.AsyncOpenAI
    own: list[rt.Trajectory] = []

    async def scenario(world: World) -> Any:
        with rt.trajectory() as trajectory:
            own.append(trajectory)
            client = rt.bind(world.client, trajectory) if bound else world.client
            pool = ThreadPoolExecutor(1)
            if world.kind == "sync":
                first: Any = pool.submit(rt.propagate(lambda: drive("sync", way(client, seed=1))))
            else:
                first = asyncio.create_task(way(client, seed=1))
            await world.held()
            assert rt.unwrap(client) is client
            assert rt.unwrap(client) is client
            await chat(client, seed=2)
            kept = type(client)
            world.server.release()
            answer = first.result() if world.kind == "sync" else await first
            pool.shutdown()
            assert (issubclass(kept, plain), type(client)) == (True, plain)
            await chat(client, seed=3)
            await chat(rt.wrap_openai(client), seed=4)
            return answer

    script = [Fault(status=500, hold=True), "second", "first", "third", "fourth"]
    found = run(kind, script, scenario, max_retries=1)
    assert found.outcome[0] == "returned", found.outcome
    (trajectory,) = own
    assert [(step.sampling or {})["seed"] for step in trajectory.steps] == [1, 4]
    first = trajectory.steps[0]
    assert (first.status, [attempt.status for attempt in first.attempts]) == ("ok", [500, 200])
    assert first.completion is not None
    assert first.completion.content == "first"
    assert first.completion_token_ids is not None


def test_unwrap_what_is_not_wrapped(kind: Kind) -> None:
    """Unwrapping twice, or what was never wrapped, changes nothing."""
    client = client_of(kind)
    before = type(client)
    assert rt.unwrap(client) is client
    rt.unwrap(rt.unwrap(rt.wrap_openai(client)))
    assert type(client) is before


class SlottedClient(openai.OpenAI):
    """A user's client with slots, and methods of its own."""

    __slots__ = ("mine",)

    def post_twice(self) -> list[Any]:
        return [self.chat.completions.create(**IDS, seed=seed) for seed in (1, 2)]

    def _prepare_request(self, request: Any) -> None:
        request.headers["x-mine"] = "1"
        super()._prepare_request(request)


class AsyncSlottedClient(openai.AsyncOpenAI):
    """The same, async."""

    __slots__ = ("mine",)

    async def post_twice(self) -> list[Any]:
        return [await self.chat.completions.create(**IDS, seed=seed) for seed in (1, 2)]

    async def _prepare_request(self, request: Any) -> None:
        request.headers["x-mine"] = "1"
        await super()._prepare_request(request)


def test_a_subclass_of_the_users(kind: Kind) -> None:
    """A user's subclass keeps its slots, its methods and its overrides."""
    made: Any = SlottedClient if kind == "sync" else AsyncSlottedClient

    async def scenario(world: World) -> Any:
        client = world.new_client(made)
        client.mine = "kept"
        world.wrap(client)
        assert isinstance(client, made)
        client.mine += "!"
        seen = [client.mine, await done(client.post_twice()), client, hasattr(client.copy(), "mine")]
        with pytest.raises(AttributeError):
            _ = client.copy().mine
        return seen

    found = both(kind, "fine", scenario)
    assert [(step.sampling or {})["seed"] for step in found.steps] == [1, 2]
    assert found.requests[0].headers["x-mine"] == "1"


def looks(client: Any) -> dict[str, Any]:
    """All that a user can easily see of a client."""
    kind = type(client)
    methods = ("request", "post", "copy", "with_options", "_prepare_request", "_process_response")
    return {
        "isinstance": [isinstance(client, made) for made in (openai.OpenAI, openai.AsyncOpenAI, openai.AzureOpenAI)],
        "names": (kind.__name__, kind.__qualname__, kind.__module__, kind.__doc__),
        "repr": repr(client),
        "repr of the class": repr(kind),
        "signature": inspect.signature(kind),
        "signatures": [inspect.signature(getattr(client, name)) for name in methods],
        "docs": [getattr(client, name).__doc__ for name in methods],
        "names of methods": [getattr(client, name).__qualname__ for name in methods],
        "coroutines": [inspect.iscoroutinefunction(getattr(client, name)) for name in methods],
        "create": inspect.signature(client.chat.completions.create),
        "create is a method": inspect.ismethod(client.chat.completions.create),
        "resources": [type(client.chat.completions), type(client.with_raw_response)],
        "state": sorted(vars(client)),
        "dir": [name for name in dir(client) if "rollout_trace" not in name],
        "auth": client.auth_headers,
    }


@pytest.mark.parametrize("name", ["OpenAI", "AzureOpenAI", "SlottedClient"])
def test_a_wrapped_client_looks_the_same(kind: Kind, name: str) -> None:
    """isinstance, repr, names, signatures and state of a client are those it had."""
    prefix = "" if kind == "sync" else "Async"
    if name == "AzureOpenAI":
        options = {"api_key": "none", "api_version": "1", "azure_endpoint": "http://127.0.0.1:9"}
        client = getattr(openai, prefix + name)(**options)
    else:
        client = client_of(kind, globals().get(prefix + name) or getattr(openai, prefix + name))
    before, kinds = looks(client), type(client)
    rt.wrap_openai(client)
    after = looks(client)
    assert after == before
    assert issubclass(type(client), kinds)
    assert looks(rt.unwrap(client)) == before


def test_attributes_can_be_set(kind: Kind) -> None:
    """Attributes of a wrapped client can be set and read as before."""
    client = rt.wrap_openai(client_of(kind))
    client.api_key, client.max_retries, client.anything = "other", 7, 1
    assert (client.api_key, client.max_retries, client.anything) == ("other", 7, 1)
    assert client.copy().api_key == "other"


def test_with_statement(kind: Kind) -> None:
    """A wrapped client works as a context manager and closes."""

    async def scenario(world: World) -> Any:
        client = world.client
        if world.kind == "sync":
            with client as inside:
                seen = inside is client
        else:
            async with client as inside:
                seen = inside is client
        return [seen, client.is_closed()]

    both(kind, "fine", scenario)


WRONG: list[Any] = [openai, openai.OpenAI, openai.AsyncOpenAI, None, "client", object(), 5]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda value: repr(value)[:20])
def test_wrong_objects(wrong: Any) -> None:
    """What is no client object is a TypeError that says what is wanted and what was given."""
    with pytest.raises(TypeError, match=r"wrap_openai\(\) needs a client object of the openai SDK, such as") as error:
        rt.wrap_openai(wrong)
    assert repr(wrong)[:20] in str(error.value)
    assert rt.unwrap(wrong) is wrong


def test_a_resource_is_no_client(kind: Kind) -> None:
    """Nor are a resource and an HTTP client."""
    client = client_of(kind)
    for wrong in (client.chat, client.chat.completions, client._client, client.with_raw_response):
        with pytest.raises(TypeError, match="needs a client object"):
            rt.wrap_openai(wrong)


def test_bind_wrong_objects(kind: Kind) -> None:
    """`bind` says which of its arguments is wrong."""
    with rt.trajectory() as trajectory:
        with pytest.raises(TypeError, match="needs a client object"):
            rt.bind(object(), trajectory)
    with pytest.raises(TypeError, match=r"bind\(\) needs a Trajectory, got str"):
        rt.bind(client_of(kind), "trajectory")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "named"), [("vLLM", "vllm"), ("", "vllm"), ("sglan", "sglang"), (5, "vllm"), (["vllm"], "vllm")]
)
def test_unknown_engines(name: Any, named: str) -> None:
    """An engine that is not known is an error that names the nearest, or the known ones; the client stays unwrapped."""
    client = client_of("sync")
    with pytest.raises(ValueError, match=named) as error:
        rt.wrap_openai(client, engine=name)
    assert f"engine={name!r} is not known" in str(error.value)
    assert type(client) is openai.OpenAI


def test_the_server_is_not_asked_on_wrapping() -> None:
    """Wrapping makes no request."""
    with ScriptedServer("fine") as server:
        for engine in (None, "vllm"):
            rt.wrap_openai(openai.OpenAI(api_key="none", base_url=server.base_url), engine=engine).close()
    assert server.requests == []


def test_a_method_kept_from_before_unwrapping() -> None:
    """Calling it makes the call, unrecorded."""
    with ScriptedServer("fine") as server, openai.OpenAI(api_key="none", base_url=server.base_url) as plain:
        request = rt.wrap_openai(plain).request
        rt.unwrap(plain)
        options = openai._models.FinalRequestOptions.construct(
            method="post", url="/chat/completions", json_data={"model": "m", "messages": []}
        )
        with rt.trajectory() as trajectory:
            assert request(object, options) is not None
    assert len(server.requests) == 1
    assert trajectory.steps == []


def test_unwrapping_while_a_call_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """As another thread may do it, between any two lines: the call that has begun is recorded to its end."""

    def placed(call: Any) -> None:
        place(call)
        rt.unwrap(plain)

    monkeypatch.setattr("rollout_trace.clients.recorder.place", placed)
    with ScriptedServer("fine") as server, openai.OpenAI(api_key="none", base_url=server.base_url) as plain:
        with rt.trajectory() as trajectory:
            rt.wrap_openai(plain, engine="vllm").chat.completions.create(**CHAT)
        assert type(plain) is openai.OpenAI
    (step,) = trajectory.steps
    assert (step.status, len(step.attempts)) == ("ok", 1)
    assert step.completion_token_ids is not None
