"""Records agents, graphs and swarms that run inside a recorded run and have no hook of their own.

Strands' hooks belong to one agent; no event reports another agent that a tool makes or calls. So the method that calls
every agent's hooks is wrapped: when a run begins inside a recorded one, its owner is attached first.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from strands.hooks import BeforeInvocationEvent, BeforeMultiAgentInvocationEvent, HookRegistry

from rollout_trace.integration import entered, guarded
from rollout_trace_strands.runs import RunFrame

if TYPE_CHECKING:
    from collections.abc import Callable

_MARK = "_rollout_trace"
everywhere: list[Callable[[Any], object]] = []
"""Functions that attach the owner of a run outside recorded runs to a provider; the latest applies."""


def install_hook() -> None:
    """Wraps ``HookRegistry.invoke_callbacks_async``, once in a process."""
    base = HookRegistry.invoke_callbacks_async
    if hasattr(base, _MARK):
        return

    @functools.wraps(base)
    async def invoke_callbacks_async(self: HookRegistry, event: Any, *args: Any, **kwargs: Any) -> Any:
        if type(event) is BeforeInvocationEvent:
            _attach_owner(event.agent)
        elif type(event) is BeforeMultiAgentInvocationEvent:
            _attach_owner(event.source)
        return await base(self, event, *args, **kwargs)

    setattr(invoke_callbacks_async, _MARK, True)
    HookRegistry.invoke_callbacks_async = invoke_callbacks_async  # type: ignore[method-assign]


@guarded
def _attach_owner(owner: Any) -> None:
    """Attaches the owner of a run that begins inside a recorded run, also in a trajectory the user opened there."""
    # Not `active()`: that is None inside a trajectory block that the user opened within the run.
    frame = entered()
    while frame is not None and not (isinstance(frame, RunFrame) and frame.is_open):
        frame = frame.parent
    if isinstance(frame, RunFrame):
        frame.attach(owner)
    elif everywhere:
        everywhere[-1](owner)
