"""A LangGraph node runs an agent of Pydantic AI, whose tool runs an agent of the OpenAI Agents SDK: one episode."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypedDict

import agents
import pytest
from agents import OpenAIChatCompletionsModel, Runner, function_tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from oracle import Recorded, assert_all_served
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import rollout_trace as rt
import rollout_trace_langchain
import rollout_trace_openai_agents
import rollout_trace_pydantic_ai
from rollout_trace.testing import Reply, ScriptedServer


def scripted(request: dict[str, Any]) -> Reply:
    """The planner asks nobody, the manager asks its tool, the mathematician uses ``add``."""
    system, last = request["messages"][0]["content"], request["messages"][-1]
    if system.startswith("You plan"):
        return Reply(f"Ask the manager: {last['content']}")
    if last["role"] == "tool":
        return Reply(f"It is {last['content']}.")
    if system.startswith("You manage"):
        # Without spaces, as Pydantic AI sends arguments back: else the next prompt would not extend this answer.
        arguments = json.dumps({"question": last["content"]}, separators=(",", ":"))
        return Reply(tool_calls=[("ask_mathematician", arguments)])
    return Reply(tool_calls=[("add", json.dumps({"a": 2, "b": 3}))])


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


class State(TypedDict):
    question: str
    answer: str


class Team:
    """The three agents, on one server; each is recorded by its own framework's integration."""

    def __init__(self, server: ScriptedServer) -> None:
        usual: dict[str, Any] = {"base_url": server.base_url, "api_key": "none", "max_retries": 0}
        self.clients = [AsyncOpenAI(**usual), AsyncOpenAI(**usual)]
        mathematician = rollout_trace_openai_agents.record(
            agents.Agent(
                name="mathematician",
                instructions="You work out sums.",
                model=OpenAIChatCompletionsModel("scripted", self.clients[0]),
                tools=[function_tool(add)],
            ),
            engine="vllm",
        )
        manager = rollout_trace_pydantic_ai.record(
            Agent(
                OpenAIChatModel("scripted", provider=OpenAIProvider(openai_client=self.clients[1])),
                name="manager",
                system_prompt="You manage others.",
            ),
            engine="vllm",
        )

        async def ask_mathematician(question: str) -> str:
            """Asks somebody who can add."""
            return str((await Runner.run(mathematician, question)).final_output)

        manager.tool_plain(ask_mathematician)
        # LangChain shares its HTTP clients in the process, also with event loops that have ended.
        self._http = DefaultAsyncHttpxClient()
        model = ChatOpenAI(model="scripted", http_async_client=self._http, **usual)
        planner = rollout_trace_langchain.record(model, engine="vllm")

        async def plan(state: State) -> State:
            answer = await planner.ainvoke([("system", "You plan."), ("user", state["question"])])
            return {"question": state["question"], "answer": str(answer.content)}

        async def manage(state: State) -> State:
            return {"question": state["question"], "answer": (await manager.run(state["answer"])).output}

        graph = StateGraph(State)
        graph.add_node("plan", plan)
        graph.add_node("manage", manage)
        graph.add_edge(START, "plan")
        graph.add_edge("plan", "manage")
        graph.add_edge("manage", END)
        self.graph = graph.compile(name="team")

    async def solve(self, question: str) -> str:
        """Runs the graph."""
        return str((await self.graph.ainvoke({"question": question, "answer": ""}))["answer"])

    async def close(self) -> None:
        """Closes the clients."""
        for client in self.clients:
            await client.close()
        await self._http.aclose()


async def solved(server: ScriptedServer, *questions: str) -> list[rt.Trajectory]:
    """The outermost trajectories of runs at the same time, one for each question."""
    team = Team(server)

    async def one(question: str) -> rt.Trajectory:
        with rt.trajectory("task", task=question) as trajectory:
            assert await team.solve(question) == "It is It is 5.."
        return trajectory

    try:
        return list(await asyncio.gather(*map(one, questions)))
    finally:
        await team.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rollouts.jsonl"


def assert_one_episode(outer: rt.Trajectory, written: list[rt.Trajectory], question: str) -> None:
    """The task's own trajectory holds the graph; the manager is its child, the mathematician the manager's."""
    episode = {one.name: one for one in written if one.episode_id == outer.episode_id}
    assert sorted(episode) == ["manager", "mathematician", "task"]
    task, manager, mathematician = episode["task"], episode["manager"], episode["mathematician"]
    assert task.id == outer.id
    assert (task.parent_id, manager.parent_id, mathematician.parent_id) == (None, task.id, manager.id)
    assert mathematician.parent_step_id == manager.steps[0].id
    assert [len(one.steps) for one in (task, manager, mathematician)] == [1, 2, 2]
    assert question in str(task.steps[0].messages)
    assert {step.metadata["framework"] for step in task.steps if step.metadata} == {"langchain"}
    (asked,), (added,) = manager.tool_runs, mathematician.tool_runs
    assert (asked.name, asked.result, asked.step_id) == ("ask_mathematician", "It is 5.", manager.steps[0].id)
    assert (added.name, added.step_id) == ("add", mathematician.steps[0].id)
    assert [len(one.sequences()) for one in (task, manager, mathematician)] == [1, 1, 1]


def test_three_frameworks_are_one_episode(path: Path) -> None:
    with ScriptedServer(scripted) as server, Recorded(path) as everything:
        (outer,) = asyncio.run(solved(server, "What is 2 and 3?"))
        everything.keep(outer)
        written = everything.all()
        assert len(written) == 3
        assert_all_served(server, written)
        assert_one_episode(outer, written, "What is 2 and 3?")


def test_twelve_at_once_stay_apart(path: Path) -> None:
    questions = [f"Question {number}: what is 2 and 3?" for number in range(12)]
    with ScriptedServer(scripted) as server, Recorded(path) as everything:
        outers = asyncio.run(solved(server, *questions))
        written = everything.all()
        assert len(written) == 36
        assert_all_served(server, written)
        for outer, question in zip(outers, questions, strict=True):
            assert_one_episode(outer, written, question)


def test_eight_threads_stay_apart(path: Path) -> None:
    questions = [f"Question {number}: what is 2 and 3?" for number in range(8)]
    with ScriptedServer(scripted) as server, Recorded(path) as everything, ThreadPoolExecutor(8) as pool:
        outers = [one for found in pool.map(lambda q: asyncio.run(solved(server, q)), questions) for one in found]
        written = everything.all()
        assert_all_served(server, written)
        for outer, question in zip(outers, questions, strict=True):
            assert_one_episode(outer, written, question)


def test_without_a_trajectory_around_the_graph_opens_one(path: Path) -> None:
    async def main(server: ScriptedServer) -> None:
        team = Team(server)
        handler = rollout_trace_langchain.RolloutCallbackHandler()
        await team.graph.ainvoke({"question": "Sum?", "answer": ""}, {"callbacks": [handler]})
        await team.close()

    with ScriptedServer(scripted) as server, Recorded(path) as everything:
        asyncio.run(main(server))
        written = everything.all()
        assert_all_served(server, written)
        parents = {one.name: one.parent_id for one in written}
        ids = {one.name: one.id for one in written}
        assert parents == {"team": None, "manager": ids["team"], "mathematician": ids["manager"]}
        assert len({one.episode_id for one in written}) == 1
