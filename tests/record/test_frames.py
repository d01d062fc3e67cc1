"""The contract for integrations: a small framework whose hooks make frames, around a real client and server."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import AsyncOpenAI, OpenAI

import rollout_trace as rt
from rollout_trace import integration as frames
from rollout_trace.data.model import STEP_FIELDS, Completion, Cost, ErrorInfo, Step, TokenIssue, ToolCall, Usage
from rollout_trace.record.frames import AgentFrame, ModelFrame, ToolFrame
from rollout_trace.testing import Fault, Reply, ScriptedServer


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(lambda request: f"re: {request['messages'][-1]['content']}") as running:
        yield running


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as plain:
        yield rt.wrap_openai(plain, engine="vllm")


def ask(client: OpenAI, text: str = "Hi", **more: Any) -> Any:
    return client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}], **more)


def said(step: Step) -> Any:
    assert step.completion is not None
    return step.completion.content


def test_a_call_inside_a_model_frame_is_the_frames(client: OpenAI) -> None:
    """The wire has the truth, the frame adds who called and what the framework says of it."""
    with rt.trajectory() as trajectory:
        with ModelFrame("tiny", agent="solver", metadata={"run_id": "r1"}, messages=["never used"]) as frame:
            ask(client)
            frame.answered({"completion": Completion(content="never used")})
        ask(client, "outside")
    first, second = trajectory.steps
    assert (said(first), first.agent, first.metadata) == ("re: Hi", "solver", {"framework": "tiny", "run_id": "r1"})
    assert first.messages == [{"role": "user", "content": "Hi"}]
    assert first.completion_token_ids is not None
    assert (second.agent, second.metadata) == ("agent", None)


def test_a_model_call_without_bytes_is_kept_and_marked() -> None:
    with rt.trajectory() as trajectory:
        frame = ModelFrame("tiny", messages=[{"role": "user", "content": "Hi"}], model="local")
        assert trajectory.steps == []
        frame.answered({"completion": Completion(content="Ho"), "finish_reason": "stop"})
        frame.end()
    (step,) = trajectory.steps
    assert (step.status, said(step), step.model, step.finish_reason) == ("ok", "Ho", "local", "stop")
    assert step.token_issue is not None
    assert step.token_issue.code == "not_on_wire"
    assert step.latency is not None
    assert list(trajectory.sequences()) == []


def test_a_cached_answer_is_no_call() -> None:
    with rt.trajectory() as trajectory:
        with ModelFrame("tiny") as frame:
            frame.answered({"completion": Completion(content="Ho")}, cached=True)
    (step,) = trajectory.steps
    assert (step.status, step.token_issue and step.token_issue.code) == ("cached", "cached")


def test_steps_stand_in_the_order_their_calls_began(client: OpenAI) -> None:
    with rt.trajectory() as trajectory:
        slow = ModelFrame("tiny", agent="unseen")
        with ModelFrame("tiny", agent="seen"):
            ask(client)
        slow.end()
    assert [(step.agent, step.index) for step in trajectory.steps] == [("unseen", 0), ("seen", 1)]


def test_an_answer_thrown_away_is_superseded(client: OpenAI) -> None:
    """Also where that is known only after the call."""
    with rt.trajectory() as trajectory:
        with ModelFrame("tiny") as thrown:
            ask(client)
        assert trajectory.steps[0].status == "ok"
        thrown.supersede()
        with ModelFrame("tiny"):
            ask(client)
    assert [step.status for step in trajectory.steps] == ["superseded", "ok"]


def test_an_error_after_the_answer_is_on_the_step(client: OpenAI) -> None:
    with rt.trajectory() as trajectory:
        frame = ModelFrame("tiny").enter()
        ask(client)
        frame.end(ValueError("no JSON in it"))
    (step,) = trajectory.steps
    assert (step.status, step.error and step.error.message) == ("ok", "no JSON in it")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("x"), "error"),
        (asyncio.CancelledError(), "cancelled"),
        (GeneratorExit(), "abandoned"),
        (None, "abandoned"),
    ],
)
def test_how_an_unseen_call_ended(error: BaseException | None, status: str) -> None:
    with rt.trajectory() as trajectory:
        ModelFrame("tiny").end(error)
    (step,) = trajectory.steps
    assert step.status == status
    assert (step.error is None) == (error is None)


def test_the_response_id_joins_where_the_context_does_not(client: OpenAI) -> None:
    """Calls made in a thread that knows only the trajectory, in another order than they were announced."""
    with rt.trajectory() as trajectory:
        bound = rt.bind(client, trajectory)
        made = [ModelFrame("tiny", agent=name) for name in ("one", "two", "three")]
        with ThreadPoolExecutor(1) as pool:
            answers = list(pool.map(lambda text: ask(bound, text), ("three", "one", "two")))
        for frame, answer in zip((made[2], made[0], made[1]), answers, strict=True):
            frame.answered(response_id=answer.id)
            frame.end()
        bound.close()
    assert [(step.agent, said(step)) for step in trajectory.steps] == [
        ("three", "re: three"), ("one", "re: one"), ("two", "re: two"),
    ]  # fmt: skip


def test_a_response_id_that_all_answers_have_says_nothing() -> None:
    """Some servers give every answer the same one: the context decides."""
    reply = Reply("Ho", extra={"id": "always"})
    with ScriptedServer(lambda request: reply) as same:
        with OpenAI(base_url=same.base_url, api_key="none") as plain:
            client = rt.wrap_openai(plain)
            with rt.trajectory() as trajectory:
                for name in ("one", "two"):
                    with ModelFrame("tiny", agent=name) as frame:
                        frame.answered(response_id=ask(client).id)
    assert [(step.agent, step.response_id) for step in trajectory.steps] == [("one", "always"), ("two", "always")]


def test_a_batch_is_joined_in_its_order(client: OpenAI) -> None:
    """All begin at once, in one context, and are then made one after the other."""
    with rt.trajectory() as trajectory:
        batch: list[ModelFrame] = []
        for name in "abc":
            batch.append(ModelFrame("tiny", agent=name, after=batch[-1] if batch else None).enter())
        for frame in batch:
            ask(client, str(frame.agent))
            frame.end()
    assert [(step.agent, said(step)) for step in trajectory.steps] == [("a", "re: a"), ("b", "re: b"), ("c", "re: c")]


def test_agents_inside_agents_are_children(client: OpenAI, tmp_path: Path) -> None:
    """The outermost is the user's trajectory; a tool that runs another agent gives it one of its own."""
    with rt.recording(tmp_path / "runs.jsonl"), rt.trajectory("task", group="g") as own:
        with AgentFrame("lead") as lead:
            with ModelFrame("tiny"):
                ask(client, "plan")
            with ToolFrame("helper", tool_call_id="call_1", arguments="{}") as tool:
                with AgentFrame("helper") as helper:
                    assert rt.current() is helper.trajectory
                    with ModelFrame("tiny"):
                        ask(client, "help")
                    ask(client, "by hand")
                tool.run.result = "done"
            assert rt.current() is own is lead.trajectory
            with ModelFrame("tiny"):
                ask(client, "finish")
    back = {trajectory.name: trajectory for trajectory in rt.read(tmp_path / "runs.jsonl")}
    task, child = back["task"], back["helper"]
    assert [(step.agent, said(step)) for step in task.steps] == [("lead", "re: plan"), ("lead", "re: finish")]
    assert [(step.agent, said(step)) for step in child.steps] == [("helper", "re: help"), ("helper", "re: by hand")]
    assert (child.parent_id, child.episode_id, child.parent_step_id) == (task.id, task.episode_id, task.steps[0].id)
    assert (child.status, task.status) == ("completed", "completed")
    (run,) = task.tool_runs
    assert (run.name, run.tool_call_id, run.result, run.error) == ("helper", "call_1", "done", None)
    assert run.duration is not None


def test_an_agent_outside_every_trajectory_opens_one(client: OpenAI, tmp_path: Path) -> None:
    with rt.recording(tmp_path / "runs.jsonl"):
        frame = AgentFrame("lone", metadata={"run": 1}).enter()
        ask(client)
        frame.end(KeyError("lost"))
    (back,) = rt.read(tmp_path / "runs.jsonl")
    assert (back.name, back.status, back.metadata, len(back.steps)) == ("lone", "failed", {"run": 1}, 1)
    assert rt.current() is None


def test_what_nobody_ended_ends_with_its_trajectory(client: OpenAI) -> None:
    """A framework that is cancelled tells no hook; its agents and calls are there all the same."""
    with rt.trajectory() as own:
        lead = AgentFrame("lead").enter()
        ToolFrame("helper").enter()
        helper = AgentFrame("helper").enter()
        child = helper.trajectory
        ask(client)
        ModelFrame("tiny").enter()
    assert child is not None
    assert (child.status, [step.status for step in child.steps]) == ("aborted", ["ok", "abandoned"])
    assert (own.status, lead.is_open, helper.is_open) == ("completed", False, False)
    assert frames.active() is None


def test_a_trajectory_opened_inside_a_tool_has_the_calls(client: OpenAI) -> None:
    """The user's own `with` is nearer than the framework's frame, and a child of it."""
    with rt.trajectory() as own:
        with AgentFrame("lead"), ToolFrame("judge"):
            with rt.trajectory("judge") as judge:
                ask(client)
            ask(client, "after")
    assert [said(step) for step in judge.steps] == ["re: Hi"]
    assert judge.parent_id == own.id
    assert [said(step) for step in own.steps] == ["re: after"]


def test_frames_follow_the_context(server: ScriptedServer) -> None:
    """Tasks that run at once, and threads that are given their context, know their own frames."""

    async def run(name: str, client: AsyncOpenAI) -> rt.Trajectory:
        with rt.trajectory(name) as own:
            with AgentFrame(name), ModelFrame("tiny"):
                await client.chat.completions.create(model="m", messages=[{"role": "user", "content": name}])
        return own

    async def main() -> list[rt.Trajectory]:
        async with AsyncOpenAI(base_url=server.base_url, api_key="none") as plain:
            client = rt.wrap_openai(plain, engine="vllm")
            return await asyncio.gather(*(run(f"agent {number}", client) for number in range(20)))

    for number, own in enumerate(asyncio.run(main())):
        assert [(step.agent, said(step)) for step in own.steps] == [(f"agent {number}", f"re: agent {number}")]


@pytest.mark.parametrize("how", ["copied context", "propagate"])
def test_frames_go_into_threads(how: str, client: OpenAI) -> None:
    with rt.trajectory() as own, AgentFrame("lead"), ToolFrame("search"), AgentFrame("helper") as helper:
        child = helper.trajectory
        with ThreadPoolExecutor(1) as pool:
            if how == "propagate":
                pool.submit(rt.propagate(ask), client).result()
            else:
                pool.submit(contextvars.copy_context().run, ask, client).result()
    assert child is not None
    assert (len(child.steps), len(own.steps)) == (1, 0)


def test_a_bound_client_keeps_its_trajectory(client: OpenAI) -> None:
    with rt.trajectory("elsewhere") as elsewhere:
        bound = rt.bind(client, elsewhere)
        with rt.trajectory() as own, AgentFrame("lead"), ModelFrame("tiny"):
            ask(bound)
            with AgentFrame("inside") as inside:
                child = inside.trajectory
        bound.close()
    assert [(said(step), step.agent, step.metadata) for step in elsewhere.steps] == [("re: Hi", "elsewhere", None)]
    assert child is not None
    # The frame's own step, which no call is: not the other trajectory's.
    assert child.parent_step_id == own.steps[0].id
    assert [step.token_issue and step.token_issue.code for step in own.steps] == ["not_on_wire"]


def test_a_failed_call_is_one_step(server: ScriptedServer) -> None:
    """The error of the wire and that of the framework are one."""
    with ScriptedServer(Fault(status=500)) as broken:
        with OpenAI(base_url=broken.base_url, api_key="none", max_retries=0) as plain:
            client = rt.wrap_openai(plain)
            with rt.trajectory() as own:
                with pytest.raises(Exception, match="500"), ModelFrame("tiny", agent="lead"):
                    ask(client)
    (step,) = own.steps
    assert (step.status, step.agent, step.error and step.error.status) == ("error", "lead", 500)


def test_frames_keep_nothing_alive(client: OpenAI) -> None:
    """The context still knows the frame that it entered last; that frame knows no trajectory any more."""
    with rt.trajectory():
        frame = ModelFrame("tiny").enter()
        ask(client)
        frame.end()
    assert frames.entered() is frame
    assert frame.trajectory is None
    assert frame.calls == []


def test_hooks_that_fail_do_not_reach_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hooks:
        @frames.guarded
        def on_start(self) -> str:
            raise KeyError("run id")

    with pytest.raises(KeyError):
        Hooks().on_start()
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    before = rt.stats().recorder_errors
    assert Hooks().on_start() is None
    assert rt.stats().recorder_errors == before + 1


def test_what_is_told_during_a_call_is_kept_however_it_ends() -> None:
    """A local model's ids need no wire; a call that is closed has what came."""
    with rt.trajectory() as trajectory:
        whole, closed = ModelFrame("tiny"), ModelFrame("tiny", model="local")
        whole.tell(prompt_token_ids=[1, 2], completion_token_ids=[3], logprobs=[-0.5], token_source="engine")
        whole.answered({"completion": Completion(content="Ho")})
        whole.end()
        closed.tell(completion=Completion(content="H"))
        closed.end(GeneratorExit())
    first, second = trajectory.steps
    assert (first.id, first.status, first.token_issue) == (whole.step_id, "ok", None)
    assert [row.token_ids.tolist() for row in trajectory.sequences()] == [[1, 2, 3]]
    assert (second.status, said(second), second.model) == ("abandoned", "H", "local")


def test_an_answer_that_the_framework_could_not_read(client: OpenAI) -> None:
    """Said after the call has ended; the tool that was found in the text names the step all the same."""
    with rt.trajectory() as trajectory:
        with ModelFrame("tiny") as frame:
            ask(client)
            asked_by = frame.step_id
        frame.failed(ValueError("no call in it"))
    (step,) = trajectory.steps
    assert (step.id, step.status, step.error and step.error.message) == (asked_by, "ok", "no call in it")


def test_the_id_of_a_call_without_bytes_is_one() -> None:
    """It is made when it is first asked for, here by eight tools at once."""
    with rt.trajectory() as trajectory, ModelFrame("tiny") as frame:
        barrier = threading.Barrier(8)

        def step_id(_: int) -> str:
            barrier.wait()
            return frame.step_id

        with ThreadPoolExecutor(8) as tools:
            found = set(tools.map(step_id, range(8)))
        frame.answered({"completion": Completion(content="Ho")})
    assert found == {step.id for step in trajectory.steps}


class Odd(RuntimeError):
    """An exception whose own property fails."""

    @property
    def response(self) -> Any:
        raise KeyError("resp")


def test_an_exception_that_cannot_be_looked_at_is_raised_on(client: OpenAI) -> None:
    with rt.trajectory() as own:
        with pytest.raises(Odd, match="mine"), ModelFrame("tiny"):
            raise Odd("mine")
    (step,) = own.steps
    assert (step.status, step.error and step.error.type) == ("error", "Odd")


def test_a_frame_whose_end_fails_leaves_the_caller_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it cannot take note of is the recorder's failure."""

    def broken(*_: Any) -> None:
        raise ZeroDivisionError("the recorder's own")

    before = rt.stats().recorder_errors
    with rt.trajectory():
        frame = ToolFrame("add")
        monkeypatch.setattr(frame, "_ended", broken)
        monkeypatch.delenv("PYTEST_CURRENT_TEST")
        with pytest.raises(ValueError, match="mine"), frame:
            raise ValueError("mine")
    assert not frame.is_open
    assert rt.stats().recorder_errors == before + 1


def test_a_call_after_the_answer_began_is_its_consumers(client: OpenAI) -> None:
    """The frame of a stream stays open in the context of who reads it; so does that of a call that was cancelled."""
    with rt.trajectory("own") as own:
        frame = ModelFrame("tiny", agent="solver").enter()
        ask(client, "first")
        frame.is_arriving = True
        ask(client, "second")
        frame.end()
    assert [(step.agent, step.metadata is None) for step in own.steps] == [("solver", False), ("own", True)]


def test_a_call_after_a_cancelled_one_is_not_the_frames() -> None:
    async def main(server: ScriptedServer) -> rt.Trajectory:
        async with AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0) as plain:
            client = rt.wrap_openai(plain)
            messages: Any = [{"role": "user", "content": "Hi"}]
            with rt.trajectory("own") as own:
                ModelFrame("tiny", agent="solver").enter()
                task = asyncio.ensure_future(client.chat.completions.create(model="m", messages=messages))
                await asyncio.to_thread(server.wait_held)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                server.release()
                await client.chat.completions.create(model="m", messages=messages)
        return own

    with ScriptedServer([Fault(hold=True), "fine"]) as server:
        own = asyncio.run(main(server))
    assert [(step.status, step.agent) for step in own.steps] == [("cancelled", "solver"), ("ok", "own")]


def test_what_is_said_after_steps_were_looked_at_counts() -> None:
    with rt.trajectory() as own:
        frame = ModelFrame("tiny")
        frame.answered({"completion": Completion(content="Ho")})
        frame.end()
        assert own.steps[0].status == "ok"
        frame.supersede()
        frame.failed(ValueError("no call in it"))
    (step,) = own.steps
    assert (step.status, step.error) == ("superseded", None)


def test_a_child_comes_of_the_step_that_asked_for_it(client: OpenAI) -> None:
    """Not of a call that its tool made by hand before."""
    with rt.trajectory() as own:
        with AgentFrame("lead"):
            with ModelFrame("tiny"):
                ask(client, "plan")
            with ToolFrame("helper"):
                ask(client, "by hand")
                with AgentFrame("helper") as helper:
                    child = helper.trajectory
    assert child is not None
    assert child.parent_step_id == own.steps[0].id


def test_a_frame_whose_parent_has_ended_goes_to_the_next_one_around(client: OpenAI) -> None:
    with rt.trajectory() as own:
        over = ToolFrame("over")
        over.end()
        with ModelFrame("tiny", parent=over):
            ask(client)
    assert len(own.steps) == 1


def test_frames_give_way_to_those_around_them(client: OpenAI) -> None:
    """A with block leaves the context as it found it; so does a function that carries its context into a thread."""
    with rt.trajectory(), ToolFrame("outer") as outer:
        carried = rt.propagate(frames.entered)
        with ToolFrame("inner") as inner:
            assert frames.entered() is inner
            assert carried() is outer
            assert frames.entered() is inner
        assert frames.entered() is outer


def test_arguments_of_a_tool_are_those_it_was_given() -> None:
    arguments = {"rows": [1]}
    with rt.trajectory() as own, rt.tool_run("add", arguments=arguments):
        arguments["rows"].append(2)
    assert own.tool_runs[0].arguments == {"rows": [1]}


def test_an_error_leaves_a_frame_as_it_leaves_a_block(client: OpenAI) -> None:
    with rt.trajectory() as own:
        with pytest.raises(ValueError, match="mine"), ToolFrame("add"):
            raise ValueError("mine")
    assert own.tool_runs[0].error is not None
    assert own.tool_runs[0].error.message == "mine"


def test_a_cached_answer_of_a_batch_takes_no_call(client: OpenAI) -> None:
    with rt.trajectory() as own:
        first = ModelFrame("tiny", agent="a")
        second = ModelFrame("tiny", agent="b", after=first).enter()
        ask(client)
        first.answered({"completion": Completion(content="known")}, cached=True)
        first.end()
        second.answered(response_id=own.steps[-1].response_id)
        second.end()
    assert sorted((step.status, step.agent) for step in own.steps) == [("cached", "a"), ("ok", "b")]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_that_unwinds_writes_nothing(tmp_path: Path) -> None:
    """The agent's run is its parent's, who closes and writes it."""
    with rt.recording(tmp_path / "runs.jsonl"):
        pid = 0
        with AgentFrame("lone"):
            pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    assert len(list(rt.read(tmp_path / "runs.jsonl"))) == 1


class Opaque:
    """An object of a framework's that can be compared with nothing and says nothing of itself."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


BAD_CALLS = Completion(tool_calls=5)  # type: ignore[arg-type]
JUNK: list[Any] = ["no number", -1, 1.5, float("nan"), True, [[-0.5], "x"], {"a": object()}, Opaque(), BAD_CALLS]
WRONG_INSIDE: list[tuple[str, Any]] = [
    ("completion", Completion(content={"text": "Ho"})),  # type: ignore[arg-type]
    ("completion", Completion(content=5)),  # type: ignore[arg-type]
    ("completion", Completion(reasoning=Opaque())),  # type: ignore[arg-type]
    ("completion", Completion(tool_calls=(ToolCall(id="c", name=Opaque(), arguments=""),))),  # type: ignore[arg-type]
    ("error", ErrorInfo(type="Refused", message=Opaque())),  # type: ignore[arg-type]
    ("token_issue", TokenIssue(code="ids_missing", message=None)),  # type: ignore[arg-type]
    ("usage", Usage(input=1, output=2, extra=5)),  # type: ignore[arg-type]
    ("completion", Completion(content="Ho", extra=5)),  # type: ignore[arg-type]
    ("cost", Cost(amount=1.0, currency=Opaque())),  # type: ignore[arg-type]
]
"""Of the right class, with fields that are not."""


@pytest.mark.parametrize("name", [*STEP_FIELDS, "no_field"])
def test_what_a_framework_says_wrongly_costs_its_own_step(name: str, client: OpenAI, tmp_path: Path) -> None:
    """Whatever a hook gives for a field: the trajectory closes, is written, and has all its other steps."""
    with rt.recording(tmp_path / "runs.jsonl"), rt.trajectory() as own:
        ask(client, "before")
        for junk in JUNK:
            with ModelFrame("tiny", **{name: junk} if name == "messages" else {}) as frame:
                frame.answered({"completion": Completion(content="Ho"), name: junk})
        ask(client, "after")
    (back,) = rt.read(tmp_path / "runs.jsonl")
    assert len(own.steps) == len(back.steps) == len(JUNK) + 2
    assert [said(step) for step in (back.steps[0], back.steps[-1])] == ["re: before", "re: after"]
    assert all(step.token_issue is not None for step in own.steps[1:-1])
    list(back.sequences(allow={"not_on_wire"}))


@pytest.mark.parametrize(("name", "fact"), WRONG_INSIDE, ids=[name for name, _ in WRONG_INSIDE])
def test_a_fact_with_a_wrong_field_costs_its_own_step(name: str, fact: Any, client: OpenAI, tmp_path: Path) -> None:
    """What is written can be read again."""
    with rt.recording(tmp_path / "runs.jsonl"), rt.trajectory():
        ask(client, "before")
        with ModelFrame("tiny") as frame:
            frame.answered({"response_model": "tiny-1", name: fact})
    before, step = next(rt.read(tmp_path / "runs.jsonl")).steps
    assert (said(before), step.response_model) == ("re: before", "tiny-1")
    assert step.token_issue is not None
    assert f"of what the framework gave, {name} was left out" in step.token_issue.message


def test_the_wrong_field_of_a_fact_is_named() -> None:
    call = ToolCall(id="c", name="add", arguments="{}", extra=5)  # type: ignore[arg-type]
    with rt.trajectory() as own:
        with ModelFrame("tiny") as frame:
            frame.answered({"completion": Completion(tool_calls=(call,)), "policy_spans": [("0", 2, "a")]})
    (step,) = own.steps
    assert step.token_issue is not None
    assert step.token_issue.message == (
        "of what the framework gave, completion was left out: its tool_calls: its extra: expected a mapping, got 5."
    )
    (issue,) = step.extra_issues
    assert "Expected `int`, got `str` - at `$[0][0]`, got [('0', 2, 'a')]." in issue.message


def test_keys_of_a_framework_that_are_one_in_the_file_cost_nothing(tmp_path: Path) -> None:
    """Neither the step nor one of the two."""
    with rt.recording(tmp_path / "runs.jsonl"), rt.trajectory():
        with ModelFrame("tiny", metadata={1: "a", "1": "b"}) as frame:  # type: ignore[dict-item]
            frame.answered({"completion": Completion(content="Ho")})
    (step,) = next(rt.read(tmp_path / "runs.jsonl")).steps
    assert said(step) == "Ho"
    assert step.metadata == {"framework": "tiny", "1": "a", "1 (str)": "b"}


def test_a_wrong_fact_is_named_and_left_out() -> None:
    facts = {"completion": Completion(content="Ho"), "completion_token_ids": [1, 2], "logprobs": [-0.5, "no number"]}
    with rt.trajectory() as own:
        with ModelFrame("tiny", model="local") as frame:
            frame.answered(facts)
    (step,) = own.steps
    assert (said(step), step.model, step.logprobs) == ("Ho", "local", None)
    assert step.token_issue is not None
    assert step.token_issue.code == "response_malformed"
    assert step.token_issue.message == (
        "of what the framework gave, logprobs was left out: could not convert string to float: 'no number'"
    )
    assert list(own.sequences()) == []


@pytest.mark.parametrize(
    ("logprobs", "code"),
    [
        ([-0.5], "lengths_differ"),
        ([-0.5, 0.5], "logprobs_positive"),
        ([-0.5, None], "logprobs_not_finite"),
        ([-0.5, -1e300], "logprobs_not_finite"),
        ([-0.5, -0.25], None),
    ],
)
def test_logprobs_of_a_framework_keep_the_rules_of_the_wire(logprobs: list[Any], code: str | None) -> None:
    with rt.trajectory() as own:
        with ModelFrame("tiny") as frame:
            frame.answered(
                {"completion": Completion(content="Ho"), "completion_token_ids": [1, 2], "logprobs": logprobs}
            )
    (step,) = own.steps
    assert (step.token_issue and step.token_issue.code) == code
    assert (step.logprobs is None) == (code is not None)


_FIT: dict[str, Any] = {
    "prompt_logprobs": [None, -1.0],
    "prompt_top_tokens": rt.TopTokens(np.array([[-1], [2]]), np.array([[np.nan], [-1.0]])),
    "top_tokens": rt.TopTokens(np.array([[3], [4]]), np.array([[-1.0], [-2.0]])),
    "sampling_mask": rt.SamplingMask(np.array([3, 4, 5]), np.array([1, 2])),
    "routed_experts": np.zeros((3, 2, 2), np.int64),
    "policy_spans": [(0, 2, "a")],
    "token_texts": ["H", "o"],
}
_UNFIT: list[tuple[str, Any, str]] = [
    ("prompt_logprobs", [None], "not_aligned"),
    ("prompt_logprobs", [None, 1.0], "malformed"),
    ("prompt_logprobs", "none", "malformed"),
    ("prompt_top_tokens", rt.TopTokens(np.array([[1]]), np.array([[-1.0]])), "not_aligned"),
    ("top_tokens", rt.TopTokens(np.array([[3]]), np.array([[-1.0, -2.0]])), "malformed"),
    ("top_tokens", rt.TopTokens(np.array([[3], [1 << 31]]), np.array([[-1.0], [-2.0]])), "malformed"),
    ("top_tokens", [[3], [4]], "malformed"),
    ("sampling_mask", rt.SamplingMask(np.array([3, 5]), np.array([1, 1])), "not_aligned"),
    ("sampling_mask", rt.SamplingMask(np.array([3, 4]), np.array([1, 7])), "malformed"),
    ("sampling_mask", {"ids": [3, 4]}, "malformed"),
    ("routed_experts", np.zeros((4, 2, 2), np.uint8), "not_aligned"),
    ("routed_experts", np.full((3, 2, 2), -1), "malformed"),
    ("routed_experts", np.full((3, 2, 2), 1 << 32), "malformed"),
    ("policy_spans", [(0, 1, "a")], "not_aligned"),
    ("policy_spans", [(0, 2)], "malformed"),
    ("policy_spans", [("0", 2, "a")], "malformed"),
    ("token_texts", ["Ho"], "not_aligned"),
    ("token_texts", "Ho", "malformed"),
    ("token_texts", ["H", 0], "malformed"),
    ("extra", "none", "malformed"),
]


def told(tmp_path: Path, **facts: Any) -> Step:
    """The step that a file has of what a framework gave, with ids that are right."""
    with rt.recording(tmp_path / "runs.jsonl"), rt.trajectory():
        with ModelFrame("tiny") as frame:
            frame.answered({"completion": Completion(content="Ho"), "prompt_token_ids": [1, 2], **facts})
    (step,) = next(rt.read(tmp_path / "runs.jsonl")).steps
    return step


@pytest.mark.parametrize(("field", "value", "code"), _UNFIT)
def test_extras_of_a_framework_keep_the_rules_of_the_wire(field: str, value: Any, code: str, tmp_path: Path) -> None:
    """One that does not fit costs itself alone: neither the ids, nor the other extras, nor the trajectory's line."""
    step = told(tmp_path, completion_token_ids=[3, 4], logprobs=[-1.0, -2.0], **{**_FIT, field: value})
    assert [(one.field, one.code) for one in step.extra_issues] == [(field, code)]
    assert step.token_issue is None
    assert step.completion_token_ids is not None
    assert {name for name in _FIT if getattr(step, name) is None} == {field} - {"extra"}


def test_extras_of_a_framework_that_fit_are_kept(tmp_path: Path) -> None:
    step = told(tmp_path, completion_token_ids=[3, 4], logprobs=[-1.0, -2.0], extra={"a": 1}, **_FIT)
    assert step.extra_issues == ()
    assert step.prompt_logprobs is not None
    assert step.prompt_logprobs.tolist()[1:] == [-1.0]
    assert step.top_tokens == rt.TopTokens(np.array([[3], [4]], np.int32), np.array([[-1.0], [-2.0]], np.float32))
    assert step.sampling_mask is not None
    assert [row.tolist() for row in step.sampling_mask] == [[3], [4, 5]]
    assert step.policy_spans == (rt.PolicySpan(0, 2, "a"),)
    assert step.token_texts == ["H", "o"]
    assert step.routed_experts is not None
    assert step.routed_experts.dtype == np.int32
    assert len(step.routed_experts) == 3


def test_extras_of_a_framework_without_ids_have_no_positions(tmp_path: Path) -> None:
    step = told(tmp_path, **{name: value for name, value in _FIT.items() if not name.startswith("prompt")})
    assert {(one.field, one.code) for one in step.extra_issues} == {
        (name, "ids_missing") for name in _FIT if not name.startswith("prompt")
    }


def test_what_can_be_taken_as_it_was_meant_is_no_mistake(tmp_path: Path) -> None:
    """Whole numbers as floats, ids as numbers, a finish reason that is an object."""
    odd: Any = 5
    call = ToolCall(id=odd, name="add", arguments="{}")
    with rt.recording(tmp_path / "runs.jsonl"), rt.trajectory() as own:
        with ModelFrame("tiny") as frame:
            usage = Usage(output=3.0)  # type: ignore[arg-type]
            frame.answered({"completion": Completion(tool_calls=(call,)), "usage": usage, "finish_reason": odd})
        with ToolFrame("add", tool_call_id=odd):
            pass
    (back,) = rt.read(tmp_path / "runs.jsonl")
    (step,) = back.steps
    assert step.completion is not None
    assert step.usage is not None
    assert (step.completion.tool_calls[0].id, step.usage.output, step.finish_reason) == ("5", 3, "5")
    assert own.steps[0].token_issue is not None
    assert own.steps[0].token_issue.code == "not_on_wire"


def test_an_answer_that_is_no_mapping_is_named() -> None:
    with rt.trajectory() as own:
        with ModelFrame("tiny") as frame:
            frame.answered("Ho")  # type: ignore[arg-type]
    (step,) = own.steps
    assert step.token_issue is not None
    assert "an answer was left out: a step has no such field; got Ho" in step.token_issue.message


@pytest.mark.parametrize("part", ["_ended", "abandon", "steps", "mark", "forget"])
def test_a_frame_that_fails_costs_no_other_step(
    part: str, client: OpenAI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one of an integration's own, with a mistake in it."""

    class Broken(ModelFrame):
        """A frame that fails wherever the recorder looks at it."""

    def fail(*_: Any) -> Any:
        raise ValueError("mine")

    setattr(Broken, part, fail)
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    before = rt.stats().recorder_errors
    with rt.recording(tmp_path / "runs.jsonl"), rt.trajectory() as own:
        with ModelFrame("tiny", agent="first"):
            ask(client, "before")
        broken = Broken("tiny").enter()
        if part == "mark":
            ask(client, "inside")
        if part == "abandon":
            assert broken.is_open
        else:
            broken.end()
        with ModelFrame("tiny", agent="last"):
            ask(client, "after")
    assert rt.stats().recorder_errors > before
    assert (own.status, own.is_open) == ("completed", False)
    (back,) = rt.read(tmp_path / "runs.jsonl")
    kept = [(step.agent, said(step)) for step in back.steps if step.completion is not None]
    assert kept[0] == ("first", "re: before")
    assert kept[-1] == ("last", "re: after")


def test_under_pytest_a_failure_is_raised_when_all_is_closed() -> None:
    kept: list[rt.Trajectory] = []

    class Broken(ModelFrame):
        """A frame that fails when its trajectory closes."""

        def abandon(self) -> None:
            raise ValueError("mine")

    def run() -> None:
        with rt.trajectory() as own:
            kept.append(own)
            Broken("tiny")

    with pytest.raises(ValueError, match="mine"):
        run()
    assert (kept[0].status, kept[0].is_open) == ("completed", False)


def test_a_run_is_kept_whatever_its_name_and_metadata_are(tmp_path: Path) -> None:
    odd: Any = 5
    with rt.recording(tmp_path / "runs.jsonl"), rt.trajectory():
        with AgentFrame("lead"), ToolFrame(odd, tool_call_id=odd, arguments=odd), AgentFrame(odd, metadata={odd: odd}):
            ModelFrame("tiny", agent=odd, metadata={odd: odd}).end()
    assert [(t.name, len(t.steps)) for t in rt.read(tmp_path / "runs.jsonl")] == [("agent", 0), ("5", 1)]


def test_an_answer_that_was_told_counts_although_nobody_ended_the_call() -> None:
    with rt.trajectory() as own:
        ModelFrame("tiny").answered({"completion": Completion(content="Ho")})
    (step,) = own.steps
    assert (step.status, said(step)) == ("ok", "Ho")


def test_the_calls_of_a_frame_that_is_not_trainable(client: OpenAI) -> None:
    with rt.trajectory() as trajectory:
        with ModelFrame("test", trainable=False):
            ask(client)
        with ModelFrame("test", trainable=False) as unseen:
            unseen.answered({"completion": Completion(content="Yes")})
        with ModelFrame("test"):
            ask(client)
    assert [step.trainable for step in trajectory.steps] == [False, False, True]
