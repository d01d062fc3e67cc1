"""Live calls that are not sent through a library that is redirected: refused while a cassette answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

from rollout_trace.process.patches import Patches

from .routing import is_provider


class LiveCalls:
    """Refuses to look up the hosts of model providers, until it is undone.

    boto3, gRPC and what else opens connections of its own would call the real model, and nobody would see it.
    """

    def __init__(self) -> None:
        self._refused: list[str] = []
        self._lock = threading.Lock()
        self._patches = Patches()
        self._patches.replace(socket, "getaddrinfo", self._guarded)

    def undo(self) -> None:
        """Puts the look-up back."""
        self._patches.undo()

    @property
    def refused(self) -> list[str]:
        """The hosts, in the order they were asked for."""
        with self._lock:
            return list(self._refused)

    def _guarded(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
            name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
            if self._patches.is_active and isinstance(name, str) and is_provider(name.lower()):
                with self._lock:
                    self._refused.append(name)
                raise socket.gaierror(
                    socket.EAI_FAIL, f"a live call to {name} was refused: this test replays a cassette"
                )
            return original(host, *args, **kwargs)

        return getaddrinfo
