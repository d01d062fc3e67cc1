"""``rollout-trace diff``: where two trajectories, or the trajectories of two files, differ first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import rollout_trace as rt
from rollout_trace.view.difference import difference
from tests.cli.command import command
from tests.cli.test_show import many, write
from tests.strategies import trajectories
from tests.view.build import conversation, hostile, says, user
from tests.view.pictures import changed, family


def altered(**fields: Any) -> rt.Trajectory:
    """The conversation, its second step with other fields."""
    trajectory = conversation()
    trajectory.steps = [trajectory.steps[0], replace(trajectory.steps[1], **fields)]
    return trajectory


@given(trajectories())
def test_a_trajectory_equals_itself(trajectory: rt.Trajectory) -> None:
    assert difference(trajectory, trajectory).equal


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"completion": says("It is 5.")}, ["answer"]),
        ({"completion_token_ids": np.array([7, 8, 0], np.int32)}, ["tokens"]),
        ({"prompt_token_ids": np.array([1, 2, 3, 4, 5, 9], np.int32)}, ["prompt tokens"]),
        ({"logprobs": np.array([-2.5, -2.5, -2.4], np.float32)}, ["logprobs"]),
        ({"logprobs": None}, ["logprobs"]),
        ({"finish_reason": "length"}, ["finish"]),
        ({"status": "cancelled"}, ["status"]),
        ({"messages": [user("Something else")]}, ["messages"]),
    ],
)
def test_the_first_step_that_differs(fields: dict[str, Any], what: list[str]) -> None:
    for a, b in ((conversation(), altered(**fields)), (altered(**fields), conversation())):
        found = difference(a, b)
        assert found.first is not None
        assert (found.equal, found.first.index, found.first.what, found.differing_steps) == (False, 1, what, 1)


def test_the_token_that_differs_and_what_is_around_it() -> None:
    found = difference(family()[0], changed()).first
    assert found is not None
    assert found.tokens is not None
    assert (found.index, found.tokens.position, found.tokens.before) == (1, 4, "Mean of an empty")
    assert (found.tokens.a_text, found.tokens.b_text) == (" list is now None.", " one.")
    shorter = altered(completion_token_ids=np.array([7, 8], np.int32), logprobs=np.array([-2.5, -2.5], np.float32))
    found = difference(conversation(), shorter).first
    assert found is not None
    assert found.tokens is not None
    assert (found.tokens.position, found.tokens.a_ids, found.tokens.b_ids) == (2, [9], [])


def test_settings_and_results_that_differ() -> None:
    b = altered(sampling={"temperature": 0.5}, model="other", tools=[{"function": {"name": "f"}}])
    b.reward, b.status, b.rewards = 0.0, "failed", {"x": 1.0}
    b.environment = {"python": "3.12", "pid": 7, "host": "elsewhere", "command": ["x"]}
    found = difference(conversation(), b)
    assert {(one.name, one.step) for one in found.settings} == {
        ("model", 1), ("sampling.temperature", 1), ("tool f", 1), ("environment.python", None)}  # fmt: skip
    assert {(one.name, one.a, one.b) for one in found.results} == {
        ("status", "completed", "failed"), ("reward", 1.0, 0.0), ("rewards.x", None, 1.0)}  # fmt: skip


def test_logprobs_within_the_tolerance_are_equal(tmp_path: Path) -> None:
    near = altered(logprobs=np.array([-2.5, -2.5, -2.5005], np.float32))
    assert not difference(conversation(), near).equal
    assert difference(conversation(), near, tolerance=0.001).equal
    write(tmp_path / "a.jsonl", conversation())
    write(tmp_path / "b.jsonl", near)
    assert command(tmp_path, "diff", "a.jsonl", "b.jsonl").code == 1
    assert command(tmp_path, "diff", "a.jsonl", "b.jsonl", "--tolerance", "0.001").code == 0


def test_ids_of_tool_calls_do_not_count() -> None:
    def run(name: str) -> rt.Trajectory:
        trajectory = conversation()
        first = trajectory.steps[0]
        assert first.completion is not None
        call = replace(first.completion.tool_calls[0], id=name)
        trajectory.steps = [replace(first, completion=replace(first.completion, tool_calls=(call,)))]
        return trajectory

    assert difference(run("one"), run("two")).equal


def test_two_files(tmp_path: Path) -> None:
    many(tmp_path / "a.jsonl")
    kept = list(rt.read(tmp_path / "a.jsonl"))
    kept[1].reward = 0.9
    write(tmp_path / "b.jsonl.gz", *reversed(kept[1:]), rt.Trajectory(id="new", name="other"))
    done = command(tmp_path, "diff", "a.jsonl", "b.jsonl.gz")
    assert (done.code, done.err) == (1, "")
    assert done.out.splitlines() == [
        "only in a: agent 0a0 (a.jsonl, line 1)",
        "agent 1a1 (a.jsonl, line 2) | agent 1a1 (b.jsonl.gz, line 5)",
        "    reward",
        "only in b: other new (b.jsonl.gz, line 6)",
        "4 equal, 1 differing, 1 only in a, 1 only in b",
    ]
    found = command(tmp_path, "diff", "a.jsonl", "b.jsonl.gz", "--json").json
    assert found["counts"] == {"equal": 4, "differing": 1, "only_a": 1, "only_b": 1}
    assert (found["only_a"], found["only_b"], [one["a"] for one in found["pairs"]]) == (["0a0"], ["new"], ["1a1"])
    assert command(tmp_path, "diff", "a.jsonl", "a.jsonl").code == 0


def test_runs_of_the_same_tasks_are_paired_where_ids_are_new(tmp_path: Path) -> None:
    many(tmp_path / "a.jsonl")
    again = list(rt.read(tmp_path / "a.jsonl"))
    for one in again:
        one.id = f"new-{one.id}"
    write(tmp_path / "b.jsonl", *reversed(again))
    done = command(tmp_path, "diff", "a.jsonl", "b.jsonl")
    assert (done.code, done.out) == (0, "6 equal, 0 differing, 0 only in a, 0 only in b\n")


def test_two_trajectories_of_a_file(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", conversation(), changed())
    for args in (
        ["a.jsonl", "--ids", "t", "9d2e"],
        ["a.jsonl#1", "a.jsonl#-1"],
        ["a.jsonl", "a.jsonl", "--ids", "1", "2"],
    ):
        done = command(tmp_path, "diff", *args)
        assert (done.code, done.err) == (1, "")
        assert done.out.startswith("a: solver t (a.jsonl)\nb: repair 9d2e (a.jsonl)\n")
    assert command(tmp_path, "diff", "a.jsonl#1", "a.jsonl#2", "--json").json["b"] == "9d2e"
    done = command(tmp_path, "diff", "a.jsonl", "--ids", "1", "1")
    assert (done.code, done.out.endswith("They are equal: 2 steps.\n")) == (0, True)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["a.jsonl"], "name two files"),
        (["a.jsonl#1", "a.jsonl"], "one names an ID, the other does not"),
        (["a.jsonl", "--ids", "1", "zzz"], "there is no trajectory zzz"),
        (["-", "a.jsonl"], "cannot read stdin"),
        (["a.jsonl", "no.jsonl"], "there is no file no.jsonl"),
    ],
)
def test_mistakes_are_said(tmp_path: Path, args: list[str], message: str) -> None:
    many(tmp_path / "a.jsonl")
    done = command(tmp_path, "diff", *args)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert "Traceback" not in done.err


def test_hostile_texts_and_damaged_lines(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", hostile(), conversation())
    (tmp_path / "b.jsonl").write_bytes(b"{broken\n" + (tmp_path / "a.jsonl").read_bytes())
    other = hostile()
    other.metadata, other.steps = {"note": "\x1b[0m"}, []
    write(tmp_path / "c.jsonl", other)
    for args in (["a.jsonl#1", "a.jsonl#2"], ["a.jsonl", "c.jsonl"], ["a.jsonl#1", "c.jsonl#1"]):
        done = command(tmp_path, "diff", *args, "--full")
        assert (done.code, done.err) == (1, "")
        assert [one for one in done.out.replace("\n", "") if not one.isprintable()] == []
    done = command(tmp_path, "diff", "a.jsonl", "b.jsonl")
    assert (done.code, "2 equal" in done.out, "b.jsonl, line 1: " in done.err) == (1, True, True)
