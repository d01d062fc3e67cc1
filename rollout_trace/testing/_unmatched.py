"""What there is to say about a request that no recorded answer fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from rollout_trace import guard
from rollout_trace.data.exchange import Exchange

from ._difference import differences
from ._difference_text import headline, lines_of
from ._hints import hints
from ._normal_form import form_of, protocol_of, target_of
from ._recorded_calls import RecordedCall
from ._requests import MatchOptions, Request, request_of
from ._text_parts import Paint, unpainted

Reason: TypeAlias = Literal["nothing_recorded", "not_recorded", "used", "order"]
"""``nothing_recorded``: the cassette is empty. ``not_recorded``: no recorded request is equal. ``used``: one is, and was
asked for as often as it was recorded. ``order``: one is, and another should come first."""


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
    waiting: RecordedCall | None
    """An equal request whose turn has not come."""
    missing: RecordedCall | None
    """The call that should come before it."""
    options: MatchOptions
    nearest: RecordedCall | None = None


@dataclass(frozen=True)
class Unmatched:
    """A request that no recorded exchange answers, and why."""

    request: Request
    nearest: Exchange | None
    """The recorded exchange that it is most like; None where nothing is recorded."""
    reason: Reason
    facts: Facts

    def text(self, *, width: int = 100, paint: Paint | None = None, test: str | None = None) -> str:
        """What is wrong, what differs from the nearest recorded call, and what to do.

        Args:
            width: columns of the terminal.
            paint: colours the text; None: plain.
            test: the test as pytest names it, for the command that records it again.
        """
        found = _Text(self, max(width, 60), paint or unpainted, marks=paint is None)
        return "\n".join([*found.lines(), "", *hints(self.reason, found.found, self, found.paint, test)])
