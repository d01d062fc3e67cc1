"""What a failed plain `assert` prints of trajectories, steps and tool runs."""

from __future__ import annotations

import copy
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import rollout_trace as rt
from rollout_trace.data.model import ToolRun
from rollout_trace.guard import SPACES
from rollout_trace.testing import RecordedRollout
from rollout_trace.testing.compare_repr import compare_repr
from tests.amount import amount
from tests.strategies import PROFILE, trajectories
from tests.view.build import conversation, hostile, says

pytest_plugins = ("pytester",)


def lines_of(op: str, left: object, right: object) -> list[str]:
    """The lines between the summary and the conversations."""
    lines = compare_repr(op, left, right)
    assert lines is not None
    return lines[1 : lines.index("")] if "" in lines else lines[1:]


def changed(at: int, **fields: Any) -> rt.Trajectory:
    other = copy.deepcopy(conversation())
    other.steps = [replace(one, **fields) if n == at else one for n, one in enumerate(other.steps)]
    return other


def test_the_first_step_that_differs_and_its_fields() -> None:
    ids = np.array([7, 8, 1_234_567, 12], np.int32)
    other = changed(1, id="other", latency=3.0, completion=says("It is 5."), completion_token_ids=ids, logprobs=None)
    lines = compare_repr("==", conversation(), other)
    assert lines == [
        "Trajectory('t', name='solver', task='sum/1', completed, 2 steps, reward=1.0) == "
        "Trajectory('t', name='solver', task='sum/1', completed, 2 steps, reward=1.0)",
        "  steps.1.completion.content",
        "    left      It is 4.",
        "    right     It is 5.",
        "                    ^",
        "  steps.1.completion_token_ids[2:]",
        "    left      [9]",
        "    right     [1234567, 12]",
        "  steps.1.logprobs",
        "    left      [-2.5, -2.5, -2.5]",
        "    right     (not there)",
        "They differ too in what is of one run alone: steps.1.id and steps.1.latency.",
        "",
        "left: solver  2 steps, completed, reward 1",
        "    system    Be brief.",
        "    user      What is 2 + 2?",
        '  0 assistant calls calculator {"expression": "2 + 2"}  [stop]',
        "    tool      calculator → 4",
        "  1 assistant It is 4.  [stop]",
        "",
        "right: solver  2 steps, completed, reward 1",
        "    system    Be brief.",
        "    user      What is 2 + 2?",
        '  0 assistant calls calculator {"expression": "2 + 2"}  [stop]',
        "    tool      calculator → 4",
        "  1 assistant It is 5.  [stop]",
    ]


def test_what_is_of_one_run_alone_is_not_taken_for_a_difference() -> None:
    other = copy.deepcopy(conversation())
    other.id = "other"
    assert lines_of("==", conversation(), other) == ["They differ only in what is of one run alone: id."]
    lines = compare_repr("==", conversation(), other)
    assert lines is not None
    assert sum("It is 4." in line for line in lines) == 1  # what is equal is shown once


def test_messages_and_settings() -> None:
    asked = list(conversation().steps[0].messages or ())
    other = changed(0, messages=[asked[0], {"role": "user", "content": "What is 2 + 3?"}], sampling={"seed": 1})
    assert lines_of("==", conversation(), other) == [
        "  steps.0.messages.1.content",
        "    left      What is 2 + 2?",
        "    right     What is 2 + 3?",
        "                          ^",
        "  steps.0.sampling",
        "    left      (not there)",
        '    right     {"seed": 1}',
    ]


def test_long_texts_are_shown_where_they_differ() -> None:
    one, two = "a" * 500 + "b" * 500, "a" * 500 + "c" * 500
    lines = lines_of("==", ToolRun(name="x", result=one), ToolRun(name="x", result=two))
    assert lines[0] == "  result"
    assert lines[1].startswith(f"    left      …{'a' * 24}bbb")
    assert f"    right     …{'a' * 24}ccc" in "".join(lines)


def test_numbers_of_steps_and_runs() -> None:
    shorter = copy.deepcopy(conversation())
    shorter.steps = shorter.steps[:1]
    path, first, *_, last = lines_of("==", conversation(), shorter)
    assert path == "  steps.1"
    assert first.startswith('    left      {"id": "step-1"')
    assert last == "    right     (not there)"
    assert lines_of("==", conversation().tool_runs, [])[0] == "  0"
    assert lines_of("==", conversation().tool_runs, [ToolRun(name="search")])[:3] == [
        "  0.tool_call_id",
        "    left      call-calculator",
        "    right     (not there)",
    ]


def test_other_kinds_and_what_is_equal() -> None:
    whole = conversation()
    assert lines_of("==", whole.steps[0], 3)[-1] == "    right     3"
    rollout = RecordedRollout(lambda: [whole])
    assert lines_of("==", rollout, whole)[0].startswith("A rollout equals nothing but itself: compare rollout.traj")
    nan = ToolRun(name="x", result=float("nan"))
    assert lines_of("==", nan, ToolRun(name="x", result=float("nan")))[0].startswith("No difference can be named")


@pytest.mark.parametrize("values", [(1, 2), ("a", "b"), ([1], [2]), ({}, {"a": 1}), ([], ()), (None, int)])
def test_other_values_are_left_to_pytest(values: tuple[object, object]) -> None:
    assert compare_repr("==", *values) is None
    for op in ("!=", "in", "<"):
        assert compare_repr(op, conversation(), conversation()) is None


def test_nothing_is_imported_for_other_values() -> None:
    code = (
        "import sys; from rollout_trace.testing.compare_repr import compare_repr; compare_repr('==', [1], 'x');"
        "print([n for n in sys.modules if n.split('.')[0] in ('numpy', 'msgspec') or n.startswith('rollout_trace.v')])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_no_value_can_steer_the_terminal() -> None:
    lines = compare_repr("==", hostile(), conversation())
    assert lines is not None
    assert all(one.isprintable() or one in SPACES for line in lines for one in line)


def test_values_that_cannot_be_compared_or_shown() -> None:
    class Bad:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no")

        def __repr__(self) -> str:
            raise RuntimeError("no")

        __hash__ = None  # type: ignore[assignment]

    lines = lines_of("==", ToolRun(result=Bad()), ToolRun(result=1))
    assert lines == ["  result", "    left      <Bad whose repr raised RuntimeError>", "    right     1"]


@settings(PROFILE, max_examples=amount(4, 8, 150))
@given(trajectories(), trajectories())
def test_any_two_trajectories(one: rt.Trajectory, two: rt.Trajectory) -> None:
    lines = compare_repr("==", one, two)
    assert lines is not None
    assert len(lines) < 60
    assert all(one.isprintable() or one in SPACES for line in lines for one in line)


def test_in_pytest(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        from rollout_trace.testing.compare_repr import compare_repr

        def pytest_assertrepr_compare(op, left, right):
            return compare_repr(op, left, right)
        """
    )
    pytester.makepyfile(
        """
        import rollout_trace as rt

        def test_it():
            run = rt.ToolRun(name="search", arguments={"query": "x"})
            assert rt.Trajectory(id="a", tool_runs=[run]) == rt.Trajectory(id="a", reward=1.0)
        """
    )
    result = pytester.runpytest_subprocess("-vv", "-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E *assert Trajectory('a', * == Trajectory('a', *",
            "*tool_runs.0",
            "*reward",
            "*left      (not there)",
            "*right     1.0",
            "*agent  0 steps, completed",
            "*no call to a model was recorded",
        ]
    )
