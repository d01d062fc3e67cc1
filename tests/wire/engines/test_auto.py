"""`engine="auto"`: what the server is asked, what follows, and that no call suffers from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

import rollout_trace as rt
from rollout_trace.clients import detect
from rollout_trace.clients.loopback import server as loopback_server
from rollout_trace.clients.loopback.messages import ConnectionCut, Response, json_response
from rollout_trace.clients.loopback.server import HTTPServer
from rollout_trace.testing import RequestRecord, ScriptedServer
from rollout_trace.testing._delivery import Holds
from tests.clients.either import Kind, done, drive
from tests.clients.openai.harness import CHAT

from .engine_servers import NOT_FOUND, LlamaServer, SGLang, got, new_client, on, posted

AUTO = {"engine": "auto"}
ASKED = {**CHAT, "logprobs": True, "return_token_ids": True, "return_weight_versions": True}


class Server(ScriptedServer):
    """Answers other requests than those that generate as told."""

    def __init__(self, answers: dict[str, Callable[[], Response]]) -> None:
        super().__init__("fine")
        self.told = answers

    def answer(self, record: RequestRecord) -> Response:
        if record.method == "POST":
            return super().answer(record)
        return self.told.get(record.path, lambda: NOT_FOUND)()


def models(*owners: str | None) -> Callable[[], Response]:
    data = [{"id": f"m{number}", **({"owned_by": owner} if owner else {})} for number, owner in enumerate(owners)]
    return lambda: json_response(200, {"object": "list", "data": data})


def dynamo() -> Response:
    """As its frontend says of its health."""
    return json_response(200, {"status": "healthy", "endpoints": ["dyn://dynamo.backend.generate"], "instances": []})


def llama_props() -> Response:
    """As llama-server says of itself."""
    return json_response(200, {"default_generation_settings": {}, "total_slots": 1})


async def chat(client: Any) -> Any:
    return await done(client.chat.completions.create(**CHAT))


async def twice(client: Any) -> Any:
    await chat(client)
    await chat(client.with_options(timeout=9))


def test_vllm_is_found(kind: Kind) -> None:
    """One request of the recorder's own before the first call, on the same connection; it is no step."""
    with ScriptedServer("fine") as server:
        _, steps = on(kind, server, twice, AUTO)
        on(kind, server, twice, AUTO)
        assert [(r.method, r.path) for r in server.requests[:2]] == [
            ("GET", "/v1/models"),
            ("POST", "/v1/chat/completions"),
        ]
        assert got(server) == ["/v1/models"]
        assert posted(server) == [ASKED] * 4
        assert {record.connection for record in server.requests[:3]} == {0}
        assert server.requests[0].headers["authorization"] == "Bearer none"
    assert [(step.engine, step.token_issue, step.logprobs_mode) for step in steps] == [("vllm", None, "raw")] * 2
    assert [len(step.attempts) for step in steps] == [1, 1]


@pytest.mark.parametrize(
    ("server", "engine", "asked"),
    [
        (LlamaServer, "llama-server", ["/v1/models"]),
        (SGLang, "sglang", ["/v1/models", "/get_server_info"]),
        (lambda: Server({"/v1/models": models("sglang")}), "sglang", ["/v1/models"]),
        (lambda: Server({"/props": llama_props}), "llama-server", ["/v1/models", "/get_server_info", "/props"]),
        (lambda: Server({"/v1/models": models("vllm", "vllm")}), "vllm", ["/v1/models"]),
        (
            lambda: Server({"/v1/models": models("nvidia"), "/health": dynamo}),
            "dynamo",
            ["/v1/models", "/health"],
        ),
        (lambda: Server({"/health": dynamo}), "dynamo", ["/v1/models", "/get_server_info", "/props", "/health"]),
    ],
)
def test_others_are_found(kind: Kind, server: Any, engine: str, asked: list[str]) -> None:
    """By the owner of their models, else by what only they answer."""
    with server() as running:
        outcome, (step,) = on(kind, running, chat, AUTO)
        assert outcome[0] == "returned"
        assert got(running) == asked
    assert step.engine == engine


NOTHING: dict[str, dict[str, Callable[[], Response]]] = {
    "nothing": {},
    "another owner": {"/v1/models": models("library")},
    "several owners": {"/v1/models": models("vllm", "openai")},
    "an owner of several servers": {
        "/v1/models": models("nvidia"),
        "/props": llama_props,
        "/health": lambda: NOT_FOUND,
    },
    "no owner": {"/v1/models": models(None)},
    "no models": {"/v1/models": models()},
    "only a version": {"/version": lambda: json_response(200, {"version": "0.32.0"})},
    "no JSON": {"/v1/models": lambda: Response(200, (), [b"<html>"]), "/props": lambda: Response(200, (), [b"\xff"])},
    "other JSON": {"/v1/models": lambda: json_response(200, [1]), "/props": lambda: json_response(200, "yes")},
    "odd entries": {"/v1/models": lambda: json_response(200, {"data": [None, 3, {"owned_by": {"a": 1}}]})},
    "an error": {"/v1/models": lambda: json_response(500, {})},
    "too much": {"/v1/models": lambda: Response(200, (), [b" " * (2 << 20)])},
    "a redirect": {"/v1/models": lambda: Response(307, [("location", "/v2/models")]), "/v2/models": models("vllm")},
}


def cut() -> None:
    raise ConnectionCut


@pytest.mark.parametrize("answers", NOTHING.values(), ids=NOTHING)
def test_where_it_is_not_sure(kind: Kind, answers: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is asked for, the calls go on as they are, and the server is not asked a second time."""
    with Server(answers) as server:
        plain, _ = on(kind, server, twice, None)
        ours, steps = on(kind, server, twice, AUTO)
        assert ours == plain
        assert posted(server) == [CHAT] * 4
        assert got(server).count("/v1/models") == 1
        assert "/v2/models" not in got(server)
    assert [(step.engine, step.status) for step in steps] == [(None, "ok")] * 2
    assert caplog.text.count('engine="auto" could not tell') == 1


@pytest.mark.parametrize("drips", [False, True])
def test_nobody_waits_long(kind: Kind, drips: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that never answers, or drips without end, holds up no call for ever, and each one less than the last."""
    monkeypatch.setattr(detect, "PATIENCE", 0.2)
    monkeypatch.setattr(detect, "LEAST_PATIENCE", 0.01)

    def slow() -> Response:
        # The next byte comes when the server is closed: no test waits for it.
        return Response(200, (), [b" ", held.hold, b"{}"], chunked=True) if drips else Response(before=[held.hold])

    held = Holds()

    with Server({"/v1/models": slow}) as server:
        outcome, steps = on(kind, server, twice, AUTO)
        held.close()
        assert outcome[0] == "returned"
        assert got(server) == ["/v1/models"] * 2
        assert detect._searches[server.base_url + "/"].missed == 2
    assert [step.engine for step in steps] == [None, None]


def test_patience_wears_out() -> None:
    """Each inquiry without an answer may take half the time of the one before, down to a little."""
    searches = [detect._Search(missed) for missed in range(6)]
    assert [detect._patience(search) for search in searches] == [2.0, 1.0, 0.5, 0.25, 0.25, 0.25]


@pytest.mark.parametrize("status", [401, 403, 500])
def test_a_server_that_would_not_answer_is_asked_again(kind: Kind, status: int) -> None:
    """Some time later."""
    answers = {"/v1/models": lambda: json_response(status, {})}

    async def scenario(client: Any) -> Any:
        await twice(client)
        answers["/v1/models"] = models("vllm")
        detect._searches[server.base_url + "/"].expires = 0
        await twice(client)

    with Server(answers) as server:
        _, steps = on(kind, server, scenario, AUTO)
        assert got(server) == ["/v1/models"] * 2
    assert [step.engine for step in steps] == [None, None, "vllm", "vllm"]


NOT_ANSWERED: dict[str, Callable[[], Response]] = {
    "503": lambda: json_response(503, {"error": {"message": "Loading model", "code": 503}}),
    "502": lambda: json_response(502, {}),
    "429": lambda: json_response(429, {}),
    "cut": lambda: Response(before=[cut]),
}


@pytest.mark.parametrize("answer", NOT_ANSWERED.values(), ids=NOT_ANSWERED)
def test_what_was_not_answered_is_not_remembered(
    kind: Kind, answer: Callable[[], Response], caplog: pytest.LogCaptureFixture
) -> None:
    """A server that was starting at one call is known at the next; what is said of it stays true."""
    answers = {"/v1/models": answer}

    async def scenario(client: Any) -> Any:
        await twice(client)
        answers["/v1/models"] = models("vllm")
        await twice(client)

    with Server(answers) as server:
        _, steps = on(kind, server, scenario, AUTO)
        assert got(server) == ["/v1/models"] * 3
    assert [step.engine for step in steps] == [None, None, "vllm", "vllm"]
    assert "could not tell" not in caplog.text
    assert caplog.text.count('engine="auto" got no answer from 127.0.0.1') == 1


def test_a_loop_that_waits_for_its_server_has_ids_at_once(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls before the server listens fail; the first that it answers has ids."""

    class SamePort(HTTPServer):
        def server_bind(self) -> None:
            self.server_address = address
            super().server_bind()

    async def scenario(client: Any) -> Any:
        server.close()
        for _ in range(3):
            with pytest.raises(openai.APIConnectionError):
                await chat(client)
        monkeypatch.setattr(loopback_server, "HTTPServer", SamePort)
        server.start()
        await chat(client)

    with ScriptedServer("fine") as server:
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        outcome, steps = on(kind, server, scenario, AUTO)
        assert outcome[0] == "returned", outcome
        assert posted(server) == [ASKED]
    assert [(step.status, step.engine) for step in steps] == [("error", None)] * 3 + [("ok", "vllm")]
    assert steps[-1].completion_token_ids is not None


@pytest.mark.parametrize(
    ("address", "engine"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://eu.api.openai.com/v1", "openai"),
        ("https://x.openai.azure.com/openai", "openai"),
        ("https://api.fireworks.ai/inference/v1", "fireworks"),
        ("https://api.together.xyz/v1", "together"),
    ],
)
def test_hosts(kind: Kind, address: str, engine: str) -> None:
    """Well-known services are known by their names, without a request."""

    async def scenario() -> Any:
        client = new_client(kind, server, base_url=address)
        found = await detect.find_async(client, None) if kind == "async" else detect.find(client, None)
        await done(client.close())
        return found

    with ScriptedServer("fine") as server:
        found = drive(kind, scenario())
    assert found is not None
    assert found.name == engine


def test_lookalikes_are_no_hosts() -> None:
    """A name that only ends like a service's is another's."""
    assert detect.by_host("https://notfireworks.ai/v1") is None
    assert detect.by_host("https://fireworks.ai.example.com/v1") is None


def test_all_threads_wait_for_one_answer() -> None:
    """Rollouts that begin at once: the server is asked once, and all of them are asked for ids."""
    with ScriptedServer("fine", delay=0.02) as server, rt.trajectory() as trajectory:
        client = rt.wrap_openai(new_client("sync", server), engine="auto")
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(rt.propagate(lambda _: client.chat.completions.create(**CHAT)), range(16)))
        client.close()
        assert got(server) == ["/v1/models"]
        assert posted(server) == [ASKED] * 16
    assert {step.engine for step in trajectory.steps} == {"vllm"}


def test_all_tasks_wait_for_one_answer() -> None:
    """The same in one event loop."""

    async def scenario(client: Any) -> Any:
        await asyncio.gather(*(chat(client) for _ in range(16)))

    with ScriptedServer("fine", delay=0.02) as server:
        _, steps = on("async", server, scenario, AUTO)
        assert got(server) == ["/v1/models"]
        assert posted(server) == [ASKED] * 16
    assert {step.engine for step in steps} == {"vllm"}


def test_a_cancelled_search_is_made_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task that was asking is cancelled: one that waits takes over."""
    held, waiting = Holds(), asyncio.Event()
    answers = iter([lambda: Response(before=[held.hold]), models("vllm")])
    wait = detect._wait

    async def noted(*args: Any) -> None:
        waiting.set()
        await wait(*args)

    async def scenario(client: Any) -> Any:
        asking = asyncio.create_task(chat(client))
        await asyncio.to_thread(held.wait_held, 1, 30)
        other = asyncio.create_task(chat(client))
        await waiting.wait()
        asking.cancel()
        await other
        with pytest.raises(asyncio.CancelledError):
            await asking

    # Neither of them may lose patience meanwhile.
    monkeypatch.setattr(detect, "PATIENCE", 60)
    monkeypatch.setattr(detect, "_wait", noted)
    with Server({"/v1/models": lambda: next(answers)()}) as server:
        outcome, steps = on("async", server, scenario, AUTO)
        held.close()
        assert outcome[0] == "returned", outcome
        assert posted(server) == [ASKED]
    assert [(step.status, step.engine) for step in steps] == [("cancelled", None), ("ok", "vllm")]


def test_only_generation_asks(kind: Kind) -> None:
    """Other requests find nothing out; other engines' clients neither."""

    async def models_only(client: Any) -> Any:
        await done(client.models.list())

    with ScriptedServer("fine") as server:
        on(kind, server, models_only, AUTO)
        on(kind, server, chat, {"engine": "vllm"})
        on(kind, server, chat, {})
        assert got(server) == ["/v1/models"]


def test_a_forked_process_asks_for_itself() -> None:
    """What was found is kept; what was being asked is not waited for."""
    known, unknown = detect._claim("http://known/")[0], "http://unknown/"
    known.ended.set()
    detect._claim(unknown)
    detect._after_fork()
    assert detect._claim("http://known/") == (known, False)
    assert detect._claim(unknown)[1]


@pytest.mark.parametrize("part", ["by_host", "_claim", "_conclude", "_inquiry"])
def test_a_recorder_that_fails(kind: Kind, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong in finding out, the call goes on, and its step says so."""

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("injected")

    with ScriptedServer("fine") as server:
        plain, _ = on(kind, server, chat, None)
        monkeypatch.delenv("PYTEST_CURRENT_TEST")
        monkeypatch.setattr(detect, part, fail)
        ours, (step,) = on(kind, server, chat, AUTO)
        assert posted(server) == [CHAT] * 2
    assert (plain[0], ours[0]) == ("returned", "returned")
    assert (step.status, step.engine) == ("ok", None)
    assert step.token_issue is not None
    assert step.token_issue.code == "recorder_failed"


def test_an_answer_that_is_nested_too_deeply(kind: Kind) -> None:
    """It tells nothing of the engine, and is no failure of the recorder."""
    with Server({"/v1/models": lambda: Response(200, (), [b"[" * 200_000])}) as server:
        outcome, (step,) = on(kind, server, chat, AUTO)
    assert outcome[0] == "returned"
    assert (step.status, step.engine) == ("ok", None)
