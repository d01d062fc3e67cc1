"""``rt.collect`` where agents and rewards do what they should not, and what a later run makes of it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

import rollout_trace as rt
from rollout_trace.collection.tally import Tally
from rollout_trace.record import sink
from rollout_trace.record.recording import open_recordings
from rollout_trace.testing import Reply, ScriptedServer
from tests.collection import jobs
from tests.collection.running import outcome

TASKS = [{"id": "a"}, {"id": "b"}]


@pytest.fixture
def ask() -> Iterator[Callable[..., object]]:
    with (
        ScriptedServer(lambda _: Reply("four")) as server,
        openai.OpenAI(base_url=server.base_url, api_key="key", max_retries=0) as client,
    ):
        yield lambda *_: client.chat.completions.create(model="m", messages=[{"role": "user", "content": "?"}])


def collect(agent: Any, output: Path, tasks: Any = TASKS, **options: Any) -> rt.CollectSummary:
    return rt.collect(agent, tasks, output=output, progress=False, **{"engine": "vllm", **options})


def _replace_metadata(trajectory: rt.Trajectory) -> None:
    trajectory.metadata = {"mine": 1}


def _rename(trajectory: rt.Trajectory) -> None:
    trajectory.name, trajectory.task, trajectory.rollout_index = "other", None, 7


def _set_ids(trajectory: rt.Trajectory) -> None:
    assert trajectory.task is not None
    trajectory.id = trajectory.episode_id = f"own-{trajectory.task.id}"


@pytest.mark.parametrize("change", [_replace_metadata, _rename, _set_ids])
@pytest.mark.parametrize("by", ["agent", "reward"])
def test_what_is_set_on_a_trajectory_does_not_lose_its_rollout(
    change: Callable[[rt.Trajectory], None], by: str, tmp_path: Path, ask: Callable[..., object]
) -> None:
    """It is counted, and not made again."""

    def agent(task: dict[str, str]) -> None:
        ask()
        if by == "agent":
            current = rt.current()
            assert current is not None
            change(current)

    def reward(task: dict[str, str], result: object, trajectory: rt.Trajectory) -> float:
        if by == "reward":
            change(trajectory)
        return 1.0

    first = collect(agent, tmp_path / "x.jsonl", reward=reward)
    assert (first.by_status, first.unwritten, first.usage.calls) == ({"completed": 2}, 0, 2)
    again = collect(agent, tmp_path / "x.jsonl", reward=reward)
    assert (again.earlier, again.made) == (2, 0)
    if change is _replace_metadata:
        assert [(one.metadata or {}).get("mine") for one in rt.read(tmp_path / "x.jsonl")] == [1, 1]


def test_a_weighted_sum_that_is_no_number_is_a_failure(tmp_path: Path, ask: Callable[..., object]) -> None:
    def huge(task: Any, result: object, trajectory: rt.Trajectory) -> float:
        return 1e308

    summary = collect(ask, tmp_path / "x.jsonl", reward=[(huge, 100.0)])
    assert (summary.by_status, summary.reward_failures, summary.mean_reward) == ({"completed": 2}, 2, None)


@pytest.mark.parametrize("has_judge", [False, True])
def test_a_reward_function_may_use_rt_reward(has_judge: bool, tmp_path: Path, ask: Callable[..., object]) -> None:
    """What it sets is the rollout's, whether or not it made calls of its own."""

    def reward(task: Any, result: object, trajectory: rt.Trajectory) -> None:
        if has_judge:
            ask()
        rt.reward(0.25)
        rt.reward(0.5, name="style")

    summary = collect(ask, tmp_path / "x.jsonl", reward=reward)
    assert (summary.mean_reward, summary.rewards) == (0.25, {"style": 0.5})
    assert not (tmp_path / "x.jsonl.journal").exists()
    assert {(one.name == "reward", one.reward) for one in rt.read(tmp_path / "x.jsonl")} == {
        (False, 0.25),
        *([(True, None)] if has_judge else []),
    }


def test_where_a_reward_fails_that_of_the_agent_does_not_stand_for_it(
    tmp_path: Path, ask: Callable[..., object]
) -> None:
    def agent(task: Any) -> None:
        ask()
        rt.reward(0.9)

    def reward(task: Any, result: object, trajectory: rt.Trajectory) -> float:
        raise ValueError("no")

    summary = collect(agent, tmp_path / "x.jsonl", reward=reward)
    assert (summary.mean_reward, summary.reward_failures) == (None, 2)


def test_calls_of_a_judge_are_counted_once(tmp_path: Path, ask: Callable[..., object]) -> None:
    """Also where the agent itself calls no model, and the output is searched for calls of programs that it started."""

    def reward(task: Any, result: object, trajectory: rt.Trajectory) -> float:
        ask()
        return 1.0

    summary = collect(lambda task: "by rule", tmp_path / "x.jsonl", reward=reward)
    assert (summary.usage.calls, summary.reward_usage.calls) == (0, 2)


@pytest.mark.parametrize("options", [{"engine": "bad"}, {"recording": {"bad": 1}}])
@pytest.mark.parametrize("executor", ["local", "process"])
def test_a_wrong_argument_leaves_nothing_open(executor: str, options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match="bad"):
        collect(print, tmp_path / "x.jsonl", executor=executor, **options)
    assert not os.listdir(tmp_path)
    assert not open_recordings()
    assert not sink.on_written


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit])
def test_async_agents_that_raise_what_ends_programs(error: type[BaseException], tmp_path: Path) -> None:
    """It ends their rollouts alone."""

    async def agent(task: Any) -> None:
        raise error

    summary = collect(agent, tmp_path / "x.jsonl")
    assert (summary.by_status, summary.errors) == ({"failed": 2}, {error.__name__: 2})


def test_where_no_thread_can_be_started_the_rollout_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "rollout":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    summary = collect(print, tmp_path / "x.jsonl", instrument=False, engine=None)
    assert (summary.by_status, summary.errors) == ({"failed": 2}, {"RuntimeError": 2})


def test_retries_are_those_of_the_run(tmp_path: Path) -> None:
    """Attempts of an earlier run, or attempts that were cut, take none away."""
    made = []

    def agent(task: Any, rollout: rt.Rollout) -> None:
        made.append(rollout.attempt)
        raise ValueError("no")

    options: dict[str, Any] = {"retries": 1, "retry_wait": 0, "retry_failed": True}
    collect(agent, tmp_path / "x.jsonl", TASKS[:1], **options)
    collect(agent, tmp_path / "x.jsonl", TASKS[:1], **options)
    assert made == [1, 2, 3, 4]


def test_a_loop_that_ends_around_it(tmp_path: Path, ask: Callable[..., object]) -> None:
    """``asyncio.run`` cancels all tasks, those inside ``acollect`` too; what ran is written before it returns."""

    async def main() -> None:
        begun = asyncio.Event()

        async def agent(task: Any) -> None:
            begun.set()
            await asyncio.Event().wait()

        run = asyncio.ensure_future(rt.acollect(agent, TASKS, output=tmp_path / "x.jsonl", progress=False))
        await begun.wait()
        assert not run.done()

    asyncio.run(main())
    assert [one.status for one in rt.read(tmp_path / "x.jsonl")] == ["aborted", "aborted"]
    assert not open_recordings()


def test_a_failed_attempt_is_left_out_when_the_next_was_cut(tmp_path: Path, ask: Callable[..., object]) -> None:
    """The attempt after that takes its place, and the failed one is trained on no more."""
    output = tmp_path / "x.jsonl"

    def fails(task: Any) -> None:
        ask()
        raise ValueError("no")

    async def cut() -> None:
        begun = asyncio.Event()

        async def hangs(task: Any) -> None:
            begun.set()
            await asyncio.Event().wait()

        run = asyncio.ensure_future(
            rt.acollect(hangs, TASKS[:1], output=output, name="agent", progress=False, retry_failed=True)
        )
        await begun.wait()
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)

    collect(fails, output, TASKS[:1], name="agent")
    asyncio.run(cut())
    collect(ask, output, TASKS[:1], name="agent")
    found = [(one.status, [step.trainable for step in one.steps]) for one in rt.read(output)]
    assert found == [("failed", [False]), ("aborted", []), ("completed", [True])]


def test_a_failed_attempt_is_left_out_though_its_run_was_killed(tmp_path: Path, ask: Callable[..., object]) -> None:
    """After it was made again, and before that was noted."""
    output = tmp_path / "x.jsonl"

    def agent(task: Any, rollout: rt.Rollout) -> None:
        ask()
        if rollout.attempt == 1:
            raise ValueError("no")

    collect(agent, output, TASKS[:1])
    collect(agent, output, TASKS[:1], retry_failed=True)
    (tmp_path / "x.notes.jsonl").unlink()
    collect(agent, output, TASKS[:1])
    found = [(one.status, [step.trainable for step in one.steps]) for one in rt.read(output)]
    assert found == [("failed", [False]), ("completed", [True])]


@pytest.mark.processes
def test_a_process_that_each_attempt_ends_is_not_begun_for_ever(tmp_path: Path) -> None:
    agent = jobs.ends_its_process
    os.environ["TEST_MARKER"] = str(tmp_path / "marker")
    try:
        summary = collect(agent, tmp_path / "x.jsonl", TASKS[:1], executor="process", engine=None)
    finally:
        del os.environ["TEST_MARKER"]
    assert len((tmp_path / "marker").read_text()) == 4
    assert (summary.by_status, summary.errors) == ({"failed": 1}, {"WorkerLost": 1})


def test_what_is_taken_back_leaves_no_zeros() -> None:
    """The account of a rollout that was lost with its worker, and made again."""
    tally, lost = Tally(1), outcome("failed", "ValueError")
    lost.rewards = {"style": 0.5}
    tally.add(lost)
    tally.retract(lost)
    summary = tally.summary(run_id="r", output="x.jsonl", seconds=1.0)
    assert (summary.made, summary.by_status, summary.errors, summary.rewards, summary.unscored) == (0, {}, {}, {}, {})


class _Score:
    """A reward: each instance has an address of its own, as functions have in each process."""

    def __call__(self, *given: object) -> float:
        return 1.0


def test_functions_are_the_same_in_another_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is said to have changed, and the history has one header."""
    for reward in [_Score(), _Score()]:
        rt.collect(print, TASKS, output=tmp_path / "x.jsonl", reward=reward, instrument=False)
    captured = capsys.readouterr()
    assert "reward is" not in captured.out + captured.err
    assert (tmp_path / "x.history.jsonl").read_text().count('"header"') == 1
