"""A script that a running server is given: set, extended, run out, and left over."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from typing import Any

import pytest

from rollout_trace.testing import Fault, Script, ScriptedServer


def ask(server: ScriptedServer) -> Any:
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}]})
    with closing(http.client.HTTPConnection(server.url.removeprefix("http://"))) as connection:
        connection.request("POST", "/v1/chat/completions", body)
        return json.loads(connection.getresponse().read())


def text(server: ScriptedServer) -> str:
    return str(ask(server)["choices"][0]["message"]["content"])


def test_a_running_server_gets_its_script() -> None:
    with ScriptedServer() as server:
        server.script = ["one", "two"]
        assert (text(server), server.answers_left) == ("one", 1)
        server.answers("three")
        assert server.answers_left == 2
        assert [text(server), text(server)] == ["two", "three"]
        assert server.answers_left == 0
        server.script = lambda request: "four"
        assert [text(server), text(server), server.answers_left] == ["four", "four", 0]
        server.answers(["five", "six"], Fault(status=503))
        assert server.answers_left == 2
        assert text(server) == "five"
        assert ask(server)["error"]["code"] == 503


def test_a_list_may_go_on_after_it_ran_out() -> None:
    server = ScriptedServer(["one"]).start()
    assert text(server) == "one"
    assert "request 2 came, but the script has 1 answer:" in ask(server)["error"]["message"]
    server.answers("two")
    assert (text(server), server.answers_left) == ("two", 0)
    with pytest.raises(IndexError, match="request 2 came"), server:
        pass


def test_a_server_without_a_script_says_so() -> None:
    with pytest.raises(IndexError, match=r"no script: set `server\.script`"), ScriptedServer() as server:
        assert "no script" in ask(server)["error"]["message"]


def test_the_answers_of_a_script_object_are_counted() -> None:
    with ScriptedServer(Script(["one", "two"], repeat_last=True)) as server:
        assert server.answers_left == 2
        assert [text(server) for _ in range(3)] == ["one", "two", "two"]
        assert server.answers_left == 0
