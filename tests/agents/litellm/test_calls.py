"""What litellm does around a call: retries, fallbacks, its cache, and answers that it throws away."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.testing import Fault, Reply, ScriptedServer

litellm = pytest.importorskip("litellm")
pytestmark = pytest.mark.filterwarnings("ignore")  # litellm's own
MESSAGES = [{"role": "user", "content": "hi"}]
ROUTES = ["openai/", "hosted_vllm/"]


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """litellm's, which are global."""
    for name, value in (("cache", None), ("suppress_debug_info", True), ("num_retries", None)):
        monkeypatch.setattr(litellm, name, value)
    with rt.instrument():
        yield
    # It leaves an event loop and connections open, which would else be noticed after the last test.
    gc.collect()


class Nowhere:
    """The target of a recording that keeps nothing."""

    def write(self, trajectory: rt.Trajectory) -> None:
        """Does nothing."""


def options(server: ScriptedServer, route: str = "openai/", name: str = "m") -> dict[str, Any]:
    """Of a call to the server."""
    return {"model": route + name, "api_base": server.base_url, "api_key": "none"}


def statuses(trajectory: rt.Trajectory) -> list[str]:
    """Of the steps."""
    return [step.status for step in trajectory.steps]


@pytest.mark.parametrize("route", ROUTES)
def test_retries_are_attempts_of_one_call(route: str) -> None:
    with ScriptedServer([Fault(status=500), Fault(status=500), "yes"]) as server:
        with rt.trajectory() as trajectory:
            answer = litellm.completion(**options(server, route), messages=MESSAGES, num_retries=2)
    assert answer.choices[0].message.content == "yes"
    (step,) = trajectory.steps
    assert [attempt.status for attempt in step.attempts] == [500, 500, 200]
    assert len(server.requests) == 3


@pytest.mark.parametrize("route", ROUTES)
def test_async_retries_are_attempts_of_one_call(route: str) -> None:
    async def agent(server: ScriptedServer) -> Any:
        return await litellm.acompletion(**options(server, route), messages=MESSAGES, num_retries=2)

    with ScriptedServer([Fault(status=500), Fault(status=500), "yes"]) as server:
        with rt.trajectory() as trajectory:
            answer = asyncio.run(agent(server))
    assert answer.choices[0].message.content == "yes"
    (step,) = trajectory.steps
    assert [attempt.status for attempt in step.attempts] == [500, 500, 200]


@pytest.mark.parametrize("route", ROUTES)
def test_a_fallback_is_a_call_of_its_own(route: str) -> None:
    def script(request: Any) -> Any:
        return Fault(status=503) if request["model"] == "broken" else "yes"

    with ScriptedServer(script) as server:
        with rt.trajectory() as trajectory:
            second = options(server, route, "other")
            litellm.completion(**options(server, route, "broken"), messages=MESSAGES, fallbacks=[second], num_retries=0)
    assert [(step.model, step.status) for step in trajectory.steps] == [("broken", "error"), ("other", "ok")]
    assert sum(len(step.attempts) for step in trajectory.steps) == len(server.requests)


@pytest.mark.parametrize("route", ROUTES)
def test_a_router_that_tries_again(route: str) -> None:
    with ScriptedServer([Fault(status=500), "yes"]) as server:
        deployment = {"model_name": "agent", "litellm_params": options(server, route)}
        router = litellm.Router(model_list=[deployment], num_retries=1, retry_after=0)
        with rt.trajectory() as trajectory:
            answer = asyncio.run(router.acompletion("agent", MESSAGES))
    assert answer.choices[0].message.content == "yes"
    assert sum(len(step.attempts) for step in trajectory.steps) == len(server.requests) == 2
    assert statuses(trajectory)[-1] == "ok"


def filtered(request: Any) -> Reply:
    """The model whose answers are filtered, and the other one."""
    return Reply("secret", finish_reason="content_filter") if request["model"] == "strict" else Reply("yes")


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("is_async", [False, True])
def test_an_answer_that_a_fallback_replaces_is_superseded(route: str, is_async: bool) -> None:
    with ScriptedServer(filtered) as server:
        names = ("strict", "other")
        deployments = [{"model_name": one, "litellm_params": options(server, route, one)} for one in names]
        router = litellm.Router(model_list=deployments, content_policy_fallbacks=[{"strict": ["other"]}], num_retries=0)
        with rt.trajectory() as trajectory:
            if is_async:
                answer = asyncio.run(router.acompletion("strict", MESSAGES))
            else:
                answer = router.completion("strict", MESSAGES)
    assert answer.choices[0].message.content == "yes"
    assert [(step.model, step.status) for step in trajectory.steps] == [("strict", "superseded"), ("other", "ok")]
    assert len(server.requests) == 2


def refused(request: Any) -> Reply:
    """An answer of a safeguard of Anthropic's, and one of the other model."""
    details = {"type": "refusal", "category": None, "explanation": None}
    is_strict = request["model"] == "strict"
    return Reply("no", finish_reason="refusal", extra={"stop_details": details}) if is_strict else Reply("yes")


def test_a_refused_message_that_a_fallback_replaces_is_superseded() -> None:
    # Of a stream, litellm discards an answer only before its first content.
    with ScriptedServer(refused) as server:
        names, params = ("strict", "other"), {"api_base": server.url, "api_key": "none"}
        deployments = [{"model_name": one, "litellm_params": {"model": f"anthropic/{one}", **params}} for one in names]
        router = litellm.Router(model_list=deployments, content_policy_fallbacks=[{"strict": ["other"]}], num_retries=0)
        with rt.trajectory() as trajectory:
            answer = asyncio.run(router.aanthropic_messages(model="strict", messages=MESSAGES, max_tokens=99))
    assert answer["content"][0]["text"] == "yes"
    assert [(step.model, step.status) for step in trajectory.steps] == [("strict", "superseded"), ("other", "ok")]
    assert len(server.requests) == 2


def schema(name: str) -> dict[str, Any]:
    """A response format: an object with one number."""
    shape = {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": shape}}


def test_an_answer_that_its_schema_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(litellm, "enable_json_schema_validation", True)
    with ScriptedServer(['{"x": "no"}', '{"x": 1}']) as server:
        with rt.trajectory() as trajectory:
            answer = litellm.completion(
                **options(server), messages=MESSAGES, response_format=schema("x"), num_retries=1
            )
    assert answer.choices[0].message.content == '{"x": 1}'
    assert statuses(trajectory) == ["superseded", "ok"]
    assert len(server.requests) == 2


def test_a_refused_answer_that_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(litellm, "enable_json_schema_validation", True)
    with ScriptedServer('{"x": "no"}') as server:
        with rt.trajectory() as trajectory:
            with pytest.raises(litellm.JSONSchemaValidationError):
                litellm.completion(**options(server), messages=MESSAGES, response_format=schema("x"))
    (step,) = trajectory.steps
    assert (step.status, step.completion and step.completion.content) == ("ok", '{"x": "no"}')
    assert step.error is not None
    assert step.error.type.endswith("JSONSchemaValidationError")
    assert len(server.requests) == 1


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_an_answer_of_the_cache(route: str, stream: bool, is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(litellm, "cache", litellm.Cache(type="local"))

    def ask(asked: dict[str, Any]) -> str:
        answer = litellm.completion(**asked)
        if stream:
            answer = litellm.stream_chunk_builder(list(answer))
        return str(answer.choices[0].message.content)

    async def ask_async(asked: dict[str, Any]) -> list[str]:
        texts = []
        for _ in range(2):
            answer = await litellm.acompletion(**asked)
            if stream:
                answer = litellm.stream_chunk_builder([chunk async for chunk in answer])
            await settled()
            texts.append(str(answer.choices[0].message.content))
        return texts

    with ScriptedServer("yes") as server:
        asked = {**options(server, route), "messages": MESSAGES, "temperature": 0.5, "stream": stream}
        # Its end is that of the calls too whose streams litellm neither closes nor lets go of.
        with rt.recording(Nowhere()), rt.trajectory() as trajectory:
            texts = asyncio.run(ask_async(asked)) if is_async else [ask(asked), ask(asked)]
    assert texts == ["yes", "yes"]
    assert len(server.requests) == 1
    assert statuses(trajectory) == ["ok", "cached"]
    step = trajectory.steps[1]
    assert step.completion is not None
    assert step.completion.content == "yes"
    assert step.finish_reason == "stop"
    assert step.messages == MESSAGES
    assert step.sampling == {"temperature": 0.5}
    assert step.response_id == trajectory.steps[0].response_id
    assert step.completion_token_ids is None
    assert step.token_issue is not None
    assert step.token_issue.code == "cached"


async def settled() -> None:
    """Waits for the other tasks of the loop: litellm writes its cache in one."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        if "cache" in repr(task).lower():
            await task
