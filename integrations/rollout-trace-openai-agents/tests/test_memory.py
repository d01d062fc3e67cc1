"""Nothing is left of runs that have ended."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from typing import Any

from agents import Model, RunConfig, Runner
from openai.types.responses import ResponseOutputMessage, ResponseOutputText

import rollout_trace as rt
from rollout_trace.integration import Frame
from rollout_trace_openai_agents import record
from rollout_trace_openai_agents.runs import ForwardingHooks, Run

from .harness import SaidModel, agent_of

UNTRACED = RunConfig(tracing_disabled=True)


class Endless(SaidModel):
    """Always says the same."""

    def __init__(self) -> None:
        text = ResponseOutputText(text="Yes.", annotations=[], type="output_text")
        said = ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
        self._answers: Any = _Always([said])


class _Always:
    def __init__(self, answer: list[Any]) -> None:
        self._answer = answer

    def pop(self, at: int) -> list[Any]:
        return self._answer


def alive() -> Counter[str]:
    """Live objects of a recording, by class."""
    gc.collect()
    kinds = (Frame, Run, ForwardingHooks, rt.Trajectory, rt.Step)
    return Counter(type(one).__name__ for one in gc.get_objects() if isinstance(one, kinds))


def test_two_thousand_runs_leave_nothing_behind() -> None:
    model: Model = Endless()
    agent = record(agent_of(model, tools=[]))

    async def rollouts(count: int) -> None:
        for at in range(count):
            with rt.trajectory():
                if at % 2:
                    await Runner.run(agent, "?", run_config=UNTRACED)
                else:
                    async for _ in Runner.run_streamed(agent, "?", run_config=UNTRACED).stream_events():
                        pass

    async def go() -> tuple[Counter[str], Counter[str]]:
        await rollouts(20)
        before = alive()
        await rollouts(2000)
        return before, alive()

    before, after = asyncio.run(go())
    assert after == before
