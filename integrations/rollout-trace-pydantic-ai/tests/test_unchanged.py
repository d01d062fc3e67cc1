"""The framework sees nothing new: results, messages, events, requests and traces are those without the hook."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from oracle import Recorded, bodies
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.capabilities import Instrumentation
from pydantic_ai.messages import ModelMessagesTypeAdapter
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.instrumented import InstrumentationSettings
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from shown import assert_shows_the_same

import rollout_trace as rt
from rollout_trace.testing import Fault, Reply, ScriptedServer
from rollout_trace_pydantic_ai import RolloutCapability, record

from .harness import WAYS, add, adding, agent_of, call, results, with_model

_OF_ONE_RUN = re.compile(
    r"pyd_ai_[0-9a-f]{32}|datetime\.\w+\([^)]*\)|\"P\w*T[\d.]+S\"|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    r"|\d{4}-\d\d-\d\d[T ][\d:.]+(?:Z|\+00:00)?"
    r"|127\.0\.0\.1:\d+|\"server.port\": \d+|\"[^\"]*(?:time|duration)[^\"]*\": [\d.e-]+| at 0x[0-9a-f]+"
)


def told(value: Any) -> str:
    """A value as text, without ids and times of one run."""
    return _OF_ONE_RUN.sub("~", value if isinstance(value, str) else json.dumps(value, default=repr, sort_keys=True))


def script(request: dict[str, Any]) -> Reply:
    """Two tools, then an answer that a validator refuses, then a good one."""
    done = len(results(request))
    if done < 2:
        return Reply(None, reasoning="hm", tool_calls=[call("add", a=done, b=2), call("ask", question="Well?")])
    refused = any("again" in str(message["content"]) for message in request["messages"])
    return Reply("good" if refused else "bad")


def inner_script(request: dict[str, Any]) -> Reply:
    return Reply("inner answers") if request["messages"][0]["content"] == "inner" else script(request)


async def scenario(model: Any, way: Any, hook: str) -> dict[str, Any]:
    """All that a user sees of one run, and of an agent inside it."""
    spans = InMemorySpanExporter()
    tracing = TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(spans))
    settings = InstrumentationSettings(tracer_provider=tracing)
    capabilities: list[Any] = [Instrumentation(settings=settings)]
    inner = Agent(model, name="inner", instructions="inner", capabilities=capabilities)
    capabilities = [*capabilities, *([RolloutCapability()] if hook == "capability" else [])]
    agent: Agent[Any, Any] = Agent(
        FallbackModel(model, model),
        name="outer",
        tools=[add],
        retries=3,
        capabilities=capabilities,
    )
    seen: list[Any] = []

    @agent.tool_plain
    async def ask(question: str) -> str:
        """Asks."""
        return (await inner.run(question)).output

    @agent.output_validator
    def check(output: str) -> str:
        if output == "bad" and way.__name__ != "run_stream":
            raise ModelRetry("again")
        return output

    @agent.instructions
    def note(ctx: Any) -> str:
        seen.append([ctx.run_step, type(ctx.model).__name__, told(ctx.messages)])
        return "outer"

    if hook == "record":
        record(agent)
    with rt.trajectory():
        async with agent.iter("Add.") as steps:
            nodes = [told(repr(node)) async for node in steps]
        output = await way(agent, "Add.")
    assert steps.result is not None
    return {
        "output": output,
        "nodes": nodes,
        "messages": told(ModelMessagesTypeAdapter.dump_json(steps.result.all_messages()).decode()),
        "usage": told(dataclasses.asdict(steps.result.usage)),
        "seen": seen,
        # Tools run at once: which of their spans ends first differs from run to run.
        "spans": sorted(
            told(
                [
                    one.name,
                    dict(one.attributes or {}),
                    [event.name for event in one.events],
                    one.status.status_code.name,
                ]
            )
            for one in spans.get_finished_spans()
        ),
        "parents": _parents(spans),
    }


def _parents(spans: InMemorySpanExporter) -> list[tuple[str, str | None]]:
    names = {one.context.span_id: one.name for one in spans.get_finished_spans() if one.context}
    found = [(one.name, names.get(one.parent.span_id) if one.parent else None) for one in spans.get_finished_spans()]
    return sorted(found, key=str)


@pytest.mark.sees("unchanged")
@pytest.mark.parametrize("hook", ["record", "capability"])
@pytest.mark.parametrize("way", WAYS)
def test_all_that_a_run_shows(way: Any, hook: str, recorded: Recorded) -> None:
    found = []
    for used in ("none", hook):
        faults = {1: Fault(status=500)}
        with ScriptedServer(inner_script, faults=faults) as server:
            shown = with_model(server, lambda model, used=used: scenario(model, way, used))  # type: ignore[misc]
        found.append((shown, bodies(server), [sorted(one.headers) for one in server.requests]))
    (bare, *sent), (hooked, *sent_with_hook) = found
    assert sent_with_hook == sent
    for name, value in bare.items():
        assert hooked[name] == value, name
    assert len(bare["spans"]) > 10


def test_events(recorded: Recorded) -> None:
    """Streams, with the capture fields asked for: by the hook, or by the user."""

    async def events(model: Any, hook: bool) -> list[str]:
        names = ("logprobs", "return_token_ids", "return_weight_versions")
        asked: Any = {} if hook else {"extra_body": dict.fromkeys(names, True)}
        agent: Agent[Any, Any] = Agent(model, name="outer", tools=[add], model_settings=asked)
        if hook:
            record(agent, engine="vllm")
        seen: list[str] = []

        async def handler(_: Any, stream: Any) -> None:
            seen.extend([told(repr(event)) async for event in stream])

        await agent.run("Add.", event_stream_handler=handler)
        async with agent.run_stream_events("Add.") as stream:
            seen.extend([told(repr(event)) async for event in stream])
        return seen

    def adds(request: dict[str, Any]) -> Reply:
        return Reply("done") if results(request) else Reply(None, tool_calls=[call("add", a=1, b=2)])

    found = []
    for hook in (False, True):
        with ScriptedServer(adds) as server:
            seen = with_model(server, lambda model, hook=hook: events(model, hook))  # type: ignore[misc]
        found.append((seen, bodies(server, "none")))
    assert found[0][1] == found[1][1]
    assert found[0][0] == found[1][0]
    assert len(found[0][0]) > 10


async def of_events(agent: Any) -> list[Any]:
    async with agent.run_stream_events("Add.") as stream:
        return [type(event).__name__ async for event in stream]


async def of_texts(agent: Any) -> list[Any]:
    async with agent.run_stream("Add.") as stream:
        return [text async for text in stream.stream_text(delta=True, debounce_by=None)]


@pytest.mark.sees("stream", "`run_stream_events` 54 (54), `stream_text` 17 (17)")
@pytest.mark.parametrize(("read", "counts"), [(of_events, (54, 54)), (of_texts, (17, 17))])
@pytest.mark.parametrize("kind", [OpenAIChatModel, OpenAIResponsesModel])
def test_events_of_a_stream_are_those_without_the_recorder(read: Any, counts: tuple[int, int], kind: Any) -> None:
    def shown(engine: Any) -> list[Any]:
        def scenario(model: Any) -> Any:
            return read(agent_of(model, engine=engine, is_recorded=engine is not None))

        with ScriptedServer(lambda request, messages: adding(2)({"messages": messages})) as server:
            found: list[Any] = with_model(server, scenario, kind)
        return found

    assert_shows_the_same(shown, *counts)
