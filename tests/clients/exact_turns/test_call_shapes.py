"""Against a server that ignores ids, refuses them or has no tokenizer an agent reads what it reads without exact turns.

Each shape of a call is a second turn, of a conversation of its own.
"""

from __future__ import annotations

import functools
import json
from contextlib import AsyncExitStack, nullcontext
from dataclasses import replace
from typing import Any

import anthropic
import openai
import pytest

import rollout_trace as rt
from rollout_trace.clients.loopback.messages import RequestRecord, Response, json_response
from rollout_trace.testing import ScriptedServer
from tests.amount import some
from tests.clients.either import Kind, done, drive

from .agents import BY_TEXT, ENGINE, TOKENIZER
from .shapes import SHAPES, Shape, script, turns

_NAMED = {"message": "Extra inputs are not permitted", "param": "kv_transfer_params", "code": 400}
_UNNAMED = {"message": "This request cannot be served.", "code": 400}


class Server(ScriptedServer):
    """One that does not do exact turns, in one of four ways."""

    def __init__(self, how: str) -> None:
        super().__init__(script, tokenizer=TOKENIZER)
        self.how = how

    def answer(self, record: RequestRecord) -> Response:
        if record.path.endswith("/tokenize"):
            return json_response(404, {"detail": "Not Found"}) if self.how == "no tokenizer" else super().answer(record)
        body = json.loads(record.body)
        has_ids = "prompt_token_ids" in body.get("kv_transfer_params", {})
        if has_ids and self.how in ("names it", "does not name it"):
            return json_response(400, {"error": _NAMED if self.how == "names it" else _UNNAMED})
        if has_ids:
            del body["kv_transfer_params"]
        # Ids of answers are made of the number of the request: the same, however many came before.
        return super().answer(replace(record, body=json.dumps(body).encode(), index=0))


REASONS = {
    "ignores them": "not_served",
    "names it": "refused",
    "does not name it": "refused",
    "no tokenizer": "tokenizer",
}
"""Why a turn went out as text, by what the server does."""
CASES = [(how, api, kind) for how in REASONS for api in SHAPES for kind in ("sync", "async")]
KEPT = [
    ("ignores them", "chat", "sync"),
    ("names it", "chat, streamed", "async"),
    ("does not name it", "chat, otherwise", "sync"),
    ("no tokenizer", "responses", "async"),
]


@pytest.mark.parametrize(("how", "api", "kind"), some(CASES, *KEPT))
def test_an_agent_reads_what_it_reads_without(how: str, api: str, kind: Kind) -> None:
    found = _found(how, api, kind, ENGINE)
    assert {name: read for name, (read, _) in found.items()} == _without(api, kind)
    reasons = {name: _reasons(trajectory) for name, (_, trajectory) in found.items()}
    assert reasons == {name: {_expected(how, shape)} for name, shape in SHAPES[api].items()}


def test_how_many_shapes_are_compared() -> None:
    assert [len(shapes) for shapes in SHAPES.values()] == [41, 45, 49, 33, 17, 12]


@functools.cache
def _without(api: str, kind: Kind) -> dict[str, Any]:
    """What is read without exact turns: of all of these servers the same, for they are asked for nothing else."""
    return {name: read for name, (read, _) in _found("ignores them", api, kind, BY_TEXT).items()}


def _found(how: str, api: str, kind: Kind, engine: rt.Engine) -> dict[str, tuple[Any, rt.Trajectory]]:
    """What is read, and recorded, of each shape."""
    shapes, api = SHAPES[api], api.partition(",")[0]

    async def scenario(server: Server) -> dict[str, tuple[Any, rt.Trajectory]]:
        async with AsyncExitStack() as stack:
            client = await _client(stack, api, kind)
            return {
                name: await _read(client, engine, f"{server.url}/{number}", api, shape)
                for number, (name, shape) in enumerate(shapes.items())
            }

    with Server(how) as server:
        found: dict[str, tuple[Any, rt.Trajectory]] = drive(kind, scenario(server))
    return found


async def _client(stack: AsyncExitStack, api: str, kind: Kind) -> Any:
    """One for all shapes: making one takes longer than a call."""
    made: dict[tuple[bool, Kind], Any] = {
        (False, "sync"): openai.OpenAI,
        (False, "async"): openai.AsyncOpenAI,
        (True, "sync"): anthropic.Anthropic,
        (True, "async"): anthropic.AsyncAnthropic,
    }
    client = made[api == "messages", kind](base_url="http://127.0.0.1:9", api_key="-", max_retries=0)
    stack.push_async_callback(lambda: _closed(client))
    return client


async def _closed(client: Any) -> None:
    await done(client.close())


async def _read(client: Any, engine: rt.Engine, address: str, api: str, shape: Shape) -> tuple[Any, rt.Trajectory]:
    """What is read of a conversation, at an address of its own: what is remembered of others does not count there."""
    own = client.with_options(base_url=address + ("" if api == "messages" else "/v1"))
    # There is no other way to name the engine of clients of Anthropic's SDK.
    with rt.instrument(engine=engine) if api == "messages" else nullcontext(), rt.trajectory() as trajectory:
        read = await turns(own if api == "messages" else rt.wrap_openai(own, engine=engine), api, shape)
    return read, trajectory


def _expected(how: str, shape: Shape) -> str | None:
    if shape.reason == "":
        return "refused" if shape.is_refused and how == "ignores them" else REASONS[how]
    return shape.reason


def _reasons(trajectory: rt.Trajectory) -> set[str | None]:
    """Why the second turn went out as text; of its choices, all say the same."""
    call = trajectory.steps[-1].call_id
    steps = [step for step in trajectory.steps if step.call_id == call]
    return {None if step.exact_turn is None else step.exact_turn.reason for step in steps}
