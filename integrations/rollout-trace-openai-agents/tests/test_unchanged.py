"""What the framework sees with a recording is what it sees without one."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, RunHooks, Runner, SQLiteSession, TracingProcessor, set_trace_processors
from openai import APIStatusError
from oracle import Recorded, bodies
from shown import assert_shows_the_same

import rollout_trace as rt
from rollout_trace.testing import Fault, Reply, ScriptedServer
from rollout_trace_openai_agents import record, runner, runs

from .harness import add, adding, agent_of, calling, chat_model, fail, responses_model, results, run, run_sync, tools_of

_OF_ONE_RUN = re.compile(
    r"0x[0-9a-f]+|(?:trace|span|group|chatcmpl|call|resp|msg|chatcmpl-tool|fc|rs)[_-][0-9a-zA-Z-]+|\d{9,}(?:\.\d+)?"
    r"|\d{4}-\d\d-\d\dT[\d:.+]+"
)


def plain(value: Any) -> str:
    """A value as text, with the ids of one run numbered, and without times and ports."""
    numbers: dict[str, str] = {}
    text = re.sub(r"127\.0\.0\.1:\d+", "HOST", json.dumps(value, default=repr, sort_keys=True))
    return _OF_ONE_RUN.sub(lambda found: numbers.setdefault(found[0], f"#{len(numbers)}"), text)


class Traces(TracingProcessor):
    """All that the SDK's own traces hold."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    def on_trace_start(self, trace: Any) -> None:
        self.found.append(("trace starts", trace.export()))

    def on_trace_end(self, trace: Any) -> None:
        self.found.append(("trace ends", trace.export()))

    def on_span_start(self, span: Any) -> None:
        self.found.append(("span starts", span.span_data.type))

    def on_span_end(self, span: Any) -> None:
        exported = {name: value for name, value in span.export().items() if not name.endswith("_at")}
        self.found.append(("span ends", exported))

    def shutdown(self) -> None: ...

    def force_flush(self) -> None: ...


class Hooks(RunHooks[Any]):
    """All that the SDK's hooks are called with."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    async def on_llm_start(self, context: Any, agent: Any, system_prompt: Any, input_items: Any) -> None:
        self.found.append(("llm starts", agent.name, system_prompt, copy.deepcopy(input_items)))

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        self.found.append(("llm ends", agent.name, response.output, response.usage))

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        self.found.append(("agent starts", agent.name))

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        self.found.append(("agent ends", agent.name, output))

    async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
        self.found.append(("handoff", from_agent.name, to_agent.name))

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        self.found.append(("tool starts", agent.name, tool.name, context.tool_arguments))

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
        self.found.append(("tool ends", agent.name, tool.name, result))


def script(request: dict[str, Any], messages: list[dict[str, Any]]) -> Reply:
    offered, done = tools_of(request), results(messages)
    if "transfer_to_second" in offered:
        return calling("transfer_to_second")
    if "ask" in offered and len(done) < 3:  # the first is that of the handoff
        return calling("ask", input="?") if len(done) == 1 else calling("fail", reason="no")
    return Reply("Answered.") if done else calling("add", a=1, b=2)


async def everything(agent: Agent[Any], is_streamed: bool, session: SQLiteSession) -> dict[str, Any]:
    """Events, result, hooks, session and traces of one run."""
    hooks, traces, events = Hooks(), Traces(), []
    set_trace_processors([traces])
    if is_streamed:
        result: Any = Runner.run_streamed(agent, "Ask.", hooks=hooks, session=session)
        async for event in result.stream_events():
            events.append((event.type, getattr(event, "name", None), plain(getattr(event, "data", None))))
    else:
        result = await Runner.run(agent, "Ask.", hooks=hooks, session=session)
    return {
        "events": events,
        "input": result.to_input_list(),
        "items": [(item.type, item.raw_item) for item in result.new_items],
        "responses": [one.output for one in result.raw_responses],
        "last": result.last_agent.name,
        "usage": result.context_wrapper.usage,
        "hooks": hooks.found,
        "traces": traces.found,
        "session": await session.get_items(),
    }


@pytest.mark.sees("unchanged")
@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("make_model", [chat_model, responses_model])
def test_everything_is_as_without_it(recorded: Recorded, make_model: Any, is_streamed: bool) -> None:
    found, requests = [], []
    for is_recorded in (False, True):
        with ScriptedServer(script) as server:
            model = make_model(server)
            helper = agent_of(model, "helper", tools=[add])
            second = agent_of(model, "second", tools=[helper.as_tool("ask", "Asks."), fail])
            first = agent_of(model, "first", handoffs=[second], tools=[add])
            if is_recorded:
                record(first)
            session = SQLiteSession("one")
            with rt.trajectory():
                found.append(asyncio.run(everything(first, is_streamed, session)))
            session.close()
            requests.append(bodies(server))
    for name, value in found[0].items():
        assert plain(found[1][name]) == plain(value), name
    assert len(found[0]["hooks"]) > 13
    assert plain(requests[1]) == plain(requests[0])


def litellm_model(server: ScriptedServer) -> Any:
    from agents.extensions.models.litellm_model import LitellmModel

    return LitellmModel("openai/scripted", base_url=server.base_url, api_key="none")


@pytest.mark.sees("stream", "`run_streamed` 95 (95), Responses 103 (103), `LitellmModel` 95 (161)")
@pytest.mark.parametrize(
    ("make_model", "counts"),
    [(chat_model, (95, 95)), (responses_model, (103, 103)), (litellm_model, (95, 161))],
)
def test_events_of_a_stream_are_those_without_the_recorder(make_model: Any, counts: tuple[int, int]) -> None:
    def shown(engine: Any) -> list[Any]:
        async def events(agent: Agent[Any]) -> list[Any]:
            result = Runner.run_streamed(agent, "Ask.")
            return [(event.type, getattr(event, "name", None), said(event)) async for event in result.stream_events()]

        def said(event: Any) -> Any:
            data = getattr(event, "data", None)
            return getattr(data, "type", None), getattr(data, "delta", None)

        with ScriptedServer(adding(2)) as server:
            agent = agent_of(make_model(server), tools=[add])
            return asyncio.run(events(agent if engine is None else record(agent, engine=engine)))

    assert_shows_the_same(shown, *counts)


def test_the_engines_fields_alone_are_added_to_requests() -> None:
    asked = []
    for is_recorded in (False, True):
        with ScriptedServer(script) as server:
            agent = agent_of(chat_model(server), tools=[add])
            with rt.trajectory():
                asyncio.run(Runner.run(record(agent, engine="vllm") if is_recorded else agent, "Add."))
            asked.append(bodies(server))
    assert plain(asked[0]) == plain(asked[1])


def test_objects_are_as_before() -> None:
    """Their classes have the same names; agents and models can be copied, and agents pickled."""
    agent = Agent(name="adder", model="gpt-x")
    before = repr(agent)
    assert record(agent) is record(agent) is agent
    assert repr(agent) == before
    assert type(agent).__name__ == "Agent"
    assert isinstance(agent, Agent)
    assert vars(agent) == vars(Agent(name="adder", model="gpt-x"))
    for other in (copy.copy(agent), copy.deepcopy(agent), pickle.loads(pickle.dumps(agent))):
        assert other == agent
        assert type(other) is type(agent)


@pytest.mark.parametrize("is_recorded", [True, False])
def test_our_frames_in_a_traceback_hold_no_arguments_of_the_run(is_recorded: bool) -> None:
    """The SDK clears them from its own frames, where an error must not hold data."""
    ours = {runner.__file__, runs.__file__}
    with ScriptedServer("Never.", faults={1: Fault(status=400), 2: Fault(status=400)}) as server:
        agent = agent_of(chat_model(server))
        if is_recorded:
            record(agent)
        for call in (run_sync, lambda agent, question: asyncio.run(run(agent, question))):
            with pytest.raises(APIStatusError) as caught:
                call(agent, "A secret.")
            frames = [frame for frame, _ in traceback.walk_tb(caught.tb) if frame.f_code.co_filename in ours]
            assert frames
            assert not any("A secret." in repr(frame.f_locals) for frame in frames)


def test_an_agent_that_is_sent_to_another_process_is_recorded_there(tmp_path: Path) -> None:
    code = """
import asyncio, pickle, sys
import rollout_trace as rt
from agents import OpenAIChatCompletionsModel, RunConfig, Runner, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)
with open(sys.argv[1], "rb") as file:
    agent = pickle.load(file)
client = AsyncOpenAI(base_url=sys.argv[2], api_key="none")
config = RunConfig(model=OpenAIChatCompletionsModel("scripted", client))
with rt.trajectory() as trajectory:
    asyncio.run(Runner.run(agent, "Hello.", run_config=config))
print([step.agent for step in trajectory.steps])
"""
    path = tmp_path / "agent.pickle"
    path.write_bytes(pickle.dumps(record(Agent(name="sent", model="gpt-x"), engine="vllm")))
    with ScriptedServer("Hello.") as server:
        arguments = [sys.executable, "-c", code, str(path), server.base_url]
        done = subprocess.run(arguments, check=True, capture_output=True, text=True)
    assert done.stdout == "['sent']\n"
