"""The harness of the client tests, for the anthropic SDK."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anthropic

import rollout_trace as rt
from rollout_trace.testing import RequestRecord, ScriptedServer
from tests import sdk_harness
from tests.clients.either import Kind, done
from tests.sdk_harness import Run, Sdk, bare, chunks, traffic

from .oracle import assert_said

__all__ = [
    "ASK",
    "STREAM",
    "Run",
    "World",
    "ask",
    "bare",
    "both",
    "chunks",
    "numbered",
    "run",
    "seeds",
    "streamed",
    "traffic",
    "wrapped",
]

ASK: dict[str, Any] = {"model": "m", "max_tokens": 200, "messages": [{"role": "user", "content": "hi"}]}
STREAM: dict[str, Any] = {**ASK, "stream": True}


class World(sdk_harness.World):
    """With clients of the anthropic SDK."""

    def __init__(self, kind: Kind, server: ScriptedServer, wrap: sdk_harness.Wrap, options: Mapping[str, Any]) -> None:
        super().__init__(kind, server, wrap, {"base_url": server.url, "api_key": "none", **options})

    def new_client(self, name: str = "Anthropic", **options: Any) -> Any:
        """Another client of the server, not wrapped; of the async kind where the world is."""
        made = getattr(anthropic, name if self.kind == "sync" else f"Async{name}")
        given = {**self._usual, **options}
        return self.track(made(**{key: value for key, value in given.items() if value is not None}))


def wrapped(client: Any) -> Any:
    """Wraps, with the default settings."""
    return rt.wrap_anthropic(client)


def _asked_by_step(step: rt.Step) -> Any:
    return {"model": step.model, "messages": step.messages, "tools": step.tools, **(step.sampling or {})}


def _asked_by_request(record: RequestRecord) -> Any:
    body = {"model": None, "tools": None, **record.json}
    body.pop("stream", None)
    system = body.pop("system", None)
    if system is not None:
        body["messages"] = [{"role": "system", "content": system}, *body["messages"]]
    return body


SDK = Sdk(
    world=World,
    wrap=wrapped,
    generates=("/messages",),
    asked_by_step=_asked_by_step,
    asked_by_request=_asked_by_request,
    assert_answered=assert_said,
)
run, both = SDK.run, SDK.both


async def ask(client: Any, **options: Any) -> Any:
    """One unstreamed call."""
    return await done(client.messages.create(**{**ASK, **options}))


async def streamed(client: Any, **options: Any) -> list[Any]:
    """One streamed call, read to its end."""
    return await chunks(await done(client.messages.create(**{**STREAM, **options})))


def seeds(run: Run) -> list[Any]:
    """The number that each call was given, in `metadata.user_id`."""
    return [(step.sampling or {})["metadata"]["user_id"] for step in run.steps]


def numbered(number: int) -> dict[str, Any]:
    """Options that tell a call from others."""
    return {"metadata": {"user_id": str(number)}}
