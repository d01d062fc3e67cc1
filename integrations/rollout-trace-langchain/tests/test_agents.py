"""Agents of LangGraph against the scripted server: its log says what the steps must be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

import rollout_trace as rt
from rollout_trace.testing import Reply, ToolCall
from rollout_trace_langchain import RolloutCallbackHandler, runs

from .agents import WAYS, add, adder, chat, fail, question, serving, three_turns, written
from .oracle import assert_as_served, content_of

HANDLED: Any = {"callbacks": [RolloutCallbackHandler()]}


@pytest.fixture(params=["ambient", "handler", "both", "recording only"])
def mode(request: pytest.FixtureRequest) -> str:
    """Who records: the trajectory around, the handler inside it, both with several handlers, or the handler alone."""
    mode: str = request.param
    return mode


def recorded(mode: str, path: Path, run: Any) -> list[rt.Trajectory]:
    """What a run leaves in a file."""
    handlers = {"ambient": 0, "handler": 1, "both": 2, "recording only": 1}[mode]
    config = {"callbacks": [RolloutCallbackHandler() for _ in range(handlers)]} if handlers else {}
    with rt.recording(path):
        if mode == "recording only":
            run(config)
        else:
            with rt.trajectory("task") as own:
                run(config)
            (first, *_) = written(path)
            assert first == own
    assert not runs._runs
    return list(written(path))


@pytest.mark.sees("ids", "however it is run, `stream_events` v3 too")
@pytest.mark.sees("one row")
@pytest.mark.parametrize("way", WAYS)
def test_a_tool_loop(way: str, mode: str, tmp_path: Path) -> None:
    """Three turns are three steps, and one row to train on, however the agent is run and whoever records it."""
    with serving(three_turns) as server:
        agent = adder(chat(server))
        (own,) = recorded(mode, tmp_path / "runs.jsonl", lambda config: WAYS[way](agent, question(), config))
        assert_as_served(own.steps, server)
    assert len(own.steps) == 3
    assert own.name == ("adder" if mode == "recording only" else "task")
    assert [(step.agent, step.status) for step in own.steps] == [("adder", "ok")] * 3
    first, second = own.tool_runs
    assert [(run.name, run.arguments, run.result, run.error) for run in (first, second)] == [
        ("add", {"a": 0, "b": 1}, "1", None),
        ("add", {"a": 1, "b": 1}, "2", None),
    ]
    assert (first.step_id, second.step_id) == (own.steps[0].id, own.steps[1].id)
    assert first.duration is not None
    (row,) = own.sequences()
    assert list(row.step_ids) == [step.id for step in own.steps]


@pytest.mark.sees("streaming")
def test_streamed_steps_are_the_steps_of_the_same_answers_unstreamed(tmp_path: Path) -> None:
    contents = []
    ways = [way for way in ("invoke", "stream messages", "astream messages", "stream_events v3") if way in WAYS]
    for way in ways:
        with serving(three_turns) as server, rt.trajectory() as own:
            WAYS[way](adder(chat(server, stream_usage=True)), question(), {})
        contents.append([content_of(step) for step in own.steps])
        assert [step.time_to_first_token is not None for step in own.steps] == [way != "invoke"] * 3
    # The ids of tool calls are the server's, and the request's options tell whether it was a stream.
    assert contents[1] == contents[2]
    for streamed in contents[2:]:
        for plain, other in zip(contents[0], streamed, strict=True):
            assert {**plain, "sampling": None} == {**other, "sampling": None}


def parallel(request: Any) -> Reply:
    if any(message["role"] == "tool" for message in request["messages"]):
        return Reply("Done")
    return Reply(tool_calls=[ToolCall("add", '{"a": 1, "b": 2}'), ToolCall("fail", '{"text": "x"}'),
                             ToolCall("add", '{"a": 3, "b": 4}')])  # fmt: skip


@pytest.mark.sees("parallel tools")
@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
def test_parallel_tool_calls(way: str) -> None:
    """Each run has the id of the call that asked for it, whatever the order; one that raises has its error."""

    def handled(error: Exception) -> str:
        return f"handled: {error}"

    with serving(parallel) as server:
        llm = chat(server)
        graph = StateGraph(MessagesState)
        model = llm.bind_tools([add, fail])
        graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
        graph.add_node("tools", ToolNode([add, fail], handle_tool_errors=handled))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else "__end__")
        graph.add_edge("tools", "model")
        with rt.trajectory() as own:
            answer = WAYS[way](graph.compile(name="team"), question(), {})
        assert_as_served(own.steps, server)
    asked = own.steps[0].completion
    assert asked is not None
    by_id = {run.tool_call_id: run for run in own.tool_runs}
    assert set(by_id) == {call.id for call in asked.tool_calls}
    good, bad, last = (by_id[call.id] for call in asked.tool_calls)
    assert (good.name, good.result, last.result) == ("add", "3", "7")
    assert (bad.name, bad.result, bad.error and bad.error.type) == ("fail", None, "KeyError")
    assert {run.step_id for run in own.tool_runs} == {own.steps[0].id}
    assert "handled" in answer["messages"][3].content
    assert {step.agent for step in own.steps} == {"team"}


@pytest.mark.parametrize("how", ["called alone", "in an agent"])
def test_a_handler_given_to_a_model_says_that_it_sees_no_agent(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once: each call is a trajectory, and that is rarely what was meant."""
    with serving(three_turns) as server, rt.recording(tmp_path / "runs.jsonl"):
        if how == "called alone":
            llm = chat(server)
            for _ in range(2):
                llm.invoke("Hi", HANDLED)
        else:
            adder(chat(server, callbacks=HANDLED["callbacks"])).invoke(question())
    assert len(list(written(tmp_path / "runs.jsonl"))) == len(server.requests) > 1
    (said,) = [record for record in caplog.records if record.name == "rollout_trace"]
    assert said.levelname == "WARNING"
    assert said.getMessage().startswith("RolloutCallbackHandler was given to a model alone (ChatOpenAI)")
    assert "with rt.trajectory()" in said.getMessage()


def test_a_handler_where_it_belongs_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(three_turns) as server, rt.recording(tmp_path / "runs.jsonl"):
        adder(chat(server)).invoke(question(), HANDLED)
        with rt.trajectory():
            chat(server, callbacks=HANDLED["callbacks"]).invoke("Hi")
        add.invoke({"a": 1, "b": 2}, HANDLED)
    # A tool that is called alone is a run without a model call, of which the core warns.
    (said,) = [record.getMessage() for record in caplog.records if record.name == "rollout_trace"]
    assert "no model call was recorded in it" in said
