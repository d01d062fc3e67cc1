"""What a test's request is compared by: ``Request`` and ``MatchOptions``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from rollout_trace.data.exchange import Exchange


@dataclass(frozen=True)
class MatchOptions:
    """What may differ between a request and the recorded one."""

    ignore: tuple[str, ...] = ()
    """Fields of the body that are not compared: names (``seed``), or paths with dots, where ``*`` stands for every
    item or field (``messages.*.name``)."""
    normalize: Callable[[Any], Any] | None = None
    """From the parsed body (bytes where it is not JSON) to what is compared in its place. It gets a copy of its own,
    of recorded bodies and of new ones; requests without a body are left alone."""
    order: Literal["recorded", "free"] = "recorded"
    """``free``: calls may come in any order."""

    def __post_init__(self) -> None:
        if isinstance(self.ignore, str):  # A text is a sequence of texts too: its letters.
            raise TypeError(f"ignore={self.ignore!r} is one text: it should be a list of them, [{self.ignore!r}].")
        for path in self.ignore:
            if not isinstance(path, str) or not all(path.split(".")):
                raise ValueError(
                    f"ignore= holds {path!r}: each should be a field's name, or a path such as 'messages.*.name'."
                )
        if self.normalize is not None and not callable(self.normalize):
            raise TypeError(f"normalize={self.normalize!r} should be a function that takes the body of a request.")
        if self.order not in ("recorded", "free"):
            raise ValueError(f"order={self.order!r} should be 'recorded' or 'free'.")


@dataclass(frozen=True)
class Request:
    """One request that a test made."""

    method: str
    path: str
    """With its query."""
    body: bytes
    content_type: str | None = None
    call: str | None = None
    """Id of the client's call that it is an attempt of; None where that is not known."""


def request_of(exchange: Exchange) -> Request:
    """The request of a recorded exchange."""
    return Request(exchange.method, exchange.path, exchange.request, exchange.request_content_type, exchange.call_id)
