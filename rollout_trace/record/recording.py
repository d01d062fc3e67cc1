"""Where closed trajectories go: to the file of the recording that is open around them."""

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
    """What a recording writes to."""

    def write(self, trajectory: Trajectory) -> None:
        """Writes one closed trajectory."""


class recording:
    """Writes every outermost trajectory that closes inside, and its children, to a file or a writer.

    It holds for all threads of the process: a trajectory closed in a thread that knows of no recording goes to the only
    one that is open. Yields the writer. A trajectory that cannot be written does not stop the agent: when the block
    ends, WriteError names what is missing from the file.

    ``media`` is that of ``JSONLWriter``. ``prices`` sets the cost of each call before its trajectory is written, where
    neither the provider's answer nor the user gave one.

    Raises:
        TypeError: the target is neither a path nor a writer (an open file is none), or ``prices`` is no ``PriceTable``.
        ValueError: ``media`` is given beside a writer, which has its own; on entering the block, what ``JSONLWriter``
            refuses.
        RuntimeError: the same object is entered again while it is open.
        WriteError: on leaving the block, when trajectories could not be written.
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
        """What is not in the file, and why."""

    def __enter__(self) -> Writer:
        with _lock:
            if self._is_entered:
                raise RuntimeError(
                    f"this recording to {self._target} is open already, and one object is entered once: open it around "
                    "all that it is for (threads take it over with rt.propagate(function)), or make an rt.recording() "
                    "for each block."
                )
            self._is_entered = True
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
        self._outer = _of_context.get()
        _of_context.set(self)
        _open.append(self)
        return self._writer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _open.remove(self)
        _of_context.set(self._outer)
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
        """Writes trajectories, each whole; one that fails does not keep the others from the file.

        Those that Ctrl-C keeps from the file are in ``lost`` too.
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
                guard.failed("write", None, error, self._loss(trajectory, error))
            except BaseException as interruption:
                self.lost.extend((unwritten, interruption) for unwritten in family[at:])
                raise

    def _loss(self, trajectory: Trajectory, error: Exception) -> str:
        said = str(error)
        if trajectory.id not in said:  # That of a JSONLWriter says which trajectory, and what became of the file.
            named = f"trajectory {trajectory.id} ({trajectory.name})"
            said = f"{named} was not written to {self._target}: {guard.describe(error)}."
        return f"{said} The agent goes on; the trajectory is kept in the `lost` of the recording."


def _check_target(target: Any) -> None:
    if isinstance(target, (str, os.PathLike)):
        return
    # A file has a `write` too, which takes texts.
    if not callable(getattr(target, "write", None)) or hasattr(target, "writelines"):
        what = "an open file" if hasattr(target, "writelines") else type(target).__name__
        raise TypeError(
            f"rt.recording() was given {user_values.brief(target)} ({what}); give the path of a file, such as "
            '"rollouts.jsonl", or a writer, such as rt.JSONLWriter(path).'
        )


_of_context: ContextVar[recording | None] = ContextVar("rollout_trace_recording", default=None)
_open: list[recording] = []
# Reentrant: the garbage collector may close an agent, which is a generator, while the lock is held.
_lock = threading.RLock()


def reward_children(trajectory: Trajectory, name: str | None, value: float) -> None:
    """Gives a reward, or the part of it called ``name``, to the trajectories opened inside."""
    with _lock:
        families.give_to_children(trajectory, name, value)


def reset() -> None:
    """Renews the lock, in a process that was forked while a thread held it."""
    global _lock
    _lock = threading.RLock()


def of_context() -> recording | None:
    """The recording that was opened around this context, open or not."""
    return _of_context.get()


def enter(own: recording | None) -> None:
    """Makes a recording this context's own."""
    _of_context.set(own)


def write_closed(trajectory: Trajectory, parent: Trajectory | None) -> None:
    """Hands a closed trajectory to its open parent, to be written with it; writes it where there is none."""
    with _lock:
        family = [trajectory, *trajectory._children]
        if parent is not None:
            families.inherit(family, parent)
            if parent.is_open:
                parent._children.extend(family)
                return
    target = _target(family)
    if target is not None:
        target.write(family)
    guard.run_all("silence", *(partial(_warn_if_nothing_recorded, one) for one in family))


def _warn_if_nothing_recorded(trajectory: Trajectory) -> None:
    state = state_of(trajectory)
    if state is not None and state.written_to is not None:
        state.was_written(trajectory, state.written_to)
    elif state is not None:
        state.was_closed(trajectory)


def _target(family: list[Trajectory]) -> recording | None:
    """The recording of this context; in a thread that knows of none, the only one that is open."""
    own = _of_context.get()
    if own is not None and own.is_open:
        return own
    if own is None and len(_open) < 2:
        return _open[0] if _open else None
    reason = "its recording had ended before it did" if own is not None else "several recordings are open"
    guard.count("recorder_errors")
    # Each time: with each a trajectory is lost.
    guard.warn(
        f"trajectory {family[0].id} was not written to a file: {reason}, and nothing says that another is meant. In a "
        "thread use rt.propagate(function), or open the recording there."
    )
    return None
