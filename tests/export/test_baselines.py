"""Advantages over runs: each run counts once in its group, whatever becomes of its tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollout_trace as rt
from rollout_trace import export
from rollout_trace.export import ExportReport
from rollout_trace.train.groups import groups
from tests.consumers.traces import Trace, trajectory_of
from tests.strategies import PROFILE
from tests.unchecked import unchecked

ONE: Trace = [([1, 2], [3, 4], [-0.5, -0.25])]
SPLIT: Trace = [*ONE, ([1, 2, 9], [6], [-1.0])]
METHODS = ("grpo", "leave_one_out")


def run(
    name: str, reward: float | None, trace: Trace = ONE, *, group: str | None = "g", parent: str | None = None
) -> Any:
    made = trajectory_of(trace, reward)
    return replace(made, id=name, episode_id=parent or name, group_id=group, parent_id=parent)


def without_ids(made: rt.Trajectory) -> rt.Trajectory:
    return replace(made, steps=[replace(step, completion_token_ids=None, logprobs=None) for step in made.steps])


@st.composite
def several_runs(draw: st.DrawFn) -> list[rt.Trajectory]:
    """Runs of two groups or none: of one row or of several, without usable tokens, not scored, with a sub-agent."""
    found: list[rt.Trajectory] = []
    for at in range(draw(st.integers(1, 7))):
        group = draw(st.sampled_from(["g", "g", "h", None]))
        reward = draw(st.sampled_from([None, 0.0, 0.25, 1.0, 1.0]))
        made = run(f"r{at}", reward, draw(st.sampled_from([ONE, SPLIT])), group=group)
        found.append(without_ids(made) if draw(st.integers(0, 4)) == 0 else made)
        if draw(st.booleans()):
            found.append(run(f"r{at}.sub", draw(st.sampled_from([None, 0.5])), SPLIT, group=group, parent=f"r{at}"))
    return found


def of_runs(runs: list[rt.Trajectory], method: Any) -> dict[str, float]:
    pairs = [pair for group in groups(runs) for pair in zip(group.trajectories, group.advantages(method), strict=True)]
    return {one.id: value for one, value in pairs if value is not None}


@PROFILE
@given(several_runs(), st.sampled_from(METHODS))
def test_each_exporters_advantages_are_those_of_the_runs(runs: list[rt.Trajectory], method: Any) -> None:
    expected = of_runs(runs, method)
    rows = {one.id: len(one.sequences()) for one in runs}
    trained = [(name, rows[name]) for name in rows if name in expected and rows[name]]

    outputs = export.verl(runs, advantages=method, report=ExportReport())
    found = [(row["extra_fields"]["trajectory_id"], row["extra_fields"]["advantage"]) for row in outputs]
    assert found == [(name, expected[name]) for name, count in trained for _ in range(count)]

    data = export.tinker(runs, advantages=method, report=ExportReport())
    assert [row["trajectory_id"] for row in data] == [name for name, _ in found]
    for row in data:
        sampled = [expected[row["trajectory_id"]] * mask for mask in row["mask"]]
        assert row["loss_fn_inputs"]["advantages"] == pytest.approx(sampled, rel=1e-6)

    turns = export.steps(runs, advantages=method, report=ExportReport())
    for row in turns:
        value = expected.get(row["trajectory_id"])
        held = None if value is None else pytest.approx([value] * len(row["completion_ids"]), rel=1e-6)
        assert row["advantages"] == held

    for episode in export.verifiers(runs, advantages=method, report=ExportReport()):
        for trace in episode["traces"]:
            nodes = [node for node in trace["nodes"] if node["sampled"] and node["token_ids"]]
            value = expected.get(trace["id"])
            assert bool(nodes) == bool(rows[trace["id"]])
            for node in nodes:
                held = None if value is None else pytest.approx([value] * sum(node["mask"]), rel=1e-6)
                assert node["advantages"] == held


def test_a_run_split_in_rows_counts_once_and_one_without_rows_too() -> None:
    """A consumer that counts rows would have 1, 1, 0 here: another mean, and no word of the third run."""
    runs = [run("a", 1.0, SPLIT), run("b", 0.0), without_ids(run("c", 0.5))]
    report = ExportReport()
    rows = export.verl(runs, advantages="leave_one_out", report=report)
    assert [row["extra_fields"]["advantage"] for row in rows] == [0.75, 0.75, -0.75]
    assert report.dropped == {"steps left out: ids_missing": 1, "scored trajectories without a row": 1}


def test_a_sub_agent_is_a_part_of_its_run() -> None:
    """Not another run of the task: its reward is not compared with those of the solvers."""
    runs = [run("a", 1.0), run("a.sub", 0.25, parent="a"), run("b", 0.0)]
    report = ExportReport()
    rows = export.verl(runs, advantages="leave_one_out", report=report)
    assert [(row["extra_fields"]["trajectory_id"], row["extra_fields"]["advantage"]) for row in rows] == [
        ("a", 1.0),
        ("b", -1.0),
    ]
    assert report.dropped == {"rows without an advantage": 1}


@pytest.mark.parametrize("name", ["chat", "skyrl", "steps", "tinker", "trl", "verl"])
def test_a_scored_run_without_a_row_is_counted(name: str) -> None:
    runs = [without_ids(run("a", 1.0)), without_ids(run("b", None))]
    report = ExportReport()
    getattr(export, name)(runs, report=report)
    assert report.dropped["scored trajectories without a row"] == 1


EXPORTERS = ("skyrl", "tinker", "trl", "verifiers", "verl")


@pytest.mark.parametrize("name", EXPORTERS)
def test_groups_without_two_rewards_are_left_out_where_it_is_asked_for(name: str) -> None:
    """With all that was opened inside their runs; what is in no group stays."""
    runs = [
        run("a", 1.0), run("a.sub", 0.0, parent="a"), run("b", 1.0), run("c", None),
        run("d", 1.0, group="h"), run("e", 0.0, group="h"), run("f", 1.0, group=None),
    ]  # fmt: skip
    options: Any = {"advantages": None} if name == "tinker" else {}
    exporter: Any = getattr(export, name)
    report = ExportReport()
    found = exporter(runs, drop_constant_groups=True, report=report, **options)
    assert found == exporter(runs[4:], **options)
    assert report.dropped == {"trajectories of groups without two different rewards": 4}
    assert exporter(runs[4:6], drop_constant_groups=True, strict=True, **options) == exporter(runs[4:6], **options)


def test_rewards_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(ValueError, match="its reward is nan"):
        export.trl([unchecked(run("a", 1.0), reward=float("nan")), run("b", 0.0)], drop_constant_groups=True)


def test_a_rollout_of_trl_cannot_leave_groups_out() -> None:
    """It has an entry for each prompt."""
    with pytest.raises(TypeError, match="no option drop_constant_groups"):
        export.trl_rollout([], drop_constant_groups=True)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["steps", "tinker", "verifiers", "verl"])
def test_there_is_no_other_kind_of_advantages(name: str) -> None:
    with pytest.raises(ValueError, match="advantages='gae': expected 'grpo', 'leave_one_out'"):
        getattr(export, name)([], advantages="gae")


def test_what_verifiers_is_not_given_is_counted() -> None:
    runs = [run("a", 1.0), run("b", 0.0, group=None)]
    runs[0].steps[0].advantage = 3.0
    report = ExportReport()
    export.verifiers(runs, advantages="grpo", report=report)
    assert report.dropped == {"step advantages": 1, "rows without an advantage": 1}
    report = ExportReport()
    export.verifiers(runs, advantages=None, report=report)
    assert report.dropped == {"step advantages": 1}
