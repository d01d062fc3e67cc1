"""What each engine is asked for, when, and what is known of its logprobs. The oracle is the body that arrived."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.clients.loopback.messages import Response, json_response
from rollout_trace.testing import LoopbackServer, Reply, RequestRecord, ScriptedServer, ToolCall
from rollout_trace.wire.profiles import profile
from tests.amount import some
from tests.clients.either import Kind, done, each
from tests.clients.openai.harness import CHAT, chunks

from .engine_servers import LlamaServer, SGLang, events, on, posted

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
IDS = {"logprobs": True, "return_token_ids": True}
VLLM_IDS = {"return_token_ids": True, "return_weight_versions": True}
VLLM = {"logprobs": True, **VLLM_IDS}
RESPONSES = {"enable_response_messages": True, "include": ["message.output_text.logprobs"]}
USAGE = {"stream_options": {"include_usage": True}}
DYNAMO_REST = ["prompt_token_ids", "completion_token_ids"]
DYNAMO = {"nvext": {"extra_fields": ["engine_data", *DYNAMO_REST]}}
DYNAMO_OF_TWO = {"nvext": {"extra_fields": ["engine_data", "prompt_token_ids"]}}
SGLEXT = {"return_input_ids_in_sglext": True, "return_output_ids_in_sglext": True}
EXACT = {"verbose": True, "return_tokens": True}

# What is added: engine, resource, what the caller sets, fields.
ASKED: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("vllm", "chat", {}, VLLM),
    ("vllm", "chat", {"stream": True}, {**VLLM, **USAGE}),
    ("vllm", "chat", {"stream": True, "stream_options": {"include_usage": False}}, VLLM),
    ("vllm", "chat", {"stream": True, "stream_options": {"include_obfuscation": False}},
     {**VLLM, "stream_options": {"include_obfuscation": False, "include_usage": True}}),
    ("vllm", "chat", {"stream": True, "stream_options": None}, {**VLLM, **USAGE}),
    ("vllm", "completions", {"stream": True}, {"logprobs": 0, **VLLM_IDS}),
    ("vllm", "completions", {}, {"logprobs": 0, **VLLM_IDS}),
    ("vllm", "chat", {"logprobs": None, "extra_body": {"return_token_ids": None}, "tools": None}, VLLM),
    ("vllm", "chat", {"logprobs": False}, {**VLLM_IDS}),
    ("vllm", "chat", {"top_logprobs": None}, VLLM),
    ("vllm", "chat", {"top_logprobs": 2, "logprobs": True}, {**VLLM_IDS}),
    ("vllm", "completions", {"logprobs": None}, {"logprobs": 0, **VLLM_IDS}),
    ("vllm", "completions", {"echo": True}, {}),
    ("vllm", "completions", {"echo": True, "stream": True, "n": 2}, {}),
    ("vllm", "completions", {"echo": False}, {"logprobs": 0, **VLLM_IDS}),
    ("vllm", "responses", {}, RESPONSES),
    ("vllm", "responses", {"stream": True}, RESPONSES),
    ("sglang", "chat", {}, {"logprobs": True, "return_token_ids": True}),
    ("sglang", "chat", {"tools": TOOLS}, {"logprobs": True, "return_token_ids": True}),
    ("sglang", "chat", {"stream": True}, {"logprobs": True, **SGLEXT}),
    ("sglang", "chat", {"extra_body": {"return_output_ids_in_sglext": False}, "stream": True},
     {"logprobs": True, "return_input_ids_in_sglext": True}),
    ("sglang", "completions", {}, {"logprobs": 0, "return_token_ids": True}),
    ("sglang", "completions", {"stream": True}, {"logprobs": 0, "return_token_ids": True}),
    ("sglang", "completions", {"echo": True}, {"return_token_ids": True}),
    ("sglang", "completions", {"echo": True, "stream": True}, {"return_token_ids": True}),
    ("sglang", "responses", {}, {}),
    ("llama-server", "chat", {}, {"logprobs": True, **EXACT}),
    ("llama-server", "chat", {"tools": TOOLS}, {"logprobs": True, **EXACT}),
    ("llama-server", "chat", {"stream": True}, {"logprobs": True, **USAGE}),
    ("llama-server", "chat", {"stream": True, "tools": []}, {"logprobs": True, **USAGE}),
    ("llama-server", "chat", {"stream": True, "tools": TOOLS}, {}),
    ("llama-server", "chat", {"stream": True, "extra_body": {"tools": TOOLS}}, {}),
    ("llama-server", "completions", {}, {"logprobs": 1, **EXACT}),
    ("llama-server", "completions", {"stream": True}, {"logprobs": 1, **USAGE}),
    ("llama-server", "responses", {}, {}),
    ("dynamo", "chat", {}, {"logprobs": True, **DYNAMO}),
    ("dynamo", "chat", {"n": 1, "stream": True}, {"logprobs": True, **DYNAMO, **USAGE}),
    ("dynamo", "chat", {"n": 2}, {"logprobs": True, **DYNAMO_OF_TWO}),
    ("dynamo", "completions", {}, {"logprobs": 1, **DYNAMO}),
    ("dynamo", "completions", {"extra_body": {"prompt": [5, 6]}}, {"logprobs": 1, **DYNAMO}),
    ("dynamo", "completions", {"extra_body": {"prompt": ["a", "b"]}}, {"logprobs": 1, **DYNAMO_OF_TWO}),
    ("dynamo", "chat", {"extra_body": {"nvext": {"token_data": [1], "extra_fields": ["timing", "engine_data"]}}},
     {"logprobs": True, "nvext": {"token_data": [1], "extra_fields": ["timing", "engine_data", *DYNAMO_REST]}}),
    ("dynamo", "chat", {"extra_body": {"nvext": "mine"}}, {"logprobs": True}),
    ("dynamo", "responses", {}, {}),
    ("fireworks", "chat", {}, IDS),
    ("fireworks", "chat", {"stream": True, "logprobs": False}, {"return_token_ids": True}),
    ("fireworks", "completions", {}, {"logprobs": 1, "return_token_ids": True}),
    ("together", "chat", {}, {"logprobs": 1}),
    ("together", "chat", {"logprobs": True}, {}),
    ("together", "completions", {"stream": True}, {"logprobs": 1}),
    *(("openai", resource, {}, {}) for resource in ("chat", "completions", "responses")),
]  # fmt: skip


async def call(client: Any, resource: str, options: dict[str, Any]) -> Any:
    places = {"chat": client.chat.completions, "completions": client.completions, "responses": client.responses}
    prompts = {"chat": CHAT, "completions": {"model": "m", "prompt": "hi"}, "responses": {"model": "m", "input": "hi"}}
    answer = await done(places[resource].create(**prompts[resource], **options))
    return await chunks(answer) if options.get("stream") else answer


def sent(kind: Kind, engine: str | None, resource: str, options: dict[str, Any]) -> dict[str, Any]:
    """The body that arrives."""
    with ScriptedServer("fine") as server:
        outcome, _ = on(kind, server, lambda client: call(client, resource, options), {"engine": engine})
        assert outcome[0] == "returned", outcome
        (body,) = posted(server)
    return dict(body)


@pytest.mark.parametrize(("engine", "resource", "options", "fields"), some(ASKED, *ASKED[::3]))
def test_what_is_asked(kind: Kind, engine: str, resource: str, options: dict[str, Any], fields: dict[str, Any]) -> None:
    """The caller's own body, and exactly these fields."""
    assert sent(kind, engine, resource, options) == {**sent(kind, None, resource, options), **fields}


class Echoing(LoopbackServer):
    """Continues "hi" with " you", and echoes the prompt as vLLM 0.32 does: in the text only of answers without ids."""

    def answer(self, record: RequestRecord) -> Response:
        asked = record.json
        ids = {"prompt_token_ids": [1, 2], "token_ids": [3]} if asked.get("return_token_ids") else {}
        found: dict[str, Any] = {"tokens": ["h", "i", " you"], "token_logprobs": [None, -2.0, -3.0]}
        choice: dict[str, Any] = {"index": 0, "text": " you" if ids else "hi you", "finish_reason": "length", **ids}
        if asked.get("logprobs") is not None:
            choice["logprobs"] = {**found, "top_logprobs": None, "text_offset": [0, 1, 2]}
        body = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
        if asked.get("stream"):
            return events([body])
        return json_response(200, {**body, "usage": {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}})


@pytest.mark.parametrize("own", [{}, {"logprobs": 1}, {"stream": True}])
def test_an_echoed_prompt_stays_in_the_text(kind: Kind, own: dict[str, Any]) -> None:
    """Nothing that is added takes it away; a step without ids says so."""

    async def scenario(client: Any) -> Any:
        answer = await done(client.completions.create(model="m", prompt="hi", echo=True, **own))
        found = [one async for one in each(answer)] if own.get("stream") else [answer]
        return "".join(one.choices[0].text for one in found)

    with Echoing() as server:
        plain, _ = on(kind, server, scenario, None)
        ours, (step,) = on(kind, server, scenario, {"engine": "vllm"})
    assert plain == ours == ["returned", "hi you"]
    assert step.completion_token_ids is None
    assert step.token_issue is not None


@pytest.mark.parametrize("options", [{"top_logprobs": 2}, {"top_logprobs": 2, "logprobs": None}])
@pytest.mark.parametrize("engine", ["vllm", "llama-server", "fireworks", "together"])
def test_alternatives_without_logprobs_stay_refused(kind: Kind, engine: str, options: dict[str, Any]) -> None:
    """`top_logprobs` without `logprobs` is the caller's mistake, with the recorder as without."""

    class Strict(ScriptedServer):
        def answer(self, record: RequestRecord) -> Response:
            if record.json.get("top_logprobs") and not record.json.get("logprobs"):
                message = "when using `top_logprobs`, `logprobs` must be set to true."
                return json_response(400, {"error": {"message": message, "param": "top_logprobs", "code": 400}})
            return super().answer(record)

    with Strict("fine") as server:
        plain, _ = on(kind, server, lambda client: call(client, "chat", options), None)
        ours, _ = on(kind, server, lambda client: call(client, "chat", options), {"engine": engine})
        bare, *_, last = posted(server)
    assert last == bare
    assert ours[0] == "raised"
    assert ours == plain


@pytest.mark.parametrize("place", ["argument", "extra_body"])
@pytest.mark.parametrize(
    ("include", "expected"),
    [
        (["a"], ["a", "message.output_text.logprobs"]),
        (["message.output_text.logprobs", "a"], ["message.output_text.logprobs", "a"]),
        ([], ["message.output_text.logprobs"]),
        (None, ["message.output_text.logprobs"]),
    ],
)
def test_lists_are_joined(kind: Kind, place: str, include: Any, expected: Any) -> None:
    """What a Responses call includes stays included; null includes nothing. The caller's list is not changed."""
    given = None if include is None else list(include)
    options: dict[str, Any] = {"include": given}
    body = sent(kind, "vllm", "responses", {"extra_body": options} if place == "extra_body" else options)
    assert (body["include"], body["enable_response_messages"]) == (expected, True)
    assert given == include


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama-server", "dynamo", "fireworks", "together", "openai"])
def test_only_generation_is_asked(kind: Kind, engine: str) -> None:
    """Other requests are sent as they are."""

    async def scenario(client: Any) -> Any:
        await done(client.post("/tokenize", body={"prompt": "hi"}, cast_to=object))

    with ScriptedServer("fine") as server:
        on(kind, server, scenario, {"engine": engine})
        assert posted(server) == [{"prompt": "hi"}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("server", "engine", "prompt", "mode"),
    [(SGLang, "sglang", [1, 2, 3], "processed"), (LlamaServer, "llama-server", None, "raw")],
)
def test_ids_of_other_engines(
    kind: Kind, server: type[LoopbackServer], engine: str, prompt: Any, mode: str, stream: bool
) -> None:
    """What the engine was asked for arrives on the step, streamed or not."""
    with server() as running:
        outcome, (step,) = on(
            kind, running, lambda client: call(client, "chat", {"stream": stream}), {"engine": engine}
        )
    assert outcome[0] == "returned", outcome
    assert (step.status, step.engine, len(step.attempts)) == ("ok", engine, 1)
    assert step.logprobs is not None
    assert (step.logprobs.tolist(), step.logprobs_mode) == ([-1.0, -2.0], mode)
    if engine == "llama-server" and stream:
        return  # exact ids are not in its streams
    assert step.completion_token_ids is not None
    assert step.completion_token_ids.tolist() == [5, 6]
    assert (None if step.prompt_token_ids is None else step.prompt_token_ids.tolist()) == prompt


class OldVLLM(ScriptedServer):
    """vLLM before #29074: chunks whose text a parser holds back are not sent, nor the ids in them."""

    def answer(self, record: RequestRecord) -> Response:
        answer = super().answer(record)
        kept = [part for part in answer.parts if not (isinstance(part, bytes) and b'"delta":{}' in part)]
        return replace(answer, parts=kept)


def test_ids_that_a_stream_left_out_are_missed(kind: Kind) -> None:
    """The usage is asked for, and shows it: the rest of them is not trained on."""
    script = Reply(tool_calls=[ToolCall("f", '{"a": 1}')])
    options = {"stream": True, "tools": TOOLS}
    with ScriptedServer(script) as server, OldVLLM(script) as old:
        _, (whole,) = on(kind, server, lambda client: call(client, "chat", options), {"engine": "vllm"})
        _, (step,) = on(kind, old, lambda client: call(client, "chat", options), {"engine": "vllm"})
    assert whole.completion_token_ids is not None
    assert (step.completion_token_ids, step.logprobs) == (None, None)
    assert step.token_issue is not None
    assert step.token_issue.code == "usage_differs"


@pytest.mark.parametrize("stream", [False, True])
def test_tools_of_llama_server(kind: Kind, stream: bool) -> None:
    """A stream with tools is not refused."""
    with LlamaServer() as server:
        options = {"stream": stream, "tools": TOOLS}
        outcome, (step,) = on(kind, server, lambda c: call(c, "chat", options), {"engine": "llama-server"})
    assert outcome[0] == "returned", outcome
    assert (step.status, len(server.requests), step.logprobs is None) == ("ok", 1, stream)
    assert step.logprobs_mode == (None if stream else "raw")


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ({"engine": "vllm"}, "raw"),
        ({"engine": "vllm", "logprobs_mode": "processed"}, "processed"),
        ({"engine": "sglang"}, "processed"),
        ({"engine": "fireworks"}, None),
        ({"engine": "fireworks", "logprobs_mode": "raw"}, "raw"),
        ({"logprobs_mode": "raw"}, "raw"),
        ({}, None),
    ],
)
def test_logprobs_mode(kind: Kind, options: dict[str, Any], mode: str | None) -> None:
    """The user's word, else the engine's default; of a step without logprobs nothing is said. Copies know it too."""

    async def scenario(client: Any) -> Any:
        await call(client.with_options(timeout=9), "chat", {"logprobs": True})
        await call(client, "chat", {"logprobs": False})

    with ScriptedServer("fine") as server:
        _, (first, second) = on(kind, server, scenario, options)
    assert (first.logprobs is not None, first.logprobs_mode) == (True, mode)
    assert (second.logprobs, second.logprobs_mode) == (None, None)


def test_names() -> None:
    """A name that is not known is refused, with those that are."""
    names = "auto, dynamo, fireworks, llama-server, openai, sglang, together, vllm"
    with pytest.raises(ValueError, match=f"engine='nonsense' is not known. There are {names}"):
        profile("nonsense")
    for name in names.split(", "):
        found = profile(name)
        assert found is not None
        assert found.name == name


def test_modes() -> None:
    """So is a mode of logprobs; the client stays as it was."""
    import openai

    client = openai.OpenAI(api_key="none")
    with pytest.raises(ValueError, match="logprobs_mode='cooked' is unknown"):
        rt.wrap_openai(client, logprobs_mode="cooked")  # type: ignore[arg-type]
    assert type(client) is openai.OpenAI
    client.close()


def test_a_provider_without_ids_lost_none(kind: Kind) -> None:
    """The step says so, and the check does not count it as lost."""
    with ScriptedServer("fine") as server:
        _, (step,) = on(kind, server, lambda client: call(client, "chat", {}), {"engine": "openai"})
    assert step.token_issue == rt.TokenIssue(code="ids_missing", message="openai has no token ids.")
    findings = rt.Trajectory(steps=[step], reward=1.0).check()
    assert [finding.grade for finding in findings if finding.code == "ids_missing"] == ["info"]
