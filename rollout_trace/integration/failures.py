"""Failures of an integration's own code, where ``guarded`` cannot stand around it."""

from __future__ import annotations

from rollout_trace import guard


def report_failure(where: str, error: Exception) -> None:
    """Logs a failure of the integration's own code and counts it in ``rt.stats().recorder_errors``; the agent goes on.

    For code that ``guarded`` cannot be put around, such as a part of a coroutine. The log gets one line for all
    failures of one class in one place.

    Args:
        where: what failed, in a word or two: ``"close"``.
        error: the failure.

    Raises:
        Exception: ``error`` itself, under pytest only.
    """
    guard.failed(where, None, error)
