"""How fast a run goes: over the last while, not since its beginning."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

WINDOW = 30.0
"""Seconds that are looked back at least."""
_SAMPLES = 240
"""Samples that a window has, about."""


class _Sample(NamedTuple):
    at: float
    ended: int
    tokens: int


class Rate:
    """Rollouts and tokens a second over the last 30 seconds, or longer where little ended in them.

    Args:
        at: the time now, in seconds.
        ended: rollouts that have ended, before the first is begun.
        tokens: their tokens.
        least: rollouts that a window has at the least. Rollouts that begin together end together: a window that holds
            less than two such waves is too short.
    """

    def __init__(self, at: float, ended: int, tokens: int, *, least: int) -> None:
        self._samples = deque([_Sample(at, ended, tokens)])
        self._last = self._samples[0]
        self._least = least

    def add(self, at: float, ended: int, tokens: int) -> None:
        """What has ended by now."""
        self._last = _Sample(at, ended, tokens)
        samples = self._samples
        while len(samples) > 1 and self._is_enough(samples[1]):
            samples.popleft()
        before = samples[-1]
        if (ended, tokens) == before[1:]:
            # Of what ends together in waves, the time at which a wave ended counts.
            return
        # Farther apart in a long window: the number of samples stays within bounds.
        if at - before.at >= (at - samples[0].at) / _SAMPLES:
            samples.append(self._last)

    def _is_enough(self, sample: _Sample) -> bool:
        return self._last.at - sample.at >= WINDOW and self._last.ended - sample.ended >= self._least

    def rollouts(self) -> float | None:
        """Rollouts that end in a second; None while none has."""
        return self._per_second(self._last.ended - self._samples[0].ended)

    def tokens(self) -> float | None:
        """Tokens a second; None while none is known."""
        return self._per_second(self._last.tokens - self._samples[0].tokens)

    def _per_second(self, number: int) -> float | None:
        seconds = self._last.at - self._samples[0].at
        return number / seconds if number > 0 and seconds > 0 else None
