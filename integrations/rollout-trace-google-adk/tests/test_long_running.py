"""Tools whose results come later: long-running ones, and those that a user has to confirm."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.events.event import Event
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.genai import types
from oracle import Recorded, assert_served

import rollout_trace as rt
from rollout_trace import Trajectory
from rollout_trace.testing import ScriptedServer

from .harness import SSE, add, agent_of, litellm, once, run, runner_of, session_of, text_of


def calls_of(events: list[Event]) -> list[types.FunctionCall]:
    return [call for event in events if not event.partial for call in event.get_function_calls()]


def response_part(call: types.FunctionCall, **response: Any) -> types.Part:
    return types.Part(function_response=types.FunctionResponse(id=call.id, name=call.name, response=response))


@pytest.mark.parametrize("first", [{"status": "pending", "ticket": 7}, None])
@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_result_that_comes_in_a_later_run(
    recorded: Recorded, first: dict[str, Any] | None, is_streamed: bool
) -> None:
    def ask_a_person(question: str) -> dict[str, Any] | None:
        """Asks."""
        return first

    async def main(runner: Any) -> tuple[Trajectory, str]:
        config, session = SSE if is_streamed else None, await session_of(runner)
        with rt.trajectory("task") as trajectory:
            asked = await run(runner, session=session, config=config)
            (call,) = calls_of(asked)
            part = response_part(call, status="approved")
            answered = await run(runner, part, session=session, config=config)
        return trajectory, text_of(answered)

    def script(request: dict[str, Any], messages: list[Any]) -> str:
        return "approved" if "approved" in str(messages) else "I wait."

    def script_or_call(request: dict[str, Any], messages: list[Any]) -> Any:
        reply = once("ask_a_person", question="May I?")(messages)
        return reply if reply.tool_calls else script(request, messages)

    with ScriptedServer(script_or_call) as server:
        agent = agent_of(litellm(server), tools=[LongRunningFunctionTool(ask_a_person)])
        trajectory, said = asyncio.run(main(runner_of(agent)))
        assert_served(server, trajectory.steps)
    assert said == "approved"
    (tool_run,) = trajectory.tool_runs
    # What the tool returned. What came later is in the prompt of the next call.
    assert (tool_run.name, tool_run.result, tool_run.error) == ("ask_a_person", first, None)
    assert tool_run.step_id == trajectory.steps[0].id
    assert "approved" in str(trajectory.steps[-1].messages)
    recorded.keep(trajectory)


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_a_tool_that_is_confirmed(recorded: Recorded, is_confirmed: bool) -> None:
    async def main(runner: Any) -> Trajectory:
        session = await session_of(runner)
        with rt.trajectory("task") as trajectory:
            asked = await run(runner, session=session)
            call = calls_of(asked)[-1]
            assert call.name == "adk_request_confirmation"
            await run(runner, response_part(call, confirmed=is_confirmed), session=session)
        return trajectory

    with ScriptedServer(lambda _, messages: once("add", a=1, b=2)(messages)) as server:
        agent = agent_of(litellm(server), tools=[FunctionTool(add, require_confirmation=True)])
        trajectory = asyncio.run(main(runner_of(agent)))
        assert_served(server, trajectory.steps)
    # It went on in the same block.
    assert trajectory.stop_reason is None
    assert set(trajectory.metadata or {}) == {"conversation_id"}
    refused, done = trajectory.tool_runs
    assert refused.tool_call_id == done.tool_call_id
    assert "confirmation" in str(refused.result)
    assert (done.result == 3) == is_confirmed
    assert done.step_id == trajectory.steps[0].id
    recorded.keep(trajectory)


def test_both_halves_of_a_run_that_waits_have_its_session(recorded: Recorded) -> None:
    async def main(runner: Any) -> str:
        session = await session_of(runner)
        call = calls_of(await run(runner, session=session))[-1]
        await run(runner, response_part(call, confirmed=True), session=session)
        return session

    with ScriptedServer(lambda _, messages: once("add", a=1, b=2)(messages)) as server:
        agent = agent_of(litellm(server), tools=[FunctionTool(add, require_confirmation=True)])
        session = asyncio.run(main(runner_of(agent)))
    before, after = recorded.all()
    assert [(one.status, one.stop_reason) for one in (before, after)] == [
        ("completed", "interrupted"),
        ("completed", None),
    ]
    found = [one.metadata or {} for one in (before, after)]
    assert [one["conversation_id"] for one in found] == [session, session]
    (waits,) = found[0]["waits_for"]
    assert waits["name"] == "adk_request_confirmation"
    assert waits["arguments"]["originalFunctionCall"]["args"] == {"a": 1, "b": 2}
