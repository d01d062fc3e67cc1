"""``rt.instrument(hooks=True)`` with a framework: all its runs are recorded, once each, until it is undone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

from oracle import Recorded, Served

import rollout_trace as rt
from rollout_trace import Trajectory
from rollout_trace.testing import ScriptedServer


def assert_runs_are_recorded(
    path: Path,
    script: Any,
    make: Callable[[ScriptedServer], Sequence[Any]],
    run: Callable[[Any], object],
    record: Callable[[Any], Any],
    *,
    package: str,
) -> None:
    """Runs are recorded as by the integration's own hook, not twice where both are used, and not at all afterwards.

    Args:
        path: of the file that is recorded to.
        script: of the server; the agent runs a tool.
        make: returns an agent that nobody records, and further objects in it (its model, its client).
        run: runs an agent of its own, as its user does.
        record: the integration's own hook; returns what is run in the agent's place.
        package: the framework's; its classes are as before afterwards, but for what is wrapped once in a process.
    """
    with ScriptedServer(script) as server, Recorded(path) as recorded:
        agent, *inside = make(server)
        run(record(make(server)[0]))
        with rt.instrument(hooks=True):
            pass
        (by_hand,) = recorded.all()
        classes, kinds, before = functions_of(package), [type(one) for one in (agent, *inside)], len(server.requests)
        run(agent)
        assert recorded.all() == [by_hand]

        with rt.instrument(engine="vllm", hooks=True), rt.instrument(hooks=True):
            for one in (agent, make(server)[0], record(make(server)[0])):
                run(one)
            with rt.trajectory("task") as around:
                run(agent)
        _, *found = recorded.all()
        assert [structure_of(one) for one in found[:3]] == [structure_of(by_hand)] * 3
        # Inside a trajectory of the user's the run is recorded there; a sample of Inspect's is a child of it.
        (inside_one,) = [one for one in found[3:] if one.steps]
        assert {one.id for one in found[3:]} == {around.id, inside_one.id}
        assert around.id in (inside_one.id, inside_one.parent_id)
        assert structure_of(inside_one)[1:] == structure_of(by_hand)[1:]
        server.wait_idle()
        asked = [one.json.get("return_token_ids") for one in server.requests[before:]]
        turns = len(by_hand.steps)
        steps = {step.response_id: step for one in found for step in one.steps}
        # An agent that runs in another event loop than before may send a request twice: its connection is of the first.
        assert asked == [None] * turns + [True] * sum(len(step.attempts) for step in steps.values())
        answers = [Served(one) for one in server.requests[before + turns :]]
        served = [one for one in answers if one.response_id in steps]
        assert len(served) == len(steps) == 4 * turns
        for answer in served:
            answer.assert_is(steps[answer.response_id])

        run(agent)
        assert server.requests[-1].json.get("return_token_ids") is None
        assert len(recorded.all()) == 1 + len(found)
        assert [type(one) for one in (agent, *inside)] == kinds
        assert changed(classes, functions_of(package)) == []
        assert rt.orphans() == []


def structure_of(trajectory: Trajectory) -> Sequence[Any]:
    """What the framework's hook says of a run: its agent, its steps and tool runs, the tools' step."""
    number = {step.id: index for index, step in enumerate(trajectory.steps)}
    tools = [(tool.name, tool.arguments, tool.result, number.get(tool.step_id or "")) for tool in trajectory.tool_runs]
    return trajectory.name, trajectory.status, [step.agent for step in trajectory.steps], tools


def functions_of(package: str) -> dict[str, Any]:
    """The functions of a package's modules and classes that are imported, by their places."""
    found: dict[str, Any] = {}
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(f"{package}."):
            for key, value in list(vars(module).items()):
                if isinstance(value, FunctionType):
                    found[f"{name}.{key}"] = value
                elif isinstance(value, type) and value.__module__ == name:
                    found |= {f"{name}.{key}.{one}": f for one, f in vars(value).items() if isinstance(f, FunctionType)}
    return found


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The places at which there is another function."""
    return [place for place, function in before.items() if after.get(place) is not function]
