"""Wraps the methods of ADK that every run, model call and tool passes through, once in a process.

Outside a recorded run their behaviour is unchanged. ADK's own plugins see less: they are not inherited by every runner
that a tool makes, an earlier plugin keeps calls from later ones, and no callback reports a cancelled run.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from google.adk import runners
from google.adk.agents.base_agent import BaseAgent
from google.adk.flows.llm_flows.base_llm_flow import BaseLlmFlow
from google.adk.plugins.plugin_manager import PluginManager
from google.adk.runners import Runner
from google.adk.workflow import BaseNode, Workflow

from rollout_trace.integration import entered, guarded, propagate, snapshot, warn_once
from rollout_trace_google_adk.models import add_cached_call, record_models
from rollout_trace_google_adk.runs import Run, begin_run, enclosing_run, run_inside
from rollout_trace_google_adk.settings import Settings, settings_of
from rollout_trace_google_adk.tools import Tool

_MARK = "__rollout_trace__"
everywhere: list[Settings] = []
"""Settings for runs of runners without settings of their own; the latest apply."""


def install() -> None:
    """Wraps the methods; a second call does nothing."""
    _wrap(Runner, "run_async", _recorded_run(lambda runner: runner.agent, _settings_of_runner))
    _wrap(BaseNode, "run", _recorded_run(_agent_or_workflow, settings_of))
    _wrap(BaseAgent, "run_async", _recorded_run(_agent_or_workflow, settings_of))
    _wrap(PluginManager, "run_before_tool_callback", _tool_begins)
    _wrap(PluginManager, "run_after_tool_callback", _tool_returns)
    _wrap(PluginManager, "run_on_tool_error_callback", _tool_fails)
    _wrap(BaseLlmFlow, "_handle_before_model_callback", _model_is_asked)
    # In older releases the thread of `Runner.run` does not begin in a copy of the caller's context.
    _wrap(runners, "create_thread", _carry_context)
    record_models()


def _wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    base = getattr(owner, name, None)
    if base is None:
        place = f"{owner.__name__}.{name}"
        warn_once(
            f"google-adk:{place}",
            f"this release of google-adk has no {place}, so what it does is not recorded. Use a tested release: "
            "docs/integrations.md.",
        )
    elif not hasattr(base, _MARK):
        wrapped = functools.wraps(base)(make(base))
        setattr(wrapped, _MARK, True)
        setattr(owner, name, wrapped)


def _recorded_run(owner_of: Callable[[Any], Any], settings_of: Callable[[Any], Settings | None]) -> Callable[..., Any]:
    """Makes a method that runs inside a frame.

    Args:
        owner_of: from the object to the agent or workflow that runs; None if it is neither.
        settings_of: from the object to what it is recorded with; None for the settings of the enclosing run.
    """

    def make(base: Callable[..., AsyncGenerator[Any, None]]) -> Callable[..., AsyncGenerator[Any, None]]:
        @guarded
        def begin(thing: Any, session: Any) -> Run | None:
            owner = owner_of(thing)
            is_runner = owner is not thing
            found = settings_of(thing)
            return None if owner is None else begin_run(owner.name, found, of_runner=is_runner, session=session)

        async def run(self: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
            # Not before the first item is asked for: the context is that of the reader, here and in ADK.
            frame = begin(self, kwargs.get("session_id"))
            events = base(self, *args, **kwargs)
            if frame is not None:
                events = run_inside(frame, events, guarded(frame.on_event), guarded(frame.finish))
            async with aclosing(events):
                async for event in events:
                    yield event

        return run

    return make


def _settings_of_runner(runner: Runner) -> Settings | None:
    plugins = [settings_of(plugin) for plugin in runner.plugin_manager.plugins]
    found = [settings_of(runner), settings_of(runner.agent), *plugins]
    own = next((one for one in found if one is not None), None)
    # Inside a recorded run, its settings count.
    return own if own is not None or enclosing_run() is not None else (everywhere[-1] if everywhere else None)


def _agent_or_workflow(node: BaseNode) -> BaseNode | None:
    return node if isinstance(node, (BaseAgent, Workflow)) else None


def _tool_begins(base: Any) -> Any:
    async def run_before_tool_callback(self: Any, *, tool: Any, tool_args: Any, tool_context: Any) -> Any:
        _begin_tool(tool, tool_args, tool_context)
        return await base(self, tool=tool, tool_args=tool_args, tool_context=tool_context)

    return run_before_tool_callback


def _tool_returns(base: Any) -> Any:
    async def run_after_tool_callback(self: Any, *, tool: Any, tool_args: Any, tool_context: Any, result: Any) -> Any:
        altered = None
        try:
            altered = await base(self, tool=tool, tool_args=tool_args, tool_context=tool_context, result=result)
        finally:
            # Also if a callback raises: the tool has returned.
            _end_tool(tool_args, tool_context, result if altered is None else altered)
        return altered

    return run_after_tool_callback


def _tool_fails(base: Any) -> Any:
    async def run_on_tool_error_callback(
        self: Any, *, tool: Any, tool_args: Any, tool_context: Any, error: Exception
    ) -> Any:
        # Older releases report a tool that does not exist by its error alone.
        frame = _tool_frame(tool_context) or _begin_tool(tool, tool_args, tool_context)
        if frame is not None:
            frame.end(error)
        return await base(self, tool=tool, tool_args=tool_args, tool_context=tool_context, error=error)

    return run_on_tool_error_callback


@guarded
def _begin_tool(tool: Any, arguments: Any, context: Any) -> Tool | None:
    run = enclosing_run()
    if run is None:
        return None
    frame = Tool(tool.name, arguments, context).enter()
    run.add_tool(frame.run)
    return frame


@guarded
def _end_tool(arguments: Any, context: Any, result: Any) -> None:
    frame = _tool_frame(context)
    if frame is not None:
        frame.update_arguments(arguments)
        frame.run.result = snapshot(result)
        frame.end()


@guarded
def _tool_frame(context: Any) -> Tool | None:
    """The frame of the tool that ADK calls with this context, open or not."""
    frame = entered()
    while frame is not None and not (isinstance(frame, Tool) and frame.context is context):
        frame = frame.parent
    return frame


def _carry_context(base: Any) -> Any:
    def create_thread(target: Any, *args: Any, **kwargs: Any) -> Any:
        return base(propagate(target), *args, **kwargs)

    return create_thread


def _model_is_asked(base: Any) -> Any:
    async def _handle_before_model_callback(
        self: Any, invocation_context: Any, llm_request: Any, *args: Any, **kwargs: Any
    ) -> Any:
        response = await base(self, invocation_context, llm_request, *args, **kwargs)
        if response:
            add_cached_call(llm_request, response)
        return response

    return _handle_before_model_callback
