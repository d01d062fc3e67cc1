"""The recording methods of a Python executor: they open frames for the code of a CodeAgent, and for the tools in it.

smolagents runs the code in a thread that inherits no context; the context is propagated to it here.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from smolagents import local_python_executor
from smolagents.local_python_executor import LocalPythonExecutor

from rollout_trace.integration import ToolFrame, guarded, propagate
from rollout_trace_smolagents._classes import Settings
from rollout_trace_smolagents._turns import begin_tool, json_snapshot, set_tool_result

_is_timed: ContextVar[bool] = ContextVar("rollout_trace_smolagents_timed", default=False)
"""Whether this context runs code whose time is limited already."""


def executor_methods(base: Any, settings: Settings) -> dict[str, Any]:
    """The methods of a recording subclass of an executor's class."""
    is_local = issubclass(base, LocalPythonExecutor)
    execute = _execute_in_context(base) if is_local and hasattr(local_python_executor, "timeout") else base.__call__

    @functools.wraps(base.__call__)
    def __call__(self: Any, code_action: str, *args: Any, **kwargs: Any) -> Any:
        frame = begin_tool("python_interpreter", code_action)
        if frame is None:
            return base.__call__(self, code_action, *args, **kwargs)
        with frame:
            try:
                output = execute(self, code_action, *args, **kwargs)
            except BaseException:
                _set_printed_output(frame, self)
                raise
            _set_code_result(frame, output)
        return output

    methods: dict[str, Any] = {"__call__": __call__}
    if is_local:
        methods["send_tools"] = _send_tools(base)
        methods["timeout_seconds"] = property(_timeout_seconds, _set_timeout_seconds)
    return methods


def _execute_in_context(base: Any) -> Any:
    """A method that runs code with the executor's time limit, in a thread with a copy of this context."""

    def execute(self: Any, *args: Any, **kwargs: Any) -> Any:
        seconds = self.timeout_seconds
        if seconds is None:
            return base.__call__(self, *args, **kwargs)

        def run_timed() -> Any:
            # The base method would start another thread, without context, for the same limit.
            token = _is_timed.set(True)
            try:
                return base.__call__(self, *args, **kwargs)
            finally:
                _is_timed.reset(token)

        return local_python_executor.timeout(seconds)(propagate(run_timed))()

    return execute


def _timeout_seconds(executor: Any) -> Any:
    """The executor's time limit in seconds; None inside code that runs under a limit already."""
    return None if _is_timed.get() else executor.__dict__.get("timeout_seconds")


def _set_timeout_seconds(executor: Any, seconds: Any) -> None:
    executor.__dict__["timeout_seconds"] = seconds


def _send_tools(base: Any) -> Any:
    @functools.wraps(base.send_tools)
    def send_tools(self: Any, tools: Mapping[str, Any]) -> None:
        base.send_tools(self, {name: _recording_tool(name, tool) for name, tool in tools.items()})

    return send_tools


def _recording_tool(name: str, tool: Any) -> Any:
    """A function that calls a tool, or a managed agent, inside a frame.

    A function may stand in for a tool: smolagents itself replaces ``final_answer`` by one.
    """

    @functools.wraps(tool)
    def call(*args: Any, **kwargs: Any) -> Any:
        frame = begin_tool(name, _arguments(tool, args, kwargs))
        if frame is None:
            return tool(*args, **kwargs)
        with frame:
            result = tool(*args, **kwargs)
            set_tool_result(frame, result)
        return result

    return call


def _arguments(tool: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The arguments of a call, by name if the tool lists the names of its inputs."""
    inputs = list(getattr(tool, "inputs", None) or ())
    if len(args) == 1 and not kwargs and isinstance(args[0], dict) and all(key in inputs for key in args[0]):
        return args[0]
    return {**dict(zip(inputs, args, strict=False)), **kwargs} if len(args) <= len(inputs) else [*args, dict(kwargs)]


@guarded
def _set_code_result(frame: ToolFrame, output: Any) -> None:
    frame.run.result = {"output": json_snapshot(output.output), "logs": output.logs}


@guarded
def _set_printed_output(frame: ToolFrame, executor: Any) -> None:
    """Sets what failed code had printed as its result: smolagents shows it to the model with the error."""
    printed = getattr(executor, "state", {}).get("_print_outputs")
    frame.run.result = None if printed is None else {"output": None, "logs": str(printed)}
