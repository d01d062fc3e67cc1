"""The harness of the client tests, for the openai SDK."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import openai

import rollout_trace as rt
from rollout_trace.testing import RequestRecord, ScriptedServer
from tests import sdk_harness
from tests.clients.either import Kind, done
from tests.sdk_harness import Run, Sdk, bare, chunks, since, traffic

from .oracle import assert_said

__all__ = [
    "CHAT",
    "IDS",
    "STREAM",
    "Run",
    "World",
    "bare",
    "both",
    "chat",
    "chunks",
    "inside",
    "parsing",
    "run",
    "since",
    "streamed",
    "traffic",
    "wrapped",
]

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
IDS: dict[str, Any] = {**CHAT, "logprobs": True, "extra_body": {"return_token_ids": True}}
STREAM: dict[str, Any] = {**IDS, "stream": True}


class World(sdk_harness.World):
    """With clients of the openai SDK."""

    def __init__(self, kind: Kind, server: ScriptedServer, wrap: sdk_harness.Wrap, options: Mapping[str, Any]) -> None:
        super().__init__(kind, server, wrap, {"api_key": "none", **options})

    def new_client(self, kind: Any = None, **options: Any) -> Any:
        """Another client of the server, not wrapped."""
        made = kind or (openai.OpenAI if self.kind == "sync" else openai.AsyncOpenAI)
        address = {} if "azure_endpoint" in options else {"base_url": self.server.base_url}
        return self.track(made(**{**address, **self._usual, **options}))

    def http_client(self) -> Any:
        """A new HTTP client as the SDK makes it."""
        return openai.DefaultHttpxClient() if self.kind == "sync" else openai.DefaultAsyncHttpxClient()


def wrapped(client: Any) -> Any:
    """Wraps, with the default settings."""
    return rt.wrap_openai(client)


def _asked_by_step(step: rt.Step) -> Any:
    if step.protocol != "openai.chat":
        return step.protocol
    return {"model": step.model, "messages": step.messages, "tools": step.tools, **(step.sampling or {})}


def _asked_by_request(record: RequestRecord) -> Any:
    if not record.path.endswith("/chat/completions"):
        return f"openai.{record.path.rpartition('/')[2]}"
    body = dict(record.json)
    named = {name: body.pop(name, None) for name in ("model", "messages", "tools")}
    rest = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
    return {**named, **rest}


SDK = Sdk(
    world=World,
    wrap=wrapped,
    generates=("/chat/completions", "/completions", "/responses"),
    asked_by_step=_asked_by_step,
    asked_by_request=_asked_by_request,
    assert_answered=assert_said,
)
run, both, inside = SDK.run, SDK.both, SDK.inside


async def chat(client: Any, **options: Any) -> Any:
    """One unstreamed call."""
    return await done(client.chat.completions.create(**{**IDS, **options}))


async def streamed(client: Any, **options: Any) -> list[Any]:
    """One streamed call, read to its end."""
    return await chunks(await done(client.chat.completions.create(**{**STREAM, **options})))


def parsing(client: Any) -> Any:
    """Where the version at hand has `parse` and `stream`."""
    chat = client.chat.completions
    return chat if hasattr(chat, "parse") else client.beta.chat.completions
