"""Requests to a test server, by hand."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from typing import Any

from rollout_trace.data.model import Step
from rollout_trace.testing import LoopbackServer
from rollout_trace.wire import decode

MODEL = "m"
CHAT = "/v1/chat/completions"


def post(server: LoopbackServer, path: str, body: Any = None, method: str = "POST") -> tuple[int, bytes, Any]:
    """Status, body and headers of an answer, on a connection of its own."""
    data = None if body is None else json.dumps(body)
    with closing(http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)) as connection:
        connection.request(method, path, data, {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read(), response.headers


def chat(server: LoopbackServer, *said: str, **fields: Any) -> str:
    """The text of an answer; `said` are the texts of the user and the model in turn."""
    messages = [{"role": "assistant" if at % 2 else "user", "content": text} for at, text in enumerate(said)]
    status, body, _ = post(server, CHAT, {"model": MODEL, "messages": messages, **fields})
    answer = json.loads(body)
    return str(answer["choices"][0]["message"]["content"] if status == 200 else answer["error"]["message"])


def steps(server: LoopbackServer, protocol: str, path: str, body: dict[str, Any]) -> list[Step]:
    """What the core reads of the answer to a request."""
    status, data, headers = post(server, path, body)
    request = json.dumps(body).encode()
    return list(decode(protocol, request, data, status=status, content_type=headers["content-type"]))
