"""Adds the capability to runs of agents that were made without it.

Capabilities belong to one agent; none is passed to an agent that a tool runs. Every run of an agent begins in
``Agent.iter``, so that is wrapped: it accepts further capabilities for one run.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from pydantic_ai import Agent

from rollout_trace.integration import guarded
from rollout_trace_pydantic_ai.runs import run_of

if TYPE_CHECKING:
    from pydantic_ai.capabilities import AbstractCapability

CAPABILITY = "_rollout_trace_capability"
"""The attribute of a recorded agent that holds its capability; and the mark of the wrapped method."""

everywhere: list[AbstractCapability[Any]] = []
"""Capabilities for the runs of agents without one; the latest counts."""


def install_hook() -> None:
    """Wraps ``Agent.iter``, once in a process."""
    base: Any = Agent.iter
    if hasattr(base, CAPABILITY):
        return

    @functools.wraps(base)
    def iter(self: Agent[Any, Any], *args: Any, **kwargs: Any) -> Any:
        capability = _capability_for(self)
        if capability is not None:
            kwargs["capabilities"] = [*(kwargs.get("capabilities") or ()), capability]
        return base(self, *args, **kwargs)

    setattr(iter, CAPABILITY, True)
    Agent.iter = iter  # type: ignore[method-assign]


@guarded
def _capability_for(agent: Agent[Any, Any]) -> AbstractCapability[Any] | None:
    """The capability to add to a run: the agent's, or that of the recorded run that it begins in, or of all runs."""
    capability: AbstractCapability[Any] | None = vars(agent).get(CAPABILITY)
    if capability is None:
        run = run_of(None)
        capability = run.capability if run is not None else (everywhere[-1] if everywhere else None)
    return None if capability is None or _has_own(agent, type(capability)) else capability


def _has_own(agent: Agent[Any, Any], kind: type[AbstractCapability[Any]]) -> bool:
    """Whether an agent was made with a capability of this class."""
    found: list[Any] = []
    agent.root_capability.apply(found.append)
    return any(isinstance(one, kind) for one in found)
