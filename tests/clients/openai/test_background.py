"""Responses that are made in the background: asked for by one call, fetched by others."""

from __future__ import annotations

import json
import threading
from typing import Any

from openai import OpenAI

import rollout_trace as rt
from rollout_trace.clients.loopback.messages import RequestRecord, Response, json_response
from rollout_trace.clients.loopback.server import LoopbackServer
from rollout_trace.clients.sdks import protocol_of

# Not a parameter of openai 1.66.
BACKGROUND = {"background": True}


def response(status: str) -> dict[str, Any]:
    text = {"type": "output_text", "text": "the answer", "annotations": []}
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [text]}
    output = [message] if status == "completed" else []
    return {
        "id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": status, "output": output,
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "background": True,
    }  # fmt: skip


class Background(LoopbackServer):
    """Queues a response, is at work on it when it is first asked for, and then has it."""

    def answer(self, record: RequestRecord) -> Response:
        gets = sum(known.method == "GET" for known in self.requests)
        return json_response(200, response(("queued", "in_progress", "completed", "completed")[min(gets, 3)]))


def test_a_background_response_is_one_completion() -> None:
    """The step of its answer has what was asked; the request and every other look at it are superseded."""
    with Background() as server, OpenAI(base_url=server.base_url, api_key="x") as client:
        rt.wrap_openai(client)
        with rt.trajectory() as trajectory:
            client.responses.create(model="m", input="q", temperature=0.5, extra_body=BACKGROUND)
            for _ in range(3):
                client.responses.retrieve("resp_1")
        assert len(server.requests) == len(trajectory.steps) == 4
    assert [step.status for step in trajectory.steps] == ["superseded", "superseded", "ok", "superseded"]
    answer = trajectory.steps[2]
    assert answer.completion is not None
    assert answer.completion.content == "the answer"
    assert answer.messages == ["q"]
    assert (answer.sampling, answer.model) == ({"background": True, "temperature": 0.5}, "m")


class SameId(LoopbackServer):
    """Gives every response the same id."""

    def answer(self, record: RequestRecord) -> Response:
        return json_response(200, response("completed"))


def test_responses_of_a_server_that_repeats_its_ids_are_all_kept() -> None:
    """Each was asked for by itself; none is another look at the first. Looked at again, they are what they were."""
    with SameId() as server, OpenAI(base_url=server.base_url, api_key="x") as client:
        rt.wrap_openai(client)
        with rt.trajectory() as trajectory:
            for turn in range(3):
                client.responses.create(model="m", input=f"q{turn}")
                assert [step.status for step in trajectory.steps] == ["ok"] * (turn + 1)
            client.responses.retrieve("resp_1")
    assert [step.status for step in trajectory.steps] == ["ok", "ok", "ok", "superseded"]
    assert [step.messages for step in trajectory.steps[:3]] == [["q0"], ["q1"], ["q2"]]


def test_a_background_response_that_is_looked_at_again_stays_one_completion() -> None:
    """Also where the trajectory's steps are looked at in between."""
    with Background() as server, OpenAI(base_url=server.base_url, api_key="x") as client:
        rt.wrap_openai(client)
        with rt.trajectory() as trajectory:
            client.responses.create(model="m", input="q", extra_body=BACKGROUND)
            for _ in range(3):
                client.responses.retrieve("resp_1")
                assert trajectory.steps[0].messages == ["q"]
    assert [step.status for step in trajectory.steps] == ["superseded", "superseded", "ok", "superseded"]
    assert trajectory.steps[2].messages == ["q"]


def test_a_background_response_that_is_never_fetched_says_so() -> None:
    """Its step is abandoned, with the reason."""
    with Background() as server, OpenAI(base_url=server.base_url, api_key="x") as client:
        with rt.trajectory() as trajectory:
            rt.wrap_openai(client).responses.create(model="m", input="q", extra_body=BACKGROUND)
        assert json.loads(server.requests[0].body)["background"] is True
    (step,) = trajectory.steps
    assert step.status == "abandoned"
    assert step.token_issue is not None
    assert step.token_issue.code == "background_not_fetched"


class Slow(Background):
    """Keeps the second look at a response waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go = threading.Event(), threading.Event()

    def answer(self, record: RequestRecord) -> Response:
        if sum(known.method == "GET" for known in self.requests) == 2:
            self.asked.set()
            self.go.wait(30)
        return json_response(200, response("completed"))


def test_a_look_that_still_runs_is_running() -> None:
    """It is superseded when its answer has come, and turns out to be one that is known."""
    with Slow() as server, OpenAI(base_url=server.base_url, api_key="x") as client:
        rt.wrap_openai(client)
        with rt.trajectory() as trajectory:
            client.responses.retrieve("resp_1")
            second = threading.Thread(target=rt.propagate(client.responses.retrieve), args=("resp_1",))
            second.start()
            server.asked.wait(30)
            running = [step.status for step in trajectory.steps]
            server.go.set()
            second.join()
    assert running == ["ok", "running"]
    assert [step.status for step in trajectory.steps] == ["ok", "superseded"]


def test_other_gets_are_not_recorded() -> None:
    """The items of a response, or a list of models, were not sampled."""
    assert protocol_of("get", "/responses/resp_1?beta=true") == "openai.responses"
    assert protocol_of("get", "/responses/resp_1/input_items") is None
    assert protocol_of("post", "/responses/resp_1/cancel") is None
    assert protocol_of("get", "/models") is None
