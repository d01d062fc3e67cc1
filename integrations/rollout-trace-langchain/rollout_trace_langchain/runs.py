"""The runs that LangChain has told of and not ended, by run id, and the frames they stand for.

A run is a chain, a graph, a node, a model or a tool; LangChain names its parent. A graph is an agent, and is known by
its nodes: that of the outermost one is the trajectory around, a graph inside it has a trajectory of its own. What
LangChain throws away and asks for again is known by what failed under one parent.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from uuid import UUID

from langchain_core.runnables.config import var_child_runnable_config

from rollout_trace.integration import Frame, ModelFrame, Trajectory, active, current_scope, enter, entered
from rollout_trace_langchain.run import Agent, Part, Root, Run

F = TypeVar("F", bound=Frame)

_runs: dict[int, Run] = {}
"""By the number of the id, which is much faster to look up than the id."""
_lock = threading.RLock()
"""Nodes of a graph begin in several threads at once; only one makes the graph an agent."""
_SWEEP_FROM = 1000
_sweep_at = _SWEEP_FROM

_NODE = "graph:step:"
_RETRY = "retry:attempt:"
_FALLBACKS = "RunnableWithFallbacks"


def find(run_id: UUID) -> Run | None:
    """The run of this id, while it goes on."""
    return _runs.get(run_id.int)


def begin(
    run_id: UUID,
    parent_run_id: UUID | None,
    tags: Sequence[str] | None,
    metadata: Mapping[str, Any] | None,
    name: str | None = None,
) -> Run | None:
    """A run begins. None where it is known already (a second handler tells of it), or where it is too late for it."""
    number = run_id.int
    if number in _runs:
        return None
    parent = _around(parent_run_id)
    run = Run(run_id, parent, metadata or {}, name)
    if parent is None:
        run.frame = _outside()
        if _is_too_late(run.frame):
            return None
    else:
        parent.inner[run] = None
        is_node = _has(tags, _NODE)
        if is_node and not parent.is_agent:
            _make_agent(parent)
            run.frame = parent.frame
        run.is_model_node = is_node and run.node == "model" and _is_of_create_agent(run, metadata)
        if parent.failed:
            _supersede(parent, run, is_node, _has(tags, _RETRY))
        if run.frame is not None and entered() is not run.frame:
            enter(run.frame)
    _runs[number] = run
    if len(_runs) > _sweep_at:
        _sweep()
    return run


def open_root(run: Run) -> Run | None:
    """Opens a trajectory for a run that has none around it."""
    if run.parent is not None or _trajectory_of(run.frame) is not None:
        return None
    facts = {"framework": "langchain", "run_id": str(run.id)}
    run.put(made(Root, run.frame, None, metadata=facts).enter())
    return run


def lift(run: Run, beside: Run | None) -> Run | None:
    """Gives a model's or a tool's run a root, where nothing is around it: its own, or that of the one beside it.

    Gives the root that it had to open.
    """
    if run.parent is not None or _trajectory_of(run.frame) is not None:
        return None
    if beside is not None and beside.parent is not None and beside.parent.ends_with_inner:
        root, opened = beside.parent, None
    else:
        root = opened = Run(run.id, None, {}, None)
        root.ends_with_inner = True
        open_root(root)
        if isinstance(root.own, Root):
            root.own.is_lifted = True
    run.parent, run.frame, run.trajectory = root, root.frame, root.trajectory
    root.inner[run] = None
    return opened


def end(run_id: UUID, error: BaseException | None = None) -> None:
    """A run is over, and so is what went on inside."""
    run = _runs.pop(run_id.int, None)
    if run is not None:
        end_run(run, error)


def end_run(run: Run, error: BaseException | None) -> None:
    """A run is over that is not among those that the framework will tell the end of."""
    if run.inner:
        _end_inner(run, error)
    if run.own is not None:
        _end_frame(run.own, error)
    parent, run.parent = run.parent, None
    if parent is None:
        return
    parent.inner.pop(run, None)
    if error is None:
        parent.asked += run.asked
    elif run.asked or run.failed:
        thrown = parent.failed.setdefault(run.place, [])
        thrown += run.asked
        for frames in run.failed.values():
            thrown += frames
    if parent.ends_with_inner and (error is not None or not parent.inner):
        end_run(parent, error)


def _end_inner(run: Run, error: BaseException | None) -> None:
    # A framework that is cancelled does not tell of all that was cancelled with it.
    is_cancelled = error is not None and not isinstance(error, Exception)
    inside = list(run.inner)
    run.inner.clear()
    for inner in inside:
        _runs.pop(inner.id.int, None)
        inner.parent = None
        end_run(inner, error if is_cancelled else None)


def _end_frame(frame: Frame, error: BaseException | None) -> None:
    if isinstance(error, Exception) and isinstance(frame, (Agent, Part)) and _is_control_flow(error):
        if frame.trajectory is not None:
            frame.trajectory.stop_reason = type(error).__name__
        error = None
    frame.end(error)


def _is_control_flow(error: Exception) -> bool:
    """LangGraph interrupts graphs, and hands over to those around them, by raising."""
    errors = sys.modules.get("langgraph.errors")
    return errors is not None and isinstance(error, errors.GraphBubbleUp)


def _around(parent_run_id: UUID | None) -> Run | None:
    """The run inside which one begins."""
    run = None if parent_run_id is None else _runs.get(parent_run_id.int)
    if run is None:
        # A run that is given callbacks of its own is told without its parent; LangChain's own context knows it.
        config = var_child_runnable_config.get()
        inner = None if config is None else getattr(config.get("callbacks"), "parent_run_id", None)
        run = None if inner is None else _runs.get(inner.int)
    if run is None:
        return None
    scope = current_scope.get()
    if scope is not None and (run.scope is None or run.scope() is not scope):
        return None  # The user opened a trajectory inside: it is nearer.
    return run


def _outside() -> Frame | None:
    """The frame around a run without a parent: another framework's, or a tool's whose thread lost LangChain's context.

    Not an agent's: of those that take turns in one context (streams, batches) one is not inside the other.
    """
    frame = active()
    while isinstance(frame, (Agent, Part, ModelFrame)):
        frame = frame.parent
    return frame


def made(kind: Callable[..., F], parent: Frame | None, *args: Any, **facts: Any) -> F:
    """A frame with exactly this parent, also where it is None."""
    if parent is None:
        enter(None)
    return kind(*args, parent=parent, **facts)


def _trajectory_of(frame: Frame | None) -> Trajectory | None:
    return current_scope.get() if frame is None else frame.trajectory


def _is_too_late(frame: Frame | None) -> bool:
    trajectory = _trajectory_of(frame)
    return trajectory is not None and not trajectory.is_open


def _make_agent(run: Run) -> None:
    """A run has a node: it is a graph's."""
    with _lock:
        if run.is_agent:
            return
        run.is_agent = True
        name = _agent_name(run)
        if isinstance(run.own, Root):
            if name is not None:
                run.own.rename(name)
            run.own.is_named = True
        elif isinstance(run.frame, Root) and not run.frame.is_named:
            run.put(Part(run.frame, name))
        else:
            run.put(made(Agent, run.frame, name))


def _agent_name(run: Run) -> str | None:
    if run.agent is not None and (run.parent is None or run.parent.agent != run.agent):
        return run.agent
    return run.node if run.name == "LangGraph" else run.name


def _has(tags: Sequence[str] | None, beginning: str) -> bool:
    if tags:
        for tag in tags:
            if tag.startswith(beginning):
                return True
    return False


def _is_of_create_agent(run: Run, metadata: Mapping[str, Any] | None) -> bool:
    return run.agent is not None or (metadata or {}).get("ls_integration") == "langchain_create_agent"


def _supersede(parent: Run, run: Run, is_node: bool, is_retry: bool) -> None:
    """What failed is asked for again: by a retry, by a fallback, or by a node that is run once more."""
    if is_retry or parent.name == _FALLBACKS:
        places = list(parent.failed)
    else:
        places = [run.place] if is_node and run.place in parent.failed else []
    for place in places:
        for frame in parent.failed.pop(place, ()):
            frame.supersede()


def _sweep() -> None:
    """Forgets runs that were cancelled and never ended."""
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
