"""What tools gave, as it was when they gave it; and calls of the user's own beside those of LangChain's."""

from __future__ import annotations

from typing import Annotated, Any

from langchain.agents import create_agent
from langchain_core.messages import ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.types import Command
from openai import OpenAI

import rollout_trace as rt
from rollout_trace.testing import Reply, ToolCall

from .agents import UNKEPT, chat, question, serving

KEPT: list[Any] = [{"rows": 1}]


@tool
def rows() -> list[Any]:
    """Gives a list that changes later."""
    return KEPT


@tool
def decide(call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Answers by a change of the graph's state."""
    return Command(update={"messages": [ToolMessage("decided", tool_call_id=call_id)]})


def calling(name: str) -> Any:
    def script(request: dict[str, Any]) -> Reply:
        done = any(message["role"] == "tool" for message in request["messages"])
        return Reply("Done.") if done else Reply(tool_calls=[ToolCall(name, "{}")])

    return script


def test_a_command_tells_what_the_model_is_told() -> None:
    with serving(calling("decide")) as server:
        with rt.trajectory() as own:
            create_agent(chat(server), [decide]).invoke(question())
    (run,) = own.tool_runs
    assert (run.name, run.result, run.error) == ("decide", "decided", None)
    assert run.step_id == own.steps[0].id


def test_a_result_is_kept_as_it_was_given() -> None:
    with rt.trajectory() as own:
        rows.invoke({})
        KEPT.append("changed")
    assert own.tool_runs[0].result == [{"rows": 1}]


def test_a_call_between_two_pieces_of_a_stream_is_the_users() -> None:
    """Whoever reads a stream of the model's is in its context."""
    with serving(lambda request: "One two three.") as server:
        with OpenAI(base_url=server.base_url, api_key="none", default_headers=UNKEPT) as plain:
            client, llm = rt.wrap_openai(plain), chat(server)
            with rt.trajectory("own") as own:
                pieces = llm.stream("Count.")
                next(pieces)
                client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Mine."}])
                assert list(pieces)
    told, mine = own.steps
    assert told.metadata is not None
    assert told.metadata["framework"] == "langchain"
    assert (mine.messages, mine.metadata) == ([{"role": "user", "content": "Mine."}], None)
