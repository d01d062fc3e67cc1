"""Loops of real agents against a scripted server: every request is a step, token for token."""

from __future__ import annotations

import inspect
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from shown import assert_shows_the_same
from smolagents import tool
from smolagents.local_python_executor import LocalPythonExecutor

import rollout_trace as rt
from rollout_trace.testing import Fault, Reply, ScriptedServer
from rollout_trace_smolagents import record

from .conftest import Serve, add, assert_served, code_agent, fails, model_at, read_back, remembered, told, tool_agent

THREE_TURNS = [
    Reply("I add.", tool_calls=[("add", '{"a": 1, "b": 2}')]),
    Reply(tool_calls=[("add", '{"a": 3, "b": 4}')]),
    Reply(tool_calls=[("final_answer", '{"answer": "ten"}')]),
]
THREE_CODES = [
    "I add.\n<code>\nx = add(1, b=2)\nprint(x)\n</code>",
    "Again.\n<code>\ny = add(x, 4)\n",
    "<code>\nfinal_answer('ten')\n</code>",
]
"""The second leaves the end out, which smolagents then adds."""
LOOPS = [(tool_agent, THREE_TURNS), (code_agent, THREE_CODES)]
BOTH = pytest.mark.parametrize(("make", "script"), LOOPS, ids=["tools", "code"])
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@pytest.mark.sees("ids")
@BOTH
@STREAMED
def test_a_loop_of_three_turns(make: Any, script: Any, stream: bool, serve: Serve, tmp_path: Path) -> None:
    server = serve(script)
    agent = record(make(model_at(server), stream_outputs=stream), engine="vllm")
    with rt.recording(tmp_path / "runs.jsonl"), rt.trajectory("solver") as trajectory:
        assert agent.run("go") == "ten"
    assert_served(trajectory.steps, server.requests)
    assert [step.metadata for step in trajectory.steps] == [
        {"framework": "smolagents", "turn": "action", "step_number": number} for number in (1, 2, 3)
    ]
    assert {step.agent for step in trajectory.steps} == {"solver"}
    assert trajectory.status == "completed"
    assert read_back(tmp_path / "runs.jsonl") == [trajectory]


@pytest.mark.sees("streaming")
@BOTH
def test_streaming_changes_nothing(make: Any, script: Any, serve: Serve) -> None:
    runs = []
    for stream in (False, True):
        agent = record(make(model_at(serve(script)), stream_outputs=stream), engine="vllm")
        with rt.trajectory() as trajectory:
            agent.run("go")
        runs.append(trajectory)
    whole, streamed = ([told(step) for step in run.steps] for run in runs)
    assert whole == streamed
    assert [(run.name, run.arguments, run.result) for run in runs[0].tool_runs] == [
        (run.name, run.arguments, run.result) for run in runs[1].tool_runs
    ]


@pytest.mark.sees("unchanged")
@BOTH
@STREAMED
def test_smolagents_sees_nothing_new(make: Any, script: Any, stream: bool, serve: Serve) -> None:
    seen = []
    ways: list[Any] = [None, {}, {"engine": "vllm"}]
    for recorded in ways:
        server = serve(script)
        agent = make(model_at(server), stream_outputs=stream)
        if recorded is not None:
            record(agent, **recorded)
        with rt.trajectory():
            events = [type(event).__name__ for event in agent.run("go", stream=True)]
        bodies = [json.loads(request.body) for request in server.requests]
        if recorded:
            for body in bodies:
                assert {body.pop(name) for name in ("logprobs", "return_token_ids", "return_weight_versions")} == {True}
                body.pop("top_logprobs", None)
        memory = remembered(agent)
        for step in memory:
            # The server's answer to the capture fields, which smolagents keeps as it came.
            (step.get("model_output_message") or {}).pop("raw", None)
        seen.append((events, bodies, memory))
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.sees("stream", "`stream_outputs=True` 80 (188), `CodeAgent` 113 (125)")
@pytest.mark.parametrize(
    ("make", "script", "counts"), [(*LOOPS[0], (80, 188)), (*LOOPS[1], (113, 125))], ids=["tools", "code"]
)
def test_events_of_a_stream_are_those_without_the_recorder(
    make: Any, script: Any, counts: tuple[int, int], serve: Serve
) -> None:
    def shown(engine: Any) -> list[Any]:
        agent = make(model_at(serve(script)), stream_outputs=True)
        if engine is not None:
            record(agent, engine=engine)
        return [(type(event).__name__, getattr(event, "content", None)) for event in agent.run("go", stream=True)]

    assert_shows_the_same(shown, *counts)


def test_without_an_engine_the_bytes_are_the_same(serve: Serve) -> None:
    servers = [serve(THREE_TURNS), serve(THREE_TURNS)]
    tool_agent(model_at(servers[0])).run("go")
    record(tool_agent(model_at(servers[1]))).run("go")
    assert [request.body for request in servers[0].requests] == [request.body for request in servers[1].requests]


@pytest.mark.sees("one row", "no: its history is rendered anew, and `rt.drift()` shows why")
def test_history_is_rendered_anew_so_a_tool_loop_does_not_merge(serve: Serve) -> None:
    server = serve(THREE_TURNS)
    agent = record(tool_agent(model_at(server)), engine="vllm")
    with rt.trajectory() as trajectory:
        agent.run("go")
    sequences = trajectory.sequences()
    assert [len(sequence.step_ids) for sequence in sequences] == [1, 1, 1]
    assert sequences.report.steps_used == 3
    drifts = rt.drift(trajectory, server.tokenizer)
    assert [drift.step_id for drift in drifts] == [step.id for step in trajectory.steps[1:]]
    assert {drift.kind for drift in drifts} == {"rewritten"}
    assert "<tool_call>" in (drifts[0].expected_text or "")
    assert (drifts[0].found_text or "").startswith("\nCalling")


def test_code_whose_end_is_sent_back_as_it_was_sampled_merges(serve: Serve) -> None:
    script = ["<code>\nx = 1\n</code>", "<code>\nfinal_answer(x)\n</code>"]
    agent = record(code_agent(model_at(serve(script))), engine="vllm")
    with rt.trajectory() as trajectory:
        assert agent.run("go") == 1
    assert [len(sequence.step_ids) for sequence in trajectory.sequences()] == [2]


@pytest.mark.sees("parallel tools")
def test_tools_that_run_at_the_same_time(serve: Serve) -> None:
    together, bob_is_here = threading.Barrier(2, timeout=30), threading.Event()

    @tool
    def meet(name: str) -> str:
        """Meets the other call.

        Args:
            name: of who comes
        """
        if name == "bob":
            bob_is_here.set()
        together.wait()
        return f"met {name}"

    calls = [("meet", '{"name": "ann"}'), ("meet", '{"name": "bob"}')]
    server = serve([Reply(tool_calls=calls), THREE_TURNS[-1]])
    agent = record(tool_agent(model_at(server), meet), engine="vllm")

    def log(message: Any, **options: Any) -> None:
        # The last that smolagents does before it runs a tool: the second call comes first.
        if "ann" in str(getattr(message, "renderable", "")):
            bob_is_here.wait(30)

    agent.logger.log = log
    with rt.trajectory() as trajectory:
        agent.run("go")
    assert_served(trajectory.steps, server.requests)
    asked = trajectory.steps[0].completion
    assert asked is not None
    runs = {run.tool_call_id: run for run in trajectory.tool_runs}
    for call, name in zip(asked.tool_calls, ("ann", "bob"), strict=True):
        run = runs[call.id]
        assert (run.name, run.arguments, run.result) == ("meet", {"name": name}, f"met {name}")
        assert run.step_id == trajectory.steps[0].id


@pytest.mark.sees("tool errors")
def test_tool_runs_of_calls(serve: Serve) -> None:
    server = serve(
        [
            Reply(tool_calls=[("fails", '{"text": "cats"}')]),
            Reply(tool_calls=[("nothing", "{}")]),
            Reply(tool_calls=[("add", '{"a": 1}')]),
            Reply("add, I think"),
            Reply('{"name": "add", "arguments": {"a": 1, "b": 1}}'),
            THREE_TURNS[-1],
        ]
    )
    agent = record(tool_agent(model_at(server), fails), engine="vllm")
    with rt.trajectory() as trajectory:
        assert agent.run("go") == "ten"
    assert_served(trajectory.steps, server.requests)
    failed, unknown, wrong, from_text, final = trajectory.tool_runs
    assert failed.error is not None
    assert "nothing about cats" in failed.error.message
    assert failed.result is None
    assert unknown.error is not None
    assert "Unknown tool nothing" in unknown.error.message
    assert wrong.error is not None
    assert wrong.arguments == {"a": 1}
    assert (from_text.name, from_text.result, from_text.error) == ("add", 2, None)
    assert (final.name, final.result) == ("final_answer", "ten")
    assert all(run.duration is not None and run.started_at is not None for run in trajectory.tool_runs)
    steps = trajectory.steps
    assert [run.step_id for run in trajectory.tool_runs] == [steps[at].id for at in (0, 1, 2, 4, 5)]
    # What could not be read is on its step, whose tokens were sampled all the same.
    assert [step.error and step.error.type for step in steps] == [None, None, None, "AgentParsingError", None, None]
    assert {step.status for step in steps} == {"ok"}


def test_tool_runs_of_code(serve: Serve) -> None:
    script = [
        "<code>\nprint('two', add(1, b=1))\nadd({'a': 2, 'b': 2})\n</code>",
        "<code>\nprint('before')\nfails('cats')\n</code>",
        "no code at all",
        "<code>\nfinal_answer(add(3, 4))\n</code>",
    ]
    server = serve(script)
    agent = record(code_agent(model_at(server), fails), engine="vllm")
    with rt.trajectory() as trajectory:
        assert agent.run("go") == 7
    assert_served(trajectory.steps, server.requests)
    steps, runs = trajectory.steps, trajectory.tool_runs
    assert [(run.name, run.arguments, run.result) for run in runs] == [
        ("python_interpreter", "print('two', add(1, b=1))\nadd({'a': 2, 'b': 2})", {"output": 4, "logs": "two 2\n"}),
        ("add", {"a": 1, "b": 1}, 2),
        ("add", {"a": 2, "b": 2}, 4),
        ("python_interpreter", "print('before')\nfails('cats')", {"output": None, "logs": "before\n"}),
        ("fails", {"text": "cats"}, None),
        ("python_interpreter", "final_answer(add(3, 4))", {"output": 7, "logs": ""}),
        ("add", {"a": 3, "b": 4}, 7),
        ("final_answer", {"answer": 7}, 7),
    ]
    assert [run.tool_call_id for run in runs if run.name == "python_interpreter"] == ["call_1", "call_2", "call_4"]
    assert [run.error and run.error.type for run in runs[3:5]] == ["InterpreterError", "LookupError"]
    asked_by = [steps[0].id] * 3 + [steps[1].id] * 2 + [steps[3].id] * 3
    assert [run.step_id for run in runs] == asked_by
    assert [step.error and step.error.type for step in steps] == [None, None, "AgentParsingError", None]


def test_what_a_tool_changes_later_is_recorded_as_it_was(serve: Serve) -> None:
    @tool
    def lists(text: str) -> list:  # type: ignore[type-arg]
        """Lists.

        Args:
            text: anything
        """
        return [text]

    script = ["<code>\nfound = lists('a')\nfound.append('b')\n</code>", "<code>\nfinal_answer(found)\n</code>"]
    agent = record(code_agent(model_at(serve(script)), lists))
    with rt.trajectory() as trajectory:
        assert agent.run("go") == ["a", "b"]
    assert [run.result for run in trajectory.tool_runs if run.name == "lists"] == [["a"]]


@STREAMED
def test_planning_and_a_final_answer_at_the_last_step(stream: bool, serve: Serve) -> None:
    plan, step = Reply("1. add"), THREE_TURNS[1]
    server = serve([plan, step, plan, step, Reply("seven")])
    agent = record(tool_agent(model_at(server), planning_interval=1, max_steps=2, stream_outputs=stream), engine="vllm")
    with rt.trajectory() as trajectory:
        assert agent.run("go") == "seven"
    assert_served(trajectory.steps, server.requests)
    assert [(step.metadata or {})["turn"] for step in trajectory.steps] == [
        *("planning", "action") * 2,
        "final_answer",
    ]


def test_a_failing_final_answer_is_an_error_of_its_step(serve: Serve) -> None:
    server = serve([THREE_TURNS[0], Fault(status=500)])
    agent = record(tool_agent(model_at(server), max_steps=1), engine="vllm")
    with rt.trajectory() as trajectory:
        assert "Error in generating final LLM output" in str(agent.run("go"))
    assert_served(trajectory.steps, server.requests)
    assert trajectory.status == "completed"


def test_code_that_calls_a_model_of_its_own(serve: Serve) -> None:
    """In a thread of the executor, by a tool and by a further function."""
    inner = serve("inner")

    def ask(text: str) -> str:
        from openai import OpenAI

        client = rt.wrap_openai(OpenAI(base_url=inner.base_url, api_key="none", max_retries=0), engine="vllm")
        with client:
            answer = client.chat.completions.create(model="inner", messages=[{"role": "user", "content": text}])
        return str(answer.choices[0].message.content)

    asks = tool(_asks)
    asks.forward = ask
    outer = serve(["<code>\nx = asks('a')\ny = ask('b')\nfinal_answer(x + y)\n</code>"])
    agent = record(
        code_agent(model_at(outer), asks, executor_kwargs={"additional_functions": {"ask": ask}}), engine="vllm"
    )
    with rt.trajectory() as trajectory:
        assert agent.run("go") == "innerinner"
    assert_served(trajectory.steps, [*outer.requests, *inner.requests])
    assert rt.orphans() == []


def _asks(text: str) -> str:
    """Asks another model.

    Args:
        text: what
    """
    raise NotImplementedError


_asks.__name__ = "asks"


HAS_TIME_LIMIT = "timeout_seconds" in inspect.signature(LocalPythonExecutor.__init__).parameters


@pytest.mark.skipif(not HAS_TIME_LIMIT, reason="smolagents limits the time of code since 1.24")
def test_the_time_limit_of_code_stays(serve: Serve) -> None:
    asking = threading.get_ident()

    def has_given_up() -> bool:
        frame = sys._current_frames()[asking]
        while frame.f_back is not None and frame.f_code.co_name != "shutdown":
            frame = frame.f_back
        return frame.f_code.co_name == "shutdown"

    @tool
    def waits() -> int:
        """Takes longer than it may: smolagents waits for its thread when the time has run out."""
        while not has_given_up():
            pass
        return 1

    script = ["<code>\nwaits()\n</code>", "never mind"]
    agent = record(code_agent(model_at(serve(script)), waits, executor_kwargs={"timeout_seconds": 0}))
    assert agent.python_executor.timeout_seconds == 0
    with rt.trajectory() as trajectory:
        agent.run("go", max_steps=1)
    code, waited = trajectory.tool_runs
    assert code.error is not None
    assert code.error.type == "ExecutionTimeoutError"
    assert (waited.name, waited.result) == ("waits", 1)


@pytest.mark.sees("superseded", "nothing is: each try that the server refused is a step")
def test_retries_of_smolagents_are_calls_of_one_turn(serve: Serve) -> None:
    server = serve([Fault(status=429), *THREE_TURNS])
    model = model_at(server)
    model.retryer.wait_seconds = 0.0
    agent = record(tool_agent(model), engine="vllm")
    with rt.trajectory() as trajectory:
        assert agent.run("go") == "ten"
    assert_served(trajectory.steps, server.requests)
    assert [step.status for step in trajectory.steps] == ["error", "ok", "ok", "ok"]
    numbers = [(step.metadata or {})["step_number"] for step in trajectory.steps]
    assert numbers == [1, 1, 2, 3]
    assert trajectory.tool_runs[0].step_id == trajectory.steps[1].id


def test_runs_open_trajectories_of_their_own(serve: Serve, tmp_path: Path) -> None:
    server: ScriptedServer = serve([*THREE_TURNS, *THREE_TURNS])
    agent = record(tool_agent(model_at(server), name="adder", description="adds"), engine="vllm")
    with rt.recording(tmp_path / "runs.jsonl"):
        agent.run("one")
        agent.run("two", reset=False)
    first, second = read_back(tmp_path / "runs.jsonl")
    assert first.name == second.name == "adder"
    assert first.metadata == {"framework": "smolagents", "agent": "ToolCallingAgent"}
    assert_served([*first.steps, *second.steps], server.requests)


def test_add_is_what_it_was() -> None:
    assert add(1, 2) == 3
