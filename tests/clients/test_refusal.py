"""A server that refuses what it is asked for: the call is made again without, once, and nobody notices but the step."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.clients import asking, detect
from rollout_trace.testing import Fault, ScriptedServer

from .either import Kind, done, entered, shown
from .engine_servers import KNOWN, Refusing, new_client, on, posted, tensorrt_body, transformers_body
from .harness import CHAT, chunks

VLLM = {"engine": "vllm"}
ASKED = {**CHAT, "logprobs": True, "return_token_ids": True}


@pytest.fixture(autouse=True)
def _nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the server of another test, which may have had the same port."""
    monkeypatch.setattr(detect, "_searches", {})
    monkeypatch.setattr(asking, "_refusals", {})


async def chat(client: Any, **options: Any) -> Any:
    answer = await done(client.chat.completions.create(**{**CHAT, **options}))
    return await chunks(answer) if options.get("stream") else shown(answer)


def without_ids(outcome: Any) -> Any:
    """Servers number their answers: the second is another one."""
    import re

    return re.sub(r"chatcmpl-[0-9a-f]+", "chatcmpl-", repr(outcome))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "body"), [(422, transformers_body), (400, tensorrt_body), (403, lambda field: f"no {field} for you")]
)
def test_a_refused_call_is_made_again(kind: Kind, status: int, body: Callable[[str], Any], stream: bool) -> None:
    """The caller gets the second answer; both exchanges are attempts of one step, which says what was refused."""

    async def scenario(client: Any) -> Any:
        return await chat(client, stream=stream)

    with Refusing(status, body) as server:
        plain, _ = on(kind, server, scenario, None)
        (bare,) = server.requests
        ours, (step,) = on(kind, server, scenario, VLLM)
        _, first, second = server.requests
    assert plain[0] == "returned"
    assert without_ids(ours) == without_ids(plain)
    assert first.json == {**bare.json, "logprobs": True, "return_token_ids": True}
    assert (second.body, second.headers) == (bare.body, bare.headers)
    assert [attempt.status for attempt in step.attempts] == [status, 200]
    assert step.attempts[0].error is not None
    assert step.attempts[0].error.status == status
    assert (step.status, step.error, step.engine) == ("ok", None, "vllm")
    assert "return_token_ids" not in (step.sampling or {})
    assert step.completion is not None
    assert step.completion.content == "fine"
    assert step.token_issue is not None
    assert step.token_issue.code == "ids_missing"
    assert f"HTTP {status}" in step.token_issue.message
    assert "return_token_ids" in step.token_issue.message


def test_it_is_remembered(kind: Kind) -> None:
    """Later calls of any client ask that server for nothing, and their steps say why; other servers are asked."""

    async def scenario(client: Any) -> Any:
        await chat(client)
        await chat(client.with_options(timeout=9), stream=True)

    with Refusing() as server, ScriptedServer("fine") as willing:
        _, first = on(kind, server, scenario, VLLM)
        _, second = on(kind, server, scenario, VLLM)
        _, others = on(kind, willing, scenario, VLLM)
    streamed = {**CHAT, "stream": True}
    assert posted(server) == [ASKED, CHAT, streamed, CHAT, streamed]
    assert posted(willing) == [ASKED, {**ASKED, "stream": True}]
    assert [len(step.attempts) for step in (*first, *second)] == [2, 1, 1, 1]
    for step in (*first, *second):
        assert step.token_issue is not None
        assert "Unexpected fields in the request: {'return_token_ids'}" in step.token_issue.message
    assert [step.token_issue for step in others] == [None, None]


def test_each_model_is_asked(kind: Kind) -> None:
    """A gateway has models that take the fields and others that do not."""

    async def scenario(client: Any) -> Any:
        for model in ("strict", "willing", "strict", "willing"):
            await chat(client, model=model)

    class Gateway(Refusing):
        def answer(self, record: Any) -> Any:
            self.known = KNOWN if record.json["model"] == "strict" else KNOWN | {"return_token_ids"}
            return super().answer(record)

    with Gateway() as server:
        _, steps = on(kind, server, scenario, VLLM)
    assert [step.token_issue is None for step in steps] == [False, True, False, True]
    assert [len(step.attempts) for step in steps] == [2, 1, 1, 1]


def test_other_surfaces(kind: Kind) -> None:
    """Raw and streaming responses, and completions, are made again too."""

    async def scenario(client: Any) -> Any:
        raw = await done(client.chat.completions.with_raw_response.create(**CHAT))
        async with entered(client.completions.with_streaming_response.create(model="m", prompt="hi")) as response:
            body = await done(response.read())
        return [raw.http_response.status_code, b"fine" in body]

    with Refusing(known=KNOWN - {"logprobs"} | {"prompt"}) as server:
        outcome, steps = on(kind, server, scenario, VLLM)
    assert outcome == ["returned", [200, True]]
    assert [[attempt.status for attempt in step.attempts] for step in steps] == [[422, 200], [422, 200]]


@pytest.mark.parametrize(
    ("fault", "options"),
    [
        (Fault(status=400, body={"error": {"message": "the prompt is too long"}}), VLLM),
        (Fault(status=400, body={"error": {"message": "top_logprobs must be at most 20"}}), VLLM),
        (Fault(status=422, body={"detail": "return_token_ids"}), {}),
        (Fault(status=422, body={"detail": "return_token_ids"}), {"engine": "openai"}),
        (Fault(status=404, body={"detail": "return_token_ids"}), VLLM),
        (Fault(status=500, body={"detail": "return_token_ids"}), VLLM),
        (Fault(status=422, body=b"\xff\xfe"), VLLM),
    ],
)
def test_other_errors_are_raised(kind: Kind, fault: Fault, options: dict[str, Any]) -> None:
    """What is not about a field that was added is the caller's to see, after one request."""

    with ScriptedServer(fault) as server:
        plain, _ = on(kind, server, chat, None)
        ours, (step,) = on(kind, server, chat, options)
        assert len(server.requests) == 2
    assert ours == plain
    assert ours[0] == "raised"
    assert (step.status, len(step.attempts)) == ("error", 1)


def test_what_the_caller_asked_for_is_not_taken_away(kind: Kind) -> None:
    """A caller who set the fields sees the refusal."""

    async def scenario(client: Any) -> Any:
        return await chat(client, logprobs=True, extra_body={"return_token_ids": True})

    with Refusing() as server:
        outcome, _ = on(kind, server, scenario, VLLM)
        assert len(server.requests) == 1
    assert outcome[0] == "raised"


def test_a_second_failure_is_the_callers(kind: Kind) -> None:
    """If the bare call fails too, its caller sees what it would have seen, and the server is asked again next time."""

    def script(request: Any) -> Any:
        names = "messages and return_token_ids" if "return_token_ids" in request else "messages"
        return Fault(status=400, body={"error": {"message": f"bad: {names}"}})

    with ScriptedServer(script) as server:
        plain, _ = on(kind, server, chat, None)
        ours, (step,) = on(kind, server, chat, VLLM)
        on(kind, server, chat, VLLM)
        bodies = posted(server)
    assert ours == plain
    assert [attempt.status for attempt in step.attempts] == [400, 400]
    assert step.error is not None
    assert step.error.message == "bad: messages"
    assert bodies == [CHAT, ASKED, CHAT, ASKED, CHAT]


def test_lists_of_the_responses_protocol(kind: Kind) -> None:
    """A refusal may name an item of a list that was added, or its last part."""

    async def scenario(client: Any) -> Any:
        await done(client.responses.create(model="m", input="hi", include=["a"]))

    class NoLogprobs(ScriptedServer):
        def answer(self, record: Any) -> Any:
            refused = "message.output_text.logprobs" in record.json["include"]
            body = {"error": {"message": "logprobs are not supported with this model"}}
            return self._delivery(Fault(status=400, body=body)).error() if refused else super().answer(record)

    with NoLogprobs("fine") as server:
        outcome, (step,) = on(kind, server, scenario, VLLM)
        included = [body["include"] for body in posted(server)]
    assert outcome[0] == "returned"
    assert included == [["a", "message.output_text.logprobs"], ["a"]]
    assert len(step.attempts) == 2


def test_many_threads() -> None:
    """Refused all at once, every call is answered and recorded."""
    with Refusing() as server, rt.trajectory() as trajectory, ThreadPoolExecutor(8) as threads:
        client = rt.wrap_openai(new_client("sync", server), engine="vllm")

        def one(_: int) -> Any:
            return client.chat.completions.create(**CHAT).choices[0].message.content

        assert list(threads.map(rt.propagate(one), range(40))) == ["fine"] * 40
        client.close()
    assert [step.status for step in trajectory.steps] == ["ok"] * 40
    assert sum(len(step.attempts) for step in trajectory.steps) == len(server.requests)
    assert {step.attempts[-1].status for step in trajectory.steps} == {200}
    assert all(step.token_issue is not None for step in trajectory.steps)


@pytest.mark.parametrize("part", ["refusal_of", "remember"])
def test_a_recorder_that_fails(kind: Kind, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without knowing a refusal the caller sees it; without remembering it the next call meets it again."""

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("injected")

    monkeypatch.setattr(f"rollout_trace.clients.seam.{part}", fail)
    with Refusing() as server:
        monkeypatch.delenv("PYTEST_CURRENT_TEST")
        outcome, (step,) = on(kind, server, chat, VLLM)
        bodies = posted(server)
    assert (outcome[0], bodies) == (("raised", [ASKED]) if part == "refusal_of" else ("returned", [ASKED, CHAT]))
    assert step.token_issue is not None
    assert step.token_issue.code == "recorder_failed"
