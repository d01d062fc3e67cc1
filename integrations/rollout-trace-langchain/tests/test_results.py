"""What tools gave, as it was when they gave it; and calls of the user's own beside those of LangChain's."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState
from langgraph.types import Command, Send
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


HANDED = "Successfully transferred to expert"


@tool
def to_expert(
    state: Annotated[dict[str, Any], InjectedState], call_id: Annotated[str, InjectedToolCallId]
) -> Command[Any]:
    """Hands over with the whole conversation, as langgraph-supervisor and langgraph-swarm do."""
    told = ToolMessage(HANDED, tool_call_id=call_id)
    if len(state["messages"][-1].tool_calls) == 1:
        messages = [*state["messages"], told]
        return Command(goto="expert", graph=Command.PARENT, update={**state, "messages": messages})
    return Command(graph=Command.PARENT, goto=[Send("expert", {**state, "messages": [*state["messages"][:-1], told]})])


@tool
def go_on(call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Hands over without a word to the model."""
    return Command(goto="expert", graph=Command.PARENT, update={"messages": [], "notes": "n"})


def team(server: Any, tools: list[Any]) -> Any:
    """A lead that hands over to an expert, which is done."""
    llm = chat(server)
    graph = StateGraph(MessagesState)
    graph.add_node("lead", create_agent(llm, tools, name="lead"), destinations=("expert",))
    graph.add_node("expert", lambda state: {"messages": [("ai", "Done")]})
    graph.add_edge(START, "lead")
    return graph.compile(name="team")


def conversation() -> Any:
    """One in which tools have answered before."""
    asked = AIMessage("", tool_calls=[{"name": "rows", "args": {}, "id": "call_before"}])
    return {"messages": [("user", "Hi"), asked, ToolMessage("earlier", tool_call_id="call_before"), ("user", "Go on")]}


def test_a_handover_with_the_conversation_gives_its_own_message() -> None:
    """Its command carries the results of earlier calls, too."""
    with serving(lambda request: Reply(tool_calls=[ToolCall("to_expert", "{}")])) as server:
        with rt.trajectory() as own:
            team(server, [to_expert]).invoke(conversation())
            (lead,) = own._children
    assert [(run.name, run.result) for run in lead.tool_runs] == [("to_expert", HANDED)]


def test_parallel_handovers_give_their_messages() -> None:
    """Each is a command that sends the conversation to a node."""
    calls = [ToolCall("to_expert", "{}"), ToolCall("to_expert", "{}")]
    with serving(lambda request: Reply(tool_calls=calls)) as server:
        with rt.trajectory() as own:
            team(server, [to_expert]).invoke(conversation())
            (lead,) = own._children
    assert [(run.name, run.result) for run in lead.tool_runs] == [("to_expert", HANDED)] * 2
    (step,) = lead.steps
    assert step.completion is not None
    assert {run.tool_call_id for run in lead.tool_runs} == {call.id for call in step.completion.tool_calls}


def test_a_command_that_tells_the_model_nothing_says_where_it_goes() -> None:
    with serving(lambda request: Reply(tool_calls=[ToolCall("go_on", "{}")])) as server:
        with rt.trajectory() as own:
            team(server, [go_on]).invoke(conversation())
            (lead,) = own._children
    (run,) = lead.tool_runs
    assert run.result == {"goto": ["expert"], "graph": "__parent__", "update": {"notes": "n"}}


def test_a_list_of_outputs_gives_the_answer_to_the_call() -> None:
    @tool
    def several(call_id: Annotated[str, InjectedToolCallId]) -> list[Any]:
        """Answers, and changes the state beside that."""
        return [ToolMessage("told", tool_call_id=call_id), Command(update={"messages": []})]

    with rt.trajectory() as own:
        given = several.invoke({"name": "several", "args": {}, "id": "call_1", "type": "tool_call"})
    if isinstance(given, ToolMessage):
        pytest.skip("an older release of LangChain, which makes a text of such a list")
    assert [(run.tool_call_id, run.result) for run in own.tool_runs] == [("call_1", "told")]


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
