"""``record``: records existing agents and models."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic_ai import Agent
from pydantic_ai.agent import WrapperAgent
from pydantic_ai.models import Model

from rollout_trace.integration import Engine, check_engine
from rollout_trace_pydantic_ai.capability import RolloutCapability
from rollout_trace_pydantic_ai.models import Settings, record_model
from rollout_trace_pydantic_ai.unhooked import CAPABILITY

T = TypeVar("T")


def record(recorded: T, *, engine: str | Engine | None = None, keep_bytes: bool = False) -> T:
    """Records every run of an agent, or every call of a model. Returns the same object.

    Recording an object again changes nothing, unless an engine is given.

    Args:
        recorded: an ``Agent``, or a model such as ``OpenAIChatModel``.
        engine: the server behind OpenAI's models (``vllm``, ``sglang``, ...): requests then ask for token ids and
            logprobs, see ``rollout_trace.wrap_openai``. None adds nothing to requests, and clients wrapped before keep
            their settings.
        keep_bytes: keep request and response bodies on the steps.

    Raises:
        TypeError: ``recorded`` is neither an agent nor a model.
        ValueError: the engine is unknown.
    """
    if isinstance(recorded, Model):
        record_model(recorded, Settings(check_engine(engine), keep_bytes, is_asked=True))
        return recorded
    agent: Any = recorded
    while isinstance(agent, WrapperAgent):
        agent = agent.wrapped
    if not isinstance(agent, Agent):
        raise TypeError(f"record() needs an agent or a model of Pydantic AI, got {recorded!r:.80}.")
    capability = RolloutCapability(engine=engine, keep_bytes=keep_bytes)
    found = vars(agent).get(CAPABILITY)
    if found is None or (engine is not None and found != capability):
        vars(agent)[CAPABILITY] = capability
    return recorded


__all__ = ["record"]
