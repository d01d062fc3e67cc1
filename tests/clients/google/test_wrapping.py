"""Wrapping and unwrapping: the client stays what it was for its user."""

from __future__ import annotations

import inspect
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google import genai

import rollout_trace as rt
from rollout_trace.testing import ScriptedServer
from tests.clients.either import Kind, each

from .harness import World, ask, begun, both, numbers, shown, streamed, wrapped


def client_of(**options: Any) -> Any:
    return genai.Client(api_key="none", http_options={"base_url": "http://127.0.0.1:9"}, **options)


def twice(client: Any) -> Any:
    return rt.wrap_google(rt.wrap_google(client))


def test_wrapping_twice(kind: Kind) -> None:
    """A client wrapped twice records each call once."""

    async def scenario(world: World) -> Any:
        return [await ask(world.client), await streamed(world.client)]

    assert len(both(kind, "fine", scenario, wrap=twice).steps) == 2


def test_the_same_object_comes_back() -> None:
    """Wrapping gives the client itself; wrapping it again changes its settings; its own class is untouched."""
    client = client_of()
    plain = type(client._api_client)
    assert rt.wrap_google(client) is client
    first = type(client._api_client)
    assert rt.wrap_google(client.aio, keep_bytes=True) is client.aio
    assert type(client._api_client) is not first
    assert type(client._api_client).__mro__[1:] == first.__mro__[1:] == plain.__mro__
    assert isinstance(client._api_client, plain)
    assert type(client) is genai.Client
    for name in ("request", "request_streamed", "async_request", "async_request_streamed", "_request_once"):
        ours, theirs = getattr(first, name), getattr(plain, name)
        assert inspect.iscoroutinefunction(ours) == inspect.iscoroutinefunction(theirs)
        assert inspect.isgeneratorfunction(ours) == inspect.isgeneratorfunction(theirs)
        assert inspect.signature(ours) == inspect.signature(theirs)
    assert rt.unwrap(client) is client
    assert type(client._api_client) is plain
    client.close()


def test_unwrap(kind: Kind) -> None:
    """An unwrapped client records no more; unwrapping one that is not wrapped does nothing."""

    async def scenario(world: World) -> Any:
        seen = [await ask(world.client, config={"seed": 1})]
        if world.wrap is wrapped:
            assert rt.unwrap(world.client) is world.client
        rt.unwrap(world.client)
        return [*seen, await ask(world.client, config={"seed": 2})]

    assert numbers(both(kind, "fine", scenario, unrecorded=1)) == [1]


def test_unwrapped_while_a_stream_is_read(kind: Kind) -> None:
    """A stream that was begun is recorded to its end."""

    async def scenario(world: World) -> Any:
        stream = each(await begun(world.client))
        chunks = [shown(await anext(stream))]
        rt.unwrap(world.client)
        return [*chunks, *[shown(one) async for one in stream]]

    assert both(kind, "a longer answer", scenario).step.status == "ok"


@pytest.mark.parametrize("thing", [None, genai.Client, object(), "client"])
def test_no_client(thing: Any) -> None:
    """Anything but a client is refused, with what it was."""
    with pytest.raises(TypeError, match=r"wrap_google\(\) needs a client of google-genai 1.60 or newer"):
        rt.wrap_google(thing)


def test_wrong_settings() -> None:
    """A limit that is no number of bytes is refused, and the client stays as it was."""
    client = client_of()
    plain = type(client._api_client)
    with pytest.raises(ValueError, match="max_call_bytes=0"):
        rt.wrap_google(client, max_call_bytes=0)
    assert type(client._api_client) is plain
    client.close()


def test_bind() -> None:
    """Clients of google-genai cannot be copied: binding one is refused."""
    client = client_of()
    with rt.trajectory() as trajectory, pytest.raises(TypeError, match="openai or anthropic"):
        rt.bind(client, trajectory)
    client.close()


def test_a_call_outside_every_trajectory() -> None:
    """It is an orphan, with the model of its path."""
    before = len(rt.orphans())
    with ScriptedServer("fine") as server:
        client = rt.wrap_google(genai.Client(api_key="none", http_options={"base_url": server.url}))
        client.models.generate_content(model="gemini-2.5-flash", contents="hi")
        client.close()
    (step,) = rt.orphans()[before:]
    assert (step.model, step.status) == ("gemini-2.5-flash", "ok")


@pytest.mark.more
def test_recovered_from_a_journal(tmp_path: Path) -> None:
    """The model of the path is in the journal too."""
    path = tmp_path / "rollouts.jsonl"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, timeout=60, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    (trajectory,) = rt.recover(path)
    (step,) = trajectory.steps
    assert (step.protocol, step.model, step.status) == ("google.generate_content", "gemini-2.5-flash", "ok")
    assert step.completion is not None
    assert step.completion.content == "fine"


KILLED = """
import os, signal, sys
from google import genai
import rollout_trace as rt
from rollout_trace.testing import ScriptedServer

with ScriptedServer("fine") as server, rt.recording(sys.argv[1]), rt.trajectory():
    client = rt.wrap_google(genai.Client(api_key="none", http_options={"base_url": server.url}))
    client.models.generate_content(model="gemini-2.5-flash", contents="hi")
    os.kill(os.getpid(), signal.SIGKILL)
"""
