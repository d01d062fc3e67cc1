"""The integration that docs/integrations.md shows (its `class Hooks`, and `record(agent, engine="vllm")`): one file,
for a framework of its own, with a real client."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from myframework import Agent, Answer, Model
from openai import OpenAI

import rollout_trace as rt
from rollout_trace import integration
from rollout_trace.testing import Reply, ScriptedServer
from rollout_trace_myframework import record
from tests.clients.openai.oracle import told
from tests.house import foreign

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "integration"
SOURCE = (FOLDER / "rollout_trace_myframework.py").read_text()
PAGE = (ROOT / "docs" / "integrations.md").read_text()

ANSWERS: list[str | Reply] = [
    "Hm.",
    Reply(tool_calls=[("add", '{"text": "2 3"}'), ("helper", '{"text": "3 times 4"}')]),
    "twelve",
    "5 and 12",
]
"""The lead is asked twice, then its helper, then the lead again."""


def add(text: str) -> str:
    """Adds the numbers in a text."""
    return str(sum(map(int, text.split())))


def fail(text: str) -> str:
    """A tool that does not work."""
    raise LookupError(text)


@pytest.fixture
def client() -> Iterator[OpenAI]:
    with ScriptedServer(ANSWERS) as server, client_of(server) as one:
        yield one


def client_of(server: ScriptedServer) -> OpenAI:
    return OpenAI(base_url=server.base_url, api_key="none", max_retries=0)


def is_usable(answer: Answer) -> bool:
    return answer.content != "Hm."


def lead_of(model: Model) -> Agent:
    return Agent("lead", model, [add, Agent("helper", model)], accepts=is_usable)


def test_the_documentation_shows_the_file() -> None:
    assert f"```python\n{SOURCE}```\n" in PAGE


def test_the_entry_point_of_the_documentation_needs_no_framework() -> None:
    found = re.search(r'"rollout_trace\.integrations"\]\nmyframework = "(\w+):(\w+)"', PAGE)
    assert found is not None
    program = f"import sys; sys.modules['myframework'] = None; from {found[1]} import {found[2]}; print({found[2]})"
    done = subprocess.run([sys.executable, "-c", program], cwd=FOLDER, capture_output=True, text=True, check=True)
    assert done.stdout == "About(framework='myframework', tested=('1.0', '1.4'), module=None, start=None)\n"


def test_it_imports_the_contract_alone() -> None:
    assert foreign(FOLDER) == []
    imported = {alias.name for node in ast.walk(ast.parse(SOURCE)) if isinstance(node, ast.ImportFrom)
                for alias in node.names if node.module == "rollout_trace.integration"}  # fmt: skip
    assert imported <= set(integration.__all__)
    assert "rollout_trace" not in (FOLDER / "myframework.py").read_text()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_what_it_records(stream: bool, tmp_path: Path) -> None:
    with ScriptedServer(ANSWERS) as server, client_of(server) as client:
        agent = record(lead_of(Model(client, "m", stream)), engine="vllm")
        with rt.recording(tmp_path / "runs.jsonl"), rt.trajectory("task"):
            assert agent.run("Two sums.") == "5 and 12"
    own, child = rt.read(tmp_path / "runs.jsonl")
    steps = [*own.steps[:2], *child.steps, own.steps[2]]
    served = [told(request) for request in server.requests]
    assert [step.response_id for step in steps] == [answer_id for answer_id, _, _ in served]
    for step, (_, prompt, choices) in zip(steps, served, strict=True):
        assert step.prompt_token_ids is not None
        assert step.completion_token_ids is not None
        assert (step.token_source, step.token_issue, step.metadata) == ("engine", None, {"framework": "myframework"})
        assert (step.prompt_token_ids.tolist(), step.completion_token_ids.tolist()) == (prompt, choices[0].ids)
    assert [(step.agent, step.status) for step in steps] == [
        ("lead", "superseded"), ("lead", "ok"), ("helper", "ok"), ("lead", "ok"),
    ]  # fmt: skip
    assert (own.name, own.parent_id, own.status) == ("task", None, "completed")
    assert (child.name, child.parent_id, child.parent_step_id) == ("helper", own.id, own.steps[1].id)
    calls = own.steps[1].completion.tool_calls if own.steps[1].completion else ()
    assert [(run.name, run.tool_call_id, run.step_id, run.result) for run in own.tool_runs] == [
        ("add", calls[0].id, own.steps[1].id, "5"), ("helper", calls[1].id, own.steps[1].id, "twelve"),
    ]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_what_is_trained_on(stream: bool, client: OpenAI) -> None:
    """The two answers that the lead went on with, and neither the one it threw away nor those of a cache."""
    agent = record(lead_of(Model(client, "m", stream)), engine="vllm")
    with rt.trajectory() as first:
        agent.run("Two sums.")
    trained = [step for step in first.steps if step.status == "ok"]
    rows = first.sequences()
    (row,) = rows
    sampled = row.token_ids[row.loss_mask.astype(bool)].tolist()
    assert sampled == [token for step in trained for token in ids_of(step)]
    assert rows.report.left_out == {"superseded": (first.steps[0].id,)}
    with rt.trajectory() as again:
        assert agent.run("Two sums.") == "5 and 12"
    assert [(step.status, step.completion_token_ids) for step in again.steps] == [("cached", None)] * 2
    assert [run.step_id for run in again.tool_runs] == [again.steps[0].id] * 2
    assert list(again.sequences()) == []


def ids_of(step: rt.Step) -> list[int]:
    assert step.completion_token_ids is not None
    return list(step.completion_token_ids.tolist())


def test_a_run_that_fails_is_recorded_without_a_trajectory_around_it(tmp_path: Path) -> None:
    """The exception is the framework's own; the agent gets a trajectory."""
    with ScriptedServer([Reply(tool_calls=[("fail", '{"text": "no"}')])]) as server, client_of(server) as client:
        agent = record(Agent("lone", Model(rt.wrap_openai(client, engine="vllm"), "m"), [fail]))
        with rt.recording(tmp_path / "runs.jsonl"), pytest.raises(LookupError, match="no"):
            agent.run("Fail.")
    (own,) = rt.read(tmp_path / "runs.jsonl")
    assert (own.name, own.status, own.error and own.error.type) == ("lone", "failed", "LookupError")
    # The client was wrapped by its user, who had asked for ids.
    assert [(step.status, step.token_source) for step in own.steps] == [("ok", "engine")]
    assert [(run.name, run.error and run.error.type) for run in own.tool_runs] == [("fail", "LookupError")]
