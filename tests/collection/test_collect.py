"""``rt.collect`` with real clients against a real server: what it records, retries, cuts and makes again."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

import rollout_trace as rt
from rollout_trace import _event_loop
from rollout_trace.collection.tasks import own_copy
from rollout_trace.data import episodes
from rollout_trace.testing import Reply, RequestRecord, ScriptedServer

TASKS = [{"id": f"sum/{number}", "question": f"What is {number} + 2?"} for number in range(4)]


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(_answer) as server:
        yield server


def _answer(request: RequestRecord) -> Reply:
    return Reply("four")


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.base_url, api_key="key", max_retries=0) as client:
        yield client


@pytest.fixture
def ask(client: openai.OpenAI) -> Callable[[str], str]:
    def ask(question: str) -> str:
        answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": question}])
        return answer.choices[0].message.content or ""

    return ask


@pytest.fixture
def aclient(server: ScriptedServer) -> openai.AsyncOpenAI:
    # Each collect has a loop of its own, and a connection that is kept belongs to one.
    http = httpx2.AsyncClient(limits=httpx2.Limits(max_keepalive_connections=0))
    return openai.AsyncOpenAI(base_url=server.base_url, api_key="key", max_retries=0, http_client=http)


async def asked(client: openai.AsyncOpenAI, question: str) -> str:
    answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": question}])
    return answer.choices[0].message.content or ""


def collect(agent: Any, tasks: Any = TASKS, **options: Any) -> rt.CollectSummary:
    return rt.collect(agent, tasks, progress=False, engine="vllm", **options)


def read(path: Path) -> list[rt.Trajectory]:
    return sorted(rt.read(path), key=lambda one: (one.task.id if one.task else "", one.rollout_index or 0))


def own(trajectory: rt.Trajectory) -> dict[str, Any]:
    known: dict[str, Any] = (trajectory.metadata or {})["collect"]
    return known


def test_each_rollout_is_a_trajectory(tmp_path: Path, server: ScriptedServer, ask: Callable[[str], str]) -> None:
    """With its group, index, seed and attempt; the agent gets the task as it was given."""
    seen = []

    def solve(task: dict[str, str], rollout: rt.Rollout) -> str:
        seen.append((task, rollout.task_id, rollout.index, rollout.seed, rollout.attempt, rollout.group))
        return ask(task["question"])

    summary = collect(solve, output=tmp_path / "x.jsonl", samples=2, seed=10)
    assert sorted(seen, key=str) == sorted(
        ((task, task["id"], index, 10 + index, 1, task["id"]) for task in TASKS for index in range(2)), key=str
    )
    found = read(tmp_path / "x.jsonl")
    assert [(one.task.id, one.rollout_index) for one in found if one.task] == [
        (task["id"], index) for task in TASKS for index in range(2)
    ]
    for one in found:
        assert one.task is not None
        assert (one.name, one.group_id, one.status) == ("solve", one.task.id, "completed")
        assert one.task.data in TASKS
        assert own(one)["seed"] == 10 + (one.rollout_index or 0)
        assert own(one)["run"] == summary.run_id
        assert one.parent_id is None
        assert [step.token_source for step in one.steps] == ["engine"]
    assert len(server.requests) == len(found) == 8
    assert [group.id for group in rt.groups(found)] == [task["id"] for task in TASKS]


def test_each_attempt_changes_its_own_task(tmp_path: Path) -> None:
    """Not that of the next sample, nor what the caller has or what is recorded; its reward gets what it left there."""
    turns: list[Any] = [{"role": "user", "content": ["hi"]}]
    shared = object()
    given = {"id": "a", "messages": turns, "again": turns, "known": {"of": shared}}
    given["itself"] = given
    found: list[Any] = []

    def solve(task: dict[str, Any], rollout: rt.Rollout) -> None:
        assert task["itself"] is task
        assert task["again"] is task["messages"]
        assert task["known"]["of"] is shared
        found.append(json.dumps(task["messages"]))
        task["messages"][0]["content"].append("changed")
        task["messages"].append(rollout.attempt)
        if rollout.attempt == 1:
            raise ValueError("try it again")

    def grade(task: dict[str, Any], result: None, trajectory: rt.Trajectory) -> float:
        return float(task["messages"][-1])

    kept = json.dumps(turns)
    for tasks in ([given], [rt.Task(id="b", data={"messages": turns})]):
        agent = solve if tasks == [given] else lambda task, rollout: task.data["messages"].append(rollout.index)
        reward = grade if tasks == [given] else None
        collect(agent, tasks, output=tmp_path / "x.jsonl", samples=2, reward=reward, retries=1, name="n")
    assert found == [kept] * 4
    assert json.dumps(turns) == kept
    runs = read(tmp_path / "x.jsonl")
    assert [run.reward for run in runs] == [None, 2.0, None, 2.0, None, None]
    assert {json.dumps(run.task.data["messages"]) for run in runs if run.task} == {kept}


def test_a_task_that_is_nested_too_deeply_is_shared() -> None:
    deep: list[Any] = []
    for _ in range(10 * sys.getrecursionlimit()):
        deep = [deep]
    assert own_copy(deep) is deep


@pytest.mark.parametrize("concurrency", [1, 3, 16])
def test_async_agents_run_at_the_same_time(tmp_path: Path, aclient: openai.AsyncOpenAI, concurrency: int) -> None:
    running, most = 0, 0
    full = asyncio.Event()

    async def solve(task: dict[str, str]) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == min(concurrency, 12):
            full.set()
        await full.wait()
        answer = await asked(aclient, task["question"])
        running -= 1
        return answer

    summary = collect(solve, output=tmp_path / "x.jsonl", samples=3, concurrency=concurrency)
    assert most == min(concurrency, 12)
    assert summary.by_status == {"completed": 12}
    assert len(read(tmp_path / "x.jsonl")) == 12


def test_in_a_running_loop(tmp_path: Path, aclient: openai.AsyncOpenAI) -> None:
    async def solve(task: dict[str, str]) -> str:
        return await asked(aclient, task["question"])

    async def main() -> None:
        summary = await rt.acollect(solve, TASKS, output=tmp_path / "x.jsonl", progress=False)
        assert summary.by_status == {"completed": 4}

    def notebook(task: dict[str, str]) -> str:
        return "no call"

    async def blocked() -> None:
        # As in a notebook: this loop is blocked, and another one runs the agents.
        summary = collect(notebook, output=tmp_path / "x.jsonl")
        assert summary.by_status == {"completed": 4}

    asyncio.run(main())
    asyncio.run(blocked())
    assert sorted(one.name for one in rt.read(tmp_path / "x.jsonl")) == ["notebook"] * 4 + ["solve"] * 4


def test_a_client_of_the_module_serves_the_next_call_too(tmp_path: Path, server: ScriptedServer) -> None:
    """Its open connections belong to the event loop of the call before."""
    client = openai.AsyncOpenAI(base_url=server.base_url, api_key="key", max_retries=0)

    async def solve(task: dict[str, str]) -> str:
        return await asked(client, task["question"])

    for number in range(3):
        assert collect(solve, output=tmp_path / f"{number}.jsonl", samples=3).by_status == {"completed": 12}

    async def close() -> None:
        await client.close()

    _event_loop.run(close, "test", waits=False)


def test_a_class_that_cannot_be_made(tmp_path: Path) -> None:
    """It is made once, before the output is."""
    made = []

    class Agent:
        def __init__(self) -> None:
            made.append(self)
            raise LookupError("no model")

        def rollout(self, task: Any) -> None:
            raise AssertionError

    with pytest.raises(LookupError, match="no model"):
        collect(Agent, output=tmp_path / "x.jsonl")
    assert len(made) == 1
    assert not (tmp_path / "x.jsonl").exists()


class TestRewards:
    def test_a_number(self, tmp_path: Path, ask: Callable[[str], str]) -> None:
        def right(task: dict[str, str], result: str, trajectory: rt.Trajectory) -> float:
            assert [step.status for step in trajectory.steps] == ["ok"]
            return float(result == "four" and task["id"] == "sum/2")

        summary = collect(lambda task: ask(task["question"]), output=tmp_path / "x.jsonl", reward=right)
        assert [one.reward for one in read(tmp_path / "x.jsonl")] == [0.0, 0.0, 1.0, 0.0]
        assert summary.mean_reward == 0.25

    def test_named_parts_with_weights(self, tmp_path: Path, ask: Callable[[str], str]) -> None:
        async def right(task: Any, result: str, trajectory: rt.Trajectory) -> bool:
            return result == "four"

        def short(task: Any, result: str, trajectory: rt.Trajectory) -> int:
            return len(result)

        def signals(task: Any, result: str, trajectory: rt.Trajectory) -> dict[str, float]:
            return {"calls": len(trajectory.steps)}

        collect(
            lambda task: ask(task["question"]), output=tmp_path / "x.jsonl", reward=[right, (short, -0.25), signals]
        )
        for one in read(tmp_path / "x.jsonl"):
            assert (one.reward, one.rewards) == (0.0, {"right": 1.0, "short": 4, "calls": 1})

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), "good", [1], {"a": "b"}])
    def test_what_is_no_reward_is_none(self, tmp_path: Path, ask: Callable[[str], str], value: Any) -> None:
        def broken(task: Any, result: str, trajectory: rt.Trajectory) -> Any:
            return value

        summary = collect(lambda task: ask(task["question"]), output=tmp_path / "x.jsonl", reward=broken)
        for one in read(tmp_path / "x.jsonl"):
            assert (one.status, one.reward, one.rewards) == ("completed", None, None)
            assert list((one.metadata or {})["reward_errors"]) == ["broken"]
        assert summary.mean_reward is None

    def test_one_that_raises_leaves_no_sum(self, tmp_path: Path, ask: Callable[[str], str]) -> None:
        def broken(task: Any, result: str, trajectory: rt.Trajectory) -> float:
            raise LookupError("no such answer")

        def right(task: Any, result: str, trajectory: rt.Trajectory) -> float:
            return 1.0

        collect(lambda task: ask(task["question"]), output=tmp_path / "x.jsonl", reward={"a": right, "b": broken})
        for one in read(tmp_path / "x.jsonl"):
            assert (one.reward, one.rewards) == (None, {"a": 1.0})
            assert (one.metadata or {})["reward_errors"] == {"b": "LookupError: no such answer"}

    def test_one_that_returns_none_leaves_no_sum(self, tmp_path: Path, ask: Callable[[str], str]) -> None:
        """Missing is not zero."""

        def unknown(task: Any, result: str, trajectory: rt.Trajectory) -> None:
            return None

        def right(task: Any, result: str, trajectory: rt.Trajectory) -> float:
            return 1.0

        for parts in ({"a": right, "b": unknown}, {"b": unknown, "a": right}):
            found = tmp_path / f"{'-'.join(parts)}.jsonl"
            collect(lambda task: ask(task["question"]), output=found, reward=parts)
            for one in read(found):
                assert (one.reward, one.rewards) == (None, {"a": 1.0})

    def test_one_that_hangs(self, tmp_path: Path, ask: Callable[[str], str]) -> None:
        hanging = threading.Event()

        def slow(task: Any, result: str, trajectory: rt.Trajectory) -> float:
            hanging.wait()
            return 1.0

        try:
            collect(lambda task: ask("?"), TASKS[:1], output=tmp_path / "x.jsonl", reward=slow, reward_timeout=0.01)
        finally:
            hanging.set()
        (one,) = read(tmp_path / "x.jsonl")
        assert one.reward is None
        assert "longer than 0.01 seconds" in (one.metadata or {})["reward_errors"]["slow"]

    def test_a_judge_is_not_trained_on(self, tmp_path: Path, ask: Callable[[str], str]) -> None:
        """Its calls are recorded, apart from the agent's."""

        def judge(task: Any, result: str, trajectory: rt.Trajectory) -> float:
            return float(ask("Is it right?") == "four")

        summary = collect(lambda task: ask(task["question"]), output=tmp_path / "x.jsonl", reward=judge)
        found = list(rt.read(tmp_path / "x.jsonl"))
        agents = [one for one in found if one.parent_id is None]
        judges = [one for one in found if one.parent_id is not None]
        assert len(agents) == len(judges) == 4
        assert {one.name for one in judges} == {"reward"}
        assert {one.parent_id for one in judges} == {one.id for one in agents}
        assert [len(one.steps) for one in found] == [1] * 8
        assert all(step.trainable for one in agents for step in one.steps)
        assert not any(one.sequences() for one in judges)
        assert [one.reward for one in agents] == [1.0] * 4
        assert summary.by_status == {"completed": 4}


class TestFailures:
    def test_an_exception_is_recorded(self, tmp_path: Path, ask: Callable[[str], str]) -> None:
        def solve(task: dict[str, str]) -> str:
            ask(task["question"])
            raise ZeroDivisionError("no")

        def reward(task: Any, result: Any, trajectory: rt.Trajectory) -> float:
            return 0.0

        summary = collect(solve, output=tmp_path / "x.jsonl", reward=reward)
        for one in read(tmp_path / "x.jsonl"):
            assert one.error is not None
            assert (one.status, one.error.type, one.reward) == ("failed", "ZeroDivisionError", None)
            assert [step.status for step in one.steps] == ["ok"]
        assert summary.by_status == {"failed": 4}
        assert summary.exit_code == 1

    @pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), GeneratorExit()])
    def test_one_that_is_no_exception_ends_its_agent_alone(
        self, tmp_path: Path, aclient: openai.AsyncOpenAI, error: BaseException
    ) -> None:
        async def solve(task: dict[str, str]) -> str:
            if task["id"] == "sum/1":
                raise error
            return await asked(aclient, "?")

        summary = collect(solve, output=tmp_path / "x.jsonl")
        assert summary.by_status == {"completed": 3, "failed": 1}
        assert [one.status for one in read(tmp_path / "x.jsonl")] == ["completed", "failed", "completed", "completed"]

    def test_the_last_attempt_counts(self, tmp_path: Path, ask: Callable[[str], str]) -> None:
        def solve(task: dict[str, str], rollout: rt.Rollout) -> str:
            answer = ask(f"{task['question']} {rollout.attempt}")
            if rollout.attempt < 3:
                raise ConnectionError("again")
            return answer

        summary = collect(solve, output=tmp_path / "x.jsonl", retries=2, retry_wait=0)
        found = read(tmp_path / "x.jsonl")
        assert len(found) == 12
        for at in range(0, 12, 3):
            tried = sorted(found[at : at + 3], key=episodes.attempt_of)
            assert [one.status for one in tried] == ["failed", "failed", "completed"]
            assert [own(one).get("retry_of") for one in tried] == [None, tried[0].id, tried[1].id]
            assert [[step.status for step in one.steps] for one in tried] == [["superseded"], ["superseded"], ["ok"]]
            assert [len(one.sequences()) for one in tried] == [0, 0, 1]
        assert (summary.by_status, summary.retried) == ({"completed": 4}, 8)
        assert [[one.status for one in group.trajectories] for group in rt.groups(found)] == [["completed"]] * 4

    @pytest.mark.parametrize(
        ("retry_on", "tries"),
        [(None, 2), (OSError, 2), ("ConnectionError", 2), (["builtins.OSError"], 2), (ValueError, 1), ("KeyError", 1)],
    )
    def test_retries_by_class(self, tmp_path: Path, retry_on: Any, tries: int) -> None:
        made = []

        def solve(task: str) -> None:
            made.append(task)
            raise ConnectionError

        collect(solve, ["a"], output=tmp_path / "x.jsonl", retries=1, retry_wait=0, retry_on=retry_on)
        assert len(made) == tries

    def test_too_many_in_a_row_stop_it(self, tmp_path: Path) -> None:
        made = []

        def solve(task: int) -> None:
            made.append(task)
            if task != 1:
                raise ValueError(task)

        summary = collect(solve, range(20), output=tmp_path / "x.jsonl", concurrency=1, max_consecutive_failures=3)
        assert made == [0, 1, 2, 3, 4]
        assert summary.stopped is not None
        assert "3 rollouts in a row failed" in summary.stopped
        assert "ValueError: 4" in summary.stopped


class TestTimeouts:
    def test_an_async_agent_is_cancelled(self, tmp_path: Path, server: ScriptedServer) -> None:
        cancelled = []

        async def solve(task: dict[str, str]) -> None:
            async with openai.AsyncOpenAI(base_url=server.base_url, api_key="key") as client:
                await asked(client, "?")
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    cancelled.append(task["id"])
                    raise

        summary = collect(solve, output=tmp_path / "x.jsonl", timeout=2.0, retries=1)
        assert len(cancelled) == 4
        for one in read(tmp_path / "x.jsonl"):
            assert one.error is not None
            assert (one.status, one.error.type, one.reward) == ("timeout", "RolloutTimeout", None)
            assert [step.status for step in one.steps] == ["ok"]
        assert (summary.by_status, summary.left_behind) == ({"timeout": 4}, 0)

    def test_a_sync_agent_is_left_behind(self, tmp_path: Path, ask: Callable[[str], str]) -> None:
        """Its trajectory is written at once; what it does later is not in it."""
        hanging, late = threading.Event(), []

        def solve(task: dict[str, str]) -> None:
            ask("before")
            hanging.wait()
            ask("after")
            late.append(task)

        with rt.instrument(engine="vllm"):
            try:
                summary = collect(solve, TASKS[:2], output=tmp_path / "x.jsonl", timeout=2.0)
                found = read(tmp_path / "x.jsonl")
            finally:
                hanging.set()
                for thread in threading.enumerate():
                    if thread.name == "rollout":
                        thread.join()
        assert len(late) == 2
        assert [one.status for one in found] == ["timeout"] * 2
        assert [[step.messages for step in one.steps] for one in found] == [
            [[{"role": "user", "content": "before"}]]
        ] * 2
        assert (summary.by_status, summary.left_behind) == ({"timeout": 2}, 2)
        assert read(tmp_path / "x.jsonl") == found
        assert [step.messages for step in rt.orphans()] == [[{"role": "user", "content": "after"}]] * 2

    def test_one_that_will_not_be_cancelled(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("rollout_trace.collection.calls.GRACE", 0.01)
        monkeypatch.setattr("rollout_trace._event_loop.PATIENCE", 0.01)

        async def solve(task: str) -> None:
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    pass

        summary = collect(solve, ["a"], output=tmp_path / "x.jsonl", timeout=0.01)
        assert (summary.by_status, summary.left_behind) == ({"timeout": 1}, 1)

    def test_a_call_that_hangs_is_cut(self, tmp_path: Path) -> None:
        from rollout_trace.testing import Fault

        with ScriptedServer(lambda request: Fault(hold=True)) as server:
            with openai.OpenAI(base_url=server.base_url, api_key="key", max_retries=0) as client:

                def solve(task: str) -> None:
                    client.chat.completions.create(model="m", messages=[{"role": "user", "content": task}])

                collect(solve, ["a"], output=tmp_path / "x.jsonl", timeout=2.0)
                (one,) = read(tmp_path / "x.jsonl")
                assert (one.status, [step.status for step in one.steps]) == ("timeout", ["abandoned"])
                server.release()
                for thread in threading.enumerate():
                    if thread.name == "rollout":
                        thread.join()


class TestResuming:
    def test_what_is_there_is_not_made_again(
        self, tmp_path: Path, server: ScriptedServer, ask: Callable[[str], str]
    ) -> None:
        def solve(task: dict[str, str]) -> str:
            return ask(task["question"])

        collect(solve, TASKS[:2], output=tmp_path / "x.jsonl")
        assert len(server.requests) == 2
        more = collect(solve, TASKS, output=tmp_path / "x.jsonl", samples=2)
        assert len(server.requests) == 8
        assert (more.by_status, more.earlier) == ({"completed": 8}, 2)
        other = collect(solve, TASKS, output=tmp_path / "x.jsonl", name="other")
        assert len(server.requests) == 12
        assert (other.by_status, other.earlier) == ({"completed": 4}, 0)
        assert {group.id for group in rt.groups(rt.read(tmp_path / "x.jsonl"))} == {
            *(task["id"] for task in TASKS),
            *(f"other/{task['id']}" for task in TASKS),
        }

    def test_failed_ones_on_request(self, tmp_path: Path, ask: Callable[[str], str]) -> None:
        made: list[tuple[str, int]] = []

        def solve(task: dict[str, str], rollout: rt.Rollout) -> str:
            made.append((task["id"], rollout.attempt))
            ask("first")
            if rollout.attempt == 1 and task["id"] == "sum/3":
                raise ValueError
            return ask("?")

        output = tmp_path / "x.jsonl"
        assert collect(solve, output=output).by_status == {"completed": 3, "failed": 1}
        assert collect(solve, output=output).by_status == {"completed": 3, "failed": 1}
        assert len(made) == 4
        assert collect(solve, output=output, retry_failed=True).by_status == {"completed": 4}
        assert made[4:] == [("sum/3", 2)]
        assert collect(solve, output=output, retry_failed=True).earlier == 4
        runs = [one for one in read(output) if one.task is not None and one.task.id == "sum/3"]
        assert own(runs[1])["retry_of"] == runs[0].id
        assert [len(group.trajectories) for group in rt.groups(rt.read(output))] == [1] * 4
        # The rows of the first attempt would be trained on beside those of the one that counts.
        assert [len(one.sequences()) > 0 for one in sorted(runs, key=episodes.attempt_of)] == [False, True]

    def test_without_it_nothing_is_added(self, tmp_path: Path, ask: Callable[[str], str]) -> None:
        collect(lambda task: ask("?"), output=tmp_path / "x.jsonl")
        with pytest.raises(FileExistsError, match=r"x\.jsonl is not empty, and resume=False"):
            collect(lambda task: ask("?"), output=tmp_path / "x.jsonl", resume=False)


def test_the_same_settings_are_no_change(tmp_path: Path, ask: Callable[[str], str]) -> None:
    """Functions and objects are other ones in each process, and have the same names."""

    def reward() -> Callable[..., float]:
        def right(task: Any, result: str, trajectory: rt.Trajectory) -> float:
            return 1.0

        return right

    def solve(task: dict[str, str]) -> str:
        return ask(task["question"])

    for samples in (1, 2):
        collect(
            solve,
            output=tmp_path / "x.jsonl",
            samples=samples,
            reward=[(reward(), 2)],
            recording={"redact": [re.compile("k")]},
        )
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "x.history.jsonl").read_text().splitlines()]
    assert kinds == ["header", "run", "run"]


@pytest.mark.parametrize("output", ["x.jsonl", "runs/"])
def test_two_at_once_do_not_double_an_output(tmp_path: Path, aclient: openai.AsyncOpenAI, output: str) -> None:
    async def solve(task: dict[str, str]) -> str:
        return await asked(aclient, task["question"])

    async def main() -> list[Any]:
        runs = [rt.acollect(solve, TASKS, output=f"{tmp_path}/{output}", progress=False) for _ in range(2)]
        return list(await asyncio.gather(*runs, return_exceptions=True))

    refused, made = sorted(asyncio.run(main()), key=lambda one: isinstance(one, rt.CollectSummary))
    assert isinstance(refused, BlockingIOError)
    assert "another run writes to" in str(refused)
    assert made.by_status == {"completed": 4}
    assert len(list(rt.read(f"{tmp_path}/{output}"))) == 4
    # It is let go of, and leaves nothing behind.
    assert collect(solve, output=f"{tmp_path}/{output}").earlier == 4
    assert not [path.name for path in tmp_path.rglob("*") if "lock" in path.name]


def test_a_surrounding_trajectory_is_no_parent(tmp_path: Path, ask: Callable[[str], str]) -> None:
    """Nor does the recording around get them."""
    with rt.recording(tmp_path / "around.jsonl"):
        with rt.trajectory("outer") as outer:
            collect(lambda task: ask("?"), output=tmp_path / "x.jsonl")
            rt.current()
    assert len(outer.steps) == 0
    assert [one.parent_id for one in read(tmp_path / "x.jsonl")] == [None] * 4
    assert [one.name for one in rt.read(tmp_path / "around.jsonl")] == ["outer"]


def test_subagents_are_inside(tmp_path: Path, ask: Callable[[str], str]) -> None:
    def solve(task: dict[str, str]) -> str:
        with rt.trajectory("helper"):
            return ask(task["question"])

    summary = collect(solve, output=tmp_path / "x.jsonl")
    found = list(rt.read(tmp_path / "x.jsonl"))
    assert sorted(one.name for one in found) == ["helper"] * 4 + ["solve"] * 4
    assert summary.usage.calls == 4
    again = collect(solve, output=tmp_path / "x.jsonl")
    assert (again.by_status, again.earlier, again.usage.calls) == ({"completed": 4}, 4, 0)


def test_programs_that_agents_start_are_inside(tmp_path: Path, server: ScriptedServer) -> None:
    """They record their calls by themselves; the summary counts them."""
    program = (
        "import sys\n"
        "from tests.collection.asking import ask\n"
        f"print(ask({server.base_url!r}, [{{'role': 'user', 'content': sys.argv[1]}}]))\n"
    )

    def solve(task: dict[str, str]) -> str:
        return subprocess.check_output([sys.executable, "-c", program, task["question"]], text=True).strip()

    summary = collect(
        solve, TASKS[:2], output=tmp_path / "x.jsonl", reward=lambda task, result, trajectory: float(result == "four")
    )
    found = list(rt.read(tmp_path / "x.jsonl"))
    roots = {one.id: one for one in found if one.parent_id is None}
    children = [one for one in found if one.parent_id is not None]
    assert [one.parent_id in roots for one in children] == [True, True]
    assert [[step.token_source for step in one.steps] for one in children] == [["engine"]] * 2
    assert (summary.by_status, summary.usage.calls, summary.steps_with_ids, summary.mean_reward) == (
        {"completed": 2},
        2,
        2,
        1.0,
    )
