"""Times and durations as a line has them."""

from __future__ import annotations

from datetime import datetime, timezone

from rollout_trace import guard


def time_text(value: datetime) -> str | datetime:
    """RFC 3339 in UTC with microseconds; or the time itself, where orjson writes it so."""
    if value.tzinfo is None:
        guard.warn_once("naive-time", f"a time without a time zone ({value}) is taken as UTC.")
        value = value.replace(tzinfo=timezone.utc)
    if value.tzinfo is timezone.utc and value.microsecond:
        return value  # orjson writes this case in the same form, ten times as fast.
    return value.astimezone(timezone.utc).isoformat(timespec="microseconds")[:-6] + "Z"


def milliseconds(seconds: float) -> float:
    """A duration as it is written, to the nanosecond."""
    return round(seconds * 1e3, 6)


def from_milliseconds(value: float | None) -> float | None:
    """Seconds of a duration that was read."""
    return None if value is None else round(value / 1e3, 9)
