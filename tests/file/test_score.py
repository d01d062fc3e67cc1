"""A function scores trajectories: many at a time, once each, and no failure becomes a number."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace import JSONLWriter


def write(path: Path, *runs: rt.Trajectory) -> Path:
    with JSONLWriter(path) as out:
        for run in runs:
            out.write(run)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Ten trajectories ``0`` to ``9`` without a reward, and one with."""
    runs = [rt.Trajectory(id=str(at)) for at in range(10)]
    return write(tmp_path / "rollouts.jsonl", *runs, rt.Trajectory(id="done", reward=7))


def rewards(path: Path) -> dict[str, float | None]:
    return {run.id: run.reward for run in rt.read(path)}


def counts(report: rt.ScoreReport) -> tuple[int, int, int, int]:
    return report.scored, report.skipped, report.failed, report.unscored


def number(trajectory: rt.Trajectory) -> float:
    return int(trajectory.id) / 10


async def number_later(trajectory: rt.Trajectory) -> float:
    await asyncio.sleep(0)
    return number(trajectory)


class Judge:
    async def __call__(self, trajectory: rt.Trajectory) -> float:
        return number(trajectory)


FUNCTIONS: dict[str, Any] = {
    "function": number,
    "coroutine": number_later,
    "object": Judge(),
    "lambda": lambda trajectory: number(trajectory),
    "lambda-around-a-coroutine": lambda trajectory: number_later(trajectory),
    "partial": functools.partial(number_later),
}
EXPECTED = {**{str(at): at / 10 for at in range(10)}, "done": 7}


@pytest.mark.parametrize("concurrency", [1, 3, 64])
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_each_is_scored_once(function: Any, concurrency: int, path: Path) -> None:
    report = rt.score(path, function, concurrency=concurrency)
    assert counts(report) == (10, 1, 0, 0)
    assert rewards(path) == EXPECTED
    again = rt.score(path, function, concurrency=concurrency)
    assert counts(again) == (0, 11, 0, 0)
    assert str(report) == "scored 10, skipped 1, failed 0"
    assert len((path.parent / "rollouts.notes.jsonl").read_text().splitlines()) == 10


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_inside_a_running_loop(function: Any, path: Path) -> None:
    async def notebook() -> rt.ScoreReport:
        return rt.score(path, function)

    assert counts(asyncio.run(notebook())) == (10, 1, 0, 0)
    assert rewards(path) == EXPECTED


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_awaited(function: Any, path: Path) -> None:
    assert counts(asyncio.run(rt.ascore(path, function))) == (10, 1, 0, 0)
    assert rewards(path) == EXPECTED


@pytest.mark.parametrize("is_async", [False, True])
def test_so_many_run_at_the_same_time(is_async: bool, path: Path) -> None:
    """Each waits until four are there: with fewer at a time none would ever end."""
    gate, here, all_here = threading.Barrier(4), 0, asyncio.Event()

    def judge(trajectory: rt.Trajectory) -> float:
        if int(trajectory.id) < 8:
            gate.wait(60)
        return 1

    async def judge_later(trajectory: rt.Trajectory) -> float:
        nonlocal here
        here += 1
        if here == 4:
            all_here.set()
        await asyncio.wait_for(all_here.wait(), 60)
        return 1

    assert counts(rt.score(path, judge_later if is_async else judge, concurrency=4)) == (10, 1, 0, 0)


@dataclass
class Verdict:
    reward: float
    metadata: dict[str, Any]


RESULTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "bool": (True, {"reward": 1.0}),
    "names": ({"style": 1, "correct": 0.5}, {"rewards": {"style": 1, "correct": 0.5}}),
    "dict": ({"reward": 1, "rewards": {"a": 2}}, {"reward": 1, "rewards": {"a": 2}}),
    "metrics": ({"metrics": {"seconds": 2}, "reward": None}, {"metrics": {"seconds": 2}}),
    "object": (Verdict(reward=1, metadata={"why": "x"}), {"reward": 1, "metadata": {"why": "x"}}),
    "steps": ({"steps": {"s": {"reward": 1}}}, {}),
}


@pytest.mark.parametrize(("result", "expected"), RESULTS.values(), ids=RESULTS)
def test_what_a_function_may_return(result: Any, expected: dict[str, Any], tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", rt.Trajectory(id="a", steps=[rt.Step(id="s", call_id="c")]))
    assert counts(rt.score(path, lambda _: result)) == (1, 0, 0, 0)
    (found,) = rt.read(path)
    assert {name: getattr(found, name) for name in expected} == expected
    assert (found.reward is None) == ("reward" not in expected)


NO_RESULTS: dict[str, tuple[Any, str]] = {
    "text": ("1", "TypeError: reward is '1' (str); give one finite number"),
    "nan": (float("nan"), "ValueError: reward is nan; give a finite number"),
    "names": ({"style": "good"}, "TypeError: rewards['style'] is 'good' (str)"),
    "mixed": ({"reward": 1, "why": "x"}, "TypeError: the function returned 'why' beside 'reward'. Put named rewards"),
}


@pytest.mark.parametrize(("result", "said"), NO_RESULTS.values(), ids=NO_RESULTS)
def test_what_is_no_score_is_a_failure_and_never_a_number(result: Any, said: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", rt.Trajectory(id="a"))
    report = rt.score(path, lambda _: result)
    assert counts(report) == (0, 0, 1, 0)
    assert report.errors[0].startswith(f"a: {said}")
    (found,) = rt.read(path)
    assert (found.reward, found.rewards) == (None, None)
    assert found.metadata is not None
    assert found.metadata["score_error"]["type"] == said.partition(":")[0]


@pytest.mark.parametrize("result", [None, {}, {"reward": None}])
def test_no_score_is_noted_as_nothing(result: Any, path: Path) -> None:
    report = rt.score(path, lambda _: result)
    assert counts(report) == (0, 1, 0, 10)
    assert str(report) == "scored 0, skipped 1, failed 0; without a score 10: the function returned None"
    assert not (path.parent / "rollouts.notes.jsonl").exists()


@pytest.mark.parametrize("is_async", [False, True])
def test_failures_are_noted_and_tried_again(is_async: bool, path: Path) -> None:
    failing = {"3", "7"}

    def judge(trajectory: rt.Trajectory) -> float:
        if trajectory.id in failing:
            raise RuntimeError(f"overloaded \x1b[2J {trajectory.id}")
        return 1

    async def judge_later(trajectory: rt.Trajectory) -> float:
        if trajectory.id in failing and trajectory.id == "7":
            raise asyncio.CancelledError("by itself")
        return judge(trajectory)

    function: Any = judge_later if is_async else judge
    report = rt.score(path, function, name="judge")
    assert counts(report) == (8, 1, 2, 0)
    assert sorted(report.errors)[0] == "3: RuntimeError: overloaded \\x1b[2J 3"
    assert "failures: " in str(report)
    failed = {run.id: run for run in rt.read(path) if run.metadata}
    assert failed.keys() == failing
    assert failed["3"].reward is None
    assert failed["3"].metadata == {"score_error": {"type": "RuntimeError", "message": "overloaded \x1b[2J 3"}}
    failing.clear()
    assert counts(rt.score(path, function, name="judge")) == (2, 9, 0, 0)
    assert [run.metadata for run in rt.read(path)] == [None] * 11


def test_a_failure_that_was_merged_into_the_file_goes_with_the_score(path: Path) -> None:
    def failing(_: rt.Trajectory) -> float:
        raise RuntimeError("no")

    rt.score(path, failing)
    merged = path.parent / "merged.jsonl"
    rt.merge(path, merged)
    assert [run.metadata is not None for run in rt.read(merged)] == [True] * 10 + [False]
    rt.score(merged, number)
    assert [run.metadata for run in rt.read(merged)] == [None] * 11
    rt.merge(merged, path.parent / "again.jsonl")
    assert list(rt.read(path.parent / "again.jsonl")) == list(rt.read(merged))


def test_only_the_first_failures_are_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", *(rt.Trajectory(id=str(at)) for at in range(25)))
    report = rt.score(path, lambda run: 1 / 0)
    assert (report.failed, len(report.errors)) == (25, 10)
    assert str(report).endswith("ZeroDivisionError: division by zero (and 15 more)")


def test_where_chooses_and_a_name_resumes(path: Path) -> None:
    def style(_: rt.Trajectory) -> dict[str, float]:
        return {"style": 1}

    def even(run: rt.Trajectory) -> bool:
        return run.id == "done" or int(run.id) % 2 == 0

    assert counts(rt.score(path, style, where=even)) == (6, 5, 0, 0)
    assert rewards(path)["done"] == 7
    # By its name: no trajectory that it scored has got a reward.
    assert counts(rt.score(path, style, where=lambda _: True)) == (5, 6, 0, 0)
    assert counts(rt.score(path, style, where=lambda _: True)) == (0, 11, 0, 0)
    assert counts(rt.score(path, style, where=even, again=True)) == (6, 5, 0, 0)
    assert counts(rt.score(path, style, name="style/2", where=even)) == (6, 5, 0, 0)
    assert all(run.rewards == {"style": 1} for run in rt.read(path))


def test_a_function_sees_what_was_noted_before(path: Path) -> None:
    rt.annotate(path, "3", metadata={"label": "good"})
    rt.score(path, lambda run: 1.0 if run.metadata else 0.0)
    assert {name for name, reward in rewards(path).items() if reward == 1} == {"3"}


def test_doubles_are_scored_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", rt.Trajectory(id="a"), rt.Trajectory(id="a"))
    assert counts(rt.score(path, lambda _: 1)) == (1, 0, 0, 0)
    assert [run.reward for run in rt.read(path)] == [1, 1]


def test_each_file_gets_its_own_notes(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl.gz"):
        write(tmp_path / name, rt.Trajectory(id=name))
    rt.score(tmp_path / "*.jsonl*", lambda _: 1)
    ids = [json.loads((tmp_path / f"{name}.notes.jsonl").read_text())["id"] for name in "ab"]
    assert ids == ["a.jsonl", "b.jsonl.gz"]


def test_lines_that_cannot_be_read(path: Path) -> None:
    with path.open("a") as file:
        file.write("x\n")
    with pytest.raises(rt.FormatError, match="line 12"):
        rt.score(path, number, concurrency=2)
    report = rt.score(path, number, on_error="skip")
    assert report.scored + report.skipped == 11
    assert len(report.unreadable) == 1
    assert "lines that could not be read: 1, the first: " in str(report)
    assert [run.reward for run in rt.read(path, on_error="skip")] == list(EXPECTED.values())


def test_mistakes_raise_at_once(path: Path) -> None:
    with pytest.raises(TypeError, match=r"^function is 1 \(int\); give a function\.$"):
        rt.score(path, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="concurrency is 0; give how many calls may run"):
        rt.score(path, number, concurrency=0)
    with pytest.raises(TypeError, match=r"concurrency is 1\.5"):
        rt.score(path, number, concurrency=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='it can be "raise" or "skip"'):
        rt.score(path, number, on_error="no")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^where is 'done' \(str\); give a function of a trajectory\.$"):
        rt.score(path, number, where="done")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^name is 3 \(int\); give a name for the scores, as text\.$"):
        rt.score(path, number, name=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r'^expected the path of a file, such as "rollouts\.jsonl", .* got 3\.$'):
        rt.score(3, number)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        rt.score(path.parent / "no.jsonl", number)
    assert not (path.parent / "rollouts.notes.jsonl").exists()


def test_a_mistake_in_where_raises_and_stops(path: Path) -> None:
    def where(run: rt.Trajectory) -> bool:
        return bool(run.no_such_field)  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match="no_such_field"):
        rt.score(path, number, where=where)


def test_notes_that_cannot_be_written_raise(path: Path) -> None:
    (path.parent / "rollouts.notes.jsonl").mkdir()
    with pytest.raises(OSError, match="directory"):
        rt.score(path, number)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_an_interruption_keeps_what_was_scored(concurrency: int, path: Path) -> None:
    def judge(run: rt.Trajectory) -> float:
        if run.id == "8":
            raise KeyboardInterrupt
        return 1

    with pytest.raises(KeyboardInterrupt):
        rt.score(path, judge, concurrency=concurrency)
    if concurrency == 1:
        assert [reward for reward in rewards(path).values() if reward == 1] == [1] * 8
    assert rewards(path)["8"] is None
    rt.score(path, lambda _: 1)
    assert set(rewards(path).values()) == {1, 7}


INTERRUPTED = """
import asyncio, sys
import rollout_trace as rt

def judge(run):
    if run.id == "5":
        print("there", flush=True)
        sys.stdin.readline()
    return 1

async def judge_later(run):
    if run.id == "5":
        print("there", flush=True)
        await asyncio.sleep(600)
    return 1

async def notebook():
    rt.score("rollouts.jsonl", judge, concurrency=1)

try:
    if sys.argv[1] == "notebook":
        asyncio.run(notebook())
    else:
        rt.score("rollouts.jsonl", judge if sys.argv[1] == "sync" else judge_later, concurrency=1)
except KeyboardInterrupt:
    print("stopped", flush=True)
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
@pytest.mark.parametrize("kind", ["sync", "async", "notebook"])
def test_ctrl_c_keeps_what_was_scored(kind: str, path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", INTERRUPTED, kind]
    with subprocess.Popen(
        command, cwd=path.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "stopped\n"
        # The call that was running in a thread ends by itself, and is noted too.
        _, errors = process.communicate("\n", timeout=60)
    assert (process.returncode, errors) == (0, "")
    scored = [name for name, reward in rewards(path).items() if reward == 1]
    assert scored == [str(at) for at in range(5 if kind == "async" else 6)]
