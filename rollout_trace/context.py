"""Which trajectory a call belongs to: decided when it begins, from a context variable or a bound client."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from rollout_trace import frames, given, guard, recordings
from rollout_trace.call import drain, pending
from rollout_trace.frames import ModelFrame, current_scope
from rollout_trace.steplog import StepLog
from rollout_trace.trajectories import Trajectory, task_of

if TYPE_CHECKING:
    from rollout_trace.call import Call
    from rollout_trace.model import Step, Task

F = TypeVar("F", bound=Callable[..., Any])

ORPHANS_KEPT = 1000
"""Calls outside every trajectory that are held; older ones are dropped and counted."""

_orphans = StepLog(keep=ORPHANS_KEPT)


def _after_fork() -> None:
    """A forked process starts with nothing recorded and with locks that nobody holds."""
    global _orphans
    _orphans = StepLog(keep=ORPHANS_KEPT)
    pending.reset()
    guard.reset()
    recordings.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def current() -> Trajectory | None:
    """The open trajectory of this context, or None."""
    trajectory = frames.here()
    return trajectory if trajectory is not None and trajectory.is_open else None


def reward(value: float, *, name: str | None = None) -> None:
    """Sets the reward of the current trajectory, or the part of it called ``name``.

    Outside a trajectory there is nothing to reward: that is logged, not raised.

    Raises:
        TypeError, ValueError: the value is no finite number; True counts as 1.0.
    """
    value = given.finite_number(value, "the value of rt.reward()")
    trajectory = current()
    if trajectory is None:
        guard.warn_once("reward-outside", f"rt.reward({value!r}) outside every trajectory was not recorded.")
    elif name is None:
        trajectory.reward = value
    else:
        trajectory.rewards = {**(trajectory.rewards or {}), name: value}


def orphans() -> list[Step]:
    """The steps of the latest calls made outside every trajectory."""
    return _orphans.steps()


def place(call: Call) -> None:
    """Puts a call that begins into its trajectory, or among the orphans."""
    guard.call_began()
    drain()
    bound = call.settings.trajectory
    frame = frames.active()
    around = current_scope.get() if frame is None else frame.trajectory
    trajectory = around if bound is None else bound()
    log = None if trajectory is None else trajectory._log
    if log is not None and trajectory is not None and log.admit(call):
        call.agent = trajectory.name if bound is not None or frame is None else frame.agent or trajectory.name
        if isinstance(frame, ModelFrame) and frame.trajectory is trajectory:
            frame.join(call)
        return
    guard.count("orphans")
    if _orphans.size == ORPHANS_KEPT:
        guard.count("orphans_dropped")
    _orphans.admit(call)
    guard.warn_once(
        "orphan",
        "a model call was made outside every open trajectory; it is kept in rt.orphans(), not in a file. Wrap the run "
        "in `with rt.trajectory():`; in a thread use rt.propagate(function) or rt.bind(client, trajectory).",
    )


class TrajectoryScope:
    """Opens a trajectory: with, async with, or as a decorator of a function or coroutine function."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._opened: list[tuple[Trajectory, Trajectory | None, Trajectory | None]] = []

    def __enter__(self) -> Trajectory:
        # Also a parent that lives on in the process this one was forked from: it is still the parent.
        parent = frames.here()
        trajectory = Trajectory(**self._settings)
        # Its own: a decorated function opens a trajectory for every run.
        trajectory.metadata = None if trajectory.metadata is None else dict(trajectory.metadata)
        frames.begin(trajectory, parent)
        self._opened.append((trajectory, parent, current_scope.get()))
        current_scope.set(trajectory)
        return trajectory

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        trajectory, parent, before = self._opened.pop()
        if trajectory._log is not None and not trajectory._log.is_ours:
            # A forked process leaves the block: the trajectory is its parent's, who closes and writes it.
            return
        # Not reset(token): a generator or a fixture may leave the block in another context than it entered.
        current_scope.set(before)
        frames.finish(trajectory, parent, error)

    async def __aenter__(self) -> Trajectory:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)

    def __call__(self, function: F) -> F:
        _refuse_generators(function, "rt.trajectory cannot decorate")
        if _is_async(function):

            @functools.wraps(function)
            async def traced_async(*args: Any, **kwargs: Any) -> Any:
                with TrajectoryScope(self._settings):
                    return await function(*args, **kwargs)

            return traced_async  # type: ignore[return-value]

        @functools.wraps(function)
        def traced(*args: Any, **kwargs: Any) -> Any:
            with TrajectoryScope(self._settings):
                return function(*args, **kwargs)

        return traced  # type: ignore[return-value]


def trajectory(
    name: str = "agent",
    *,
    task: str | Task | Mapping[str, Any] | object = None,
    group: str | int | None = None,
    rollout_index: int | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> TrajectoryScope:
    """Opens a trajectory for the calls made inside: ``with``, ``async with``, or a decorator.

    Inside another trajectory it is that one's child. An exception that leaves the block is recorded and raised on.

    Args:
        name: of the agent.
        task: its id, or the task itself: a mapping, a dataclass or a Pydantic object whose ``id`` names it.
        group: id shared by runs that are compared with each other.
        rollout_index: position within the group, counted from 0.
        metadata: names and values, which are written to the file as JSON.

    Raises:
        TypeError: used to decorate a generator function, or an argument is none of these.
        ValueError: ``rollout_index`` is negative.
    """
    settings = {
        "name": name,
        "task": task_of(task),
        "group_id": None if group is None else given.text_id(group, "group"),
        "rollout_index": None if rollout_index is None else given.position(rollout_index, "rollout_index"),
        "metadata": None if metadata is None else given.metadata(metadata, "metadata"),
    }
    return TrajectoryScope(settings)


def propagate(function: F) -> F:
    """The function, bound to the trajectory and the recording that are current now: threads do not inherit them.

    Unlike a copied context it can run in many threads at once: ``executor.map(rt.propagate(solve), tasks)``.

    Raises:
        TypeError: a generator function, whose body runs in its consumer's context.
    """
    _refuse_generators(function, "rt.propagate cannot carry")
    carried_over = (current_scope.get(), frames.entered(), recordings.of_context())
    if _is_async(function):

        @functools.wraps(function)
        async def carried_async(*args: Any, **kwargs: Any) -> Any:
            with _carried(*carried_over):
                return await function(*args, **kwargs)

        return carried_async  # type: ignore[return-value]

    @functools.wraps(function)
    def carried(*args: Any, **kwargs: Any) -> Any:
        with _carried(*carried_over):
            return function(*args, **kwargs)

    return carried  # type: ignore[return-value]


@contextmanager
def _carried(
    trajectory: Trajectory | None, frame: frames.Frame | None, recording: recordings.recording | None
) -> Iterator[None]:
    before, outer = current_scope.get(), recordings.of_context()
    current_scope.set(trajectory)
    inside = frames.enter(frame)
    recordings.enter(recording)
    try:
        yield
    finally:
        current_scope.set(before)
        frames.enter(inside)
        recordings.enter(outer)


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _refuse_generators(function: Any, refusal: str) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{refusal} the generator function {function.__qualname__}: its body runs in pieces, in its consumer's "
            "context. Open `with rt.trajectory():` around the loop that consumes it."
        )
