"""Clients of Bedrock, Vertex, Foundry and the others: URLs, authentication and streams are their own."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import anthropic
import pytest

from rollout_trace.testing import Fault, Reply, RequestRecord, ScriptedServer
from tests.clients.either import Kind, done, each, shown

from .harness import ASK, Run, World, ask, run, streamed, traffic

ALL: dict[str, dict[str, Any]] = {
    "AnthropicBedrock": {"aws_region": "us-east-1", "aws_secret_key": "s", "aws_access_key": "a", "api_key": None},
    "AnthropicBedrockMantle": {"aws_region": "us-east-1"},
    "AnthropicVertex": {"region": "us-east5", "project_id": "p", "access_token": "t", "api_key": None},
    "AnthropicFoundry": {},
    "AnthropicAWS": {"aws_region": "us-east-1", "workspace_id": "w"},
    "AnthropicGoogleCloud": {"token_provider": "t", "workspace_id": "w", "project": "p", "api_key": None},
}
NEEDS = {"AnthropicBedrock": "botocore"}
REWRITES = {"AnthropicBedrock", "AnthropicVertex"}


class PlatformServer(ScriptedServer):
    """Serves the paths of the platforms, and Bedrock's framing."""

    def answer(self, record: RequestRecord) -> Any:
        """What the Messages API answers, in the platform's way."""
        model, _, verb = record.path.rpartition("/")
        framed = verb == "invoke-with-response-stream"
        if framed or verb == "invoke" or "RawPredict" in verb or "rawPredict" in verb:
            body = {**json.loads(record.body), "model": model, "stream": framed or "streamRawPredict" in verb}
            response = super().answer(replace(record, path="/v1/messages", body=json.dumps(body).encode()))
        else:
            response = super().answer(record)
        if framed and response.status == 200:
            response.headers = [("content-type", "application/vnd.amazon.eventstream")]
            response.parts = [_framed(part) if isinstance(part, bytes) else part for part in response.parts]
        return response


def _framed(event: bytes) -> bytes:
    """An event of the Messages API as Bedrock sends it."""
    data = event.split(b"data: ", 1)[1].strip()
    if b'"type":"error"' in data:
        message = json.dumps({"message": json.loads(data)["error"]["message"]}).encode()
        return frame({":message-type": "exception", ":exception-type": "internalServerException"}, message)
    payload = json.dumps({"bytes": base64.b64encode(data).decode(), "p": "abcd"}).encode()
    headers = {":event-type": "chunk", ":content-type": "application/json", ":message-type": "event"}
    return frame(headers, payload)


def frame(headers: dict[str, str], payload: bytes) -> bytes:
    """A frame of an AWS event stream."""
    head = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack(">II", 16 + len(head) + len(payload), len(head))
    rest = prelude + struct.pack(">I", zlib.crc32(prelude)) + head + payload
    return rest + struct.pack(">I", zlib.crc32(rest))


@pytest.fixture(params=ALL)
def platform(request: pytest.FixtureRequest) -> str:
    """The name of a client class that the release at hand has, and whose libraries are installed."""
    name: str = request.param
    if not hasattr(anthropic, name):
        pytest.skip(f"anthropic {anthropic.__version__} has no {name}")
    library = NEEDS.get(name)
    if library is not None and (find_spec(library.partition(".")[0]) is None or find_spec(library) is None):
        pytest.skip(f"{name} needs {library}, which is not installed")
    return name


def client_of(world: World, name: str) -> Any:
    options = dict(ALL[name])
    if "token_provider" in options:
        options["token_provider"] = _token if world.kind == "sync" else _token_async
    return world.wrap(world.new_client(name, **options))


def _token() -> str:
    return "t"


async def _token_async() -> str:
    return "t"


def both(kind: Kind, script: Any, scenario: Any) -> Run:
    """The outcome and the requests are the same bare and wrapped, save the signatures, which hold the time."""
    plain = run(kind, script, scenario, wrap=lambda client: client, server_class=PlatformServer)
    ours = run(kind, script, scenario, server_class=PlatformServer)
    assert plain.outcome[0] == "returned", plain.outcome
    assert ours.outcome == plain.outcome
    assert [unsigned(line) for line in traffic(ours.server)] == [unsigned(line) for line in traffic(plain.server)]
    assert ours.stats.attempts == len(ours.server.requests) == sum(len(step.attempts) for step in ours.steps)
    return ours


def unsigned(line: Any) -> Any:
    method, path, query, headers, body = line
    return method, path, query, [(k, v) for k, v in headers if k not in ("authorization", "x-amz-date")], body


def test_every_platform_records(kind: Kind, platform: str) -> None:
    """Calls, streams and copies of every platform's client are recorded."""

    async def scenario(world: World) -> Any:
        client = client_of(world, platform)
        # Copies of some platforms' clients have HTTP clients of their own.
        copied = world.track(client.with_options(timeout=9))
        return [await ask(client), await streamed(client), await ask(copied)]

    reply = Reply("It is 4.", [("add", '{"a": 2}')], "two and two")
    found = both(kind, reply, scenario)
    assert [(step.status, step.protocol) for step in found.steps] == [("ok", "anthropic.messages")] * 3
    for step in found.steps:
        assert step.completion is not None
        assert (step.completion.content, step.completion.reasoning) == ("It is 4.", "two and two")
        assert step.finish_reason == "tool_use"
        assert step.messages == ASK["messages"]
    assert found.steps[1].time_to_first_token is not None or platform == "AnthropicBedrock"
    paths = {record.path for record in found.server.requests}
    assert (paths == {"/v1/messages"}) is (platform not in REWRITES)


def test_an_error_in_a_stream(kind: Kind, platform: str) -> None:
    """The step of a stream that breaks holds the server's words, whatever the framing."""

    async def scenario(world: World) -> Any:
        seen: list[Any] = []
        try:
            async for event in each(await done(client_of(world, platform).messages.create(**ASK, stream=True))):
                seen.append(shown(event))
        except Exception as error:
            seen.append(shown(error)[:2])
        return seen

    step = both(kind, Fault("a longer answer", error_event_after=5), scenario).steps[0]
    assert step.status == "error"
    assert step.error is not None
    assert step.error.message == "the script breaks this stream"
    assert step.completion is not None
    assert step.completion.content == "a "
