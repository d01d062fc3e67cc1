"""What the middleware of an agent throws away, and what it asks beside the agent."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ModelRequest
from langchain.agents.structured_output import ProviderStrategy
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from pydantic import BaseModel

import rollout_trace as rt
from rollout_trace.testing import Reply, ToolCall

from .agents import WAYS, add, chat, question, serving
from .oracle import assert_as_served


class Middleware(AgentMiddleware):
    """Sync and async alike; ``ask`` gives each request for a model, in turn, and takes its answer."""

    def ask(self, request: ModelRequest) -> Any:
        raise NotImplementedError

    def wrap_model_call(self, request: ModelRequest, handler: Any) -> Any:
        asking = self.ask(request)
        wanted = next(asking)
        try:
            while True:
                wanted = asking.send(handler(wanted))
        except StopIteration as done:
            return done.value

    async def awrap_model_call(self, request: ModelRequest, handler: Any) -> Any:
        asking = self.ask(request)
        wanted = next(asking)
        try:
            while True:
                wanted = asking.send(await handler(wanted))
        except StopIteration as done:
            return done.value


class Insist(Middleware):
    """Asks again, until the answer is good."""

    def ask(self, request: ModelRequest) -> Any:
        while True:
            response = yield request
            if response.result[0].text != "bad":
                return response


class Criticise(Middleware):
    """Asks again, with the answer and what is wrong with it."""

    def ask(self, request: ModelRequest) -> Any:
        response = yield request
        told = [*request.messages, response.result[0], HumanMessage("Better.")]
        return (yield request.override(messages=told))


class Vote(Middleware):
    """Makes one answer of two."""

    def ask(self, request: ModelRequest) -> Any:
        first = yield request
        second = yield request
        return AIMessage(f"{first.result[0].text} and {second.result[0].text}")


class Both(Middleware):
    """Keeps two answers."""

    def ask(self, request: ModelRequest) -> Any:
        first = yield request
        second = yield request
        second.result.insert(0, first.result[0])
        return second


class Judge(Middleware):
    """Asks a model about the question."""

    def __init__(self, judge: Any) -> None:
        super().__init__()
        self.judge = judge

    def ask(self, request: ModelRequest) -> Any:
        assert self.judge.invoke([SystemMessage("Is it hard?"), request.messages[-1]]).text
        return (yield request)


def second_is_good(request: Any, record: Any) -> Any:
    """The second answer is good; after it a tool is called, and another answer is thrown away."""
    answers = ["bad", Reply(tool_calls=[ToolCall("add", '{"a": 1, "b": 1}')]), "bad", "good"]
    return answers[record.index]


@pytest.mark.sees("superseded", "a middleware's retries")
@pytest.mark.parametrize("way", WAYS)
def test_an_answer_that_was_thrown_away_is_superseded(way: str) -> None:
    with serving(second_is_good) as server, rt.trajectory() as own:
        WAYS[way](create_agent(chat(server), [add], name="adder", middleware=[Insist()]), question(), {})
        assert_as_served(own.steps, server)
    assert [step.status for step in own.steps] == ["superseded", "ok", "superseded", "ok"]
    assert len(own.tool_runs) == 1
    (row,) = own.sequences()
    assert list(row.step_ids) == [own.steps[1].id, own.steps[3].id]


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream messages"])
@pytest.mark.parametrize(
    ("middleware", "statuses"),
    [(Criticise, ["superseded", "ok"]), (Vote, ["ok", "ok"]), (Both, ["ok", "ok"])],
)  # fmt: skip
def test_what_is_kept_is_not_superseded(middleware: Any, statuses: list[str], way: str) -> None:
    """Of an answer that is nobody's, or of two, it is not known that one was thrown away."""
    with serving(lambda request: "fine") as server, rt.trajectory() as own:
        WAYS[way](create_agent(chat(server), [add], name="adder", middleware=[middleware()]), question(), {})
        assert_as_served(own.steps, server)
    assert [step.status for step in own.steps] == statuses


def test_what_middleware_asks_for_itself_is_not_superseded() -> None:
    with serving(lambda request: "fine") as server, rt.trajectory() as own:
        llm = chat(server)
        create_agent(llm, [add], name="adder", middleware=[Judge(llm)]).invoke(question())
        assert_as_served(own.steps, server)
    assert [step.status for step in own.steps] == ["ok", "ok"]


class Point(BaseModel):
    x: int


def test_an_answer_that_could_not_be_parsed_is_superseded() -> None:
    """LangChain's own middleware asks again after an answer that is not of the asked shape."""

    def script(request: Any, record: Any) -> str:
        return "no JSON" if record.index == 0 else '{"x": 1}'

    module = pytest.importorskip("langchain.agents.middleware.model_retry", reason="an older release of LangChain")
    retry = module.ModelRetryMiddleware(initial_delay=0, jitter=False)
    with serving(script) as server, rt.trajectory() as own:
        agent = create_agent(
            chat(server), [add], name="adder", middleware=[retry], response_format=ProviderStrategy(Point)
        )
        assert agent.invoke(question())["structured_response"] == Point(x=1)
        assert_as_served(own.steps, server)
    assert [step.status for step in own.steps] == ["superseded", "ok"]
