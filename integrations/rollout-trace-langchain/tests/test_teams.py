"""Teams of langgraph-supervisor and langgraph-swarm: their handovers, and who has the steps."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent

import rollout_trace as rt
from rollout_trace.testing import Reply, ToolCall

from .agents import WAYS, add, chat, question, serving

pytestmark = pytest.mark.filterwarnings("ignore:create_react_agent has been moved:Warning")


def handing_over(*names: str) -> Any:
    """The first agent hands over by these tools; whoever comes after it answers."""

    def script(request: Any) -> Reply:
        has = [tool["function"]["name"] for tool in request.get("tools") or ()]
        is_told = any(
            message["role"] == "tool" and "transferred" in message["content"] for message in request["messages"]
        )
        return Reply("Done") if is_told else Reply(tool_calls=[ToolCall(name, "{}") for name in names if name in has])

    return script


def conversation() -> Any:
    """One in which a tool has answered before."""
    call = {"id": "call_before", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 1}'}}
    asked = {"role": "assistant", "content": "", "tool_calls": [call]}
    told = {"role": "tool", "content": "2", "tool_call_id": "call_before"}
    return {"messages": [*question()["messages"], asked, told, *question("Go on")["messages"]]}


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream messages"])
@pytest.mark.parametrize("names", [["adder"], ["adder", "poet"]], ids=["one", "two at once"])
def test_a_supervisors_handovers(names: list[str], way: str) -> None:
    """Each result is of its own call; the task's trajectory has no step, its agents' have them all."""
    create_supervisor = pytest.importorskip("langgraph_supervisor").create_supervisor
    with serving(handing_over(*(f"transfer_to_{name}" for name in names))) as server, rt.trajectory("task") as own:
        llm = chat(server)
        agents = [create_agent(llm, [add], name="adder"), create_agent(llm, [], name="poet")]
        WAYS[way](create_supervisor(agents, model=llm).compile(name="team"), conversation(), {})
        first = own._children[0]
        assert (own.steps, first.name, len(first.steps)) == ([], "supervisor", 1)
        assert sum(len(one.steps) for one in own._children) == len(server.requests)
        # The task's own trajectory has no row to train on: its agents' get its reward.
        rt.reward(0.5, children=True)
    assert {one.reward for one in own._children} == {0.5}
    assert sorted((run.name, run.result) for run in first.tool_runs) == [
        (f"transfer_to_{name}", f"Successfully transferred to {name}") for name in names
    ]
    (step,) = first.steps
    assert step.completion is not None
    assert {run.tool_call_id for run in first.tool_runs} == {call.id for call in step.completion.tool_calls}
    assert {run.step_id for run in first.tool_runs} == {step.id}


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
def test_a_swarms_handover(way: str) -> None:
    swarm = pytest.importorskip("langgraph_swarm")
    with serving(handing_over("transfer_to_poet")) as server, rt.trajectory("task") as own:
        llm = chat(server)
        adder = create_agent(llm, [add, swarm.create_handoff_tool(agent_name="poet")], name="adder")
        poet = create_agent(llm, [], name="poet")
        WAYS[way](swarm.create_swarm([adder, poet], default_active_agent="adder").compile(), conversation(), {})
        assert [(one.name, len(one.steps)) for one in own._children] == [("adder", 1), ("poet", 1)]
        (run,) = own._children[0].tool_runs
    assert (own.steps, run.name, run.result) == ([], "transfer_to_poet", "Successfully transferred to poet")
