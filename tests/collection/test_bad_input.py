"""What ``rt.collect`` refuses: one sentence that says what was wrong and what to do, before any rollout."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.collection.settings import GROUPS

ran: list[object] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


def agent(task: Any) -> str:
    ran.append(task)
    return "done"


def no_arguments() -> str:
    ran.append(None)
    return "done"


def three(task: Any, rollout: Any, more: Any) -> str:
    ran.append(task)
    return "done"


def generator(task: Any) -> Any:
    ran.append(task)
    yield "done"


class NeedsMore:
    def __init__(self, model: str) -> None:
        self.model = model

    def rollout(self, task: Any) -> str:
        ran.append(task)
        return "done"


class WithoutMethods:
    pass


def reward_of_one(result: Any) -> float:
    return 1.0


USUAL: dict[str, Any] = {"agent": agent, "tasks": ["a", "b"]}
CASES: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("samples-zero", {"samples": 0}, ValueError, r"samples is 0; give"),
    ("samples-negative", {"samples": -1}, ValueError, r"samples"),
    ("samples-text", {"samples": "4"}, TypeError, r"samples is '4' .*of at least 1"),
    ("samples-half", {"samples": 1.5}, TypeError, r"samples"),
    ("samples-true", {"samples": True}, TypeError, r"samples"),
    ("concurrency-zero", {"concurrency": 0}, ValueError, r"concurrency is 0; give"),
    ("concurrency-none", {"concurrency": None}, TypeError, r"concurrency"),
    ("timeout-negative", {"timeout": -1}, ValueError, r"timeout is -1; give"),
    ("timeout-zero", {"timeout": 0}, ValueError, r"timeout is 0; give"),
    ("timeout-nan", {"timeout": float("nan")}, ValueError, r"timeout"),
    ("timeout-text", {"timeout": "5s"}, TypeError, r"timeout is '5s' .*give seconds above 0, or None"),
    (
        "reward-timeout",
        {"reward": lambda a, b, c: 1.0, "reward_timeout": -2},
        ValueError,
        r"reward_timeout is -2; give",
    ),
    ("retries", {"retries": -1}, ValueError, r"retries is -1; give"),
    ("retry-wait", {"retries": 1, "retry_wait": -1}, ValueError, r"retry_wait"),
    ("retry-wait-most", {"retries": 1, "retry_wait_max": None}, TypeError, r"retry_wait_max is None .*give seconds"),
    ("retry-on-nothing", {"retries": 1, "retry_on": []}, ValueError, r"retry_on is empty; give"),
    ("resume-text", {"resume": "no"}, TypeError, r"resume is 'no' \(str\); give True or False"),
    ("retry-failed-text", {"retry_failed": "no"}, TypeError, r"retry_failed is 'no' \(str\); give True or False"),
    ("instrument-text", {"instrument": "no"}, TypeError, r"instrument is 'no' \(str\); give True or False"),
    ("logs-number", {"logs": 5}, TypeError, r"logs is 5 \(int\); give"),
    ("name-blank", {"name": " "}, ValueError, r"name is ' '; give"),
    ("retry-on-number", {"retry_on": 5}, TypeError, r"retry_on is 5; give"),
    ("retry-on-class", {"retry_on": [int]}, TypeError, r"retry_on has .*give"),
    ("seed", {"seed": "x"}, TypeError, r"seed"),
    ("limit", {"limit": 0}, ValueError, r"limit is 0; give"),
    ("most-failures", {"max_consecutive_failures": -1}, ValueError, r"max_consecutive_failures"),
    ("reward-number", {"reward": 5}, TypeError, r"reward is 5; give"),
    ("reward-of-one", {"reward": reward_of_one}, TypeError, r"reward_of_one.*three arguments"),
    ("reward-empty", {"reward": []}, ValueError, r"reward is empty; give"),
    ("reward-twice", {"reward": [judge := lambda a, b, c: 1.0, judge]}, ValueError, r"two rewards have the name"),
    ("reward-weight", {"reward": [(lambda a, b, c: 1.0, "x")]}, TypeError, r"weight"),
    ("reward-missing", {"reward": "no_such_module_here:judge"}, ImportError, r"no_such_module_here"),
    ("agent-none", {"agent": None}, TypeError, r"agent"),
    ("agent-number", {"agent": 5}, TypeError, r"agent"),
    ("agent-no-arguments", {"agent": no_arguments}, TypeError, r"no_arguments"),
    ("agent-three", {"agent": three}, TypeError, r"three"),
    ("agent-generator", {"agent": generator}, TypeError, r"generator"),
    ("agent-needs-more", {"agent": NeedsMore}, TypeError, r"NeedsMore"),
    ("agent-without-methods", {"agent": WithoutMethods}, TypeError, r"WithoutMethods"),
    ("agent-not-there", {"agent": "no_such_module_here:agent"}, ImportError, r"no_such_module_here"),
    ("agent-no-name", {"agent": "json:no_such_name"}, ImportError, r"no_such_name"),
    ("agent-no-colon", {"agent": "agent"}, ValueError, r"agent"),
    ("agent-no-file", {"agent": "no_such_file.py:agent"}, FileNotFoundError, r"no_such_file\.py"),
    ("tasks-none", {"tasks": None}, TypeError, r"tasks"),
    ("tasks-number", {"tasks": 5}, TypeError, r"tasks"),
    ("tasks-empty", {"tasks": []}, ValueError, r"no tasks.*give"),
    ("tasks-double", {"tasks": [{"id": "a"}, {"id": "b"}, {"id": "a"}]}, ValueError, r"'?a'?"),
    ("tasks-some-ids", {"tasks": [{"id": "a"}, {"question": "b"}]}, ValueError, r"id"),
    ("tasks-no-file", {"tasks": "no_such_file.jsonl"}, OSError, r"no_such_file\.jsonl"),
    ("tasks-no-such-id", {"tasks": [{"id": "abc"}], "task_ids": ["abd"]}, ValueError, r"abd"),
    ("name", {"name": object()}, TypeError, r"name"),
    ("executor-text", {"executor": "threads"}, TypeError, r"executor is 'threads'; give"),
    ("executor-object", {"executor": object()}, TypeError, r"executor is .*; give"),
    ("output-none", {"output": None}, TypeError, r"output is None; give"),
    ("output-empty", {"output": ""}, ValueError, r"output is an empty text; give"),
    ("output-suffix", {"output": "rollouts.parquet"}, ValueError, r"rollouts\.parquet"),
    ("output-scheme", {"output": "nosuchscheme://bucket/runs"}, Exception, r"nosuchscheme"),
    ("recording", {"recording": {"no_such_option": 1}}, TypeError, r"rt\.recording has no argument 'no_such_option'. "),
    ("recording-close", {"recording": {"fsnc": True}}, TypeError, r"'fsnc'. Did you mean fsync\?"),
    ("recording-number", {"recording": 5}, TypeError, r"recording is 5 \(int\); give a mapping"),
    ("engine-options", {"engine": {"name": "vllm", "top": 1}}, TypeError, r"engine is .*give .*rt\.Engine"),
    ("executor-class", {"executor": rt.ProcessExecutor}, TypeError, r"the class ProcessExecutor; give an instance"),
    ("tasks-one", {"tasks": {"id": "a", "question": "b"}}, ValueError, r"one task, with the field 'id'"),
    ("reward-pair", {"reward": (lambda a, b, c: 1.0, 0.5)}, TypeError, r"give .*in a list: \[\(function, weight\)\]"),
    ("engine", {"engine": "no-such-engine"}, ValueError, r"no-such-engine"),
    ("progress", {"progress": "bar"}, TypeError, r"progress"),
]


@pytest.mark.parametrize(("given", "kind", "words"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_one_sentence(
    given: dict[str, Any], kind: type[Exception], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = {"output": str(tmp_path / "rollouts.jsonl"), "progress": False, **USUAL, **given}
    with pytest.raises(kind, match=words) as caught:
        rt.collect(**arguments)
    text = str(caught.value)
    assert "\n" not in text, text
    assert len(text) < 400, text
    assert ran == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_the_same_in_an_event_loop(tmp_path: Path) -> None:
    import asyncio

    with pytest.raises(ValueError, match="samples is 0; give"):
        asyncio.run(rt.acollect(agent, ["a"], output=tmp_path / "rollouts.jsonl", samples=0, progress=False))
    assert ran == []


def test_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    """In a folder below a file: root, too, may not write there."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=re.escape(str(tmp_path / "file"))):
        rt.collect(agent, ["a"], output=tmp_path / "file" / "rollouts.jsonl", progress=False)
    assert ran == []


def test_an_output_that_holds_the_tasks(tmp_path: Path) -> None:
    """Nothing is appended to a file of somebody else's, that of the tasks least of all."""
    tasks, other = tmp_path / "tasks.jsonl", tmp_path / "other.jsonl"
    for path in (tasks, other):
        path.write_text('{"id": "a"}\n{"id": "b"}\n')
    with pytest.raises(ValueError, match=r"tasks\.jsonl, the file of the tasks; give another one"):
        rt.collect(agent, tasks, output=tasks, progress=False)
    with pytest.raises(ValueError, match=r"other\.jsonl holds 2 lines, and none of them is a trajectory: give another"):
        rt.collect(agent, tasks, output=other, progress=False)
    assert other.read_text() == tasks.read_text() == '{"id": "a"}\n{"id": "b"}\n'
    assert ran == []


def test_an_output_that_holds_something_and_no_resume(tmp_path: Path) -> None:
    output = tmp_path / "rollouts.jsonl"
    rt.collect(agent, ["a"], output=output, progress=False)
    ran.clear()
    with pytest.raises(FileExistsError, match=r"is not empty, and resume=False\. Give another output"):
        rt.collect(agent, ["a"], output=output, resume=False, progress=False)
    assert ran == []


@pytest.mark.parametrize("missing", ["zstandard", "fsspec", "ray"])
def test_a_missing_extra(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    every: dict[str, dict[str, Any]] = {
        "zstandard": {"output": tmp_path / "rollouts.jsonl.zst"},
        "fsspec": {"output": "s3://bucket/runs"},
        "ray": {"output": tmp_path / "rollouts.jsonl", "executor": "ray"},
    }
    given = every[missing]
    how = "zstandard" if missing == "zstandard" else rf"'\.\[{missing}\]'"
    with pytest.raises(ImportError, match=f"pip install {how}"):
        rt.collect(agent, ["a"], progress=False, **given)
    assert ran == []


def test_an_agent_that_returns_nothing_is_no_mistake(tmp_path: Path) -> None:
    """Its reward function sees None; what it recorded is what counts."""
    seen: list[Any] = []

    def nothing(task: Any) -> None:
        ran.append(task)

    def judge(task: Any, result: Any, trajectory: rt.Trajectory) -> float:
        seen.append(result)
        return 1.0

    output = tmp_path / "rollouts.jsonl"
    rt.collect(nothing, ["a"], output=output, reward=judge, progress=False)
    assert (ran, seen) == (["a"], [None])
    assert [(one.status, one.reward) for one in rt.read(output)] == [("completed", 1.0)]


def test_a_reward_that_does_not_expect_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The reason is told at once, and beside the exception, which does not name it."""

    def nothing(task: Any) -> None:
        return None

    def judge(task: Any, result: Any, trajectory: rt.Trajectory) -> float:
        return float("4" in result)

    rt.collect(nothing, ["a", "b"], output=tmp_path / "rollouts.jsonl", reward=judge, concurrency=1)
    reasons = [line for line in capsys.readouterr().err.splitlines() if "reward failed" in line]
    assert len(reasons) == 1
    assert reasons[0].endswith(
        "judge: TypeError: argument of type 'NoneType' is not iterable (the agent returned None)"
    )


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), "good", object(), [1.0]], ids=["nan", "inf", "text", "object", "list"]
)
def test_a_reward_that_is_none_is_recorded_as_missing(value: Any, tmp_path: Path) -> None:
    output = tmp_path / "rollouts.jsonl"
    rt.collect(agent, ["a"], output=output, reward=lambda task, result, trajectory: value, progress=False)
    (one,) = rt.read(output)
    assert (one.status, one.reward) == ("completed", None)
    assert one.metadata is not None
    assert one.metadata["reward_errors"]


def test_each_key_of_a_group_has_the_name_that_its_argument_had() -> None:
    """In the groups' types, and among the earlier names, which type checkers read."""
    earlier = {name for group in GROUPS.values() for name in group.values()} - GROUPS.keys()
    tree = ast.parse(inspect.getsource(sys.modules["rollout_trace.collection.collect"]))
    typed = {
        node.name: {one.target.id for one in node.body if isinstance(one, ast.AnnAssign)
                    and isinstance(one.target, ast.Name)}
        for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    }  # fmt: skip
    assert typed["EarlierNames"] == earlier
    for name, group in (("Retries", "retries"), ("Timeouts", "timeout"), ("Limits", "limits")):
        assert typed[name] == GROUPS[group].keys()
