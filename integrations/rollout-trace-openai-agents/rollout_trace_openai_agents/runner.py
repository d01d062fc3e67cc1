"""Where runs, guardrails and failing tools are noticed: functions of the SDK are wrapped, once in a process.

Outside a recorded run their behaviour is unchanged. The hooks of the SDK report agents and tools of a run, but neither
its end nor its error, nor the agents that its tools run; and its traces can be switched off.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from agents import Agent, InputGuardrail, OutputGuardrail, Runner, ToolInputGuardrail, ToolOutputGuardrail
from agents.lifecycle import RunHooksBase

from rollout_trace.integration import Frame, guarded
from rollout_trace_openai_agents.frames import GuardrailFrame, current_run
from rollout_trace_openai_agents.runs import ForwardingHooks, Run
from rollout_trace_openai_agents.settings import Settings

Find = Callable[[Agent[Any], Any, Any], Settings | None]
"""Maps a run's agent, hooks and ``RunConfig`` to its recording settings; None if it should not be recorded."""

_FAILING_TOOL = "maybe_invoke_function_tool_failure_error_function"
"""Every exception of a function tool is passed to this function, before it becomes a text for the model."""


def install(find: Find, may_be_claimed: Callable[[], bool]) -> None:
    """Wraps the functions. To be called once.

    Args:
        find: called when a run begins.
        may_be_claimed: whether a run that is not recorded may be so later, when its trace begins.
    """

    @guarded
    def begin(signature: inspect.Signature, args: Any, kwargs: Any) -> Run | None:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return None  # The SDK refuses it.
        given = bound.arguments
        agent, hooks, config = given["starting_agent"], given.get("hooks"), given.get("run_config")
        if not isinstance(agent, Agent) or not (hooks is None or isinstance(hooks, RunHooksBase)):
            return None
        outer = current_run()
        settings = find(agent, hooks, config) or (None if outer is None else outer.settings)
        if settings is None and not may_be_claimed():
            return None
        run = Run(bound, settings)
        given["hooks"] = ForwardingHooks(run, hooks)
        return run

    def wrapped(base: Any) -> Any:
        """The function, recorded. Like those of the SDK, its frame in a traceback holds no arguments of the run."""
        signature = inspect.signature(base)

        @functools.wraps(base)
        async def run(*args: Any, **kwargs: Any) -> Any:
            recorded = begin(signature, args, kwargs)
            running = base(*args, **kwargs) if recorded is None else recorded.call(base)
            args, kwargs = (), {}
            if recorded is None:
                return await running
            with recorded:
                recorded.result = await running
            return recorded.result

        @functools.wraps(base)
        def call(*args: Any, **kwargs: Any) -> Any:
            recorded = begin(signature, args, kwargs)
            try:
                if recorded is None:
                    return base(*args, **kwargs)
            finally:
                args, kwargs = (), {}
            with recorded:
                recorded.result = recorded.call(base)
                recorded.goes_on()
            return recorded.result

        return run if inspect.iscoroutinefunction(base) else call

    for name in ("run", "run_sync", "run_streamed"):
        setattr(Runner, name, classmethod(wrapped(Runner.__dict__[name].__func__)))
    for kind in (InputGuardrail, OutputGuardrail, ToolInputGuardrail, ToolOutputGuardrail):
        setattr(kind, "run", _guardrail_run(kind.run))  # noqa: B010
    for module in ("agents.tool", "agents.run_internal.tool_execution"):
        _wrap_failing_tools(importlib.import_module(module))


def _guardrail_run(base: Any) -> Any:
    @functools.wraps(base)
    async def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        frame = _begin_guardrail(self)
        if frame is None:
            return await base(self, *args, **kwargs)
        with frame:
            return await base(self, *args, **kwargs)

    return run


@guarded
def _begin_guardrail(guardrail: Any) -> Frame | None:
    run = current_run()
    return None if run is None else GuardrailFrame(guardrail.get_name(), run)


def _wrap_failing_tools(module: Any) -> None:
    base = getattr(module, _FAILING_TOOL, None)
    if base is None:
        return

    @functools.wraps(base)
    async def maybe_invoke(*args: Any, **kwargs: Any) -> Any:
        _tool_failed(**kwargs)
        return await base(*args, **kwargs)

    setattr(module, _FAILING_TOOL, maybe_invoke)


@guarded
def _tool_failed(*, context: Any = None, error: BaseException | None = None, **_: Any) -> None:
    run = current_run()
    if run is not None and error is not None:
        run.tool_failed(context, error)
