"""Speed and limits of a scripted server: latency, throughput, a queue, rate limits."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from hashlib import blake2b

from rollout_trace.clients.loopback.messages import ConnectionCut, Response

from ._delivery import Pace


@dataclass(frozen=True)
class Latency:
    """Latency of a scripted server's answers, in seconds. The same request takes the same time in every run."""

    first_token: float = 0.0
    """Seconds before the first token."""
    per_token: float = 0.0
    """Seconds between tokens; an unstreamed answer comes after all of them."""
    per_prompt_token: float = 0.0
    """Additional seconds before the first token, for each token of the prompt."""
    jitter: float = 0.0
    """Share by which a request's times vary randomly: 0.2 means up to 20 % longer or shorter."""
    seed: int = 0
    """Seed of the jitter."""

    def __post_init__(self) -> None:
        for name in ("first_token", "per_token", "per_prompt_token", "jitter"):
            value = getattr(self, name)
            if not value >= 0:
                raise ValueError(f"Latency({name}={value!r}): use 0 or more")
        if self.jitter > 1:
            raise ValueError(f"Latency(jitter={self.jitter!r}): use a share from 0 to 1")

    def pace(self, request: bytes, prompt_tokens: int) -> Pace:
        """Returns the speed of the answer to one request."""
        digest = blake2b(f"{self.seed}:".encode() + request, digest_size=8).digest()
        factor = 1 + self.jitter * (2 * int.from_bytes(digest, "little") / 2**64 - 1)
        first = self.first_token + prompt_tokens * self.per_prompt_token
        return Pace(first * factor, self.per_token * factor)


@dataclass(frozen=True)
class RateLimit:
    """When a scripted server answers with status 429 and `retry-after`, instead of an answer from the script."""

    requests: int | None = None
    """Maximum number of requests in any period of `seconds`."""
    seconds: float = 1.0
    """Length of the period in seconds."""
    in_flight: int | None = None
    """Maximum number of simultaneous requests."""

    def __post_init__(self) -> None:
        if self.requests is None and self.in_flight is None:
            raise ValueError("RateLimit() limits nothing: give it `requests` (in `seconds`) or `in_flight`")
        for name in ("requests", "in_flight", "seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"RateLimit({name}={value!r}): use more than 0")


def latency_of(latency: float | Latency, tokens_per_second: float | None, delay: float) -> Latency:
    """The latency of a server from its arguments. Raises ValueError where they contradict each other."""
    if not isinstance(latency, (Latency, int, float)):
        raise TypeError(f"latency={latency!r}: use seconds, or a Latency")
    made = latency if isinstance(latency, Latency) else Latency(first_token=latency)
    if tokens_per_second is not None:
        if made.per_token:
            raise ValueError("`tokens_per_second` and `Latency(per_token=...)` say the same thing: give one of them")
        if not tokens_per_second > 0:
            raise ValueError(f"tokens_per_second={tokens_per_second!r}: use more than 0, or None for no limit")
        made = replace(made, per_token=1 / tokens_per_second)
    return replace(made, first_token=made.first_token + delay) if delay else made


def checked_count(name: str, value: int | None) -> int | None:
    """A number of things that is 1 or more, or None. Raises ValueError for another."""
    if value is not None and value < 1:
        raise ValueError(f"{name}={value!r}: use 1 or more, or None for no limit")
    return value


class Meter:
    """Counts requests against a rate limit."""

    def __init__(self, limit: RateLimit | None) -> None:
        if limit is not None and not isinstance(limit, RateLimit):
            raise TypeError(f"rate_limit={limit!r}: use RateLimit(requests=..., seconds=...)")
        self._limit = limit
        self._times: deque[float] = deque()
        self._in_flight = 0
        self._guard = threading.Lock()

    def enter(self) -> float | None:
        """Count a request. Seconds to wait, if it has to come again later; else `leave` must follow."""
        with self._guard:
            wait = self._wait(time.monotonic())
            if wait is None:
                self._in_flight += 1
            return wait

    def leave(self) -> None:
        """A request that was let in has its answer."""
        with self._guard:
            self._in_flight -= 1

    def _wait(self, now: float) -> float | None:
        limit = self._limit
        if limit is None:
            return None
        if limit.in_flight is not None and self._in_flight >= limit.in_flight:
            return limit.seconds
        if limit.requests is not None:
            while self._times and self._times[0] <= now - limit.seconds:
                self._times.popleft()
            if len(self._times) >= limit.requests:
                return self._times[0] + limit.seconds - now
            self._times.append(now)
        return None


class Slots:
    """Lets some requests run at the same time; the others wait for their turn."""

    def __init__(self, count: int, closing: threading.Event) -> None:
        self._free = threading.Semaphore(count)
        self._closing = closing

    def place(self, response: Response) -> Response:
        """The response, which waits for its turn."""
        taken: list[bool] = []

        def enter() -> None:
            taken.append(self._free.acquire())
            if self._closing.is_set():
                raise ConnectionCut

        def leave() -> None:
            # A connection can break while its request waits.
            if taken:
                self._free.release()

        return replace(response, before=[enter, *response.before], after=[*response.after, leave])
