"""Training rows: where ADK sends again what was said, and where it does not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from oracle import Recorded, assert_served

import rollout_trace as rt
from rollout_trace import Trajectory
from rollout_trace.testing import Reply, ScriptedServer

from .harness import adding, agent_of, litellm, results, run, runner_of, session_of


async def two_questions(agent: Any) -> Trajectory:
    runner = runner_of(agent)
    session = await session_of(runner)
    with rt.trajectory("talk") as trajectory:
        for question in ("one", "two"):
            await run(runner, question, session=session)
    return trajectory


@pytest.mark.parametrize(("include", "rows"), [("default", 1), ("none", 2)])
def test_an_agent_that_forgets_has_a_row_for_each_question(recorded: Recorded, include: Any, rows: int) -> None:
    with ScriptedServer(adding(1)) as server:
        trajectory = asyncio.run(two_questions(agent_of(litellm(server), include_contents=include)))
        assert_served(server, trajectory.steps)
        drifts = rt.drift(trajectory, server.tokenizer)
    sequences = trajectory.sequences()
    assert len(sequences) == rows
    sampled = sum(len(step.completion_token_ids) for step in trajectory.steps if step.completion_token_ids is not None)
    assert sum(int(sequence.loss_mask.sum()) for sequence in sequences) == sampled
    # A prompt that begins anew repeats nothing in other ids.
    assert drifts == []
    recorded.keep(trajectory)


def test_arguments_that_adk_spells_in_its_own_way(recorded: Recorded) -> None:
    """It keeps what they hold, and writes it anew, with blanks: where the model wrote none, the row ends."""

    def script(request: dict[str, Any], messages: list[Any]) -> Reply:
        return Reply("done") if results(messages) else Reply(tool_calls=[("add", '{"a":1,"b":2}')])

    async def main(server: ScriptedServer) -> Trajectory:
        with rt.trajectory("task") as trajectory:
            await run(runner_of(agent_of(litellm(server))))
        return trajectory

    with ScriptedServer(script) as server:
        trajectory = asyncio.run(main(server))
        assert_served(server, trajectory.steps)
        (drift,) = rt.drift(trajectory, server.tokenizer)
    assert (drift.kind, drift.step_id) == ("tool_arguments", trajectory.steps[1].id)
    assert len(trajectory.sequences()) == 2
    recorded.keep(trajectory)
