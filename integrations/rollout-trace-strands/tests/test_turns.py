"""What Strands does with answers: throws them away, takes them from a cache, never asks for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from strands import Agent, ModelRetryStrategy, tool
from strands.hooks import (
    AfterInvocationEvent,
    AfterModelCallEvent,
    AfterToolCallEvent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    MessageAddedEvent,
)
from strands.plugins import Plugin
from strands.session import FileSessionManager

import rollout_trace as rt
from rollout_trace.testing import Fault, Reply, ScriptedServer
from rollout_trace_strands.middleware import InvokeModelStage, ModelStopReason, add_middleware

from .harness import Recorded, Served, add, adding, agent_of, assert_served, openai_model, results


def statuses(trajectory: rt.Trajectory) -> list[str]:
    return [step.status for step in trajectory.steps]


@pytest.mark.sees("superseded", "a hook's `event.retry`")
def test_an_answer_that_a_hook_asks_for_again_is_superseded(recorded: Recorded) -> None:
    def again(event: AfterModelCallEvent) -> None:
        if event.stop_response is not None and "bad" in str(event.stop_response.message):
            event.retry = True

    with ScriptedServer(["bad 1", "bad 2", "good"]) as server, rt.trajectory() as trajectory:
        agent = agent_of(openai_model(server))
        agent.add_hook(again)  # after the provider: registered later, asked before it
        agent("Go.")
    assert statuses(trajectory) == ["superseded", "superseded", "ok"]
    for record, step in zip(server.requests, trajectory.steps, strict=True):
        Served(record).assert_is(step)
    assert [row.step_ids for row in trajectory.sequences()] == [(trajectory.steps[2].id,)]
    recorded.keep(trajectory)


def test_a_throttled_call_that_strands_retries(recorded: Recorded) -> None:
    with ScriptedServer([Fault(status=429), "good"]) as server, rt.trajectory() as trajectory:
        retry = ModelRetryStrategy(max_attempts=2, initial_delay=0, max_delay=0)
        agent_of(openai_model(server), retry_strategy=retry)("Go.")
    assert statuses(trajectory) == ["error", "ok"]
    assert trajectory.steps[0].error is not None
    assert trajectory.steps[0].error.status == 429
    recorded.keep(trajectory)


async def _twice(context: Any, next_fn: Any) -> Any:
    """Asks twice and takes the second answer."""
    async for event in next_fn(context):
        if not isinstance(event, ModelStopReason):
            yield event
    async for event in next_fn(context):
        yield event


async def _from_cache(context: Any, next_fn: Any) -> Any:
    message = {"role": "assistant", "content": [{"text": "as before"}]}
    usage = {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}
    yield ModelStopReason("end_turn", cast(Any, message), cast(Any, usage), cast(Any, {"latencyMs": 0}))


class Middleware(Plugin):
    """A plugin's middleware is around the provider's."""

    name = "middleware"

    def __init__(self, handler: Any) -> None:
        super().__init__()
        self._handler = handler

    def init_agent(self, agent: Agent) -> None:
        add_middleware(agent, InvokeModelStage, self._handler)


@pytest.mark.sees("superseded", "an answer that a plugin's middleware drops")
def test_an_answer_that_a_middleware_throws_away_is_superseded(recorded: Recorded) -> None:
    with ScriptedServer(["first", "second"]) as server, rt.trajectory() as trajectory:
        agent_of(openai_model(server), plugins=[Middleware(_twice)])("Go.")
    assert statuses(trajectory) == ["superseded", "ok"]
    recorded.keep(trajectory)


@pytest.mark.sees("cached", "a middleware's answer")
@pytest.mark.parametrize("place", ["around", "inside"])
def test_an_answer_from_a_cache(recorded: Recorded, place: str) -> None:
    with ScriptedServer("never") as server, rt.trajectory() as trajectory:
        plugins = [Middleware(_from_cache)] if place == "around" else []
        agent = agent_of(openai_model(server), plugins=plugins, name="cacher")
        if place == "inside":
            add_middleware(agent, InvokeModelStage, _from_cache)
        assert str(agent("Go.")) == "as before\n"
    assert server.requests == []
    (step,) = trajectory.steps
    assert (step.status, step.agent, step.model) == ("cached", "cacher", "scripted")
    assert step.token_issue is not None
    assert step.token_issue.code == "cached"
    assert step.completion is not None
    assert (step.completion.content, step.usage) == ("as before", None)
    assert step.messages is not None
    assert [message["role"] for message in step.messages] == ["system", "user"]
    recorded.keep(trajectory)


def test_a_call_that_a_hook_refuses_is_none(recorded: Recorded) -> None:
    def refuse(event: BeforeModelCallEvent) -> None:
        event.cancel = "no"

    with ScriptedServer("never") as server, rt.trajectory() as trajectory:
        assert str(agent_of(openai_model(server), hooks=[refuse])("Go.")) == "no\n"
    assert (trajectory.steps, server.requests) == ([], [])
    recorded.keep(trajectory)


def test_a_resumed_run(recorded: Recorded) -> None:
    seen = []

    def resume(event: AfterInvocationEvent) -> None:
        seen.append(event.result)
        if len(seen) == 1:
            event.resume = "Once more."

    with ScriptedServer(["one", "two"]) as server, rt.trajectory() as trajectory:
        agent_of(openai_model(server), hooks=[resume])("Go.")
    assert_served(server, trajectory.steps)
    assert len(trajectory.sequences()) == 1
    recorded.keep(trajectory)


def test_a_tool_that_a_hook_runs_again(recorded: Recorded) -> None:
    runs = []

    def again(event: AfterToolCallEvent) -> None:
        runs.append(event.result)
        event.retry = len(runs) == 1
        if not event.retry:
            by_another(event)

    with ScriptedServer(adding(1)) as server, rt.trajectory() as trajectory:
        agent_of(openai_model(server), hooks=[again], tools=[add])("Add.")
    assert_served(server, trajectory.steps)
    assert len(trajectory.tool_runs) == 2
    assert len({run.tool_call_id for run in trajectory.tool_runs}) == 1
    assert [run.result for run in trajectory.tool_runs] == ["2", "edited"]
    recorded.keep(trajectory)


def in_place(event: AfterToolCallEvent) -> None:
    event.result["content"][0]["text"] = "edited"


def by_another(event: AfterToolCallEvent) -> None:
    event.result = {**event.result, "content": [{"text": "edited"}]}


def in_the_message(event: MessageAddedEvent) -> None:
    for block in event.message["content"]:
        if "toolResult" in block:
            block["toolResult"]["content"] = [{"text": "edited"}]


@pytest.mark.parametrize("edit", [in_place, by_another, in_the_message])
def test_a_result_that_a_hook_edits_is_what_the_model_reads(recorded: Recorded, edit: Any) -> None:
    def script(request: dict[str, Any]) -> Reply:
        calls = [("add", '{"a": 1, "b": 1}'), ("add", '{"a": 2, "b": 2}')]
        return Reply("done") if results(request) else Reply(tool_calls=calls)

    with ScriptedServer(script) as server, rt.trajectory() as trajectory:
        agent_of(openai_model(server), hooks=[edit], tools=[add])("Add.")
    assert_served(server, trajectory.steps)
    read = [message["content"] for message in server.requests[1].json["messages"] if message["role"] == "tool"]
    assert [run.result for run in trajectory.tool_runs] == ["edited", "edited"]
    assert all("edited" in json.dumps(content) for content in read)
    recorded.keep(trajectory)


def test_an_edited_result_that_no_model_reads(recorded: Recorded) -> None:
    def stop(event: BeforeModelCallEvent) -> None:
        event.cancel = len(event.agent.messages) > 1

    with ScriptedServer(adding(1)) as server, rt.trajectory() as trajectory:
        agent_of(openai_model(server), hooks=[by_another, stop], tools=[add])("Add.")
    assert len(server.requests) == 1
    assert [run.result for run in trajectory.tool_runs] == ["edited"]
    recorded.keep(trajectory)


def test_a_tool_that_waits_for_a_human(recorded: Recorded) -> None:
    def ask(event: BeforeToolCallEvent) -> None:
        event.interrupt("approve", reason=event.tool_use["input"])

    with ScriptedServer(adding(1)) as server, rt.trajectory() as trajectory:
        agent = agent_of(openai_model(server), hooks=[ask])
        asked = agent("Add.")
        assert (asked.stop_reason, trajectory.tool_runs) == ("interrupt", [])
        (interrupt,) = asked.interrupts or ()
        response: Any = [{"interruptResponse": {"interruptId": interrupt.id, "response": "yes"}}]
        assert agent(response).stop_reason == "end_turn"
    assert_served(server, trajectory.steps)
    (run,) = trajectory.tool_runs
    assert (run.result, run.step_id) == ("2", trajectory.steps[0].id)
    # It went on in the same block.
    assert (trajectory.stop_reason, trajectory.metadata) == (None, None)
    recorded.keep(trajectory)


def test_both_halves_of_a_run_that_waits_have_its_session(recorded: Recorded, tmp_path: Path) -> None:
    @tool(context=True)
    def erase(name: str, tool_context: Any) -> str:
        """Erases."""
        return str(tool_context.interrupt("sure", reason={"name": name}))

    def script(request: Any) -> Reply:
        is_told = any(message["role"] == "tool" for message in request["messages"])
        return Reply("done") if is_told else Reply(tool_calls=[("erase", '{"name": "it"}')])

    with ScriptedServer(script) as server:
        response: Any = "Erase it."
        for _ in range(2):
            # As in another process.
            session = FileSessionManager("s1", storage_dir=str(tmp_path))
            agent = agent_of(openai_model(server), tools=[erase], agent_id="a", session_manager=session)
            result = agent(response)
            for one in result.interrupts or ():
                response = [{"interruptResponse": {"interruptId": one.id, "response": "yes"}}]
    before, after = recorded.all()
    assert [(one.status, one.stop_reason) for one in (before, after)] == [
        ("completed", "interrupted"),
        ("completed", None),
    ]
    found = [one.metadata or {} for one in (before, after)]
    assert [one["conversation_id"] for one in found] == ["s1", "s1"]
    (waits,) = found[0]["waits_for"]
    assert (waits["name"], waits["reason"]) == ("sure", {"name": "it"})
    (asked,), (done,) = before.tool_runs, after.tool_runs
    assert (asked.error, asked.result, done.result) == (None, None, "yes")


def test_a_run_whose_end_nobody_tells_is_closed_by_the_next(recorded: Recorded) -> None:
    """Strands fires no event when the conversation manager raises after the run."""
    from strands.agent import SlidingWindowConversationManager

    class Broken(SlidingWindowConversationManager):
        is_broken = True

        def apply_management(self, agent: Agent, **kwargs: Any) -> None:
            if self.is_broken:
                raise RuntimeError("no room")

    manager = Broken()
    with ScriptedServer(["one", "two"]) as server:
        agent = agent_of(openai_model(server), conversation_manager=manager)
        with pytest.raises(RuntimeError, match="no room"):
            agent("Go.")
        assert recorded.all() == []
        manager.is_broken = False
        agent("Again.")
    first, second = recorded.all()
    assert (first.status, second.status) == ("aborted", "completed")
    assert_served(server, [*first.steps, *second.steps])
