"""Runs that end before they are done, and tools that do not return."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from oracle import Recorded, Served, assert_served
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ModelRetry, RunContext, UsageLimits
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.direct import model_request_stream
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelHTTPError, SkipToolExecution, UsageLimitExceeded
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelRequest, ToolReturn
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel

import rollout_trace as rt
from rollout_trace import Trajectory
from rollout_trace.testing import Fault, Reply, ScriptedServer
from rollout_trace_pydantic_ai import record

from .harness import RELEASE, WAYS, adding, agent_of, call, results, run, run_iter, with_model


def held_at(turn: int, **hold: Any) -> Any:
    """Adds, and is held in the answer after so many tool results."""
    script = adding(5)

    def answer(request: dict[str, Any]) -> Reply | Fault:
        reply = script(request)
        return Fault(reply, **hold) if len(results(request)) == turn else reply

    return answer


@pytest.mark.sees("error")
@pytest.mark.parametrize("way", WAYS)
def test_an_http_error(way: Any, recorded: Recorded) -> None:
    async def scenario(model: Any) -> None:
        with pytest.raises(ModelHTTPError):
            await way(agent_of(model, name="adder"), "Add.")

    with ScriptedServer(adding(3), faults={2: Fault(status=503)}) as server:
        with_model(server, scenario)
    (trajectory,) = recorded.all()
    assert_served(server, trajectory.steps)
    assert [step.status for step in trajectory.steps] == ["ok", "error"]
    assert (trajectory.status, trajectory.error is not None and "503" in trajectory.error.message) == ("failed", True)


@pytest.mark.sees("cancelled")
@pytest.mark.parametrize("hold", [{"hold": True}, {"hold_after": 4}])
@pytest.mark.parametrize("way", WAYS)
def test_a_cancelled_task(way: Any, hold: dict[str, Any], recorded: Recorded) -> None:
    with ScriptedServer(held_at(1, **hold)) as server:

        async def scenario(model: Any) -> Trajectory:
            with rt.trajectory() as trajectory:
                task = asyncio.ensure_future(way(agent_of(model), "Add."))
                await asyncio.to_thread(server.wait_held, 1)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            return trajectory

        trajectory = with_model(server, scenario)
    first, second = trajectory.steps
    Served(server.requests[0]).assert_is(first)
    # A stream may have been waiting for the next piece, which the framework then closes.
    assert (first.status, second.status in ("cancelled", "abandoned")) == ("ok", True)
    assert list(second.messages or ()) == server.requests[1].json["messages"]
    recorded.keep(trajectory)


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_is_cancelled_in_a_tool(way: Any, recorded: Recorded) -> None:
    """The tools have not returned: their runs have the cancellation as their error."""

    async def scenario(model: Any) -> Trajectory:
        begun: asyncio.Queue[None] = asyncio.Queue()

        async def wait() -> None:
            """Waits."""
            begun.put_nowait(None)
            await asyncio.Event().wait()

        with rt.trajectory() as trajectory:
            task = asyncio.ensure_future(way(agent_of(model, tools=[wait]), "Wait."))
            await begun.get()
            await begun.get()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return trajectory

    with ScriptedServer(Reply(None, tool_calls=[call("wait"), call("wait")])) as server:
        trajectory = with_model(server, scenario)
    assert_served(server, trajectory.steps)
    assert [one.error and one.error.type for one in trajectory.tool_runs] == ["CancelledError"] * 2
    assert [step.error for step in trajectory.steps] == [None]
    recorded.keep(trajectory)


def test_a_cancelled_run_without_a_trajectory(recorded: Recorded) -> None:
    with ScriptedServer(held_at(0, hold=True)) as server:

        async def scenario(model: Any) -> None:
            task = asyncio.ensure_future(agent_of(model).run("Add."))
            await asyncio.to_thread(server.wait_held, 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        with_model(server, scenario)
    (trajectory,) = recorded.all()
    assert trajectory.status == "aborted"
    assert [step.status for step in trajectory.steps] == ["cancelled"]


def test_a_cancelled_call_without_bytes(recorded: Recorded) -> None:
    """Of a model that nothing is seen of, the request is kept."""

    class Slow(TestModel):
        async def request(self, *args: Any, **kwargs: Any) -> Any:
            begun.set()
            await asyncio.Event().wait()

    begun = asyncio.Event()

    async def scenario() -> Trajectory:
        with rt.trajectory() as trajectory:
            task = asyncio.ensure_future(agent_of(Slow()).run("Add."))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return trajectory

    trajectory = asyncio.run(scenario())
    (step,) = trajectory.steps
    assert step.status == "cancelled"
    assert step.messages is not None
    assert step.messages[-1] == {"role": "user", "content": "Add."}


def test_a_stream_that_its_reader_leaves(recorded: Recorded) -> None:
    async def scenario(model: Any) -> Trajectory:
        with rt.trajectory() as trajectory:
            async with agent_of(model).run_stream("Add.") as streamed:
                async for _ in streamed.stream_text(debounce_by=None):
                    break
        return trajectory

    with ScriptedServer(Fault(Reply("A long answer of words."), hold_after=6), chunk_tokens=1) as server:
        trajectory = with_model(server, scenario)
    (step,) = trajectory.steps
    assert step.status == "abandoned"
    assert step.completion is not None
    assert step.completion.content is not None
    assert "A long answer of words.".startswith(str(step.completion.content))
    recorded.keep(trajectory)


def test_a_stream_without_bytes_that_its_reader_leaves(recorded: Recorded) -> None:
    async def words(messages: Any, info: Any) -> Any:
        for word in ("a ", "b ", "c "):
            yield word

    async def scenario() -> Trajectory:
        with rt.trajectory() as trajectory:
            async with agent_of(FunctionModel(stream_function=words)).run_stream("Add.") as streamed:
                async for _ in streamed.stream_text(debounce_by=None):
                    break
        return trajectory

    (step,) = asyncio.run(scenario()).steps
    assert step.status == "abandoned"
    assert step.completion is not None
    assert str(step.completion.content).startswith("a ")
    assert "c" not in str(step.completion.content)


def test_a_stream_without_bytes_that_is_never_read(recorded: Recorded) -> None:
    async def scenario() -> Trajectory:
        with rt.trajectory() as trajectory:
            async with model_request_stream(record(TestModel()), [ModelRequest.user_text_prompt("Add.")]):
                pass
        return trajectory

    trajectory = asyncio.run(scenario())
    assert [step.status for step in trajectory.steps] == ["abandoned"]
    recorded.keep(trajectory)


@pytest.mark.skipif(RELEASE < (2, 54), reason="the hook of the other capability runs before ours")
def test_a_tool_whose_result_a_capability_has(recorded: Recorded) -> None:
    class Remembers(AbstractCapability[Any]):
        async def before_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any) -> Any:
            raise SkipToolExecution(5)

    async def scenario(model: Any) -> Trajectory:
        with rt.trajectory() as trajectory:
            await agent_of(model, capabilities=[Remembers()]).run("Add.")
        return trajectory

    with ScriptedServer(adding(1)) as server:
        trajectory = with_model(server, scenario)
    assert_served(server, trajectory.steps)
    assert [(one.result, one.error) for one in trajectory.tool_runs] == [(5, None)]
    recorded.keep(trajectory)


def test_iterating_that_is_left(recorded: Recorded) -> None:
    async def scenario(model: Any) -> None:
        async with agent_of(model, name="adder").iter("Add.") as steps:
            async for node in steps:
                if Agent.is_call_tools_node(node):
                    break

    with ScriptedServer(adding(3)) as server:
        with_model(server, scenario)
    (trajectory,) = recorded.all()
    assert_served(server, trajectory.steps)
    assert (trajectory.status, len(trajectory.steps)) == ("aborted", 1)


@pytest.mark.sees("tool errors")
@pytest.mark.parametrize("way", WAYS)
def test_a_tool_that_raises(way: Any, recorded: Recorded) -> None:
    async def scenario(model: Any) -> Trajectory:
        with rt.trajectory() as trajectory, pytest.raises(RuntimeError, match="no"):
            await way(agent_of(model), "Fail.")
        return trajectory

    with ScriptedServer(Reply(None, tool_calls=[call("fail", reason="no")])) as server:
        trajectory = with_model(server, scenario)
    assert_served(server, trajectory.steps)
    (one,) = trajectory.tool_runs
    assert (one.name, one.arguments, one.result) == ("fail", {"reason": "no"}, None)
    assert one.error is not None
    assert (one.error.type, one.error.message) == ("RuntimeError", "no")
    assert (one.step_id, one.tool_call_id) == (trajectory.steps[0].id, _called(trajectory)[0])
    recorded.keep(trajectory)


def _called(trajectory: Trajectory) -> list[str | None]:
    return [one.id for step in trajectory.steps if step.completion for one in step.completion.tool_calls]


@pytest.mark.parametrize("way", [run, run_iter])
def test_tools_that_are_asked_again(way: Any, recorded: Recorded) -> None:
    """A tool that refuses, arguments that are wrong, a tool that there is not: the model is told, and tries again."""
    wrong = [call("picky", word="bad"), call("picky", wrong=1), call("nothing"), call("picky", word="good")]

    def script(request: dict[str, Any]) -> Reply:
        done = len(results(request))
        return Reply(None, tool_calls=[wrong[done]]) if done < len(wrong) else Reply("done")

    def picky(word: str) -> str:
        """Is picky."""
        if word == "bad":
            raise ModelRetry("say something else")
        return f"{word} it is"

    async def scenario(model: Any) -> Trajectory:
        with rt.trajectory() as trajectory:
            assert await way(agent_of(model, tools=[picky], retries=5), "Talk.") == "done"
        return trajectory

    with ScriptedServer(script) as server:
        trajectory = with_model(server, scenario)
    assert_served(server, trajectory.steps)
    assert {step.status for step in trajectory.steps} == {"ok"}
    assert [(one.arguments, one.result, one.error and one.error.type) for one in trajectory.tool_runs] == [
        ({"word": "bad"}, None, "ToolRetryError"),
        ({"wrong": 1}, None, "ValidationError"),
        ({"word": "good"}, "good it is", None),
    ]
    # The tool that there is not did not run: the step has the error.
    errors = [step.error and step.error.message for step in trajectory.steps]
    assert errors[:2] + errors[3:] == [None] * 4
    assert "nothing" in str(errors[2])
    recorded.keep(trajectory)


def test_a_tool_that_takes_too_long(recorded: Recorded) -> None:
    async def scenario(model: Any) -> Trajectory:
        agent = agent_of(model, tools=[])

        @agent.tool_plain(timeout=0.01)
        async def wait() -> None:
            """Waits."""
            await asyncio.Event().wait()

        with rt.trajectory() as trajectory:
            await agent.run("Wait.")
        return trajectory

    def script(request: dict[str, Any]) -> Reply:
        return Reply("done") if results(request) else Reply(None, tool_calls=[call("wait")])

    with ScriptedServer(script) as server:
        trajectory = with_model(server, scenario)
    assert_served(server, trajectory.steps)
    (one,) = trajectory.tool_runs
    assert one.error is not None
    assert "Timed out" in one.error.message
    recorded.keep(trajectory)


def test_a_tool_that_waits_for_approval(recorded: Recorded) -> None:
    """It runs in the run that brings the approval; one that raises ``ApprovalRequired`` has run until there before."""

    async def scenario(model: Any) -> Trajectory:
        agent = agent_of(model, tools=[], output_type=[str, DeferredToolRequests])

        @agent.tool_plain(requires_approval=True)
        def erase(name: str) -> ToolReturn:
            """Erases."""
            return ToolReturn(return_value=f"{name} is gone")

        @agent.tool
        def send(ctx: RunContext[Any], name: str) -> str:
            """Sends."""
            if not ctx.tool_call_approved:
                raise ApprovalRequired
            return f"{name} is sent"

        with rt.trajectory() as trajectory:
            first = await agent.run("Erase and send.")
            approvals = {one.tool_call_id: True for one in first.output.approvals}
            assert len(approvals) == 2
            results = DeferredToolResults(approvals=approvals)  # type: ignore[arg-type]
            await agent.run(message_history=first.all_messages(), deferred_tool_results=results)
        return trajectory

    def script(request: dict[str, Any]) -> Reply:
        calls = [call("erase", name="it"), call("send", name="it")]
        return Reply("done") if results(request) else Reply(None, tool_calls=calls)

    with ScriptedServer(script) as server:
        trajectory = with_model(server, scenario)
    assert_served(server, trajectory.steps)
    first, *later = trajectory.tool_runs
    # A tool that waits is no failed tool.
    assert (first.name, first.error, first.result) == ("send", None, None)
    # It went on in the same block.
    assert trajectory.stop_reason is None
    assert set(trajectory.metadata or {}) == {"conversation_id"}
    assert sorted(str(one.result) for one in later) == ["it is gone", "it is sent"]
    assert {one.step_id for one in trajectory.tool_runs} == {trajectory.steps[0].id}
    recorded.keep(trajectory)


def test_both_halves_of_a_run_that_waits_have_its_conversation(recorded: Recorded) -> None:
    """Also in another process, which has the messages as JSON, and an agent of its own."""

    def make(model: Any) -> Any:
        agent = agent_of(model, tools=[], output_type=[str, DeferredToolRequests])

        @agent.tool_plain(requires_approval=True)
        def erase(name: str) -> str:
            """Erases."""
            return f"{name} is gone"

        @agent.tool_plain
        def look_up(name: str) -> str:
            """Is done elsewhere."""
            raise CallDeferred

        return agent

    async def scenario(model: Any) -> None:
        first = await make(model).run("Erase it.")
        assert isinstance(first.output, DeferredToolRequests)
        results = DeferredToolResults(
            approvals={one.tool_call_id: True for one in first.output.approvals},
            calls={one.tool_call_id: "found" for one in first.output.calls},
        )
        said = ModelMessagesTypeAdapter.validate_json(first.all_messages_json())
        await make(model).run(message_history=said, deferred_tool_results=results)

    def script(request: dict[str, Any]) -> Reply:
        calls = [call("erase", name="it"), call("look_up", name="it")]
        return Reply("done") if results(request) else Reply(None, tool_calls=calls)

    with ScriptedServer(script) as server:
        with_model(server, scenario)
    before, after = recorded.all()
    assert [(one.status, one.stop_reason) for one in (before, after)] == [
        ("completed", "interrupted"),
        ("completed", None),
    ]
    found = [one.metadata or {} for one in (before, after)]
    assert found[0]["conversation_id"] == found[1]["conversation_id"]
    waits = [(one["name"], one["arguments"], one["for"]) for one in found[0]["waits_for"]]
    assert waits == [("erase", {"name": "it"}, "approval"), ("look_up", {"name": "it"}, "result")]
    assert [(run.name, run.error) for run in before.tool_runs] == [("look_up", None)]


def test_a_usage_limit(recorded: Recorded) -> None:
    async def scenario(model: Any) -> None:
        with pytest.raises(UsageLimitExceeded):
            await agent_of(model, name="adder").run("Add.", usage_limits=UsageLimits(request_limit=2))

    with ScriptedServer(adding(5)) as server:
        with_model(server, scenario)
    (trajectory,) = recorded.all()
    assert_served(server, trajectory.steps)
    assert (trajectory.status, len(trajectory.steps), len(trajectory.tool_runs)) == ("failed", 2, 2)


@pytest.mark.parametrize("strategy", ["early", "exhaustive"])
def test_tools_beside_the_output(strategy: Any, recorded: Recorded) -> None:
    """With ``early``, tools beside the output do not run, and there is no run of them."""

    async def scenario(model: Any) -> Trajectory:
        with rt.trajectory() as trajectory:
            await agent_of(model, output_type=dict[str, int], end_strategy=strategy).run("Add.")
        return trajectory

    answer = Reply(None, tool_calls=[call("final_result", response={"a": 1}), call("add", a=1, b=2)])
    with ScriptedServer(answer) as server:
        trajectory = with_model(server, scenario)
    assert_served(server, trajectory.steps)
    assert [one.result for one in trajectory.tool_runs] == ([] if strategy == "early" else [3])


def test_record_returns_what_it_got() -> None:
    model = TestModel()
    agent = Agent(model)
    assert record(model) is model
    assert record(agent) is agent
