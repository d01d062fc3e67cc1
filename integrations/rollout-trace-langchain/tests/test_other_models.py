"""Models whose SDKs are not recorded: steps of what LangChain says of real answers of Ollama's and Bedrock's APIs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

import rollout_trace as rt
import rollout_trace_langchain.handler

from .agents import add

assert rollout_trace_langchain.handler  # The hook is there once it is imported.


def ollama(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Ollama answers in lines, of which the last one has the ending."""
    about = {"model": request["model"], "created_at": "2026-01-01T00:00:00Z"}
    if request.get("tools"):
        messages: list[Any] = [{"content": "", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}]}]
    else:
        messages = [{"content": "Hel", "thinking": "A greeting."}, {"content": "lo"}]
    counts = {"prompt_eval_count": 5, "eval_count": 7, "total_duration": 1}
    ending = {"message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "length", **counts}
    return [{**about, "message": {"role": "assistant", **one}, "done": False} for one in messages] + [about | ending]


def bedrock(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Bedrock's ``converse`` answers in blocks."""
    thought = {"text": "A greeting."} | ({"signature": "s"} if request.get("system") else {})
    content: list[Any] = [{"reasoningContent": {"reasoningText": thought}}, {"text": "Hello"}]
    if "toolConfig" in request:
        content = [{"toolUse": {"toolUseId": "t1", "name": "add", "input": {"a": 1}}}]
    return [
        {
            "output": {"message": {"role": "assistant", "content": content}},
            "stopReason": "tool_use" if "toolConfig" in request else "max_tokens",
            "usage": {"inputTokens": 5, "outputTokens": 7, "totalTokens": 12},
            "metrics": {"latencyMs": 1},
        }
    ]


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        """Answers like the API whose path it is."""
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        lines = (ollama if self.path == "/api/chat" else bedrock)(request)
        body = b"\n".join(json.dumps(line).encode() for line in lines)
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


@pytest.fixture(params=["ollama", "bedrock"])
def model(request: pytest.FixtureRequest, url: str) -> Iterator[Any]:
    if request.param == "ollama":
        chat = pytest.importorskip("langchain_ollama").ChatOllama(model="m", base_url=url, reasoning=True)
        yield chat
        chat._client._client.close()
        return
    aws = pytest.importorskip("langchain_aws")
    keys = {"aws_access_key_id": "none", "aws_secret_access_key": "none"}
    client = pytest.importorskip("boto3").client("bedrock-runtime", region_name="local", endpoint_url=url, **keys)
    yield aws.ChatBedrockConverse(model="m", client=client, bedrock_client=client, provider="anthropic")
    client.close()


def test_texts_reasoning_and_endings(model: Any) -> None:
    with rt.trajectory() as own:
        model.invoke("Hi")
    (step,) = own.steps
    assert step.completion is not None
    assert (step.completion.content, step.completion.reasoning) == ("Hello", "A greeting.")
    assert step.completion.extra is None
    assert step.finish_reason == ("length" if "Ollama" in type(model).__name__ else "max_tokens")
    assert (step.model, step.response_model) == ("m", "m")
    assert step.usage is not None
    assert (step.usage.input, step.usage.output) == (5, 7)


def test_tool_calls_are_no_part_of_the_text(model: Any) -> None:
    with rt.trajectory() as own:
        model.bind_tools([add]).invoke("1 + 1?")
    (step,) = own.steps
    assert step.completion is not None
    assert (step.completion.content, step.completion.reasoning) == (None, None)
    assert [(call.name, call.arguments) for call in step.completion.tool_calls] == [("add", '{"a": 1}')]


def test_a_conversation_is_in_chats_shape(model: Any) -> None:
    """Also where earlier answers are lists of blocks; those that say more than a completion's fields are kept."""
    with rt.trajectory() as own:
        first = model.invoke([("system", "Be brief."), ("user", "Hi")])
        asked = AIMessage("", tool_calls=[{"name": "add", "args": {"a": 1}, "id": "call_1"}])
        told = ToolMessage("2", tool_call_id="call_1")
        model.bind_tools([add]).invoke([HumanMessage("Hi"), first, HumanMessage("1 + 1?"), asked, told])
    one, two = own.steps
    assert one.completion is not None
    is_bedrock = "Bedrock" in type(model).__name__
    assert (one.completion.content, one.completion.extra is not None) == ("Hello", is_bedrock)
    if is_bedrock:
        assert one.completion.extra == {"content": first.content}
    assert two.messages is not None
    assert [message["role"] for message in two.messages] == ["user", "assistant", "user", "assistant", "tool"]
    assert two.messages[3]["tool_calls"][0]["id"] == two.messages[4]["tool_call_id"] == "call_1"
