"""Agents inside agents: each is a trajectory, with its name and its parent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

import rollout_trace as rt
from rollout_trace.testing import Reply, ToolCall
from rollout_trace_langchain import RolloutCallbackHandler

from .agents import WAYS, chat, question, serving, written
from .oracle import assert_as_served


def delegating(request: Any) -> Reply:
    """The agent that can ask asks two helpers at once, and then answers."""
    names = [item["function"]["name"] for item in request.get("tools") or ()]
    if "ask" in names and not any(message["role"] == "tool" for message in request["messages"]):
        return Reply(tool_calls=[ToolCall("ask", '{"topic": "cats"}'), ToolCall("ask", '{"topic": "dogs"}')])
    return Reply(f"About {request['messages'][-1]['content']}")


@pytest.mark.sees("sub-agents", "graphs in tools, nodes and functions")
@pytest.mark.parametrize("is_own", [False, True], ids=["inside a trajectory", "alone"])
@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream messages", "astream"])
def test_agents_as_tools(way: str, is_own: bool, tmp_path: Path) -> None:
    """Two helpers run at once, in threads or tasks; each has a trajectory of its own."""
    path = tmp_path / "runs.jsonl"
    with serving(delegating) as server:
        llm = chat(server)
        helper = create_agent(llm, [], name="helper")

        @tool
        def ask(topic: str) -> str:
            """Ask a helper."""
            return str(helper.invoke(question(topic))["messages"][-1].content)

        lead = create_agent(llm, [ask], name="lead")
        with rt.recording(path):
            if is_own:
                WAYS[way](lead, question(), {"callbacks": [RolloutCallbackHandler()]})
            else:
                with rt.trajectory("lead"):
                    WAYS[way](lead, question(), {})
        trajectories = list(written(path))
        steps = sorted((step for one in trajectories for step in one.steps), key=_sent_order(server))
        assert_as_served(steps, server)
    own, *children = sorted(trajectories, key=lambda one: one.parent_id is not None)
    assert (own.name, own.parent_id, len(own.steps)) == ("lead", None, 2)
    assert {(one.name, one.parent_id, one.episode_id, one.status) for one in children} == {
        ("helper", own.id, own.episode_id, "completed")
    }
    assert sorted(str(one.steps[0].completion and one.steps[0].completion.content) for one in children) == [
        "About cats", "About dogs",
    ]  # fmt: skip
    assert {one.parent_step_id for one in children} == {own.steps[0].id}
    assert sorted((run.arguments["topic"], run.result) for run in own.tool_runs) == [
        ("cats", "About cats"), ("dogs", "About dogs"),
    ]  # fmt: skip
    assert len(own.sequences()) == 1


def _sent_order(server: Any) -> Any:
    """Where a step's request is in the server's log: requests of different agents come in any order."""
    places = {str(record.json["messages"]): place for place, record in enumerate(server.requests)}
    return lambda step: places[str(step.messages)]


def test_graphs_in_graphs() -> None:
    """A graph is an agent, by the name it was compiled or created with, else by that of its node."""
    with serving(lambda request: "Hi") as server, rt.trajectory("task") as own:
        llm = chat(server)
        graph = StateGraph(MessagesState)
        graph.add_node("first", create_agent(llm, [], name="helper"))
        graph.add_node("second", lambda state: {"messages": [llm.invoke(state["messages"])]})
        inner = StateGraph(MessagesState)
        inner.add_node("only", lambda state: {"messages": [llm.invoke(state["messages"])]})
        inner.add_edge(START, "only")
        graph.add_node("third", inner.compile())
        graph.add_node("fourth", inner.compile(name="named"))
        for start, end in (
            (START, "first"), ("first", "second"), ("second", "third"), ("third", "fourth"),
        ):  # fmt: skip
            graph.add_edge(start, end)
        graph.compile(name="team").invoke(question())
        children = own._children
    assert [(step.agent, step.metadata and step.metadata["langgraph_node"]) for step in own.steps] == [
        ("team", "second")
    ]
    assert [(one.name, one.parent_id, len(one.steps)) for one in children] == [
        (name, own.id, 1) for name in ("helper", "third", "named")
    ]


def test_tasks_of_the_functional_api_are_no_agents() -> None:
    with serving(lambda request: "Hi") as server, rt.trajectory("task") as own:
        llm = chat(server)

        @task
        def ask(text: str) -> str:
            return str(llm.invoke(text).content)

        @entrypoint()
        def flow(text: str) -> list[str]:
            return [future.result() for future in (ask(text), ask(text + "!"))]

        flow.invoke("Hello")
    assert len(own.steps) == len(server.requests) == 2
    assert own._children == []


def test_an_agent_in_a_chain_is_the_chains_main_part(tmp_path: Path) -> None:
    """With or without a trajectory around, the steps of ``prepare | agent`` are where the reward is given."""
    with serving(lambda request: "Hi") as server:
        agent = create_agent(chat(server), [], name="solver")
        chain = RunnableLambda(question) | agent | RunnableLambda(lambda state: state["messages"][-1].content)
        with rt.recording(tmp_path / "runs.jsonl"):
            with rt.trajectory("task") as own:
                own.reward = float(chain.invoke("Hello") == "Hi")
            chain.invoke("Hello", config={"callbacks": [RolloutCallbackHandler()]})
    inside, alone = written(tmp_path / "runs.jsonl")
    assert [(step.agent, len(inside.steps), inside.reward) for step in inside.steps] == [("solver", 1, 1.0)]
    assert [(step.agent, len(alone.steps), alone.name) for step in alone.steps] == [("solver", 1, "agent")]


def test_a_trajectory_opened_in_a_tool_has_its_calls() -> None:
    """The user's own is nearer than the agent that calls the tool."""
    judged: list[rt.Trajectory] = []
    with serving(delegating) as server:
        llm = chat(server)

        @tool
        def ask(topic: str) -> str:
            """Judge."""
            with rt.trajectory("judge") as judge:
                judged.append(judge)
                return str(llm.invoke(topic).content)

        with rt.trajectory("lead") as own:
            create_agent(llm, [ask], name="lead").invoke(question())
    assert len(own.steps) == 2
    assert [(one.name, one.parent_id, len(one.steps)) for one in judged] == [("judge", own.id, 1)] * 2


def test_a_tools_own_thread(tmp_path: Path) -> None:
    """A thread without LangChain's context: with ``rt.propagate`` its agent is the tool's, all the same."""
    from concurrent.futures import ThreadPoolExecutor

    with serving(delegating) as server, rt.trajectory("lead") as own:
        llm = chat(server)
        helper = create_agent(llm, [], name="helper")

        @tool
        def ask(topic: str) -> str:
            """Ask a helper."""
            with ThreadPoolExecutor(1) as pool:
                return str(pool.submit(rt.propagate(helper.invoke), question(topic)).result()["messages"][-1].content)

        create_agent(llm, [ask], name="lead").invoke(question())
        children = own._children
    assert len(own.steps) == 2
    assert [(one.name, one.parent_id, len(one.steps)) for one in children] == [("helper", own.id, 1)] * 2


def test_a_handover_is_no_failure() -> None:
    """An agent that gives the work to another of its team leaves its graph by raising."""

    @tool
    def to_second(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Hand over."""
        told = ToolMessage("handed over", tool_call_id=tool_call_id)
        return Command(goto="second", graph=Command.PARENT, update={"messages": [told]})

    def script(request: Any) -> Reply:
        return Reply(tool_calls=[ToolCall("to_second", "{}")]) if request.get("tools") else Reply("Done")

    with serving(script) as server, rt.trajectory("task") as own:
        llm = chat(server)
        graph = StateGraph(MessagesState)
        graph.add_node("first", create_agent(llm, [to_second], name="first"), destinations=("second",))
        graph.add_node("second", create_agent(llm, [], name="second"))
        graph.add_edge(START, "first")
        graph.compile(name="team").invoke(question())
        first, second = own._children
    assert (first.name, first.status, first.error, first.stop_reason) == ("first", "completed", None, "ParentCommand")
    assert (second.name, second.status, second.stop_reason, len(second.steps)) == ("second", "completed", None, 1)
    (run,) = first.tool_runs
    assert (run.name, run.arguments, run.error) == ("to_second", {}, None)


def test_an_interrupt_is_no_failure() -> None:
    from langgraph.checkpoint.memory import InMemorySaver

    @tool
    def confirm() -> str:
        """Ask the user."""
        return str(interrupt("Sure?"))

    def script(request: Any) -> Reply:
        is_told = any(message["role"] == "tool" for message in request["messages"])
        return Reply("Done") if is_told else Reply(tool_calls=[ToolCall("confirm", "{}")])

    config: Any = {"configurable": {"thread_id": "1"}}
    with serving(script) as server:
        agent = create_agent(chat(server), [confirm], name="lead", checkpointer=InMemorySaver())
        with rt.trajectory("task") as own:
            agent.invoke(question(), config)
            agent.invoke(Command(resume="yes"), config)
        assert_as_served(own.steps, server)
    asked, answered = own.tool_runs
    assert (asked.error, asked.result, answered.result) == (None, None, "yes")
    # It went on in the same block.
    assert (own.status, own.stop_reason, own.metadata) == ("completed", None, {"conversation_id": "1"})
    assert len(own.sequences()) == 1


@pytest.mark.parametrize("way", ["tool", "node", "middleware", "subgraph"])
def test_both_halves_of_an_interrupted_run_have_the_thread(way: str) -> None:
    from langchain.agents.middleware import HumanInTheLoopMiddleware
    from langgraph.checkpoint.memory import InMemorySaver

    @tool
    def confirm() -> str:
        """Ask the user."""
        return str(interrupt("Sure?")) if way != "middleware" else "yes"

    def ask(state: Any) -> Any:
        return {"messages": [("user", str(interrupt("Sure?")))]}

    def script(request: Any) -> Reply:
        is_told = any(message["role"] == "tool" for message in request["messages"]) or way == "node"
        return Reply("Done") if is_told else Reply(tool_calls=[ToolCall("confirm", "{}")])

    config: Any = {"configurable": {"thread_id": "1"}, "callbacks": [RolloutCallbackHandler()]}
    written: list[rt.Trajectory] = []
    with serving(script) as server:
        middleware = [HumanInTheLoopMiddleware(interrupt_on={"confirm": True})] if way == "middleware" else []
        saver = InMemorySaver()

        def made() -> Any:
            """The graph, made anew for each half: another process has the thread and its checkpoints alone."""
            if way not in ("node", "subgraph"):
                return create_agent(chat(server), [confirm], name="lead", checkpointer=saver, middleware=middleware)
            builder = StateGraph(MessagesState)
            builder.add_node("first", ask if way == "node" else create_agent(chat(server), [confirm], name="inner"))
            builder.add_node("second", create_agent(chat(server), [], name="second"))
            builder.add_edge(START, "first")
            builder.add_edge("first", "second")
            return builder.compile(name="lead", checkpointer=saver)

        resume: Any = {"decisions": [{"type": "approve"}]} if way == "middleware" else "yes"
        with rt.recording(type("Written", (), {"write": lambda self, one: written.append(one)})()):
            made().invoke(question(), config)
            made().invoke(Command(resume=resume), config)
    before, after = [one for one in written if one.parent_id is None]
    assert [(one.name, one.status, one.stop_reason) for one in (before, after)] == [
        ("lead", "completed", "interrupted"),
        ("lead", "completed", None),
    ]
    found = [one.metadata or {} for one in (before, after)]
    assert [one["conversation_id"] for one in found] == ["1", "1"]
    waits = found[0]["waits_for"]
    assert len(waits) == 1
    assert ("confirm" in str(waits)) if way == "middleware" else (waits[0]["value"] == "Sure?")
    assert "waits_for" not in found[1]
    assert {run.error for one in written for run in one.tool_runs} <= {None}
    for inner in (one for one in written if one.name == "inner"):
        assert inner.stop_reason == ("interrupted" if inner.parent_id == before.id else None)
