"""How a background thread shares the interpreter with the agent's threads."""

from __future__ import annotations

import threading
import time

_background = threading.local()


def set_polite(is_polite: bool) -> None:
    """Has ``give_way`` on this thread let others run first. Threads of the agent never call it."""
    _background.is_polite = is_polite


def give_way() -> None:
    """Lets a thread that waits for the interpreter run now, not after its switch interval of 5 ms. Between two calls."""
    if getattr(_background, "is_polite", False):
        time.sleep(0)
