"""Wrapping and unwrapping: the client stays what it was for its user."""

from __future__ import annotations

import inspect
from typing import Any

import anthropic
import pytest

import rollout_trace as rt
from rollout_trace.testing import ScriptedServer
from tests.clients.either import Kind

from .harness import ASK, World, ask, both, numbered, run, seeds, streamed, wrapped


def client_of(kind: Kind, made: Any = None, **options: Any) -> Any:
    made = made or (anthropic.Anthropic if kind == "sync" else anthropic.AsyncAnthropic)
    return made(api_key="none", base_url="http://127.0.0.1:9", **options)


def twice(client: Any) -> Any:
    return rt.wrap_anthropic(rt.wrap_anthropic(client))


def test_wrapping_twice(kind: Kind) -> None:
    """A client wrapped twice, or a copy wrapped again, records each call once."""

    async def scenario(world: World) -> Any:
        copied = world.wrap(world.client.copy())
        return [await ask(world.client), await streamed(copied), type(copied) is type(world.client)]

    both(kind, "fine", scenario, wrap=twice)


def test_the_same_object_comes_back(kind: Kind) -> None:
    """Wrapping gives the client itself; wrapping it again changes its settings."""
    client = client_of(kind)
    assert rt.wrap_anthropic(client) is client
    first = type(client)
    assert rt.wrap_anthropic(client, keep_bytes=True) is client
    assert type(client) is not first
    assert len(type(client).__mro__) == len(first.__mro__)


def test_unwrap(kind: Kind) -> None:
    """Unwrapping gives the client its own class again; it records no more. Copies made before still do."""

    async def scenario(world: World) -> Any:
        client, plain = world.client, anthropic.Anthropic if world.kind == "sync" else anthropic.AsyncAnthropic
        copied = client.copy()
        if world.wrap is wrapped:
            assert rt.unwrap(client) is client
        assert type(client) is plain
        return [await ask(client, **numbered(1)), await ask(copied, **numbered(2))]

    assert seeds(both(kind, "fine", scenario, unrecorded=1)) == ["2"]


class SlottedClient(anthropic.Anthropic):
    """A user's client with slots, and a method of its own."""

    __slots__ = ("mine",)

    def _prepare_request(self, request: Any) -> None:
        request.headers["x-mine"] = "1"
        super()._prepare_request(request)


class AsyncSlottedClient(anthropic.AsyncAnthropic):
    """The same, async."""

    __slots__ = ("mine",)

    async def _prepare_request(self, request: Any) -> None:
        request.headers["x-mine"] = "1"
        await super()._prepare_request(request)


def test_a_subclass_of_the_users(kind: Kind) -> None:
    """A user's subclass keeps its slots and its overrides."""
    made: Any = SlottedClient if kind == "sync" else AsyncSlottedClient

    async def scenario(world: World) -> Any:
        client = world.track(made(base_url=world.server.url, api_key="none", max_retries=0))
        client.mine = "kept"
        world.wrap(client)
        assert isinstance(client, made)
        return [client.mine, await ask(client), client]

    assert both(kind, "fine", scenario).requests[0].headers["x-mine"] == "1"


def looks(client: Any) -> dict[str, Any]:
    """All that a user can easily see of a client."""
    kind = type(client)
    methods = ("request", "post", "copy", "with_options", "_prepare_request", "_process_response", "_should_retry")
    return {
        "isinstance": [isinstance(client, made) for made in (anthropic.Anthropic, anthropic.AsyncAnthropic)],
        "names": (kind.__name__, kind.__qualname__, kind.__module__, kind.__doc__),
        "repr": repr(client),
        "repr of the class": repr(kind),
        "signature": inspect.signature(kind),
        "signatures": [inspect.signature(getattr(client, name)) for name in methods],
        "docs": [getattr(client, name).__doc__ for name in methods],
        "coroutines": [inspect.iscoroutinefunction(getattr(client, name)) for name in methods],
        "create": inspect.signature(client.messages.create),
        "create is a method": inspect.ismethod(client.messages.create),
        "resources": [type(client.messages), type(client.with_raw_response)],
        "state": sorted(vars(client)),
        "dir": [name for name in dir(client) if "rollout_trace" not in name],
        "auth": client.auth_headers,
    }


def test_a_wrapped_client_looks_the_same(kind: Kind) -> None:
    """isinstance, repr, names, signatures and state of a client are those it had."""
    client = client_of(kind)
    before = looks(client)
    rt.wrap_anthropic(client)
    assert looks(client) == before
    assert looks(rt.unwrap(client)) == before


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


WRONG: list[Any] = [anthropic, anthropic.Anthropic, anthropic.AsyncAnthropic, None, "client", object(), 5]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda value: repr(value)[:20])
def test_wrong_objects(wrong: Any) -> None:
    """What is no client object is a TypeError that says what is wanted and what was given."""
    expected = r"wrap_anthropic\(\) needs a client object of the anthropic SDK, such as Anthropic\(\) or AsyncAnthropic"
    with pytest.raises(TypeError, match=expected) as error:
        rt.wrap_anthropic(wrong)
    assert repr(wrong)[:20] in str(error.value)
    assert rt.unwrap(wrong) is wrong


def test_another_sdk_is_named(kind: Kind) -> None:
    """The wrapper of one SDK does not take the other's clients."""
    with pytest.raises(TypeError, match=r"wrap_openai\(\) needs a client object of the openai SDK"):
        rt.wrap_openai(client_of(kind))
    for wrong in (client_of(kind).messages, client_of(kind).with_raw_response):
        with pytest.raises(TypeError, match="needs a client object"):
            rt.wrap_anthropic(wrong)


@pytest.mark.parametrize("wrap_first", [True, False])
def test_bind(kind: Kind, wrap_first: bool) -> None:
    """A bound copy records in its trajectory, whatever the context; the client itself as before."""

    async def scenario(world: World) -> Any:
        client = rt.wrap_anthropic(world.new_client()) if wrap_first else world.new_client()
        with rt.trajectory("own") as own:
            pass
        with rt.trajectory("bound") as bound:
            copied = rt.bind(client, bound)
            with rt.trajectory("other") as other:
                await ask(copied, **numbered(0))
                await ask(client, **numbered(1))
        kept[:] = [own, bound, other]
        return None

    kept: list[Any] = []
    assert run(kind, "fine", scenario).outcome[0] == "returned"
    assert [len(trajectory.steps) for trajectory in kept] == [0, 1, int(wrap_first)]


def test_bind_wrong_objects(kind: Kind) -> None:
    """`bind` says which of its arguments is wrong."""
    with rt.trajectory() as trajectory:
        with pytest.raises(TypeError, match=r"bind\(\) needs a client object of the openai or anthropic SDK, got 5"):
            rt.bind(5, trajectory)
    with pytest.raises(TypeError, match=r"bind\(\) needs a Trajectory, got str"):
        rt.bind(client_of(kind), "trajectory")  # type: ignore[arg-type]


def test_orphans() -> None:
    """A call outside every trajectory is an orphan."""
    before = len(rt.orphans())
    with ScriptedServer("fine") as server:
        client = wrapped(anthropic.Anthropic(api_key="none", base_url=server.url))
        client.messages.create(**ASK)
        client.close()
    assert [step.status for step in rt.orphans()[before:]] == ["ok"]
