"""What stands in the place of Python's own words for wrong use, and changes nothing of right use."""

from __future__ import annotations

import contextlib
import copy
import pickle
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import pytest

import rollout_trace as rt

BLOCKS = ["instrument", "recording", "tool_run", "trajectory"]


@pytest.mark.parametrize("name", BLOCKS)
def test_pickled_and_copied_they_are_themselves(name: str) -> None:
    block = getattr(rt, name)
    assert pickle.loads(pickle.dumps(block)) is block
    assert copy.deepcopy(block) is block


def test_an_agent_of_a_script_can_be_sent_to_other_processes() -> None:
    """Ray and others send it by value, with the modules that it uses."""
    names: dict[str, Any] = {"__name__": "__main__", "rt": rt}
    exec("def agent(task):\n    with rt.trajectory() as trajectory:\n        return trajectory.name", names)
    assert pickle.loads(cloudpickle.dumps(names["agent"]))("a task") == "agent"


def test_classes_of_users_that_are_made_from_recording() -> None:
    class Own(rt.recording, contextlib.AbstractContextManager):  # type: ignore[type-arg]
        """A recording that is of another class as well."""

    uncalled: Any = Own
    with pytest.raises(TypeError, match=r"rt\.Own is not called here\. Write `with rt\.recording"):
        with uncalled:
            pass


@pytest.mark.parametrize("name", ["instrument", "tool_run", "trajectory"])
def test_attributes_that_a_function_does_not_have(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"rt\.{name} is a function and has no 'reward'\. .*`with rt\.{name}"):
        _ = getattr(rt, name).reward
    assert not hasattr(getattr(rt, name), "__iter__")


def test_names_of_tools_that_are_no_text() -> None:
    """They are recorded as ever: the tool runs."""
    name: Any = None
    with rt.trajectory() as trajectory, rt.tool_run(name) as run:
        run.result = 1
    assert [one.result for one in trajectory.tool_runs] == [1]
