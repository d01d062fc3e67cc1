"""Clients with middleware: the official hook, which runs around every attempt and may make more of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anthropic
import pytest

import rollout_trace as rt
from rollout_trace.testing import Fault, Reply
from tests.clients.either import Kind, done

from .harness import World, ask, both, numbered, run, streamed

pytestmark = pytest.mark.skipif(
    not hasattr(anthropic, "Middleware"), reason=f"anthropic {anthropic.__version__} has no middleware"
)
QUICK = {"retry-after-ms": "1"}


def chain(world: World, act: Callable[[Any, Any], Any]) -> Any:
    """A middleware that runs a coroutine function, for either kind of client."""
    if world.kind == "async":
        return act

    def sync(request: Any, call_next: Any) -> Any:
        try:
            act(request, call_next).send(None)
        except StopIteration as stop:
            return stop.value
        raise AssertionError("a sync middleware has waited for something")

    return sync


async def passes(request: Any, call_next: Any) -> Any:
    return await done(call_next(request))


async def tries_again(request: Any, call_next: Any) -> Any:
    """Throws the first answer away, and asks once more."""
    first = await done(call_next(request))
    await done(first.close())
    return await done(call_next(request))


def with_middleware(world: World, act: Callable[[Any, Any], Any]) -> Any:
    return world.wrap(world.new_client(middleware=[chain(world, act)]))


@pytest.mark.parametrize("stream", [False, True])
def test_a_middleware_that_passes_on(kind: Kind, stream: bool) -> None:
    """A call through a middleware is recorded once, from the client and from copies with and without it."""

    async def scenario(world: World) -> Any:
        client, call = with_middleware(world, passes), streamed if stream else ask
        bare = client.with_options(middleware=[])
        return [await call(client), await call(bare), await call(client.with_middleware(chain(world, passes)))]

    assert [step.status for step in both(kind, "fine", scenario).steps] == ["ok"] * 3


@pytest.mark.parametrize("stream", [False, True])
def test_middleware_added_to_a_copy(kind: Kind, stream: bool) -> None:
    """A copy with middleware of a wrapped client records too."""

    async def scenario(world: World) -> Any:
        client = world.client.with_options(middleware=[chain(world, passes)])
        return await (streamed if stream else ask)(client)

    assert both(kind, "fine", scenario).step.status == "ok"


@pytest.mark.parametrize("stream", [False, True])
def test_retries_go_through_the_middleware(kind: Kind, stream: bool) -> None:
    """An answer with an error status that the SDK tries again is an attempt; the call is whole."""

    async def scenario(world: World) -> Any:
        return await (streamed if stream else ask)(with_middleware(world, passes))

    answers = [Fault(status=429, headers={**QUICK, "request-id": "r1"}), Reply("fine", headers={"request-id": "r2"})]
    step = both(kind, answers, scenario, max_retries=2).step
    assert step.status == "ok"
    assert [(a.status, a.request_id, a.error is None) for a in step.attempts] == [(429, "r1", False), (200, "r2", True)]


@pytest.mark.parametrize("stream", [False, True])
def test_a_refused_call(kind: Kind, stream: bool) -> None:
    """One that is not tried again raises as it did."""

    async def scenario(world: World) -> Any:
        return await (streamed if stream else ask)(with_middleware(world, passes))

    step = both(kind, Fault(status=400), scenario, raises=True).step
    assert (step.status, step.error and step.error.type) == ("error", "invalid_request_error")


@pytest.mark.parametrize("stream", [False, True])
def test_a_middleware_that_tries_again(kind: Kind, stream: bool) -> None:
    """What the middleware threw away is an attempt; the step is the answer that the caller got."""

    async def scenario(world: World) -> Any:
        return await (streamed if stream else ask)(with_middleware(world, tries_again))

    step = both(kind, [Reply("first"), Reply("second")], scenario).step
    assert (step.status, [a.status for a in step.attempts]) == ("ok", [200, 200])
    assert step.completion is not None
    assert step.completion.content == "second"


def test_a_middleware_that_answers_itself(kind: Kind) -> None:
    """An answer that a middleware has kept reaches the caller; the call has no attempt, and is over."""

    async def scenario(world: World) -> Any:
        kept: list[Any] = []

        async def caches(request: Any, call_next: Any) -> Any:
            if not kept:
                kept.append(await done((await done(call_next(request))).parse()))
            return kept[0]

        client = with_middleware(world, caches)
        seen = [await ask(client, **numbered(0)), await ask(client, **numbered(1))]
        trajectory = rt.current()
        assert trajectory is not None
        looked.append([step.status for step in trajectory.steps])
        return seen

    looked: list[Any] = []
    found = run(kind, "fine", scenario)
    assert found.outcome == run(kind, "fine", scenario, wrap=lambda client: client).outcome
    assert len(found.requests) == 1
    assert [len(step.attempts) for step in found.steps] == [1, 0]
    assert looked[0][0] == "ok"
    assert "running" not in looked[0]


@pytest.mark.parametrize("stream", [False, True])
def test_an_attempt_that_is_read_once_the_next_has_begun(kind: Kind, stream: bool) -> None:
    """Its bytes are not those of the answer that the caller gets."""

    async def reads_both(request: Any, call_next: Any) -> Any:
        first = await done(call_next(request))
        second = await done(call_next(request))
        assert await done(first.read())
        return second

    async def scenario(world: World) -> Any:
        return await (streamed if stream else ask)(with_middleware(world, reads_both))

    step = both(kind, [Reply("first"), Reply("second")], scenario).step
    assert (step.status, [a.status for a in step.attempts]) == ("ok", [200, 200])
    assert step.completion is not None
    assert step.completion.content == "second"
