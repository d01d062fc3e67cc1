"""How runs end other than well, and what LangChain throws away and asks for again."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import RetryPolicy
from pydantic import BaseModel

import rollout_trace as rt
from rollout_trace.testing import Fault, Reply, ToolCall
from rollout_trace_langchain import RolloutCallbackHandler, runs

from .agents import WAYS, adder, chat, question, serving, three_turns, written
from .oracle import assert_as_served


@pytest.fixture(autouse=True)
def _no_run_is_left() -> Any:
    yield
    assert not runs._runs


@pytest.mark.sees("error")
@pytest.mark.parametrize("way", ["invoke", "stream", "stream messages", "ainvoke", "astream messages"])
def test_an_http_error(way: str, tmp_path: Path) -> None:
    """The second turn fails: the framework's error is the step's, once, and the trajectory's."""

    def script(request: Any) -> Any:
        return three_turns(request) if len(request["messages"]) == 1 else Fault(status=500)

    with serving(script) as server, rt.recording(tmp_path / "runs.jsonl"):
        with pytest.raises(Exception, match="500"):
            WAYS[way](adder(chat(server)), question(), {"callbacks": [RolloutCallbackHandler()]})
        (own,) = written(tmp_path / "runs.jsonl")
        assert_as_served(own.steps, server)
    assert [(step.status, step.error and step.error.status) for step in own.steps] == [("ok", None), ("error", 500)]
    assert (own.status, own.error is not None, len(own.tool_runs)) == ("failed", True, 1)


@pytest.mark.sees("cancelled", "`cancelled`; unseen calls by the graph's error")
@pytest.mark.parametrize("how", ["agent", "model", "batch"])
@pytest.mark.parametrize("is_own", [False, True], ids=["inside a trajectory", "alone"])
def test_a_cancelled_run(how: str, is_own: bool, tmp_path: Path) -> None:
    """The task is cancelled while the server thinks. Of a model that is cancelled LangChain tells no end."""
    handled: Any = {"callbacks": [RolloutCallbackHandler()]} if is_own else {}

    async def cancelled(server: Any) -> None:
        llm = chat(server)
        runs_of: dict[str, Any] = {
            "agent": lambda: adder(llm).ainvoke(question(), handled),
            "model": lambda: llm.ainvoke("Hi", handled),
            "batch": lambda: llm.agenerate([[HumanMessage("Hi")]], **handled),
        }
        running = asyncio.create_task(runs_of[how]())
        await asyncio.to_thread(server.wait_held)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    with serving(Fault(hold=True)) as server, rt.recording(tmp_path / "runs.jsonl"):
        if is_own:
            asyncio.run(cancelled(server))
        else:
            with rt.trajectory():
                asyncio.run(cancelled(server))
        (own,) = written(tmp_path / "runs.jsonl")
        runs._sweep()
    (step,) = own.steps
    assert (step.status, step.messages is not None) == ("cancelled", True)
    assert own.status == ("aborted" if is_own else "completed")


def test_a_cancelled_agent_without_a_wire() -> None:
    """LangChain tells of the graph alone; what ran inside was cancelled with it."""

    class Slow(GenericFakeChatModel):
        async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
            reached.set()
            await asyncio.Event().wait()

    async def cancelled() -> None:
        running = asyncio.create_task(graph.compile(name="team").ainvoke(question()))
        await reached.wait()
        running.cancel()
        await asyncio.wait([running])

    @tool
    async def ask(text: str) -> str:
        """Ask a slow model."""
        return str((await Slow(messages=iter([])).ainvoke(text)).content)

    reached = asyncio.Event()
    graph = StateGraph(MessagesState)

    async def node(state: Any) -> Any:
        return {"messages": [("ai", await ask.ainvoke({"text": "Hi"}))]}

    graph.add_node("ask", node)
    graph.add_edge(START, "ask")
    with rt.trajectory() as own:
        asyncio.run(cancelled())
    (step,) = own.steps
    (run,) = own.tool_runs
    assert (step.status, step.messages) == ("cancelled", [{"role": "user", "content": "Hi"}])
    assert (run.name, run.result, run.error and run.error.type) == ("ask", None, "CancelledError")


@pytest.mark.parametrize("way", ["stream", "astream"])
def test_a_stream_left_early_is_abandoned(way: str) -> None:
    async def left(llm: Any) -> None:
        stream = llm.astream("Hi")
        async for _ in stream:
            break
        await stream.aclose()
        # Older releases leave the connection open, in a cache that later tests would push it out of.
        await llm.root_async_client.close()

    with serving(Fault(Reply("A long answer"), hold_after=4)) as server, rt.trajectory() as own:
        llm = chat(server)
        if way == "stream":
            stream = llm.stream("Hi")
            next(stream)
            del stream
            gc.collect()
        else:
            asyncio.run(left(llm))
        runs._sweep()
    (step,) = own.steps
    assert (step.status, step.error) == ("abandoned", None)
    assert step.completion is not None


@pytest.mark.sees("tool errors")
def test_a_tool_that_raises_ends_the_agent(tmp_path: Path) -> None:
    with serving(lambda request: Reply(tool_calls=[ToolCall("fail", '{"text": "x"}')])) as server:
        with rt.recording(tmp_path / "runs.jsonl"), pytest.raises(KeyError):
            adder(chat(server)).invoke(question(), {"callbacks": [RolloutCallbackHandler()]})
    (own,) = written(tmp_path / "runs.jsonl")
    (run,) = own.tool_runs
    assert (run.name, run.arguments, run.result, run.error and run.error.type) == (
        "fail", {"text": "x"}, None, "KeyError",
    )  # fmt: skip
    assert (run.step_id, run.duration is not None) == (own.steps[0].id, True)
    assert (own.status, own.error and own.error.type, own.steps[0].status) == ("failed", "KeyError", "ok")


class Point(BaseModel):
    x: int


@pytest.mark.sees("structured output", "one that cannot be parsed has the error on its step")
def test_an_answer_that_cannot_be_parsed() -> None:
    """The model answered; what failed is the framework's."""
    with serving("no JSON") as server, rt.trajectory() as own:
        with pytest.raises(ValueError):
            chat(server).with_structured_output(Point).invoke("Hi")
        assert_as_served(own.steps, server)
    (step,) = own.steps
    assert (step.status, step.error and step.error.type) == ("ok", "ValidationError")
    assert step.completion_token_ids is not None


def second_is_good(request: Any, record: Any) -> str:
    return "bad" if record.index == 0 else "good"


def checked(message: Any) -> str:
    if message.content == "bad":
        raise ValueError("bad")
    return str(message.content)


@pytest.mark.sees("superseded", "`with_retry`, `with_fallbacks`, a node's `RetryPolicy`")
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("is_own", [False, True], ids=["inside a trajectory", "alone"])
@pytest.mark.parametrize("how", ["retry", "fallback", "node"])
def test_what_is_asked_for_again_is_superseded(how: str, is_own: bool, is_async: bool, tmp_path: Path) -> None:
    with serving(second_is_good) as server, rt.recording(tmp_path / "runs.jsonl"):
        chain: Any = chat(server) | RunnableLambda(checked)
        if how == "retry":
            chain = chain.with_retry(wait_exponential_jitter=False, exponential_jitter_params={"initial": 0})
        elif how == "fallback":
            chain = chain.with_fallbacks([chain])
        else:
            chain = RunnableLambda(question) | _retrying_graph(chain) | (lambda state: state["messages"][-1].content)
        config: Any = {"callbacks": [RolloutCallbackHandler()]} if is_own else {}
        if is_own:
            assert asyncio.run(chain.ainvoke("Hi", config)) if is_async else chain.invoke("Hi", config) == "good"
        else:
            with rt.trajectory():
                assert asyncio.run(chain.ainvoke("Hi")) if is_async else chain.invoke("Hi") == "good"
        (own,) = written(tmp_path / "runs.jsonl")
        assert_as_served(own.steps, server)
    assert [step.status for step in own.steps] == ["superseded", "ok"]
    assert len(own.sequences()) == 1


def _retrying_graph(chain: Any) -> Any:
    graph = StateGraph(MessagesState)

    async def anode(state: Any) -> Any:
        return {"messages": [("ai", await chain.ainvoke(state["messages"]))]}

    def node(state: Any) -> Any:
        return {"messages": [("ai", chain.invoke(state["messages"]))]}

    policy = RetryPolicy(initial_interval=0, jitter=False, retry_on=ValueError)
    graph.add_node("ask", RunnableLambda(node, anode), retry_policy=policy)
    graph.add_edge(START, "ask")
    return graph.compile()


def test_what_fails_and_is_not_asked_for_again_stays() -> None:
    """A node that catches what its chain raises, and asks another, has used both answers."""
    with serving(second_is_good) as server, rt.trajectory() as own:
        chain = chat(server) | RunnableLambda(checked)

        def node(text: str) -> str:
            try:
                return chain.invoke(text)
            except ValueError:
                return chain.invoke(f"Not {text}")

        RunnableLambda(node).invoke("Hi")
    assert [step.status for step in own.steps] == ["ok", "ok"]


def test_runs_that_never_end_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold nothing when their trajectory has closed."""
    monkeypatch.setattr(runs, "_SWEEP_FROM", 4)
    monkeypatch.setattr(runs, "_sweep_at", 4)
    streams = []
    for _ in range(50):
        with rt.trajectory() as own:
            stream = GenericFakeChatModel(messages=iter(["a b"])).stream("Hi")
            next(stream)
            streams.append(stream)
        assert [step.status for step in own.steps] == ["abandoned"]
    assert len(runs._runs) <= 5
    streams.clear()
    gc.collect()
    runs._sweep()
