"""``Exchange``: one HTTP request to a model server and its answer, byte for byte."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

from rollout_trace._field_docs import document_fields

if TYPE_CHECKING:
    from datetime import datetime

Outcome = Literal["complete", "cut", "unreachable", "closed"]


@document_fields
@dataclass(frozen=True)
class Exchange:
    """A recorded request and its response, byte for byte. A cassette replays it."""

    name: str
    """Name of the exchange among the recorded ones."""
    method: str
    """HTTP method."""
    path: str
    """Path of the request; it may include a query, never a host."""
    request: bytes
    """Body of the request, without content encoding."""
    status: int | None
    """HTTP status; None if no answer had begun when the exchange ended."""
    headers: tuple[tuple[str, str], ...]
    """Headers of the response, with lower-case names, as recorded."""
    response: bytes
    """Body of the response, without transfer encoding."""
    chunk_sizes: tuple[int, ...]
    """Sizes of the pieces in which the response arrived, in bytes; they add up to its length."""
    request_content_type: str | None = None
    """``content-type`` of the request."""
    protocol: str | None = None
    """Protocol, as in ``Step.protocol``; None if it is unknown, or nothing is generated (model lists, embeddings)."""
    call_id: str | None = None
    """``Step.call_id`` of the call that this is an attempt of; None if it is unknown, or nothing is generated."""
    chunk_times: tuple[float, ...] = ()
    """Seconds from the request to each piece of the response; files keep microseconds. Empty: not known."""
    outcome: Outcome = "complete"
    """How it ended: ``complete``, ``cut`` (the server closed the connection before the end), ``unreachable`` (there was
    no answer at all), ``closed`` (the caller went away: a timeout, a cancellation, a stream that was closed early)."""
    started_at: datetime | None = None
    """When the request was sent."""
    duration: float | None = None
    """Seconds from sending the request to the end of the exchange."""

    @property
    def content_type(self) -> str:
        """`content-type` of the response, or "" if it had none."""
        return next((value for name, value in self.headers if name == "content-type"), "")

    @property
    def chunked(self) -> bool:
        """Returns whether the response came with `transfer-encoding: chunked`."""
        return any(name == "transfer-encoding" and "chunked" in value.lower() for name, value in self.headers)

    @property
    def chunks(self) -> list[bytes]:
        """Returns the response in the pieces in which it arrived."""
        ends = accumulate(self.chunk_sizes)
        return [self.response[end - size : end] for end, size in zip(ends, self.chunk_sizes, strict=True)]
