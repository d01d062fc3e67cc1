"""The recording methods of a Python executor: the code of a CodeAgent, and the tools that the code calls.

smolagents runs the code in a thread that inherits no context; the frame is carried into it.
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
from rollout_trace_smolagents._turns import begin_tool, plain, tool_gave

_is_timed: ContextVar[bool] = ContextVar("rollout_trace_smolagents_timed", default=False)
"""This thread runs code whose time is already limited."""


def executor_methods(base: Any, settings: Settings) -> dict[str, Any]:
    """The methods of a recording subclass of an executor's class."""
    is_local = issubclass(base, LocalPythonExecutor)
    execute = _carried(base) if is_local and hasattr(local_python_executor, "timeout") else base.__call__

    @functools.wraps(base.__call__)
    def __call__(self: Any, code_action: str, *args: Any, **kwargs: Any) -> Any:
        frame = begin_tool("python_interpreter", code_action)
        if frame is None:
            return base.__call__(self, code_action, *args, **kwargs)
        with frame:
            try:
                output = execute(self, code_action, *args, **kwargs)
            except BaseException:
                _printed(frame, self)
                raise
            _code_gave(frame, output)
        return output

    methods: dict[str, Any] = {"__call__": __call__}
    if is_local:
        methods["send_tools"] = _send_tools(base)
        methods["timeout_seconds"] = property(_timeout_seconds, _set_timeout_seconds)
    return methods


def _carried(base: Any) -> Any:
    """Runs code in a thread that belongs to this context's frame, with the executor's own limit of time."""

    def execute(self: Any, *args: Any, **kwargs: Any) -> Any:
        seconds = self.timeout_seconds
        if seconds is None:
            return base.__call__(self, *args, **kwargs)

        def timed() -> Any:
            token = _is_timed.set(True)
            try:
                return base.__call__(self, *args, **kwargs)
            finally:
                _is_timed.reset(token)

        return local_python_executor.timeout(seconds)(propagate(timed))()

    return execute


def _timeout_seconds(executor: Any) -> Any:
    return None if _is_timed.get() else executor.__dict__.get("timeout_seconds")


def _set_timeout_seconds(executor: Any, seconds: Any) -> None:
    executor.__dict__["timeout_seconds"] = seconds


def _send_tools(base: Any) -> Any:
    @functools.wraps(base.send_tools)
    def send_tools(self: Any, tools: Mapping[str, Any]) -> None:
        base.send_tools(self, {name: _recorded(name, tool) for name, tool in tools.items()})

    return send_tools


def _recorded(name: str, tool: Any) -> Any:
    """A function that calls a tool, or a managed agent, and records it.

    smolagents itself gives the code such functions in the place of its tools.
    """

    @functools.wraps(tool)
    def call(*args: Any, **kwargs: Any) -> Any:
        frame = begin_tool(name, _arguments(tool, args, kwargs))
        if frame is None:
            return tool(*args, **kwargs)
        with frame:
            result = tool(*args, **kwargs)
            tool_gave(frame, result)
        return result

    return call


def _arguments(tool: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The arguments of a call by name, as far as the tool names its inputs."""
    inputs = list(getattr(tool, "inputs", None) or ())
    if len(args) == 1 and not kwargs and isinstance(args[0], dict) and all(key in inputs for key in args[0]):
        return args[0]
    return {**dict(zip(inputs, args, strict=False)), **kwargs} if len(args) <= len(inputs) else [*args, dict(kwargs)]


@guarded
def _code_gave(frame: ToolFrame, output: Any) -> None:
    frame.run.result = {"output": plain(output.output), "logs": output.logs}


@guarded
def _printed(frame: ToolFrame, executor: Any) -> None:
    """What failed code had printed: the model is told that too."""
    printed = getattr(executor, "state", {}).get("_print_outputs")
    frame.run.result = None if printed is None else {"output": None, "logs": str(printed)}
