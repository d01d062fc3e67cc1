"""What runs inside a recorded run without a hook of its own: helpers, auxiliary models, agents that make summaries."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import pickle
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from strands import Agent, tool
from strands.agent.conversation_manager import SummarizingConversationManager
from strands.hooks import BeforeModelCallEvent, HookCallback, HookRegistry
from strands.models.openai import OpenAIModel
from strands.multiagent import GraphBuilder

import rollout_trace as rt
from rollout_trace import Trajectory
from rollout_trace.testing import Reply, ScriptedServer

from .harness import Recorded, Served, adding, agent_of, openai_model, results
from .test_groups import by_system, system_of
from .test_models import Parrot, litellm_model

SUMMARY = "Please summarize this conversation."


def asking(question: str = "Add.") -> Callable[[dict[str, Any]], Reply]:
    """A model that asks a helper once, then answers."""

    def script(request: dict[str, Any]) -> Reply:
        if results(request):
            return Reply("The helper knows.")
        return Reply(tool_calls=[("ask", json.dumps({"question": question}))])

    return script


def bare_agent(model: Any, name: str, **options: Any) -> Agent:
    return agent_of(model, name=name, system_prompt=name, is_recorded=False, **options)


def assert_all_are_recorded(server: ScriptedServer, trajectories: list[Trajectory]) -> None:
    """Every request of the server is a step of the trajectory named by its system prompt, in order."""
    server.wait_idle()
    asked = {name: [r for r in server.requests if system_of(r.json) == name] for name in ("boss", "helper")}
    assert sum(map(len, asked.values())) == len(server.requests)
    steps = [(step, one.name) for one in trajectories for step in one.steps]
    assert len(steps) == len(server.requests)
    for name, records in asked.items():
        for record, step in zip(records, [step for step, owner in steps if owner == name], strict=True):
            Served(record).assert_is(step)


@pytest.mark.sees("sub-agents", "agents inside tools")
@pytest.mark.parametrize("is_made_inside", [True, False])
def test_an_agent_without_a_hook_inside_a_tool(recorded: Recorded, is_made_inside: bool) -> None:
    """It has a model of its own, whose client nobody wrapped."""
    with ScriptedServer(by_system(boss=asking(), helper=adding(1))) as server:
        known = bare_agent(openai_model(server), "helper")

        @tool(name="ask")
        def ask(question: str) -> str:
            """Asks."""
            helper = bare_agent(openai_model(server), "helper") if is_made_inside else known
            return str(helper(question))

        with rt.trajectory("boss"):
            agent_of(openai_model(server), name="boss", system_prompt="boss", tools=[ask])("Go.")
    parent, child = recorded.all()
    assert len(server.requests) == 4
    assert_all_are_recorded(server, [parent, child])
    assert (child.name, child.parent_id, child.parent_step_id) == ("helper", parent.id, parent.steps[0].id)
    assert [run.name for run in child.tool_runs] == ["add"]


def test_an_agent_without_a_hook_inside_an_async_tool_and_a_trajectory_of_its_own(recorded: Recorded) -> None:
    with ScriptedServer(by_system(boss=asking(), helper=adding(1))) as server:

        @tool(name="ask")
        async def ask(question: str) -> str:
            """Asks."""
            with rt.trajectory("helper", task="own"):
                return str(await bare_agent(openai_model(server), "helper").invoke_async(question))

        with rt.trajectory("boss"):
            agent_of(openai_model(server), name="boss", system_prompt="boss", tools=[ask])("Go.")
    found = recorded.all()
    assert_all_are_recorded(server, found)
    parent, child = found
    assert (child.parent_id, child.task.id if child.task else None) == (parent.id, "own")


def test_a_graph_without_a_hook_inside_a_tool(recorded: Recorded) -> None:
    with ScriptedServer(by_system(boss=asking(), helper=adding(1))) as server:

        @tool(name="ask")
        def ask(question: str) -> str:
            """Asks."""
            builder = GraphBuilder().set_max_node_executions(10)
            builder.add_node(bare_agent(openai_model(server), "helper"), "helper")
            return str(builder.build()(question).status)

        with rt.trajectory("boss"):
            agent_of(openai_model(server), name="boss", system_prompt="boss", tools=[ask])("Go.")
    found = recorded.all()
    assert_all_are_recorded(server, found)
    by_name = {one.name: one for one in found}
    assert by_name["default_graph"].parent_id == by_name["boss"].id
    assert by_name["helper"].parent_id == by_name["default_graph"].id


def test_an_agent_outside_every_recorded_run_stays_as_it_is(recorded: Recorded) -> None:
    with ScriptedServer(by_system(boss=adding(1), helper=adding(1))) as server:
        agent_of(openai_model(server), name="boss", system_prompt="boss")("Go.")
        helper = bare_agent(openai_model(server), "helper")
        helper("Go.")
        assert type(helper.model) is OpenAIModel
    assert [one.name for one in recorded.all()] == ["boss"]


def test_what_strands_sees_of_its_registry() -> None:
    """One method of Strands is wrapped; it stays what it was for whoever looks at it."""
    agent_of(Parrot())
    assert asyncio.iscoroutinefunction(HookRegistry.invoke_callbacks_async)
    assert HookRegistry.invoke_callbacks_async.__qualname__ == "HookRegistry.invoke_callbacks_async"
    once = HookRegistry.invoke_callbacks_async
    agent_of(Parrot())
    assert HookRegistry.invoke_callbacks_async is once


has_aux_model = pytest.mark.skipif(
    "aux_model" not in inspect.signature(Agent.__init__).parameters, reason="an agent has an auxiliary model since 1.58"
)


def compressing(agent_messages: int = 4) -> HookCallback[BeforeModelCallEvent]:
    """A hook that has the conversation manager make its summary once, inside the run."""
    done: list[int] = []

    def compress(event: BeforeModelCallEvent) -> None:
        if len(event.agent.messages) >= agent_messages and not done:
            done.append(1)
            event.agent.conversation_manager.reduce_context(event.agent, RuntimeError("too long"))

    return compress


def summarizing(request: dict[str, Any]) -> Reply:
    if SUMMARY in json.dumps(request["messages"][-1]):
        return Reply("They add numbers.")
    return adding(2)(request)


def run_that_is_summarized(model: Any, *, summarizer: Any = None, **options: Any) -> Trajectory:
    manager = SummarizingConversationManager(
        summary_ratio=0.5, preserve_recent_messages=2, summarization_agent=summarizer
    )
    agent = agent_of(model, name="boss", conversation_manager=manager, **options)
    agent.hooks.add_callback(BeforeModelCallEvent, compressing())
    with rt.trajectory("boss") as trajectory:
        agent("Add.")
    return trajectory


@pytest.mark.parametrize(
    "kind",
    [
        "its own",
        pytest.param("an auxiliary one", marks=has_aux_model),
        pytest.param("an auxiliary one of litellm", marks=has_aux_model),
    ],
)
def test_a_summary_is_a_step_of_the_run(recorded: Recorded, kind: str) -> None:
    """Strands calls the model past the agent's loop."""
    with ScriptedServer(summarizing) as server:
        aux = None
        if kind == "an auxiliary one":
            aux = openai_model(server, model_id="small")
        elif kind == "an auxiliary one of litellm":
            aux = litellm_model(api_base=server.base_url)
        trajectory = run_that_is_summarized(openai_model(server), **({} if aux is None else {"aux_model": aux}))
        server.wait_idle()
    assert len(trajectory.steps) == len(server.requests)
    for record, step in zip(server.requests, trajectory.steps, strict=True):
        is_summary = SUMMARY in json.dumps(record.json["messages"][-1])
        expected = {"framework": "strands", **({"turn": "auxiliary"} if is_summary else {})}
        assert step.metadata == expected
        # A copy: the step itself may be on its way into the file.
        Served(record).assert_is(replace(step, metadata={"framework": "strands"}))
        assert (step.agent, step.status) == ("boss", "ok")
    assert sum((step.metadata or {}).get("turn") == "auxiliary" for step in trajectory.steps) == 1
    recorded.keep(trajectory)


@has_aux_model
def test_a_summary_of_a_model_that_cannot_be_reached(recorded: Recorded) -> None:
    with ScriptedServer(adding(2)) as server:
        aux = Parrot([{"delta": {"text": "They add numbers."}}])
        trajectory = run_that_is_summarized(openai_model(server), aux_model=aux)
    assert len(trajectory.steps) == len(server.requests) + 1
    (step,) = [step for step in trajectory.steps if (step.metadata or {}).get("turn") == "auxiliary"]
    assert step.token_issue is not None
    assert step.completion is not None
    assert (step.token_issue.code, step.model) == ("not_on_wire", "parrot")
    assert step.completion.content == "They add numbers."
    assert step.messages is not None
    assert step.messages[-1] == {"role": "user", "content": SUMMARY}
    assert step.usage is not None
    assert step.usage.output == 3
    recorded.keep(trajectory)


@has_aux_model
def test_a_summary_that_fails(recorded: Recorded) -> None:
    with ScriptedServer(adding(2)) as server:
        with pytest.raises(Exception, match="no voice"):
            run_that_is_summarized(openai_model(server), aux_model=Parrot(RuntimeError("no voice")))
    (trajectory,) = recorded.all()
    assert [step.status for step in trajectory.steps] == ["ok", "ok", "error"]
    assert trajectory.steps[-1].error is not None
    assert trajectory.steps[-1].error.message == "no voice"


class Closing(Parrot):
    """Says when its stream has been closed."""

    is_closed = False

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        try:
            async for chunk in super().stream(messages, *args, **kwargs):
                yield chunk
        finally:
            self.is_closed = True


def test_a_stream_past_the_loop_that_is_left_early_is_closed(recorded: Recorded) -> None:
    model = Closing([{"delta": {"text": "left"}}], [{"delta": {"text": "said"}}])
    was_closed = []

    async def look(event: BeforeModelCallEvent) -> None:
        stream: Any = event.agent.model.stream([{"role": "user", "content": [{"text": "Quick."}]}])
        assert await stream.__anext__() == {"messageStart": {"role": "assistant"}}
        await stream.aclose()
        was_closed.append(model.is_closed)

    with rt.trajectory() as trajectory:
        assert str(agent_of(model, hooks=[look])("Speak.")) == "said\n"
    assert was_closed == [True]
    left, said = trajectory.steps
    assert (left.status, said.status) == ("abandoned", "ok")
    assert list(left.messages or ()) == [{"role": "user", "content": "Quick."}]
    recorded.keep(trajectory)


def test_an_agent_that_makes_summaries(recorded: Recorded) -> None:
    def helper(request: dict[str, Any]) -> Reply:
        return Reply("They add numbers.")

    with ScriptedServer(lambda request: (helper if system_of(request) == "helper" else adding(2))(request)) as server:
        summarizer = bare_agent(openai_model(server), "helper", tools=[])
        trajectory = run_that_is_summarized(openai_model(server), system_prompt="boss", summarizer=summarizer)
    found = recorded.all()
    assert_all_are_recorded(server, found)
    child = next(one for one in found if one.name == "helper")
    assert child.parent_id == trajectory.id


def test_a_recorded_model_can_be_copied_and_pickled() -> None:
    with ScriptedServer("fine") as server:
        model = openai_model(server)
        agent = agent_of(model)
        agent("Go.")
        assert isinstance(model, OpenAIModel)
        assert (type(model).__name__, type(model).__module__) == ("OpenAIModel", "strands.models.openai")
        pickled = [pickle.loads(pickle.dumps(model, protocol)) for protocol in (0, pickle.HIGHEST_PROTOCOL)]
        for copied in (copy.copy(model), copy.deepcopy(model), *pickled):
            assert type(copied) is OpenAIModel
            copied.config = {**model.config, "model_id": "other"}
            assert "rollout" not in repr(vars(copied))
            bare_agent(copied, "copy")("Go.")
            assert server.requests[-1].json["model"] == "other"


class Slotted(Parrot):
    """A model whose object cannot get another class."""

    __slots__ = ("answer",)


def test_a_model_that_cannot_get_another_class_stays_as_it_is(recorded: Recorded) -> None:
    with rt.trajectory() as trajectory:
        model = Slotted([{"delta": {"text": "three"}}])
        assert str(agent_of(model)("Speak.")) == "three\n"
        assert type(model).__name__ == "Slotted"
    (step,) = trajectory.steps
    assert step.completion is not None
    assert step.completion.content == "three"
