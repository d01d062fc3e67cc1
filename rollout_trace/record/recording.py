"""``rt.recording``: writes closed trajectories to the file of the open recording."""

from __future__ import annotations

import os
import threading
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from rollout_trace import guard
from rollout_trace.data import user_values
from rollout_trace.errors import WriteError
from rollout_trace.record import families
from rollout_trace.record.state import state_of

if TYPE_CHECKING:
    from rollout_trace.data.costs import PriceTable
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.file.media import MediaMode


class Writer(Protocol):
    """The target of a recording: ``JSONLWriter``, or any object with this method."""

    def write(self, trajectory: Trajectory) -> None:
        """Writes one closed trajectory."""


class recording:
    """Writes every outermost trajectory that closes inside the block, with its children, to a file or a writer.

    It covers all threads of the process: a trajectory that closes in a thread without a recording of its own is written
    to the only one that is open. Yields the writer. A trajectory that cannot be written does not stop the agent: on
    leaving the block, WriteError names what the file lacks.

    Args:
        target: path of a JSONL file, which is appended to, or a writer.
        media: where images, audio and files go, as for ``JSONLWriter``.
        prices: sets the cost of each call before its trajectory is written, unless the provider's answer or the user
            has set one.

    Raises:
        TypeError: the target is neither a path nor a writer (an open file is none), or ``prices`` is no ``PriceTable``.
        ValueError: ``media`` is passed together with a writer, which has its own; on entering the block, whatever
            ``JSONLWriter`` refuses.
        RuntimeError: the same object is entered again while it is open.
        WriteError: on leaving the block, if trajectories could not be written.
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | Writer,
        *,
        media: MediaMode = "inline",
        prices: PriceTable | None = None,
    ) -> None:
        _check_target(target)
        if prices is not None and not hasattr(prices, "apply"):
            raise TypeError(f"prices is {user_values.brief(prices)}; give rt.PriceTable({{model: rt.Price(...)}}).")
        if media != "inline" and not isinstance(target, (str, os.PathLike)):
            raise ValueError(
                f"media={media!r} is for a path: give it to the writer, JSONLWriter(path, media={media!r})."
            )
        self._target = target
        self._media = media
        self._prices = prices
        self._writer: Writer | None = None
        self._is_entered = False
        self._outer: recording | None = None
        self.lost: list[tuple[Trajectory, BaseException]] = []
        """Trajectories that could not be written, each with the exception."""

    def __enter__(self) -> Writer:
        with _lock:
            if self._is_entered:
                raise RuntimeError(
                    f"this recording to {self._target} is open already, and one object is entered once: open it around "
                    "all that it is for (threads take it over with rt.propagate(function)), or make an rt.recording() "
                    "for each block."
                )
            self._is_entered = True
        # Outside of the lock, which every closing trajectory takes: opening a file may wait for a disk.
        try:
            return self._open()
        except BaseException:
            self._is_entered = False
            raise

    def _open(self) -> Writer:
        self.lost = []
        if isinstance(self._target, (str, os.PathLike)):
            from rollout_trace.file import JSONLWriter

            self._writer = JSONLWriter(self._target, media=self._media)
        else:
            self._writer = self._target
        self._outer = _current.get()
        _current.set(self)
        _open_recordings.append(self)
        return self._writer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _open_recordings.remove(self)
        # Not reset(token): a fixture may leave the block in another context than it entered.
        _current.set(self._outer)
        writer, self._writer = self._writer, None
        self._is_entered = False
        if writer is not None and writer is not self._target:
            getattr(writer, "close")()  # noqa: B009 - a JSONLWriter of our own; a Writer need not have it
        if self.lost and error is None:
            trajectory, cause = self.lost[0]
            raise WriteError(
                f"{len(self.lost)} trajectories could not be written to {self._target}; the first is {trajectory.id} "
                f"({type(cause).__name__}: {cause})."
            ) from cause

    async def __aenter__(self) -> Writer:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)

    @property
    def is_open(self) -> bool:
        """True inside the block."""
        return self._writer is not None

    def write(self, family: list[Trajectory]) -> None:
        """Writes trajectories one by one. Those that fail go to ``lost``, and the others are written.

        On KeyboardInterrupt and the like the rest goes to ``lost`` too, and the exception is re-raised.
        """
        for at, trajectory in enumerate(family):
            try:
                if self._writer is None:
                    raise WriteError(f"the recording to {self._target} is closed")
                if self._prices is not None:
                    self._prices.apply(trajectory)
                self._writer.write(trajectory)
                if (state := state_of(trajectory)) is not None:
                    state.written_to = str(self._target)
            except Exception as error:
                self.lost.append((trajectory, error))
                guard.failed("write", None, error, self._loss_message(trajectory, error))
            except BaseException as interruption:
                self.lost.extend((unwritten, interruption) for unwritten in family[at:])
                raise

    def _loss_message(self, trajectory: Trajectory, error: Exception) -> str:
        message = str(error)
        # A JSONLWriter's message has the id already, and the state of the file.
        if trajectory.id not in message:
            named = f"trajectory {trajectory.id} ({trajectory.name})"
            message = f"{named} was not written to {self._target}: {guard.describe(error)}."
        return f"{message} The agent goes on; the trajectory is kept in the `lost` of the recording."


def _check_target(target: Any) -> None:
    if isinstance(target, (str, os.PathLike)):
        return
    # An open file has a `write` too, but for text: only `writelines` tells it from a writer.
    if not callable(getattr(target, "write", None)) or hasattr(target, "writelines"):
        what = "an open file" if hasattr(target, "writelines") else type(target).__name__
        raise TypeError(
            f"rt.recording() was given {user_values.brief(target)} ({what}); give the path of a file, such as "
            '"rollouts.jsonl", or a writer, such as rt.JSONLWriter(path).'
        )


_current: ContextVar[recording | None] = ContextVar("rollout_trace_recording", default=None)
_open_recordings: list[recording] = []
# Reentrant: while the lock is held, the garbage collector may close an agent (a generator), and its trajectory.
_lock = threading.RLock()


def reward_children(trajectory: Trajectory, name: str | None, value: float) -> None:
    """Sets a reward, or its part called ``name``, on the trajectories opened inside, now or when they close."""
    # Without the lock a child that closes in another thread meanwhile could miss the reward.
    with _lock:
        families.give_to_children(trajectory, name, value)


def reset() -> None:
    """Renews the lock in a forked process: another thread may have held it at the fork."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    # Where the state is, not where it is used: a process may use recordings and no client.
    os.register_at_fork(after_in_child=reset)


def current_recording() -> recording | None:
    """The recording block that this context is in, or was copied in; it may have closed since. None without one."""
    return _current.get()


def set_current_recording(value: recording | None) -> None:
    """Sets the recording of this context."""
    _current.set(value)


def write_closed(trajectory: Trajectory, parent: Trajectory | None) -> None:
    """Adds a closed trajectory to its open parent, to be written with it; without an open parent writes it."""
    # A parent that closes in another thread meanwhile has either collected this child, or is seen as closed here.
    with _lock:
        family = [trajectory, *trajectory._children]
        if parent is not None:
            families.inherit_rewards(family, parent)
            if parent.is_open:
                parent._children.extend(family)
                return
    target = _target_recording(family)
    if target is not None:
        target.write(family)
    guard.run_all("silence", *(partial(_warn_if_nothing_recorded, one) for one in family))


def _warn_if_nothing_recorded(trajectory: Trajectory) -> None:
    state = state_of(trajectory)
    if state is not None and state.written_to is not None:
        state.was_written(trajectory, state.written_to)
    elif state is not None:
        state.was_closed(trajectory)


def _target_recording(family: list[Trajectory]) -> recording | None:
    """The recording of this context; in a thread without one, the only one that is open; else None."""
    own = _current.get()
    if own is not None and own.is_open:
        return own
    if own is None and len(_open_recordings) < 2:
        return _open_recordings[0] if _open_recordings else None
    reason = "its recording had ended before it did" if own is not None else "several recordings are open"
    guard.count("recorder_errors")
    # Not once per process: every time a trajectory is lost.
    guard.warn(
        f"trajectory {family[0].id} was not written to a file: {reason}, and nothing says that another is meant. In a "
        "thread use rt.propagate(function), or open the recording there."
    )
    return None
