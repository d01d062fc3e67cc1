"""The chat endpoint over a policy of ids: what is sampled for nobody ends, and several answers differ."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import pytest

from rollout_trace.trainers.id_server import Answer, IdServer


class Policy:
    """Answers with the seed, or never."""

    def __init__(self, *, holds: bool = False) -> None:
        self.holds, self.asked, self.has_ended = holds, threading.Event(), False
        self.sampled: list[Future[Answer]] = []

    def render(self, request: Mapping[str, Any], *, is_open: bool) -> list[int]:
        return [1]

    def sample(self, request: Mapping[str, Any], prompt: list[int]) -> Future[Answer]:
        made: Future[Answer] = Future()
        self.sampled.append(made)
        if not self.holds:
            made.set_result(Answer([2], None, {"content": str(request.get("seed"))}, "stop"))
        self.asked.set()
        return made


def connection(server: IdServer, **fields: Any) -> http.client.HTTPConnection:
    made = http.client.HTTPConnection("127.0.0.1", int(server.url.rpartition(":")[2]))
    body = json.dumps({"messages": [], **fields})
    made.request("POST", "/run/v1/chat/completions", body, {"content-type": "application/json"})
    return made


@pytest.mark.parametrize("end", ["close", "leave", "run"])
def test_what_nobody_waits_for_is_sampled_no_further(end: str) -> None:
    policy, cut = Policy(holds=True), threading.Event()
    server = IdServer(lambda run: None if policy.has_ended else policy).start()
    try:
        client = connection(server)
        policy.asked.wait()
        policy.sampled[0].add_done_callback(lambda _: cut.set())
        endings: dict[str, Callable[[], None]] = {
            "close": server.close,
            "leave": client.close,
            "run": lambda: setattr(policy, "has_ended", True),
        }
        endings[end]()
        cut.wait()
        assert policy.sampled[0].cancelled()
        if end == "run":
            with pytest.raises(http.client.RemoteDisconnected):
                client.getresponse()
        client.close()
    finally:
        server.close()


def test_answers_of_one_seed_differ() -> None:
    policy = Policy()
    with IdServer(lambda run: policy) as server:
        client = connection(server, n=2, seed=4)
        choices = json.loads(client.getresponse().read())["choices"]
        client.close()
    assert [choice["message"]["content"] for choice in choices] == ["4", "5"]
