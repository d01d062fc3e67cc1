"""What a trajectory and those opened inside it have in common: they are written together, and can share a reward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_trace.data import user_values
from rollout_trace.record.state import state_of

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory


def give_to_children(trajectory: Trajectory, name: str | None, value: float) -> None:
    """Gives a reward, or the part of it called ``name``, to the trajectories opened inside: those that have closed, and
    those that will."""
    state = state_of(trajectory)
    if state is None:
        return
    state.for_children[name] = (value, trajectory.id)
    for child in trajectory._children:
        _take(child, name, value, trajectory.id)


def inherit(family: list[Trajectory], parent: Trajectory) -> None:
    """Takes over what the trajectory around a family gives to those inside."""
    state = state_of(parent)
    for name, (value, giver) in state.for_children.items() if state is not None else ():
        for one in family:
            _take(one, name, value, giver)


def _take(child: Trajectory, name: str | None, value: float, giver: str) -> None:
    state = state_of(child)
    if state is None:
        return
    # What a trajectory between the two gives is nearer; what the same one gave before is replaced.
    passed_on = state.for_children.get(name)
    if passed_on is None or passed_on[1] == giver:
        state.for_children[name] = (value, giver)
    own = child.reward if name is None else (child.rewards or {}).get(name)
    if own is not None and state.from_above.get(name) != (own, giver):
        return
    state.from_above[name] = (value, giver)
    # Not set as a user sets it: nobody has scored this one.
    if name is None:
        object.__setattr__(child, "reward", value)
    else:
        rewards = user_values.named_numbers({**(child.rewards or {}), name: value}, user_values.Rewards)
        object.__setattr__(child, "rewards", rewards)
