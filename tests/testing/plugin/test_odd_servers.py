"""Servers that answer in ways that are not usual: recorded, and replayed as they were."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from rollout_trace.clients.loopback.messages import Response
from rollout_trace.testing import LoopbackServer, RequestRecord

from .project import Project, exchanges_of, read

ANSWER = b'{"id":"a","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"finish_reason":"stop",'
ANSWER += b'"message":{"role":"assistant","content":"found"}}]}'


class Moved(LoopbackServer):
    """Sends each client to another path of it."""

    def answer(self, record: RequestRecord) -> Response:
        if record.path.startswith("/new"):
            return Response(parts=[ANSWER])
        target = f"{self.url}/new{record.path}?token=hidden&version=2"
        return Response(307, [("location", target), ("set-cookie", "session=hidden")])


def test_redirects_are_followed_in_a_replay_too(project: Project) -> None:
    project.tests("""
import os
from agent import begin, client

@pytest.mark.replay("moved.jsonl")
def test_one():
    with client() as one:
        answer = one.chat.completions.create(model="m", messages=begin("hello"))
    assert answer.choices[0].message.content == "found"
""")
    with Moved() as server:
        project.monkeypatch.setenv("MODEL_URL", server.base_url)
        project.run("--replay=record").assert_outcomes(passed=1)
    project.monkeypatch.delenv("MODEL_URL")
    project.replay().assert_outcomes(passed=1)
    first, second = exchanges_of(project.cassette("moved.jsonl"))
    location = "/new/v1/chat/completions?token=[redacted]&version=2"
    assert dict(first.headers)["location"] == second.path == location
    text = read(project.pytester.path / "moved.jsonl")
    assert "hidden" not in text
    assert "127.0.0.1" not in text


def test_a_server_that_accepts_no_connection(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollout_trace.clients.loopback.forwarding._LONGEST_CONNECT", 0.5)
    project.tests("""
import openai
from agent import begin, client

@pytest.mark.replay("full.jsonl")
def test_one():
    with client(max_retries=0, timeout=60) as one, pytest.raises(openai.APIConnectionError):
        one.chat.completions.create(model="m", messages=begin("hello"))
""")
    with ExitStack() as opened:
        server = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            # Not accepted, they fill the queue.
            waiting = opened.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        project.monkeypatch.setenv("MODEL_URL", f"http://127.0.0.1:{server.getsockname()[1]}/v1")
        project.run("--replay=record").assert_outcomes(passed=1)
    project.monkeypatch.delenv("MODEL_URL")
    (exchange,) = exchanges_of(project.cassette("full.jsonl"))
    assert exchange.outcome == "unreachable"
    project.replay().assert_outcomes(passed=1)


def test_many_open_files(project: Project) -> None:
    resource = pytest.importorskip("resource")
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 1500:
        pytest.skip("as many files cannot be opened here")
    project.tests("""
import os

@pytest.mark.replay
def test_one():
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        solve("hello", stream=True)
    finally:
        for file in files:
            os.close(file)
""")
    project.record().assert_outcomes(passed=1)
    project.replay().assert_outcomes(passed=1)
