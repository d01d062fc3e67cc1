"""What a thread takes over from where it was started: the trajectory, the frame and the recording, nothing else.

Not a copy of the whole context: that would change the program (the precision of ``decimal``, a web request), hold what
it holds for as long as a thread lives, and could not be entered by two threads at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rollout_trace.record import recording, scope
from rollout_trace.record.scope import current_scope

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory


class Carried(NamedTuple):
    """The context variables of the recorder. Compared by identity of their values alone: trajectories are records."""

    trajectory: Trajectory | None
    frame: scope.Frame | None
    recording: recording.recording | None


NOTHING = Carried(None, None, None)


def present() -> Carried:
    """What is current here."""
    return Carried(current_scope.get(), scope.entered(), recording.current_recording())


def worth_carrying() -> Carried | None:
    """What is current here; None if nothing is."""
    here = present()
    return None if here.trajectory is None and here.frame is None and here.recording is None else here


def switch(to: Carried) -> Carried:
    """Makes it current here and returns what was."""
    before = present()
    current_scope.set(to.trajectory)
    scope.enter(to.frame)
    recording.set_current_recording(to.recording)
    return before
