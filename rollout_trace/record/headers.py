"""The response headers that steps are made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollout_trace.data.counts import COST_HEADER

NAMES = ("content-type", "content-encoding", "x-request-id", "request-id", COST_HEADER)
_NAMES = {name.encode(): name for name in NAMES}


class KnownHeaders(dict[str, str]):
    """The headers of ``NAMES`` that an answer has, by name."""

    __slots__ = ()


def known_headers(headers: Mapping[str, str]) -> KnownHeaders:
    """Those of ``NAMES`` that an answer has.

    Args:
        headers: with lower-case names, or in a case-insensitive mapping.
    """
    pairs = _pairs(headers)
    # One that came twice is joined by the look-up by name.
    if pairs is not None and len(found := KnownHeaders(pairs)) == len(pairs):
        return found
    return KnownHeaders((name, value) for name in NAMES if (value := headers.get(name)) is not None)


def _pairs(headers: Any) -> list[tuple[str, str]] | None:
    """The same of httpx's own object, in one pass: each of its look-ups by name takes as long. None of others."""
    items = getattr(headers, "_list", None)
    if type(items) is not list:
        return None
    try:
        return [(_NAMES[name], value.decode("ascii")) for _, name, value in items if name in _NAMES]
    except (TypeError, ValueError, AttributeError):
        # Not in ASCII, or of another version.
        return None
