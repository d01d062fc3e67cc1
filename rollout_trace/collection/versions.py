"""Versions of the policy's weights: which one a rollout began with, and how many there have been since."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeAlias

from rollout_trace import guard
from rollout_trace.collection import checks
from rollout_trace.data.user_values import brief

Version: TypeAlias = int | str


class Versions:
    """The version of the weights: a number, a text, a function that returns one, or None. Raises as ``rt.rollouts``."""

    def __init__(self, given: Any = None, max_lag: Any = None) -> None:
        self._function: Callable[[], Any] | None = given if callable(given) else None
        self._latest: Version | None = None
        self.max_lag = None if max_lag is None else checks.whole(max_lag, "max_lag", least=0)
        if self.max_lag is not None and given is None:
            raise ValueError(
                f"max_lag is {self.max_lag}, but there is no policy_version to measure it by. Give "
                "policy_version=: a number, or a function that returns one."
            )
        if self._function is None:
            self._latest = None if given is None else self._checked(given, "policy_version is")
        else:
            self.now()

    def now(self) -> Version | None:
        """The version now; None where none was given. Raises what the function raises, or TypeError."""
        if self._function is not None:
            self._latest = self._checked(self._function(), "policy_version() returned")
        return self._latest

    def of_call(self) -> Version | None:
        """Like ``now``, for the recorder: if the function fails, logs that and returns the latest known version."""
        try:
            return self.now()
        except Exception as error:
            guard.warn_once(
                "policy_version",
                f"policy_version= failed during a call ({guard.describe(error)}). The step keeps the previous version.",
            )
            return self._latest

    def is_stale(self, began: Version | None, *, after: int = 0) -> bool:
        """Returns whether a rollout begun with this version is too old, now or after this many more versions."""
        if self.max_lag is None:
            return False
        now = self.now()
        # Rollouts of an earlier run may have no number, or that of weights which a trainer has gone back from since.
        return not isinstance(began, int) or not isinstance(now, int) or not 0 <= now - began <= self.max_lag - after

    def _checked(self, value: Any, what: str) -> Version:
        if isinstance(value, str) and self.max_lag is None:
            return value
        if not isinstance(value, bool) and hasattr(type(value), "__index__"):
            return operator.index(value)
        wanted = (
            "a whole number or a text" if self.max_lag is None else "a whole number, which max_lag is compared with"
        )
        raise TypeError(f"{what} {brief(value)} ({type(value).__name__}); give {wanted}.")
