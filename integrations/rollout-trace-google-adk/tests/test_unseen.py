"""What ADK and its users see of the recording: nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from google.adk.agents import ParallelAgent, SequentialAgent
from google.adk.agents.run_config import RunConfig
from google.adk.runners import InMemoryRunner
from google.adk.tools.agent_tool import AgentTool
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from oracle import bodies
from shown import assert_shows_the_same

import rollout_trace as rt
from rollout_trace.testing import Fault, ScriptedServer

from .harness import SSE, adding, agent_of, by_system, events_of, litellm, once, run, runner_of, session_of
from .test_agents import team, transferring

Make = Callable[[ScriptedServer], Any]

AGENTS: dict[str, tuple[Make, Any]] = {
    "loop": (lambda server: agent_of(litellm(server)), adding(2)),
    "vllm": (lambda server: agent_of(litellm(server, "hosted_vllm")), adding(2)),
    "transfer": (team, by_system(boss=transferring("first"), first=once("add", a=1, b=2))),
    "sequence": (
        lambda server: SequentialAgent(
            name="line", sub_agents=[agent_of(litellm(server), "one"), agent_of(litellm(server), "two")]
        ),
        by_system(one=once("add", a=1, b=2), two="two"),
    ),
    "parallel": (
        lambda server: ParallelAgent(name="fan", sub_agents=[agent_of(litellm(server), "one")]),
        by_system(one=once("add", a=1, b=2)),
    ),
    "tool": (
        lambda server: agent_of(litellm(server), "boss", tools=[AgentTool(agent_of(litellm(server), "helper"))]),
        by_system(boss=once("helper", request="Add."), helper=once("add", a=1, b=2)),
    ),
    "error": (lambda server: agent_of(litellm(server)), Fault(status=404, body={"error": {"message": "broken"}})),
    "tool error": (lambda server: agent_of(litellm(server)), lambda _, messages: once("fail", reason="x")(messages)),
}


async def all_of(runner: InMemoryRunner, config: RunConfig) -> tuple[list[str], list[str], str]:
    """The events of a run, those of its session afterwards, and the exception that it raised."""
    session = await session_of(runner)
    events, raised = [], ""
    try:
        async for event in events_of(runner, session=session, config=config):
            events.append(event.model_dump_json())
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
    kept = await runner.session_service.get_session(app_name=runner.app_name, user_id="user", session_id=session)
    assert kept is not None
    return events, [event.model_dump_json() for event in kept.events], raised


def without_ids(texts: list[str]) -> list[Any]:
    """Events without what differs from run to run: ids and times."""

    def cleaned(value: Any) -> Any:
        if isinstance(value, dict):
            left_out = ("id", "invocation_id", "timestamp", "time_to_first_token")
            return {name: cleaned(item) for name, item in value.items() if name not in left_out}
        return [cleaned(item) for item in value] if isinstance(value, list) else value

    return [cleaned(json.loads(text)) for text in texts]


@contextmanager
def spans() -> Iterator[Callable[[], list[ReadableSpan]]]:
    """What ADK's tracer exports in the block."""
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        provider = TracerProvider()
        trace.set_tracer_provider(provider)
    exporter = InMemorySpanExporter()
    processor = SimpleSpanProcessor(exporter)
    provider.add_span_processor(processor)
    try:
        yield lambda: list(exporter.get_finished_spans())
    finally:
        processor.shutdown()


def tree_of(found: list[ReadableSpan]) -> list[Any]:
    """Spans by name, each with its parent's name, its attributes' names, status and events; in the order they end."""
    names = {one.context.span_id: one.name for one in found if one.context is not None}
    return [
        (
            one.name,
            None if one.parent is None else names.get(one.parent.span_id, "?"),
            sorted(one.attributes or {}),
            one.status.status_code,
            [event.name for event in one.events],
        )
        for one in found
    ]


@pytest.mark.sees("unchanged")
@pytest.mark.parametrize("config", [RunConfig(), SSE], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", list(AGENTS))
def test_events_requests_sessions_and_traces_are_the_same(name: str, config: RunConfig) -> None:
    make, script = AGENTS[name]
    seen = []
    for is_recorded in (False, True):
        with ScriptedServer(script) as server, spans() as exported, rt.trajectory("task"):
            runner = runner_of(make(server), is_recorded=is_recorded)
            events, kept, raised = asyncio.run(all_of(runner, config))
            requests = bodies(server)
            headers = [sorted(key.lower() for key in record.headers) for record in server.requests]
            assert {"return_token_ids" in record.json for record in server.requests} == {is_recorded}
            seen.append((without_ids(events), without_ids(kept), raised, requests, headers, tree_of(exported())))
    assert all(len(part) > 0 for part in (seen[0][1], seen[0][3], seen[0][5]))
    for bare, with_hook in zip(*seen, strict=True):
        assert with_hook == bare


@pytest.mark.sees("stream", "`StreamingMode.SSE` 72 (72)")
@pytest.mark.parametrize("route", ["openai", "hosted_vllm"])
def test_events_of_a_stream_are_those_without_the_recorder(route: str) -> None:
    def shown(engine: Any) -> list[Any]:
        with ScriptedServer(adding(2)) as server:
            runner = runner_of(agent_of(litellm(server, route)), engine=engine, is_recorded=engine is not None)
            events = asyncio.run(run(runner, config=SSE))
        contents = [event.content.model_dump() if event.content else {} for event in events]
        return [(event.partial, said(content)) for event, content in zip(events, contents, strict=True)]

    def said(content: dict[str, Any]) -> list[Any]:
        calls = [part.get("function_call") or {} for part in content.get("parts") or ()]
        texts = [part.get("text") for part in content.get("parts") or ()]
        return [*texts, *((one.get("name"), one.get("args")) for one in calls)]

    assert_shows_the_same(shown, 72, 72)


def test_plugins_and_agents_of_a_recorded_runner_are_the_same() -> None:
    with ScriptedServer("hello") as server:
        agent = agent_of(litellm(server))
        runner = runner_of(agent)
        assert runner.plugin_manager.plugins == []
        assert (runner.agent, type(agent)) == (agent, type(agent_of(litellm(server))))


def test_what_runs_outside_is_not_touched() -> None:
    """In a process in which something is recorded."""
    with ScriptedServer(adding(1)) as server:
        runner_of(agent_of(litellm(server)))
        model = litellm(server)
        asyncio.run(all_of(runner_of(agent_of(model), is_recorded=False), RunConfig()))
        assert type(model).__module__ == "google.adk.models.lite_llm"
        assert not any(
            "__rollout_trace" in name for kind in (type(model), type(model.llm_client)) for name in vars(kind)
        )
    assert rt.orphans() == []
