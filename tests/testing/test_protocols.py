"""Every protocol of the core: what the scripted server answers is what the core reads, with ids and logprobs."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import OpenAI

import rollout_trace as rt
from rollout_trace.testing import ByteTokenizer, Reply, ScriptedServer
from rollout_trace.wire.protocols import RECORDS
from tests.testing.asking import chat, post, steps

TOKENIZER = ByteTokenizer()
PROMPT = [104, 105]
CALL = ("weather", '{"city": "Paris"}')
ASKED = "message.output_text.logprobs"
BODY: dict[str, Any] = {"model": "m", "input": "hi"}
STREAMED = pytest.mark.parametrize("stream", [False, True])

VLLM = "/inference/v1/generate"
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "openai.chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    "openai.completions": ("/v1/completions", {"prompt": "hi"}),
    "openai.responses": ("/v1/responses", {"input": "hi"}),
    "anthropic.messages": ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 99}),
    "vllm.generate": (VLLM, {"token_ids": PROMPT, "sampling_params": {}, "output_mode": "text"}),
    "sglang.generate": ("/generate", {"text": "hi", "sampling_params": {}}),
    "google.generate_content": ("/v1beta/models/m:generateContent", {"contents": [{"parts": [{"text": "hi"}]}]}),
    "ollama.chat": ("/api/chat", {"messages": [{"role": "user", "content": "hi"}]}),
    "ollama.generate": ("/api/generate", {"prompt": "hi"}),
}


def values(found: Any) -> list[Any]:
    return [] if found is None else list(found)


def test_every_protocol_of_the_core_that_is_decoded_is_served() -> None:
    # Save those of samplers in the process, which no server has.
    assert sorted(BODIES) == sorted(record.name for record in RECORDS if record.decoder is not None and record.paths)


@STREAMED
@pytest.mark.parametrize("protocol", BODIES)
def test_the_core_reads_what_the_script_says(protocol: str, stream: bool) -> None:
    path, body = BODIES[protocol]
    if protocol.startswith("google") and stream:
        path = path.replace(":generateContent", ":streamGenerateContent")
    with ScriptedServer("naïve 🙂", scale_out=True) as server:
        usage = {"stream_options": {"include_usage": True}} if stream else {}
        (step,) = steps(server, protocol, path, {"model": "m", "stream": stream, **usage, **body})
    assert step.completion is not None
    assert (step.status, step.completion.content, step.finish_reason) in [
        ("ok", "naïve 🙂", "stop"),
        ("ok", "naïve 🙂", "end_turn"),
        ("ok", "naïve 🙂", "STOP"),
    ]
    assert step.usage is not None
    assert step.usage.output == len("naïve 🙂".encode()) + 1
    # Ids that were not asked for are missing, and nothing else is wrong.
    assert step.token_issue is None or step.token_issue.code == "ids_missing"


@STREAMED
def test_generate_of_vllm_has_ids_and_logprobs(stream: bool) -> None:
    parameters = {"n": 2, "logprobs": 2, "max_tokens": 4}
    body = {"model": "m", "token_ids": PROMPT, "sampling_params": parameters, "return_token_ids": True}
    with ScriptedServer(lambda request, choice: f"four {choice}", chunk_tokens=3, scale_out=True) as server:
        found = steps(server, "vllm.generate", VLLM, {**body, "stream": stream, "output_mode": "text"})
    assert [step.completion.content for step in found if step.completion] == ["four", "four"]
    for step in found:
        assert values(step.prompt_token_ids) == PROMPT
        assert values(step.completion_token_ids) == [*b"four"]
        assert len(values(step.logprobs)) == 4
        assert (step.finish_reason, step.token_issue) == ("length", None)
        assert step.policy_version == "default"


def test_generate_of_vllm_is_not_there_unless_it_is_enabled() -> None:
    with ScriptedServer("x") as server:
        path, body = BODIES["vllm.generate"]
        (step,) = steps(server, "vllm.generate", path, body)
    assert step.error is not None
    assert step.error.status == 404


@STREAMED
@pytest.mark.parametrize("name", ["text", "input_ids"])
def test_generate_of_sglang_has_ids_and_logprobs(name: str, stream: bool) -> None:
    asked = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2, "stream": stream}
    body = {name: "hi" if name == "text" else PROMPT, "sampling_params": {"max_new_tokens": 99}, **asked}
    with ScriptedServer("four", chunk_tokens=2) as server:
        (step,) = steps(server, "sglang.generate", "/generate", body)
    assert values(step.prompt_token_ids) == PROMPT
    assert values(step.completion_token_ids) == [*b"four", TOKENIZER.eos_token_id]
    assert len(values(step.logprobs)) == 5
    assert (step.finish_reason, step.stop_reason, step.token_issue) == ("stop", TOKENIZER.eos_token_id, None)


def test_generate_of_sglang_answers_several_prompts() -> None:
    body = {"text": ["a", "b"], "sampling_params": {"n": 2, "max_new_tokens": 2}}
    with ScriptedServer("four") as server:
        found = steps(server, "sglang.generate", "/generate", body)
    assert [step.completion.content for step in found if step.completion] == ["fo"] * 4
    assert [step.finish_reason for step in found] == ["length"] * 4


@STREAMED
def test_responses_have_ids_and_logprobs_as_vllm_has_them(stream: bool) -> None:
    asked = {"enable_response_messages": True, "include": [ASKED], "top_logprobs": 2}
    with ScriptedServer("four") as server:
        (step,) = steps(server, "openai.responses", "/v1/responses", BODY | {"stream": stream, **asked})
        prompt = server.tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
    assert values(step.prompt_token_ids) == prompt
    assert values(step.completion_token_ids) == [*b"four", TOKENIZER.eos_token_id]
    assert len(values(step.logprobs)) == 5
    assert step.token_issue is None


@STREAMED
def test_a_response_goes_on_from_one_that_is_stored(stream: bool) -> None:
    """With `previous_response_id` the prompt is the one that the whole conversation would have."""
    call = Reply("Let me see.", [CALL], "hm")
    with ScriptedServer([call, "Sunny."]) as server, OpenAI(base_url=server.base_url, api_key="none") as client:
        first: Any = client.responses.create(model="m", input="Is it sunny?", instructions="Be brief.")
        called = next(item for item in first.output if item.type == "function_call")
        result: Any = [{"type": "function_call_output", "call_id": called.call_id, "output": "sun"}]
        arguments: Any = {"model": "m", "input": result, "previous_response_id": first.id}
        if stream:
            second = list(client.responses.create(**arguments, stream=True))[-1].response
        else:
            second = client.responses.create(**arguments)
        assert client.responses.retrieve(second.id).output_text == second.output_text == "Sunny."
        assert second.previous_response_id == first.id
        whole: list[Any] = [
            {"role": "user", "content": "Is it sunny?"},
            {
                "role": "assistant",
                "reasoning": "hm",
                "content": "Let me see.",
                "tool_calls": [{"function": {"name": CALL[0], "arguments": CALL[1]}}],
            },
            {"role": "tool", "content": "sun"},
        ]
        assert second.usage.input_tokens == len(server.tokenizer.apply_chat_template(whole))


def test_a_response_may_not_be_stored_or_be_deleted() -> None:
    with ScriptedServer("x") as server, OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        kept = client.responses.create(model="m", input="a")
        client.responses.delete(kept.id)
        unkept = client.responses.create(model="m", input="a", store=False)
        for gone in (kept, unkept):
            with pytest.raises(openai.NotFoundError, match=f"Response with id '{gone.id}' not found"):
                client.responses.retrieve(gone.id)
            with pytest.raises(openai.NotFoundError, match=f"Response with id '{gone.id}' not found"):
                client.responses.create(model="m", input="b", previous_response_id=gone.id)
        assert server.errors == []


def test_a_background_response_is_fetched() -> None:
    with ScriptedServer("done") as server, rt.trajectory() as trajectory:
        with rt.wrap_openai(OpenAI(base_url=server.base_url, api_key="none")) as client:
            queued = client.responses.create(model="m", input="a", background=True)
            assert (queued.status, queued.output_text) == ("queued", "")
            assert client.responses.retrieve(queued.id).output_text == "done"
    assert trajectory.steps[-1].completion is not None
    assert trajectory.steps[-1].completion.content == "done"


def test_tokens_and_versions_as_vllm_tells_them() -> None:
    with ScriptedServer("x") as server:
        messages = [{"role": "user", "content": "hé"}]
        found = json.loads(post(server, "/tokenize", {"messages": messages})[1])
        assert found["tokens"] == server.tokenizer.apply_chat_template(messages)
        assert found["count"] == len(found["tokens"])
        text = json.loads(post(server, "/tokenize", {"prompt": "hé", "return_token_strs": True})[1])
        assert text["tokens"] == [*"hé".encode()]
        assert json.loads(post(server, "/detokenize", {"tokens": text["tokens"]})[1]) == {"prompt": "hé"}
        assert json.loads(post(server, "/version", method="GET")[1])["version"]
        assert post(server, "/health", method="GET")[0] == 200
        assert post(server, "/detokenize", {"tokens": "no"})[0] == 400
        assert post(server, "/version", {})[0] == 405
        assert server.errors == []


def test_embeddings_are_the_same_in_every_run_and_near_where_texts_are() -> None:
    found = []
    for _ in range(2):
        with ScriptedServer("x") as server, OpenAI(base_url=server.base_url, api_key="none") as client:
            texts = ["the red cat", "the red cats", "31415926535"]
            found.append([one.embedding for one in client.embeddings.create(model="m", input=texts).data])
    assert found[0] == found[1]
    first, near, far = found[0]
    assert sum(value * value for value in first) == pytest.approx(1, abs=1e-5)
    similar, other = (sum(a * b for a, b in zip(first, two, strict=True)) for two in (near, far))
    assert similar > other


@pytest.mark.parametrize(("protocol", "bad"), [("vllm.generate", {"token_ids": "x"}), ("sglang.generate", {"text": 3})])
def test_a_request_without_a_prompt_is_refused(protocol: str, bad: dict[str, Any]) -> None:
    path, body = BODIES[protocol]
    with ScriptedServer("x", scale_out=True) as server:
        status, answer, _ = post(server, path, {**body, **bad})
    assert status == 400
    assert next(iter(bad)) in json.loads(answer)["error"]["message"]


def test_a_script_sees_the_messages_of_any_protocol() -> None:
    seen: list[Any] = []

    def script(request: Any, *, messages: Any) -> str:
        seen.append([(message["role"], message["content"]) for message in messages])
        return "x"

    with ScriptedServer(script, scale_out=True) as server:
        for path, body in BODIES.values():
            assert post(server, path, body)[0] == 200
    for name, messages in zip(BODIES, seen, strict=True):
        role = "prompt" if name in ("openai.completions", "vllm.generate", "sglang.generate") else "user"
        assert messages == [(role, "hi")], name


def test_a_plain_chat_still_answers() -> None:
    with ScriptedServer("x") as server:
        assert chat(server, "hi") == "x"


WEATHER: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        "/tokenize",
        {
            "messages": [
                {"role": "user", "content": "Where?"},
                {"role": "assistant", "tool_calls": [{"function": {"name": "look", "arguments": '{"at":"Rome"}'}}]},
                {"role": "tool", "content": "Sunny."},
            ]
        },
    ),
    "anthropic": (
        "/v1/messages/count_tokens",
        {
            "messages": [
                {"role": "user", "content": "Where?"},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {"at": "Rome"}}],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "Sunny."}]},
            ]
        },
    ),
    "google": (
        "/v1beta/models/m:countTokens",
        {
            "contents": [
                {"role": "user", "parts": [{"text": "Where?"}]},
                {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {"at": "Rome"}}}]},
                {
                    "role": "user",
                    "parts": [{"functionResponse": {"name": "look", "response": {"result": "Sunny."}}}],
                },
            ]
        },
    ),
}


def test_a_conversation_with_tools_is_one_prompt_in_every_protocol() -> None:
    with ScriptedServer("x") as server:
        found = {
            name: json.loads(post(server, path, {"model": "m", **body})[1]) for name, (path, body) in WEATHER.items()
        }
    assert found["anthropic"]["input_tokens"] == found["google"]["totalTokens"] == found["chat"]["count"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/messages/count_tokens", 400), ("/v1beta/models/m:countTokens", 400), ("/api/chat", 400),
        ("/api/generate", 400), ("/v1/responses", 200),
    ],
)  # fmt: skip
def test_a_request_without_messages(path: str, status: int) -> None:
    """Refused, save for a response, whose messages the server may hold."""
    with ScriptedServer("x") as server:
        assert post(server, path, {"model": "m"})[0] == status
