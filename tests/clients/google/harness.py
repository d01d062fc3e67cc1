"""The harness of the client tests, for google-genai."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from google import genai

import rollout_trace as rt
from rollout_trace.testing import RequestRecord, ScriptedServer
from tests import sdk_harness
from tests.clients import either
from tests.clients.either import Kind, done, each, kind_of
from tests.sdk_harness import Run, Sdk, bare, traffic

from .oracle import assert_said

__all__ = ["ASK", "Run", "World", "ask", "bare", "both", "numbers", "run", "shown", "streamed", "traffic", "wrapped"]

ASK: dict[str, Any] = {"model": "gemini-2.5-flash", "contents": "hi"}


class World(sdk_harness.World):
    """With clients of google-genai: of the async kind, the ``aio`` of a client."""

    def __init__(self, kind: Kind, server: ScriptedServer, wrap: sdk_harness.Wrap, options: Mapping[str, Any]) -> None:
        super().__init__(kind, server, wrap, {"api_key": "none", **options})
        self._whole: list[Any] = []

    def new_client(self, **options: Any) -> Any:
        """Another client of the server, not wrapped."""
        client = genai.Client(**self._arguments({**self._usual, **options}))
        self._whole.append(client)
        return client if self.kind == "sync" else client.aio

    def _arguments(self, options: dict[str, Any]) -> dict[str, Any]:
        http = {"base_url": options.pop("base_url", self.server.url), "timeout": int(options.pop("timeout") * 1000)}
        attempts = options.pop("max_retries") + 1
        http["retry_options"] = {"attempts": attempts, "initial_delay": 0.001, "max_delay": 0.001, "jitter": 0}
        if options.pop("library", "default") == "httpx" and self.kind == "async":
            # A transport of the user's own keeps the SDK from aiohttp.
            http["async_client_args"] = {"transport": _transport()}
        return {**options, "http_options": http}

    async def close(self) -> None:
        for client in self._whole:
            if self.kind == "async":
                await client.aio.aclose()
            client.close()


def _transport() -> Any:
    name = "httpx2" if "httpx2" in sys.modules else "httpx"
    return sys.modules[name].AsyncHTTPTransport()


def wrapped(client: Any) -> Any:
    """Wraps, with the default settings."""
    return rt.wrap_google(client)


def _asked_by_step(step: rt.Step) -> Any:
    return {"model": step.model, "messages": step.messages, "tools": step.tools, **(step.sampling or {})}


def _asked_by_request(record: RequestRecord) -> Any:
    body = dict(record.json)
    messages = body.pop("contents")
    system = body.pop("systemInstruction", None)
    if system is not None:
        messages = [{**system, "role": "system"}, *messages]
    settings = body.pop("generationConfig", None) or {}
    model = record.path.rpartition("/")[2].partition(":")[0]
    return {"tools": None, "model": model, "messages": messages, **body, **settings}


SDK = Sdk(
    world=World,
    wrap=wrapped,
    generates=(":generateContent", ":streamGenerateContent"),
    asked_by_step=_asked_by_step,
    asked_by_request=_asked_by_request,
    assert_answered=assert_said,
)
run, both = SDK.run, SDK.both


def shown(value: Any) -> Any:
    """As ``either.shown``; of a response without the server's date."""
    if hasattr(value, "sdk_http_response"):
        return [kind_of(value), value.model_dump_json(exclude={"sdk_http_response"}, warnings=False)]
    return either.shown(value)


async def ask(client: Any, **options: Any) -> Any:
    """One unstreamed call."""
    return shown(await done(client.models.generate_content(**{**ASK, **options})))


async def begun(client: Any, **options: Any) -> Any:
    """One streamed call, not read yet."""
    return await done(client.models.generate_content_stream(**{**ASK, **options}))


async def streamed(client: Any, **options: Any) -> list[Any]:
    """One streamed call, read to its end."""
    return [shown(chunk) async for chunk in each(await begun(client, **options))]


def numbers(run: Run) -> list[Any]:
    """The number that each call was given, as its seed."""
    return [(step.sampling or {}).get("seed") for step in run.steps]
