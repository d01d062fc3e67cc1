"""Inspect sees nothing new: its log and its requests are the same with the hooks and without."""

from __future__ import annotations

import asyncio
import inspect
import re
from typing import Any

import pytest
from inspect_ai.agent import as_tool, react
from inspect_ai.log import EvalLog
from inspect_ai.model import GenerateConfig, Model
from inspect_ai.scorer import includes, model_graded_qa
from oracle import bodies
from shown import assert_shows_the_same

from rollout_trace.testing import Fault, Reply, ScriptedServer
from rollout_trace_inspect import record

from .harness import Evals, add, adding, adding_task, plain_model
from .test_agents import manager_and_helper

_TIMES = re.compile(r"(^|_)(time|timestamp|completed|created|started_at|completed_at|duration|start)$")
_IDS = re.compile(r"(^|_)(id|uuid)$")


def settled(value: Any, names: dict[str, str], key: str = "") -> Any:
    """A log's data without times, and with ids replaced by the order in which they come."""
    if isinstance(value, dict):
        return {name: settled(item, names, name) for name, item in value.items() if not _TIMES.search(name)}
    if isinstance(value, list):
        return [settled(item, names) for item in value if not _is_time(item)]
    return names.setdefault(value, f"id {len(names)}") if isinstance(value, str) and _IDS.search(key) else value


def _is_time(change: Any) -> bool:
    """Whether it is a change of the state, in an event, of how long something took."""
    return isinstance(change, dict) and str(change.get("path")).endswith("/time")


def content(log: EvalLog) -> Any:
    """What is in the samples of a log, and in its results."""
    found = log.model_dump(mode="json", include={"status", "results", "samples", "reductions"})
    for sample in found["samples"]:
        for event in sample["events"]:
            # The raw exchange has the server's ids, and the capture fields that were asked for.
            event.pop("call", None)
        sample.pop("attachments", None)
        sample.pop("events_data", None)
    return settled(found, {})


@pytest.mark.sees("unchanged", "the log, and the requests but for the capture fields")
@pytest.mark.parametrize("engine", [None, "vllm"])
def test_the_log_is_the_same(evals: Evals, engine: Any) -> None:
    asking = manager_and_helper("helper")

    def script(request: dict[str, Any]) -> Reply:
        reply: Reply = asking(request) if "tools" in request else Reply("GRADE: C")
        return reply

    def run(*, is_recorded: bool) -> tuple[EvalLog, list[dict[str, Any]]]:
        helper = react(name="helper", description="Adds.", prompt=None, tools=[add()], submit=False)
        solver = react(name="manager", prompt=None, tools=[as_tool(helper)], submit=False)
        task = adding_task(2, solver=solver, scorer=[includes(), model_graded_qa()])
        with ScriptedServer(script) as server:
            # Without logprobs the log of a recorded run has more: those that the server was asked for.
            model = plain_model(server, config=GenerateConfig(logprobs=True), memoize=False)
            if is_recorded:
                record(model, engine=engine)
            log = evals.run(task, model, max_samples=1)
            return log, bodies(server)

    (bare, asked), (recorded, asked_recorded) = run(is_recorded=False), run(is_recorded=True)
    assert asked == asked_recorded
    assert len(asked) == 10
    assert content(bare) == content(recorded)
    assert [sample["scores"]["includes"]["value"] for sample in content(bare)["samples"]] == ["I", "I"]


def test_an_error_is_the_same(evals: Evals) -> None:
    def run(*, is_recorded: bool) -> Any:
        with ScriptedServer(Fault(status=401)) as server:
            model = plain_model(server, memoize=False)
            if is_recorded:
                record(model, engine="vllm")
            log = evals.run(adding_task(), model, fail_on_error=False)
            assert log.samples is not None
            (sample,) = log.samples
            assert sample.error is not None
            return sample.error.message, [event.event for event in sample.events]

    assert run(is_recorded=False) == run(is_recorded=True)


@pytest.mark.sees("stream", "`generate(on_stream=)` 25 (25)")
@pytest.mark.skipif(
    "on_stream" not in inspect.signature(Model.generate).parameters, reason="this release shows no stream"
)
@pytest.mark.parametrize("api", ["openai", "openai-api/local"])
def test_events_of_a_stream_are_those_without_the_recorder(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_API_KEY", "none")

    def shown(engine: Any) -> list[Any]:
        seen: list[Any] = []

        async def listen(event: Any) -> None:
            seen.append((event.type, getattr(event, "text", None)))

        with ScriptedServer(adding(2)) as server:
            model: Any = plain_model(server, api=api, memoize=False)
            if engine is not None:
                record(model, engine=engine)
            asyncio.run(model.generate("Add.", tools=[add()], on_stream=listen))
        return seen

    assert_shows_the_same(shown, 25, 25)
