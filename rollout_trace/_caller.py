"""Finds the line of user code that called this package, for messages about mistakes detected only later."""

from __future__ import annotations

import os
import sys

_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def place_of_caller() -> str | None:
    """``file:line`` of the innermost caller in user code, else in a library; None where there is no caller outside.

    The standard library and installed packages count as libraries.
    """
    frame, in_library = sys._getframe(1), None
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package != "rollout_trace":
            place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            # By name as well as by path: an integration under development is installed from its own folder.
            if not package.startswith("rollout_trace_") and not _is_library(frame.f_code.co_filename):
                return place
            in_library = in_library or place
        frame = frame.f_back  # type: ignore[assignment]
    return in_library


def _is_library(file: str) -> bool:
    return file.startswith((_STANDARD_LIBRARY, "<frozen")) or any(part in file for part in _INSTALLED)
