"""The trajectory of the current context: opening it, rewarding it, carrying it into threads.

A thread takes over the trajectory, the frame and the recording of where it was started, nothing else. Not a copy of the
whole context: that would change the program (the precision of ``decimal``, a web request), hold what it holds for as
long as a thread lives, and could not be entered by two threads at once.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from rollout_trace import guard
from rollout_trace._wrong_use import block, explained
from rollout_trace.data import user_values
from rollout_trace.data.trajectory import Trajectory, new_trajectory, to_task
from rollout_trace.record import lifecycle, program, scope
from rollout_trace.record.recording import current_recording, set_current_recording
from rollout_trace.record.scope import current_frame, current_scope
from rollout_trace.record.state import state_of

if TYPE_CHECKING:
    from rollout_trace.data.model import Task
    from rollout_trace.record.recording import recording

F = TypeVar("F", bound=Callable[..., Any])


def current() -> Trajectory | None:
    """Returns the open trajectory of this context, or None.

    In a program started by ``rollout-trace run``, outside any trajectory, it is the program's own, which the first call
    opens.
    """
    trajectory = scope.here()
    return trajectory if trajectory is not None and trajectory.is_open else program.opened()


@explained
def reward(value: float, *, name: str | None = None, children: bool = False) -> None:
    """Sets the reward of the current trajectory, or one named part of it.

    Outside a trajectory, it logs a warning and sets nothing.

    Args:
        value: the reward.
        name: name of a part, to set in ``Trajectory.rewards``; without it, ``Trajectory.reward`` is set.
        children: also set it on every trajectory opened inside the current one, at any depth, that has no such reward
            of its own: on closed ones now, on open ones when they close, and on those that child processes write to the
            same file or folder at the end of the recording. Useful for a supervisor or a swarm, where only the agents'
            trajectories have steps to train on.

    Raises:
        TypeError, ValueError: the value is not a finite number; True counts as 1.0.
    """
    value = user_values.finite_number(value, "the value of rt.reward()")
    trajectory = current()
    if trajectory is None:
        guard.warn_once(
            "reward-outside",
            f"rt.reward({value!r}) outside every trajectory was not recorded. Call it inside the "
            "`with rt.trajectory()` block, or set trajectory.reward.",
        )
    elif name is None:
        trajectory.reward = value
    else:
        trajectory.rewards = {**(trajectory.rewards or {}), name: value}
    if trajectory is not None and children:
        lifecycle.reward_children(trajectory, name, value)


_blocks: ContextVar[tuple[str, ...]] = ContextVar("rollout_trace_blocks", default=())
"""Ids of the trajectories whose ``with`` blocks this context is in, innermost last."""


class TrajectoryScope:
    """Opens a trajectory: with ``with``, ``async with``, or as a decorator of a function or coroutine function.

    Several tasks or threads may enter one object at the same time; each gets its own trajectory.
    """

    __slots__ = ("_opened", "_settings")

    _opened: dict[str, tuple[Trajectory, Trajectory | None, Trajectory | None]]
    _settings: Mapping[str, Any]

    def __init__(self, settings: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_settings", settings)
        object.__setattr__(self, "_opened", {})

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"{name!r} cannot be set on the result of rt.trajectory(...), which is not a trajectory yet. Set it "
            f"inside the block, `with rt.trajectory(...) as trajectory: trajectory.{name} = ...`"
            + (", or call rt.reward(...) inside the block." if name == "reward" else ".")
        )

    if not TYPE_CHECKING:  # For type checkers there is no such method.

        def __getattr__(self, name: str) -> None:
            raise AttributeError(
                f"the result of rt.trajectory(...) has no {name!r}: it is not a trajectory yet. The block gives one: "
                "`with rt.trajectory(...) as trajectory:`."
            )

    def __enter__(self) -> Trajectory:
        # In a forked process too: a trajectory that is open in the original process is still the parent.
        parent = scope.here()
        # Checked already. A copy: a decorated function opens a trajectory for every run, from the same settings.
        metadata = self._settings["metadata"]
        trajectory = new_trajectory({**self._settings, "metadata": None if metadata is None else dict(metadata)})
        lifecycle.begin(trajectory, parent)
        self._opened[trajectory.id] = (trajectory, parent, current_scope.get())
        _blocks.set((*_blocks.get(), trajectory.id))
        current_scope.set(trajectory)
        return trajectory

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        blocks = _blocks.get()
        trajectory, parent, before = self._pop_innermost()
        state = state_of(trajectory)
        if state is not None and state.log is not None and not state.log.is_ours:
            # A forked process leaves the block: the original process closes and writes the trajectory.
            return
        # Not reset(token): a generator or a fixture may leave the block in another context than it entered.
        # But not where the garbage collector closes an agent that is a generator: it runs in the context of any other.
        if trajectory.id in blocks or current_scope.get() is trajectory:
            current_scope.set(before)
        lifecycle.finish(trajectory, parent, error)

    def _pop_innermost(self) -> tuple[Trajectory, Trajectory | None, Trajectory | None]:
        """The trajectory whose block is being left, its parent, and the trajectory to restore.

        It is the innermost that this object opened among the blocks of this context.
        """
        blocks = _blocks.get()
        for at in reversed(range(len(blocks))):
            if blocks[at] in self._opened:
                _blocks.set(blocks[:at])
                return self._opened.pop(blocks[at])
        if not self._opened:
            raise RuntimeError("an rt.trajectory() block was left without being entered, or was left twice.")
        # Left in another context than entered, by a generator or a fixture. With one open block it is clear which.
        if len(self._opened) > 1:
            guard.warn_once(
                "left-elsewhere",
                "one rt.trajectory() object was entered several times and left in a context that had not entered it: "
                "its last trajectory is closed, which may be the wrong one. Make an rt.trajectory() for each block.",
            )
        return self._opened.pop(next(reversed(self._opened)))

    async def __aenter__(self) -> Trajectory:
        return self.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.__exit__(kind, error, traceback)

    def __call__(self, function: F) -> F:
        _refuse_generators(function, "rt.trajectory cannot decorate")
        return _run_inside(lambda: TrajectoryScope(self._settings), function)


@overload
def trajectory(name: F) -> F: ...
@overload
def trajectory(
    name: str = "agent",
    *,
    task: str | Task | Mapping[str, Any] | object = None,
    group: str | int | None = None,
    rollout_index: int | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> TrajectoryScope: ...
@block
def trajectory(
    name: str | Callable[..., Any] = "agent",
    *,
    task: str | Task | Mapping[str, Any] | object = None,
    group: str | int | None = None,
    rollout_index: int | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> TrajectoryScope | Callable[..., Any]:
    """Opens a trajectory for the calls made inside: ``with``, ``async with``, or a decorator.

    ``@rt.trajectory`` without parentheses means ``@rt.trajectory()``. A decorated function opens a trajectory for each
    call.

    Inside another trajectory, it becomes a child of that one. An exception that leaves the block is recorded and
    re-raised.

    Args:
        name: name of the agent.
        task: the task's id, or the task itself: a mapping, a dataclass or a Pydantic object with an ``id``.
        group: id shared by the runs that are compared with each other.
        rollout_index: position within the group, counted from 0.
        metadata: your own keys and values, written to the file as JSON.

    Raises:
        TypeError: a generator function is decorated, or an argument has the wrong type.
        ValueError: ``rollout_index`` is negative, or two keys of the metadata become the same key in JSON.
    """
    if callable(name):
        return trajectory()(name)
    if not isinstance(name, str):
        raise TypeError(f"rt.trajectory() takes the agent's name, a text, as its first argument. Got {name!r:.80}.")
    settings = {
        "name": name,
        "task": to_task(task),
        "group_id": None if group is None else user_values.text_id(group, "group"),
        "rollout_index": None if rollout_index is None else user_values.position(rollout_index, "rollout_index"),
        "metadata": None if metadata is None else user_values.metadata(metadata, "metadata"),
    }
    return TrajectoryScope(settings)


class Carried(NamedTuple):
    """The context variables of the recorder. Compared by identity of their values alone: trajectories are records."""

    trajectory: Trajectory | None
    frame: scope.Frame | None
    recording: recording | None


NOTHING = Carried(None, None, None)
# The class's own function is one of Python, and takes as long as all the rest.
_new = tuple.__new__


def present() -> Carried:
    """Returns the current trajectory, frame and recording."""
    return _new(Carried, (current_scope.get(), current_frame.get(), current_recording()))


def worth_carrying() -> Carried | None:
    """Returns the current trajectory, frame and recording; None if there are none."""
    # Mostly nothing is, wherever a program starts a thread: nothing is made for that.
    trajectory, frame, recording = current_scope.get(), current_frame.get(), current_recording()
    if trajectory is None and frame is None and recording is None:
        return None
    return _new(Carried, (trajectory, frame, recording))


def switch(to: Carried) -> Carried:
    """Makes it current here and returns what was."""
    before = present()
    current_scope.set(to.trajectory)
    scope.enter(to.frame)
    set_current_recording(to.recording)
    return before


@contextmanager
def _carried(context: Carried) -> Iterator[None]:
    before = switch(context)
    try:
        yield
    finally:
        switch(before)


def propagate(function: F) -> F:
    """Wraps a function so that it runs, in any thread, with the trajectory and recording that are current now.

    Threads do not inherit these. Unlike ``contextvars.copy_context().run``, one wrapped function can run in many
    threads at once: ``executor.map(rt.propagate(solve), tasks)``.

    Raises:
        TypeError: the function is a generator function, whose body runs in its consumer's context.
    """
    _refuse_generators(function, "rt.propagate cannot carry")
    context = present()
    return _run_inside(lambda: _carried(context), function)


def _run_inside(block: Callable[[], AbstractContextManager[object]], function: F) -> F:
    """A function, or a coroutine function, that runs inside a new ``with`` block each time."""
    if user_values.is_async(function):

        @functools.wraps(function)
        async def inside_async(*args: Any, **kwargs: Any) -> Any:
            with block():
                return await function(*args, **kwargs)

        return inside_async  # type: ignore[return-value]

    @functools.wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Any:
        with block():
            return function(*args, **kwargs)

    return inside  # type: ignore[return-value]


def _refuse_generators(function: Any, refusal: str) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{refusal} the generator function {function.__qualname__}: its body runs in pieces, in its consumer's "
            "context. Open `with rt.trajectory():` around the loop that consumes it."
        )
