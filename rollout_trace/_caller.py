"""Where in the user's code this package was called: for messages about a mistake that is seen only later."""

from __future__ import annotations

import os
import sys

_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def place_of_caller() -> str | None:
    """File and line of the user's code that called this package; of a library's where no code of a user's did."""
    frame, found = sys._getframe(1), None
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package != "rollout_trace":
            place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            # An integration may be installed from its own folder.
            if not package.startswith("rollout_trace_") and not _is_library(frame.f_code.co_filename):
                return place
            found = found or place
        frame = frame.f_back  # type: ignore[assignment]
    return found


def _is_library(file: str) -> bool:
    return file.startswith((_STANDARD_LIBRARY, "<frozen")) or any(part in file for part in _INSTALLED)
