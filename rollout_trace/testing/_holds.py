"""Pauses of responses that a test ends."""

from __future__ import annotations

import threading

from ._messages import ConnectionCut


class Holds:
    """Makes responses wait until the test releases them. Permits may be given before a response reaches its hold."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held = 0
        self._permits = 0
        self._open = False
        self._closed = False

    def hold(self) -> None:
        """Wait for a permit; cut the connection if the server closes meanwhile."""
        with self._changed:
            self._held += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._open or self._closed or self._permits > 0)
            self._held -= 1
            self._permits = max(0, self._permits - 1)
            self._changed.notify_all()
            if self._closed:
                raise ConnectionCut

    def release(self, count: int | None) -> None:
        """Continue `count` responses, or all (now and later) if None."""
        with self._changed:
            if count is None:
                self._open = True
            else:
                self._permits += count
            self._changed.notify_all()

    def wait_held(self, count: int, timeout: float) -> None:
        """Wait until `count` responses are held. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._held >= count, timeout):
                raise TimeoutError(f"{self._held} responses are held after {timeout} s, not {count}")

    def close(self) -> None:
        """End every hold by cutting its connection."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
