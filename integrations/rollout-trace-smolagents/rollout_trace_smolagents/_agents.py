"""The recording methods of an agent: they open frames for its runs, the turns of its loop, and its tools."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from contextlib import nullcontext
from typing import Any

from rollout_trace.integration import AgentFrame, active, guarded, run_generator
from rollout_trace_smolagents._turns import TurnFrame, TurnKind, begin_tool, begin_turn, set_tool_result


def agent_methods(base: Any, attach: Callable[[Any], Any]) -> dict[str, Any]:
    """The methods of a recording subclass of an agent's class; ``attach`` is called when a run begins."""

    @functools.wraps(base.run)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        # At every run: the user may have set another model or managed agent since.
        attach(self)
        return recorded_run(base.run, self, *args, **kwargs)

    @functools.wraps(base.provide_final_answer)
    def provide_final_answer(self: Any, *args: Any, **kwargs: Any) -> Any:
        with begin_turn("final_answer", self.step_number) or nullcontext():
            return base.provide_final_answer(self, *args, **kwargs)

    methods: dict[str, Any] = {"run": run, "provide_final_answer": provide_final_answer}
    # Not public: if a release lacks such a method, steps have no `turn` in their metadata.
    if hasattr(base, "_step_stream"):
        methods["_step_stream"] = _turn_method(base._step_stream, "action")
    if hasattr(base, "_generate_planning_step"):
        methods["_generate_planning_step"] = _turn_method(base._generate_planning_step, "planning")
    if hasattr(base, "execute_tool_call"):
        methods["execute_tool_call"] = _tool_method(base)
    return methods


def recorded_run(run: Callable[..., Any], agent: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls the ``run`` of an agent inside a frame; where that gives a stream, the frame lasts as long."""
    if kwargs.get("stream", args[1] if len(args) > 1 else False):
        return _streamed_run(agent, run(agent, *args, **kwargs))
    # `_begin_run` is guarded, and so are the other functions that begin a frame: None if they failed.
    with _begin_run(agent) or nullcontext():
        return run(agent, *args, **kwargs)


def _turn_method(method: Any, kind: TurnKind) -> Any:
    @functools.wraps(method)
    def turn(self: Any, *args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        frame: TurnFrame | None = begin_turn(kind, self.step_number)
        inner = method(self, *args, **kwargs)
        return (yield from inner if frame is None else run_generator(frame, inner, on_item=frame.on_item))

    return turn


def _tool_method(base: Any) -> Any:
    @functools.wraps(base.execute_tool_call)
    def execute_tool_call(self: Any, tool_name: str, arguments: Any, *args: Any, **kwargs: Any) -> Any:
        frame = begin_tool(tool_name, arguments)
        if frame is None:
            return base.execute_tool_call(self, tool_name, arguments, *args, **kwargs)
        with frame:
            result = base.execute_tool_call(self, tool_name, arguments, *args, **kwargs)
            set_tool_result(frame, result)
        return result

    return execute_tool_call


def _streamed_run(agent: Any, inner: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """A streamed run. A generator, so that the run begins when its consumer takes the first item."""
    frame = _begin_run(agent)
    return (yield from inner if frame is None else run_generator(frame, inner))


@guarded
def _begin_run(agent: Any) -> AgentFrame:
    # An outermost agent without a name gets that of its trajectory.
    name = agent.name or (type(agent).__name__ if active() is not None else None)
    return AgentFrame(name, metadata={"framework": "smolagents", "agent": type(agent).__name__})
