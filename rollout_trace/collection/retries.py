"""Which failures of an agent are tried again, how often, and how long to wait before."""

from __future__ import annotations

from dataclasses import dataclass

TIMEOUT = "RolloutTimeout"
"""Name of the exception of a rollout that took too long."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How failed rollouts are tried again."""

    retries: int = 0
    """Most further attempts."""
    kinds: frozenset[str] | None = None
    """Names of the exception classes that are tried again, their subclasses included; None: all but timeouts."""
    first_wait: float = 1.0
    """Seconds before the second attempt; twice as many before each further one."""
    longest_wait: float = 60.0

    def applies(self, kinds: tuple[str, ...], failures: int) -> bool:
        """Whether another attempt follows, after so many in this run that failed."""
        if failures > self.retries or not kinds:
            return False
        return kinds[0] != TIMEOUT if self.kinds is None else not self.kinds.isdisjoint(kinds)

    def wait(self, failures: int) -> float:
        """Seconds to wait after so many failed attempts."""
        return min(self.longest_wait, self.first_wait * 2.0 ** min(failures - 1, 30))
