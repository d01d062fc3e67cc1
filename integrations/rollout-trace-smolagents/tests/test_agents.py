"""Agents inside agents, many agents at once, and what ends a run before its time."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from smolagents import AgentError, AgentGenerationError, tool

import rollout_trace as rt
from rollout_trace.testing import Fault, Reply
from rollout_trace_smolagents import record

from .conftest import Serve, assert_served, code_agent, model_at, read_back, tool_agent

DONE = Reply(tool_calls=[("final_answer", '{"answer": "four"}')])
ADDED = Reply(tool_calls=[("add", '{"a": 2, "b": 2}')])


def managed(model: Any, **options: Any) -> Any:
    """An agent that others can call."""
    return tool_agent(model, name="adder", description="Adds.", **options)


@pytest.mark.sees("sub-agents", "managed agents")
@pytest.mark.parametrize("kind", ["tools", "code"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_managed_agent(kind: str, stream: bool, serve: Serve, tmp_path: Path) -> None:
    ask = {
        "tools": Reply(tool_calls=[("adder", '{"task": "2 + 2"}')]),
        "code": "<code>\nprint(adder('2 + 2'))\n</code>",
    }[kind]
    end = {"tools": DONE, "code": "<code>\nfinal_answer('four')\n</code>"}[kind]
    outer, inner = serve([ask, end]), serve([ADDED, DONE])
    make = {"tools": tool_agent, "code": code_agent}[kind]
    manager = make(model_at(outer), managed_agents=[managed(model_at(inner))], stream_outputs=stream)
    record(manager, engine="vllm")
    with rt.recording(tmp_path / "runs.jsonl"), rt.trajectory("solver") as trajectory:
        assert manager.run("go") == "four"
        rt.reward(0.5, children=True)
    by_name = {one.name: one for one in read_back(tmp_path / "runs.jsonl")}
    assert set(by_name) == {"solver", "adder"}
    parent, child = by_name["solver"], by_name["adder"]
    assert parent == trajectory
    assert (parent.reward, child.reward) == (0.5, 0.5)
    assert_served(parent.steps, outer.requests)
    assert_served(child.steps, inner.requests)
    assert (child.parent_id, child.episode_id) == (parent.id, parent.episode_id)
    assert child.parent_step_id == parent.steps[0].id
    assert {step.agent for step in child.steps} == {"adder"}
    assert [run.name for run in child.tool_runs] == ["add", "final_answer"]
    [call] = [run for run in parent.tool_runs if run.name == "adder"]
    assert call.arguments == {"task": "2 + 2"}
    assert "four" in str(call.result)
    assert call.step_id == parent.steps[0].id


def test_managed_agents_at_the_same_time(serve: Serve) -> None:
    """Two of them, called in one turn, on one model."""
    calls = [("adder", '{"task": "ann"}'), ("other", '{"task": "bob"}')]

    def script(request: Any) -> Any:
        text = json.dumps(request["messages"])
        if "ann" in text or "bob" in text:
            return Fault(DONE, hold=True)
        return Reply(tool_calls=calls) if "Observation" not in text else DONE

    outer, inner = serve([Reply(tool_calls=calls), DONE]), serve(script)
    model = model_at(inner)
    agents = [managed(model), tool_agent(model, name="other", description="Adds too.")]
    manager = record(tool_agent(model_at(outer), managed_agents=agents), engine="vllm")
    with rt.trajectory() as trajectory, ThreadPoolExecutor(1) as executor:
        running = executor.submit(rt.propagate(manager.run), "go")
        inner.wait_held(2)
        inner.release()
        assert running.result() == "four"
    assert_served(trajectory.steps, outer.requests)
    runs = {run.name: run for run in trajectory.tool_runs}
    ids = [call.id for call in trajectory.steps[0].completion.tool_calls]  # type: ignore[union-attr]
    assert [runs["adder"].tool_call_id, runs["other"].tool_call_id] == ids


def check_many(serve: Serve, count: int, run_all: Any, make: Any) -> None:
    """Runs of agents that share a model object, all in flight at once."""

    def script(request: Any) -> Any:
        task = next(f"task-{n}." for n in range(count) if f"task-{n}." in json.dumps(request["messages"]))
        answer: str | Reply = f"<code>\nfinal_answer({task!r})\n</code>"
        if make is tool_agent:
            answer = Reply(tool_calls=[("final_answer", json.dumps({"answer": task}))])
        return Fault(answer, hold=True)

    server = serve(script)
    model = model_at(server)

    def solve(number: int) -> rt.Trajectory:
        agent = record(make(model), engine="vllm")
        with rt.trajectory(f"solver-{number}") as trajectory:
            assert agent.run(f"task-{number}.") == f"task-{number}."
        return trajectory

    trajectories = run_all(solve, server)
    assert len(trajectories) == len(server.requests) == count
    for number, trajectory in enumerate(trajectories):
        [asked] = [request for request in server.requests if f"task-{number}." in request.body.decode()]
        assert_served(trajectory.steps, [asked])
        assert trajectory.steps[0].agent == trajectory.name == f"solver-{number}"
    assert rt.orphans() == []


@pytest.mark.sees("at once")
@pytest.mark.parametrize("make", [tool_agent, code_agent])
def test_eight_threads_share_a_model(serve: Serve, make: Any) -> None:
    def run_all(solve: Any, server: Any) -> list[rt.Trajectory]:
        with ThreadPoolExecutor(8) as executor:
            running = [executor.submit(solve, number) for number in range(8)]
            server.wait_held(8)
            server.release()
            return [one.result() for one in running]

    check_many(serve, 8, run_all, make)


def test_twenty_tasks_of_an_event_loop_share_a_model(serve: Serve) -> None:
    """smolagents is synchronous: its documentation has ``asyncio.to_thread`` for this."""

    def run_all(solve: Any, server: Any) -> list[rt.Trajectory]:
        async def main() -> list[rt.Trajectory]:
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(21))
            tasks = [asyncio.create_task(asyncio.to_thread(solve, number)) for number in range(20)]
            await asyncio.to_thread(server.wait_held, 20)
            server.release()
            return list(await asyncio.gather(*tasks))

        return asyncio.run(main())

    check_many(serve, 20, run_all, tool_agent)


def test_streamed_runs_that_take_turns(serve: Serve) -> None:
    """Between two items of a run its consumer is not in it."""
    servers = [serve([ADDED, ADDED, DONE]) for _ in range(2)]
    third = serve("aside")
    client = rt.wrap_openai(OpenAI(base_url=third.base_url, api_key="none", max_retries=0), engine="vllm")
    agents = [
        record(tool_agent(model_at(server), name=name, description="Adds."), engine="vllm")
        for server, name in zip(servers, ("first", "second"), strict=True)
    ]
    with client, rt.trajectory("around") as around:
        runs = [agent.run("go", stream=True) for agent in agents]
        for _ in zip(*runs, strict=True):
            client.chat.completions.create(model="aside", messages=[{"role": "user", "content": "?"}])
    by_agent = {name: [step for step in around.steps if step.agent == name] for name in ("first", "second", "around")}
    assert_served(by_agent["first"], servers[0].requests)
    assert_served(by_agent["second"], servers[1].requests)
    assert_served(by_agent["around"], third.requests)
    assert len(third.requests) > 5


@pytest.mark.sees("error")
def test_an_http_error(serve: Serve, tmp_path: Path) -> None:
    server = serve([ADDED, Fault(status=500)])
    agent = record(tool_agent(model_at(server)), engine="vllm")
    with rt.recording(tmp_path / "runs.jsonl"), pytest.raises(AgentGenerationError):
        agent.run("go")
    [trajectory] = read_back(tmp_path / "runs.jsonl")
    assert_served(trajectory.steps, server.requests)
    assert (trajectory.status, trajectory.error and trajectory.error.type) == ("failed", "AgentGenerationError")


@pytest.mark.sees("cancelled", "an interrupt `cancelled`, a closed stream `abandoned`")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_interrupted_run(stream: bool, serve: Serve, tmp_path: Path) -> None:
    server = serve([ADDED, Fault(DONE, hold=True)])
    agent = record(tool_agent(model_at(server), stream_outputs=stream), engine="vllm")
    main = threading.get_ident()

    def interrupt() -> None:
        server.wait_held()
        signal.pthread_kill(main, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with rt.recording(tmp_path / "runs.jsonl"), pytest.raises(KeyboardInterrupt):
        agent.run("go")
    interrupter.join()
    server.release()
    [trajectory] = read_back(tmp_path / "runs.jsonl")
    assert [step.status for step in trajectory.steps] == ["ok", "cancelled"]
    assert trajectory.status == "aborted"
    assert trajectory.steps[1].messages == json.loads(server.requests[1].body)["messages"]


def test_an_agent_that_is_told_to_stop(serve: Serve, tmp_path: Path) -> None:
    agents: list[Any] = []

    @tool
    def stops() -> str:
        """Stops the agent."""
        agents[0].interrupt()
        return "stopped"

    server = serve([Reply(tool_calls=[("stops", "{}")]), DONE])
    agents.append(record(tool_agent(model_at(server), stops), engine="vllm"))
    with rt.recording(tmp_path / "runs.jsonl"), pytest.raises(AgentError):
        agents[0].run("go")
    [trajectory] = read_back(tmp_path / "runs.jsonl")
    assert_served(trajectory.steps, server.requests)
    assert trajectory.status == "failed"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("recorded", [False, True])
def test_a_stream_that_is_closed(recorded: bool, serve: Serve, tmp_path: Path) -> None:
    server = serve([Reply("a long thought"), DONE])
    agent = tool_agent(model_at(server), stream_outputs=True)
    if recorded:
        record(agent, engine="vllm")
    with rt.recording(tmp_path / "runs.jsonl"):
        run = agent.run("go", stream=True)
        begun = [next(run).content for _ in range(4)]
        # So smolagents says it: it yields while it is being closed.
        with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
            run.close()
        del run
    trajectories = read_back(tmp_path / "runs.jsonl")
    if not recorded:
        assert trajectories == []
        return
    [trajectory] = trajectories
    [step] = trajectory.steps
    assert (trajectory.status, step.status) == ("aborted", "abandoned")
    assert step.completion is not None
    assert str(step.completion.content or "").startswith("".join(filter(None, begun)))


def test_a_stream_that_is_never_begun(serve: Serve) -> None:
    agent = record(tool_agent(model_at(serve([DONE]))))
    with rt.trajectory() as trajectory:
        agent.run("go", stream=True)
    assert trajectory.steps == []


@pytest.mark.sees("sub-agents", "agents in tools")
def test_an_agent_in_a_tool_of_an_agent(serve: Serve, tmp_path: Path) -> None:
    inner = serve([DONE])

    @tool
    def solve(task: str) -> str:
        """Solves.

        Args:
            task: what
        """
        return str(record(tool_agent(model_at(inner)), engine="vllm").run(task))

    outer = serve(["<code>\nfinal_answer(solve('2 + 2'))\n</code>"])
    agent = record(code_agent(model_at(outer), solve), engine="vllm")
    with rt.recording(tmp_path / "runs.jsonl"), rt.trajectory("solver"):
        assert agent.run("go") == "four"
    by_name = {one.name: one for one in read_back(tmp_path / "runs.jsonl")}
    assert_served(by_name["solver"].steps, outer.requests)
    assert_served(by_name["ToolCallingAgent"].steps, inner.requests)
    assert by_name["ToolCallingAgent"].parent_id == by_name["solver"].id
