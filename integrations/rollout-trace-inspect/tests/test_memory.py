"""Nothing is kept of samples that have ended."""

from __future__ import annotations

import asyncio
import gc
import os

from inspect_ai.model import Model, ModelOutput, ModelUsage, get_model
from inspect_ai.solver import generate

import rollout_trace as rt
from rollout_trace import Step, Trajectory
from rollout_trace.integration import Frame
from rollout_trace.testing import ScriptedServer
from rollout_trace_inspect import record
from rollout_trace_inspect.events import EventFrames
from rollout_trace_inspect.samples import SampleRun

from .harness import Evals, adding_task, plain_model

EPOCHS = int(os.environ.get("ROLLOUT_TRACE_ROLLOUTS", "400")) // 20
"""Of 20 samples. 2,000 samples take Inspect a minute."""


def live() -> int:
    """How many objects of ours there are."""
    gc.collect()
    return sum(isinstance(one, (Frame, Step, Trajectory, EventFrames, SampleRun)) for one in gc.get_objects())


def test_calls_outside_of_evaluations_leave_nothing_behind() -> None:
    """There Inspect's transcript lives as long as its context."""
    with ScriptedServer("known") as server:

        async def run() -> tuple[int, int]:
            async with plain_model(server, memoize=False) as model:
                record(model)
                await calls(model, 2)
                before = live()
                await calls(model, 50)
                return before, live()

        async def calls(model: Model, count: int) -> None:
            for _ in range(count):
                with rt.trajectory() as trajectory:
                    await model.generate("Question?")
                assert [step.status for step in trajectory.steps] == ["ok"]

        before, after = asyncio.run(run())
    assert after <= before + 5


def test_samples_leave_nothing_behind(evals: Evals) -> None:
    output = ModelOutput.from_content("mockllm/model", "known")
    output.usage = ModelUsage(input_tokens=5, output_tokens=2)
    model = record(get_model("mockllm/model", custom_outputs=lambda *_: output, memoize=False))

    def run(epochs: int) -> None:
        log = evals.run(adding_task(20, solver=generate(), scorer=None), model, epochs=epochs, log_realtime=False)
        assert len(evals.trajectories(log)) == 20 * epochs
        evals.logs.clear()

    run(1)
    before = live()
    run(EPOCHS)
    assert live() <= before + 20
