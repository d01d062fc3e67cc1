"""A line of ``export.exchanges`` as closed records: BenchFlow's own ignore what they do not know."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

OWN = ("usage", "status", "error")
"""Fields of a line beside those of BenchFlow's ``LLMExchange``."""


class Closed(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A record without other fields."""


class Request(Closed):
    """``LLMRequest``."""

    method: Literal["POST"]
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    timestamp: datetime | msgspec.UnsetType = msgspec.UNSET


class Response(Closed):
    """``LLMResponse``."""

    status_code: int
    headers: dict[str, str]
    body: dict[str, Any]
    timestamp: datetime | msgspec.UnsetType = msgspec.UNSET


class Error(Closed):
    """Why there is no answer, or not all of it."""

    type: str | None
    message: str | None
    code: str | int | None
    status: int | None


class Cost(Closed):
    """What the provider says that a call cost."""

    amount: float
    currency: str


class Metadata(Closed):
    """Whose exchange it is, and what else is known of it."""

    trajectory_id: str
    episode_id: str | None
    parent_id: str | None
    group_id: str | None
    task_id: str | None
    call_id: str
    step_ids: list[str]
    attempt: int
    attempts: int
    bodies: Literal["recorded", "chat"]
    protocol: str | None
    engine: str | None
    agent_name: str | None
    reward: float | None
    cost: Cost | None
    time_to_first_token_ms: float | None
    request_id: str | None
    http_status: int | None


class Exchange(Closed):
    """``LLMExchange``, and our own fields."""

    request: Request
    response: Response
    metadata: Metadata
    usage: dict[str, Any] | None
    status: Literal["ok", "error", "cancelled", "abandoned", "superseded", "cached", "running"]
    error: Error | None
    duration_ms: float | msgspec.UnsetType = msgspec.UNSET


def read(line: bytes) -> Exchange:
    """A line, strictly.

    Raises:
        msgspec.ValidationError: it has another field, none where one has to be, or a value of another type.
    """
    return msgspec.json.decode(line, type=Exchange)
