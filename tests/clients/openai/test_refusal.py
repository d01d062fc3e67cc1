"""A server that refuses what it is asked for: the call is made again without, once, and nobody notices but the step."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.clients import ask as asking
from rollout_trace.clients.loopback.messages import json_response
from rollout_trace.testing import Fault, ScriptedServer
from tests.clients.either import Kind, done, entered, shown
from tests.wire.engines.engine_servers import KNOWN, Refusing, new_client, on, posted, tensorrt_body, transformers_body

from .harness import CHAT, chunks

VLLM = {"engine": "vllm"}
VERSIONS = {"return_weight_versions": True}
USAGE = {"stream_options": {"include_usage": True}}
ASKED = {**CHAT, "logprobs": True, "return_token_ids": True, **VERSIONS}


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
    """The caller gets the second answer; both exchanges are attempts of one step, which says what was refused.

    The field that was not refused is asked for all the same.
    """

    async def scenario(client: Any) -> Any:
        return await chat(client, stream=stream)

    with Refusing(status, body) as server:
        plain, _ = on(kind, server, scenario, None)
        (bare,) = server.requests
        ours, (step,) = on(kind, server, scenario, VLLM)
        _, first, second = server.requests
    assert plain[0] == "returned"
    assert ours[0] == "returned"
    usage = USAGE if stream else {}
    assert first.json == {**bare.json, "logprobs": True, "return_token_ids": True, **VERSIONS, **usage}
    assert second.json == {**bare.json, "logprobs": True, **VERSIONS, **usage}
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
    assert step.logprobs is not None


def test_a_call_without_anything_is_the_callers(kind: Kind) -> None:
    """Where each field is refused, the last request is the one that the caller made, byte for byte."""
    with Refusing(known=KNOWN - {"logprobs", *VERSIONS}) as server:
        plain, _ = on(kind, server, chat, None)
        ours, (step,) = on(kind, server, chat, VLLM)
        bare, *_, last = server.requests
        bodies = posted(server)
    assert without_ids(ours) == without_ids(plain)
    assert (last.body, last.headers) == (bare.body, bare.headers)
    assert bodies == [CHAT, ASKED, {**CHAT, "return_token_ids": True, **VERSIONS}, {**CHAT, **VERSIONS}, CHAT]
    assert [attempt.status for attempt in step.attempts] == [422, 422, 422, 200]
    assert step.token_issue is not None
    assert "logprobs: HTTP 422" in step.token_issue.message
    assert "return_token_ids: HTTP 422" in step.token_issue.message


def test_it_is_remembered(kind: Kind) -> None:
    """Later calls of any client ask that server without the field, and their steps say why; other servers are asked."""

    async def scenario(client: Any) -> Any:
        await chat(client)
        await chat(client.with_options(timeout=9))

    with Refusing() as server, ScriptedServer("fine") as willing:
        _, first = on(kind, server, scenario, VLLM)
        _, second = on(kind, server, scenario, VLLM)
        _, others = on(kind, willing, scenario, VLLM)
    less = {**CHAT, "logprobs": True, **VERSIONS}
    assert posted(server) == [ASKED, less, less, less, less]
    assert posted(willing) == [ASKED, ASKED]
    assert [len(step.attempts) for step in (*first, *second)] == [2, 1, 1, 1]
    for step in (*first, *second):
        assert step.token_issue is not None
        assert "Unexpected fields in the request: {'return_token_ids'}" in step.token_issue.message
    assert [step.token_issue for step in others] == [None, None]


class Particular(ScriptedServer):
    """Refuses logprobs in requests that `refuses` is true for, as vLLM does with echo and beams, llama-server with
    tools in a stream."""

    def __init__(self, refuses: Callable[[Any], bool], answer: Any = None) -> None:
        super().__init__("fine")
        self.refuses = refuses
        self.body = answer or {"error": {"message": "logprobs are not supported here", "code": 400}}

    def answer(self, record: Any) -> Any:
        asked = record.json or {}
        wanted = asked.get("logprobs")
        if wanted is not None and wanted is not False and self.refuses(asked):
            return json_response(400, self.body)
        # The scripted server does not echo.
        return super().answer(replace(record, body=json.dumps({**asked, "echo": False}).encode()))


SHAPES: list[dict[str, Any]] = [
    {"extra_body": {"echo": True, "use_beam_search": True}},
    {"stream": True, "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
    {"stream": True},
    {"n": 2},
    {"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "+".join(shape))
def test_a_refusal_is_of_one_shape_of_request(kind: Kind, shape: dict[str, Any]) -> None:
    """A plain call after it is asked in full; so is one where the fields of the shape are off, null, or 1."""
    fields = {**shape, **shape.get("extra_body", {})}
    fields.pop("extra_body", None)

    async def scenario(client: Any) -> Any:
        await chat(client)
        await chat(client, **shape)
        await chat(client, **shape)
        await chat(client)
        await chat(client, temperature=0.5)
        await chat(client, n=1, tools=[], extra_body={"echo": False, "use_beam_search": None})

    def has_shape(asked: Any) -> bool:
        return all(asked.get(name) is True or asked.get(name) not in (None, False, 1, []) for name in fields)

    with Particular(has_shape) as server:
        _, steps = on(kind, server, scenario, VLLM)
    calls = [[step for step in steps if step.call_id == name] for name in dict.fromkeys(s.call_id for s in steps)]
    assert [len(call[0].attempts) for call in calls] == [1, 2, 1, 1, 1, 1]
    assert [call[0].logprobs is not None for call in calls] == [True, False, False, True, True, True]
    # The ids were never refused.
    assert all(step.completion_token_ids is not None and step.token_issue is None for step in steps)


def test_completions_with_beams_leave_others_alone(kind: Kind) -> None:
    """With `echo` nothing is asked for."""

    async def scenario(client: Any) -> Any:
        for extra in ({"use_beam_search": True}, {}, {"echo": True, "use_beam_search": True}):
            await done(client.completions.create(model="m", prompt="hi", extra_body=extra))

    with Particular(lambda asked: bool(asked.get("use_beam_search"))) as server:
        _, steps = on(kind, server, scenario, VLLM)
    assert [len(step.attempts) for step in steps] == [2, 1, 1]
    assert [step.logprobs is not None for step in steps] == [False, True, False]
    assert [step.completion_token_ids is not None for step in steps] == [True, True, False]


def test_the_param_of_an_error_says_which_field(kind: Kind) -> None:
    """A message may name other fields too: what `param` names is refused, and nothing else."""
    body = {"error": {"message": "logprobs and return_token_ids exclude each other", "param": "logprobs", "code": 400}}
    with Particular(lambda asked: True, body) as server:
        _, (step,) = on(kind, server, chat, VLLM)
        assert posted(server) == [ASKED, {**CHAT, "return_token_ids": True, **VERSIONS}]
    assert step.completion_token_ids is not None
    assert step.token_issue is None


def test_a_success_forgets_a_refusal(kind: Kind) -> None:
    """A caller's own `logprobs` are answered: from then on they are asked for again."""
    refusing = True

    async def scenario(client: Any) -> Any:
        nonlocal refusing
        await chat(client)
        await chat(client)
        refusing = False
        await chat(client, logprobs=True)
        await chat(client)

    with Particular(lambda asked: refusing) as server:
        _, steps = on(kind, server, scenario, VLLM)
    assert [len(step.attempts) for step in steps] == [2, 1, 1, 1]
    assert [step.logprobs is not None for step in steps] == [False, False, True, True]


def test_after_a_while_a_server_is_asked_again(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one call; refused once more, it is left alone once more."""
    refusing = True

    async def scenario(client: Any) -> Any:
        nonlocal refusing
        await chat(client)
        later()
        await chat(client)
        await chat(client)
        later()
        refusing = False
        await chat(client)
        await chat(client)

    def later() -> None:
        for refusal in asking._refusals.values():
            refusal.expires = 0.0

    with Particular(lambda asked: refusing) as server:
        _, steps = on(kind, server, scenario, VLLM)
    assert [len(step.attempts) for step in steps] == [2, 2, 1, 1, 1]
    assert [step.logprobs is not None for step in steps] == [False, False, False, True, True]
    assert asking._refusals == {}


def test_only_so_many_refusals_are_remembered(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that never sends the same fields twice fills no memory."""
    monkeypatch.setattr(asking, "_MAX_REFUSALS", 3)

    async def scenario(client: Any) -> Any:
        for number in range(8):
            await chat(client, extra_body={f"field{number}": "x"})

    with Particular(lambda asked: True) as server:
        on(kind, server, scenario, VLLM)
    assert len(asking._refusals) <= 3


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

    with Refusing(known=KNOWN | {"prompt"}) as server:
        outcome, steps = on(kind, server, scenario, VLLM)
    assert outcome == ["returned", [200, True]]
    assert [[attempt.status for attempt in step.attempts] for step in steps] == [[422, 200], [422, 200]]


@pytest.mark.parametrize(
    ("fault", "options", "tries"),
    [
        (Fault(status=400, body={"error": {"message": "the prompt is too long"}}), VLLM, 2),
        (Fault(status=400, body={"error": {"message": "top_logprobs must be at most 20"}}), VLLM, 2),
        (Fault(status=422, body={"detail": "return_token_ids"}), {}, 1),
        (Fault(status=422, body={"detail": "return_token_ids"}), {"engine": "openai"}, 1),
        (Fault(status=404, body={"detail": "return_token_ids"}), VLLM, 1),
        (Fault(status=500, body={"detail": "return_token_ids"}), VLLM, 1),
        (Fault(status=422, body=b"\xff\xfe"), VLLM, 2),
    ],
)
def test_other_errors_are_raised(kind: Kind, fault: Fault, options: dict[str, Any], tries: int) -> None:
    """What is not about a field that was added is the caller's to see, once the request went out as it was made."""

    with ScriptedServer(fault) as server:
        plain, _ = on(kind, server, chat, None)
        ours, (step,) = on(kind, server, chat, options)
        bare, *bodies = posted(server)
        assert len(bodies) == tries
        assert tries == 1 or bodies[-1] == bare
    assert ours == plain
    assert ours[0] == "raised"
    assert (step.status, len(step.attempts)) == ("error", tries)
    assert asking._refusals == {}


class Misleading(Particular):
    """Refuses ids, and says that it is about logprobs, or about nothing at all."""

    def __init__(self, message: str) -> None:
        super().__init__(lambda asked: False)
        self.refused = {"error": {"message": message, "code": 400}}

    def answer(self, record: Any) -> Any:
        if (record.json or {}).get("return_token_ids"):
            return json_response(400, self.refused)
        return super().answer(record)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("message", ["beams have no logprobs", "tools are not supported here", "bad request", ""])
def test_an_error_that_names_another_field(kind: Kind, message: str, stream: bool) -> None:
    """The last try is the caller's own request, and the next one of that shape begins with it."""

    async def scenario(client: Any) -> Any:
        return [await chat(client, stream=stream), await chat(client, stream=stream)]

    with Misleading(message) as server:
        plain, _ = on(kind, server, scenario, None)
        ours, steps = on(kind, server, scenario, VLLM)
        bare, _, first, *others, last, again = posted(server)
    assert without_ids(ours) == without_ids(plain)
    assert ours[0] == "returned"
    asked = {**bare, "return_token_ids": True, **VERSIONS, **(USAGE if stream else {})}
    assert first == {**asked, "logprobs": True}
    assert others == ([asked] if "logprobs" in message else [])
    assert last == again == bare
    for step in steps:
        assert (step.status, step.completion_token_ids) == ("ok", None)
        assert step.token_issue is not None
        assert "return_token_ids: HTTP 400" in step.token_issue.message


def test_what_the_caller_asked_for_is_not_taken_away(kind: Kind) -> None:
    """A caller who set the fields sees the refusal."""

    async def scenario(client: Any) -> Any:
        return await chat(client, logprobs=True, extra_body={"return_token_ids": True, **VERSIONS})

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
    assert [attempt.status for attempt in step.attempts] == [400, 400, 400]
    assert step.error is not None
    assert step.error.message == "bad: messages"
    less = {**CHAT, "logprobs": True, **VERSIONS}
    assert bodies == [CHAT, ASKED, less, CHAT, ASKED, less, CHAT]


def test_lists_of_the_responses_protocol(kind: Kind) -> None:
    """A refusal may name an item of a list that was added, or its last part."""

    async def scenario(client: Any) -> Any:
        await done(client.responses.create(model="m", input="hi", include=["a"]))

    class NoLogprobs(ScriptedServer):
        def answer(self, record: Any) -> Any:
            refused = "message.output_text.logprobs" in record.json["include"]
            body = {"error": {"message": "logprobs are not supported with this model"}}
            return json_response(400, body) if refused else super().answer(record)

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


@pytest.mark.parametrize("part", ["without_refused", "update_refusals"])
def test_a_recorder_that_fails(kind: Kind, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without knowing a refusal the caller sees it; without remembering it the next call meets it again."""

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("injected")

    monkeypatch.setattr(f"rollout_trace.clients.recorder.{part}", fail)
    with Refusing() as server:
        monkeypatch.delenv("PYTEST_CURRENT_TEST")
        outcome, (step,) = on(kind, server, chat, VLLM)
        bodies = posted(server)
    less = {**CHAT, "logprobs": True, **VERSIONS}
    assert (outcome[0], bodies) == (("raised", [ASKED]) if part == "without_refused" else ("returned", [ASKED, less]))
    assert step.token_issue is not None
    assert step.token_issue.code == "recorder_failed"
