"""Reports failures of an integration's own code that ``guarded`` cannot catch."""

from __future__ import annotations

from rollout_trace import guard


def report_failure(where: str, error: Exception) -> None:
    """Logs a failure of the integration's own code and counts it in ``rt.stats().recorder_errors``.

    For code that cannot be decorated with ``guarded``, such as a part of a coroutine. Failures of one class in one
    place are logged once.

    Args:
        where: the place, in a word or two: ``"close"``.
        error: the failure.

    Raises:
        Exception: ``error`` itself, under pytest only.
    """
    guard.failed(where, None, error)
