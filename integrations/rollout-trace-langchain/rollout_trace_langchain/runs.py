"""Open runs by LangChain's run id, and the frames that they open.

A run is a chain, a graph, a node, a model or a tool; LangChain reports the id of its parent. A run with a node in it is
a graph, recorded as an agent: the outermost one in the surrounding trajectory, a graph inside it in a trajectory of its
own. Calls of failed runs are kept with the parent, which marks them superseded when a retry or a fallback begins.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from uuid import UUID

from langchain_core.runnables.config import var_child_runnable_config

from rollout_trace.integration import (
    AgentFrame,
    Frame,
    ModelFrame,
    ToolFrame,
    Trajectory,
    active,
    current_scope,
    enter,
    entered,
    snapshot,
)
from rollout_trace_langchain.run import GraphFrame, InlineGraphFrame, RootFrame, Run

F = TypeVar("F", bound=Frame)

_runs: dict[int, Run] = {}
"""Open runs by the integer of their id, which hashes much faster than the UUID."""
_lock = threading.RLock()
"""Held to make a run a graph: its nodes begin in several threads at once, and only the first may do it."""
_SWEEP_FROM = 1000
_sweep_at = _SWEEP_FROM
"""Number of open runs from which the lost ones are dropped; doubles with the runs that stay."""

_NODE = "graph:step:"
_RETRY = "retry:attempt:"
_FALLBACKS = "RunnableWithFallbacks"


find = _runs.get
"""The open run with this integer of LangChain's id, or None."""


def begin(
    run_id: UUID,
    parent_run_id: UUID | None,
    tags: Sequence[str] | None,
    metadata: Mapping[str, Any] | None,
    name: str | None = None,
) -> Run | None:
    """Begins a run.

    Args:
        run_id: LangChain's id of the run.
        parent_run_id: id of the enclosing run.
        tags: LangChain's tags of the run.
        metadata: LangChain's metadata of the run.
        name: the run's name, for a chain.

    Returns:
        None if the run has begun before (a second handler reports it), or if its trajectory has closed.
    """
    number = run_id.int
    if number in _runs:
        return None
    block = current_scope.get()
    parent = None if parent_run_id is None else _runs.get(parent_run_id.int)
    if parent is None:
        parent = _parent_in_context()
    scope: weakref.ref[Trajectory] | None = None
    if block is not None:
        scope = None if parent is None else parent.scope
        if scope is None or scope() is not block:
            # The user opened a trajectory inside the parent, or there is no parent: the run belongs to that one.
            scope, parent = weakref.ref(block), None
    run = Run(run_id, parent, metadata or {}, name, scope)
    if parent is None:
        run.frame = _enclosing_frame()
        if _is_too_late(run.frame):
            return None
    else:
        parent.inner[run] = None
        _begin_inside(parent, run, tags)
    _runs[number] = run
    if len(_runs) > _sweep_at:
        _sweep()
    return run


def _begin_inside(parent: Run, run: Run, tags: Sequence[str] | None) -> None:
    """Begins a run inside another: its frame is that of the parent, which is a graph if the run is a node."""
    is_node = _has_tag(tags, _NODE)
    if is_node:
        if not parent.is_agent:
            _begin_graph(parent)
            run.frame = parent.frame
        run.is_model_node = run.node == "model" and _is_from_create_agent(run)
    if parent.failed_calls:
        _supersede(parent, run, is_node, _has_tag(tags, _RETRY))
    # The context may have been copied before the parent got this frame.
    if run.frame is not None and entered() is not run.frame:
        enter(run.frame)


def open_root(run: Run) -> Run | None:
    """Opens a trajectory for a run outside of every run and trajectory."""
    if run.parent is not None or _trajectory_of(run.frame) is not None:
        return None
    facts = {"framework": "langchain", "run_id": str(run.id)}
    frame = new_frame(RootFrame, run.frame, None, metadata=facts, conversation=run.metadata.get("thread_id"))
    run.set_frame(frame.enter())
    return run


def ensure_root(run: Run, sibling: Run | None) -> Run | None:
    """Puts a model's or a tool's run that has nothing around it into a root run, which opens a trajectory.

    Args:
        run: the run.
        sibling: the previous run of its batch, whose root it shares.

    Returns:
        The root, if one was opened.
    """
    if run.parent is not None or _trajectory_of(run.frame) is not None:
        return None
    if sibling is not None and sibling.parent is not None and sibling.parent.ends_with_inner:
        root, opened = sibling.parent, None
    else:
        root = opened = Run(run.id, None, {}, None, run.scope)
        root.ends_with_inner = True
        open_root(root)
        if isinstance(root.own_frame, RootFrame):
            root.own_frame.is_implicit = True
    run.parent, run.frame, run.trajectory = root, root.frame, root.trajectory
    root.inner[run] = None
    return opened


def begin_tool(run: Run, name: str | None, tool_call_id: str | None, arguments: Any) -> None:
    """Begins the frame of a tool's run."""
    if run.parent is None:
        ensure_root(run, None)
    frame = new_frame(ToolFrame, run.frame, name, tool_call_id=tool_call_id, arguments=arguments)
    run.set_frame(frame.enter())


def end(run_id: UUID, error: BaseException | None = None) -> None:
    """Ends a run and all runs inside it."""
    run = _runs.pop(run_id.int, None)
    # None if another handler has ended it, or the run around it.
    if run is not None:
        end_run(run, error)


def end_run(run: Run, error: BaseException | None) -> None:
    """Ends a run that is not, or no longer, among the open ones, and all runs inside it."""
    if run.inner:
        _end_inner(run, error)
    if error is not None and run.node is not None and run.own_frame is None and _waits(error):
        _note_interrupt(run, error)
    if run.own_frame is not None:
        _end_frame(run.own_frame, error)
    parent, run.parent = run.parent, None
    if parent is None:
        return
    parent.inner.pop(run, None)
    if error is None:
        parent.model_calls += run.model_calls
    elif run.model_calls or run.failed_calls:
        discarded = parent.failed_calls.setdefault(run.place, [])
        discarded += run.model_calls
        for frames in run.failed_calls.values():
            discarded += frames
    if parent.ends_with_inner and (error is not None or not parent.inner):
        end_run(parent, error)


def _end_inner(run: Run, error: BaseException | None) -> None:
    # A cancelled framework does not report the end of every run that was cancelled with it.
    is_cancelled = error is not None and not isinstance(error, Exception)
    inside = list(run.inner)
    run.inner.clear()
    for inner in inside:
        _runs.pop(inner.id.int, None)
        inner.parent = None
        end_run(inner, error if is_cancelled else None)


def _end_frame(frame: Frame, error: BaseException | None) -> None:
    if isinstance(error, Exception) and _is_control_flow(error):
        if frame.trajectory is not None and isinstance(frame, (GraphFrame, InlineGraphFrame)) and not _waits(error):
            frame.trajectory.stop_reason = type(error).__name__
        if not isinstance(frame, ModelFrame):
            error = None
    frame.end(error)


def _is_control_flow(error: Exception) -> bool:
    """Whether a graph did not fail: LangGraph raises to interrupt a graph, and to hand over to the enclosing one."""
    errors = sys.modules.get("langgraph.errors")
    return errors is not None and isinstance(error, errors.GraphBubbleUp)


def _waits(error: BaseException | None) -> bool:
    errors = sys.modules.get("langgraph.errors")
    return errors is not None and isinstance(error, errors.GraphInterrupt)


def _note_interrupt(run: Run, error: BaseException) -> None:
    """Notes on the graph that a node is of what it waits for. LangGraph reports the end of the graph as any other."""
    frame = run.frame
    while frame is not None and not isinstance(frame, AgentFrame):
        frame = frame.parent
    if frame is not None:
        found = error.args[0] if error.args else ()
        frame.interrupt(
            [{"id": getattr(one, "id", None), "value": snapshot(getattr(one, "value", one))} for one in found]
        )


def _parent_in_context() -> Run | None:
    """The enclosing run in LangChain's context variable: a run with callbacks of its own is reported without it."""
    config = var_child_runnable_config.get()
    inner = None if config is None else getattr(config.get("callbacks"), "parent_run_id", None)
    return None if inner is None else _runs.get(inner.int)


def _enclosing_frame() -> Frame | None:
    """The frame around a run without a parent: another framework's, or a tool's whose thread lost LangChain's context.

    Frames of graphs and models do not count: streams and batches take turns in one context, and none is inside another.
    """
    frame = active()
    while isinstance(frame, (GraphFrame, InlineGraphFrame, ModelFrame)):
        frame = frame.parent
    return frame


def new_frame(frame_class: Callable[..., F], parent: Frame | None, *args: Any, **facts: Any) -> F:
    """A frame with exactly this parent, also if it is None."""
    if parent is None:
        # Without a parent, a frame would take the active one of the context.
        enter(None)
    return frame_class(*args, parent=parent, **facts)


def _trajectory_of(frame: Frame | None) -> Trajectory | None:
    return current_scope.get() if frame is None else frame.trajectory


def _is_too_late(frame: Frame | None) -> bool:
    trajectory = _trajectory_of(frame)
    return trajectory is not None and not trajectory.is_open


def _begin_graph(run: Run) -> None:
    """Makes a run the run of a graph, when its first node begins. Nothing else distinguishes graphs from chains."""
    with _lock:
        if run.is_agent:
            return
        run.is_agent = True
        name = _agent_name(run)
        if isinstance(run.own_frame, RootFrame):
            if name is not None:
                run.own_frame.rename(name)
            run.own_frame.is_named = True
        elif isinstance(run.frame, RootFrame) and not run.frame.is_named:
            run.set_frame(InlineGraphFrame(run.frame, name))
        else:
            run.set_frame(new_frame(GraphFrame, run.frame, name, conversation=run.metadata.get("thread_id")))


def _agent_name(run: Run) -> str | None:
    if run.agent is not None and (run.parent is None or run.parent.agent != run.agent):
        return run.agent
    return run.node if run.name == "LangGraph" else run.name


def _has_tag(tags: Sequence[str] | None, prefix: str) -> bool:
    if tags:
        for tag in tags:
            if tag.startswith(prefix):
                return True
    return False


def _is_from_create_agent(run: Run) -> bool:
    return run.agent is not None or run.metadata.get("ls_integration") == "langchain_create_agent"


def _supersede(parent: Run, run: Run, is_node: bool, is_retry: bool) -> None:
    """Marks the calls of failed runs superseded, if ``run`` repeats them: a retry, a fallback, a node run again."""
    if is_retry or parent.name == _FALLBACKS:
        places = list(parent.failed_calls)
    else:
        places = [run.place] if is_node and run.place in parent.failed_calls else []
    for place in places:
        for frame in parent.failed_calls.pop(place, ()):
            frame.supersede()


def _sweep() -> None:
    """Drops runs that were cancelled and never ended."""
    global _sweep_at
    for number in [number for number, run in list(_runs.items()) if run.is_lost]:
        _runs.pop(number, None)
    _sweep_at = max(_SWEEP_FROM, 2 * len(_runs))


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    _runs.clear()


with suppress(AttributeError):
    os.register_at_fork(after_in_child=_after_fork)
