"""Why a request found no answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ._recorded_calls import RecordedCall
from ._requests import MatchOptions

Reason: TypeAlias = Literal["nothing_recorded", "not_recorded", "used", "order"]
"""``nothing_recorded``: the cassette is empty. ``not_recorded``: no recorded request is equal. ``used``: one is, and
was asked for before as often as it was recorded. ``order``: one is, and another should come first."""


@dataclass(frozen=True)
class Facts:
    """What was so when a request found no answer."""

    reason: Reason
    number: int
    """Of the call among those that the test made, from 1."""
    recorded: int
    """Recorded exchanges that generate."""
    used: int
    """Those of them that were used."""
    several: bool
    """Whether the cassette has several trajectories."""
    times: int
    """How many times an equal request was recorded."""
    asked: int
    """With the reason ``used``: how many times it has now been asked for."""
    waiting: RecordedCall | None
    """An equal request whose turn has not come."""
    missing: RecordedCall | None
    """The call that should come before it."""
    options: MatchOptions
    nearest: RecordedCall | None = None
