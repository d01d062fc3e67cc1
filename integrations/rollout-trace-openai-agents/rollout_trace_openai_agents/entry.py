"""The public API: ``record``, hooks for one run, and a tracing processor for all traced runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from agents import Agent, AgentSpanData, Model, ModelProvider, RunHooks, TracingProcessor

from rollout_trace_openai_agents import models, runner
from rollout_trace_openai_agents.frames import current_run
from rollout_trace_openai_agents.runs import begun, option
from rollout_trace_openai_agents.settings import Settings, settings_of

if TYPE_CHECKING:
    from agents import Span, Trace

    from rollout_trace.integration import Engine

T = TypeVar("T", bound="Agent[Any] | Model | ModelProvider")


def record(
    thing: T, *, engine: str | Engine | None = None, keep_bytes: bool = False, train_guardrails: bool = False
) -> T:
    """Records runs that start with an agent, a model, or a provider's model. Returns the same object.

    Everything inside such a run is recorded with it: agents that it hands off to, and agents that its tools and
    guardrails run, at any depth, whenever they were made or added. Calling it again replaces the arguments.

    Args:
        thing: an ``Agent``, a ``Model`` or a ``ModelProvider``.
        engine: the server behind OpenAI's clients (``vllm``, ``sglang``, ...): its requests then ask for token ids and
            logprobs, see ``rollout_trace.wrap_openai``. None adds nothing to requests, and clients wrapped before keep
            their settings.
        keep_bytes: keep request and response bodies on the steps.
        train_guardrails: leave the steps of guardrails trainable.

    Raises:
        TypeError: ``thing`` is none of these.
        ValueError: the engine is unknown.
    """
    settings = settings_of(engine, keep_bytes, train_guardrails)
    if isinstance(thing, Agent):
        models.record_agent(thing, settings)
    elif isinstance(thing, Model):
        models.record_model(thing, settings)
    elif isinstance(thing, ModelProvider):
        models.record_provider(thing, settings)
    else:
        raise TypeError(f"record() needs an Agent, a Model or a ModelProvider of openai-agents, got {thing!r:.80}.")
    return thing


class RolloutRunHooks(RunHooks[Any]):
    """Records one run: ``Runner.run(agent, "...", hooks=RolloutRunHooks(engine="vllm"))``. May be subclassed.

    Everything inside the run is recorded with it. Arguments are those of ``record``.

    Raises:
        ValueError: the engine is unknown.
    """

    settings = settings_of(None, False, False)
    """Settings for a subclass whose ``__init__`` does not call this one's."""

    def __init__(
        self, *, engine: str | Engine | None = None, keep_bytes: bool = False, train_guardrails: bool = False
    ) -> None:
        self.settings = settings_of(engine, keep_bytes, train_guardrails)


class RolloutTracingProcessor(TracingProcessor):
    """Records every run that is traced: ``add_trace_processor(RolloutTracingProcessor(engine="vllm"))``.

    Runs with tracing switched off are not recorded; ``record`` does not depend on tracing. The arguments are those of
    ``record``. Nothing is sent anywhere, and traces of other processors are unchanged.

    Raises:
        ValueError: the engine is unknown.
    """

    def __init__(
        self, *, engine: str | Engine | None = None, keep_bytes: bool = False, train_guardrails: bool = False
    ) -> None:
        self._settings = settings_of(engine, keep_bytes, train_guardrails)
        _processors.add(self)

    def on_trace_start(self, trace: Trace) -> None:
        """Does nothing: a trace may span several runs."""

    def on_trace_end(self, trace: Trace) -> None:
        """Nothing."""

    def on_span_start(self, span: Span[Any]) -> None:
        """Records the run whose first agent begins here. Called in the context of the run."""
        run = begun()
        if run is not None and isinstance(span.span_data, AgentSpanData):
            run.claim(self._settings)

    def on_span_end(self, span: Span[Any]) -> None:
        """Does nothing: the run itself ends its recording."""

    def shutdown(self) -> None:
        """Nothing is kept here."""

    def force_flush(self) -> None:
        """Nothing is kept here."""


_processors: WeakSet[RolloutTracingProcessor] = WeakSet()
"""Processors in use: while there are any, each run is followed until its trace begins."""


everywhere: list[Settings] = []
"""Settings for runs without settings of their own; the latest apply."""


def _find(agent: Agent[Any], hooks: Any, config: Any) -> Settings | None:
    if isinstance(hooks, RolloutRunHooks):
        return hooks.settings
    asked = (agent, option(config, "model"), agent.model, option(config, "model_provider"))
    found = next((found for thing in asked if (found := models.settings_on(thing)) is not None), None)
    # Inside a recorded run, its settings count.
    return found if found is not None or current_run() is not None else (everywhere[-1] if everywhere else None)


models.install()
runner.install(_find, lambda: bool(_processors))
