"""What the recorder keeps of one trajectory beside the record itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rollout_trace import guard
from rollout_trace._caller import place_of_caller
from rollout_trace.record.silence import warn_if_nothing_recorded

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.record.log import StepLog


@dataclass(slots=True, eq=False)
class TrajectoryState:
    """Made when a trajectory is opened, and kept after it has closed: children, rewards and files come later."""

    log: StepLog | None
    """The calls; None when the trajectory has closed."""
    opened_at: str | None
    """File and line in the user's code."""
    opened_inside: int = 0
    """Trajectories that were opened inside, closed or not."""
    for_children: dict[str | None, tuple[float, str]] = field(default_factory=dict)
    """Rewards for the trajectories inside, and the id of the one that gives them; None names the reward itself."""
    from_above: dict[str | None, tuple[float, str]] = field(default_factory=dict)
    """Rewards that it has of a trajectory around it, and the id of that one."""
    written_to: str | None = None
    """The file that has it."""

    def was_set(self, trajectory: Trajectory, name: str, value: Any) -> None:
        """Warns of a field that was set too late, or of a reward for a trajectory without calls."""
        if self.written_to is not None:
            guard.warn_once(
                "set-after-write",
                f"Trajectory.{name} was set after the trajectory had been written to {self.written_to}: the file does "
                "not have it. Set it inside the `with rt.trajectory()` block.",
            )
        if name in ("reward", "rewards") and value is not None and self.log is None:
            self._warn(trajectory, f"is scored {value!r} at {place_of_caller()}")

    def was_written(self, trajectory: Trajectory, target: object) -> None:
        """Warns of a trajectory that goes to a file without calls."""
        self._warn(trajectory, f"was written to {target}")

    def was_closed(self, trajectory: Trajectory) -> None:
        """Warns of a trajectory that was scored, has no calls, and goes to no file."""
        scored = self._own_score(trajectory)
        if scored is not None:
            self._warn(trajectory, f"was scored {scored!r}")

    def _own_score(self, trajectory: Trajectory) -> object:
        """A reward that somebody gave this trajectory, not one around it."""
        if trajectory.reward is not None and None not in self.from_above:
            return trajectory.reward
        return next((value for name, value in (trajectory.rewards or {}).items() if name not in self.from_above), None)

    def _warn(self, trajectory: Trajectory, happened: str) -> None:
        opened_at, opened_inside = self.opened_at, self.opened_inside
        warn_if_nothing_recorded(trajectory, happened, opened_at=opened_at, opened_inside=opened_inside)


def state_of(trajectory: Trajectory) -> TrajectoryState | None:
    """The state of a trajectory that was opened, in this process or another; None of any other."""
    recorder = trajectory._recorder
    return recorder if isinstance(recorder, TrajectoryState) else None


def log_of(trajectory: Trajectory | None) -> StepLog | None:
    """The calls of an open trajectory; None where there is none, or it is not open."""
    state = None if trajectory is None else state_of(trajectory)
    return None if state is None else state.log
