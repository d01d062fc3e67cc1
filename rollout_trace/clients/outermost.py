"""The call that this context is sending: what is sent inside it, by a library below, is part of it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollout_trace.record.call import Call

current: ContextVar[Call | None] = ContextVar("rollout_trace_call", default=None)
"""Set while an SDK's ``request``, or an HTTP library's ``send``, runs: until its answer has begun. A library below
finds it there, and records nothing."""


def is_inside() -> bool:
    """Whether this context is sending a call. Never one that has ended: tasks begun meanwhile keep the variable."""
    call = current.get()
    return call is not None and call.ended is None
