"""Trajectories and recordings of several tasks and threads, rewards for those inside, warnings of empty ones."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

import rollout_trace as rt
from rollout_trace import guard
from rollout_trace.clients.loopback.messages import RequestRecord, Response, json_response
from rollout_trace.clients.loopback.server import LoopbackServer
from rollout_trace.data.model import Completion
from rollout_trace.record.frames import AgentFrame, ModelFrame, ToolFrame
from rollout_trace.testing import ScriptedServer


@pytest.fixture
def client() -> Iterator[OpenAI]:
    with ScriptedServer(lambda request: "fine") as server:
        with OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as plain:
            yield rt.wrap_openai(plain, engine="vllm")


def ask(client: OpenAI, **more: Any) -> Any:
    return client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}], **more)


def said(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    lines = [record.getMessage() for record in caplog.records if record.name == "rollout_trace"]
    return [line for line in lines if part in line]


# One object, entered more than once.


def test_one_scope_is_right_for_each_task(tmp_path: Path) -> None:
    """Two tasks that leave in the order they entered: each closes its own trajectory, with its own exception."""
    scope, kept = rt.trajectory("shared"), dict[str, rt.Trajectory]()

    async def run(name: str, entered: asyncio.Event, leave: asyncio.Event) -> None:
        async with scope as trajectory:
            kept[name] = trajectory
            trajectory.metadata = {"name": name}
            entered.set()
            await leave.wait()
            assert rt.current() is trajectory
            raise ValueError(name)

    async def main() -> None:
        first, second = asyncio.Event(), asyncio.Event()
        one = asyncio.create_task(run("one", asyncio.Event(), first))
        two = asyncio.create_task(run("two", first, second))
        await asyncio.gather(one, return_exceptions=True)
        assert [t.is_open for t in (kept["one"], kept["two"])] == [False, True]
        second.set()
        await asyncio.gather(two, return_exceptions=True)

    with rt.recording(tmp_path / "runs.jsonl"):
        asyncio.run(main())
    back = list(rt.read(tmp_path / "runs.jsonl"))
    assert [(t.id, t.metadata, t.error and t.error.message) for t in back] == [
        (kept[name].id, {"name": name}, name) for name in ("one", "two")
    ]


def test_one_scope_is_right_for_each_thread() -> None:
    """Four threads that enter in turn, and leave in the same order."""
    scope = rt.trajectory("shared")
    entered, left = [threading.Event() for _ in range(5)], [threading.Event() for _ in range(5)]
    entered[0].set()
    left[0].set()

    def run(number: int) -> rt.Trajectory:
        entered[number].wait(30)
        with scope as trajectory:
            entered[number + 1].set()
            entered[4].wait(30)
            left[number].wait(30)
            assert rt.current() is trajectory
            trajectory.metadata = {"open": trajectory.is_open}
        assert not trajectory.is_open
        left[number + 1].set()
        return trajectory

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(run, range(4)))
    assert [(t.status, t.metadata) for t in found] == [("completed", {"open": True})] * 4


def test_one_scope_can_be_nested() -> None:
    scope = rt.trajectory("shared")
    with scope as outer:
        with scope as inner:
            assert rt.current() is inner
        assert (rt.current(), inner.is_open, outer.is_open) == (outer, False, True)
    assert (inner.parent_id, outer.is_open) == (outer.id, False)


def test_an_agent_that_is_dropped_in_another_context_leaves_what_is_open_there() -> None:
    """A generator that nobody finishes: the garbage collector closes it wherever it happens to run."""

    def agent() -> Iterator[rt.Trajectory]:
        with rt.trajectory("dropped") as trajectory:
            yield trajectory

    running = agent()
    dropped = contextvars.copy_context().run(next, running)
    with rt.trajectory("mine") as mine:
        del running
        assert (rt.current(), dropped.is_open) == (mine, False)


def test_a_scope_that_is_left_in_another_context_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    """As by a fixture. Of several that a context knows nothing of, nobody can say which: that is logged."""
    scope = rt.trajectory("shared")

    def enter() -> rt.Trajectory:
        return scope.__enter__()

    def leave() -> None:
        scope.__exit__(None, None, None)

    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        first = one.submit(enter).result()
        other.submit(leave).result()
        assert (first.is_open, said(caplog, "entered several times")) == (False, [])
        both = one.submit(enter).result(), one.submit(enter).result()
        other.submit(leave).result()
        assert [t.is_open for t in both] == [True, False]
        assert len(said(caplog, "entered several times")) == 1
        one.submit(leave).result()
        assert not both[0].is_open


def test_a_recording_is_entered_once(tmp_path: Path) -> None:
    """Nested, and by two threads: the second is refused, the first goes on; afterwards it can be entered again."""
    recording = rt.recording(tmp_path / "runs.jsonl")
    refused: list[BaseException] = []

    def enter() -> None:
        try:
            with recording:
                raise AssertionError("entered")
        except RuntimeError as error:
            refused.append(error)

    for number in range(2):
        with recording:
            with rt.trajectory(f"before {number}"):
                pass
            enter()
            thread = threading.Thread(target=enter)
            thread.start()
            thread.join()
            with rt.trajectory(f"after {number}"):
                pass
    assert [t.name for t in rt.read(tmp_path / "runs.jsonl")] == ["before 0", "after 0", "before 1", "after 1"]
    assert len(refused) == 4
    assert f"this recording to {tmp_path / 'runs.jsonl'} is already open" in str(refused[0])


def test_a_recording_that_could_not_be_opened_can_be_entered_later(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("a file")
    recording = rt.recording(tmp_path / "folder" / "runs.jsonl")
    with pytest.raises(OSError, match="folder"):
        recording.__enter__()
    (tmp_path / "folder").unlink()
    with recording, rt.trajectory("a"):
        pass
    assert [t.name for t in rt.read(tmp_path / "folder" / "runs.jsonl")] == ["a"]


def test_propagate_gives_the_thread_its_own_recording_back(tmp_path: Path) -> None:
    with rt.recording(tmp_path / "a.jsonl"):

        @rt.propagate
        def carried() -> None:
            with rt.trajectory("carried"):
                pass

        def work() -> None:
            with rt.recording(tmp_path / "b.jsonl"):
                carried()
                with rt.trajectory("own"):
                    pass

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert [t.name for t in rt.read(tmp_path / "a.jsonl")] == ["carried"]
    assert [t.name for t in rt.read(tmp_path / "b.jsonl")] == ["own"]


def test_a_block_that_was_not_entered_cannot_be_left() -> None:
    with pytest.raises(RuntimeError, match="left without being entered"):
        rt.trajectory().__exit__(None, None, None)


# The decorator, and what is set on it.


def test_the_decorator_without_parentheses() -> None:
    @rt.trajectory
    def plain(value: int) -> tuple[int, rt.Trajectory | None]:
        """Its own text."""
        return value, rt.current()

    @rt.trajectory
    async def coroutine(value: int) -> tuple[int, rt.Trajectory | None]:
        return value, rt.current()

    @rt.trajectory()
    def with_parentheses(value: int) -> tuple[int, rt.Trajectory | None]:
        return value, rt.current()

    @rt.trajectory("solver", group="g")
    def named(value: int) -> tuple[int, rt.Trajectory | None]:
        return value, rt.current()

    found = [plain(1), asyncio.run(coroutine(2)), with_parentheses(3), named(4)]
    assert [value for value, _ in found] == [1, 2, 3, 4]
    assert [(t.name, t.group_id, t.status) for _, t in found if t is not None] == [
        ("agent", None, "completed"), ("agent", None, "completed"), ("agent", None, "completed"),
        ("solver", "g", "completed"),
    ]  # fmt: skip
    assert plain(1)[1] is not found[0][1]
    assert (plain.__name__, plain.__doc__) == ("plain", "Its own text.")


def test_what_cannot_be_decorated_or_is_no_name_is_refused() -> None:
    def generates() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match="cannot decorate the generator function"):
        rt.trajectory(generates)
    wrong: Any = {"id": "gsm8k/17"}
    with pytest.raises(
        TypeError, match=r"takes the agent's name, a text, as its first argument. Got \{'id': 'gsm8k/17'\}"
    ):
        rt.trajectory(wrong)


@pytest.mark.parametrize("name", ["reward", "metadata", "anything"])
def test_nothing_can_be_set_on_a_scope(name: str) -> None:
    scope = rt.trajectory("x")
    with pytest.raises(AttributeError, match=rf"with rt\.trajectory\(\.\.\.\) as trajectory: trajectory\.{name} = "):
        setattr(scope, name, 1)


# Rewards of those inside.


def test_a_reward_for_the_children(tmp_path: Path) -> None:
    """Of agents that have closed, at any depth, and of those that close later; not over a reward of their own."""
    with rt.recording(tmp_path / "runs.jsonl"):
        with rt.trajectory("lead"):
            with rt.trajectory("early"), rt.trajectory("deep"):
                pass
            with rt.trajectory("scored") as scored:
                scored.reward = 0.25
            with AgentFrame("directly inside"), AgentFrame("framework"):
                pass
            rt.reward(1, children=True)
            rt.reward(0.5, name="format", children=True)
            with rt.trajectory("late"), rt.trajectory("deep and late"):
                rt.reward(0, name="format")
        with rt.trajectory("elsewhere"):
            rt.reward(3)
            with rt.trajectory("not asked for"):
                pass
    found = {t.name: (t.reward, t.rewards) for t in rt.read(tmp_path / "runs.jsonl")}
    given = (1.0, {"format": 0.5})
    assert found == {
        "lead": given, "early": given, "deep": given, "framework": given, "late": given,
        "scored": (0.25, {"format": 0.5}), "deep and late": (1.0, {"format": 0.0}),
        "elsewhere": (3.0, None), "not asked for": (None, None),
    }  # fmt: skip


def test_a_reward_for_the_children_can_be_given_again_and_the_nearest_counts() -> None:
    with rt.trajectory() as root:
        with rt.trajectory() as middle:
            with rt.trajectory() as inner:
                pass
            rt.reward(0.1, children=True)
        with rt.trajectory() as other:
            pass
        rt.reward(0.2, children=True)
        other_before = other.reward
        rt.reward(0.3, children=True)
    assert [t.reward for t in (root, middle, inner, other)] == [0.3, 0.1, 0.1, 0.3]
    assert other_before == 0.2


def test_rewards_that_a_child_was_given_are_checked_as_its_own() -> None:
    with rt.trajectory():
        with rt.trajectory() as child:
            pass
        rt.reward(0.5, name="format", children=True)
    assert child.rewards == {"format": 0.5}
    with pytest.raises(TypeError, match=r"^rewards\['format'\] is 'abc' \(str\)"):
        child.rewards["format"] = "abc"  # type: ignore[assignment]


def test_a_child_that_outlives_its_parent_gets_the_reward(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is written on its own; nothing was set too late."""
    go, is_in = threading.Event(), threading.Event()

    def work() -> None:
        with rt.trajectory("late"):
            is_in.set()
            go.wait(30)

    with rt.recording(tmp_path / "runs.jsonl"):
        with rt.trajectory("lead"):
            thread = threading.Thread(target=rt.propagate(work))
            thread.start()
            is_in.wait(30)
            rt.reward(1, children=True)
        go.set()
        thread.join()
    assert [(t.name, t.reward) for t in rt.read(tmp_path / "runs.jsonl")] == [("lead", 1.0), ("late", 1.0)]
    assert said(caplog, "was set after the trajectory had been written") == []


def test_a_child_that_outlives_the_nearest_giver_has_its_reward() -> None:
    """What an outer trajectory gives its children later does not take the place of it."""
    go, is_in, kept = threading.Event(), threading.Event(), list[rt.Trajectory]()

    def work() -> None:
        with rt.trajectory("late") as late:
            kept.append(late)
            is_in.set()
            go.wait(30)

    with rt.trajectory("lead"):
        with rt.trajectory("middle"):
            thread = threading.Thread(target=rt.propagate(work))
            thread.start()
            is_in.wait(30)
            rt.reward(0.1, children=True)
        rt.reward(0.2, children=True)
    go.set()
    thread.join()
    assert [one.reward for one in kept] == [0.1]


# What is said of trajectories in which nothing was recorded.


def line_of(text: str) -> str:
    """The place of a line of this file."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (number,) = [at for at, line in enumerate(lines, 1) if line.strip().endswith(text)]
    return f"{__file__}:{number}"


def test_a_scored_trajectory_without_a_step_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        with rt.trajectory("solver") as trajectory:  # here A
            trajectory.reward = 1.0
    (line,) = said(caplog, "no model call was recorded")
    assert f"trajectory 'solver', opened at {line_of('# here A')}, was scored 1.0" in line
    assert all(hint in line for hint in ("rt.wrap_openai(client)", "record(llm)", "hook", "rt.propagate"))


def test_a_trajectory_that_is_scored_when_it_has_closed(caplog: pytest.LogCaptureFixture) -> None:
    with rt.trajectory("solver") as trajectory:
        pass
    assert said(caplog, "no model call") == []
    trajectory.reward = 0.0  # here B
    (line,) = said(caplog, "no model call was recorded")
    assert f"is scored 0.0 at {line_of('# here B')}" in line


def test_a_written_trajectory_without_a_step_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    @rt.trajectory("solver")
    def agent() -> None:
        pass

    with rt.recording(tmp_path / "runs.jsonl"):
        agent()  # here C
    (line,) = said(caplog, "no model call was recorded")
    assert f"opened at {line_of('# here C')}, was written to {tmp_path / 'runs.jsonl'}" in line


def test_a_trajectory_that_is_written_by_hand_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with rt.trajectory("solver") as trajectory:
        pass
    with rt.JSONLWriter(tmp_path / "runs.jsonl") as out:
        out.write(rt.Trajectory(name="made by hand"))
        out.write(trajectory)
    (line,) = said(caplog, "no model call was recorded")
    assert f"'solver', opened at {__file__}" in line


def test_an_agent_that_a_framework_opens_has_the_users_place(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with rt.recording(tmp_path / "runs.jsonl"):
        AgentFrame("lone").end()  # here D
    (line,) = said(caplog, "no model call was recorded")
    assert f"'lone', opened at {line_of('# here D')}" in line


@pytest.mark.parametrize("scored", [True, False])
def test_steps_that_were_not_seen_on_the_wire(scored: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The hook was given, the model was not: `record(llm)` was forgotten."""
    with rt.recording(tmp_path / "runs.jsonl"), rt.trajectory("solver"):
        with ModelFrame("tiny") as frame:
            frame.answered({"completion": Completion(content="Ho")})
        if scored:
            rt.reward(1)
    (line,) = said(caplog, "seen on the wire")
    assert "record(llm)" in line
    assert f"was written to {tmp_path / 'runs.jsonl'}" in line


def test_nothing_is_said_where_nothing_is_missing(
    client: OpenAI, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Recorded calls; a supervisor whose agents have them; one that failed before its first; a local model's ids; an
    answer from a cache; an agent that was given up; a trajectory that is neither scored nor written."""
    with rt.trajectory("neither"):
        pass
    with rt.recording(tmp_path / "runs.jsonl"):
        with rt.trajectory("own") as own:
            ask(client)
            own.reward = 1.0
        with rt.trajectory("supervisor"):
            with rt.trajectory("between"), rt.trajectory("child"):
                ask(client)
            rt.reward(1, children=True)
        with pytest.raises(ValueError, match="early"), rt.trajectory("failed"):
            raise ValueError("early")
        with rt.trajectory("local"), ModelFrame("tiny") as frame:
            frame.answered({"completion": Completion(content="Ho"), "completion_token_ids": [1]})
        with rt.trajectory("cached"), ModelFrame("tiny") as frame:
            frame.answered({"completion": Completion(content="Ho")}, cached=True)
        with rt.trajectory("mixed"):
            ask(client)
            ModelFrame("tiny").end()
        with rt.trajectory("lead"):
            ask(client)
            AgentFrame("given up", parent=AgentFrame("lead").enter())
    own.reward = None
    for trajectory in rt.read(tmp_path / "runs.jsonl"):
        trajectory.reward = 1.0
    assert said(caplog, "no model call") == []


def test_a_supervisor_whose_agents_still_run_is_not_judged(client: OpenAI, caplog: pytest.LogCaptureFixture) -> None:
    go, is_in = threading.Event(), threading.Event()

    def work() -> None:
        with rt.trajectory("late"):
            is_in.set()
            go.wait(30)
            ask(client)

    with rt.trajectory("lead") as lead:
        thread = threading.Thread(target=rt.propagate(work))
        thread.start()
        is_in.wait(30)
        lead.reward = 1.0
    go.set()
    thread.join()
    assert said(caplog, "no model call") == []


# Tool runs.


@pytest.mark.parametrize("when", ["began", "ended"])
def test_a_tool_run_after_its_trajectory_closed_warns(when: str, caplog: pytest.LogCaptureFixture) -> None:
    """In a task or a thread that outlives the block."""
    go, is_in = threading.Event(), threading.Event()

    def work() -> None:
        if when == "began":
            is_in.set()
            go.wait(30)
        with rt.tool_run("search"):
            is_in.set()
            go.wait(30)

    with rt.trajectory("solver") as trajectory, rt.tool_run("in time"):
        thread = threading.Thread(target=rt.propagate(work))
        thread.start()
        is_in.wait(30)
    go.set()
    thread.join()
    (line,) = said(caplog, "tool run")
    assert f"tool run 'search' {when} when its trajectory 'solver' ({trajectory.id})" in line


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_tool_run_in_a_forked_process_is_said_to_be_lost() -> None:
    """The trajectory has not closed: it is the other process's."""
    read, write = os.pipe()
    handler = logging.StreamHandler(os.fdopen(write, "w"))
    with rt.trajectory("solver") as trajectory:
        child = os.fork()
        if child == 0:
            guard.logger.addHandler(handler)
            with rt.tool_run("search"):
                pass
            os._exit(0)
        os.waitpid(child, 0)
    handler.stream.close()
    with os.fdopen(read) as pipe:
        (line,) = pipe.read().splitlines()
    assert f"forked inside its trajectory 'solver' ({trajectory.id})" in line
    assert "closed" not in line


def test_tool_runs_outside_every_trajectory_are_no_mistake(caplog: pytest.LogCaptureFixture) -> None:
    with rt.tool_run("search") as run:
        run.result = 1
    assert said(caplog, "tool run") == []


class RepeatsIds(LoopbackServer):
    """Asks for a tool in every turn, by the same id."""

    def answer(self, record: RequestRecord) -> Response:
        call = {"id": "call_0", "type": "function", "function": {"name": "search", "arguments": "{}"}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        return json_response(
            200, {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        )


def test_tool_runs_where_the_server_repeats_its_ids() -> None:
    """`call_0` in every turn: a run is of the turn before it."""
    with RepeatsIds() as server, OpenAI(base_url=server.base_url, api_key="none") as plain:
        client = rt.wrap_openai(plain)
        with rt.trajectory() as trajectory:
            for turn in range(3):
                (call,) = ask(client, seed=turn).choices[0].message.tool_calls
                with rt.tool_run("search", tool_call_id=call.id) as run:
                    run.result = "found"
    assert [step.completion and step.completion.tool_calls[0].id for step in trajectory.steps] == ["call_0"] * 3
    assert [run.step_id for run in trajectory.tool_runs] == [step.id for step in trajectory.steps]


class StreamsRepeatedIds(LoopbackServer):
    """The same, streamed."""

    def answer(self, record: RequestRecord) -> Response:
        call = {"index": 0, "id": "call_0", "type": "function", "function": {"name": "search", "arguments": "{}"}}
        head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        deltas = [({"role": "assistant", "tool_calls": [call]}, None), ({}, "tool_calls")]
        events = [{**head, "choices": [{"index": 0, "delta": d, "finish_reason": why}]} for d, why in deltas]
        lines = [f"data: {json.dumps(event)}\n\n".encode() for event in events]
        return Response(200, [("content-type", "text/event-stream")], [*lines, b"data: [DONE]\n\n"], chunked=True)


def test_tool_runs_inside_the_stream_that_asks_for_them() -> None:
    """A stream is open as long as its tool runs: the run is of it, not of the turn before."""
    with StreamsRepeatedIds() as server, OpenAI(base_url=server.base_url, api_key="none") as plain:
        client = rt.wrap_openai(plain)
        with rt.trajectory() as trajectory:
            for turn in range(3):
                with ask(client, seed=turn, stream=True) as stream:
                    (call,) = next(iter(stream)).choices[0].delta.tool_calls
                    with rt.tool_run("search", tool_call_id=call.id) as run:
                        run.result = "found"
    assert [run.step_id for run in trajectory.tool_runs] == [step.id for step in trajectory.steps]


def test_tool_runs_of_calls_at_once_go_by_name_and_arguments(client: OpenAI) -> None:
    """Two agents share a trajectory and an id; their tools run when both have answered."""
    with rt.trajectory() as trajectory:
        for name, arguments in (("add", '{"a": 1}'), ("search", '{"q": "x"}'), ("search", '{"q": "y"}')):
            with ModelFrame("tiny") as frame:
                call = rt.ToolCall(id="call_0", name=name, arguments=arguments)
                frame.answered({"completion": Completion(tool_calls=(call,))})
        for name, given in (("search", {"q": "x"}), ("add", '{"a": 1}'), ("search", None), ("other", None)):
            with ToolFrame(name, tool_call_id="call_0", arguments=given):
                pass
    place = {step.id: step.index for step in trajectory.steps}
    assert [place[str(run.step_id)] for run in trajectory.tool_runs] == [1, 0, 2, 2]


def test_a_tool_run_is_not_of_an_answer_that_is_still_to_come_or_was_thrown_away() -> None:
    answer = {"completion": Completion(tool_calls=(rt.ToolCall(id="call_0", name="search", arguments="{}"),))}
    with rt.trajectory() as trajectory:
        for _ in range(2):
            with ModelFrame("tiny") as frame:
                frame.answered(answer)
        frame.supersede()
        slow = ModelFrame("tiny")
        with rt.tool_run("search", tool_call_id="call_0", arguments={}):
            pass
        slow.answered(answer)
        slow.end()
    assert [step.status for step in trajectory.steps] == ["ok", "superseded", "ok"]
    assert trajectory.tool_runs[0].step_id == trajectory.steps[0].id


# Keys of metadata.


@pytest.mark.parametrize("value", [{1: "a", "1": "b"}, {"deep": [{None: 1, "null": 2}]}, {True: 1, "true": 2}])
def test_keys_that_are_one_in_the_file_are_refused(value: Any) -> None:
    with rt.trajectory() as trajectory:
        with pytest.raises(ValueError, match=r"metadata.*two keys .* that are both .* in a file"):
            trajectory.metadata = value
        trajectory.metadata = {1: "a", 2: [{"1": "b"}]}  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="two keys"):
        rt.trajectory(metadata=value)


def test_keys_that_became_one_later_are_both_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with rt.recording(tmp_path / "runs.jsonl"), rt.trajectory() as trajectory:
        trajectory.metadata = {"1": "text"}
        trajectory.metadata[1] = "number"  # type: ignore[index]
    (back,) = rt.read(tmp_path / "runs.jsonl")
    assert back.metadata == {"1": "text", "1 (int)": "number"}
    assert len(said(caplog, "are both '1' in a file")) == 1


def test_a_scored_run_without_a_call_may_have_been_answered_by_a_cache(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """dspy's and litellm's answer the samples of a group from one call: those behind the first make none."""
    with rt.recording(tmp_path / "runs.jsonl"), rt.trajectory("cached") as trajectory:
        trajectory.reward = 1.0
    (line,) = said(caplog, "no model call was recorded")
    assert "dspy.LM(..., cache=False)" in line
    with rt.recording(tmp_path / "more.jsonl"), rt.trajectory("unscored"):
        pass
    *_, line = said(caplog, "no model call was recorded")
    assert "cache" not in line
