"""Models are recorded wherever a call of them comes from: overridden properties, summaries, agents of the user's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest
from google.adk.agents import BaseAgent, LlmAgent
from google.adk.agents.run_config import RunConfig
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.lite_llm import LiteLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from oracle import Recorded, assert_served

import rollout_trace as rt
from rollout_trace import Trajectory
from rollout_trace.testing import ScriptedServer

from .harness import SSE, add, adding, agent_of, content_of, events_of, litellm, run, runner_of

MODES = pytest.mark.parametrize("config", [RunConfig(), SSE], ids=["whole", "streamed"])


async def recorded_run(agent: Any, **options: Any) -> Trajectory:
    with rt.trajectory("task") as trajectory:
        await run(runner_of(agent), **options)
    return trajectory


def test_an_agent_that_chooses_its_model_itself(recorded: Recorded) -> None:
    class Chooses(LlmAgent):
        @property
        def canonical_model(self) -> BaseLlm:
            assert isinstance(self.model, BaseLlm)
            return self.model

    with ScriptedServer(adding(1)) as server:
        agent = Chooses(name="adder", model=litellm(server), tools=[add])
        trajectory = asyncio.run(recorded_run(agent))
        assert_served(server, trajectory.steps)
    assert [one.step_id for one in trajectory.tool_runs] == [trajectory.steps[0].id]
    recorded.keep(trajectory)


def test_an_agent_that_calls_its_model_itself(recorded: Recorded) -> None:
    class Asks(BaseAgent):
        model: Any

        async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Event, None]:
            request = LlmRequest(model=self.model.model, contents=[content_of("hello")])
            async for response in self.model.generate_content_async(request):
                yield Event(author=self.name, content=response.content)

    with ScriptedServer("hello") as server:
        trajectory = asyncio.run(recorded_run(Asks(name="asks", model=litellm(server))))
        assert_served(server, trajectory.steps)
    recorded.keep(trajectory)


@MODES
def test_a_model_in_a_model(recorded: Recorded, config: RunConfig) -> None:
    class Outer(BaseLlm):
        inner: Any

        async def generate_content_async(
            self, llm_request: LlmRequest, stream: bool = False
        ) -> AsyncGenerator[LlmResponse, None]:
            llm_request.model = self.inner.model
            async for response in self.inner.generate_content_async(llm_request, stream):
                yield response

    with ScriptedServer(adding(1)) as server:
        trajectory = asyncio.run(recorded_run(agent_of(Outer(model="outer", inner=litellm(server))), config=config))
        assert_served(server, trajectory.steps)
    recorded.keep(trajectory)


def test_a_model_that_returns_an_iterator(recorded: Recorded) -> None:
    """Not a generator: it cannot be closed."""

    class Once:
        def __init__(self) -> None:
            self.left = [LlmResponse(content=content_of("squawk"))]

        def __aiter__(self) -> AsyncIterator[LlmResponse]:
            return self

        async def __anext__(self) -> LlmResponse:
            if not self.left:
                raise StopAsyncIteration
            return self.left.pop()

    class Returns(BaseLlm):
        def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> Any:
            return Once()

    trajectory = asyncio.run(recorded_run(agent_of(Returns(model="returns"))))
    assert [step.completion and step.completion.content for step in trajectory.steps] == ["squawk"]
    recorded.keep(trajectory)


def test_a_runner_inside_an_agent_of_the_same_name(recorded: Recorded) -> None:
    class Delegates(BaseAgent):
        inner: Any

        async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Event, None]:
            async for event in events_of(runner_of(self.inner, is_recorded=False)):
                yield Event(author=self.name, content=event.content)

    with ScriptedServer("hello") as server:
        agent = Delegates(name="solver", inner=agent_of(litellm(server), "solver"))
        asyncio.run(run(runner_of(agent)))
        outer, inner = sorted(recorded.all(), key=lambda one: len(one.steps))
        assert_served(server, inner.steps)
    assert (outer.name, inner.name, outer.steps, inner.parent_id) == ("solver", "solver", [], outer.id)


def test_models_stay_what_they_are(recorded: Recorded) -> None:
    with ScriptedServer("hello") as server:
        model = litellm(server)
        again = model.model_copy()
        asyncio.run(recorded_run(agent_of(model)))
        assert model == again
        assert type(model) is LiteLlm


def test_a_summary_that_adk_asks_for(recorded: Recorded) -> None:
    """Compaction asks a model outside of the agent's loop, after a run and inside it."""
    from google.adk.apps.app import App, EventsCompactionConfig
    from google.adk.runners import InMemoryRunner

    from rollout_trace_google_adk import RolloutPlugin

    from .harness import session_of

    with ScriptedServer("hello") as server:
        config = EventsCompactionConfig(compaction_interval=1, overlap_size=0)
        plugins: list[Any] = [RolloutPlugin(engine="vllm")]
        app = App(name="tests", root_agent=agent_of(litellm(server)), plugins=plugins, events_compaction_config=config)

        async def main() -> Trajectory:
            runner = InMemoryRunner(app=app)
            session = await session_of(runner)
            with rt.trajectory("task") as trajectory:
                await run(runner, session=session)
            return trajectory

        trajectory = asyncio.run(main())
        # Older releases ask for none after the run of an `LlmAgent`.
        assert len(server.requests) in (1, 2)
        assert_served(server, trajectory.steps)
    recorded.keep(trajectory)
