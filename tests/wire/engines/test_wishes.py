"""What `rt.Engine` adds to a request of each engine, what a server refuses of it, and why an extra is not on a step."""

from __future__ import annotations

import asyncio
import json
import logging
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

import rollout_trace as rt
from rollout_trace.clients.loopback.messages import Response, json_response
from rollout_trace.data.exchange import Exchange
from rollout_trace.integration import wrap_httpx
from rollout_trace.testing import Fault, LoopbackServer, RequestRecord, ScriptedServer
from rollout_trace.testing.recordings import load_exchanges
from tests.amount import some
from tests.clients.either import Kind, done, drive, each
from tests.clients.openai.harness import CHAT, chunks

from .engine_servers import LlamaServer, SGLang, on, posted
from .test_engines import DYNAMO, EXACT, IDS, RESPONSES, SGLEXT, TOOLS, USAGE, VLLM, VLLM_IDS, call

DATA = Path(__file__).parents[2] / "data"
GENERATE = "/inference/v1/generate"
AS_IDS = {"return_tokens_as_token_ids": True}
ALL: dict[str, Any] = {"routed_experts": True, "prompt_logprobs": 2, "top_logprobs": 5, "sampling_mask": True}
META = {"return_meta_info": True}
EXPERTS = {"return_routed_experts": True}

# Engine, options, resource, what the caller sets, fields.
ASKED: list[tuple[str, dict[str, Any], str, dict[str, Any], dict[str, Any]]] = [
    ("vllm", {}, "chat", {}, VLLM),
    ("vllm", ALL, "chat", {}, {**VLLM, "top_logprobs": 5, "prompt_logprobs": 2, **AS_IDS}),
    ("vllm", ALL, "chat", {"stream": True}, {**VLLM, **USAGE, "top_logprobs": 5, **AS_IDS}),
    ("vllm", ALL, "chat", {"logprobs": True}, {**VLLM_IDS, "top_logprobs": 5, "prompt_logprobs": 2}),
    ("vllm", ALL, "chat", {"logprobs": False}, {**VLLM_IDS, "prompt_logprobs": 2}),
    ("vllm", ALL, "chat", {"logprobs": True, "top_logprobs": 1}, {**VLLM_IDS, "prompt_logprobs": 2}),
    ("vllm", ALL, "chat", {"extra_body": {"prompt_logprobs": 0}}, {**VLLM, "top_logprobs": 5, **AS_IDS}),
    ("vllm", ALL, "completions", {}, {"logprobs": 5, **VLLM_IDS, "prompt_logprobs": 2, **AS_IDS}),
    ("vllm", ALL, "completions", {"stream": True}, {"logprobs": 5, **VLLM_IDS, **AS_IDS}),
    ("vllm", ALL, "completions", {"logprobs": 0}, {**VLLM_IDS, "prompt_logprobs": 2}),
    ("vllm", ALL, "completions", {"echo": True}, {"prompt_logprobs": 2}),
    ("vllm", ALL, "completions", {"echo": True, "stream": True, "n": 2}, {}),
    ("vllm", ALL, "responses", {}, {**RESPONSES, "top_logprobs": 5}),
    ("vllm", ALL, "responses", {"stream": True}, RESPONSES),
    ("vllm", {"prompt_logprobs": 0, "top_logprobs": 0}, "chat", {}, {**VLLM, "prompt_logprobs": 0}),
    ("vllm", {"prompt_logprobs": -1, "top_logprobs": -1}, "chat", {},
     {**VLLM, "prompt_logprobs": -1, "top_logprobs": -1, **AS_IDS}),
    ("vllm", {"routed_experts": True, "sampling_mask": True}, "completions", {},
     {"logprobs": 0, **VLLM_IDS}),
    ("sglang", ALL, "chat", {},
     {**IDS, "top_logprobs": 5, **EXPERTS, **META, "return_sampling_mask": True}),
    ("sglang", ALL, "chat", {"stream": True}, {"logprobs": True, **SGLEXT, "top_logprobs": 5, **EXPERTS}),
    ("sglang", ALL, "completions", {}, {"logprobs": 5, "return_token_ids": True, **EXPERTS}),
    ("sglang", ALL, "responses", {}, {}),
    ("sglang", {"top_logprobs": 0}, "completions", {"echo": True}, {"return_token_ids": True}),
    ("sglang", {"top_logprobs": -1}, "chat", {}, IDS),
    ("llama-server", ALL, "chat", {}, {"logprobs": True, "top_logprobs": 5, **EXACT}),
    ("llama-server", ALL, "chat", {"stream": True, "tools": TOOLS}, {}),
    ("llama-server", ALL, "completions", {"stream": True}, {"logprobs": 5, **USAGE}),
    ("dynamo", ALL, "chat", {}, {"logprobs": True, **DYNAMO, "top_logprobs": 5}),
    ("fireworks", ALL, "chat", {}, {**IDS, "top_logprobs": 5}),
    ("fireworks", {"top_logprobs": 6}, "chat", {}, IDS),
    ("fireworks", {"top_logprobs": 3}, "completions", {}, {"logprobs": 3, "return_token_ids": True}),
    ("together", ALL, "chat", {}, {"logprobs": 5}),
    ("openai", ALL, "chat", {}, {}),
]  # fmt: skip


def sent(kind: Kind, engine: Any, resource: str, options: dict[str, Any]) -> dict[str, Any]:
    """The body that arrives."""
    with ScriptedServer("fine") as server:
        on(kind, server, lambda client: call(client, resource, options), {"engine": engine})
        (body,) = posted(server)
    return dict(body)


@pytest.mark.parametrize(("engine", "wished", "resource", "options", "fields"), some(ASKED, *ASKED[::2]))
def test_what_is_asked(
    kind: Kind, engine: Any, wished: dict[str, Any], resource: str, options: dict[str, Any], fields: dict[str, Any]
) -> None:
    """The caller's own body, and exactly these fields."""
    body = sent(kind, rt.Engine(engine, **wished), resource, options)
    assert body == {**sent(kind, None, resource, options), **fields}


@pytest.mark.parametrize(
    ("engine", "path", "wished", "body", "expected"),
    [
        ("vllm", GENERATE, ALL, {"sampling_params": {}}, {"sampling_params": {"prompt_logprobs": 2, "logprobs": 5}}),
        ("vllm", GENERATE, ALL, {"sampling_params": {"logprobs": 1, "prompt_logprobs": None}},
         {"sampling_params": {"logprobs": 1, "prompt_logprobs": 2}}),
        ("vllm", GENERATE, ALL, {"sampling_params": {"top_k": 5}, "stream": True},
         {"sampling_params": {"top_k": 5, "logprobs": 5}}),
        ("vllm", GENERATE, {"top_logprobs": 0}, {"sampling_params": {}}, {"sampling_params": {"logprobs": 0}}),
        ("vllm", GENERATE, ALL, {"sampling_params": None}, {"sampling_params": None}),
        ("vllm", GENERATE, ALL, {}, {}),
        ("vllm", GENERATE, {}, {"sampling_params": {}}, {"sampling_params": {}}),
        ("sglang", "/generate", ALL, {"text": "hi"},
         {**EXPERTS, "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 5,
          "return_sampling_mask": True}),
        ("sglang", "/generate", {"prompt_logprobs": 7, "top_logprobs": 2}, {"text": "hi", "logprob_start_len": 3},
         {"return_logprob": True, "top_logprobs_num": 7}),
        ("sglang", "/generate", {}, {"text": "hi"}, {}),
        ("vllm", "/api/generate", ALL, {"sampling_params": {}}, {"sampling_params": {}}),
    ],
)  # fmt: skip
def test_what_is_asked_of_engines_own_endpoints(
    engine: Any, path: str, wished: dict[str, Any], body: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Fields in objects are added to the caller's object, never over its values."""
    with ScriptedServer("fine") as server, httpx.Client() as client:
        wrap_httpx(client, engine=rt.Engine(engine, **wished))
        client.post(server.base_url.removesuffix("/v1") + path, json=body)
        assert posted(server) == [{**body, **expected}]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"prompt_logprobs": -2}, ValueError, r"prompt_logprobs=-2\): expected a whole number from 0"),
        (
            {"top_logprobs": 21},
            ValueError,
            r"top_logprobs=21\): expected 0 to 20, -1 for the whole vocabulary, or None",
        ),
        ({"top_logprobs": True}, TypeError, r"top_logprobs=True\): expected 0 to 20"),
        ({"top_logprobs": 2.0}, TypeError, r"top_logprobs=2.0\)"),
        ({"routed_experts": 1}, TypeError, r"routed_experts=1\): expected True or False"),
        ({"sampling_mask": None}, TypeError, r"sampling_mask=None\): expected True or False"),
    ],
)
def test_options_that_are_wrong(options: dict[str, Any], error: type[Exception], message: str) -> None:
    """Refused where they are made, with what they may be."""
    with pytest.raises(error, match=message):
        rt.Engine("vllm", **options)


def test_engines_that_are_wrong() -> None:
    """An unknown name is refused at once; `auto` where it cannot be used."""
    with pytest.raises(ValueError, match="engine='vlm' is not known"):
        rt.Engine("vlm")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="name of an engine"):
        rt.Engine(None, top_logprobs=1)  # type: ignore[arg-type]
    with httpx.Client() as client, pytest.raises(ValueError, match="name the engine"):
        wrap_httpx(client, engine=rt.Engine("auto", top_logprobs=1))


# Refusals


class Strict(ScriptedServer):
    """Refuses chat and completions calls as a function of their body does."""

    def __init__(self, refuse: Any) -> None:
        super().__init__("fine")
        self.refuse = refuse

    def answer(self, record: RequestRecord) -> Response:
        if record.method == "POST" and (error := self.refuse(record.json)):
            return json_response(400, error)
        return super().answer(record)


def too_many(asked: Any) -> Any:
    """As vLLM refuses more alternatives than `--max-logprobs`: the name of the field is that of its own parameter."""
    if (asked.get("top_logprobs") or asked.get("logprobs") or 0) > 3:
        message = "Requested sample logprobs of 5, which is greater than max allowed: 3 (parameter=logprobs, value=5)"
        return {"error": {"message": message, "type": "BadRequestError", "param": "logprobs", "code": 400}}
    return None


def no_prompt_logprobs(asked: Any) -> Any:
    if asked.get("prompt_logprobs") is not None:
        return {"error": {"message": "Requested prompt logprobs of 2, which is greater than max allowed: 0"}}
    return None


def two_at_once(asked: Any) -> Any:
    unknown = {"prompt_logprobs", "return_tokens_as_token_ids"} & asked.keys()
    return {"detail": f"Unexpected fields in the request: {unknown}"} if unknown else None


def without_a_name(asked: Any) -> Any:
    return {"error": {"message": "this model cannot do that"}} if "prompt_logprobs" in asked else None


@pytest.mark.parametrize("resource", ["chat", "completions"])
@pytest.mark.parametrize(
    ("refuse", "lost", "refused"),
    [
        (too_many, {"top_logprobs", *AS_IDS}, {"top_tokens"}),
        (no_prompt_logprobs, {"prompt_logprobs"}, {"prompt_logprobs"}),
        (two_at_once, {"prompt_logprobs", *AS_IDS}, {"prompt_logprobs", "top_tokens"}),
        (without_a_name, {"prompt_logprobs", "top_logprobs", *AS_IDS}, {"prompt_logprobs", "top_tokens"}),
    ],
)
def test_a_refused_field_is_lost_alone(
    kind: Kind, resource: str, refuse: Any, lost: set[str], refused: set[str]
) -> None:
    """The others are sent again, and what is refused is remembered: the next call is sent without at once."""
    wished = rt.Engine("vllm", prompt_logprobs=2, top_logprobs=5)
    full = sent(kind, wished, resource, {})
    expected = {name: value for name, value in full.items() if name not in lost}
    if resource == "completions" and "top_logprobs" in lost:
        # The number of alternatives is that of logprobs: those of the sampled tokens alone are left.
        expected["logprobs"] = 0

    async def twice(client: Any) -> Any:
        await call(client, resource, {})
        return await call(client, resource, {})

    with Strict(refuse) as server:
        outcome, steps = on(kind, server, twice, {"engine": wished})
        assert posted(server) == [full, expected, expected]
    assert outcome[0] == "returned"
    for step in steps:
        assert (step.status, step.token_issue) == ("ok", None)
        assert {issue.field for issue in step.extra_issues if issue.code == "refused"} == refused
    assert all("HTTP 400" in issue.message for issue in steps[1].extra_issues if issue.code == "refused")


def test_a_refused_number_of_responses(kind: Kind) -> None:
    """Responses keep the logprobs of what was sampled."""
    wished = rt.Engine("vllm", top_logprobs=5)
    full = sent(kind, wished, "responses", {})
    with Strict(too_many) as server:
        outcome, (step,) = on(kind, server, lambda client: call(client, "responses", {}), {"engine": wished})
        without = {name: value for name, value in full.items() if name != "top_logprobs"}
        assert posted(server) == [full, without]
    assert (outcome[0], without["include"]) == ("returned", ["message.output_text.logprobs"])
    assert [issue.field for issue in step.extra_issues] == ["top_tokens"]


EVENT = {"error": {**too_many({"logprobs": 5})["error"]}}
OTHER = {"error": {"message": "the engine has died", "type": "BadRequestError", "param": None, "code": 400}}


class RefusingInStream(Strict):
    """Refuses as vLLM does where the answer is a stream: with status 200, and an event."""

    event: Any = EVENT
    pieces: tuple[int, ...] = ()
    """Where the chunks of the event end, besides at its end."""

    def answer(self, record: RequestRecord) -> Response:
        response = super().answer(record)
        if response.status == 400:
            event = b"data: " + json.dumps(self.event).encode() + b"\n\n"
            bounds = [0, *self.pieces, len(event)]
            parts = [*(event[a:b] for a, b in pairwise(bounds)), b"data: [DONE]\n\n"]
            return Response(200, [("content-type", "text/event-stream; charset=utf-8")], parts, chunked=True)
        return response


@pytest.mark.parametrize("resource", ["chat", "completions"])
def test_a_refusal_inside_a_stream(kind: Kind, resource: str) -> None:
    """The caller reads the stream of a call without the field; the next ones are sent without it."""
    wished = rt.Engine("vllm", top_logprobs=5)

    async def twice(client: Any) -> Any:
        await call(client, resource, {"stream": True})
        return await call(client, resource, {"stream": True})

    with RefusingInStream(too_many) as server:
        # While the other server has its port: one after it might get the same, and be the one that took the field.
        full = sent(kind, wished, resource, {"stream": True})
        expected = {name: value for name, value in full.items() if name not in ("top_logprobs", *AS_IDS)}
        expected["logprobs"] = True if resource == "chat" else 0
        outcome, steps = on(kind, server, twice, {"engine": wished})
        assert posted(server) == [full, expected, expected]
        plain, _ = on(kind, server, twice, {"engine": "vllm"})
    assert outcome[0] == plain[0] == "returned"
    assert [[attempt.status for attempt in step.attempts] for step in steps] == [[200, 200], [200]]
    assert steps[0].attempts[0].error is not None
    assert "max allowed" in steps[0].attempts[0].error.message
    for step in steps:
        assert (step.status, step.token_issue, step.completion and step.completion.content) == ("ok", None, "fine")
        assert [(issue.field, issue.code) for issue in step.extra_issues] == [("top_tokens", "refused")]


def test_another_error_inside_a_stream(kind: Kind) -> None:
    """It is the caller's, who gets it as without the recorder, once the request went out as it was made."""
    wished = rt.Engine("vllm", top_logprobs=5)

    async def scenario(client: Any) -> Any:
        return await call(client, "chat", {"stream": True})

    with RefusingInStream(lambda asked: True) as server:
        server.event = OTHER
        plain, _ = on(kind, server, scenario, None)
        ours, (step,) = on(kind, server, scenario, {"engine": wished})
        bare, *_, last = posted(server)
    assert last == bare
    assert plain[0] == "raised"
    assert ours[:2] == plain[:2]
    assert step.status == "error"
    assert step.error is not None
    assert "the engine has died" in step.error.message


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_inside_a_stream_of_an_http_client(kind: Kind, stream: bool) -> None:
    """Read as a whole or chunk by chunk, the answer is that of the call without the field."""
    asked = {**CHAT, "stream": True}

    def refuse(asked: Any) -> Any:
        return too_many({"logprobs": asked.get("top_logprobs")})

    async def read(client: Any, url: str) -> bytes:
        if not stream:
            response = await done(client.post(url, json=asked))
            return bytes(response.content)
        request = client.build_request("POST", url, json=asked)
        response = await done(client.send(request, stream=True))
        chunks = [chunk async for chunk in each(response.iter_raw() if kind == "sync" else response.aiter_raw())]
        await done(response.close() if kind == "sync" else response.aclose())
        return b"".join(chunks)

    async def run(url: str) -> list[bytes]:
        client: Any = httpx.Client() if kind == "sync" else httpx.AsyncClient()
        wrap_httpx(client, engine=rt.Engine("vllm", top_logprobs=5))
        answers = [await read(client, url) for _ in range(2)]
        await done(client.close() if kind == "sync" else client.aclose())
        return answers

    with RefusingInStream(refuse) as server, rt.trajectory() as trajectory:
        answers = drive(kind, run(f"{server.base_url}/chat/completions"))
        assert [body.get("top_logprobs") for body in posted(server)] == [5, None, None]
    assert all(b"[DONE]" in answer and b"error" not in answer for answer in answers)
    assert [step.status for step in trajectory.steps] == ["ok", "ok"]


@pytest.mark.parametrize("resource", ["chat", "completions"])
def test_a_refusal_that_comes_in_pieces(kind: Kind, resource: str) -> None:
    """Chunks end anywhere: the caller reads the stream of a call without the field."""

    async def scenario(client: Any) -> Any:
        return await call(client, resource, {"stream": True})

    with RefusingInStream(too_many) as server:
        server.pieces = (3, 7, 40)
        outcome, (step,) = on(kind, server, scenario, {"engine": rt.Engine("vllm", top_logprobs=5)})
        assert len(posted(server)) == 2
    assert (outcome[0], step.status) == ("returned", "ok")
    assert [(issue.field, issue.code) for issue in step.extra_issues] == [("top_tokens", "refused")]


@pytest.mark.parametrize("refuses", [False, True])
def test_a_stream_that_the_sdk_reads_as_a_whole(kind: Kind, refuses: bool) -> None:
    """A body that was read has no stream to wait for."""

    async def scenario(client: Any) -> Any:
        return await done(client.post("/chat/completions", body={**CHAT, "stream": True}, cast_to=object))

    with RefusingInStream(too_many if refuses else lambda asked: None) as server:
        outcome, (step,) = on(kind, server, scenario, {"engine": rt.Engine("vllm", top_logprobs=5)})
        assert [body.get("top_logprobs") for body in posted(server)] == ([5, None] if refuses else [5])
    assert (outcome[0], step.status) == ("returned", "ok")
    assert "[DONE]" in outcome[1]
    assert "max allowed" not in outcome[1]


class Interrupted(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A stream in whose first chunk its reader is interrupted, or cancelled."""

    is_closed = False

    def __iter__(self) -> Any:
        raise KeyboardInterrupt
        yield

    async def __aiter__(self) -> Any:
        raise asyncio.CancelledError
        yield

    def close(self) -> None:
        self.is_closed = True

    async def aclose(self) -> None:
        self.is_closed = True


def test_a_call_that_is_cancelled_before_its_first_chunk(kind: Kind) -> None:
    """Its response is closed, as the HTTP library does: its caller has none to close."""
    stream = Interrupted()
    transport = httpx.MockTransport(lambda request: httpx.Response(200, stream=stream))

    async def run() -> None:
        client: Any = (httpx.Client if kind == "sync" else httpx.AsyncClient)(transport=transport)
        wrap_httpx(client, engine=rt.Engine("vllm", top_logprobs=5))
        request = client.build_request("POST", "http://host/v1/chat/completions", json={**CHAT, "stream": True})
        try:
            with pytest.raises((KeyboardInterrupt, asyncio.CancelledError)):
                await done(client.send(request, stream=True))
            assert stream.is_closed
        finally:
            await done(client.close() if kind == "sync" else client.aclose())

    with rt.trajectory() as trajectory:
        drive(kind, run())
    assert [step.status for step in trajectory.steps] == ["cancelled"]


def test_a_stream_that_breaks_off_at_once(kind: Kind) -> None:
    """The error of the connection is raised where the caller reads, as without the recorder."""

    async def scenario(client: Any) -> Any:
        answer = await done(client.chat.completions.create(**CHAT, stream=True))
        try:
            return ["read", await chunks(answer)]
        except Exception as error:
            return ["broken", type(error).__name__]

    with ScriptedServer(Fault(cut_after=0)) as server:
        plain, _ = on(kind, server, scenario, None)
        ours, (step,) = on(kind, server, scenario, {"engine": rt.Engine("vllm", top_logprobs=5)})
    assert ours == plain
    assert ours[1][0] == "broken"
    assert step.status == "error"


def test_a_smaller_number_is_asked_for_again(kind: Kind) -> None:
    """What was refused is the number, not the field."""

    async def scenario(client: Any) -> Any:
        await call(client, "chat", {})
        rt.wrap_openai(client, engine=rt.Engine("vllm", top_logprobs=2))
        await call(client, "chat", {})

    with Strict(too_many) as server:
        _, steps = on(kind, server, scenario, {"engine": rt.Engine("vllm", top_logprobs=5)})
        assert [body.get("top_logprobs") for body in posted(server)] == [5, None, 2]
    assert [issue.code for issue in steps[0].extra_issues] == ["refused"]


def test_a_refused_field_in_an_object() -> None:
    """It leaves the others of the object, which is the caller's otherwise."""

    class Generate(LoopbackServer):
        def answer(self, record: RequestRecord) -> Response:
            if "prompt_logprobs" in record.json["sampling_params"]:
                message = (
                    "1 validation error: {'loc': 'body.sampling_params.prompt_logprobs', 'type': 'extra_forbidden'}"
                )
                return json_response(400, {"error": {"message": message, "param": "body.sampling_params", "code": 400}})
            return json_response(200, {"choices": [{"index": 0, "token_ids": [5], "finish_reason": "stop"}]})

    asked = {"token_ids": [1, 2], "sampling_params": {"top_k": 5}}
    with Generate() as server, httpx.Client() as client, rt.trajectory() as trajectory:
        wrap_httpx(client, engine=rt.Engine("vllm", prompt_logprobs=1, top_logprobs=3))
        for _ in range(2):
            assert client.post(server.base_url.removesuffix("/v1") + GENERATE, json=asked).status_code == 200
        bodies = [body["sampling_params"] for body in posted(server)]
    without = {"top_k": 5, "logprobs": 3}
    assert bodies == [{**without, "prompt_logprobs": 1}, without, without]
    for step in trajectory.steps:
        assert [issue.code for issue in step.extra_issues if issue.field == "prompt_logprobs"] == ["refused"]


def test_an_error_of_the_callers_stays(kind: Kind) -> None:
    """One that is not about a wished field is the caller's, once it went out without them, and as it was made."""

    def refuse(asked: Any) -> Any:
        return {"error": {"message": "temperature must be non-negative"}}

    with Strict(refuse) as server:
        plain, _ = on(kind, server, lambda client: call(client, "chat", {}), None)
        ours, (step,) = on(kind, server, lambda client: call(client, "chat", {}), {"engine": rt.Engine("vllm", **ALL)})
        bodies = posted(server)
    assert ours[:2] == plain[:2]
    assert bodies[-1] == bodies[0]
    assert [len(bodies), step.status, step.extra_issues] == [4, "error", ()]


# Steps


@cache
def recorded() -> dict[str, Exchange]:
    return {one.name: one for one in load_exchanges(DATA / "wire_vllm_extras.jsonl.xz")}


class Recorded(LoopbackServer):
    """Answers every call with one recording."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.exchange = recorded()[name]

    def answer(self, record: RequestRecord) -> Response:
        one = self.exchange
        return Response(one.status or 0, [("content-type", one.content_type)], one.chunks)


def step_of(name: str, engine: Any) -> rt.Step:
    """The step of a call that is answered as recorded."""
    with Recorded(name) as server, httpx.Client() as client, rt.trajectory() as trajectory:
        wrap_httpx(client, engine=engine)
        one = server.exchange
        client.post(server.base_url.removesuffix("/v1") + one.path, content=one.request)
    (step,) = trajectory.steps
    return step


NEVER = "not_in_this_form"
ISSUES = [
    ("moe_chat", {}, {"sampling_mask": NEVER, "prompt_logprobs": "not_sent", "top_tokens": "not_sent"}),
    ("moe_chat_stream", {},
     {"routed_experts": NEVER, "sampling_mask": NEVER, "prompt_logprobs": NEVER, "top_tokens": "not_sent"}),
    ("dense_chat_top5", {"routed_experts": True}, {"routed_experts": "not_sent"}),
    ("dense_gen_top5", {"sampling_mask": True, "routed_experts": True},
     {"sampling_mask": "not_sent", "routed_experts": "not_sent"}),
    ("dense_gen_plp1_stream", {"prompt_logprobs": 1}, {"prompt_logprobs": NEVER}),
    ("mask_gen_topk5", {"sampling_mask": True}, {}),
    ("moe_chat", {"routed_experts": True}, {}),
    ("moe_chat", {"top_logprobs": 0}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "wished", "codes"), ISSUES)
def test_why_an_extra_is_not_there(name: str, wished: dict[str, Any], codes: dict[str, str]) -> None:
    """Each wish that an answer does not meet has one reason; the ids are as they were."""
    step = step_of(name, rt.Engine("vllm", **(wished or ALL)))
    assert {issue.field: issue.code for issue in step.extra_issues} == codes
    assert len(step.extra_issues) == len(codes)
    assert step.token_issue is None
    assert all(issue.message.endswith(".") for issue in step.extra_issues)
    # The name alone wishes for nothing, and misses nothing.
    assert step_of(name, "vllm").extra_issues == ()


def test_an_extra_that_the_recorder_removed_is_not_blamed_on_the_server(kind: Kind) -> None:
    """It goes with the ids: of an answer with a key of the client."""
    key = "sk-1f0c8f1f5f0a4d4b9a"
    wished = {"engine": rt.Engine("vllm", routed_experts=True, prompt_logprobs=0, top_logprobs=2, sampling_mask=True)}
    with ScriptedServer(f"{key} ") as server:
        headers = {"extra_headers": {"Authorization": f"Bearer {key}"}}
        outcome, (step,) = on(kind, server, lambda client: call(client, "chat", headers), wished)
    assert (outcome[0], step.status, step.token_issue and step.token_issue.code) == ("returned", "ok", "redacted")
    assert step.extra_issues == ()


@pytest.mark.parametrize("limit", [40, 300])
def test_a_call_too_long_to_keep_has_one_reason(kind: Kind, limit: int) -> None:
    """What its request and its answer held is not known: nothing is told of either."""
    wished = {"engine": rt.Engine("vllm", **ALL), "max_call_bytes": limit}
    with ScriptedServer("fine") as server:
        _, (step,) = on(kind, server, lambda client: call(client, "chat", {}), wished)
    assert step.token_issue is not None
    assert (step.token_issue.code, step.extra_issues) == ("bytes_left_out", ())


def test_llama_server_has_no_alternatives_in_streams_with_tools(kind: Kind) -> None:
    """It would refuse the call: it is not asked, and the step has the reason."""
    options = {"stream": True, "tools": TOOLS}
    with LlamaServer() as server:
        wished = rt.Engine("llama-server", top_logprobs=2)
        outcome, (step,) = on(kind, server, lambda client: call(client, "chat", options), {"engine": wished})
    assert (outcome[0], len(server.requests)) == ("returned", 1)
    (issue,) = step.extra_issues
    assert (issue.code, issue.message) == (
        NEVER, "llama-server refuses logprobs in chat streams with tools: make the call unstreamed.",
    )  # fmt: skip


def test_what_to_do_is_named() -> None:
    """The flag to start the server with, or the call that has it."""
    messages = {
        issue.field: issue.message for issue in step_of("dense_gen_top5", rt.Engine("vllm", **ALL)).extra_issues
    }
    assert "--enable-return-routed-experts" in messages["routed_experts"]
    assert "--return-sampling-mask" in messages["sampling_mask"]
    (issue,) = step_of("moe_chat_stream", rt.Engine("vllm", routed_experts=True)).extra_issues
    assert issue.message == (
        "vLLM never sends them in streams of /chat/completions: make the call without stream, or use "
        "/inference/v1/generate."
    )


def test_it_is_warned_of_once(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    """Before a call that cannot meet a wish is sent; not again for calls of the same form."""

    async def thrice(client: Any) -> Any:
        await call(client, "chat", {})
        await call(client, "chat", {"extra_body": {"top_k": 9}})
        return await call(client, "chat", {"stream": True, "extra_body": {"top_k": 9}})

    with caplog.at_level(logging.WARNING, "rollout_trace"), ScriptedServer("fine") as server:
        wished = rt.Engine("vllm", sampling_mask=True, routed_experts=True)
        on(kind, server, thrice, {"engine": wished})
    texts = [record.getMessage() for record in caplog.records]
    assert len([text for text in texts if "sampling_mask=True): vLLM never sends it in answers" in text]) == 1
    assert len([text for text in texts if "sampling_mask=True): vLLM never sends it in streams" in text]) == 1
    assert len([text for text in texts if "routed_experts=True): vLLM never sends them in streams" in text]) == 1
    assert len([text for text in texts if "without top_k > 0" in text]) == 1
    assert len(texts) == 4


@pytest.mark.parametrize("name", ["mask_gen_none_err", "mask_gen_temp0_err", "mask_chat_none_err"])
def test_an_error_without_a_message_is_explained(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """vLLM fails where it cannot make a mask: the error stays as it came, the reason is beside it."""
    with caplog.at_level(logging.WARNING, "rollout_trace"):
        plain, step = step_of(name, "vllm"), step_of(name, rt.Engine("vllm", sampling_mask=True))
    assert step.status == "error"
    assert step.error == plain.error
    assert step.error is not None
    assert step.error.status == 500
    assert plain.extra_issues == ()
    (issue,) = step.extra_issues
    assert (issue.field, issue.code) == ("sampling_mask", "not_sent")
    assert "set top_k" in issue.message
    assert any("HTTP 500 without a message" in record.getMessage() for record in caplog.records)


def test_auto_asks_what_was_wished(kind: Kind) -> None:
    """Of the engine that is found; of one that is not, nothing, and the step has the reason."""
    with SGLang() as server:
        on(kind, server, lambda client: call(client, "chat", {}), {"engine": rt.Engine("auto", routed_experts=True)})
        (body,) = posted(server)
    assert body == {**CHAT, **IDS, **EXPERTS}

    class Unknown(ScriptedServer):
        def answer(self, record: RequestRecord) -> Response:
            return json_response(404, {}) if record.method == "GET" else super().answer(record)

    with Unknown("fine") as unknown:
        _, (step,) = on(
            kind, unknown, lambda client: call(client, "chat", {}), {"engine": rt.Engine("auto", top_logprobs=2)}
        )
        assert posted(unknown) == [CHAT]
    (issue,) = step.extra_issues
    assert (issue.field, issue.code) == ("top_tokens", "not_sent")
    assert "name it" in issue.message


def test_copies_and_bound_clients_wish_the_same() -> None:
    """What was wished is a setting of the client."""
    import openai

    with ScriptedServer("fine") as server, rt.trajectory() as trajectory:
        with openai.OpenAI(base_url=server.base_url, api_key="none") as client:
            rt.wrap_openai(client, engine=rt.Engine("vllm", prompt_logprobs=0))
            client.with_options(timeout=9).chat.completions.create(**CHAT)
            rt.bind(client, trajectory).chat.completions.create(**CHAT)
            rt.wrap_openai(client, engine="vllm").chat.completions.create(**CHAT)
        assert [body.get("prompt_logprobs") for body in posted(server)] == [0, 0, None]


def test_the_journal_keeps_what_was_wished(tmp_path: Path) -> None:
    """Of a process that was killed, the steps have the same reasons."""
    from rollout_trace.record.call import Call
    from rollout_trace.record.journal_records import copy_of
    from rollout_trace.record.settings import Settings

    wished = rt.Engine("vllm", routed_experts=True, top_logprobs=3)
    call = Call(Settings(lambda method, path: None, wishes=wished), "openai.chat")
    assert copy_of(call).settings.wishes == wished
    assert copy_of(Call(Settings(lambda method, path: None), "openai.chat")).settings.wishes is None


# What logprobs are of

FORMAT = {"response_format": {"type": "json_object"}}
NAMED = {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}}


@pytest.mark.parametrize(
    ("engine", "options", "mode", "expected"),
    [
        ("vllm", FORMAT, None, "constrained"),
        ("vllm", NAMED, None, "constrained"),
        ("vllm", {"extra_body": {"structured_outputs": {"regex": "a+"}}}, None, "constrained"),
        ("vllm", {"extra_body": {"allowed_token_ids": [5]}}, None, "raw"),
        ("vllm", {"extra_body": {"top_k": 5}}, None, "raw"),
        ("vllm", FORMAT, "processed", "processed"),
        ("vllm", FORMAT, "raw", "raw"),
        ("vllm", {}, "constrained", "constrained"),
        ("sglang", FORMAT, None, "constrained"),
        ("sglang", {"extra_body": {"ebnf": "root ::= [a]"}}, None, "constrained"),
        ("sglang", {}, None, "processed"),
        ("llama-server", FORMAT, None, "raw"),
        ("fireworks", FORMAT, None, None),
        (None, {**FORMAT, "logprobs": True}, None, None),
    ],
)
def test_logprobs_under_a_grammar(
    kind: Kind, engine: Any, options: dict[str, Any], mode: Any, expected: str | None
) -> None:
    """Where the engine's include it they are `constrained`, unless the user named another distribution."""
    with ScriptedServer("fine") as server:
        wrap = {"engine": engine, "logprobs_mode": mode}
        _, (step,) = on(kind, server, lambda client: call(client, "chat", options), wrap)
    assert step.logprobs is not None
    assert step.logprobs_mode == expected
