"""Open frames by the framework's own id of what runs: for hooks that report starts and ends of spans or runs."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from rollout_trace.record.scope import Frame

F = TypeVar("F", bound=Frame)

_SWEEP_FROM = 1000
"""Number of frames from which closed ones are dropped."""


class OpenFrames(Generic[F]):
    """Open frames by key: the id that the framework gives to a span, a run, an invocation.

    A frame whose end no hook reports is closed with an enclosing frame or its trajectory, and is dropped here later, so
    that long processes do not fill. Thread safe: keys are added and removed by single operations.
    """

    def __init__(self) -> None:
        self._frames: dict[Hashable, F] = {}
        self._sweep_at = _SWEEP_FROM

    def begin(self, key: Hashable, frame: F) -> F:
        """Keeps a frame until ``end``, and returns it. It is not entered: the context may be another one."""
        self._frames[key] = frame
        if len(self._frames) >= self._sweep_at:
            self._sweep()
        return frame

    def find(self, key: Hashable) -> F | None:
        """The open frame of this key; None if there is none, or if it has been closed with an enclosing one."""
        frame = self._frames.get(key)
        return frame if frame is not None and frame.is_open else None

    def pop(self, key: Hashable) -> F | None:
        """Removes the frame of this key, and returns it if it is open; for one that gets its answer before it ends."""
        frame = self._frames.pop(key, None)
        return frame if frame is not None and frame.is_open else None

    def end(self, key: Hashable, error: BaseException | None = None) -> None:
        """Ends the frame of this key. Without one, and if it has ended already, nothing happens."""
        frame = self._frames.pop(key, None)
        if frame is not None:
            frame.end(error)

    def __len__(self) -> int:
        return len(self._frames)

    def _sweep(self) -> None:
        for key, frame in list(self._frames.items()):
            if not frame.is_open:
                self._frames.pop(key, None)
        # Twice what stays: each frame is then looked at a bounded number of times.
        self._sweep_at = max(_SWEEP_FROM, 2 * len(self._frames))
