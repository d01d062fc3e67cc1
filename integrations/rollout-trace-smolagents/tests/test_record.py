"""``record`` and ``unrecord``, models whose bytes are not seen, and the package without its framework."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from smolagents import ChatMessage, ChatMessageStreamDelta, MessageRole, Model, OpenAIModel, TokenUsage
from smolagents.models import ChatMessageToolCall, ChatMessageToolCallFunction

import rollout_trace as rt
from rollout_trace.testing import Reply
from rollout_trace_smolagents import record, unrecord

from .conftest import Serve, assert_served, code_agent, model_at, read_back, tool_agent

DONE = Reply(tool_calls=[("final_answer", '{"answer": "four"}')])


class Spoken(Model):
    """A model of a user's own, without a client."""

    def __init__(self, answers: list[str | Exception], **options: Any) -> None:
        super().__init__(model_id="spoken", **options)
        self.answers: Iterator[Any] = iter(answers)

    def generate(self, messages: Any, **options: Any) -> ChatMessage:
        self._prepare_completion_kwargs(messages, api_key="secret", temperature=0.5, **options)
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        call = ChatMessageToolCall(ChatMessageToolCallFunction(answer, "final_answer"), "call_a", "function")
        return ChatMessage(MessageRole.ASSISTANT, None, [call], token_usage=TokenUsage(7, 3))


class Streamed(Spoken):
    """The same, in pieces."""

    def generate_stream(self, messages: Any, **options: Any) -> Iterator[ChatMessageStreamDelta]:
        self._prepare_completion_kwargs(messages, **options)
        for piece in next(self.answers):
            yield ChatMessageStreamDelta(piece)
        yield ChatMessageStreamDelta("", token_usage=TokenUsage(7, 3))


def test_recording_again_changes_nothing(serve: Serve) -> None:
    server = serve([DONE])
    agent = tool_agent(model_at(server))
    kind = type(agent)
    assert record(record(agent, engine="vllm"), engine="vllm") is agent
    assert type(agent).__mro__[1] is kind
    assert type(agent).__name__ == kind.__name__
    with rt.trajectory() as trajectory:
        agent.run("go")
    assert_served(trajectory.steps, server.requests)
    assert len(trajectory.tool_runs) == 1


def test_an_engine_with_options_is_asked_for_them(serve: Serve) -> None:
    """Also by a copy of the agent that was pickled."""
    server = serve([DONE])
    agent = record(tool_agent(model_at(server)), engine=rt.Engine("vllm", prompt_logprobs=0))
    with rt.trajectory():
        agent.run("go")
    assert {request.json.get("prompt_logprobs") for request in server.requests} == {0}
    wished = rt.Engine("vllm", prompt_logprobs=0)
    assert pickle.loads(pickle.dumps(wished)) == wished


def test_unrecord_undoes_record(serve: Serve) -> None:
    server = serve(["<code>\nfinal_answer('four')\n</code>"] * 2)
    agent = code_agent(
        model_at(server), managed_agents=[tool_agent(model_at(server), name="other", description="Adds.")]
    )
    family = [agent, *agent.managed_agents.values()]
    parts = [*family, *(one.model for one in family), *(one.model.client for one in family), agent.python_executor]
    kinds = [type(part) for part in parts]
    record(agent, engine="vllm")
    assert all(type(part) is not kind for part, kind in zip(parts, kinds, strict=True))
    assert unrecord(agent) is agent
    assert [type(part) for part in parts] == kinds
    with rt.trajectory() as trajectory:
        assert agent.run("go") == "four"
    assert trajectory.steps == trajectory.tool_runs == []
    assert rt.orphans() == []


def test_a_client_that_the_user_wrapped_keeps_its_settings(serve: Serve) -> None:
    server = serve([DONE, DONE])
    model = model_at(server)
    rt.wrap_openai(model.client, engine="vllm", keep_bytes=True)
    agent = record(tool_agent(model))
    with rt.trajectory() as trajectory:
        agent.run("go")
    assert_served(trajectory.steps, server.requests)
    assert trajectory.steps[0].request_bytes is not None
    unrecord(agent)
    with rt.trajectory() as trajectory:
        model.client.chat.completions.with_raw_response.create(model="scripted", messages=[])
    assert len(trajectory.steps) == 1


@pytest.mark.parametrize("of_agent", [True, False], ids=["the agent's engine", "the process's"])
def test_an_engine_in_an_instrumented_process(serve: Serve, of_agent: bool) -> None:
    server = serve([DONE])
    with rt.instrument(engine=None if of_agent else "vllm"):
        agent = record(tool_agent(model_at(server)), engine="vllm" if of_agent else None)
        with rt.trajectory() as trajectory:
            agent.run("go")
    assert_served(trajectory.steps, server.requests)


def test_the_last_engine_counts(serve: Serve) -> None:
    server = serve([DONE, DONE])
    model = model_at(server)
    record(tool_agent(model))
    agent = record(tool_agent(model), engine="vllm")
    record(tool_agent(model), engine="sglang")
    record(agent, engine="vllm")
    with rt.trajectory() as trajectory:
        agent.run("go")
        agent.run("go")
    assert_served(trajectory.steps, server.requests)


def test_what_is_put_in_later_is_recorded(serve: Serve) -> None:
    servers = serve([Reply(tool_calls=[("other", '{"task": "2 + 2"}')]), DONE]), serve([DONE])
    agent = record(tool_agent(Spoken([])), engine="vllm")
    agent.model = model_at(servers[0])
    other = tool_agent(model_at(servers[1]), name="other", description="Adds.")
    other.inputs = {"task": {"type": "string", "description": "What."}}
    other.output_type = "string"
    agent.managed_agents["other"] = other
    with rt.trajectory() as trajectory:
        assert agent.run("go") == "four"
    assert_served(trajectory.steps, servers[0].requests)
    assert [run.name for run in trajectory.tool_runs] == ["other", "final_answer"]


def test_a_copy_of_an_agent_runs_itself(serve: Serve) -> None:
    agent = record(tool_agent(model_at(serve([DONE]))), engine="vllm")
    copied = copy.copy(agent)
    copied.model = model_at(server := serve([DONE]))
    with rt.trajectory() as trajectory:
        assert copied.run("go") == "four"
    assert_served(trajectory.steps, server.requests)


def test_a_recorded_model_can_be_pickled() -> None:
    """It could be before; where it arrives, it is recorded again."""
    agent = tool_agent(Spoken([]))
    agent.model.answers = ["four"]
    record(agent, engine="vllm")
    back = pickle.loads(pickle.dumps(agent.model))
    assert type(back) is type(agent.model)
    assert (back.model_id, back.answers) == ("spoken", ["four"])


@pytest.mark.sees("other models")
def test_a_model_without_a_client_is_recorded_from_what_smolagents_says(tmp_path: Path) -> None:
    agent = record(tool_agent(Spoken(['{"answer": "four"}'])))
    with rt.recording(tmp_path / "runs.jsonl"), rt.trajectory("solver") as trajectory:
        assert agent.run("go") == "four"
    [step] = trajectory.steps
    assert (step.status, step.agent, step.model) == ("ok", "solver", "spoken")
    assert step.token_issue is not None
    assert step.token_issue.code == "not_on_wire"
    assert step.completion_token_ids is None
    assert step.completion is not None
    [call] = step.completion.tool_calls
    assert (call.id, call.name, call.arguments) == ("call_a", "final_answer", '{"answer": "four"}')
    assert step.usage == rt.Usage(input=7, output=3)
    assert [message["role"] for message in step.messages or ()] == ["system", "user"]
    assert [one["function"]["name"] for one in step.tools or ()] == ["add", "final_answer"]
    assert step.sampling == {
        "stop": ["Observation:", "Calling tools:"],
        "temperature": 0.5,
        "tool_choice": "required",
    }
    assert trajectory.tool_runs[0].step_id == step.id
    assert read_back(tmp_path / "runs.jsonl") == [trajectory]
    assert "secret" not in (tmp_path / "runs.jsonl").read_text()


def test_a_model_without_a_client_that_fails(tmp_path: Path) -> None:
    agent = record(tool_agent(Spoken([ValueError("no")])))
    with rt.trajectory() as trajectory, pytest.raises(Exception, match="no"):
        agent.run("go")
    [step] = trajectory.steps
    assert (step.status, step.error and step.error.type) == ("error", "ValueError")
    assert [message["role"] for message in step.messages or ()] == ["system", "user"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_stream_without_a_client() -> None:
    answer = "<code>\nfinal_answer(4)\n</code>"
    agent = record(code_agent(Streamed([answer, answer]), stream_outputs=True))
    with rt.trajectory() as trajectory:
        assert agent.run("go") == 4
        run = agent.run("go", stream=True)
        assert [next(run).content for _ in range(6)] == list("<code>")
        with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
            run.close()
        del run
    whole, closed = trajectory.steps
    assert (whole.status, whole.completion and whole.completion.content) == ("ok", answer)
    assert whole.usage == rt.Usage(input=7, output=3)
    assert (closed.status, closed.completion and closed.completion.content) == ("abandoned", "<code>")


def test_only_agents_are_recorded() -> None:
    with pytest.raises(TypeError, match=r"needs an agent of smolagents.*got <.*Spoken"):
        record(Spoken([]))
    with pytest.raises(ValueError, match="nonsense"):
        record(tool_agent(OpenAIModel("m", api_key="none")), engine="nonsense")


def test_smolagents_is_imported_when_it_is_needed() -> None:
    check = (
        "import sys, rollout_trace as rt, rollout_trace_smolagents\n"
        "[mine] = [one for one in rt.integrations() if one.name == 'smolagents']\n"
        "assert 'smolagents' not in sys.modules\n"
        "assert mine.is_tested, mine\n"
        "sys.modules['smolagents'] = None\n"
        "try:\n"
        "    rollout_trace_smolagents.record\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("rollout-trace-smolagents needs smolagents, which cannot be imported here")
    assert ran.stdout.endswith("with: pip install . ./integrations/rollout-trace-smolagents\n")
