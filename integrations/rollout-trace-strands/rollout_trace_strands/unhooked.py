"""Agents, graphs and swarms that run inside a recorded run without a hook of their own.

Strands' hooks belong to one agent, and nobody is told of another that a tool makes or calls. So the method that calls
every agent's hooks is wrapped: where a run begins inside a recorded one, its owner is attached first.
"""

from __future__ import annotations

import functools
from typing import Any

from strands.hooks import BeforeInvocationEvent, BeforeMultiAgentInvocationEvent, HookRegistry

from rollout_trace.integration import entered, guarded
from rollout_trace_strands.runs import RunFrame

_MARK = "_rollout_trace"


def watch() -> None:
    """Wraps the method, once in a process."""
    base = HookRegistry.invoke_callbacks_async
    if hasattr(base, _MARK):
        return

    @functools.wraps(base)
    async def invoke_callbacks_async(self: HookRegistry, event: Any, *args: Any, **kwargs: Any) -> Any:
        if type(event) is BeforeInvocationEvent:
            _begins(event.agent)
        elif type(event) is BeforeMultiAgentInvocationEvent:
            _begins(event.source)
        return await base(self, event, *args, **kwargs)

    setattr(invoke_callbacks_async, _MARK, True)
    HookRegistry.invoke_callbacks_async = invoke_callbacks_async  # type: ignore[method-assign]


@guarded
def _begins(owner: Any) -> None:
    """A run begins: inside a recorded one it is recorded too, in whichever trajectory the user opened between."""
    frame = entered()
    while frame is not None and not (isinstance(frame, RunFrame) and frame.is_open):
        frame = frame.parent
    if isinstance(frame, RunFrame):
        frame.attach(owner)
