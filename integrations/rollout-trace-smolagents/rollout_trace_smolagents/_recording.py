"""``record(agent)`` and ``unrecord(agent)``: swap the classes of agents, models and executors, and wrap clients."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import smolagents

from rollout_trace.integration import Engine, check_engine, client_kind, guarded, is_recorded, unwrap, wrap_openai
from rollout_trace_smolagents._agents import agent_methods, recorded_run
from rollout_trace_smolagents._classes import Settings, classes
from rollout_trace_smolagents._executors import executor_methods
from rollout_trace_smolagents._models import model_methods

A = TypeVar("A")

_own_clients: weakref.WeakSet[Any] = weakref.WeakSet()
"""Clients that were wrapped here. Those that the user wrapped keep the user's settings."""


def record(agent: A, *, engine: str | Engine | None = None, scores: bool = False) -> A:
    """Records every run of an agent and of its managed agents. Returns the same agent.

    A run inside ``with rt.trajectory()`` is recorded there; any other opens its own trajectory. A managed agent's run
    is a child of its manager's run. Models and managed agents that are set later are found when the next run begins. A
    second call changes the settings.

    Args:
        agent: a ``ToolCallingAgent``, a ``CodeAgent``, or a subclass.
        engine: the server behind the models with an OpenAI client, as in ``rt.wrap_openai``: a name or an
            ``rt.Engine``. A client that the user wrapped keeps its own settings.
        scores: let ``TransformersModel`` return its scores, from which logprobs are computed. Until a call ends, they
            take 4 bytes times the vocabulary size for each sampled token.

    Raises:
        TypeError: ``agent`` is not a smolagents agent.
        ValueError: the engine is unknown.
    """
    if not isinstance(agent, smolagents.MultiStepAgent):
        raise TypeError(
            f"record() needs an agent of smolagents, such as CodeAgent or ToolCallingAgent, got {agent!r:.80}. "
            "To record a client alone, use rt.wrap_openai(client)."
        )
    settings = Settings(engine=check_engine(engine), scores=bool(scores))
    _attach(agent, settings)
    for one in _with_managed_agents(agent):
        if (client := _client_of(one.model)) in _own_clients:
            wrap_openai(client, engine=settings.engine)
    return agent


def record_all() -> Callable[[], None]:
    """Records every agent, and its managed agents, from its next run on. Returns a function that undoes this."""
    base: Any = smolagents.MultiStepAgent.run
    attached: weakref.WeakSet[Any] = weakref.WeakSet()

    @functools.wraps(base)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_active or classes.settings_of(self) is not None:
            return base(self, *args, **kwargs)
        attached.add(self)
        _attach_guarded(self, Settings())
        # Not the method of the new class: one that overrides this may have called it.
        return recorded_run(base, self, *args, **kwargs)

    def end() -> None:
        is_active.clear()
        if vars(smolagents.MultiStepAgent).get("run") is run:
            smolagents.MultiStepAgent.run = base
        for agent in list(attached):
            unrecord(agent)

    is_active = [True]
    smolagents.MultiStepAgent.run = run
    return end


def unrecord(agent: A) -> A:
    """Undoes ``record``, including for managed agents, models, executors and clients. Returns the same agent.

    A model that another recorded agent shares is recorded again when that agent's next run begins.
    """
    for one in _with_managed_agents(agent):
        classes.take_off(one)
        _release_model(one.model)
        if (executor := getattr(one, "python_executor", None)) is not None:
            classes.take_off(executor)
    return agent


def _with_managed_agents(agent: Any) -> Iterator[Any]:
    """The agent and all agents that it manages, at any depth, each once."""
    seen, waiting = set(), [agent]
    while waiting:
        one = waiting.pop()
        if id(one) not in seen and isinstance(one, smolagents.MultiStepAgent):
            seen.add(id(one))
            yield one
            waiting += one.managed_agents.values()


def _attach(agent: Any, settings: Settings) -> None:
    for one in _with_managed_agents(agent):
        if classes.settings_of(one) != settings:
            classes.put_on(one, settings, _agent_methods)
        _attach_model(one.model, settings)
        executor = getattr(one, "python_executor", None)
        if executor is not None and classes.settings_of(executor) is None:
            # Not the agent's settings: the executor's methods do not use them, and one recording class will do.
            classes.put_on(executor, Settings(), executor_methods)


_attach_guarded = guarded(_attach)


def _agent_methods(base: Any, settings: Settings) -> dict[str, Any]:
    return agent_methods(base, lambda agent: _attach_guarded(agent, settings))


def _attach_model(model: Any, settings: Settings) -> None:
    if model is None:
        return
    client = _client_of(model)
    # In an instrumented process it is recorded already; without an engine of the agent's it keeps the process's.
    if client is not None and not is_recorded(client, by_hand=settings.engine is not None):
        _own_clients.add(client)
        wrap_openai(client, engine=settings.engine)
    if classes.settings_of(model) != settings:
        classes.put_on(model, settings, model_methods)


def _release_model(model: Any) -> None:
    client = _client_of(model)
    if client in _own_clients:
        _own_clients.discard(client)
        unwrap(client)
    classes.take_off(model)


def _client_of(model: Any) -> Any:
    """The model's client of the openai SDK; None if it has another client, or none."""
    client = getattr(model, "client", None)
    return client if client_kind(client, "openai") == "sync" else None


__all__ = ["record", "unrecord"]
