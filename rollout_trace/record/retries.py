"""Requests of an HTTP library that repeat a failed one: attempts of one call, which an SDK would have shown as one."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from rollout_trace.record.call_steps import add_attempts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rollout_trace.record.call import Call

_MAY_BE_RETRIED = frozenset({408, 409, 425, 429})


def digest_of(call: Call) -> str | None:
    """The digest of the request of an HTTP library's call; None of other calls, and where the request is not kept."""
    if not call.settings.is_http or call.request is None:
        return call.request_digest
    return hashlib.blake2b(call.request, digest_size=16).hexdigest()


def join_retries(calls: Iterable[Call]) -> None:
    """Gives a call the attempts of an earlier one of the same request, which failed before it began.

    The earlier one has no steps any more. Twice does what once does.

    Args:
        calls: of one trajectory, in the order they began; those that have ended are decoded.
    """
    failed: dict[tuple[str | None, ...], list[Call]] = {}
    for call in calls:
        digest = digest_of(call)
        if digest is None:
            continue
        alike = failed.setdefault((call.protocol, call.endpoint, call.agent, digest), [])
        # The first that failed: where several are sent at once, each is repeated once.
        earlier = next((one for one in alike if one.ended is not None and one.ended <= call.began), None)
        if earlier is not None:
            alike.remove(earlier)
            # Not before its end: the journal would have the attempts of both in both.
            if call.ended is not None:
                _take_over(call, earlier)
        if _has_failed(call):
            alike.append(call)


def _has_failed(call: Call) -> bool:
    if not call.steps or any(step.status != "error" for step in call.steps) or not call.attempts:
        return False
    status = call.attempts[-1].status
    return status is None or status in _MAY_BE_RETRIED or status >= 500


def _take_over(call: Call, earlier: Call) -> None:
    call.attempts[:0] = earlier.attempts
    call.started, call.began = earlier.started, earlier.began
    add_attempts(call)
    earlier.steps = []
