"""Which requests are for a model server, and where those of child processes were going."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import Any

import httpx
import pytest
import requests

import rollout_trace as rt
from rollout_trace.clients.loopback.addresses import base_addresses, upstream_of
from rollout_trace.clients.loopback.messages import ORIGIN_HEADER
from rollout_trace.process.redirect import redirect
from rollout_trace.testing import ScriptedServer
from rollout_trace.testing.routing import (
    ModelTraffic,
    child_environment,
)

SERVER = "http://127.0.0.1:4321"
CHAT = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
SEARCH = b'{"query": "a page", "limit": 3}'

MODELS: list[tuple[str, str, bytes | None]] = [
    # Generation calls, whatever their address; some have their path alone.
    ("POST", "http://gpu-7:8000/v1/chat/completions", CHAT),
    ("post", "https://proxy.example.com/team/v1/chat/completions?x=1", CHAT),
    ("POST", "http://gpu-7:8000/v1/chat/completions", b'{"model": "m"}'),
    ("POST", "http://gpu-7:8000/v1/completions", None),
    ("POST", "http://gpu-7:8000/v1/responses", b'{"model": "m", "prompt": {"id": "pmpt_1"}}'),
    ("POST", "http://gpu-7:30000/generate", b'{"input_ids": [1], "sampling_params": {}}'),
    ("POST", "http://gpu-7:30000/generate", None),
    ("POST", "http://gpu-7:8000/inference/v1/generate", b'{"token_ids": [1], "sampling_params": {}}'),
    ("POST", "https://claude.example.com/v1/messages", b'{"model": "m", "messages": [], "max_tokens": 1}'),
    ("POST", "https://g.example.com/v1beta/models/m%3AstreamGenerateContent?alt=sse", b'{"contents": []}'),
    ("POST", "http://localhost:11434/api/chat", CHAT),
    ("POST", "http://localhost:11434/api/generate", b'{"model": "m", "prompt": "hi"}'),
    ("POST", "https://mine.cloud.databricks.com/serving-endpoints/chat/completions", CHAT),
    ("POST", "https://mine.cognitiveservices.azure.com/openai/deployments/d/chat/completions?api-version=1", CHAT),
    # The usual ones beside them.
    ("POST", "http://gpu-7:8000/v1/embeddings", b'{"model": "m", "input": "hi"}'),
    ("GET", "http://gpu-7:8000/v1/models", b""),
    ("GET", "http://gpu-7:8000/v1/models/org%2Fname", b""),
    ("GET", "http://gpu-7:8080/models", b""),
    ("POST", "https://claude.example.com/v1/messages/count_tokens", CHAT),
    ("POST", "https://g.example.com/v1beta/models/m:countTokens", b'{"contents": []}'),
    ("POST", "https://g.example.com/v1beta/models/m:embedContent", b"{}"),
    ("POST", "https://g.example.com/v1beta/models/m:batchEmbedContents", b"{}"),
    ("GET", "http://localhost:11434/api/tags", b""),
    ("GET", "http://10.0.0.3:11500/api/version", b""),
    ("GET", "http://ollama.example.com:11434/api/tags", b""),
    ("POST", "http://ollama.example.com/api/show", b'{"model": "m"}'),
    ("POST", "http://ollama.example.com/api/embed", b'{"model": "m", "input": "hi"}'),
    ("POST", "http://ollama.example.com/api/embeddings", b'{"model": "m", "prompt": "hi"}'),
    # All that goes to a provider.
    *(
        ("GET", f"https://{host}/anything/else", b"")
        for host in (
            "api.openai.com", "eu.api.openai.com", "api.anthropic.com", "generativelanguage.googleapis.com",
            "openrouter.ai", "api.mistral.ai", "api.groq.com", "api.together.xyz", "api.fireworks.ai",
            "api.deepseek.com", "mine.openai.azure.com", "us-central1-aiplatform.googleapis.com",
            "bedrock-runtime.eu-west-1.amazonaws.com", "API.OpenAI.com",
        )
    ),
]  # fmt: skip

OTHERS: list[tuple[str, str, bytes | None]] = [
    ("GET", "https://example.com/", b""),
    ("POST", "https://search.example.com/v1/search", SEARCH),
    ("POST", "https://images.example.com/generate", SEARCH),
    ("POST", "https://forms.example.com/responses", SEARCH),
    ("POST", "https://forms.example.com/v1/responses", SEARCH),
    ("POST", "https://mail.example.com/v1/messages", b'{"messages": [{"to": "a@b.c"}]}'),
    ("POST", "https://chat.example.com/api/chat", SEARCH),
    ("GET", "https://blog.example.com/api/tags", b""),
    ("GET", "https://blog.example.com/api/version", b""),
    ("POST", "https://tv.example.com/api/show", SEARCH),
    ("GET", "https://huggingface.co/api/models", b""),
    # Of hosts that serve models and much else, the calls of models alone.
    ("POST", "https://mine.cloud.databricks.com/api/2.0/sql/statements", SEARCH),
    ("POST", "https://mine.cognitiveservices.azure.com/documentintelligence/x:analyze", SEARCH),
    ("POST", "https://ollama.com/api/web_search", SEARCH),
    ("GET", "https://cars.example.com/v1/chat/completions", b""),
    ("PUT", "https://cars.example.com/v1/models", b""),
    ("GET", "https://notapi.openai.com.example.com/v1/x", b""),
    ("GET", "https://openai.azure.com.example.com/v1/x", b""),
    ("GET", "https://s3.eu-west-1.amazonaws.com/bedrock-runtime", b""),
    ("GET", "https://oauth2.googleapis.com/token", b""),
    ("POST", "ftp://gpu-7/v1/chat/completions", CHAT),
    ("POST", "http://[::1/v1/chat/completions", CHAT),
    ("POST", "/v1/chat/completions", CHAT),
]


@pytest.mark.parametrize(("method", "url", "body"), MODELS, ids=lambda one: str(one)[:60])
def test_requests_to_model_servers_go_to_the_loopback_server(method: str, url: str, body: bytes | None) -> None:
    found = ModelTraffic(SERVER).route(method, url, body)
    assert found is not None
    scheme, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    assert found.url == f"{SERVER}/{path}"
    assert found.headers == {ORIGIN_HEADER: f"{scheme}://{host}".lower()}


@pytest.mark.parametrize(("method", "url", "body"), OTHERS, ids=lambda one: str(one)[:60])
def test_other_requests_are_left_alone(method: str, url: str, body: bytes | None) -> None:
    assert ModelTraffic(SERVER).route(method, url, body) is None


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://user:secret@host.example.com/v1/models", "https://host.example.com"),
        ("https://host.example.com:443/v1/models", "https://host.example.com"),
        ("http://host.example.com:80/v1/models", "http://host.example.com"),
        ("http://host.example.com:443/v1/models", "http://host.example.com:443"),
        ("http://[::1]:8000/v1/models", "http://[::1]:8000"),
        ("http://us%65r@[fe80::1]/v1/models", "http://[fe80::1]"),
    ],
)
def test_the_origin_has_no_user_and_no_usual_port(url: str, origin: str) -> None:
    found = ModelTraffic(SERVER).route("GET", url, b"")
    assert found is not None
    assert (found.url, found.headers[ORIGIN_HEADER]) == (f"{SERVER}/v1/models", origin)


def test_all_of_an_address_follows_its_first_call() -> None:
    traffic = ModelTraffic(SERVER)
    health = ("GET", "http://gpu-7:8000/health", b"")
    assert traffic.route(*health) is None
    assert traffic.route("POST", "http://gpu-7:8000/v1/chat/completions", CHAT) is not None
    assert traffic.route(*health) is not None
    # Of that address alone, and in that test alone.
    assert traffic.route("GET", "http://gpu-7:8001/health", b"") is None
    assert traffic.route("GET", "https://gpu-7:8000/health", b"") is None
    assert ModelTraffic(SERVER).route(*health) is None


def test_known_addresses_are_those_of_model_servers_from_the_start() -> None:
    environ = {"OPENAI_BASE_URL": "http://gpu-7:8000/v1", "OLLAMA_HOST": "0.0.0.0", "OTHER_URL": "http://x:1"}
    traffic = ModelTraffic(SERVER, base_addresses(environ))
    assert traffic.route("GET", "http://gpu-7:8000/health", b"") is not None
    assert traffic.route("GET", "http://127.0.0.1:11434/", b"") is not None
    assert traffic.route("GET", "http://x:1/health", b"") is None


def test_the_loopback_server_itself_is_asked_as_it_is() -> None:
    for host in ("127.0.0.1", "localhost"):
        url = f"http://{host}:4321/openai/v1/chat/completions"
        assert ModelTraffic(f"{SERVER}/").route("POST", url, CHAT) == (url, {})


def test_the_address_of_the_server_is_checked() -> None:
    with pytest.raises(ValueError, match=r"ModelTraffic\('127.0.0.1'\): expected the address of a server"):
        ModelTraffic("127.0.0.1")


# Child processes


KEYS = {"OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"}


def test_keys_are_made_up_only_where_there_is_none() -> None:
    assert child_environment(SERVER, {}).keys() >= KEYS
    own = {"OPENAI_API_KEY": "a", "ANTHROPIC_AUTH_TOKEN": "b", "GOOGLE_API_KEY": "c"}
    assert not child_environment(SERVER, own).keys() & KEYS
    assert child_environment(SERVER, {"OPENAI_API_KEY": ""}).keys() >= KEYS


def test_addresses_without_a_usual_one_are_set_only_where_there_is_one() -> None:
    assert "AZURE_OPENAI_ENDPOINT" not in child_environment(SERVER, {})
    found = child_environment(SERVER, {"AZURE_OPENAI_ENDPOINT": "https://mine.openai.azure.com"})
    assert found["AZURE_OPENAI_ENDPOINT"] == f"{SERVER}/azure"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ("127.0.0.1,localhost", "127.0.0.1,localhost")),
        ({"NO_PROXY": "a.b, localhost"}, ("a.b,localhost,127.0.0.1", "a.b,localhost,127.0.0.1")),
        ({"no_proxy": "*", "NO_PROXY": "a.b"}, ("a.b,127.0.0.1,localhost", "*,127.0.0.1,localhost")),
    ],
)
def test_no_proxy_is_used_for_the_loopback_server(environ: dict[str, str], expected: tuple[str, str]) -> None:
    found = child_environment(SERVER, environ)
    assert (found["NO_PROXY"], found["no_proxy"]) == expected


CALL = "/chat/completions?api-version=1"


@pytest.mark.parametrize(
    ("path", "environ", "expected"),
    [
        (f"/openai/v1{CALL}", {}, ("https://api.openai.com", f"/v1{CALL}")),
        (f"/openai/v1{CALL}", {"OPENAI_BASE_URL": "http://gpu-7:8000/v1/"}, ("http://gpu-7:8000", f"/v1{CALL}")),
        (f"/openai/v1{CALL}", {"OPENAI_API_BASE": "http://u:p@gpu-7/llm"}, ("http://u:p@gpu-7", f"/llm{CALL}")),
        (f"/openai/v1{CALL}", {"OPENAI_BASE_URL": " "}, ("https://api.openai.com", f"/v1{CALL}")),
        ("/anthropic/v1/messages", {}, ("https://api.anthropic.com", "/v1/messages")),
        ("/anthropic/messages", {}, ("https://api.anthropic.com", "/v1/messages")),
        ("/google/v1beta/models/m:generateContent", {}, ("https://generativelanguage.googleapis.com",
                                                         "/v1beta/models/m:generateContent")),
        ("/gemini/v1beta/models/m:generateContent", {}, ("https://generativelanguage.googleapis.com",
                                                         "/v1beta/models/m:generateContent")),
        ("/ollama/api/chat", {}, ("http://127.0.0.1:11434", "/api/chat")),
        ("/ollama/api/chat", {"OLLAMA_HOST": "0.0.0.0"}, ("http://127.0.0.1:11434", "/api/chat")),
        ("/ollama/api/chat", {"OLLAMA_HOST": ":9000"}, ("http://127.0.0.1:9000", "/api/chat")),
        ("/ollama/api/chat", {"OLLAMA_HOST": "box:9000/base/"}, ("http://box:9000", "/base/api/chat")),
        ("/ollama/api/chat", {"OLLAMA_HOST": "[::1]:9000"}, ("http://[::1]:9000", "/api/chat")),
        ("/ollama/api/chat", {"OLLAMA_HOST": "https://box"}, ("https://box", "/api/chat")),
        ("/anthropic/messages", {"ANTHROPIC_BASE_URL": "http://a/v1"}, ("http://a", "/v1/messages")),
        ("/ollama", {}, ("http://127.0.0.1:11434", "/")),
        ("/azure/openai/deployments/d/chat/completions", {"AZURE_OPENAI_ENDPOINT": "https://m.openai.azure.com"},
         ("https://m.openai.azure.com", "/openai/deployments/d/chat/completions")),
        ("/azure/openai/deployments/d/chat/completions", {}, None),
        ("/v1/chat/completions", {}, None),
        ("/openai/v10/chat/completions", {}, None),
        ("/ollamas/api/chat", {}, None),
    ],
)  # fmt: skip
def test_where_a_request_was_going(path: str, environ: dict[str, str], expected: tuple[str, str] | None) -> None:
    assert upstream_of(path, environ) == expected


def test_the_paths_of_child_environment_are_those_that_are_undone() -> None:
    given = {"AZURE_OPENAI_ENDPOINT": "https://a", "HOSTED_VLLM_API_BASE": "http://b/v1"}
    found = child_environment(SERVER, given)
    paths = [value.removeprefix(SERVER) for value in found.values() if value.startswith(SERVER)]
    assert len(paths) >= 12
    assert all(upstream_of(f"{path}/x", given) is not None for path in paths)


PROGRAM = """
import anthropic, openai
from google import genai
ask = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
with openai.OpenAI() as client:
    print(client.chat.completions.create(**ask).choices[0].message.content)
with anthropic.Anthropic() as client:
    print(client.messages.create(**ask, max_tokens=9).content[0].text)
client = genai.Client()
print(client.models.generate_content(model="m", contents="hi").text)
client.close()
"""


@pytest.mark.more
def test_sdks_in_a_child_process_read_these_variables() -> None:
    absent = {*child_environment(SERVER, {}), "ANTHROPIC_AUTH_TOKEN", "GOOGLE_API_KEY"}
    environ = {name: value for name, value in os.environ.items() if name not in absent}
    environ |= {"HTTP_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
    with ScriptedServer("fine") as server:
        environ |= child_environment(server.url, environ)
        child = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True, check=False
        )
        assert (child.stdout.split(), child.returncode) == (["fine"] * 3, 0), child.stderr
        upstreams = [upstream_of(record.path, {}) for record in server.requests]
    paths = {"api.openai.com": "/v1/chat/completions", "api.anthropic.com": "/v1/messages"}
    (chat, messages, (google, content)) = [one for one in upstreams if one is not None]
    assert dict([chat, messages]) == {f"https://{host}": path for host, path in paths.items()}
    assert (google, content[-24:]) == ("https://generativelanguage.googleapis.com", "models/m:generateContent")


def test_a_detection_of_the_engine_goes_there_too() -> None:
    """What is asked before the first call, of an address that nothing tells."""
    import openai

    with ScriptedServer("fine") as server, redirect(ModelTraffic(server.url).route):
        with rt.trajectory() as trajectory, openai.OpenAI(base_url="http://model.invalid/v1", api_key="k") as made:
            client = rt.wrap_openai(made, engine="auto")
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    (step,) = trajectory.steps
    assert step.engine == "vllm"
    assert {record.headers[ORIGIN_HEADER] for record in server.requests} == {"http://model.invalid"}


def test_a_tool_of_the_agent_asks_its_own_server() -> None:
    async def search(url: str) -> Any:
        async with httpx.AsyncClient() as client:
            return (await client.get(url)).json()

    with ScriptedServer("fine") as server, ScriptedServer("theirs") as web, redirect(ModelTraffic(server.url).route):
        answer = requests.post("https://api.openai.com/v1/chat/completions", json=json.loads(CHAT), timeout=60)
        assert answer.json()["choices"][0]["message"]["content"] == "fine"
        asyncio.run(search(f"{web.url}/health"))
        assert [len(one.requests) for one in (server, web)] == [1, 1]
