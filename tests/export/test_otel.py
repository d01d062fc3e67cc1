"""OpenTelemetry spans through the SDK: in memory, and as bytes that a collector would get."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.export import ExportReport
from rollout_trace.export._otel import FLUSHED
from tests.amount import amount
from tests.consumers import recorded
from tests.strategies import PROFILE, trajectories


def sent(runs: Any, **options: Any) -> list[ReadableSpan]:
    memory, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    count = export.otel(runs, provider=provider, report=options.pop("report", ExportReport()), **options)
    spans = list(memory.get_finished_spans())
    assert len(spans) == count
    return spans


def of(spans: list[ReadableSpan], operation: str) -> list[ReadableSpan]:
    return [span for span in spans if (span.attributes or {})["gen_ai.operation.name"] == operation]


def nanoseconds(moment: datetime | None) -> int:
    assert moment is not None
    return round(moment.timestamp() * 1_000_000) * 1000


def test_a_trace_for_each_run_with_its_calls_and_tools() -> None:
    runs = recorded.tool_agent()
    spans = sent(runs, tokens=True)
    agents, calls, tools = (of(spans, name) for name in ("invoke_agent", "chat", "execute_tool"))
    assert len({span.context.trace_id for span in spans if span.context}) == len(agents) == 6
    assert (len(calls), len(tools)) == (18, 12)
    by_id = {step.id: step for run in runs for step in run.steps}
    span_of = {}
    for span in calls:
        found = dict(span.attributes or {})
        step = by_id[str(found["rollout_trace.step.id"])]
        span_of[step.id] = span
        assert found["prompt_token_ids"] == tuple(step.prompt_token_ids.tolist())  # type: ignore[union-attr]
        assert found["response_token_ids"] == tuple(step.completion_token_ids.tolist())  # type: ignore[union-attr]
        assert np.array_equal(np.array(found["rollout_trace.logprobs"], np.float32), step.logprobs)  # type: ignore[arg-type]
        assert found["gen_ai.usage.input_tokens"] == step.usage.input  # type: ignore[union-attr]
        assert found["gen_ai.request.model"] == "m"
        assert span.name == "chat m"
        assert span.start_time == nanoseconds(step.started_at)
        assert span.end_time == span.start_time + round((step.latency or 0) * 1e9)
    for span in tools:
        assert span.parent is not None
        assert span.parent.span_id in {one.context.span_id for one in span_of.values() if one.context}
    first = dict(calls[0].attributes or {})
    message = json.loads(str(first["gen_ai.output.messages"]))[0]
    assert message["parts"][-1]["name"] == "add"
    assert message["parts"][-1]["arguments"] == {"a": 1, "b": 2}
    assert message["finish_reason"] == "tool_calls"
    assert json.loads(str(first["gen_ai.input.messages"]))[0]["parts"][0]["type"] == "text"
    (event,) = agents[0].events
    assert event.name == "gen_ai.evaluation.result"
    assert dict(event.attributes or {}) == {"gen_ai.evaluation.name": "reward", "gen_ai.evaluation.score.value": 1.0}


def test_without_content_there_are_no_texts_and_without_tokens_no_ids() -> None:
    for span in sent(recorded.tool_agent()[:1], content=False):
        names = " ".join(span.attributes or {})
        assert "messages" not in names
        assert "arguments" not in names
        assert "token_ids" not in names


def test_sub_agents_are_below_their_parents() -> None:
    spans = sent(recorded.two_agents())
    agents = of(spans, "invoke_agent")
    roots = [span for span in agents if span.parent is None]
    assert [span.name for span in roots] == ["invoke_agent coordinator"] * 2
    assert sorted(span.parent.span_id for span in agents if span.parent) == sorted(
        root.context.span_id for root in roots for _ in range(2) if root.context
    )


def test_failures_have_an_error() -> None:
    spans = sent(recorded.failed_steps())
    failed = [span for span in spans if not span.status.is_ok and span.status.status_code.name == "ERROR"]
    assert sorted(str((span.attributes or {})["error.type"]) for span in failed if span.name.startswith("chat")) == [
        "InternalServerError", "abandoned",
    ]  # fmt: skip
    reasons = [(span.attributes or {})["gen_ai.response.finish_reasons"] for span in of(spans, "chat")]
    assert reasons == [("stop",), ("error",), ("error",), ("length",), ("stop",), ("stop",), ("stop",), ("stop",)]
    # An answer from a cache has the usage of the call that filled it.
    counted = ["gen_ai.usage.input_tokens" in (span.attributes or {}) for span in of(spans, "chat")]
    assert counted == [True, False, False, True, True, True, False, True]
    (agent,) = of(spans, "invoke_agent")
    assert (agent.attributes or {})["error.type"] == "RuntimeError"


def test_tools_and_images_have_the_form_of_the_conventions() -> None:
    """Their JSON schemas: a definition has its name beside its type, and data in the message is no address."""
    first, *_ = of(sent(recorded.tool_agent()[:1]), "chat")
    (tool,) = json.loads(str((first.attributes or {})["gen_ai.tool.definitions"]))
    assert (tool["type"], tool["name"]) == ("function", "add")
    assert tool["parameters"]["required"] == ["a", "b"]
    spans = of(sent(recorded.images()), "chat")
    messages = [one for span in spans for one in json.loads(str((span.attributes or {})["gen_ai.input.messages"]))]
    blob = next(part for message in messages for part in message["parts"] if part["type"] == "blob")
    kind, data = recorded.IMAGE.removeprefix("data:").split(";base64,")
    assert blob == {"type": "blob", "modality": "image", "mime_type": kind, "content": data}
    assert not any(part.get("uri", "").startswith("data:") for message in messages for part in message["parts"])


def test_calls_have_the_names_of_the_conventions() -> None:
    (span, *_) = of(sent(recorded.completions()), "text_completion")
    assert span.name == "text_completion m"
    call = rt.Step(
        id="a", call_id="a", protocol="openai.responses", sampling={"previous_response_id": "r", "n": 2},
        usage=rt.Usage(input=5, output=1, cache_write=3), time_to_first_token=0.25,
    )  # fmt: skip
    gemini = rt.Step(id="b", call_id="b", protocol="google.generate_content", model="g", sampling={"n": 1})
    vllm = rt.Step(id="c", call_id="c", protocol="vllm.generate", sampling={"sampling_params": {"temperature": 0.5}})
    agent, *calls = sorted(
        sent(rt.Trajectory(steps=[call, gemini, vllm])), key=lambda one: one.kind != SpanKind.INTERNAL
    )
    found: list[Any] = [dict(one.attributes or {}) for one in calls]
    assert found[0]["gen_ai.request.previous_response.id"] == "r"
    assert found[0]["gen_ai.request.choice.count"] == 2
    assert found[0]["gen_ai.usage.cache_write.input_tokens"] == 3
    assert found[0]["gen_ai.response.time_to_first_chunk"] == 0.25
    assert calls[1].name == "generate_content g"
    assert "gen_ai.request.choice.count" not in found[1]
    assert found[2]["gen_ai.request.temperature"] == 0.5
    # It names an agent, not one of its runs.
    assert "gen_ai.agent.id" not in (agent.attributes or {})


class Threads(InMemorySpanExporter):
    """Keeps the threads in which spans are sent."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()

    def export(self, spans: Any) -> Any:
        self.threads.add(threading.get_ident())
        return super().export(spans)


def test_no_span_waits_in_a_queue_that_is_full() -> None:
    """The queue of a ``BatchSpanProcessor`` drops what does not fit: here its own thread never finds it filled."""
    memory, provider = Threads(), TracerProvider()
    size = 2 * FLUSHED
    provider.add_span_processor(BatchSpanProcessor(memory, size, 1e9, size))
    steps = [rt.Step(id=f"{at}", call_id=f"{at}") for at in range(2 * size)]
    assert export.otel(rt.Trajectory(steps=steps), provider=provider) == len(steps) + 1
    assert memory.threads == {threading.get_ident()}
    provider.shutdown()
    assert len(memory.get_finished_spans()) == len(steps) + 1


def test_a_span_that_is_current_is_no_parent() -> None:
    provider = TracerProvider()
    with provider.get_tracer("mine").start_as_current_span("mine"):
        spans = sent(recorded.completions())
    assert [span.parent for span in of(spans, "invoke_agent")] == [None]


def test_parents_in_a_circle_end() -> None:
    one, other = (rt.Trajectory(id=name, episode_id="e", parent_id=parent) for name, parent in (("a", "b"), ("b", "a")))
    assert len(sent([one, other])) == 2


@settings(PROFILE, max_examples=amount(5, 12, 250))
@given(runs=st.lists(trajectories(), max_size=3))
def test_every_trajectory_is_taken(runs: list[rt.Trajectory]) -> None:
    for tokens in (True, False):
        spans = sent(runs, tokens=tokens)
        assert len(spans) == sum(1 + len(run.steps) + len(run.tool_runs) for run in runs)


@pytest.fixture
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """A server that takes OTLP over HTTP, as Langfuse's and LangSmith's do."""
    requests: list[ExportTraceServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            requests.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/traces", requests
        server.shutdown()
        thread.join()


def test_a_collector_gets_the_spans(collector: tuple[str, list[ExportTraceServiceRequest]]) -> None:
    address, requests = collector
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(address)))
    (run,) = recorded.bad_arguments()
    run.steps[0].metadata = {"half": "\ud83d"}
    run.name = "half \ud83d"
    count = export.otel(run, provider=provider, tokens=True, report=ExportReport())
    provider.shutdown()
    spans = [
        span for one in requests for part in one.resource_spans for scope in part.scope_spans for span in scope.spans
    ]
    assert len(spans) == count == 3
    names = {item.key for span in spans for item in span.attributes}
    assert {"prompt_token_ids", "gen_ai.input.messages", "session.id"} <= names
